//! Distributed locks for blocking Rust: OS threads, no async runtime, Redis underneath,
//! and Redisson's bytes on the wire.
//!
//! A short tour:
//!
//! **A lock is a name.** A [`Client`] connects once and is shared by all threads;
//! [`Client::lock`] makes a cheap handle. Everybody who locks the same name excludes
//! each other: threads, processes, machines, and Java services that use Redisson.
//!
//! ```no_run
//! let client = leasehold::Client::open("redis://127.0.0.1/")?;
//! let lock = client.lock("orders:42");
//! {
//!     let _guard = lock.lock()?;      // blocks until it is ours
//!     // ... what must not be done twice at once ...
//! }                                   // dropped: released, without waiting
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! **Waiting has an end, if you want one.** [`Lock::try_lock`] asks once,
//! [`Lock::try_lock_for`] and [`Lock::try_lock_until`] give up, a [`CancelToken`] ends a
//! wait from another thread. Not getting the lock is `Ok(None)`, no error.
//!
//! ```no_run
//! # use std::time::Duration;
//! # let lock = leasehold::Client::open("redis://127.0.0.1/")?.lock("a");
//! match lock.try_lock_for(Duration::from_secs(2))? {
//!     Some(guard) => guard.unlock()?, // waits for the server to say so
//!     None => println!("somebody else is at it"),
//! }
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! **A hold is a lease.** The server keeps the lock for a while; the watchdog renews
//! that until the guard is dropped, so the lock of a process that dies is free soon.
//! [`Lock::with_lease`] gives a fixed lease instead. A lease can be lost: the server was
//! unreachable for too long, the process was stopped, somebody deleted the key. Then
//! [`Guard::check`] is an error, at once and for good, without asking the server:
//!
//! ```no_run
//! # fn write_result() {}
//! # let lock = leasehold::Client::open("redis://127.0.0.1/")?.lock("a");
//! let guard = lock.lock()?;
//! // ... long work ...
//! guard.check()?;                     // still ours?
//! write_result();
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! **What it promises.** While [`Guard::is_held`] is true no other hold on the lock is
//! valid, provided that the server's clock does not step forward, the client's clock counts
//! all time (the pause of a virtual machine may not count), no write that the server
//! acknowledged is lost (in a fail-over, a restart without data, an eviction), and
//! nobody deletes the key. A guard never says held past its own deadline, which is
//! reckoned from before its question was sent, on a clock that goes on while the
//! machine sleeps. No lock with a lease can keep your code from being paused *after*
//! its last check; what must not be harmed even then has to refuse stale writers
//! itself.
//!
//! **More kinds.** [`FencedLock`] gives tokens by which a stale holder is recognised, [`FairLock`] keeps
//! the order, [`RwLock`] lets readers share, [`SpinLock`] subscribes to nothing, [`MultiLock`] takes
//! several or none, [`RedLock`] lives on most of several servers, and
//! [`with_holder`](Lock::with_holder) gives a lock to a name instead of a thread. All have the same verbs
//! and guards.
//!
//! **Guards of threads and guards that travel.** A [`Guard`] belongs to its thread, which
//! may lock again: that is counted in memory. An [`OwnedGuard`]
//! ([`Lock::lock_owned`]) can be sent to another thread and dropped there.
//!
//! **Errors** are one type with predicates, [`Error`], which has a table of what they mean. The first question of a call fails
//! if no server answers; a caller that waits already waits through outages.
//!
//! **What happens** can be told to an implementation of [`Events`], and is written to the
//! [`log`](https://docs.rs/log) facade.
//!
//! Features: `tls` for `rediss://` addresses.
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

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Whose results are not to be dropped: each statement is an error under `unused_must_use`, and
/// none if its value is used.
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
