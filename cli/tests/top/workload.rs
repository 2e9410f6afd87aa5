//! Processes that contend for locks.
//!
//! Each is this test binary with only the test [`child`], under the name of a program.

use std::env;
use std::io::{Read, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use leasehold::{Client, Result};

use crate::harness::Server;
use crate::harness::spawned::Spawned;

const VARIABLE: &str = "LEASEHOLD_TEST_WORK";

/// The separator of the parts of the variable. No part contains it.
const SEPARATOR: char = '|';

/// The work of one process: taking a lock again and again, in several threads.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) program: &'static str,
    pub(crate) label: &'static str,
    /// `plain`, `fair`, `queue`, `fenced`, `read` or `write`.
    pub(crate) kind: &'static str,
    pub(crate) lock: &'static str,
    pub(crate) hold: Duration,
    pub(crate) pause: Duration,
    pub(crate) threads: usize,
}

impl Work {
    /// Starts the process, on a host of its own name if the system allows it.
    pub(crate) fn start(&self, server: &Server, host: Option<&str>) -> Spawned {
        let program = env::current_exe().expect("a running program has a path");
        let millis = |span: Duration| span.as_millis().to_string();
        let threads = self.threads.to_string();
        let (hold, pause) = (millis(self.hold), millis(self.pause));
        let url = server.url();
        let parts = [&*url, self.label, self.kind, self.lock, &hold, &pause, &threads];
        let mut command = Command::new("unshare");
        match host {
            Some(host) => {
                let script = "hostname \"$1\"; shift; name=$1; shift; exec -a \"$name\" \"$@\"";
                command.args(["--uts", "bash", "-c", script, "bash", host, self.program]);
                command.arg(program);
            }
            None => {
                command = Command::new(program);
                command.arg0(self.program);
            }
        }
        command
            .args(["--exact", "workload::child", "--include-ignored", "--nocapture"])
            .env(VARIABLE, parts.join(&SEPARATOR.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        Spawned::start(&mut command, None)
    }
}

/// Works until its input ends, in a child process. Does nothing in the process of the tests.
#[test]
fn child() {
    let Ok(work) = env::var(VARIABLE) else { return };
    let parts: Vec<&str> = work.split(SEPARATOR).collect();
    let [url, label, kind, lock, hold, pause, threads] = parts[..] else { panic!("{work}") };
    let [hold, pause, threads] = [hold, pause, threads].map(|it| it.parse().expect("a number"));
    let client = Client::builder().single(url).label(label).build().expect("the server runs");
    for number in 0..threads {
        let (client, kind, lock) = (client.clone(), kind.to_owned(), lock.to_owned());
        let [hold, pause] = [hold, pause].map(Duration::from_millis);
        let work = move || {
            while take(&client, &kind, &lock, hold).is_ok() {
                thread::sleep(pause);
            }
        };
        thread::Builder::new().name(format!("worker-{number}")).spawn(work).expect("a thread");
    }
    let _ = stdin().read(&mut [0]);
}

/// Takes the lock once.
fn take(client: &Client, kind: &str, lock: &str, hold: Duration) -> Result<()> {
    let hold = || thread::sleep(hold);
    match kind {
        "plain" => client.lock(lock).lock().map(|_guard| hold()),
        "fair" => client.fair_lock(lock).lock().map(|_guard| hold()),
        "queue" => client.queue_lock(lock).lock().map(|_guard| hold()),
        "fenced" => client.fenced_lock(lock).lock().map(|_guard| hold()),
        "read" => client.rw_lock(lock).read().map(|_guard| hold()),
        "write" => client.rw_lock(lock).write().map(|_guard| hold()),
        other => panic!("no kind {other}"),
    }
}
