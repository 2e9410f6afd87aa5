//! A process that locks, uses the store and says what happened.

use super::ledger::Ledger;
use super::plan::Work;
use super::record::{End, Record, What, Wish};
use super::{Nanos, millis, now};
use crate::harness::process::Role;
use crate::harness::subject::{self, Subject};
use crate::harness::wait::{descriptors, eventually_some, holds_within, threads};
use leasehold::kind::Fenced;
use leasehold::{Builder, Client, Error, Guard, RedLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The role in which a worker is started.
pub const WORKER: &str = "worker";

/// What the parent says to have it ask for no more locks, and what it says when it does not.
pub const STOP: &str = "stop";
pub const IDLE: &str = "idle";

/// What it says when nothing of the library is left in it, and before what is left if not.
pub const CLEAN: &str = "left nothing";
pub const DIRTY: &str = "left";

/// How often a holder looks at its hold.
const LOOK: Duration = Duration::from_millis(2);

/// How often it writes down that it is valid: what it had seen is not lost with it.
const NOTE: Nanos = millis(100);

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Fenced,
    Fair,
    Rw,
    Spin,
    Red,
}

impl Kind {
    const ALL: [(Kind, &'static str); 6] = [
        (Kind::Plain, "plain"),
        (Kind::Fenced, "fenced"),
        (Kind::Fair, "fair"),
        (Kind::Rw, "rw"),
        (Kind::Spin, "spin"),
        (Kind::Red, "red"),
    ];

    /// The name of one of its locks.
    pub fn lock(self, number: u64) -> String {
        format!("{self}-{number}")
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (_, name) = Kind::ALL.iter().find(|(kind, _)| kind == self).expect("one of all");
        f.write_str(name)
    }
}

/// What a worker is told when it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Orders {
    /// What its builder is given: a way and the addresses (`site.rs`).
    pub way: String,
    pub urls: Vec<String>,
    ledger: String,
    seed: u64,
    /// What one worker is to do: both leases are its own.
    work: Work,
}

impl Orders {
    /// The orders for the `number`-th worker of a run.
    pub fn new(work: &Work, number: usize, seed: u64, ledger: String) -> Orders {
        let (way, urls) = (String::new(), Vec::new());
        let seed = seed.wrapping_mul(31).wrapping_add(number as u64);
        let leases = [work.leases[number % 2]; 2];
        let work = Work { workers: 1, leases, seeded: None, ..work.clone() };
        Orders { way, urls, ledger, seed, work }
    }

    /// How long its leases are that are renewed.
    pub fn lease(&self) -> Duration {
        self.work.leases[0]
    }

    pub fn words(&self) -> Vec<String> {
        let work = &self.work;
        let kinds: Vec<_> = work.kinds.iter().map(Kind::to_string).collect();
        let millis = |span: Duration| span.as_millis().to_string();
        vec![
            self.way.clone(),
            self.urls.join(","),
            self.ledger.clone(),
            self.seed.to_string(),
            work.threads.to_string(),
            kinds.join(","),
            work.locks.to_string(),
            millis(work.used_for),
            millis(work.longest[0]),
            millis(work.longest[1]),
            work.kept_to_the_end.to_string(),
            work.fixed.start.to_string(),
            work.fixed.end.to_string(),
            millis(self.lease()),
            millis(work.poll_interval),
            millis(work.response_timeout),
            work.fenced.to_string(),
        ]
    }

    fn heard(words: &[String]) -> Orders {
        let number = |place: usize| words[place].parse::<u64>().expect("a number");
        let span = |place: usize| Duration::from_millis(number(place));
        let list = |place: usize| words[place].split(',').map(str::to_owned);
        let kind = |name: String| Kind::ALL.iter().find(|(_, other)| *other == name);
        let work = Work {
            workers: 1,
            threads: usize::try_from(number(4)).expect("a small number"),
            kinds: list(5).map(|name| kind(name).expect("a kind").0).collect(),
            locks: number(6),
            used_for: span(7),
            longest: [span(8), span(9)],
            kept_to_the_end: u8::try_from(number(10)).expect("of a hundred"),
            fixed: number(11)..number(12),
            leases: [span(13); 2],
            poll_interval: span(14),
            response_timeout: span(15),
            fenced: words[16] == "true",
            seeded: None,
        };
        let (way, urls) = (words[0].clone(), list(1).collect());
        Orders { way, urls, ledger: words[2].clone(), seed: number(3), work }
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
    }

    fn clients(&self) -> Vec<Client> {
        let urls = &self.urls;
        match self.way.as_str() {
            "single" => urls.iter().map(|url| build(|| self.settings().single(url))).collect(),
            "cluster" => vec![build(|| self.settings().cluster(urls))],
            master => vec![build(|| self.settings().sentinel(master, urls))],
        }
    }
}

/// A client that comes when a fault is on has to wait for its end.
fn build(builder: impl Fn() -> Builder) -> Client {
    eventually_some("the servers are there", || builder().build().ok())
}

/// Plays a worker until it is told to end, or killed.
pub fn play(role: &Role) {
    let orders = Orders::heard(role.args());
    let before = Open::now();
    let clients = orders.clients();
    let stop = AtomicBool::new(false);
    let attempts = AtomicU64::new(0);
    role.say("ready");
    thread::scope(|scope| {
        for thread in 0..orders.work.threads {
            let (orders, clients, stop, attempts) = (&orders, &clients, &stop, &attempts);
            scope.spawn(move || Thread::new(role, orders, clients, attempts, thread).work(stop));
        }
        while role.hear().is_some_and(|line| line != STOP) {}
        stop.store(true, Ordering::SeqCst);
    });
    role.say(IDLE);
    // Until the parent has looked at the servers.
    while role.hear().is_some() {}
    drop(clients);
    let mut left = before.grown();
    holds_within(Duration::from_secs(20), || {
        left = before.grown();
        left.is_empty()
    });
    role.say(&if left.is_empty() { CLEAN.to_owned() } else { format!("{DIRTY} {left:?}") });
}

/// Takes every lock once, when nobody else wants any, and says of which it does not get.
pub fn sweep(orders: &Orders) -> Vec<String> {
    let clients = orders.clients();
    let all =
        orders.work.kinds.iter().flat_map(|kind| (0..orders.work.locks).map(|lock| (*kind, lock)));
    let refused = all.filter_map(|(kind, number)| {
        let lock = kind.lock(number);
        let wish = Wish { lock, shares: false, lease: None, patience: 20_000 };
        let taken = take_any(&clients, kind, &wish);
        (!matches!(taken, Ok(Some(_)))).then(|| format!("{} is not to be had", wish.lock))
    });
    refused.collect()
}

/// What this process has open.
struct Open {
    threads: BTreeMap<String, usize>,
    descriptors: usize,
}

impl Open {
    fn now() -> Open {
        Open { threads: threads(), descriptors: descriptors().len() }
    }

    /// What there is more of than then.
    fn grown(&self) -> Vec<String> {
        let now = Open::now();
        let had = |name: &String| self.threads.get(name).copied().unwrap_or(0);
        let threads = now.threads.iter().filter(|(name, count)| had(name) < **count);
        let mut grown: Vec<_> = threads.map(|(name, _)| format!("thread {name}")).collect();
        if self.descriptors < now.descriptors {
            grown.push(format!("{} descriptors", now.descriptors - self.descriptors));
        }
        grown
    }
}

/// A hold of whatever kind.
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

/// A hold, and its fencing token, or 0.
type Taken = (Box<dyn Held>, u64);

struct Thread<'a> {
    role: &'a Role,
    orders: &'a Orders,
    clients: &'a [Client],
    attempts: &'a AtomicU64,
    dice: fastrand::Rng,
    ledger: Ledger,
}

impl<'a> Thread<'a> {
    fn new(
        role: &'a Role,
        orders: &'a Orders,
        clients: &'a [Client],
        attempts: &'a AtomicU64,
        thread: usize,
    ) -> Thread<'a> {
        let seed = orders.seed.wrapping_mul(31).wrapping_add(thread as u64);
        let (dice, ledger) = (fastrand::Rng::with_seed(seed), Ledger::open(&orders.ledger));
        Thread { role, orders, clients, attempts, dice, ledger }
    }

    fn work(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            self.attempt();
            thread::sleep(Duration::from_micros(self.dice.u64(0..5000)));
        }
    }

    /// Asks for a lock once, and holds it for a while if it gets it.
    fn attempt(&mut self) {
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst);
        let kind = self.orders.work.kinds[self.dice.usize(..self.orders.work.kinds.len())];
        let to_the_end = self.dice.u8(0..100) < self.orders.work.kept_to_the_end;
        let wish = self.wish(kind, to_the_end);
        self.note(attempt, now(), What::Asks(wish.clone()));
        match take_any(self.clients, kind, &wish) {
            Ok(Some(taken)) => self.hold(attempt, kind, &wish, taken, to_the_end),
            Ok(None) => self.note(attempt, now(), What::Refused),
            Err(error) => self.note(attempt, now(), What::Failed(error_word(&error))),
        }
    }

    fn wish(&mut self, kind: Kind, to_the_end: bool) -> Wish {
        let fixed = to_the_end || self.dice.u8(0..100) < 15;
        Wish {
            lock: kind.lock(self.number(kind)),
            shares: kind == Kind::Rw && self.dice.bool(),
            lease: fixed.then(|| self.dice.u64(self.orders.work.fixed.clone())),
            patience: if self.dice.u8(0..100) < 15 { 0 } else { self.dice.u64(500..6000) },
        }
    }

    /// Which of the locks.
    fn number(&mut self, kind: Kind) -> u64 {
        let number = self.dice.u64(0..self.orders.work.locks);
        match (kind, number) {
            // The dead that stand in a fair queue are buried by those who come later.
            (Kind::Fair, _) | (_, 0) => number,
            _ => {
                number
                    + self.orders.work.locks
                        * (now() / self.orders.work.used_for.as_nanos() as Nanos)
            }
        }
    }

    fn hold(&mut self, attempt: u64, kind: Kind, wish: &Wish, taken: Taken, to_the_end: bool) {
        let (held, token) = taken;
        self.note(attempt, now(), What::Got { token });
        let account = self.orders.account(kind, wish);
        let token = if self.orders.work.fenced { token } else { 0 };
        let read = account.as_ref().and_then(|account| self.ledger.read(account, token));
        let most = self.orders.work.longest[usize::from(self.dice.u8(0..20) == 0)];
        let span = Duration::from_micros(self.dice.u64(0..=most.as_micros() as u64));
        let end = if to_the_end { Nanos::MAX } else { now() + span.as_nanos() as u64 };
        let valid = self.look_until(attempt, &*held, end);
        if let (Some(account), Some(value)) = (account, read) {
            // Like a program that has looked, and is paused now: that the lease may be over
            // is the store's business.
            self.ledger.write(&account, token, value + 1);
        }
        self.end(attempt, held, valid);
    }

    /// Looks at the hold until that moment, or its loss. Whether it is valid.
    fn look_until(&self, attempt: u64, held: &dyn Held, end: Nanos) -> bool {
        let (mut seen, mut noted) = (None, 0);
        loop {
            let at = now();
            if !held.is_held() {
                // What it saw last is before what it sees now.
                seen.into_iter().for_each(|seen| self.note(attempt, seen, What::Valid));
                self.note(attempt, at, What::Lost);
                return false;
            }
            seen = Some(at);
            if noted + NOTE < at || end <= at {
                noted = at;
                self.note(attempt, at, What::Valid);
            }
            if end <= at {
                return true;
            }
            thread::sleep(LOOK);
        }
    }

    fn end(&mut self, attempt: u64, held: Box<dyn Held>, valid: bool) {
        self.note(attempt, now(), What::Ends);
        let how = if self.dice.bool() || !valid {
            drop(held);
            End::Dropped
        } else {
            held.unlock().map_or(End::Unknown, |()| End::Unlocked)
        };
        self.note(attempt, now(), What::Ended(how));
    }

    fn note(&self, attempt: u64, at: Nanos, what: What) {
        self.role.say(&Record { attempt, at, what }.line());
    }
}

impl Orders {
    /// What a lock of this kind protects; `None` for those that would lose updates beside
    /// others that share.
    fn account(&self, kind: Kind, wish: &Wish) -> Option<String> {
        let open = !self.work.fenced && !wish.shares;
        (kind == Kind::Fenced || open).then(|| wish.lock.clone())
    }
}

fn take_any(clients: &[Client], kind: Kind, wish: &Wish) -> leasehold::Result<Option<Taken>> {
    let (client, name) = (&clients[0], &*wish.lock);
    match kind {
        Kind::Plain => take(client.lock(name), wish, |_| 0),
        Kind::Fenced => take(client.fenced_lock(name), wish, Guard::<Fenced>::token),
        Kind::Fair => take(client.fair_lock(name), wish, |_| 0),
        Kind::Rw if wish.shares => take(client.rw_lock(name).read_lock(), wish, |_| 0),
        Kind::Rw => take(client.rw_lock(name).write_lock(), wish, |_| 0),
        Kind::Spin => take(client.spin_lock(name), wish, |_| 0),
        Kind::Red => take(RedLock::new(clients.to_vec(), name), wish, |_| 0),
    }
}

fn take<S: Subject>(
    lock: S,
    wish: &Wish,
    token: impl Fn(&S::Guard) -> u64,
) -> leasehold::Result<Option<Taken>>
where
    S::Guard: 'static,
{
    let lock = match wish.lease {
        Some(lease) => lock.with_lease(Duration::from_millis(lease)),
        None => lock,
    };
    let guard = match wish.patience {
        0 => lock.try_lock()?,
        patience => lock.try_lock_for(Duration::from_millis(patience))?,
    };
    Ok(guard.map(|guard| (token(&guard), guard)).map(|(t, guard)| (Box::new(guard) as _, t)))
}

fn error_word(error: &Error) -> String {
    format!("{:?}", error.kind()).split_whitespace().collect()
}

#[test]
fn orders_arrive_as_they_were_given() {
    let span = Duration::from_millis;
    let work = Work {
        workers: 1,
        threads: 2,
        kinds: vec![Kind::Fair, Kind::Red],
        locks: 3,
        used_for: span(4),
        longest: [span(5), span(6)],
        kept_to_the_end: 7,
        fixed: 8..9,
        leases: [span(10), span(11)],
        poll_interval: span(12),
        response_timeout: span(13),
        fenced: true,
        seeded: None,
    };
    let mut orders = Orders::new(&work, 1, 14, "a".to_owned());
    (orders.way, orders.urls) = ("main".to_owned(), vec!["b".to_owned(), "c".to_owned()]);
    assert_eq!(Orders::heard(&orders.words()), orders);
    assert_eq!(orders.lease(), span(11), "of the second of the two");
}
