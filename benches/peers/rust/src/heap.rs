//! A counter of allocated bytes.
//!
//! It counts only on request, because it would slow contenders that allocate much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

static COUNTS: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);

pub(crate) struct Counting;

fn add(bytes: usize, sign: i64) {
    if COUNTS.load(Ordering::Relaxed) {
        BYTES.fetch_add(sign * i64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller keeps the same promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        // SAFETY: the caller keeps the same promises.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Starts to count at 0.
pub(crate) fn start_counting() {
    BYTES.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
}

/// Ends the count. Returns the bytes allocated since [`start_counting`], less the freed ones.
pub(crate) fn stop_counting() -> i64 {
    COUNTS.store(false, Ordering::Relaxed);
    BYTES.load(Ordering::Relaxed)
}
