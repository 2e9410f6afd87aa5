//! Redisson in a Java process that executes orders: `tests/interop/redisson`.

#![allow(dead_code, unreachable_pub, reason = "the tests use a part")]

use crate::harness::spawned::Spawned;
use crate::harness::wait::holds_within;
use crate::harness::{Cluster, Server};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// The bound of a wait for the Java process, long enough for a busy machine.
const BOUND: Duration = Duration::from_secs(150);

/// Returns the class path of the driver, or `None` without a JDK or Maven.
///
/// Panics instead of `None` if `LEASEHOLD_INTEROP` is set and not empty.
fn class_path() -> Option<&'static str> {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    let build = || {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/script/interop");
        let built = Command::new(script).output().expect("script/interop can be run");
        let required = std::env::var_os("LEASEHOLD_INTEROP").unwrap_or_default();
        match built.status.code() {
            Some(0) => Some(String::from_utf8_lossy(&built.stdout).trim().to_owned()),
            Some(3) if required.is_empty() => None,
            _ => panic!("script/interop: {}", String::from_utf8_lossy(&built.stderr)),
        }
    };
    PATH.get_or_init(build).as_deref()
}

/// The senders of answers by session and thread: `ok` values or error texts.
type Answers = Arc<Mutex<HashMap<String, Sender<Result<String, String>>>>>;

/// A client of Redisson, or one per server: a session of a Java process.
///
/// The tests that run at the same time share one process, which takes seconds to start.
pub struct Java {
    process: Arc<Process>,
    session: u64,
}

/// A Java process, whose `Drop` kills it.
struct Process {
    spawned: Mutex<Spawned>,
    input: Mutex<ChildStdin>,
    answers: Answers,
    sessions: AtomicU64,
}

/// An order that the Java process executes.
pub struct Ordered(Receiver<Result<String, String>>);

impl Process {
    /// Starts a process. Without Java, prints a message to standard error and returns `None`.
    fn start() -> Option<Arc<Process>> {
        let Some(path) = class_path() else {
            eprintln!("skipped: no JDK or no Maven here");
            return None;
        };
        let mut command = Command::new("java");
        command
            .args([
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-XX:+IgnoreUnrecognizedVMOptions",
            ])
            .args([concat!(
                "-XX:SharedArchiveFile=",
                env!("CARGO_MANIFEST_DIR"),
                "/target/interop/classes.jsa"
            )])
            .args(["-cp", path, "Driver"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut spawned = Spawned::start(&mut command, None);
        let input = Mutex::new(spawned.take_input().expect("input was asked for"));
        let output = spawned.take_output().expect("output was asked for");
        let answers = Answers::default();
        let shared = Arc::clone(&answers);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                deliver(&shared, &line);
            }
            // The process has ended, so its open orders get no answer.
            shared.lock().expect("no panic").clear();
        });
        let (spawned, sessions) = (Mutex::new(spawned), AtomicU64::new(0));
        Some(Arc::new(Process { spawned, input, answers, sessions }))
    }

    /// Returns the process that the running tests share, or a new one.
    fn shared() -> Option<Arc<Process>> {
        static SHARED: Mutex<Weak<Process>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let process = shared.upgrade().or_else(Process::start)?;
        *shared = Arc::downgrade(&process);
        Some(process)
    }
}

impl Java {
    /// Opens a session; blocks until it is connected.
    ///
    /// Without Java, prints a message to standard error and returns `None`.
    pub fn start(servers: &[&Server], watchdog: Duration) -> Option<Java> {
        Java::start_at(&urls(servers), watchdog)
    }

    /// Opens a session like `start`, in a process that can be killed.
    pub fn start_alone(servers: &[&Server], watchdog: Duration) -> Option<Java> {
        Some(Java::open(Process::start()?, &urls(servers), watchdog))
    }

    /// Opens a session like `start`, for a cluster.
    pub fn start_in(cluster: &Cluster, watchdog: Duration) -> Option<Java> {
        Java::start_at(&format!("cluster={}", cluster.urls().join(",")), watchdog)
    }

    /// Opens a session like `start`, for any deployment.
    ///
    /// `place` is `cluster=<url>,...` for a cluster, or `<master name>=<url of a sentinel>,...`.
    pub fn start_at(place: &str, watchdog: Duration) -> Option<Java> {
        Some(Java::open(Process::shared()?, place, watchdog))
    }

    fn open(process: Arc<Process>, place: &str, watchdog: Duration) -> Java {
        let session = process.sessions.fetch_add(1, Relaxed);
        let java = Java { process, session };
        java.does("driver", &format!("open {place} {}", watchdog.as_millis()));
        java
    }

    /// Gives an order to one of the Java threads.
    ///
    /// `order` is a verb, a kind, a name and an optional argument.
    pub fn order(&self, thread: &str, order: &str) -> Ordered {
        let (answer, answered) = channel();
        let label = format!("{}/{thread}", self.session);
        let mut answers = self.process.answers.lock().expect("no panic");
        let before = answers.insert(label.clone(), answer);
        drop(answers);
        assert!(before.is_none(), "{thread} has another order");
        let mut input = self.process.input.lock().expect("no panic");
        writeln!(input, "{label} {order}").expect("the driver listens");
        Ordered(answered)
    }

    /// Gives an order, and blocks until its answer, which must be `ok`.
    #[track_caller]
    pub fn does(&self, thread: &str, order: &str) -> String {
        let answer = self.order(thread, order).answer();
        answer.unwrap_or_else(|error| panic!("{thread} {order}: {error}"))
    }

    /// Returns whether a Java thread sleeps in a wait for a message.
    ///
    /// Redisson subscribes and asks once more before that. So until then a thread may get what it
    /// waits for without a message, and a message for all waiters, as the release of a write lock
    /// sends, wakes only the threads that sleep.
    pub fn is_parked(&self, thread: &str) -> bool {
        self.does(&format!("watcher-{thread}"), &format!("parked {thread}")) == "true"
    }

    /// Kills the process, which must be of `start_alone`.
    pub fn kill(self) {
        assert_eq!(Arc::strong_count(&self.process), 1, "other tests use the process");
        self.process.spawned.lock().expect("no panic").kill();
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // A killed process has no input. Nobody waits for the end of the session.
        if let Ok(mut input) = self.process.input.lock() {
            let _ = writeln!(input, "{}/driver close", self.session);
        }
    }
}

fn urls(servers: &[&Server]) -> String {
    let urls: Vec<_> = servers.iter().map(|server| server.url()).collect();
    urls.join(",")
}

/// Passes a line of the process on to the order that it answers.
fn deliver(answers: &Answers, line: &str) {
    let mut words = line.splitn(3, ' ');
    let (thread, how) = (words.next().unwrap_or_default(), words.next());
    let rest = words.next().unwrap_or_default().to_owned();
    let waiting = answers.lock().expect("no panic").remove(thread);
    // Other lines are output of the Java virtual machine.
    if let Some(waiting) = waiting {
        // The test may have ended.
        let _ = waiting.send(if how == Some("ok") { Ok(rest) } else { Err(rest) });
    }
}

impl Ordered {
    /// Blocks until the order is answered, and returns the answer.
    #[track_caller]
    pub fn answer(self) -> Result<String, String> {
        self.0.recv_timeout(BOUND).expect("Java answers")
    }

    /// Returns whether the order is unanswered after 100 ms, enough time for an answer.
    pub fn is_open(&self) -> bool {
        let mut answered = None;
        !holds_within(Duration::from_millis(100), || {
            answered = self.0.try_recv().ok();
            answered.is_some()
        })
    }
}
