//! The kinds of a [`Lock`](crate::Lock): types that stand in its place for a kind, as in
//! `Guard<kind::Fair>`.
//!
//! They are apart, so that a program can import everything from the root of the crate and from
//! `std::io`:
//!
//! ```
//! use leasehold::*;
//! use std::io::prelude::*;
//!
//! fn copy(reader: &mut impl Read, guard: &ReadGuard) -> std::io::Result<String> {
//!     guard.check()?;
//!     let mut text = String::new();
//!     reader.read_to_string(&mut text)?;
//!     Ok(text)
//! }
//! ```
// One file per kind. `rules` says what a kind has to define; a file of a kind names its scripts.
// Imports `command`, `events`, `error` and `util`. Read `rules`, then `plain`.

pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod named;
pub(crate) mod plain;
pub(crate) mod read_write;
pub(crate) mod rules;
pub(crate) mod spin;

pub use crate::events::Kind;
pub use fair::Fair;
pub use fenced::Fenced;
pub use plain::Plain;
pub use read_write::{Read, Write};
pub use rules::LockKind;
pub use spin::Spin;
