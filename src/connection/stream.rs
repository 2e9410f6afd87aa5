//! The bytes of one connection: a socket, with TLS where the address asks for it.
//!
//! * A write never blocks. Bytes that the system does not take are kept; [`Stream::flush`]
//!   writes them.
//! * A read or a flush blocks for one *step* ([`Stream::begin_step`]) and then fails with
//!   `WouldBlock`, also while bytes trickle in. So the calling thread looks at its deadline
//!   after every step, and a read costs one system call while the server answers.

use std::io::{self, Read};
use std::time::Duration;

use super::address::{Address, Endpoint};
use super::socket::Socket;
use super::tls::Session;
use crate::util::clock::{self, Moment};
use crate::util::sync::TIME_PASSES;

/// How long one read blocks before the calling thread looks at its deadline. In a model a
/// leader that has to go goes at once: time stands still there.
pub(crate) const STEP: Duration =
    if TIME_PASSES { Duration::from_millis(20) } else { Duration::ZERO };

/// An open connection to a server.
pub(super) struct Stream {
    socket: Socket,
    /// Present if the address asks for TLS. Keeps its unwritten bytes itself.
    session: Option<Session>,
    unwritten: Vec<u8>,
}

impl Stream {
    /// Connects. Blocks for the name look-up, for `span` at each address of the host, and
    /// for `span` in the handshake of TLS.
    pub(super) fn connect(address: &Address, span: Duration) -> io::Result<Stream> {
        let socket = match address.place() {
            Endpoint::Path(path) => Socket::unix(path, span)?,
            Endpoint::Host(host, port) => Socket::tcp(host, *port, span)?,
        };
        let session = address.session()?;
        let mut stream = Stream { socket, session, unwritten: Vec::new() };
        stream.shake_hands(clock::now() + span)?;
        Ok(stream)
    }

    fn shake_hands(&mut self, deadline: Moment) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        while session.is_handshaking() {
            self.socket.begin_step(STEP)?;
            match session.shake_hands(&mut self.socket) {
                Err(error) if is_pause(&error) && clock::now() < deadline => {
                    if !session.is_flushed() {
                        unless_pause(self.socket.wait_to_write())?;
                    }
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Starts a step: the next read or flush blocks for `span` at most.
    pub(super) fn begin_step(&mut self, span: Duration) -> io::Result<()> {
        self.socket.begin_step(span)
    }

    /// Writes what the system takes at once, and keeps the rest.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.session {
            Some(session) => session.take(bytes)?,
            None => self.unwritten.extend_from_slice(bytes),
        }
        self.socket.begin_post();
        unless_pause(self.write_kept())
    }

    /// Writes what was kept. Fails with `WouldBlock` at the end of the step.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.write_kept() {
                Err(error) if is_pause(&error) => self.socket.wait_to_write()?,
                flushed => return flushed,
            }
        }
    }

    fn write_kept(&mut self) -> io::Result<()> {
        match &mut self.session {
            Some(session) => session.flush(&mut self.socket),
            None => self.socket.write_from(&mut self.unwritten),
        }
    }

    /// Whether the system has taken all that was written.
    pub(super) fn is_flushed(&self) -> bool {
        self.session.as_ref().map_or(self.unwritten.is_empty(), Session::is_flushed)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A session may have something to say by itself.
        if self.session.as_ref().is_some_and(|session| !session.is_flushed()) {
            self.flush()?;
        }
        match &mut self.session {
            Some(session) => session.read(&mut self.socket, buffer),
            None => self.socket.read(buffer),
        }
    }
}

/// Whether an error only says that the step is over.
pub(super) fn is_pause(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn unless_pause(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_pause(&error) => Ok(()),
        other => other,
    }
}
