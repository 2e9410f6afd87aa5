//! A real redis-server with a clock that the test sets.

use crate::wire::Connection;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the server may take to start or to answer.
const BOUND: Duration = Duration::from_secs(60);

/// A redis-server on a socket in a temporary folder, which ends with this value.
pub(crate) struct Real {
    process: Child,
    clock: File,
    folder: TempDir,
}

impl Real {
    pub(crate) fn start(now: i64) -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let clock = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(folder.path().join("clock"))
            .expect("our own folder is writable");
        set(&clock, now);
        let library = compile(folder.path());
        let program = std::env::var("LEASEHOLD_REDIS_SERVER");
        let process = Command::new(program.as_deref().unwrap_or("redis-server"))
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            // The allocator's thread would sleep until moments of a clock that stands still.
            .args(["--jemalloc-bg-thread", "no"])
            .arg("--unixsocket")
            .arg(folder.path().join("socket"))
            .env("LD_PRELOAD", library)
            .env("FROZEN_CLOCK", folder.path().join("clock"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        Self { process, clock, folder }
    }

    pub(crate) fn set_clock(&self, now: i64) {
        set(&self.clock, now);
    }

    pub(crate) fn connect(&self) -> Connection<UnixStream> {
        let start = Instant::now();
        loop {
            match UnixStream::connect(self.folder.path().join("socket")) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(BOUND)).expect("the time is not zero");
                    return Connection::new(stream);
                }
                Err(_) if start.elapsed() < BOUND => thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("redis-server does not start: {error}"),
            }
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn set(clock: &File, now: i64) {
    clock.write_all_at(&now.to_ne_bytes(), 0).expect("our own folder is writable");
}

fn compile(folder: &Path) -> std::path::PathBuf {
    let library = folder.join("frozen.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/frozen.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().expect("a C compiler is installed").success());
    library
}
