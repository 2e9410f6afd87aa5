//! The Redis server of an example: a private one, or that of `REDIS_URL`.
//!
//! A private server listens on a Unix socket in a temporary folder.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How long a server may take to start, and the interval of the pings.
const START: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// The files in the temporary folder.
const SOCKET: &str = "socket";
const LOG: &str = "log";

/// The server of an example. Stops and removes a private one when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    url: String,
    _private: Option<Private>,
}

/// A server started by this process. The fields drop in order: first the process, then the folder.
#[derive(Debug)]
struct Private {
    process: Child,
    folder: TempDir,
}

impl Server {
    /// Uses the server of `REDIS_URL`, or starts a private one.
    ///
    /// The program is `LEASEHOLD_REDIS_SERVER`, or `redis-server`. Blocks until the server answers.
    #[allow(dead_code, reason = "some examples always start private servers")]
    pub(crate) fn start() -> Result<Server> {
        if let Ok(url) = env::var("REDIS_URL") {
            return Ok(Server { url, _private: None });
        }
        Server::start_private()
    }

    /// Starts a private server, even with `REDIS_URL` set. Blocks until it answers.
    pub(crate) fn start_private() -> Result<Server> {
        let mut private = Private::start()?;
        let url = format!("redis+unix://{}", private.socket().display());
        private.wait_for_answer(&url)?;
        Ok(Server { url, _private: Some(private) })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Private {
    fn start() -> Result<Private> {
        let program = env::var_os("LEASEHOLD_REDIS_SERVER").unwrap_or("redis-server".into());
        let folder = TempDir::with_prefix("leasehold-")?;
        let log = File::create(folder.path().join(LOG))?;
        let mut command = Command::new(&program);
        command.args(["--port", "0", "--save", "", "--dir"]).arg(folder.path());
        command.arg("--unixsocket").arg(folder.path().join(SOCKET));
        command.stdin(Stdio::null()).stderr(log.try_clone()?).stdout(log);
        let process = command.spawn().map_err(|error| {
            let program = program.display();
            format!("{program} cannot be started: {error}; script/bootstrap can install it")
        })?;
        Ok(Private { process, folder })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    fn wait_for_answer(&mut self, url: &str) -> Result<()> {
        let end = Instant::now() + START;
        while let Err(error) = ping(url) {
            if Instant::now() > end || self.process.try_wait()?.is_some() {
                let log = fs::read_to_string(self.folder.path().join(LOG))?;
                return Err(format!("the Redis server did not start: {error}\n{log}").into());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Private {
    /// Kills the server: its data is not needed.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ping(url: &str) -> redis::RedisResult<()> {
    redis::cmd("PING").query(&mut redis::Client::open(url)?.get_connection()?)
}
