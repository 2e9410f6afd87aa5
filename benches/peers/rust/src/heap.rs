//! Bytes that are allocated, counted only while somebody wants to know: the counter
//! would cost contenders that allocate more than others.

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

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(layout.size(), -1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

/// From now on, all is counted.
pub(crate) fn count() {
    BYTES.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
}

/// How many bytes more are allocated than at [`count`], which this ends.
pub(crate) fn counted() -> i64 {
    COUNTS.store(false, Ordering::Relaxed);
    BYTES.load(Ordering::Relaxed)
}
