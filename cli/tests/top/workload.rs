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
const SEPARATOR: &str = "|";

/// The work of one process: taking a lock again and again, in several threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// The name of the host, if it is not that of the tests.
    host: Option<&'static str>,
    program: &'static str,
    pub(crate) label: &'static str,
    /// `plain`, `fair`, `queue`, `fenced`, `read` or `write`; `many` for many plain locks.
    kind: &'static str,
    pub(crate) lock: &'static str,
    hold: Duration,
    pause: Duration,
    threads: usize,
}

impl Work {
    /// Returns the work of a thread that takes the lock and keeps it.
    pub(crate) const fn new(
        program: &'static str,
        label: &'static str,
        kind: &'static str,
        lock: &'static str,
    ) -> Work {
        let (hold, pause) = (Duration::from_secs(3600), Duration::ZERO);
        Work { host: None, program, label, kind, lock, hold, pause, threads: 1 }
    }

    pub(crate) const fn on(self, host: &'static str) -> Work {
        Work { host: Some(host), ..self }
    }

    /// Sets the length of a hold and of the pause after it, in milliseconds.
    pub(crate) const fn with_rhythm(self, hold: u64, pause: u64, threads: usize) -> Work {
        let (hold, pause) = (Duration::from_millis(hold), Duration::from_millis(pause));
        Work { hold, pause, threads, ..self }
    }

    /// Returns the work of a process that keeps many plain locks, whose names begin with `lock`.
    pub(crate) const fn many(count: usize, lock: &'static str) -> Work {
        Work { threads: count, ..Work::new("holder", "many", "many", lock) }
    }

    /// Starts the process.
    pub(crate) fn start(&self, server: &Server) -> Spawned {
        let millis = |span: Duration| span.as_millis().to_string();
        let (hold, pause, threads) =
            (millis(self.hold), millis(self.pause), self.threads.to_string());
        let url = server.url();
        let parts = [&*url, self.label, self.kind, self.lock, &hold, &pause, &threads];
        let mut command = self.command();
        command
            .args(["--exact", "workload::child", "--include-ignored", "--nocapture"])
            .env(VARIABLE, parts.join(SEPARATOR))
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        Spawned::start(&mut command, None)
    }

    /// Returns the command of this test binary, under the name of the program.
    fn command(&self) -> Command {
        let binary = env::current_exe().expect("a running program has a path");
        let mut command = Command::new(&binary);
        command.arg0(self.program);
        let Some(host) = self.host else { return command };
        // A name of the host that only this process sees. Needs the rights of root.
        let script = r#"hostname "$1" && exec -a "$2" "${@:3}""#;
        let mut command = Command::new("unshare");
        command.args(["--uts", "bash", "-c", script, "bash", host, self.program]).arg(binary);
        command
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
    if kind == "many" {
        let hold = |number| client.lock(format!("{lock}{number}")).lock().expect("a free lock");
        let _guards: Vec<_> = (0..threads).map(hold).collect();
        let _ = stdin().read(&mut [0]);
        return;
    }
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
