//! TCP and Unix sockets. The only file that talks to the system about them.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, SendFlags, SocketAddrUnix};

use crate::util::clock::{self, Moment};
use crate::util::platform;

/// After such a silence the system asks whether the other end is still there: a connection
/// that died while it was idle is better found broken than silent.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The shortest time that a system call waits: zero would mean for ever.
const SHORTEST: Duration = Duration::from_millis(1);

/// An open socket.
pub(super) struct Socket {
    end: End,
    /// The time-out of reads; zero before the first step.
    timeout: Duration,
    step_end: Moment,
    /// A read or a write of this step has been tried.
    has_read: bool,
    has_written: bool,
}

enum End {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to one address of `host` after the other, each within `span`.
    pub(super) fn tcp(host: &str, port: u16, span: Duration) -> io::Result<Socket> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, span) {
                Ok(stream) => return Socket::prepared(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn prepared(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 3)?;
        Ok(Socket::new(End::Tcp(stream)))
    }

    /// Connects to a socket file. The system waits while the server's queue is full.
    pub(super) fn unix(path: &Path, span: Duration) -> io::Result<Socket> {
        let socket = platform::unix_socket()?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(span))?;
        net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Socket::new(End::Unix(UnixStream::from(socket))))
    }

    fn new(end: End) -> Socket {
        let (timeout, step_end) = (Duration::ZERO, Moment::START);
        Socket { end, timeout, step_end, has_read: false, has_written: false }
    }

    /// Starts a step: reads and writes fail with `WouldBlock` after `span`, also while bytes
    /// pass.
    pub(super) fn begin_step(&mut self, span: Duration) -> io::Result<()> {
        let span = span.max(SHORTEST);
        // Setting a time-out is a system call: an eighth more or less does not pay for one.
        if self.timeout.abs_diff(span) > self.timeout / 8 {
            sockopt::set_socket_timeout(&*self, Timeout::Recv, Some(span))?;
            self.timeout = span;
        }
        (self.step_end, self.has_read, self.has_written) = (clock::now() + span, false, false);
        Ok(())
    }

    /// Starts a step that is over after one write.
    pub(super) fn begin_post(&mut self) {
        (self.step_end, self.has_written) = (Moment::START, false);
    }

    /// Waits until the system takes bytes, or the step is over.
    pub(super) fn wait_to_write(&self) -> io::Result<()> {
        let left = clock::now().until(self.step_end);
        if left.is_zero() {
            // A write fails from now on, also if the system would take bytes.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut socket = [PollFd::new(self, PollFlags::OUT)];
        match poll(&mut socket, Some(&left)) {
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes and removes bytes from the front of `unwritten` until none is left.
    pub(super) fn write_from(&mut self, unwritten: &mut Vec<u8>) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            match self.write(&unwritten[written..]) {
                _ if written == unwritten.len() => break Ok(()),
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) => break Err(error),
            }
        };
        unwritten.drain(..written);
        result
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The first read of a step takes what is there, however late it is.
        if self.has_read && self.step_end <= clock::now() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        loop {
            let read = match &mut self.end {
                End::Tcp(stream) => stream.read(buffer),
                End::Unix(stream) => stream.read(buffer),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    self.has_read = true;
                    return read;
                }
            }
        }
    }
}

impl Write for Socket {
    /// Writes what the system takes at once.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.has_written && self.step_end <= clock::now() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.has_written = true;
        loop {
            match net::send(&*self, bytes, platform::SEND | SendFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.end {
            End::Tcp(stream) => stream.as_fd(),
            End::Unix(stream) => stream.as_fd(),
        }
    }
}
