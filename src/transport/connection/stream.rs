//! The bytes of one connection: a socket, with TLS where the address asks for it.
//!
//! - A write never blocks. Bytes that the system does not take are kept; [`Stream::flush`] writes
//!   them.
//! - A read or a flush blocks for one *step* ([`Stream::begin_step`]) and then fails with
//!   `WouldBlock`, even if bytes are still arriving slowly. The calling thread checks its deadline
//!   after every step. A read costs one system call while the server replies in time.

use std::io::{self, Read, Write};
use std::time::Duration;

use super::address::{Address, Endpoint};
use super::socket::{Disconnector, Socket};
use super::tls::Session;
use crate::util::clock::{self, Moment};
use crate::util::sync::TIME_PASSES;

/// The time for which one read blocks before the calling thread checks its deadline.
///
/// Zero in a model, where time stands still and a leader that has to leave does so at once.
pub(crate) const STEP: Duration =
    if TIME_PASSES { Duration::from_millis(20) } else { Duration::ZERO };

/// An open connection to a server.
pub(super) struct Stream {
    socket: Socket,
    /// The TLS session, if the address asks for TLS. A session keeps its own unwritten bytes.
    session: Option<Session>,
    /// The unwritten bytes of a connection without TLS.
    unwritten: Vec<u8>,
}

impl Stream {
    /// Connects to a server.
    ///
    /// Blocks for the name look-up, at most `span` for each address of the host, and at most
    /// `span` for the TLS handshake.
    pub(super) fn connect(address: &Address, span: Duration) -> io::Result<Stream> {
        let socket = match address.endpoint() {
            Endpoint::Path(path) => Socket::unix(path, span)?,
            Endpoint::Host(host, port) => Socket::tcp(host, *port, span)?,
        };
        let session = address.session()?;
        let mut stream = Stream { socket, session, unwritten: Vec::new() };
        stream.handshake(clock::now() + span)?;
        Ok(stream)
    }

    fn handshake(&mut self, deadline: Moment) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        while session.is_handshaking() {
            self.socket.begin_step(STEP);
            match session.handshake(&mut self.socket) {
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

    /// Closes the connection. The system discards the bytes that it has not sent.
    pub(super) fn abort(self) {
        self.socket.abort();
    }

    /// Returns what ends the connection from another thread.
    pub(super) fn disconnector(&self) -> Disconnector {
        self.socket.disconnector()
    }

    /// Starts a step. The next read or flush blocks for at most `span`.
    pub(super) fn begin_step(&mut self, span: Duration) {
        self.socket.begin_step(span);
    }

    /// Writes as many bytes as the system takes without blocking, and keeps the rest.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.session {
            Some(session) => session.take(bytes)?,
            None => self.unwritten.extend_from_slice(bytes),
        }
        self.socket.begin_write();
        unless_pause(self.write_unwritten())
    }

    /// Writes the kept bytes. Fails with `WouldBlock` at the end of the step.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.write_unwritten() {
                Err(error) if is_pause(&error) => self.socket.wait_to_write()?,
                flushed => return flushed,
            }
        }
    }

    fn write_unwritten(&mut self) -> io::Result<()> {
        match &mut self.session {
            Some(session) => session.flush(&mut self.socket),
            None => write_all(&mut self.socket, &mut self.unwritten),
        }
    }

    /// Returns whether the system has taken all bytes.
    pub(super) fn is_flushed(&self) -> bool {
        self.session.as_ref().map_or(self.unwritten.is_empty(), Session::is_flushed)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A TLS session also produces bytes of its own, such as a key update.
        if self.session.as_ref().is_some_and(|session| !session.is_flushed()) {
            self.flush()?;
        }
        match &mut self.session {
            Some(session) => session.read(&mut self.socket, buffer),
            None => self.socket.read(buffer),
        }
    }
}

/// Writes all bytes of `unwritten`. Removes the bytes that the system took, also after an error.
fn write_all(socket: &mut Socket, unwritten: &mut Vec<u8>) -> io::Result<()> {
    let mut written = 0;
    let result = loop {
        match socket.write(&unwritten[written..]) {
            _ if written == unwritten.len() => break Ok(()),
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) => break Err(error),
        }
    };
    unwritten.drain(..written);
    result
}

/// Returns whether the error only means that the step is over.
pub(super) fn is_pause(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Turns the end of a step into success.
fn unless_pause(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_pause(&error) => Ok(()),
        other => other,
    }
}
