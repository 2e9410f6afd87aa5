//! Re-entry: lock and drop of a lock that the thread already holds.
//!
//! Re-entry takes no round trip. Only the outer hold needs the server.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use criterion::Criterion;
use leasehold::Client;

use crate::spawned::Spawned;

pub fn nested_pair(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let server = start_server(folder.path());
    let client = connect(&folder.path().join("redis.sock"));
    let lock = client.lock("reentry");
    let outer = lock.lock().expect("the lock is free");
    criterion.bench_function("re-entry: lock and drop", |bencher| {
        bencher.iter(|| drop(lock.lock()));
    });
    outer.unlock().expect("the outer hold was not lost");
    client.close();
    drop(server);
}

/// Connects to the server of this socket. Blocks until it answers.
fn connect(socket: &Path) -> Client {
    let url = format!("redis+unix://{}", socket.display());
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match Client::builder().single(&url).build() {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < end, "no server: {error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a redis-server that listens on a Unix socket only.
fn start_server(folder: &Path) -> Spawned {
    let binary = std::env::var("LEASEHOLD_REDIS_SERVER");
    let mut command = Command::new(binary.as_deref().unwrap_or("redis-server"));
    command.args(["--save", "", "--port", "0", "--unixsocket", "redis.sock", "--dir"]);
    command.arg(folder).stdout(Stdio::null());
    Spawned::start(&mut command, Some(folder)).expect("redis-server is installed")
}
