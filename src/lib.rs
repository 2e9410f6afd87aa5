//! Distributed locks for blocking Rust, on Redis.
#![forbid(unsafe_code)]

mod acquire;
mod cancel;
mod client;
mod config;
mod conn;
mod engine;
mod error;
mod event;
mod gate;
mod guard;
mod hold;
mod intern;
mod lane;
mod lease;
mod listener;
mod local;
mod lock;
mod name;
mod pool;
mod protocol;
mod release;
mod script;
mod sync;
mod time;
mod waiters;
mod watchdog;
mod wheel;

pub use cancel::CancelToken;
pub use client::Client;
pub use config::Builder;
pub use error::{Error, ErrorKind, Result};
pub use event::{
    Acquired, Audit, Events, Lost, LostReason, Reconnected, Released, RenewalFailed, Renewed,
    Waited,
};
pub use guard::{Guard, OwnedGuard};
pub use lock::Lock;
pub use protocol::Protocol;
pub use protocol::plain::Plain;
pub use uuid::Uuid;
