//! A loop that takes a lock again and again, beside a caller that waits for it, and the ends of
//! such loops and waits when a test fails.

use super::eventually;
use leasehold::CancelToken;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Sets the flag when it is dropped, also if the test fails.
pub struct StopsOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Cancels the waits with its token when it is dropped, also if the test fails.
///
/// A thread scope would otherwise wait for a thread that waits for a lock.
pub struct CancelOnDrop(pub CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Has a thread take a lock again and again, and calls `wait` that many times.
///
/// `take` returns the guard of the loop, if it gets one; `wait` takes and releases the lock.
/// Returns the number of holds of the loop during all waits.
pub fn holds_during_waits<G>(
    waits: usize,
    take: impl Fn() -> Option<G> + Sync,
    wait: impl Fn(),
) -> usize {
    let (stop, holds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let so_far = || holds.load(Ordering::Relaxed);
    let take_again = || {
        while !stop.load(Ordering::Relaxed) {
            match take() {
                Some(_guard) => {
                    holds.fetch_add(1, Ordering::Relaxed);
                }
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
    };
    thread::scope(|scope| {
        let _stops = StopsOnDrop(&stop);
        scope.spawn(take_again);
        let wait_once = |_| {
            let start = so_far() + 3;
            eventually("the loop takes the lock", || so_far() >= start);
            let before = so_far();
            wait();
            so_far() - before
        };
        (0..waits).map(wait_once).sum()
    })
}
