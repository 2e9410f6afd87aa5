//! The server at real sockets, on one thread.

use crate::core::{ConnectionId, Core, Data};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::Receiver;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of bytes that are read from a connection at once.
const READ: usize = 64 * 1024;

/// Something for the server's thread to do between two requests.
pub(crate) type Control = Box<dyn FnOnce(&mut Service) + Send>;

/// A socket that takes connections, and never blocks.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(crate) fn tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    pub(crate) fn unix(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener))
    }

    fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    stream: Stream,
    unsent: Vec<u8>,
    /// Whether the connection ends when all has been sent.
    is_closing: bool,
    has_ended: bool,
}

/// A [`Core`] with sockets and the machine's clock.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) core: Core,
    /// Whether the server is silent.
    pub(crate) is_paused: bool,
    /// Whether the thread ends.
    pub(crate) is_ending: bool,
    /// The microseconds by which the clock is ahead of the machine's.
    ahead: i64,
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
}

impl Service {
    pub(crate) fn new(core: Core, listeners: Vec<Listener>) -> Self {
        Self {
            core,
            is_paused: false,
            is_ending: false,
            ahead: 0,
            listeners,
            connections: Vec::new(),
        }
    }

    /// Serves until it is told to end, or a client shuts the server down. A byte at `waker`
    /// announces controls.
    pub(crate) fn run(&mut self, waker: &UnixStream, controls: &Receiver<Control>) {
        self.tick();
        while !self.is_ending && !self.core.is_shut_down() {
            let (is_woken, accepts, ready) = match self.wait(waker) {
                Ok(ready) => ready,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            if is_woken {
                let mut waker = waker;
                // The controls count, not the bytes.
                if waker.read(&mut [0; 64]).is_ok_and(|read| read == 0) {
                    return;
                }
            }
            while let Ok(control) = controls.try_recv() {
                self.tick();
                control(self);
            }
            if !self.is_paused {
                self.tick();
                self.serve(&ready);
                if accepts {
                    self.accept();
                }
                self.send();
            }
            self.forget_ended();
        }
    }

    /// Moves the clock ahead, and on to the next whole millisecond: a key still exists in the last
    /// millisecond of its lease. Returns whether the clock can be so far ahead.
    pub(crate) fn advance(&mut self, microseconds: i64) -> bool {
        let now = wall_clock();
        let target = now.checked_add(self.ahead).and_then(|it| it.checked_add(microseconds));
        let target = target.and_then(|it| (it / 1000 + 1).checked_mul(1000));
        let Some(target) = target else { return false };
        self.ahead = target - now;
        self.tick();
        true
    }

    /// Closes all connections, also those that have not been accepted yet.
    pub(crate) fn disconnect_all(&mut self) {
        self.accept();
        for connection in self.connections.drain(..) {
            self.core.disconnect(connection.id);
        }
    }

    pub(crate) fn restart(&mut self, data: Data) {
        self.disconnect_all();
        self.core.restart(data);
    }

    fn tick(&mut self) {
        self.core.set_clock(wall_clock().saturating_add(self.ahead));
    }

    /// Blocks until something can be done. Returns whether there are controls, whether there are
    /// new connections, and which connections can be read or written.
    fn wait(&self, waker: &UnixStream) -> io::Result<(bool, bool, Vec<bool>)> {
        let mut sockets = vec![PollFd::new(waker, PollFlags::IN)];
        if !self.is_paused {
            sockets.extend(self.listeners.iter().map(|it| PollFd::new(it, PollFlags::IN)));
            sockets.extend(self.connections.iter().map(|connection| {
                let sends = !connection.unsent.is_empty();
                let more = if sends { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::new(&connection.stream, PollFlags::IN | more)
            }));
        }
        poll(&mut sockets, self.time_to_deadline().as_ref())?;
        let mut ready = sockets.iter().map(|socket| !socket.revents().is_empty());
        let is_woken = ready.next() == Some(true);
        let accepts = ready.by_ref().take(self.listeners.len()).fold(false, |any, one| any | one);
        Ok((is_woken, accepts, ready.collect()))
    }

    /// Returns the time until a connection has waited for long enough.
    fn time_to_deadline(&self) -> Option<Timespec> {
        let deadline = self.core.next_deadline().filter(|_| !self.is_paused)?;
        let left = deadline.saturating_sub(wall_clock().saturating_add(self.ahead)).max(0);
        let (seconds, rest) = (left / 1_000_000, left % 1_000_000);
        Some(Timespec { tv_sec: seconds, tv_nsec: rest * 1000 })
    }

    /// Reads what has come, and runs it.
    fn serve(&mut self, ready: &[bool]) {
        // A control may have ended connections since.
        if ready.len() != self.connections.len() {
            return;
        }
        let mut buffer = [0; READ];
        for (at, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
            self.tick();
            let connection = &mut self.connections[at];
            match connection.stream.read(&mut buffer) {
                Ok(0) => connection.has_ended = true,
                Ok(read) => self.core.receive(connection.id, &buffer[..read]),
                Err(error) => connection.has_ended |= !is_passing(&error),
            }
        }
    }

    /// Sends what there is to send, also to subscribers and to connections that are not wanted.
    fn send(&mut self) {
        for connection in &mut self.connections {
            let (bytes, is_closing) = self.core.take_output(connection.id);
            connection.unsent.extend(bytes);
            connection.is_closing |= is_closing;
            connection.send();
        }
    }

    fn accept(&mut self) {
        for listener in &self.listeners {
            // An error ends with the next connection.
            while let Ok(stream) = listener.accept() {
                let id = self.core.connect();
                self.connections.push(Connection {
                    id,
                    stream,
                    unsent: Vec::new(),
                    is_closing: false,
                    has_ended: false,
                });
            }
        }
    }

    fn forget_ended(&mut self) {
        let core = &mut self.core;
        self.connections.retain(|connection| {
            if connection.has_ended {
                core.disconnect(connection.id);
            }
            !connection.has_ended
        });
    }
}

impl Connection {
    fn send(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.has_ended |= !is_passing(&error);
                    return;
                }
            }
        }
        self.has_ended |= self.is_closing;
    }
}

/// Tells whether an error says nothing about the connection.
fn is_passing(error: &io::Error) -> bool {
    [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind())
}

/// Returns the machine's time in microseconds since 1970.
fn wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
