//! TCP and Unix sockets. The only file that makes system calls on sockets.
//!
//! Reads and writes happen in *steps*, see [`Socket::begin_step`]. The first read and the first
//! write of a step are always tried; later ones fail with `WouldBlock` when the step is over. A
//! signal prolongs no step: what a signal interrupts goes on for the rest of the step.
//!
//! A sandbox may refuse to set options. A connection works without each of them.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, SendFlags, Shutdown, SocketAddrUnix};

use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::{log_target, platform, system};

/// The idle time after which the system probes the peer.
///
/// A connection that died while idle is then found broken; without probes it would stay silent.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The shortest time-out of a system call. Zero would mean no time-out.
const SHORTEST: Duration = Duration::from_millis(1);

/// The pause between two attempts to connect to a Unix socket whose server has a full backlog.
const PAUSE: Duration = Duration::from_millis(5);

/// An open socket.
pub(super) struct Socket {
    stream: Arc<OwnedFd>,
    /// The time-out of reads, as set in the system; zero before the first step.
    timeout: Duration,
    /// Whether the system refuses time-outs of reads, so that each read needs a `poll` before it.
    needs_poll: bool,
    step_end: Moment,
    /// Whether a read (a write) has been tried in this step.
    has_read: bool,
    has_written: bool,
}

/// Ends a connection for the thread that owns it. Does not keep the socket open.
#[derive(Debug)]
pub(crate) struct Disconnector(Weak<OwnedFd>);

impl Disconnector {
    /// Makes all reads and writes of the connection end at once. Does not block.
    pub(crate) fn disconnect(&self) {
        if let Some(stream) = self.0.upgrade() {
            // Fails if the peer has ended the connection.
            let _ = net::shutdown(&stream, Shutdown::Both);
        }
    }
}

impl Socket {
    /// Connects over TCP. Tries the addresses of `host` in order, each within `span`.
    pub(super) fn tcp(host: &str, port: u16, span: Duration) -> io::Result<Socket> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, span) {
                Ok(stream) => return Ok(Socket::configured(stream)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Sets the options of a TCP socket: no delay, and probes of an idle peer.
    fn configured(stream: TcpStream) -> Socket {
        is_set("TCP_NODELAY", stream.set_nodelay(true));
        is_set("SO_KEEPALIVE", sockopt::set_socket_keepalive(&stream, true));
        is_set("TCP_KEEPIDLE", sockopt::set_tcp_keepidle(&stream, KEEPALIVE));
        is_set("TCP_KEEPINTVL", sockopt::set_tcp_keepintvl(&stream, KEEPALIVE / 3));
        Socket::new(stream.into())
    }

    /// Connects to a Unix socket. Blocks for at most `span` while the server's backlog is full.
    pub(super) fn unix(path: &Path, span: Duration) -> io::Result<Socket> {
        let address = SocketAddrUnix::new(path)?;
        let stream = UnixStream::from(platform::unix_socket()?);
        let end = clock::now() + span;
        // A blocking attempt ends with any signal, and has no limit if options are refused.
        stream.set_nonblocking(true)?;
        loop {
            match net::connect(&stream, &address) {
                Ok(()) => break,
                Err(Errno::AGAIN) => {
                    let left = clock::now().until(end);
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    system::clock::sleep(left.min(PAUSE));
                }
                Err(error) => return Err(error.into()),
            }
        }
        stream.set_nonblocking(false)?;
        Ok(Socket::new(stream.into()))
    }

    fn new(socket: OwnedFd) -> Socket {
        let (stream, timeout, step_end) = (Arc::new(socket), Duration::ZERO, Moment::START);
        let (needs_poll, has_read, has_written) = (false, false, false);
        Socket { stream, timeout, needs_poll, step_end, has_read, has_written }
    }

    pub(super) fn disconnector(&self) -> Disconnector {
        Disconnector(Arc::downgrade(&self.stream))
    }

    /// Closes the socket. TCP discards unsent bytes and resets the connection.
    pub(super) fn abort(self) {
        // Without the option the socket is closed in the ordinary way, which is safe too.
        let _ = sockopt::set_socket_linger(&self, Some(Duration::ZERO));
    }

    /// Starts a step. Reads and writes fail with `WouldBlock` after `span`.
    ///
    /// Bytes that are still arriving do not prolong a step. A `span` under 1 ms counts as 1 ms.
    pub(super) fn begin_step(&mut self, span: Duration) {
        let span = span.max(SHORTEST);
        // A difference of an eighth is not worth the system call that sets the time-out.
        if self.timeout.abs_diff(span) > self.timeout / 8 {
            let set = sockopt::set_socket_timeout(&*self, Timeout::Recv, Some(span));
            self.needs_poll = !is_set("SO_RCVTIMEO", set);
            self.timeout = span;
        }
        (self.step_end, self.has_read, self.has_written) = (clock::now() + span, false, false);
    }

    /// Starts a step that ends with its first write.
    pub(super) fn begin_write(&mut self) {
        (self.step_end, self.has_written) = (Moment::START, false);
    }

    /// Blocks until the system takes bytes, or until the end of the step.
    pub(super) fn wait_to_write(&self) -> io::Result<()> {
        if self.step_end <= clock::now() {
            // The next write would fail even if the system took bytes.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.poll(PollFlags::OUT)
    }

    /// Blocks until the socket is ready. Fails with `WouldBlock` at the end of the step.
    fn poll(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            let left = clock::now().until(self.step_end);
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(self, flags)], Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The first read of a step takes the bytes that have arrived, even after the step's end.
        if self.has_read && self.step_end <= clock::now() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut needs_poll = self.needs_poll;
        loop {
            if needs_poll {
                self.poll(PollFlags::IN)?;
            }
            let read = rustix::io::read(&self.stream, &mut *buffer).map_err(io::Error::from);
            match read {
                // The time-out of the next read would begin anew.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => needs_poll = true,
                read => {
                    self.has_read = true;
                    return read;
                }
            }
        }
    }
}

impl Write for Socket {
    /// Writes as many bytes as the system takes without blocking.
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
        self.stream.as_fd()
    }
}

/// Returns whether an option was set. The first refusal is logged.
fn is_set<E: std::fmt::Display>(option: &str, set: Result<(), E>) -> bool {
    static LOGGED: Once = Once::new();
    let Err(error) = set else { return true };
    LOGGED.call_once(|| {
        log::debug!(
            logger: LINES, target: log_target::CONNECTION, error:%;
            "connections do without options that the system refuses, such as {option}: {error}"
        );
    });
    false
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_aborted_connection_is_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let end_of = |close: fn(Socket)| {
            close(Socket::tcp("127.0.0.1", port, Duration::MAX).expect("the server listens"));
            let (mut peer, _) = listener.accept().expect("a connection");
            peer.read(&mut [0]).map_err(|error| error.kind())
        };
        assert_eq!(end_of(drop), Ok(0));
        assert_eq!(end_of(Socket::abort), Err(io::ErrorKind::ConnectionReset));
    }
}
