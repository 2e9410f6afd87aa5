//! The server as a value of a test.

use crate::core::{Core, Data};
use crate::net::{Control, Listener, Service};
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
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
    /// The server has ended: a client has sent `SHUTDOWN`.
    #[error("the test server has ended")]
    Ended,
    /// The clock cannot be set so far ahead.
    #[error("the clock of the test server cannot be set so far ahead")]
    Clock,
}

/// A Redis-compatible server on a thread of this process, at a Unix socket in a temporary folder.
///
/// It keeps nothing on disk and uses no port. Dropping the value ends the server: its connections
/// close, and its socket is removed. Many servers may run at once.
///
/// The methods take effect between two requests, and return when they have taken effect.
#[derive(Debug)]
pub struct TestServer {
    url: String,
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
    /// [`Error::Start`] if the folder, the socket or the thread cannot be made.
    pub fn start() -> Result<Self, Error> {
        Self::try_start().map_err(Error::Start)
    }

    fn try_start() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("leasehold-").tempdir()?;
        let socket = folder.path().join("redis.sock");
        let listener = UnixListener::bind(&socket)?;
        let (waker, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let (controls, received) = channel();
        let thread = thread::Builder::new().name("leasehold-testserver".to_owned());
        // Lua stays on its thread, so the thread makes it.
        let thread = thread.spawn(move || {
            let listeners = vec![Listener::Unix(listener)];
            if let Ok(mut service) = Service::new(Core::new(1), listeners) {
                service.run(&woken, &received);
            }
        })?;
        let url = format!("redis+unix://{}", socket.display());
        Ok(Self { url, controls, waker, thread: Some(thread), _folder: folder })
    }

    /// Returns the URL for clients: `redis+unix://` and the path of the socket.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Lets the time of a key end now; returns whether there was such a key with an expiry.
    ///
    /// Its holder learns of it as of any lost lease.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`].
    pub fn expire(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = key.as_ref().to_vec();
        self.control(move |service| service.core.expire(&key))
    }

    /// Sets the server's clock ahead: all that expires within this time has expired.
    ///
    /// The clocks of clients stay as they are.
    ///
    /// # Errors
    ///
    /// [`Error::Clock`] if the clock would pass the year 294,000, and [`Error::Ended`].
    pub fn advance(&self, time: Duration) -> Result<(), Error> {
        let microseconds = i64::try_from(time.as_micros()).map_err(|_| Error::Clock)?;
        let advanced = self.control(move |service| service.advance(microseconds))?;
        if advanced { Ok(()) } else { Err(Error::Clock) }
    }

    /// Silences the server, as one whose process is stopped: it accepts, reads and answers nothing,
    /// while its connections stay and its clock goes on.
    pub fn pause(&self) {
        // A server that has ended is silent too.
        let _ = self.control(|service| service.is_paused = true);
    }

    /// Ends a pause. Requests that have come meanwhile are answered.
    pub fn resume(&self) {
        let _ = self.control(|service| service.is_paused = false);
    }

    /// Closes all connections. Clients may connect again at once.
    pub fn disconnect_all(&self) {
        let _ = self.control(Service::disconnect_all);
    }

    /// Answers a command with an error from now on, also in scripts, instead of running it.
    ///
    /// `command` is a name as `PUBLISH` or `CLIENT|LIST`, in any case; `CLIENT` stands for all its
    /// subcommands. `error` begins with its code, as in `NOPERM no`.
    pub fn refuse(&self, command: &str, error: &str) {
        let (command, error) = (command.to_owned(), error.to_owned());
        let _ = self.control(move |service| service.core.refuse(&command, &error));
    }

    /// Ends the refusal of a command.
    pub fn accept(&self, command: &str) {
        let command = command.to_owned();
        let _ = self.control(move |service| service.core.accept(&command));
    }

    /// Restarts the server: all connections end, scripts are forgotten, and with [`Data::Lost`] all
    /// keys. Refusals, a pause and the clock stay.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`].
    pub fn restart(&self, data: Data) -> Result<(), Error> {
        self.control(move |service| service.restart(data))
    }

    /// Returns all keys that exist, of all databases, in no order.
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

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.control(|service| service.is_ending = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
