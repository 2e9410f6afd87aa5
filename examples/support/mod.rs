//! The Redis server of an example: that of `REDIS_URL`, or one in this process.
//!
//! The server in the process is `leasehold-testserver`, so that the examples need no Redis.

use std::env;

use leasehold_testserver::{Error, TestServer};

/// The server of an example. One in this process ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    url: String,
    _own: Option<TestServer>,
}

impl Server {
    /// Uses the server of `REDIS_URL`, or starts one in this process.
    #[allow(dead_code, reason = "some examples always start servers of their own")]
    pub(crate) fn start() -> Result<Server, Error> {
        match env::var("REDIS_URL") {
            Ok(url) => Ok(Server { url, _own: None }),
            Err(_) => Server::start_own(),
        }
    }

    /// Starts a server in this process, even with `REDIS_URL` set.
    pub(crate) fn start_own() -> Result<Server, Error> {
        let own = TestServer::start()?;
        Ok(Server { url: own.url().to_owned(), _own: Some(own) })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}
