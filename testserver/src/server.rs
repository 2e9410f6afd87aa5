//! The server as a value of a test.

use crate::core::{Core, Data};
use crate::net::{Control, Listener, Service};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::TempDir;

/// The reason why the server cannot be started or controlled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket or the thread cannot be made.
    #[error("the test server cannot be started")]
    Start(#[source] io::Error),
    /// The server has ended: a client has sent `SHUTDOWN`, or the server's thread has failed.
    #[error("the test server has ended")]
    Ended,
    /// The clock cannot be set so far ahead.
    #[error("the clock of the test server cannot be set so far ahead")]
    Clock,
}

/// A Redis-compatible server on a thread of this process, at a Unix socket in a temporary folder.
///
/// It keeps nothing on disk and uses no port. Many servers may run at once, each with a thread of
/// its own (`leasehold-testserver`). Threads can share the value: it is `Send` and `Sync`.
///
/// Dropping the value ends the server: its connections close, its thread ends, and its socket is
/// removed. The drop blocks until then. A value in a static is never dropped, and leaves its folder
/// behind. A struct drops its fields in their order: declare the server after its clients, which
/// then still have it when they are dropped.
///
/// The methods take effect between two requests, and return when they have taken effect. Those that
/// return no `Result` do nothing if the server has ended.
#[derive(Debug)]
#[must_use = "the server ends when the value is dropped"]
pub struct TestServer {
    url: String,
    socket: PathBuf,
    controls: Sender<Control>,
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
    // Removed last.
    _folder: TempDir,
}

impl TestServer {
    /// Starts a server without keys.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] if the folder, the socket or the thread cannot be made. The path of a
    /// socket has at most about 100 bytes, so `TMPDIR` must not be long.
    pub fn start() -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("leasehold-").tempdir();
        folder.and_then(Self::start_in).map_err(Error::Start)
    }

    fn start_in(folder: TempDir) -> io::Result<Self> {
        let socket = folder.path().join("redis.sock");
        let listener = UnixListener::bind(&socket).and_then(Listener::unix)?;
        let (waker, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let (controls, received) = channel();
        let thread = thread::Builder::new().name("leasehold-testserver".to_owned());
        // Lua stays on its thread, so the thread makes it.
        let thread = thread.spawn(move || {
            Service::new(Core::new(1), vec![listener]).run(&woken, &received);
        })?;
        let url = url_of(&socket);
        Ok(Self { url, socket, controls, waker, thread: Some(thread), _folder: folder })
    }

    /// Returns the URL for clients: `redis+unix://` and the path of the socket, percent-encoded.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Lets the time of a key end now, in every database. Returns whether there was such a key with
    /// an expiry.
    ///
    /// The server tells no client, as at the end of any lease: see [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// [`Error::Ended`].
    pub fn expire(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = key.as_ref().to_vec();
        self.control(move |service| service.core.expire(&key))
    }

    /// Moves the server's clock ahead by `time`, and on to the next whole millisecond. So a lease
    /// of `time` that was set before has ended.
    ///
    /// The clocks of clients stay as they are, and the server tells no client what has expired: a
    /// client learns of it by its next request.
    ///
    /// # Errors
    ///
    /// [`Error::Clock`] if the clock would pass the year 294,000, and [`Error::Ended`].
    pub fn advance(&self, time: Duration) -> Result<(), Error> {
        let microseconds = i64::try_from(time.as_micros()).map_err(|_| Error::Clock)?;
        let advanced = self.control(move |service| service.advance(microseconds))?;
        if advanced { Ok(()) } else { Err(Error::Clock) }
    }

    /// Silences the server, as one whose process is stopped (not as `CLIENT PAUSE`): it accepts,
    /// reads and answers nothing, while its connections stay and its clock goes on.
    pub fn pause(&self) {
        // A server that has ended is silent too.
        let _ = self.control(|service| service.is_paused = true);
    }

    /// Ends a pause. Requests that have come meanwhile are answered.
    pub fn resume(&self) {
        let _ = self.control(|service| service.is_paused = false);
    }

    /// Closes all connections, also those that the server has not accepted yet. Clients may connect
    /// again at once.
    pub fn disconnect_all(&self) {
        let _ = self.control(Service::disconnect_all);
    }

    /// Answers a command with an error from now on, also in scripts, instead of running it.
    ///
    /// `command` is a name as `PUBLISH` or `CLIENT|LIST`, in any case; `CLIENT` stands for all its
    /// subcommands. An unknown name refuses nothing. `error` begins with its code, as in `NOPERM
    /// no`, and replaces that of an earlier call with the same name. The errors for a wrong number
    /// of arguments and for a missing login come before it.
    pub fn refuse(&self, command: &str, error: &str) {
        let (command, error) = (command.to_owned(), error.to_owned());
        let _ = self.control(move |service| service.core.refuse(&command, &error));
    }

    /// Ends the refusal of a command, by the name that was refused: `CLIENT` does not accept
    /// `CLIENT|LIST`, nor the reverse.
    pub fn accept(&self, command: &str) {
        let command = command.to_owned();
        let _ = self.control(move |service| service.core.accept(&command));
    }

    /// Restarts the server: all connections and a `CLIENT PAUSE` end, scripts are forgotten, the
    /// counts of `INFO` begin again, and with [`Data::Lost`] all keys are gone. The settings of
    /// `CONFIG SET`, refusals, a [`pause`](Self::pause) and the clock stay.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`].
    pub fn restart(&self, data: Data) -> Result<(), Error> {
        self.control(move |service| service.restart(data))
    }

    /// Returns the keys of all databases, in no order. A key that exists in two of them is there
    /// twice.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`].
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.control(|service| service.core.keys())
    }

    /// Runs something on the server's thread, and returns its result.
    fn control<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Service) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (result, results) = channel();
        let control = move |service: &mut Service| {
            // The caller waits for it.
            let _ = result.send(run(service));
        };
        self.controls.send(Box::new(control)).map_err(|_| Error::Ended)?;
        (&self.waker).write_all(&[0]).map_err(|_| Error::Ended)?;
        results.recv().map_err(|_| Error::Ended)
    }
}

/// Returns the URL of a socket. Signs that mean something in a URL are percent-encoded.
fn url_of(socket: &Path) -> String {
    let mut url = "redis+unix://".to_owned();
    for byte in socket.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                url.push(char::from(*byte));
            }
            _ => url += &format!("%{byte:02X}"),
        }
    }
    url
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.control(|service| service.is_ending = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_no_sign_of_its_path_that_means_something_else() -> io::Result<()> {
        let folder = tempfile::Builder::new().prefix("1%41?#@ ö").tempdir()?;
        let server = TestServer::start_in(folder)?;
        assert!(server.url().contains("/1%2541%3F%23%40%20%C3%B6"), "{}", server.url());
        assert!(server.url().ends_with("/redis.sock"));
        UnixStream::connect(server.socket())?;
        Ok(())
    }
}
