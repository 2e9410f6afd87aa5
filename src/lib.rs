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
//! - *Release message*: tells waiting processes that a lock is free. The *listener*, a thread of
//!   the client, receives the messages. (The message of a [queue lock](QueueLock) tells one waiter
//!   that it holds the lock.)
//! - *Poll*: a request that asks whether an awaited lock is free, in case a message was lost.
//! - *Owner field*: identifies a hold in Redis, as `<client id>:<hold number>`. The number is the
//!   time of the request in microseconds since 1970, by the clock of the client. Its remainder by 5
//!   tells the kind: 1 fair, 2 fenced, 3 queue, 4 spin, 0 any other.
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
//! [`watchdog_timeout`](Builder::watchdog_timeout). [`Lock::with_lease`] sets a fixed lease
//! instead.
//!
//! A lease can be lost: the server was unreachable for too long, the process was stopped, or an
//! operator deleted the key. [`Guard::check`] then returns an error. The check compares the
//! deadline of the lease with the clock and makes no round trip, so call it before each step that
//! must not run twice:
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
//! While [`Guard::is_held`] returns true, no conflicting hold on the lock is valid. (Two holds of
//! readers do not conflict, nor do two holds of one [named holder](Lock::with_holder).) The valid
//! permits of a [`Semaphore`] are never more than its capacity, except after a
//! [`resize`](Semaphore::resize) to fewer than are in use. Conditions:
//! - the clock of the server does not step forward;
//! - the clock of the client counts all time, and is at most 1 % slower than the clock of the
//!   server (while a virtual machine is paused, its clock may stand still);
//! - no write that the server acknowledged is lost in a fail-over, in a restart without data or by
//!   eviction;
//! - nobody deletes the key;
//! - the clocks of Java hosts that share a [`Semaphore`] agree with the [clock of the
//!   server](Semaphore#clocks).
//!
//! A guard never reports a valid lease after the deadline of the lease. The lease counts from the
//! moment before the command was sent, on a clock that continues while the machine sleeps.
//!
//! The operating system can pause a program *after* its last check, until its lease has ended. No
//! lock with a lease can prevent that. The protected resource has to refuse such a stale writer
//! itself, by the token of a [`FencedLock`], a [`QueueLock`] or a [`Leadership`].
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
//! one kind for one name: a release does not always wake the waiters of another kind.
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
//! reported as the lease of a lock. A [`PlainSemaphore`] and a [`CountDownLatch`] are numbers in
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
//! # Elections
//!
//! [`Client::election`] returns an [`Election`]: one leader among many candidates, for work that
//! one process at a time does for as long as it lives. [`Election::campaign`] blocks until the
//! caller is the leader and returns a [`Leadership`], the guard of one *term*. [`Election::run`]
//! works as the leader in term after term. [`Election::leader`] and [`Election::observe`] tell any
//! client the value of the [`Leader`], such as an address, and the token of its term.
//!
//! ```no_run
//! # use std::time::Duration;
//! # fn one_step() {}
//! let client = leasehold::Client::open("redis://127.0.0.1/")?;
//! let stop = leasehold::CancelToken::new();   // cancelled at the end of the program
//! client.election("scheduler").with_value("host-1:8080").run(&stop, |term| {
//!     while !term.wait_lost(Duration::from_secs(1)) {
//!         one_step();                         // at most one leader at a time is here
//!     }
//! })?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! # Threads
//!
//! A [`Guard`] belongs to its thread. The thread can take the lock again. Such nested guards are
//! counted in memory, without a round trip (exceptions: [`Lock::with_holder`], and a longer fixed
//! lease). An [`OwnedGuard`], from [`Lock::lock_owned`], a [`Permit`] and a [`Leadership`] can be
//! sent to another thread and dropped there. In a [thread pool that steals
//! work](Guard#thread-pools), such as rayon, two jobs can be on one thread at once: a `Guard` does
//! not exclude them.
//!
//! # Errors and events
//!
//! [`Error`] is the only error type; its documentation has a table of all errors. If a connection
//! breaks, its unanswered requests are sent once more over a new connection. A call fails if its
//! first request gets no answer. Once the server has answered that the lock is held, the call waits
//! through later outages, and through [retryable](Error::is_retryable) refusals.
//!
//! An implementation of [`Events`] receives grants, waits, releases, renewals, overdue holds and
//! losses: those of a client ([`Builder::events`]), or of one lock handle ([`Lock::with_events`]).
//! [`Guard::on_lost`] registers a closure, which is called once if the hold of the guard is lost.
//! The [log](#logging) gets losses, failures and reconnections. [`Client::stats`] returns counters
//! and histograms.
//!
//! # Logging
//!
//! Log lines go to the [`log`](https://docs.rs/log) facade. The target of a line names its subject,
//! so a filter such as `leasehold::lease=warn` selects one subject:
//!
//! | target | levels | subject |
//! | --- | --- | --- |
//! | `leasehold::lease` | warn, debug | losses, overdue holds, failed releases and clean-ups; locks that are held without a time to live; waits for an owned guard of the same thread |
//! | `leasehold::connection` | warn, info, debug | outages of servers; replaced connections; failed subscriptions, heartbeats and polls; loads of scripts; refused options of sockets |
//! | `leasehold::topology` | info, debug | clusters without sharded pub/sub; failed checks for fail-overs |
//! | `leasehold::audit` | warn | servers whose configuration [endangers locks](Builder::audit_policy) |
//! | `leasehold::events` | error, warn | panics of [`Events`] methods and of closures; dropped events |
//! | `leasehold::client` | error, warn, debug | threads of the client that do not start, panic, or outlast the close; dropped lines; the [client record](Builder::announce); questions to running processes about holds; a refused clock |
//!
//! One line at level warn tells that a server does not answer, or refuses commands with a code, and
//! how many leases, awaited locks and background requests are affected. The attempts that follow
//! have no lines of their own. One line at level info tells the end, with the duration: the server
//! answers, or has refused no repeated command for 5 s. An outage that affects nothing has no line:
//! a call that fails returns its error. Each failed renewal is an event
//! ([`Events::renewal_failed`]).
//!
//! Each line also has key-values for structured loggers: facts of its text, and other facts.
//!
//! | key | value |
//! | --- | --- |
//! | `lock` | the name of the lock, without the client's prefix |
//! | `kind` | the kind of the lock, as `Debug` shows it: `Plain`, `Fair`, `Semaphore` and so on |
//! | `hold` | the number of the hold, as in events |
//! | `reason` | the [`LostReason`], as `Debug` shows it: `Expired`, `Gone`, `HeldTooLong` |
//! | `error` | the text of the error and of its causes |
//! | `server` | the address of the server, without user and password; null if the error names no server |
//!
//! Targets and keys stay the same in compatible versions. Texts may change.
//!
//! A thread of its own (`leasehold-log`) calls the logger, so a logger that blocks delays no call,
//! renewal or release, and a logger may use locks. The thread exists while lines are queued, and
//! serves all clients of the process. Lines keep their order, but may come a little later than
//! lines of the program. While 1024 lines wait, further ones are dropped, and a line tells how many
//! were. [`Client::close`] waits for the queued lines; a process that ends without it may lose the
//! last ones.
//!
//! A program that logs with `tracing` receives these lines through the crate
//! [`tracing-log`](https://docs.rs/tracing-log), in two lines:
//!
//! ```sh
//! cargo add tracing-log
//! ```
//!
//! ```text
//! tracing_log::LogTracer::init()?;        // at the start, beside `set_global_default(subscriber)`
//! ```
//!
//! The `init` methods of `tracing-subscriber`, such as `tracing_subscriber::fmt().init()`, do this
//! already, by the default feature `tracing-log`; a second `LogTracer::init` returns an error.
//! Filters see the targets above. `tracing-log` 0.2 passes target, level and text, but no
//! key-values. To get these facts as fields, emit a `tracing` event from an implementation of
//! [`Events`].
//!
//! # Holders
//!
//! [`Lock::holder`] returns the holder of a lock with its host and process, [`Lock::holders`] all
//! holders of a lock with several, [`Lock::waiting`] the waiting callers, and [`Client::locks`] all
//! held locks whose names match a pattern. [`Client::lock_info`] looks at one lock of any kind,
//! [`Client::watch_locks`] repeatedly at several. Any client of the same servers can ask. Holders
//! of Redisson are included, with fewer facts. A query of the holders takes two round trips, and
//! then asks their processes for more facts over a new connection. The queries need
//! [permissions][holder-permissions] of their own. They add no cost to acquires and releases.
//!
//! [holder-permissions]: https://docs.rs/crate/leasehold/latest/source/docs/permissions.md
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
//! [docs/recipes.md][recipes] has code, which tests run, for a cron job on several machines, a
//! migration at start-up, a leader with a standby, bounded concurrency, a fenced row in a database,
//! a lock across an `.await` of tokio, jobs in a rayon pool, and unit tests without a server. More
//! hints:
//!
//! [recipes]: https://docs.rs/crate/leasehold/latest/source/docs/recipes.md
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
//! - `metrics`: exports the statistics through the crate [`metrics`](https://docs.rs/metrics).
//! - `tls`: connections to `rediss://` URLs, by rustls.
//! - `serde`: implements `serde::Serialize` for [`HolderInfo`], [`WaitingInfo`], [`LockInfo`],
//!   [`Leader`] and [`AuditFinding`].
//!
//! # Exported metrics
//!
//! With the feature `metrics`, each change of a number of [`Stats`] is exported at once. Install
//! the recorder before the first client is built: a client registers each metric at its first use,
//! with the recorder that is installed then. `examples/metrics.rs` exports the metrics to
//! Prometheus.
//!
//! | metric | number |
//! | --- | --- |
//! | `leasehold_lock_acquired_total` | [`Stats::acquired`] |
//! | `leasehold_lock_passed_locally_total` | [`Stats::passed_locally`] |
//! | `leasehold_lock_released_total` | [`Stats::released`] |
//! | `leasehold_lock_released_after_expiry_total` | [`Stats::released_after_expiry`] |
//! | `leasehold_lock_lost_total` | [`Stats::lost`]; label `reason`: `expired`, `gone`, `held_too_long` |
//! | `leasehold_lock_refused_total` | [`Stats::refused`] |
//! | `leasehold_lock_timed_out_total` | [`Stats::timed_out`] |
//! | `leasehold_lock_cancelled_total` | [`Stats::cancelled`] |
//! | `leasehold_lock_contended_total` | [`Stats::contended`] |
//! | `leasehold_lock_renewals_total` | [`Stats::renewals`] |
//! | `leasehold_lock_renewal_failures_total` | [`Stats::renewal_failures`] |
//! | `leasehold_reconnects_total` | [`Stats::reconnects`]; no labels |
//! | `leasehold_locks_held` | gauge, [`Stats::held_now`] |
//! | `leasehold_locks_waiting` | gauge, [`Stats::waiting_now`] |
//! | `leasehold_lock_wait_seconds` | histogram, [`Stats::wait_time`] |
//! | `leasehold_lock_hold_seconds` | histogram, [`Stats::hold_time`] |
//! | `leasehold_lock_renewal_lag_seconds` | histogram, [`Stats::renewal_lag`] |
//! | `leasehold_lock_round_trip_seconds` | histogram, [`Stats::round_trip`] |
//!
//! All clients of a process share the metrics. Every metric except `leasehold_reconnects_total` has
//! two labels:
//! - `kind`: `plain`, `named`, `fair`, `fenced`, `queue`, `read`, `write`, `spin`, `semaphore`,
//!   `plain_semaphore`, `latch`; `multi` and `red` for the calls of a [`MultiLock`] and a
//!   [`RedLock`]. Their holds have the kinds of the members.
//! - `label`: the text of [`Lock::with_label`], empty for a handle without one. A call of a
//!   `MultiLock` has the common label of all its members of one client, empty if they differ.
//!
//! The name of a lock is never a label, because the number of names has no bound.
//!
//! A hand-off between handles with different labels moves the hold from one label to the other in
//! `leasehold_locks_held`, and counts as passed locally for the label of the new holder. The
//! release, the loss and the time of the hold count for the label of the last holder. One command
//! for several members of a `MultiLock` counts its round trip for the first member. A panic of the
//! recorder is caught and logged.
#![forbid(unsafe_code)]

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
pub use config::{BackOff, Builder, Sharding};
pub use election::Election;
pub use election::leadership::Leadership;
pub use error::{Error, ErrorKind, LostReason, Result};
pub use events::{
    Acquired, Audit, Events, Lost, Overdue, Reconnected, Released, RenewalFailed, Renewed, Waited,
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
