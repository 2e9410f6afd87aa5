//! Tools that know nothing of locks or Redis. Imports no other folder.
//!
//! [`system`] is the seam to the system, which a simulation replaces, and [`sync`] the switch to
//! the model checker. [`clock`] has moments and deadlines. [`threads`] and [`executor`] run code on
//! other threads. [`wheel`] is the timer wheel of the watchdog, [`interner`] keeps one value per
//! name, [`text`] checks short texts, [`log_lines`] is the queue to the logger and [`log_target`]
//! has the targets of its lines, and [`platform`] holds the code that differs between operating
//! systems.

pub(crate) mod clock;
pub(crate) mod executor;
#[cfg(all(test, not(leasehold_model)))]
pub(crate) mod fuzz;
pub(crate) mod interner;
pub(crate) mod log_lines;
pub(crate) mod log_target;
#[cfg(all(test, leasehold_model))]
pub(crate) mod model;
#[cfg(not(leasehold_sim))]
pub(crate) mod platform;
pub(crate) mod sync;
pub(crate) mod system;
pub(crate) mod text;
pub(crate) mod threads;
pub(crate) mod wheel;
