//! Tools that know nothing of locks or Redis. Imports nothing of the crate.
//!
//! [`sync`] is the switch to the model checker; [`clock`] is the only file that reads the time.

pub(crate) mod clock;
pub(crate) mod executor;
pub(crate) mod interner;
#[cfg(all(test, leasehold_model))]
pub(crate) mod model;
pub(crate) mod platform;
pub(crate) mod sync;
pub(crate) mod threads;
pub(crate) mod wheel;
