//! Distributed locks for blocking Rust: OS threads, no async runtime, a Redis server.
//!
//! Locks have the data format of [Redisson](https://redisson.org), so Rust and Java services
//! exclude each other.
//!
//! A lock is a name. A [`Client`] connects once and is shared by all threads of a process.
//! [`Client::lock`] returns a [`Lock`], a cheap handle. All handles with one name exclude each
//! other: in all threads, in all processes, on all machines.
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
//! # Waiting
//!
//! [`Lock::lock`] waits without a limit, [`Lock::try_lock`] does not wait, and
//! [`Lock::try_lock_for`] and [`Lock::try_lock_until`] wait for a limited time. A [`CancelToken`]
//! ends a wait from another thread. A lock that is held elsewhere is `Ok(None)` and not an error.
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
//! A hold is a lease: the server keeps the lock for a limited time. The watchdog of the client
//! renews the lease until the guard is dropped, so the lock of a process that dies is free soon.
//! [`Lock::with_lease`] sets a fixed lease instead.
//!
//! A lease can be lost: the server was unreachable for too long, the process was stopped, or an
//! operator deleted the key. [`Guard::check`] then returns an error. It compares the deadline of
//! the lease with the clock and makes no round trip, so call it before each step that counts:
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
//! While [`Guard::is_held`] returns true, no other hold on the lock is valid, provided that
//! - the clock of the server does not step forward;
//! - the clock of the client counts all time (the pause of a virtual machine may not count) and is
//!   at most 1 % slower than the clock of the server;
//! - no write that the server acknowledged is lost in a fail-over, in a restart without data or by
//!   eviction;
//! - the key is not deleted by hand.
//!
//! A guard never reports a valid lease after its own deadline. The deadline counts from the moment
//! before the command was sent, on a clock that continues while the machine sleeps.
//!
//! No lock with a lease can prevent a pause of your program *after* its last check. A resource that
//! must not be harmed even then has to refuse stale writers itself, by the token of a
//! [`FencedLock`].
//!
//! # Kinds
//!
//! | kind | made by | property |
//! | --- | --- | --- |
//! | [`Lock`] | [`Client::lock`] | the plain lock |
//! | [`FencedLock`] | [`Client::fenced_lock`] | guards have a token that identifies stale holders |
//! | [`FairLock`] | [`Client::fair_lock`] | granted in the order of arrival |
//! | [`RwLock`] | [`Client::rw_lock`] | many readers or one writer |
//! | [`SpinLock`] | [`Client::spin_lock`] | no subscription: waiters poll |
//! | [`MultiLock`] | [`MultiLock::new`] | several locks, or none |
//! | [`RedLock`] | [`RedLock::new`] | held on a majority of several servers |
//! | named holder | [`Lock::with_holder`] | held by a name, such as a job's, instead of a thread |
//!
//! All kinds have the same verbs and guards.
//!
//! # Threads
//!
//! A [`Guard`] belongs to its thread. The thread can lock again; nested guards are counted in
//! memory. An [`OwnedGuard`], from [`Lock::lock_owned`], can be sent to another thread and dropped
//! there.
//!
//! # Errors and events
//!
//! [`Error`] is the only error type. Its documentation has a table of its predicates. The first
//! request of a call fails if no server answers; a call that already waits for the lock waits
//! through outages.
//!
//! An implementation of [`Events`] is told about grants, waits, releases, renewals and losses. The
//! [`log`](https://docs.rs/log) facade gets losses, failures and reconnections.
//!
//! # Features
//!
//! - `tls`: `rediss://` URLs, by rustls.
#![forbid(unsafe_code)]

mod acquire;
mod cancel;
mod client;
mod command;
mod config;
mod connection;
mod engine;
mod error;
mod events;
pub mod kind;
mod listener;
mod local;
mod lock;
mod pool;
mod topology;
mod util;
mod watchdog;

pub use cancel::CancelToken;
pub use client::Client;
pub use config::{BackOff, Builder, Sharding};
pub use error::{Error, ErrorKind, LostReason, Result};
pub use events::{
    Acquired, Audit, Events, Lost, Reconnected, Released, RenewalFailed, Renewed, Waited,
};
pub use lock::guard::{FencedGuard, Guard, OwnedGuard, ReadGuard, WriteGuard};
pub use lock::handle::{FairLock, FencedLock, Lock, SpinLock};
pub use lock::multi_guard::{MultiGuard, OwnedMultiGuard};
pub use lock::multi_lock::{AnyLock, MultiLock};
pub use lock::red_lock::RedLock;
pub use lock::rw_lock::RwLock;
pub use topology::audit::AuditPolicy;
pub use uuid::Uuid;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Calls with a `#[must_use]` result: an error under `unused_must_use`, unless the value is used.
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
             both: leasehold::MultiGuard, error: leasehold::Error"
        };
    }

    warns! {
        "client.lock(\"a\")"
        "client.fair_lock(\"a\")"
        "client.rw_lock(\"a\")"
        "client.clone()"
        "leasehold::Client::builder()"
        "leasehold::Client::open(\"redis://127.0.0.1/\")?"
        "leasehold::MultiLock::new([lock])"
        "leasehold::RedLock::new([client], \"a\")"
        "leasehold::CancelToken::new()"
        "leasehold::AnyLock::from(lock)"
        "lock.with_lease(std::time::Duration::MAX)"
        "lock.clone().with_holder(\"tx\")"
        "lock.lock()?"
        "lock.lock_owned()?"
        "lock.try_lock()"
        "lock.is_held()"
        "lock.hold_count()"
        "lock.name()"
        "guard.is_held()"
        "guard.remaining()"
        "guard.wait_lost(std::time::Duration::ZERO)"
        "both.is_held()"
        "error.is_lost()"
        "error.lock_name()"
        "leasehold::Lost::new(\"a\", leasehold::LostReason::Gone)"
    }
}
