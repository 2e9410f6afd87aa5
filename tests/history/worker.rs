//! A worker process: acquires locks, uses the store and prints its records.

mod elections;

use super::checks::Stall;
use super::kind::{CAPACITY, Kind};
use super::plan::Work;
use super::record::{End, Event, Record, Request, Verb, millis};
use super::stalls::{self, SAMPLE};
use crate::harness::process::Role;
use crate::harness::wait::{descriptors, eventually_some, holds_within, threads};
use crate::subject::{self, Subject};
use crate::system::channel::{self, RecvTimeoutError};
use crate::system::{Nanos, Store, now, thread};
use leasehold::kind::{Fenced, LockKind, Queued};
use leasehold::{
    Builder, CancelToken, Client, CountDownLatch, Error, Guard, Lock, PlainSemaphore, RedLock,
    Semaphore,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// How often a holder checks its hold.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// How often a holder records a valid hold. A killed worker loses the later checks.
const RECORD_INTERVAL: Nanos = millis(100);

/// The longest and the minimum holds, in milliseconds.
const LIMITS: Range<u64> = 50..400;

/// The largest count of a latch.
const LARGEST_COUNT: u32 = 6;

/// The most count-downs of a thread after it has set the count. Several threads end a round.
const MOST_COUNT_DOWNS: u32 = 3;

/// Percentage of rounds of a latch that a thread ends by a deletion.
const DELETED: u8 = 10;

/// How much earlier a waiter for a queue lock counts as arrived, per unit of weight.
pub const WEIGHT_STEP: Duration = Duration::from_millis(200);

/// Percentage of waiting calls that a cancellation ends, in place of a time-out.
const CANCELLED: u8 = 15;

/// How long a holder still checks a hold that must be lost.
const CHECKED_AFTER_LOSS: Duration = Duration::from_millis(500);

/// The arguments of a worker process.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    /// `single`, `cluster`, or the name of the master that sentinels watch.
    pub topology: String,
    pub urls: Vec<String>,
    store_url: String,
    seed: u64,
    /// The work of this worker. Both leases are the same.
    work: Work,
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
            large: u8::try_from(number(18)).expect("a percentage"),
            seeded: None,
        };
        let (topology, urls) = (words[0].clone(), list(1).collect());
        Arguments { topology, urls, store_url: words[2].clone(), seed: number(3), work }
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

    fn clients(&self) -> Vec<Client> {
        let urls = &self.urls;
        match self.topology.as_str() {
            "single" => urls.iter().map(|url| build(|| self.settings().single(url))).collect(),
            "cluster" => vec![build(|| self.settings().cluster(urls))],
            master => vec![build(|| self.settings().sentinel(master, urls))],
        }
    }
}

/// Builds a client. Blocks until the current fault, if any, has ended.
fn build(builder: impl Fn() -> Builder) -> Client {
    eventually_some("the servers are there", || builder().build().ok())
}

/// Runs a worker until the parent closes its input.
pub fn run_worker(role: &Role) {
    let arguments = Arguments::parse(role.args());
    let before = Resources::now();
    let clients = arguments.clients();
    let stop = AtomicBool::new(false);
    let attempts = AtomicU64::new(0);
    role.say("ready");
    thread::scope(|scope| {
        for thread in 0..arguments.work.threads {
            let (arguments, clients, stop, attempts) = (&arguments, &clients, &stop, &attempts);
            scope.spawn(move || Thread::new(role, arguments, clients, attempts, thread).work(stop));
        }
        scope.spawn(|| record_stalls(role, &stop));
        if arguments.work.kinds.contains(&Kind::Election) {
            scope.spawn(|| elections::observe(role, &arguments, &attempts, &stop));
        }
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
fn record_stalls(role: &Role, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let due = now() + SAMPLE.as_nanos() as Nanos;
        thread::sleep(SAMPLE);
        if let Some(Stall { from, to: at }) = stalls::since(due) {
            let event = Event::Stalled(at - from);
            role.say(&Record { attempt: 0, at, event }.line());
        }
    }
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

impl Request {
    /// Returns the longest wait, and whether a cancellation ends it; `None` for no wait.
    fn waits(&self) -> Option<(Duration, bool)> {
        let max_wait = Duration::from_millis(self.max_wait);
        (self.max_wait > 0).then_some((max_wait, self.cancelled))
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

/// A guard of any kind.
trait Held {
    fn is_held(&self) -> bool;
    fn unlock(self: Box<Self>) -> leasehold::Result<()>;
}

impl<G: subject::SubjectGuard> Held for G {
    fn is_held(&self) -> bool {
        subject::SubjectGuard::is_held(self)
    }

    fn unlock(self: Box<Self>) -> leasehold::Result<()> {
        subject::SubjectGuard::unlock(*self)
    }
}

/// A guard, and its fencing token, or 0.
type Acquired = (Box<dyn Held>, u64);

/// A thread of a worker.
struct Thread<'a> {
    role: &'a Role,
    arguments: &'a Arguments,
    clients: &'a [Client],
    attempts: &'a AtomicU64,
    rng: fastrand::Rng,
    store: Store,
}

impl<'a> Thread<'a> {
    fn new(
        role: &'a Role,
        arguments: &'a Arguments,
        clients: &'a [Client],
        attempts: &'a AtomicU64,
        thread: usize,
    ) -> Thread<'a> {
        let seed = arguments.seed.wrapping_mul(31).wrapping_add(thread as u64);
        let (rng, store) = (fastrand::Rng::with_seed(seed), Store::open(&arguments.store_url));
        Thread { role, arguments, clients, attempts, rng, store }
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

    /// Waits for a latch, or begins a round of it and counts down for a while.
    fn use_latch(&mut self) {
        let wait = self.request(Kind::Latch, false);
        // Without a reply, a wait fails soon after its deadline. A `max_wait` of 0 stands for a
        // call that waits for the reply.
        let wait = Request { max_wait: wait.max_wait.max(1), ..wait };
        if self.rng.bool() {
            return self.call_latch(wait);
        }
        let change = Request { max_wait: 0, ..wait };
        let count = self.rng.u32(1..=LARGEST_COUNT);
        self.call_latch(Request { verb: Verb::SetCount, permits: count, ..change.clone() });
        for _ in 0..self.rng.u32(0..=MOST_COUNT_DOWNS) {
            thread::sleep(self.span());
            self.call_latch(Request { verb: Verb::CountDown, ..change.clone() });
        }
        if self.rng.u8(0..100) < DELETED {
            self.call_latch(Request { verb: Verb::Delete, ..change });
        }
    }

    /// Makes one call about a latch.
    fn call_latch(&self, request: Request) {
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst);
        self.record(attempt, now(), Event::Asks(request.clone()));
        let outcome = match call_latch(&self.clients[0].latch(&*request.lock), &request) {
            Ok(true) => Event::Done,
            Ok(false) => Event::Refused,
            Err(error) => Event::Failed(error_word(&error)),
        };
        self.record(attempt, now(), outcome);
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
        let max_wait = if self.rng.u8(0..100) < 15 { 0 } else { self.rng.u64(500..6000) };
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
        self.role.say(&Record { attempt, at, event }.line());
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

fn acquire(
    clients: &[Client],
    kind: Kind,
    request: &Request,
) -> leasehold::Result<Option<Acquired>> {
    let (client, name) = (&clients[0], &*request.lock);
    match kind {
        Kind::Plain => acquire_limited(client.lock(name), request, |_| 0),
        Kind::Fenced => acquire_limited(client.fenced_lock(name), request, Guard::<Fenced>::token),
        Kind::Fair => acquire_limited(client.fair_lock(name), request, |_| 0),
        Kind::Rw if request.shared => {
            acquire_limited(client.rw_lock(name).read_lock(), request, |_| 0)
        }
        Kind::Rw => acquire_limited(client.rw_lock(name).write_lock(), request, |_| 0),
        Kind::Spin => acquire_limited(client.spin_lock(name), request, |_| 0),
        Kind::Queued => {
            let lock = client.queue_lock(name).with_weight(request.weight);
            acquire_limited(lock, request, Guard::<Queued>::token)
        }
        Kind::Election => elections::campaign(client, request),
        Kind::Red => {
            let lock = RedLock::new(clients.to_vec(), name);
            let max_hold = request.max_hold.map(Duration::from_millis);
            let lock = max_hold.into_iter().fold(lock, RedLock::with_max_hold);
            acquire_from(lock, request, |_| 0)
        }
        Kind::Semaphore => lease_permits(client, request),
        Kind::Count => take_permits(client, request),
        Kind::Latch => unreachable!("nobody holds a latch"),
    }
}

/// Takes permits with a lease.
fn lease_permits(client: &Client, request: &Request) -> leasehold::Result<Option<Acquired>> {
    let semaphore = client.semaphore(&*request.lock).with_permits(CAPACITY);
    let [max_hold, min_hold, lease] =
        [request.max_hold, request.min_hold, request.lease].map(|it| it.map(Duration::from_millis));
    let semaphore = max_hold.into_iter().fold(semaphore, Semaphore::with_max_hold);
    let semaphore = min_hold.into_iter().fold(semaphore, Semaphore::with_min_hold);
    let semaphore = lease.into_iter().fold(semaphore, Semaphore::with_lease);
    let permits = request.permits;
    let permit = match request.waits() {
        None => semaphore.try_acquire_many(permits)?,
        Some((max_wait, true)) => {
            until_cancelled(max_wait, |token| semaphore.with_cancel(token).acquire_many(permits))?
        }
        Some((max_wait, false)) => semaphore.try_acquire_many_for(permits, max_wait)?,
    };
    Ok(permit.map(|permit| (Box::new(permit) as _, 0)))
}

/// Takes permits of a plain semaphore. The first caller that is refused sets them to the capacity.
fn take_permits(client: &Client, request: &Request) -> leasehold::Result<Option<Acquired>> {
    let (semaphore, permits) = (client.plain_semaphore(&*request.lock), request.permits);
    let is_taken = semaphore.try_acquire(permits)? || {
        semaphore.try_set_permits(CAPACITY)?;
        take_plain(&semaphore, request)?
    };
    Ok(is_taken.then(|| (Box::new(Taken { semaphore, permits }) as _, 0)))
}

fn take_plain(semaphore: &PlainSemaphore, request: &Request) -> leasehold::Result<bool> {
    let permits = request.permits;
    match request.waits() {
        None => semaphore.try_acquire(permits),
        Some((max_wait, true)) => {
            let waiting = semaphore.clone();
            let acquire = |token: &CancelToken| waiting.with_cancel(token).acquire(permits);
            Ok(until_cancelled(max_wait, acquire)?.is_some())
        }
        Some((max_wait, false)) => semaphore.try_acquire_for(permits, max_wait),
    }
}

/// Permits of a plain semaphore, given back by the end of this value.
struct Taken {
    semaphore: PlainSemaphore,
    permits: u32,
}

impl Held for Taken {
    fn is_held(&self) -> bool {
        true
    }

    fn unlock(mut self: Box<Self>) -> leasehold::Result<()> {
        self.give_back()
    }
}

impl Taken {
    /// Gives the permits back, as a program does that repeats retryable errors.
    ///
    /// The client completes a release that may have arrived. That error is not retryable.
    fn give_back(&mut self) -> leasehold::Result<()> {
        let permits = std::mem::take(&mut self.permits);
        until_not_retryable(|| self.semaphore.release(permits))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.permits > 0 {
            let _ = self.give_back();
        }
    }
}

/// Makes a call about a latch. Returns `false` if the wait has timed out, or nothing has changed.
fn call_latch(latch: &CountDownLatch, request: &Request) -> leasehold::Result<bool> {
    let max_wait = Duration::from_millis(request.max_wait);
    match request.verb {
        Verb::SetCount => latch.try_set_count(request.permits.into()),
        Verb::CountDown => until_not_retryable(|| latch.count_down()).map(|()| true),
        Verb::Delete => latch.delete(),
        Verb::Acquire if request.cancelled => {
            let waiting = latch.clone();
            Ok(until_cancelled(max_wait, |token| waiting.with_cancel(token).wait())?.is_some())
        }
        Verb::Acquire => latch.wait_for(max_wait),
        Verb::Lead | Verb::Look | Verb::Observe => unreachable!("a verb of elections"),
    }
}

/// Repeats a call as long as its error is retryable: the call has had no effect.
fn until_not_retryable<T>(call: impl Fn() -> leasehold::Result<T>) -> leasehold::Result<T> {
    loop {
        match call() {
            Err(error) if error.is_retryable() => thread::sleep(CHECK_INTERVAL),
            outcome => return outcome,
        }
    }
}

/// Acquires a lock with the limits of the request.
fn acquire_limited<K: LockKind>(
    lock: Lock<K>,
    request: &Request,
    token: impl Fn(&Guard<K>) -> u64,
) -> leasehold::Result<Option<Acquired>>
where
    Guard<K>: 'static,
{
    let [max_hold, min_hold] =
        [request.max_hold, request.min_hold].map(|it| it.map(Duration::from_millis));
    let lock = max_hold.into_iter().fold(lock, Lock::with_max_hold);
    acquire_from(min_hold.into_iter().fold(lock, Lock::with_min_hold), request, token)
}

fn acquire_from<S: Subject>(
    lock: S,
    request: &Request,
    token: impl Fn(&S::Guard) -> u64,
) -> leasehold::Result<Option<Acquired>>
where
    S::Guard: 'static,
{
    let lock = match request.lease {
        Some(lease) => lock.with_lease(Duration::from_millis(lease)),
        None => lock,
    };
    let guard = match request.waits() {
        None => lock.try_lock()?,
        Some((max_wait, true)) => {
            until_cancelled(max_wait, |token| lock.with_cancel(token).lock())?
        }
        Some((max_wait, false)) => lock.try_lock_for(max_wait)?,
    };
    Ok(guard.map(|guard| (token(&guard), guard)).map(|(t, guard)| (Box::new(guard) as _, t)))
}

/// Calls with a token that another thread cancels later. Returns `None` after a cancellation.
fn until_cancelled<T>(
    max_wait: Duration,
    call: impl FnOnce(&CancelToken) -> leasehold::Result<T>,
) -> leasehold::Result<Option<T>> {
    let (token, (returned, has_returned)) = (CancelToken::new(), channel::bounded::<()>(0));
    thread::scope(|scope| {
        let canceller = token.clone();
        scope.spawn(move || {
            let waits = has_returned.recv_timeout(max_wait) == Err(RecvTimeoutError::Timeout);
            waits.then(|| canceller.cancel())
        });
        let acquired = call(&token);
        drop(returned);
        match acquired {
            Err(error) if error.is_cancelled() => Ok(None),
            acquired => acquired.map(Some),
        }
    })
}

/// Returns the kind and the text of an error as one word.
fn error_word(error: &Error) -> String {
    format!("{:?}: {error}", error.kind()).replace(char::is_whitespace, "_")
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
        fixed: 8..9,
        leases: [span(10), span(11)],
        poll_interval: span(12),
        response_timeout: span(13),
        fenced: true,
        large: 16,
        seeded: None,
    };
    let mut arguments = Arguments::new(&work, 1, 14, "a".to_owned());
    let urls = vec!["b".to_owned(), "c".to_owned()];
    (arguments.topology, arguments.urls) = ("main".to_owned(), urls);
    assert_eq!(Arguments::parse(&arguments.words()), arguments);
    assert_eq!(arguments.lease(), span(11), "the second of the two leases");
}
