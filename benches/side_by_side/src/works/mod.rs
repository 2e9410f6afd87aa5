//! The works, one file each.

pub(crate) mod handles;
pub(crate) mod held;
pub(crate) mod meetings;
pub(crate) mod nested;
pub(crate) mod processes;
pub(crate) mod semaphore;
pub(crate) mod threads;
pub(crate) mod turns;
pub(crate) mod uncontended;
pub(crate) mod waiters;
