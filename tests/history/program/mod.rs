//! The program of a worker: acquires locks, uses the store and gives its records to a sink.

mod acquire;
mod elections;
mod latches;

use crate::kind::{CAPACITY, Kind};
use crate::plan::{MAX_WAIT, WEIGHT_STEP, Work};
use crate::record::{End, Event, Record, Request, Verb, millis};
use crate::system::{Nanos, Store, now, thread};
use acquire::{Acquired, Held, acquire};
use leasehold::{Builder, Client, Error};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often a holder checks its hold.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How often a holder records a valid hold. A killed worker loses the later checks.
const RECORD_INTERVAL: Nanos = millis(100);

/// The longest and the minimum holds, in milliseconds.
const LIMITS: Range<u64> = 50..400;

/// Percentage of waiting calls that a cancellation ends, in place of a time-out.
const CANCELLED: u8 = 15;

/// How long a holder still checks a hold that must be lost.
const CHECKED_AFTER_LOSS: Duration = Duration::from_millis(500);

/// How long the servers may be away when a worker starts.
const AWAY: Nanos = millis(30_000);

/// The pause between two attempts to build a client.
const REBUILT: Duration = Duration::from_millis(1);

/// The receiver of the records of a worker, which its threads share.
pub type Sink<'a> = &'a (dyn Fn(&Record) + Sync);

/// The arguments of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    /// `single`, `cluster`, or the name of the master that sentinels watch.
    pub topology: String,
    pub urls: Vec<String>,
    pub store_url: String,
    pub seed: u64,
    /// The work of this worker. Both leases are the same.
    pub work: Work,
}

impl Arguments {
    /// Returns the arguments of the worker with this index, without addresses.
    pub fn new(work: &Work, index: usize, seed: u64, store_url: String) -> Arguments {
        let (topology, urls) = (String::new(), Vec::new());
        let seed = seed.wrapping_mul(31).wrapping_add(index as u64);
        let leases = [work.leases[index % 2]; 2];
        let work = Work { workers: 1, leases, seeded: None, ..work.clone() };
        Arguments { topology, urls, store_url, seed, work }
    }

    /// Returns the length of the renewed leases.
    pub fn lease(&self) -> Duration {
        self.work.leases[0]
    }

    fn settings(&self) -> Builder {
        Client::builder()
            .watchdog_timeout(self.lease())
            .poll_interval(self.work.poll_interval)
            .response_timeout(self.work.response_timeout)
            .connect_timeout(self.work.response_timeout)
            .pool_timeout(self.work.response_timeout)
            .pool_size(3)
            .fair_waiter_timeout(self.work.fair_waiter_timeout())
            .weight_step(WEIGHT_STEP)
    }

    /// Builds the clients, one for each independent server. Blocks until the current fault, if any,
    /// has ended.
    pub fn clients(&self) -> Vec<Client> {
        let urls = &self.urls;
        match self.topology.as_str() {
            "single" => urls.iter().map(|url| build(|| self.settings().single(url))).collect(),
            "cluster" => vec![build(|| self.settings().cluster(urls))],
            master => vec![build(|| self.settings().sentinel(master, urls))],
        }
    }
}

fn build(builder: impl Fn() -> Builder) -> Client {
    let end = now() + AWAY;
    loop {
        match builder().build() {
            Ok(client) => return client,
            Err(error) => assert!(now() < end, "never happened: the servers are there: {error}"),
        }
        thread::sleep(REBUILT);
    }
}

/// Works until `stop`, on the threads that the arguments ask for.
///
/// Blocks until all attempts have ended.
pub fn work(arguments: &Arguments, clients: &[Client], sink: Sink<'_>, stop: &AtomicBool) {
    let attempts = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..arguments.work.threads {
            let attempts = &attempts;
            scope.spawn(move || Thread::new(sink, arguments, clients, attempts, thread).work(stop));
        }
        if arguments.work.kinds.contains(&Kind::Election) {
            scope.spawn(|| elections::observe(sink, arguments, &attempts, stop));
        }
    });
}

/// Acquires every lock once, with all permits of a semaphore, and these locks, without others.
///
/// Leaves out plain semaphores, whose permits killed workers may have, and latches.
///
/// Returns a text for each failure.
pub fn acquire_all_once(arguments: &Arguments, more: Vec<(Kind, String)>) -> Vec<String> {
    let (clients, work) = (arguments.clients(), &arguments.work);
    let kinds = work.kinds.iter().filter(|kind| !matches!(kind, Kind::Count | Kind::Latch));
    let all = kinds.flat_map(|kind| (0..work.locks).map(|lock| (*kind, lock)));
    let all = all.map(|(kind, number)| (kind, kind.lock(number)));
    let failed = all.chain(more).filter_map(|(kind, lock)| {
        let permits = if kind == Kind::Semaphore { CAPACITY } else { 1 };
        let request = Request { permits, ..Request::waiting(lock, 20_000) };
        let acquired = acquire(&clients, kind, &request);
        (!matches!(acquired, Ok(Some(_)))).then(|| format!("{} cannot be acquired", request.lock))
    });
    failed.collect()
}

/// A thread of a worker.
struct Thread<'a> {
    sink: Sink<'a>,
    arguments: &'a Arguments,
    clients: &'a [Client],
    attempts: &'a AtomicU64,
    rng: fastrand::Rng,
    store: Store,
}

impl<'a> Thread<'a> {
    fn new(
        sink: Sink<'a>,
        arguments: &'a Arguments,
        clients: &'a [Client],
        attempts: &'a AtomicU64,
        thread: usize,
    ) -> Thread<'a> {
        let seed = arguments.seed.wrapping_mul(31).wrapping_add(thread as u64);
        let (rng, store) = (fastrand::Rng::with_seed(seed), Store::open(&arguments.store_url));
        Thread { sink, arguments, clients, attempts, rng, store }
    }

    fn work(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            self.attempt();
            thread::sleep(Duration::from_micros(self.rng.u64(0..5000)));
        }
    }

    /// Asks for a lock once, and holds it for a while if it is granted.
    fn attempt(&mut self) {
        let kind = self.arguments.work.kinds[self.rng.usize(..self.arguments.work.kinds.len())];
        if kind == Kind::Latch {
            return self.use_latch();
        }
        if kind == Kind::Election && self.only_looks_or_runs() {
            return;
        }
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst);
        // The permits of a plain semaphore, and the terms of a leader, have no end.
        let to_the_end =
            self.rng.u8(0..100) < self.arguments.work.kept_to_the_end && kind.has_leases();
        let value = if kind == Kind::Election { elections::value(attempt) } else { 0 };
        let request = Request { value, ..self.request(kind, to_the_end) };
        self.record(attempt, now(), Event::Asks(request.clone()));
        match acquire(self.clients, kind, &request) {
            Ok(Some(acquired)) => self.hold(attempt, kind, &request, acquired, to_the_end),
            Ok(None) => self.record(attempt, now(), Event::Refused),
            Err(error) => self.record(attempt, now(), Event::Failed(error_word(&error))),
        }
    }

    fn request(&mut self, kind: Kind, to_the_end: bool) -> Request {
        let shared = kind == Kind::Rw && self.rng.bool();
        let max_hold = self.limit().filter(|_| kind.has_leases());
        let has_minimum = !shared && kind.has_leases() && kind != Kind::Red;
        let min_hold = self.limit().filter(|_| has_minimum);
        // An overdue hold may be kept until its renewed lease ends.
        let fixed = match to_the_end {
            true => max_hold.is_none() || self.rng.bool(),
            false => self.rng.u8(0..100) < 15 && kind.has_leases(),
        };
        let is_semaphore = matches!(kind, Kind::Semaphore | Kind::Count);
        let is_large = is_semaphore && self.rng.u8(0..100) < self.arguments.work.large;
        let is_queued = matches!(kind, Kind::Queued | Kind::Election);
        let max_wait = if self.rng.u8(0..100) < 15 { 0 } else { self.rng.u64(MAX_WAIT) };
        Request {
            lock: kind.lock(self.number(kind)),
            verb: Verb::Acquire,
            shared,
            max_hold,
            min_hold,
            lease: fixed.then(|| self.rng.u64(self.arguments.work.fixed.clone())),
            max_wait,
            cancelled: max_wait > 0 && self.rng.u8(0..100) < CANCELLED,
            weight: if is_queued { self.rng.u32(1..=10) } else { 1 },
            permits: if is_large { self.rng.u32(2..=CAPACITY) } else { 1 },
            value: 0,
        }
    }

    /// Returns a longest or minimum hold for some of the requests.
    fn limit(&mut self) -> Option<u64> {
        (self.rng.u8(0..100) < self.arguments.work.limited).then(|| self.rng.u64(LIMITS))
    }

    /// Returns the number of a lock that is in use at present.
    fn number(&mut self, kind: Kind) -> u64 {
        let work = &self.arguments.work;
        let number = self.rng.u64(0..work.locks);
        match (kind, number) {
            // Fair locks stay: later callers remove killed waiters from their queues.
            (Kind::Fair, _) | (_, 0) => number,
            _ => number + work.locks * (now() / work.used_for.as_nanos() as Nanos),
        }
    }

    fn hold(
        &mut self,
        attempt: u64,
        kind: Kind,
        request: &Request,
        acquired: Acquired,
        to_the_end: bool,
    ) {
        let (held, token) = acquired;
        self.record(attempt, now(), Event::Granted { token });
        let span = self.span();
        let end = match (to_the_end, request.max_hold) {
            (true, Some(max_hold)) if request.lease.is_none() => {
                let lost = self.arguments.lease() + CHECKED_AFTER_LOSS;
                now() + millis(max_hold) + lost.as_nanos() as Nanos
            }
            (true, _) => Nanos::MAX,
            (false, _) => now() + span.as_nanos() as Nanos,
        };
        let valid = self.use_hold(attempt, (kind, request), (&|| held.is_held(), token), end);
        self.end(attempt, held, valid);
    }

    /// Uses the store, and checks the hold until this moment or its loss. Returns whether the hold
    /// is still valid.
    fn use_hold(
        &mut self,
        attempt: u64,
        (kind, request): (Kind, &Request),
        (is_held, token): (&dyn Fn() -> bool, u64),
        end: Nanos,
    ) -> bool {
        let account = self.arguments.account(kind, request);
        let token = if self.arguments.work.fenced { token } else { 0 };
        let read = account.as_ref().and_then(|account| self.store.read(account, token));
        let valid = self.observe_until(attempt, is_held, end);
        if let (Some(account), Some(value)) = (account, read) {
            // A program that is paused after its last check writes too, even if its lease is over.
            // The store has to refuse that write.
            self.store.write(&account, token, value + 1);
        }
        valid
    }

    /// Returns the length of a hold, or of the pause before a count-down.
    fn span(&mut self) -> Duration {
        let most = self.arguments.work.longest[usize::from(self.rng.u8(0..20) == 0)];
        Duration::from_micros(self.rng.u64(0..=most.as_micros() as u64))
    }

    /// Checks the hold until this moment or its loss. Returns whether it is still valid.
    fn observe_until(&self, attempt: u64, is_held: &dyn Fn() -> bool, end: Nanos) -> bool {
        let (mut seen, mut recorded) = (None, 0);
        loop {
            let at = now();
            if !is_held() {
                // The last valid check may not be recorded yet.
                seen.into_iter().for_each(|seen| self.record(attempt, seen, Event::Valid));
                self.record(attempt, at, Event::Lost);
                return false;
            }
            seen = Some(at);
            if recorded + RECORD_INTERVAL < at || end <= at {
                recorded = at;
                self.record(attempt, at, Event::Valid);
            }
            if end <= at {
                return true;
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    fn end(&mut self, attempt: u64, held: Box<dyn Held>, valid: bool) {
        self.record(attempt, now(), Event::Ends);
        let how = if self.rng.bool() || !valid {
            drop(held);
            End::Dropped
        } else {
            held.unlock().map_or(End::Unknown, |()| End::Unlocked)
        };
        self.record(attempt, now(), Event::Ended(how));
    }

    fn record(&self, attempt: u64, at: Nanos, event: Event) {
        (self.sink)(&Record { attempt, at, event });
    }
}

impl Arguments {
    /// Returns the account that a lock protects.
    ///
    /// `None` for shared holds, which lose updates to each other, and for locks without tokens
    /// beside a fenced store.
    fn account(&self, kind: Kind, request: &Request) -> Option<String> {
        let unfenced = !self.work.fenced && !request.shared;
        let has_tokens = matches!(kind, Kind::Fenced | Kind::Queued | Kind::Election);
        (has_tokens || unfenced).then(|| request.lock.clone())
    }
}

/// Returns the kind and the text of an error as one word.
fn error_word(error: &Error) -> String {
    format!("{:?}: {error}", error.kind()).replace(char::is_whitespace, "_")
}
