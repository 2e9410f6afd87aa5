//! The Redis server of one recipe, which also limits the time of the recipe.

use std::error::Error;
use std::process;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold_testserver::TestServer;

/// The longest time of a recipe, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A server in the process. Its drop stops the server; a recipe that takes too long ends as failed.
#[derive(Debug)]
pub struct Server {
    url: String,
    /// The thread that owns the server, and the channel whose end stops the thread.
    keeper: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Server {
    /// Starts a server on a Unix socket.
    ///
    /// # Errors
    /// The socket or the thread cannot be made.
    pub fn start() -> Result<Server, Box<dyn Error + Send + Sync>> {
        let private = TestServer::start()?;
        let url = private.url().to_owned();
        let (running, ended) = mpsc::channel();
        let keeper = thread::spawn(move || keep(private, &ended));
        Ok(Server { url, keeper: Some((running, keeper)) })
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((running, keeper)) = self.keeper.take() {
            drop(running);
            let _ = keeper.join();
        }
    }
}

/// Stops the server at the end of the recipe. At the limit, ends the process too.
fn keep(server: TestServer, ended: &Receiver<()>) {
    let outcome = ended.recv_timeout(LIMIT);
    drop(server);
    if outcome == Err(RecvTimeoutError::Timeout) {
        eprintln!("the recipe did not end within {} s", LIMIT.as_secs());
        process::exit(1);
    }
}
