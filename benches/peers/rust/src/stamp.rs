//! Moments of a clock that all processes of a machine share.

use std::hint;

use rustix::time::{ClockId, clock_gettime};

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let parts = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    match parts {
        (Ok(seconds), Ok(nanos)) => seconds * 1_000_000_000 + nanos,
        _ => 0,
    }
}

/// Spins, as the work of a worker between its pairs.
pub(crate) fn spin(micros: u64) {
    let end = now() + micros * 1_000;
    while micros > 0 && now() < end {
        hint::spin_loop();
    }
}

/// The record of one pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) worker: u64,
    pub(crate) asked: u64,
    pub(crate) acquired: u64,
    pub(crate) releasing: u64,
    pub(crate) released: u64,
}

impl Record {
    /// Returns the record of a pair that has just ended.
    pub(crate) fn of(worker: u64, asked: u64, held: &Held) -> Record {
        let (acquired, releasing) = (held.acquired, held.releasing);
        Record { worker, asked, acquired, releasing, released: now() }
    }

    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        [self.worker, self.asked, self.acquired, self.releasing, self.released]
            .into_iter()
            .flat_map(u64::to_le_bytes)
    }
}

/// The moments of a pair at which the lock is held.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) acquired: u64,
    pub(crate) releasing: u64,
}

impl Held {
    /// Reads the clock. Called once, while the lock is held.
    pub(crate) fn stamp(&mut self) {
        self.acquired = now();
        self.releasing = now();
    }
}
