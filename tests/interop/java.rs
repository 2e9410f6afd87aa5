//! Redisson itself, in a Java process that obeys orders: `tests/interop/redisson`.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a room of its own in two test binaries, each of which uses a part of it"
)]

use crate::harness::Server;
use crate::harness::spawned::Spawned;
use crate::harness::wait::holds_within;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// Longer than a Java process takes for anything on a busy machine.
const BOUND: Duration = Duration::from_secs(150);

/// The class path of the driver, or why there is none.
fn class_path() -> Option<&'static str> {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    let build = || {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/script/interop");
        let built = Command::new(script).output().expect("script/interop can be run");
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        match built.status.code() {
            Some(0) => Some(String::from_utf8_lossy(&built.stdout).trim().to_owned()),
            Some(3) if !is_required() => None,
            _ => panic!("script/interop: {said}"),
        }
    };
    PATH.get_or_init(build).as_deref()
}

/// `LEASEHOLD_INTEROP` is set, to something.
fn is_required() -> bool {
    std::env::var_os("LEASEHOLD_INTEROP").is_some_and(|value| !value.is_empty())
}

/// Where an answer goes: `ok` with a value, or an error's words.
type Answers = Arc<Mutex<HashMap<String, Sender<Result<String, String>>>>>;

/// A Java process with Redisson. Dropping it kills it.
pub struct Java {
    process: Spawned,
    input: Mutex<ChildStdin>,
    answers: Answers,
}

/// An order that has been given.
pub struct Ordered(Receiver<Result<String, String>>);

impl Java {
    /// Starts it, and waits until it is connected. `None`, and a word on standard error,
    /// where there is no Java.
    pub fn start(servers: &[&Server], watchdog: Duration) -> Option<Java> {
        let urls: Vec<_> = servers.iter().map(|server| server.url()).collect();
        Java::start_at(&urls.join(","), watchdog)
    }

    /// The same for a cluster, `cluster=<url>,...`, or for the master of that name,
    /// `<name>=<url of a sentinel>,...`.
    pub fn start_at(place: &str, watchdog: Duration) -> Option<Java> {
        let Some(path) = class_path() else {
            eprintln!("skipped: no JDK or no Maven here");
            return None;
        };
        let mut command = Command::new("java");
        command
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", path])
            .args(["Driver", place, &watchdog.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Spawned::start(&mut command, None);
        let input = Mutex::new(process.take_input().expect("input was asked for"));
        let output = process.take_output().expect("output was asked for");
        let answers = Answers::default();
        let (ready, is_ready) = channel();
        answers.lock().expect("no panic").insert("driver".to_owned(), ready);
        let told = Arc::clone(&answers);
        thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines.map_while(Result::ok).for_each(|line| hand_out(&told, &line));
            // The process has ended: nobody is answered any more.
            told.lock().expect("no panic").clear();
        });
        assert_eq!(Ordered(is_ready).answer(), Ok("ready".to_owned()));
        Some(Java { process, input, answers })
    }

    /// Gives an order to one of its threads. `order` is a verb, a kind, a name and perhaps
    /// an argument.
    pub fn order(&self, thread: &str, order: &str) -> Ordered {
        let (answer, answered) = channel();
        let before = self.answers.lock().expect("no panic").insert(thread.to_owned(), answer);
        assert!(before.is_none(), "{thread} has another order");
        let mut input = self.input.lock().expect("no panic");
        writeln!(input, "{thread} {order}").expect("the driver listens");
        Ordered(answered)
    }

    /// The same, and waits for the answer, which must be a good one.
    #[track_caller]
    pub fn does(&self, thread: &str, order: &str) -> String {
        let answer = self.order(thread, order).answer();
        answer.unwrap_or_else(|error| panic!("{thread} {order}: {error}"))
    }

    pub fn kill(mut self) {
        self.process.kill();
    }
}

fn hand_out(answers: &Answers, line: &str) {
    let mut words = line.splitn(3, ' ');
    let (thread, how) = (words.next().unwrap_or_default(), words.next());
    let rest = words.next().unwrap_or_default().to_owned();
    let waiting = answers.lock().expect("no panic").remove(thread);
    let answer = if how == Some("ok") { Ok(rest) } else { Err(rest) };
    // What is no answer is a line of the virtual machine's own.
    waiting.into_iter().for_each(|waiting| drop(waiting.send(answer.clone())));
}

impl Ordered {
    /// Waits for it.
    #[track_caller]
    pub fn answer(self) -> Result<String, String> {
        self.0.recv_timeout(BOUND).expect("Java answers")
    }

    /// Whether there is an answer by then, that is: after a while in which there could be.
    pub fn is_open(&self) -> bool {
        let mut answered = None;
        !holds_within(Duration::from_millis(100), || {
            answered = self.0.try_recv().ok();
            answered.is_some()
        })
    }
}
