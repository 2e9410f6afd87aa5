//! The kinds of locks, as type arguments: `Lock<kind::Fair>`, `Guard<kind::Fair>`.
//!
//! | type | made by | guard |
//! | --- | --- | --- |
//! | [`Plain`] | [`Client::lock`](crate::Client::lock) | [`Guard`](crate::Guard) |
//! | [`Fair`] | [`Client::fair_lock`](crate::Client::fair_lock) | `Guard<kind::Fair>` |
//! | [`Fenced`] | [`Client::fenced_lock`](crate::Client::fenced_lock) | [`FencedGuard`](crate::FencedGuard) |
//! | [`Queued`] | [`Client::queue_lock`](crate::Client::queue_lock) | `Guard<kind::Queued>` |
//! | [`Read`], [`Write`] | [`Client::rw_lock`](crate::Client::rw_lock) | [`ReadGuard`](crate::ReadGuard), [`WriteGuard`](crate::WriteGuard) |
//! | [`Spin`] | [`Client::spin_lock`](crate::Client::spin_lock) | `Guard<kind::Spin>` |
//!
//! [`LockKind`] is the trait of these types, for code that is generic over the kind. `Read` and
//! `Write` are not at the root of the crate, so a program can import both the root and the traits
//! of [`std::io`]:
//!
//! ```
//! use leasehold::{kind::LockKind, *};
//! use std::io::prelude::*;
//!
//! fn read_locked<K: LockKind>(lock: &Lock<K>, file: &mut impl Read) -> std::io::Result<String> {
//!     let guard = lock.lock()?;
//!     let mut text = String::new();
//!     file.read_to_string(&mut text)?;
//!     guard.unlock()?;
//!     Ok(text)
//! }
//! ```
// One file per kind. `rules` defines what a kind has to supply; each kind builds its commands from
// its scripts in `lua/`. Imports `command`, `error`, `events` and `util`. Read `rules`, then
// `plain`, then any other kind.

pub(crate) mod elected;
pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod holders;
pub(crate) mod named;
pub(crate) mod once;
pub(crate) mod plain;
pub(crate) mod queued;
pub(crate) mod read_write;
pub(crate) mod rules;
pub(crate) mod semaphore;
pub(crate) mod spin;

pub use crate::events::Kind;
pub use fair::Fair;
pub use fenced::Fenced;
pub use plain::Plain;
pub use queued::Queued;
pub use read_write::{Read, Write};
pub use rules::LockKind;
pub use spin::Spin;
