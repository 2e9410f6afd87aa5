//! Re-entry: lock and release of a lock that the thread holds already, which takes no
//! round trip. A server is needed for the outer hold only.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use criterion::Criterion;
use leasehold::Client;

pub fn nested_pair(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let server = Server::start(folder.path());
    let client = connect(&folder.path().join("redis.sock"));
    let lock = client.lock("reentry");
    let outer = lock.lock().expect("a free lock can be had");
    criterion.bench_function("re-entry: lock and drop", |bencher| {
        bencher.iter(|| drop(lock.lock()));
    });
    outer.unlock().expect("the outer hold was not lost");
    client.close();
    drop(server);
}

/// A client of the server that listens there, or will soon.
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

/// A redis-server without a port, killed in the end.
struct Server(Child);

impl Server {
    fn start(folder: &Path) -> Server {
        let binary = std::env::var("LEASEHOLD_REDIS_SERVER");
        let child = Command::new(binary.as_deref().unwrap_or("redis-server"))
            .args(["--save", "", "--port", "0", "--unixsocket", "redis.sock", "--dir"])
            .arg(folder)
            .stdout(Stdio::null())
            .spawn();
        Server(child.expect("redis-server is installed"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
