//! Distributed locks, semaphores, latches and leader election for blocking Rust: OS threads, no
//! async runtime, a Redis server.
//!
//! The data format is that of [Redisson](https://redisson.org), so Rust and Java services exclude
//! each other.
//!
//! A [`Client`] connects to the servers, and all threads of a process share it. [`Client::lock`]
//! returns a [`Lock`], a cheap handle of the lock with a given name. All handles with one name are
//! the same lock: in all threads, in all processes, on all machines.
//!
//! ```no_run
//! let client = leasehold::Client::open("redis://127.0.0.1/")?;
//! let lock = client.lock("orders:42");
//! {
//!     let _guard = lock.lock()?;          // blocks until this thread holds the lock
//!     // ... work that must not run twice at once ...
//! }                                       // releases the lock, without waiting
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Terms
//!
//! - *Verb*: a method that takes a lock, releases it or queries it.
//! - *Hold*: one acquisition of a lock, from the grant of the server to the release or the loss.
//!   The *holder* is a thread, an owned guard or a [named job](Lock::with_holder).
//! - *Lease*: the time for which the server keeps a hold. The *watchdog*, a thread of the client,
//!   renews the lease, unless the lock has a *fixed lease*.
//! - *Deadline* of a lease: the end of the lease on this machine, never later than its end on the
//!   server.
//! - *Queue*: the threads of one process that wait for one lock. Only the first of them, the *head*
//!   of the queue, asks the server. (Callers of fair locks, queue locks, readers and named holders
//!   do not queue in their process: each asks the server.)
//! - *Hand-off*: a thread that releases a lock may pass its hold to the head of the queue, without
//!   a round trip.
//! - *Release message*: a message in Redis that tells waiting processes that a lock is free. The
//!   *listener*, a thread of the client, receives the messages. (The message of a [queue
//!   lock](QueueLock) tells one waiter that it holds the lock.)
//! - *Poll*: a request that asks whether an awaited lock is free, in case a message was lost.
//! - *Owner field*: the text `<client id>:<hold number>`, which identifies a hold in Redis. The
//!   number is the time of the request in microseconds since 1970, by the clock of the client. The
//!   last digit of this number tells the kind: 1 fair, 2 and 7 fenced, 3 queue, 4 spin, 6 once, any
//!   other.
//! - *Event listener*: a value of the program that implements [`Events`].
//!
//! # Waiting
//!
//! [`Lock::lock`] waits without a limit, [`Lock::try_lock`] does not wait, and
//! [`Lock::try_lock_for`] and [`Lock::try_lock_until`] wait for a limited time. A [`CancelToken`]
//! ends a wait from another thread. A `try_` verb that does not get the lock in its time returns
//! `Ok(None)` and not an error.
//!
//! ```no_run
//! # use std::time::Duration;
//! # let lock = leasehold::Client::open("redis://127.0.0.1/")?.lock("orders:42");
//! match lock.try_lock_for(Duration::from_secs(2))? {
//!     Some(guard) => guard.unlock()?,     // releases, and waits for the server to confirm
//!     None => println!("another caller holds the lock"),
//! }
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Leases
//!
//! The server keeps a lock for a limited time. The watchdog renews this lease until the guard is
//! dropped. After the death of a process its locks are free when their leases end, within
//! [`watchdog_timeout`](Builder::watchdog_timeout) (30 s by default), or the time that
//! [`Lock::with_renewed_lease`] sets for one handle. [`Lock::with_lease`] sets a fixed lease
//! instead.
//!
//! A lease can be lost: the server was unreachable for too long, the process was stopped, or an
//! operator deleted the key, which the next renewal notices (within a third of the lease).
//! [`Guard::check`] then returns an error. It makes no round trip: it looks
//! whether a renewal has noticed a loss, and compares the deadline of the lease with the clock. So
//! call it before each step that must not run twice:
//!
//! ```no_run
//! # fn write_result() {}
//! # let lock = leasehold::Client::open("redis://127.0.0.1/")?.lock("orders:42");
//! let guard = lock.lock()?;
//! // ... long work ...
//! guard.check()?;                         // an error if the lease is lost
//! write_result();
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Guarantees
//!
//! While [`Guard::is_held`] returns true, no other caller has a conflicting hold, unless a server
//! loses an acknowledged write (as a fail-over may), someone deletes the key or forces the lock, a
//! server's clock steps forward, or a clock runs too slowly. A program that is paused *after* its
//! last check may write after the end of its lease. Only the protected resource can refuse that
//! write, by the fencing token of a [`FencedLock`], a [`QueueLock`] or a [`Leadership`]. [The page
//! on guarantees](_documentation::guarantees) has all promises and conditions.
//!
//! # Kinds
//!
//! | kind | made by | property |
//! | --- | --- | --- |
//! | [`Lock`] | [`Client::lock`] | the plain lock |
//! | [`FencedLock`] | [`Client::fenced_lock`] | guards have a token, larger than all earlier ones |
//! | [`FairLock`] | [`Client::fair_lock`] | granted in the order of arrival |
//! | [`QueueLock`] | [`Client::queue_lock`] | granted by arrival and weight, with one wake-up per release |
//! | [`RwLock`] | [`Client::rw_lock`] | many readers or one writer |
//! | [`SpinLock`] | [`Client::spin_lock`] | no subscription: waiters poll |
//! | [`MultiLock`] | [`MultiLock::new`] | several locks, taken all together or not at all |
//! | [`RedLock`] | [`RedLock::new`] | held on a majority of several servers |
//! | named holder | [`Lock::with_holder`] | held by a name, such as the id of a job, not by a thread |
//!
//! All kinds have the verbs of [`Lock`]; an [`RwLock`] has them for reading and for writing. Use
//! one kind for one name: kinds that share a name exclude each other or return an error, but a
//! release does not always wake the waiters of another kind. [The page on
//! kinds](_documentation::kinds) has the use and the cost of each, and the kind of Redisson that
//! shares its data.
//!
//! # Semaphores and latches
//!
//! | type | made by | property |
//! | --- | --- | --- |
//! | [`Semaphore`] | [`Client::semaphore`] | at most n callers at a time; the permits of a dead process come back |
//! | [`PlainSemaphore`] | [`Client::plain_semaphore`] | permits without a holder and a lease, such as the items of a stock |
//! | [`CountDownLatch`] | [`Client::latch`] | callers wait until a count has reached 0 |
//!
//! A [`Permit`] is a hold on one or more permits of a [`Semaphore`]. Its lease is renewed, lost and
//! reported like the lease of a lock. A [`PlainSemaphore`] and a [`CountDownLatch`] are numbers in
//! Redis; a change of them takes effect once, also if its request has to be repeated.
//!
//! ```no_run
//! let client = leasehold::Client::open("redis://127.0.0.1/")?;
//! let jobs = client.semaphore("jobs").with_permits(20);
//! let permit = jobs.acquire()?;           // blocks until one of 20 permits is free
//! // ... work of at most 20 callers at a time, on all machines ...
//! permit.release()?;                      // or drop it
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Work that is done once
//!
//! [`Client::once`] returns a [`Once`]: work that one of many callers does, such as a scheduled job
//! or a request with an idempotency key, and whose result all of them get. [`Once::begin`] returns
//! the result, or an [`OnceRun`] to the caller that has to work: a lock, which is renewed until
//! [`OnceRun::commit`] ends it with a result.
//!
//! ```no_run
//! # fn import() -> Vec<u8> { Vec::new() }
//! use leasehold::Begin;
//!
//! let client = leasehold::Client::open("redis://127.0.0.1/")?;
//! let done = match client.once("import:2026-11-25").begin()? {
//!     Begin::Run(run) => run.commit(import())?,
//!     Begin::Done(done) => done,
//! };
//! println!("{} bytes", done.value().len());
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Elections
//!
//! [`Client::election`] returns an [`Election`]: one leader among many candidates, for work that
//! one process at a time does until that process ends. [`Election::campaign`] blocks until the
//! caller is the leader and returns a [`Leadership`], the guard of one *term*. [`Election::run`]
//! calls a closure in each term of this process, until a token is cancelled; that ends a term too.
//! [`Election::leader`] and [`Election::observe`] tell any client the value of the [`Leader`], such
//! as an address, and the token of its term.
//!
//! ```no_run
//! # use std::time::Duration;
//! # fn one_step(token: u64) {}
//! let client = leasehold::Client::open("redis://127.0.0.1/")?;
//! let stop = leasehold::CancelToken::new();   // cancelled at the end of the program
//! client.election("scheduler").with_value("host-1:8080").run(&stop, |term| {
//!     while !term.wait_lost(Duration::from_secs(1)) {
//!         one_step(term.token());             // by the token, a store refuses an old leader
//!     }
//! })?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Threads
//!
//! A [`Guard`] belongs to its thread. The thread can take the lock again, and gets a *nested*
//! guard. Nested guards are counted in memory. Two of them ask the server: those of a [named
//! holder](Lock::with_holder), and one with a longer fixed lease. An [`OwnedGuard`], from
//! [`Lock::lock_owned`], a [`Permit`] and a [`Leadership`] can be sent to another thread and
//! dropped there. In a [thread pool that steals work](Guard#thread-pools), such as rayon, two jobs
//! can be on one thread at once: a `Guard` does not exclude them.
//!
//! # Errors and events
//!
//! [`Error`] is the only error type; its documentation has a table of all errors. A call fails if
//! the server does not answer its first request, also if the request is sent once more because its
//! connection broke. Once the server has answered that the lock is held, the call waits through
//! later outages, and through [retryable](Error::is_retryable) refusals.
//!
//! An implementation of [`Events`] receives grants, waits, releases, renewals, losses, and holds
//! that are longer than [`Lock::with_max_hold`] allows: those of a client ([`Builder::events`]), or
//! of one lock handle ([`Lock::with_events`]). [`Guard::on_lost`] registers a closure, which is
//! called once if the hold of the guard is lost. The [log](#logging) gets losses, failures and
//! reconnections. [`Client::stats`] returns counters and histograms.
//!
//! # Logging
//!
//! Log lines go to the [`log`](https://docs.rs/log) facade, from a thread of their own. Their
//! targets begin with `leasehold::`. [The page on logging](_documentation::logging) lists targets
//! and key-values, and shows the way to `tracing`.
//!
//! # Holders
//!
//! [`Lock::holder`] returns the holder of a lock with its host and process, [`Lock::holders`] all
//! holders of a lock with several, [`Lock::waiting`] the waiting callers, and [`Client::locks`] all
//! held locks whose names match a pattern. [`Client::lock_info`] looks at one lock of any kind,
//! [`Client::watch_locks`] repeatedly at several. Any client of the same servers can ask. Holders
//! of Redisson are included, with fewer facts. A query of the holders takes two round trips, and
//! then asks their processes for more facts over a new connection. The queries need
//! [permissions](_documentation::permissions) of their own. They add no cost to acquires and
//! releases.
//!
//! ```no_run
//! # let client = leasehold::Client::open("redis://127.0.0.1/")?;
//! for lock in client.locks("orders:*")? {
//!     let lock = lock?;
//!     for holder in lock.holders() {
//!         println!("{}: {:?} {:?}", lock.name(), holder.host(), holder.pid());
//!     }
//! }
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Recipes
//!
//! [The recipes](_documentation::recipes) have code, which tests run, for a cron job on several
//! machines, a migration at start-up, a leader with a standby, bounded concurrency, a fenced row in
//! a database, a lock across an `.await` of tokio, jobs in a rayon pool, and unit tests without a
//! server. More hints:
//!
//! - *A lock that stays busy.* After a `try_lock_for` without the lock, [`Lock::holder`] names
//!   host, process and thread of the holder, and [`HolderInfo::since`] the time of its acquisition.
//! - *A job that may hang.* [`with_max_hold`](Lock::with_max_hold) ends the renewals of a hold that
//!   lasts too long, so that another machine can take over.
//! - *Start.* [`Builder::build_lazily`] builds a client before Redis runs. [`Client::ping`] is a
//!   readiness probe.
//! - *A leader with standbys.* [`Election::run`] on each machine: one of them leads, and the next
//!   follows at once after a stop, and within the lease and a poll interval after a crash.
//! - *Wait for several jobs.* Each job has a guard of [`CountDownLatch::count_down_on_drop`], which
//!   also counts down after a panic.
//! - *Stop.* Cancel the waits, drop the guards, and [`close`](Client::close) the client last.
//! - *Fork.* Make the client after the fork. In a child, calls through the client of the parent are
//!   errors, and [`Guard::is_held`] reports the hold of the parent.
//!
//! # Features
//!
//! - `metrics`: exports the statistics through the crate [`metrics`](https://docs.rs/metrics), as
//!   [these metrics](_documentation::metrics).
//! - `tls`: connections to `rediss://` URLs, by rustls.
//! - `serde`: implements `serde::Serialize` for [`HolderInfo`], [`WaitingInfo`], [`LockInfo`],
//!   [`Leader`] and [`AuditFinding`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod _documentation;
mod acquire;
mod audit;
mod cancel;
mod client;
mod command;
mod config;
mod count;
mod election;
mod engine;
mod error;
mod events;
mod inspect;
pub mod kind;
mod local;
mod lock;
mod stats;
mod synchronizer;
mod transport;
mod util;
mod wait;
mod watchdog;

pub use audit::{AuditFinding, AuditPolicy};
pub use cancel::CancelToken;
pub use client::Client;
pub use command::name::safe_name;
pub use config::{BackOff, Builder, Sharding};
pub use election::Election;
pub use election::leadership::Leadership;
pub use error::{Error, ErrorKind, LostReason, Result};
pub use events::{
    Acquired, Audit, Events, Idle, Lost, Overdue, Reconnected, Released, RenewalFailed, Renewed,
    Waited,
};
pub use inspect::holder::HolderInfo;
pub use inspect::info::{LockInfo, WaitingInfo};
pub use inspect::leader::Leader;
pub use inspect::locks::Locks;
pub use inspect::watch::LockWatch;
pub use lock::guard::{FencedGuard, Guard, OwnedGuard, ReadGuard, WriteGuard};
pub use lock::handle::{FairLock, FencedLock, Lock, QueueLock, SpinLock};
pub use lock::multi_guard::{MultiGuard, OwnedMultiGuard};
pub use lock::multi_lock::{AnyLock, MultiLock};
pub use lock::red_lock::RedLock;
pub use lock::rw_lock::RwLock;
pub use stats::{Histogram, Stats};
/// The receiver of [`Election::observe`], from the crate `crossbeam-channel`.
#[doc(no_inline)]
pub use util::system::channel::Receiver;
pub use uuid::Uuid;

pub use synchronizer::latch::{CountDownGuard, CountDownLatch};
pub use synchronizer::once::{Begin, Once, OnceOutcome};
pub use synchronizer::once_run::OnceRun;
pub use synchronizer::permit::Permit;
pub use synchronizer::plain::PlainSemaphore;
pub use synchronizer::semaphore::Semaphore;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Calls with a `#[must_use]` result. Each compiles only if its result is used.
#[cfg(doctest)]
mod must_use {
    macro_rules! warns {
        ($($statement:literal)*) => { $(warns!(@each $statement);)* };
        (@each $statement:literal) => {
            /// ```compile_fail
            /// #![deny(unused_must_use)]
            #[doc = concat!("fn f(", warns!(@given), ") -> leasehold::Result<()> {")]
            #[doc = concat!($statement, "; Ok(()) }")]
            /// ```
            /// ```
            /// #![deny(unused_must_use)]
            #[doc = concat!("fn f(", warns!(@given), ") -> leasehold::Result<()> {")]
            #[doc = concat!("let _ = ", $statement, "; Ok(()) }")]
            /// ```
            const _: () = ();
        };
        (@given) => {
            "client: leasehold::Client, lock: leasehold::Lock, guard: leasehold::Guard, \
             both: leasehold::MultiGuard, error: leasehold::Error, rw: leasehold::RwLock, \
             red: leasehold::RedLock, events: std::sync::Arc<dyn leasehold::Events>, \
             info: leasehold::LockInfo, holder: leasehold::HolderInfo, \
             jobs: leasehold::Semaphore, permit: leasehold::Permit, \
             stock: leasehold::PlainSemaphore, latch: leasehold::CountDownLatch, \
             election: leasehold::Election, term: leasehold::Leadership, leader: leasehold::Leader"
        };
    }

    warns! {
        "client.lock(\"a\")"
        "client.fair_lock(\"a\")"
        "client.queue_lock(\"a\")"
        "client.queue_lock(\"a\").with_weight(2)"
        "client.rw_lock(\"a\")"
        "client.semaphore(\"a\")"
        "client.plain_semaphore(\"a\")"
        "client.latch(\"a\")"
        "jobs.with_permits(2)"
        "jobs.acquire()?"
        "permit.is_held()"
        "permit.wait_lost(std::time::Duration::ZERO)"
        "stock.name()"
        "latch.count_down_on_drop()"
        "client.election(\"a\")"
        "election.with_value(\"host:1\")"
        "election.campaign()?"
        "election.name()"
        "term.is_held()"
        "term.token()"
        "term.wait_lost(std::time::Duration::ZERO)"
        "leader.value()"
        "leader.token()"
        "leader.holder()"
        "client.clone()"
        "client.stats()"
        "client.locks(\"a*\")?"
        "client.watch_locks([\"a\"])?"
        "client.lock_info(\"a\")"
        "client.audit()"
        "leasehold::Client::builder()"
        "leasehold::Client::open(\"redis://127.0.0.1/\")?"
        "leasehold::MultiLock::new([lock])"
        "leasehold::RedLock::new([client], \"a\")"
        "leasehold::CancelToken::new()"
        "leasehold::AnyLock::from(lock)"
        "lock.with_lease(std::time::Duration::MAX)"
        "lock.with_max_hold(std::time::Duration::MAX)"
        "lock.with_min_hold(std::time::Duration::MAX)"
        "lock.clone().with_holder(\"tx\")"
        "lock.with_events(events)"
        "rw.with_events(events)"
        "red.with_events(events)"
        "lock.lock()?"
        "lock.lock_owned()?"
        "lock.try_lock()"
        "lock.is_held()"
        "lock.hold_count()"
        "lock.name()"
        "lock.holder()"
        "lock.holders()"
        "lock.waiting()"
        "info.holders()"
        "info.waiting().processes()"
        "holder.owner()"
        "holder.since()"
        "guard.is_held()"
        "guard.remaining()"
        "guard.wait_lost(std::time::Duration::ZERO)"
        "both.is_held()"
        "error.is_lost()"
        "error.lock_name()"
        "leasehold::Lost::new(\"a\", leasehold::LostReason::Gone)"
    }
}
