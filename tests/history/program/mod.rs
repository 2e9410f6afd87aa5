//! The program of a worker: acquires locks, uses the store and gives its records to a sink.

mod acquire;
mod elections;
mod held;
mod latches;
mod once;
mod questions;
mod resize;

use crate::kind::{CAPACITY, Kind};
use crate::plan::{MAX_WAIT, Plan, WEIGHT_STEP, Work};
use crate::record::{End, Event, Record, Request, Verb, millis};
use crate::system::{Nanos, Store, now, process_id, thread};
use acquire::{Acquired, AnyGuard, Call, Manner, acquire, acquire_all};
use held::Held;
use leasehold::{Builder, Client, Error};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often a holder records a valid hold. A killed worker loses the later checks.
const RECORD_INTERVAL: Nanos = millis(100);

/// The longest and the minimum holds, in milliseconds.
const LIMITS: Range<u64> = 50..400;

/// Percentage of waiting calls that a cancellation ends, in place of a time-out.
const CANCELLED: u8 = 15;

/// Percentage of calls for an owned guard, and of waits until a moment.
const OWNED: u8 = 15;
const UNTIL: u8 = 30;

/// Percentage of calls with clients of their own, which are closed in use.
const CLOSED: u8 = 2;

/// Percentage of turns at a lock that may join a multi-lock which take one.
const JOINED: u8 = 10;

/// Percentage of holders that take their lock again, and of those that listen for a loss.
const RE_ENTERED: u8 = 20;
const LISTENED: u8 = 20;

/// Percentage of turns at the own lock of a worker whose holds linger.
const OWN: u8 = 70;

/// The number of checks, at the usual interval, within which a listener has heard of a loss.
const HEARD: usize = 500;

/// How long a holder still checks a hold that must be lost.
const CHECKED_AFTER_LOSS: Duration = Duration::from_millis(500);

/// How long a caller may wait for a lock for which nobody else waits.
const ALONE: Duration = Duration::from_secs(20);

/// How long the servers may be away when a worker starts.
const AWAY: Nanos = millis(120_000);

/// The pause between two attempts to build a client, or to make a call whose error is retryable.
const REPEATED: Duration = Duration::from_millis(100);

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
        let work = Work { workers: 1, leases, ..work.clone() };
        Arguments { topology, urls, store_url, seed, work }
    }

    /// Returns the arguments of a process beside the workers. `add_addresses` adds the servers.
    pub fn beside_workers(plan: &Plan, add_addresses: impl FnOnce(&mut Arguments)) -> Arguments {
        let mut arguments = Arguments::new(&plan.work, 0, plan.seed, String::new());
        add_addresses(&mut arguments);
        arguments
    }

    /// Returns the number of clients of the worker.
    #[allow(dead_code, reason = "only the simulation asks")]
    pub fn client_count(&self) -> usize {
        if self.topology == "single" { self.urls.len() } else { 1 }
    }

    /// Returns the length of the renewed leases.
    pub fn lease(&self) -> Duration {
        self.work.leases[0]
    }

    /// Builds the clients, one for each independent server. Blocks until the current fault, if any,
    /// has ended.
    pub fn clients(&self) -> Vec<Client> {
        self.clients_with(|settings| settings)
    }

    /// Builds the clients like `clients`, with more settings.
    pub fn clients_with(&self, more: impl Fn(Builder) -> Builder) -> Vec<Client> {
        let (urls, work) = (&self.urls, &self.work);
        let settings = || {
            let builder = Client::builder()
                .watchdog_timeout(self.lease())
                .poll_interval(work.poll_interval)
                .response_timeout(work.response_timeout)
                .connect_timeout(work.response_timeout)
                .pool_timeout(work.response_timeout)
                .pool_size(3)
                .min_replicas(work.min_replicas, work.replica_timeout())
                .fair_waiter_timeout(work.fair_waiter_timeout())
                .weight_step(WEIGHT_STEP)
                .release_on_death(work.mortal);
            more(builder)
        };
        match self.topology.as_str() {
            "single" => urls.iter().map(|url| build(|| settings().single(url))).collect(),
            "cluster" => vec![build(|| settings().cluster(urls))],
            master => vec![build(|| settings().sentinel(master, urls))],
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
        thread::sleep(REPEATED);
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
    let mut failed = Vec::new();
    for (kind, lock) in all.chain(more) {
        let permits = if kind == Kind::Semaphore { capacity(&clients[0], &lock) } else { 1 };
        let longest = ALONE + delay_by_dead_waiters(&clients[0], kind, &lock, work);
        let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let request = Request { permits, ..Request::waiting(lock, longest) };
        let call = Call { clients: &clients, request: &request, manner: Manner::default() };
        if !matches!(acquire(kind, call), Ok(Some(_))) {
            failed.push(format!("{} cannot be acquired", request.lock));
        }
    }
    failed
}

/// Returns the time for which the callers of dead processes delay the next caller of a fair lock:
/// each of them for the fair waiter time-out and a poll interval.
fn delay_by_dead_waiters(client: &Client, kind: Kind, lock: &str, work: &Work) -> Duration {
    if kind != Kind::Fair {
        return Duration::ZERO;
    }
    let waiting = client.fair_lock(lock).waiting().map_or(0, |waiting| waiting.queue().len());
    (work.fair_waiter_timeout() + work.poll_interval) * u32::try_from(waiting).unwrap_or(u32::MAX)
}

/// Returns the present capacity of a semaphore, or the one that it gets.
fn capacity(client: &Client, semaphore: &str) -> u32 {
    let permits = client.semaphore(semaphore).permits();
    permits
        .ok()
        .and_then(|permits| permits.try_into().ok())
        .filter(|it| *it > 0)
        .unwrap_or(CAPACITY)
}

/// Releases a lock by force, as an operator does.
pub fn force_unlock(arguments: &Arguments, lock: &str) -> leasehold::Result<bool> {
    let client = arguments.clients().remove(0);
    let was_held = client.force_unlock(lock);
    client.close();
    was_held
}

/// A thread of a worker.
struct Thread<'a> {
    sink: Sink<'a>,
    arguments: &'a Arguments,
    clients: &'a [Client],
    attempts: &'a AtomicU64,
    rng: fastrand::Rng,
    store: Store,
    /// The attempts at the other members of the multi-lock in use: what is recorded of the first
    /// member applies to them too.
    joined: Vec<u64>,
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
        Thread { sink, arguments, clients, attempts, rng, store, joined: Vec::new() }
    }

    fn work(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            self.attempt();
            let pause = self.arguments.work.pause.as_micros() as u64;
            thread::sleep(Duration::from_micros(self.rng.u64(0..pause)));
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
        if kind == Kind::Once && self.only_reads_or_forgets() {
            return;
        }
        if kind.may_join() && self.happens(JOINED) {
            return self.take_together();
        }
        if kind.is_lock() && self.happens(self.arguments.work.asked) {
            return self.ask(kind);
        }
        if kind.is_semaphore() && self.happens(self.arguments.work.resized) {
            return self.resize(kind);
        }
        let attempt = self.next_attempt();
        // The permits of a plain semaphore, and the terms of a leader, have no end.
        let to_the_end =
            self.rng.u8(0..100) < self.arguments.work.kept_to_the_end && kind.has_leases();
        let request = Request { value: value(kind, attempt), ..self.request(kind, to_the_end) };
        let manner = self.manner(kind);
        self.call(attempt, kind, request, manner, to_the_end);
    }

    /// Whether something happens that does so with this percentage.
    ///
    /// Draws no number for 0, so that a new setting leaves the work of a former seed as it was. The
    /// older settings of [`Work`] draw one for 0 too, for the same reason.
    fn happens(&mut self, percentage: u8) -> bool {
        percentage > 0 && self.rng.u8(0..100) < percentage
    }

    fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::SeqCst)
    }

    /// Records that a call begins. Returns its number.
    fn asks(&self, request: Request) -> u64 {
        let attempt = self.next_attempt();
        self.record(attempt, now(), Event::Asks(request));
        attempt
    }

    fn manner(&mut self, kind: Kind) -> Manner {
        let [is_owned, is_until, closes] =
            [OWNED, UNTIL, CLOSED].map(|percentage| self.happens(percentage));
        Manner { is_owned, is_until, closes: closes && kind.has_limits() }
    }

    /// Makes a call, and holds the lock for a while if it is granted.
    fn call(
        &mut self,
        attempt: u64,
        kind: Kind,
        request: Request,
        manner: Manner,
        to_the_end: bool,
    ) {
        let cancelled = request.cancelled || (manner.closes && request.max_wait > 0);
        let request = Request { cancelled, ..request };
        let own = if manner.closes { self.arguments.clients() } else { Vec::new() };
        let clients = if manner.closes { &own } else { self.clients };
        self.record(attempt, now(), Event::Asks(request.clone()));
        let acquired = acquire(kind, Call { clients, request: &request, manner });
        let Some(acquired) = self.granted(attempt, acquired) else { return };
        let hold = Holding { attempt, kind, request: &request, token: acquired.1, own: &own };
        match acquired.0 {
            AnyGuard::Sendable(guard) if manner.is_owned => {
                self.send_away(&hold, guard, to_the_end);
            }
            AnyGuard::Sendable(guard) => self.hold(&hold, guard, to_the_end),
            AnyGuard::OfThread(guard) => self.hold(&hold, guard, to_the_end),
            AnyGuard::Done(seen) => {
                self.record(attempt, now(), Event::Seen(Some(seen)));
                self.record(attempt, now(), Event::Done);
            }
        }
    }

    /// Returns what a call has acquired. Records the end of a call in vain.
    fn granted(
        &self,
        attempt: u64,
        acquired: leasehold::Result<Option<Acquired>>,
    ) -> Option<Acquired> {
        let event = match acquired {
            Ok(Some(acquired)) => return Some(acquired),
            Ok(None) => Event::Refused,
            Err(error) => Event::Failed(error_word(&error)),
        };
        self.record(attempt, now(), event);
        None
    }

    /// Takes one lock of each kind that may join a multi-lock, all together.
    fn take_together(&mut self) {
        let kinds = self.arguments.work.kinds.iter().filter(|kind| kind.may_join());
        let kinds: Vec<_> = kinds.copied().collect();
        let members: Vec<_> =
            kinds.iter().map(|kind| (*kind, kind.lock(self.number(*kind)))).collect();
        let first = self.request(Kind::Plain, false);
        let request = Request { verb: Verb::Join, min_hold: None, max_hold: None, ..first };
        let mut attempts: Vec<u64> = Vec::new();
        for (_, lock) in &members {
            attempts.push(self.asks(Request { lock: lock.clone(), ..request.clone() }));
        }
        let attempt = attempts.remove(0);
        self.joined = attempts;
        let manner = Manner { is_owned: false, closes: false, ..self.manner(Kind::Plain) };
        let call = Call { clients: self.clients, request: &request, manner };
        if let Some((AnyGuard::OfThread(guard), token)) =
            self.granted(attempt, acquire_all(&members, call))
        {
            let (kind, request) = (Kind::Plain, &request);
            let hold = Holding { attempt, kind, request, token, own: &[] };
            self.hold(&hold, guard, false);
        }
        self.joined.clear();
    }

    /// Lets another thread hold the lock, and may ask for it meanwhile.
    fn send_away(&mut self, hold: &Holding<'_>, guard: Box<dyn Held + Send>, to_the_end: bool) {
        let store = Store::open(&self.arguments.store_url);
        let mut other = Thread { rng: self.rng.fork(), store, joined: Vec::new(), ..*self };
        thread::scope(|scope| {
            scope.spawn(move || other.hold(hold, guard, to_the_end));
            if self.rng.bool() {
                let lock = hold.request.lock.clone();
                let attempt = self.next_attempt();
                let value = value(hold.kind, attempt);
                let again = Request { lock, value, ..self.request(hold.kind, false) };
                self.call(attempt, hold.kind, again, Manner::default(), false);
            }
        });
    }

    fn request(&mut self, kind: Kind, to_the_end: bool) -> Request {
        let shared = kind == Kind::Rw && self.rng.bool();
        let max_hold = self.limit().filter(|_| kind.has_limits());
        let has_minimum = !shared && kind.has_leases() && kind != Kind::Red;
        let min_hold = self.limit().filter(|_| has_minimum);
        // An overdue hold may be kept until its renewed lease ends.
        let fixed = if to_the_end {
            max_hold.is_none() || self.rng.bool()
        } else {
            self.happens(15) && kind.has_leases()
        };
        let is_large = kind.is_semaphore() && self.rng.u8(0..100) < self.arguments.work.large;
        let is_queued = matches!(kind, Kind::Queued | Kind::Election);
        let max_wait = if self.happens(15) { 0 } else { self.rng.u64(MAX_WAIT) };
        Request {
            lock: kind.lock(self.number(kind)),
            verb: Verb::Acquire,
            shared,
            max_hold,
            min_hold,
            lease: fixed.then(|| self.rng.u64(self.arguments.work.fixed.clone())),
            renewed: self.renewed().filter(|_| kind.has_limits() || kind == Kind::Election),
            linger: self.linger(),
            max_wait,
            cancelled: max_wait > 0 && self.happens(CANCELLED),
            weight: if is_queued { self.rng.u32(1..=10) } else { 1 },
            permits: if is_large { self.rng.u32(2..=CAPACITY) } else { 1 },
            keep: self.keep(kind),
            value: 0,
        }
    }

    /// Returns the renewed lease of all handles of this worker, if it is not that of the client.
    fn renewed(&self) -> Option<u64> {
        let (percentage, lease) = (self.arguments.work.renewed, self.arguments.lease());
        let lease = (lease * percentage.into() / 100).max(Duration::from_millis(100));
        (percentage != 100).then(|| u64::try_from(lease.as_millis()).expect("a short lease"))
    }

    /// Returns a linger time for half of the requests, if the work has one.
    fn linger(&mut self) -> Option<u64> {
        let (percentage, lease) = (self.arguments.work.lingering, self.arguments.lease());
        let lease = self.renewed().map_or(lease, Duration::from_millis);
        let linger = u64::try_from((lease * percentage.into() / 100).as_millis());
        (percentage > 0 && self.rng.bool()).then(|| linger.expect("a short time"))
    }

    /// Returns a longest or minimum hold for some of the requests.
    fn limit(&mut self) -> Option<u64> {
        (self.rng.u8(0..100) < self.arguments.work.limited).then(|| self.rng.u64(LIMITS))
    }

    /// Returns the number of a lock that is in use at present.
    fn number(&mut self, kind: Kind) -> u64 {
        let work = &self.arguments.work;
        let number = self.rng.u64(0..work.locks);
        // Lingering is of use if a process mostly takes the same locks.
        let is_own = work.lingering > 0 && self.rng.u8(0..100) < OWN;
        let number = if is_own { self.arguments.seed % work.locks } else { number };
        match (kind, number) {
            // Fair locks stay: later callers remove killed waiters from their queues.
            (Kind::Fair, _) | (_, 0) => number,
            _ => number + work.locks * (now() / work.used_for.as_nanos() as Nanos),
        }
    }

    /// Uses what a call has acquired, and releases it. Records what the holder notices.
    fn hold<H: Held + ?Sized>(&mut self, hold: &Holding<'_>, guard: Box<H>, to_the_end: bool) {
        let Holding { attempt, kind, request, token, .. } = *hold;
        self.record(attempt, now(), Event::Granted { token });
        let heard = self.listen(&*guard);
        if self.happens(RE_ENTERED) {
            // Clients of this call alone are closed at the end of its patience, as late as now.
            guard.re_enter(!hold.own.is_empty());
        }
        self.extend(hold, &*guard);
        let span = self.span();
        let end = match (to_the_end, request.max_hold) {
            (true, Some(max_hold)) if request.lease.is_none() => {
                let lost = self.arguments.lease() + CHECKED_AFTER_LOSS;
                now() + millis(max_hold) + lost.as_nanos() as Nanos
            }
            (true, _) => Nanos::MAX,
            (false, _) => now() + span.as_nanos() as Nanos,
        };
        let valid = self.use_hold(attempt, (kind, request), (&|| guard.is_held(), token), end);
        if let (Some(heard), false) = (&heard, valid) {
            let has_heard = (0..HEARD).any(|_| {
                thread::sleep(self.arguments.work.checked);
                heard.load(Ordering::SeqCst) > 0
            });
            assert!(has_heard, "no listener hears of a loss");
        }
        let how = self.end(hold, guard, valid);
        if let (Some(heard), End::Unlocked | End::Committed) = (heard, how) {
            assert_eq!(heard.load(Ordering::SeqCst), 0, "a listener hears of a loss: unlocked");
        }
    }

    /// Extends some holds with a fixed lease by the length of that lease, some time after the
    /// grant.
    fn extend<H: Held + ?Sized>(&mut self, hold: &Holding<'_>, guard: &H) {
        let Some(lease) = hold.request.lease else { return };
        if !self.happens(self.arguments.work.extended) {
            return;
        }
        let until = now() + millis(self.rng.u64(0..=lease));
        let is_valid = self.observe_until(hold.attempt, &|| guard.is_held(), until);
        // Some servers extend a red lock also if the call fails. With one that has granted it late,
        // they may be a majority with a later lease.
        if is_valid && (guard.extend(Duration::from_millis(lease)) || hold.kind == Kind::Red) {
            self.record(hold.attempt, now(), Event::Extended);
        }
    }

    /// Lets some holders listen for a loss. Returns the count of their calls.
    fn listen<H: Held + ?Sized>(&mut self, guard: &H) -> Option<Arc<AtomicU64>> {
        let heard = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&heard);
        let listens = self.happens(LISTENED);
        let call = move || assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "called twice");
        (listens && guard.on_lost(Box::new(call))).then_some(heard)
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
        let fenced = self.arguments.work.fenced;
        let has_tokens = matches!(kind, Kind::Fenced | Kind::Queued | Kind::Election | Kind::Once);
        // Shared holds lose updates to each other, and a fenced store wants tokens.
        let has_account = has_tokens || !(fenced || request.shared);
        let (account, token) = (&request.lock, if fenced { token } else { 0 });
        let read = if has_account { self.store.read(account, token) } else { None };
        let valid = self.observe_until(attempt, is_held, end);
        if let Some(value) = read {
            // A program that is paused after its last check writes too, even if its lease is over.
            // The store has to refuse that write.
            self.store.write(account, token, value + 1);
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
                if let Some(seen) = seen {
                    self.record(attempt, seen, Event::Valid);
                }
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
            thread::sleep(self.arguments.work.checked);
        }
    }

    fn end<H: Held + ?Sized>(&mut self, hold: &Holding<'_>, guard: Box<H>, valid: bool) -> End {
        self.record(hold.attempt, now(), Event::Ends);
        if self.rng.bool() {
            for client in hold.own {
                client.close();
            }
        }
        // A program that does not check its hold commits a run that is lost too.
        let commits = hold.kind == Kind::Once && self.happens(once::COMMITTED);
        let way = if valid && !commits { self.rng.u8(0..4) } else { 0 };
        let how = match way {
            _ if commits => Some(guard.commit(hold.request.value)),
            0 | 1 => {
                drop(guard);
                None
            }
            2 => Some(guard.unlock_by_lock()),
            _ => Some(guard.unlock()),
        };
        let how = match how {
            None => End::Dropped,
            Some(Ok(())) if commits => End::Committed,
            Some(Ok(())) => End::Unlocked,
            Some(Err(error)) if error.is_lost() => End::Lost,
            Some(Err(_)) => End::Unknown,
        };
        self.record(hold.attempt, now(), Event::Ended(how));
        how
    }

    fn record(&self, attempt: u64, at: Nanos, event: Event) {
        for attempt in self.joined.iter().chain([&attempt]) {
            (self.sink)(&Record { attempt: *attempt, at, event: event.clone() });
        }
    }
}

/// Returns the value of a candidate, or of a result, which belongs to one call of all processes.
fn value(kind: Kind, attempt: u64) -> u64 {
    let has_value = matches!(kind, Kind::Election | Kind::Once);
    if has_value { u64::from(process_id()) << 32 | attempt } else { 0 }
}

/// A hold as its thread knows it.
struct Holding<'a> {
    attempt: u64,
    kind: Kind,
    request: &'a Request,
    token: u64,
    /// The clients of this hold alone.
    own: &'a [Client],
}

/// Returns the kind and the text of an error as one word.
fn error_word(error: &Error) -> String {
    format!("{:?}: {error}", error.kind()).replace(char::is_whitespace, "_")
}
