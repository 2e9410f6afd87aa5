//! Limits of the system that a process reaches.
//!
//! Each test runs in its own process, whose limits it lowers.

use leasehold::{Client, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::Server;
use crate::harness::process::alone;

/// Sets the soft limit of a resource for this process.
fn limit(resource: Resource, to: u64) {
    let limits = Rlimit { current: Some(to), ..getrlimit(resource) };
    setrlimit(resource, limits).expect("a soft limit may be lowered");
}

#[test]
fn an_error_names_the_limit_of_open_files() -> Result<()> {
    if !alone("limits::an_error_names_the_limit_of_open_files") {
        return Ok(());
    }
    let server = Server::start();
    let client = Client::builder().single(server.url()).build_lazily()?;
    limit(Resource::Nofile, 0);
    let error = client.lock("a").try_lock().expect_err("no socket can be opened");
    assert!(error.is_connection(), "{error:?}");
    let text = error.with_causes().to_string();
    assert_eq!(text.matches("Too many open files").count(), 1, "{text}");
    Ok(())
}
