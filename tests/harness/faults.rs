//! What the tests of faults share: clients on the faulty and on the straight way
//! to a server, and what can be said of a lock from the outside.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test binary includes all of this and uses a part of it"
)]

pub use super::exists;
use super::wait::BOUND;
use super::{Proxy, Server, eventually};
use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{Builder, Client, Events, Guard, Lost, Released, RenewalFailed, Renewed};
use std::collections::HashMap;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A lease, or a poll interval, that no test lives to see the end of: what happens in
/// time does not happen because of it.
pub const NEVER: Duration = Duration::from_secs(120);

/// A response time-out for tests that wait for it to pass.
pub const BRIEF: Duration = Duration::from_millis(600);

/// How much a test that can do more or less does: `LEASEHOLD_STRESS`, by default 1.
pub fn stress() -> usize {
    let stress = std::env::var("LEASEHOLD_STRESS");
    stress.map_or(1, |stress| stress.parse().expect("LEASEHOLD_STRESS is a number"))
}

/// A watchdog time-out of which some pass in a test, and of which no stall of a slow
/// machine takes two thirds.
pub const BRISK: Duration = Duration::from_millis(1500);

/// A client with that watchdog time-out, and its events.
pub fn watched(server: &Server, watchdog: Duration) -> (Client, Heard) {
    let builder = Client::builder().single(server.url()).watchdog_timeout(watchdog);
    let (builder, heard) = Heard::from(builder);
    (build(builder), heard)
}

/// The settings of a client whose answers come if ever they do: one connection, no
/// end to a lease or to a wait for a message but those that the test brings about.
pub fn patient(url: impl Into<String>) -> Builder {
    Client::builder()
        .single(url)
        .pool_size(1)
        .watchdog_timeout(NEVER)
        .poll_interval(NEVER)
        .response_timeout(BOUND)
        .connect_timeout(BOUND)
        .pool_timeout(BOUND)
}

/// The same, for one that does not wait long for an answer.
pub fn hasty(url: impl Into<String>) -> Builder {
    patient(url).response_timeout(BRIEF)
}

pub fn build(builder: Builder) -> Client {
    builder.build().expect("the server takes the client")
}

/// A client on the straight way, for whom everything works.
pub fn other(server: &Server) -> Client {
    build(patient(server.unix_url()))
}

/// By what a request for each script is known. Loads the scripts: no test here is
/// about a server that does not know them, but the one that makes it forget.
#[derive(Clone, Debug)]
pub struct Digests {
    pub acquire: String,
    pub release: String,
    pub renew: String,
}

impl Digests {
    pub fn of(server: &Server) -> Digests {
        let load = |script| server.ask(&["SCRIPT", "LOAD", script]);
        Digests {
            acquire: load(include_str!("../../lua/plain_acquire.lua")),
            release: load(include_str!("../../lua/plain_release.lua")),
            renew: load(include_str!("../../lua/plain_renew.lua")),
        }
    }
}

/// The channel on which the release of a lock is told.
pub fn channel_of(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The start of the command that subscribes to one channel and no other.
pub fn subscribe(channel: &str) -> Vec<u8> {
    format!("*2\r\n$9\r\nSUBSCRIBE\r\n${}\r\n{channel}", channel.len()).into_bytes()
}

/// The owner fields of a lock and their counts.
pub fn owners(server: &Server, name: &str) -> HashMap<String, u32> {
    server.ask(&["HGETALL", name])
}

/// What the server says is left of a lock.
pub fn left(server: &Server, name: &str) -> Duration {
    let millis: i64 = server.ask(&["PTTL", name]);
    Duration::from_millis(u64::try_from(millis).expect("the lock is held, and has an end"))
}

/// Holds what `guard` says against what the server says: one owner, which is this
/// hold, once, and a lease that the server ends no sooner than the guard.
#[track_caller]
pub fn assert_held(server: &Server, name: &str, guard: &Guard, lease: Duration) {
    let owners = owners(server, name);
    let [(owner, 1)] = owners.iter().collect::<Vec<_>>()[..] else {
        panic!("{name} is not held by one owner, once: {owners:?}");
    };
    let said = format!("{guard:?}");
    assert!(said.contains(&format!("owner: {owner},")), "{owner} is not {said}");
    let before = left(server, name);
    assert!(before <= lease, "{before:?} are left of {lease:?}");
    assert!(before > lease / 2, "only {before:?} are left of {lease:?}");
    assert!(guard.remaining() <= before, "the guard outlives its lease");
    assert!(guard.is_held() && guard.check().is_ok(), "{guard:?}");
}

/// Holds a guard against the server while renewals may come between two looks.
#[track_caller]
pub fn assert_no_later_than_the_server(server: &Server, name: &str, guard: &Guard) {
    let here = Instant::now() + guard.remaining();
    let there = left(server, name) + Duration::from_millis(1);
    assert!(here <= Instant::now() + there, "the guard outlives its lease: {guard:?}");
}

/// Checks that the lock is free to others and then held against this client.
#[track_caller]
pub fn assert_others_can_take(other: &Client, name: &str) {
    let guard = other.lock(name).try_lock().expect("its way is straight");
    let guard = guard.unwrap_or_else(|| panic!("{name} is not free"));
    guard.unlock().expect("nobody takes it away");
}

#[track_caller]
pub fn assert_others_cannot_take(other: &Client, name: &str) {
    let guard = other.lock(name).try_lock().expect("its way is straight");
    assert!(guard.is_none(), "two hold {name}");
}

/// Waits until the server has no keys, no channels and no clients: to be called
/// when everything that could have is gone.
#[track_caller]
pub fn nothing_is_left(server: &Server) {
    eventually("all keys go", || server.keys().is_empty());
    eventually("all connections close", || server.clients().is_empty());
    assert_eq!(server.channels(), Vec::<String>::new());
}

/// Waits until the proxy holds requests or replies back.
#[track_caller]
pub fn something_is_held(proxy: &Proxy) {
    proxy.wait_until("something to hold", |s| s.requests.held + s.replies.held > 0);
}

/// What a client tells of its locks, as the tests look at it.
#[derive(Clone, Debug)]
pub enum Told {
    Released(Released),
    Renewed(Renewed),
    RenewalFailed(RenewalFailed),
    Lost(Lost),
}

impl Told {
    fn released(self) -> Option<Released> {
        match self {
            Told::Released(released) => Some(released),
            _ => None,
        }
    }
}

struct Teller(Sender<Told>);

impl Events for Teller {
    fn released(&self, event: &Released) {
        self.tell(Told::Released(event.clone()));
    }
    fn renewed(&self, event: &Renewed) {
        self.tell(Told::Renewed(event.clone()));
    }
    fn renewal_failed(&self, event: &RenewalFailed) {
        self.tell(Told::RenewalFailed(event.clone()));
    }
    fn lost(&self, event: &Lost) {
        self.tell(Told::Lost(event.clone()));
    }
}

impl Teller {
    fn tell(&self, told: Told) {
        // The test may have ended.
        let _ = self.0.send(told);
    }
}

/// The events of one client.
#[derive(Debug)]
pub struct Heard(Receiver<Told>);

impl Heard {
    /// Adds the listening to a client's settings.
    pub fn from(builder: Builder) -> (Builder, Heard) {
        let (sender, receiver) = unbounded();
        (builder.events(Teller(sender)), Heard(receiver))
    }

    /// Blocks until something is told that `pick` wants.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut pick: impl FnMut(Told) -> Option<T>) -> T {
        let end = Instant::now() + BOUND;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let told = self.0.recv_timeout(left);
            if let Some(picked) = told.map_or_else(|_| panic!("never told: {what}"), &mut pick) {
                return picked;
            }
        }
    }

    /// The next release that was concluded and told of. Does not block.
    pub fn released_already(&self) -> Option<Released> {
        self.0.try_iter().find_map(Told::released)
    }

    /// Blocks until so many batches of leases are renewed; their sizes.
    #[track_caller]
    pub fn renewed(&self, batches: usize) -> Vec<usize> {
        let size = |told| match told {
            Told::Renewed(renewed) => Some(renewed.holds.len()),
            _ => None,
        };
        (0..batches).map(|_| self.until("a renewal", size)).collect()
    }

    /// Blocks until a renewal fails.
    #[track_caller]
    pub fn renewal_failed(&self) -> RenewalFailed {
        self.until("a renewal that fails", |told| match told {
            Told::RenewalFailed(failed) => Some(failed),
            _ => None,
        })
    }

    /// Blocks until that lock is released; what was told before.
    #[track_caller]
    pub fn until_released(&self, name: &str) -> Vec<Told> {
        let mut before = Vec::new();
        self.until("the release", |told| match told {
            Told::Released(released) if &*released.name == name => Some(()),
            other => {
                before.push(other);
                None
            }
        });
        before
    }

    /// How many renewals have been told of since the last look. Does not block.
    pub fn renewals_already(&self) -> usize {
        self.0.try_iter().filter(|told| matches!(told, Told::Renewed(_))).count()
    }

    /// Blocks until a lock is lost.
    #[track_caller]
    pub fn lost(&self) -> Lost {
        self.until("a loss", |told| match told {
            Told::Lost(lost) => Some(lost),
            _ => None,
        })
    }

    /// Blocks until a release is concluded.
    #[track_caller]
    pub fn released(&self) -> Released {
        self.until("a release", Told::released)
    }
}

/// A caller on a thread of its own that waits for a lock and says when it has it;
/// it keeps it until it is told to release it.
#[derive(Debug)]
pub struct Waiter {
    got: Receiver<()>,
    release: Sender<()>,
    thread: JoinHandle<()>,
}

impl Waiter {
    /// Returns when the caller has been refused, and is subscribed.
    pub fn start(server: &Server, client: &Client, name: &str) -> Waiter {
        let waiter = Waiter::unheard(client, name);
        waiter.is_subscribed(server, name);
        waiter
    }

    /// Returns at once.
    pub fn unheard(client: &Client, name: &str) -> Waiter {
        let (lock, (tell, got), (release, told)) = (client.lock(name), unbounded(), unbounded());
        let thread = thread::spawn(move || {
            let guard = lock.lock().expect("it was refused before, and waits through everything");
            tell.send(()).expect("the test waits");
            told.recv().expect("the test tells");
            guard.unlock().expect("it is held");
        });
        Waiter { got, release, thread }
    }

    #[track_caller]
    pub fn is_subscribed(&self, server: &Server, name: &str) {
        let subscribed = || server.numsub(&channel_of(name)) == 1;
        eventually("the waiter is subscribed", subscribed);
    }

    #[track_caller]
    pub fn still_waits(&self) {
        assert!(self.got.is_empty() && !self.thread.is_finished(), "two hold the lock");
    }

    #[track_caller]
    pub fn gets_it(&self) {
        self.got.recv_timeout(BOUND).expect("the waiter gets the lock");
    }

    pub fn releases(self) {
        self.release.send(()).expect("it holds the lock");
        self.thread.join().expect("it is held to the end");
    }
}
