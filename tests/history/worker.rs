//! A worker process: runs the program of a worker, and prints its records.

use crate::checks::Stall;
use crate::harness::process::Role;
use crate::harness::wait::{descriptors, holds_within, threads};
use crate::kind::Kind;
use crate::plan::Work;
use crate::program::{self, Arguments, Sink};
use crate::record::{Event, Record};
use crate::stalls::{self, SAMPLE};
use crate::system::{Nanos, now};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The role of a worker process.
pub const WORKER: &str = "worker";

/// The order of the parent to make no more attempts.
pub const STOP: &str = "stop";

/// The answer when all attempts have ended.
pub const IDLE: &str = "idle";

/// The last line of a worker in which the library left nothing.
pub const CLEAN: &str = "left nothing";

/// The start of the last line otherwise. The leftovers follow.
pub const DIRTY: &str = "left";

impl Arguments {
    /// Formats the arguments as words for a process.
    pub fn words(&self) -> Vec<String> {
        let work = &self.work;
        let kinds: Vec<_> = work.kinds.iter().map(Kind::to_string).collect();
        let millis = |span: Duration| span.as_millis().to_string();
        vec![
            self.topology.clone(),
            self.urls.join(","),
            self.store_url.clone(),
            self.seed.to_string(),
            work.threads.to_string(),
            kinds.join(","),
            work.locks.to_string(),
            millis(work.used_for),
            millis(work.longest[0]),
            millis(work.longest[1]),
            work.kept_to_the_end.to_string(),
            work.limited.to_string(),
            work.fixed.start.to_string(),
            work.fixed.end.to_string(),
            millis(self.lease()),
            millis(work.poll_interval),
            millis(work.response_timeout),
            work.fenced.to_string(),
            work.large.to_string(),
            work.pause.as_micros().to_string(),
            work.min_replicas.to_string(),
            work.asked.to_string(),
            work.extended.to_string(),
            work.resized.to_string(),
            millis(work.checked),
            work.renewed.to_string(),
            work.lingering.to_string(),
            work.mortal.to_string(),
        ]
    }

    fn parse(words: &[String]) -> Arguments {
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let span = |at: usize| Duration::from_millis(number(at));
        let list = |at: usize| words[at].split(',').map(str::to_owned);
        let work = Work {
            workers: 1,
            threads: usize::try_from(number(4)).expect("a small number"),
            kinds: list(5).map(|name| Kind::parse(&name).expect("a kind")).collect(),
            locks: number(6),
            used_for: span(7),
            longest: [span(8), span(9)],
            kept_to_the_end: u8::try_from(number(10)).expect("a percentage"),
            limited: u8::try_from(number(11)).expect("a percentage"),
            fixed: number(12)..number(13),
            leases: [span(14); 2],
            poll_interval: span(15),
            response_timeout: span(16),
            fenced: words[17] == "true",
            told: false,
            large: u8::try_from(number(18)).expect("a percentage"),
            pause: Duration::from_micros(number(19)),
            min_replicas: u32::try_from(number(20)).expect("a small number"),
            asked: u8::try_from(number(21)).expect("a percentage"),
            extended: u8::try_from(number(22)).expect("a percentage"),
            resized: u8::try_from(number(23)).expect("a percentage"),
            checked: span(24),
            renewed: u8::try_from(number(25)).expect("a percentage"),
            lingering: u8::try_from(number(26)).expect("a percentage"),
            mortal: words[27] == "true",
        };
        let (topology, urls) = (words[0].clone(), list(1).collect());
        Arguments { topology, urls, store_url: words[2].clone(), seed: number(3), work }
    }
}

/// Runs a worker until the parent closes its input.
pub fn run_worker(role: &Role) {
    let arguments = Arguments::parse(role.args());
    let before = Resources::now();
    let clients = arguments.clients();
    let stop = AtomicBool::new(false);
    let sink = |record: &Record| role.say(&record.line());
    role.say("ready");
    thread::scope(|scope| {
        scope.spawn(|| program::work(&arguments, &clients, &sink, &stop));
        scope.spawn(|| record_stalls(&sink, &stop));
        while role.hear().is_some_and(|line| line != STOP) {}
        stop.store(true, Ordering::SeqCst);
    });
    role.say(IDLE);
    // The parent inspects the servers before it closes the input.
    while role.hear().is_some() {}
    drop(clients);
    let mut left = before.growth();
    holds_within(Duration::from_secs(20), || {
        left = before.growth();
        left.is_empty()
    });
    role.say(&if left.is_empty() { CLEAN.to_owned() } else { format!("{DIRTY} {left:?}") });
}

/// Records each sleep that lasts much longer than it should, until `stop`.
fn record_stalls(sink: Sink<'_>, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let due = now() + SAMPLE.as_nanos() as Nanos;
        thread::sleep(SAMPLE);
        if let Some(Stall { from, to: at }) = stalls::since(due) {
            sink(&Record { attempt: 0, at, event: Event::Stalled(at - from) });
        }
    }
}

/// The threads and descriptors of this process at one moment.
struct Resources {
    threads: BTreeMap<String, usize>,
    descriptors: usize,
}

impl Resources {
    fn now() -> Resources {
        Resources { threads: threads(), descriptors: descriptors().len() }
    }

    /// Returns the additional threads and descriptors since then.
    fn growth(&self) -> Vec<String> {
        let now = Resources::now();
        let had = |name: &String| self.threads.get(name).copied().unwrap_or(0);
        let threads = now.threads.iter().filter(|(name, count)| had(name) < **count);
        let mut grown: Vec<_> = threads.map(|(name, _)| format!("thread {name}")).collect();
        if self.descriptors < now.descriptors {
            grown.push(format!("{} descriptors", now.descriptors - self.descriptors));
        }
        grown
    }
}

#[test]
fn the_words_of_arguments_are_parsed_into_the_same_arguments() {
    let span = Duration::from_millis;
    let work = Work {
        workers: 1,
        threads: 2,
        kinds: vec![Kind::Fair, Kind::Red],
        locks: 3,
        used_for: span(4),
        longest: [span(5), span(6)],
        kept_to_the_end: 7,
        limited: 15,
        checked: span(3),
        asked: 3,
        extended: 25,
        resized: 26,
        fixed: 8..9,
        leases: [span(10), span(11)],
        renewed: 150,
        lingering: 40,
        mortal: true,
        poll_interval: span(12),
        response_timeout: span(13),
        fenced: true,
        told: false,
        large: 16,
        pause: Duration::from_micros(17),
        min_replicas: 18,
    };
    let mut arguments = Arguments::new(&work, 1, 14, "a".to_owned());
    let urls = vec!["b".to_owned(), "c".to_owned()];
    (arguments.topology, arguments.urls) = ("main".to_owned(), urls);
    assert_eq!(Arguments::parse(&arguments.words()), arguments);
    assert_eq!(arguments.lease(), span(11), "the second of the two leases");
}
