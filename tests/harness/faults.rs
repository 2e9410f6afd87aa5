//! Shared parts of the tests of faults: clients, event logs, waiters, and assertions about locks.

pub use super::exists;
use super::wait::{BOUND, join, sleeping};
use super::{Direction, Flow, Proxy, Server, bare, eventually};
use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::kind::LockKind;
use leasehold::{Builder, Client, Events, Guard, Lost, Overdue, Released, RenewalFailed, Renewed};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A lease or poll interval longer than any test, so that its end causes nothing.
pub const NEVER: Duration = Duration::from_secs(120);

/// A response time-out for tests that wait for its end.
pub const BRIEF: Duration = Duration::from_millis(600);

/// Returns the factor for the work of stress tests: `LEASEHOLD_STRESS`, by default 1.
pub fn stress() -> usize {
    let stress = std::env::var("LEASEHOLD_STRESS");
    stress.map_or(1, |stress| stress.parse().expect("LEASEHOLD_STRESS is a number"))
}

/// A watchdog time-out that passes several times in a test.
///
/// No stall of a slow machine takes two thirds of it.
pub const BRISK: Duration = Duration::from_millis(1500);

/// Returns a client with this watchdog time-out, and its events.
pub fn watched(server: &Server, watchdog: Duration) -> (Client, EventLog) {
    let builder = Client::builder().single(server.url()).watchdog_timeout(watchdog);
    let (builder, events) = EventLog::from(builder);
    (build(builder), events)
}

/// Returns the settings of a client that waits long for every reply.
///
/// The client has one connection. Leases and waits for messages end only by actions of the test.
/// The client sends no commands on its own account, so it does not announce itself.
pub fn patient(url: impl Into<String>) -> Builder {
    Client::builder()
        .single(url)
        .pool_size(1)
        .announce(false)
        .watchdog_timeout(NEVER)
        .poll_interval(NEVER)
        .response_timeout(BOUND)
        .connect_timeout(BOUND)
        .pool_timeout(BOUND)
}

/// Returns the settings of `patient` with a short response time-out.
pub fn hasty(url: impl Into<String>) -> Builder {
    patient(url).response_timeout(BRIEF)
}

pub fn build(builder: Builder) -> Client {
    builder.build().expect("the server accepts the client")
}

/// Returns a client on a direct connection, without faults.
pub fn other(server: &Server) -> Client {
    build(patient(server.unix_url()))
}

/// The digests of the scripts, by which a proxy recognizes requests.
#[derive(Clone, Debug)]
pub struct Digests {
    pub acquire: String,
    pub release: String,
    pub renew: String,
}

impl Digests {
    /// Loads the scripts into the server, and returns their digests.
    pub fn of(server: &Server) -> Digests {
        let load = |name| server.ask(&["SCRIPT", "LOAD", &bare::script(name).source()]);
        Digests {
            acquire: load("plain_acquire"),
            release: load("plain_release"),
            renew: load("plain_renew"),
        }
    }
}

/// Returns the channel of a lock.
pub fn channel_of(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Returns the start of the command that subscribes to this channel only.
pub fn subscribe(channel: &str) -> Vec<u8> {
    format!("*2\r\n$9\r\nSUBSCRIBE\r\n${}\r\n{channel}", channel.len()).into_bytes()
}

/// Returns the owner fields of a lock and their counts.
pub fn owners(server: &Server, name: &str) -> HashMap<String, u32> {
    server.ask(&["HGETALL", name])
}

/// Returns the remaining lease of a lock on the server.
pub fn left(server: &Server, name: &str) -> Duration {
    let millis: i64 = server.ask(&["PTTL", name]);
    Duration::from_millis(u64::try_from(millis).expect("the lock is held and expires"))
}

/// Asserts that the guard and the server agree about a held lock.
///
/// The only owner field is that of the guard, with the count 1, and the guard's deadline is not
/// later than the server's.
#[track_caller]
pub fn assert_held<K: LockKind>(server: &Server, name: &str, guard: &Guard<K>, lease: Duration) {
    let owners = owners(server, name);
    let [(owner, 1)] = owners.iter().collect::<Vec<_>>()[..] else {
        panic!("{name} does not have one owner with the count 1: {owners:?}");
    };
    let shown = format!("{guard:?}");
    assert!(shown.contains(&format!("owner: {owner},")), "{owner} is not the owner of {shown}");
    let before = left(server, name);
    assert!(before <= lease, "{before:?} are left of {lease:?}");
    assert!(before > lease / 2, "only {before:?} are left of {lease:?}");
    assert!(guard.remaining() <= before, "the guard outlives its lease");
    assert!(guard.is_held() && guard.check().is_ok(), "{guard:?}");
}

/// Asserts that a guard's deadline is not later than the server's, even during renewals.
#[track_caller]
pub fn assert_no_later_than_the_server(server: &Server, name: &str, guard: &Guard) {
    let here = Instant::now() + guard.remaining();
    let there = left(server, name) + Duration::from_millis(1);
    assert!(here <= Instant::now() + there, "the guard outlives its lease: {guard:?}");
}

/// Asserts that another client can take the lock and release it.
#[track_caller]
pub fn assert_others_can_take(other: &Client, name: &str) {
    let guard = other.lock(name).try_lock().expect("its connection has no faults");
    let guard = guard.unwrap_or_else(|| panic!("{name} is not free"));
    guard.unlock().expect("it is held");
}

/// Asserts that another client cannot take the lock.
#[track_caller]
pub fn assert_others_cannot_take(other: &Client, name: &str) {
    let guard = other.lock(name).try_lock().expect("its connection has no faults");
    assert!(guard.is_none(), "two hold {name}");
}

/// Blocks until the server has no keys, channels and clients. Records of clients are keys too.
///
/// The test has dropped all its clients before.
#[track_caller]
pub fn nothing_is_left(server: &Server) {
    // The token counter of a lock is permanent.
    let is_counter = |key: &String| key.starts_with("redisson_lock_token:");
    eventually("all keys are deleted", || server.keys().iter().all(is_counter));
    assert_eq!(server.client_records(), Vec::<String>::new());
    eventually("all connections close", || server.clients().is_empty());
    assert_eq!(server.channels(), Vec::<String>::new());
}

/// Makes two calls whose requests are written together, in this order. Returns their outcomes.
///
/// The requests queue behind one that the proxy holds back, on the only connection of the client.
pub fn written_together<A: Send + 'static, B: Send + 'static>(
    proxy: &Proxy,
    client: &Client,
    first: impl FnOnce() -> A + Send + 'static,
    second: impl FnOnce() -> B + Send + 'static,
) -> (A, B) {
    proxy.set(Direction::Requests, Flow::Hold);
    let client = client.clone();
    let before = sleeping("before", move || client.ping());
    something_is_held(proxy);
    let (first, second) = (sleeping("first", first), sleeping("second", second));
    proxy.release_held();
    join(before).expect("the server answers");
    (join(first), join(second))
}

/// Blocks until the proxy holds requests or replies back.
#[track_caller]
pub fn something_is_held(proxy: &Proxy) {
    proxy.wait_until("the proxy holds bytes back", |s| s.requests.held + s.replies.held > 0);
}

/// An event of a client.
#[derive(Clone, Debug)]
pub enum Event {
    Released(Released),
    Renewed(Renewed),
    RenewalFailed(RenewalFailed),
    Overdue(Overdue),
    Lost(Lost),
}

impl Event {
    fn released(self) -> Option<Released> {
        match self {
            Event::Released(released) => Some(released),
            _ => None,
        }
    }
}

struct Recorder(Sender<Event>);

impl Events for Recorder {
    fn released(&self, event: &Released) {
        self.record(Event::Released(event.clone()));
    }
    fn renewed(&self, event: &Renewed) {
        self.record(Event::Renewed(event.clone()));
    }
    fn renewal_failed(&self, event: &RenewalFailed) {
        self.record(Event::RenewalFailed(event.clone()));
    }
    fn overdue(&self, event: &Overdue) {
        self.record(Event::Overdue(event.clone()));
    }
    fn lost(&self, event: &Lost) {
        self.record(Event::Lost(event.clone()));
    }
}

impl Recorder {
    fn record(&self, event: Event) {
        // The test may have ended.
        let _ = self.0.send(event);
    }
}

/// The recorded events of one client.
#[derive(Debug)]
pub struct EventLog(Receiver<Event>);

impl EventLog {
    /// Adds the recorder of events to a client's settings.
    pub fn from(builder: Builder) -> (Builder, EventLog) {
        let (sender, receiver) = unbounded();
        (builder.events(Recorder(sender)), EventLog(receiver))
    }

    /// Blocks until `pick` returns a value for an event, and returns the value.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut pick: impl FnMut(Event) -> Option<T>) -> T {
        let end = Instant::now() + BOUND;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let event = self.0.recv_timeout(left).unwrap_or_else(|_| panic!("no event: {what}"));
            if let Some(picked) = pick(event) {
                return picked;
            }
        }
    }

    /// Returns the next recorded release, or `None`. Does not block.
    pub fn released_already(&self) -> Option<Released> {
        self.0.try_iter().find_map(Event::released)
    }

    /// Blocks until `batches` batches of leases are renewed, and returns their sizes.
    #[track_caller]
    pub fn renewed(&self, batches: usize) -> Vec<usize> {
        let size = |event| match event {
            Event::Renewed(renewed) => Some(renewed.holds.len()),
            _ => None,
        };
        (0..batches).map(|_| self.until("a renewal", size)).collect()
    }

    /// Blocks until a renewal fails, and returns that event.
    #[track_caller]
    pub fn renewal_failed(&self) -> RenewalFailed {
        self.until("a renewal that fails", |event| match event {
            Event::RenewalFailed(failed) => Some(failed),
            _ => None,
        })
    }

    /// Blocks until the lock is released, and returns the events before that.
    #[track_caller]
    pub fn until_released(&self, name: &str) -> Vec<Event> {
        let mut before = Vec::new();
        self.until("the release", |event| match event {
            Event::Released(released) if &*released.name == name => Some(()),
            other => {
                before.push(other);
                None
            }
        });
        before
    }

    /// Returns the number of renewals since the last call, and drops the events. Does not block.
    pub fn renewals_already(&self) -> usize {
        self.0.try_iter().filter(|event| matches!(event, Event::Renewed(_))).count()
    }

    /// Blocks until a hold is overdue, and returns that event.
    #[track_caller]
    pub fn overdue(&self) -> Overdue {
        self.until("an overdue hold", |event| match event {
            Event::Overdue(overdue) => Some(overdue),
            _ => None,
        })
    }

    /// Blocks until a lock is lost, and returns that event and the events before it.
    #[track_caller]
    pub fn until_lost(&self) -> (Lost, Vec<Event>) {
        let mut before = Vec::new();
        let lost = self.until("a loss", |event| match event {
            Event::Lost(lost) => Some(lost),
            other => {
                before.push(other);
                None
            }
        });
        (lost, before)
    }

    /// Blocks until a lock is lost, and returns that event.
    #[track_caller]
    pub fn lost(&self) -> Lost {
        self.until_lost().0
    }

    /// Blocks until a lock is released, and returns that event.
    #[track_caller]
    pub fn released(&self) -> Released {
        self.until("a release", Event::released)
    }
}

/// Counts the renewed leases of the clients whose events it receives. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Renewals(Arc<AtomicUsize>);

impl Events for Renewals {
    fn renewed(&self, event: &Renewed) {
        self.0.fetch_add(event.holds.len(), Ordering::SeqCst);
    }
}

impl Renewals {
    /// Blocks until this many more leases are renewed.
    #[track_caller]
    pub fn await_more(&self, more: usize) {
        let target = self.0.load(Ordering::SeqCst) + more;
        eventually("leases are renewed", || self.0.load(Ordering::SeqCst) >= target);
    }
}

/// A thread that waits for a lock, and holds the lock until `releases`.
#[derive(Debug)]
pub struct Waiter {
    got: Receiver<()>,
    release: Sender<()>,
    thread: JoinHandle<()>,
}

impl Waiter {
    /// Starts a waiter; blocks until the waiter is refused and subscribed.
    pub fn start(server: &Server, client: &Client, name: &str) -> Waiter {
        let before = client.stats().contended();
        let waiter = Waiter::spawn(client, name);
        waiter.is_subscribed(server, name);
        // The first request of the waiter itself may have subscribed.
        eventually("the waiter is refused", || client.stats().contended() > before);
        waiter
    }

    /// Starts a waiter without blocking.
    pub fn spawn(client: &Client, name: &str) -> Waiter {
        let lock = client.lock(name);
        let (granted, got) = unbounded();
        let (release, released) = unbounded();
        let thread = thread::spawn(move || {
            let guard = lock.lock().expect("the waiter waits for as long as it takes");
            granted.send(()).expect("the test runs");
            released.recv().expect("the test calls releases");
            guard.unlock().expect("the lock is held");
        });
        Waiter { got, release, thread }
    }

    /// Blocks until the waiter is subscribed to the lock's channel.
    #[track_caller]
    pub fn is_subscribed(&self, server: &Server, name: &str) {
        let subscribed = || server.numsub(&channel_of(name)) == 1;
        eventually("the waiter is subscribed", subscribed);
    }

    /// Asserts that the waiter does not have the lock.
    #[track_caller]
    pub fn still_waits(&self) {
        assert!(self.got.is_empty() && !self.thread.is_finished(), "two hold the lock");
    }

    /// Blocks until the waiter has the lock.
    #[track_caller]
    pub fn gets_it(&self) {
        self.got.recv_timeout(BOUND).expect("the waiter gets the lock");
    }

    /// Makes the waiter release the lock, and joins its thread.
    pub fn releases(self) {
        self.release.send(()).expect("the waiter holds the lock");
        self.thread.join().expect("the lock is held until its release");
    }
}
