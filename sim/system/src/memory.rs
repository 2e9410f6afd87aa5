//! The memory of each process: what its tasks have allocated, and nobody has freed.
//!
//! A program that wants to know it has [`Counting`] as its global allocator. Each block has the run
//! and the process of its making before it. What the world allocates for a task is the world's.

use crate::world::ProcessId;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// The processes of a run whose memory is counted. The first one runs the test, so its memory, as
/// that of nobody, does not count.
const COUNTED: usize = 1024;
const NOBODY: usize = 0;

/// The bytes of each process.
static BYTES: [AtomicI64; COUNTED] = [const { AtomicI64::new(0) }; COUNTED];

/// The number of the run. Blocks of former runs do not count.
static RUN: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    /// The process of the task that runs.
    static OWNER: Cell<usize> = const { Cell::new(NOBODY) };
}

/// Counts the memory of each process. The global allocator of a program.
#[derive(Debug)]
pub struct Counting;

/// The run and the process in which a block was made.
#[derive(Clone, Copy)]
struct Mark {
    run: u32,
    owner: u32,
}

impl Mark {
    fn now() -> Mark {
        let owner = OWNER.try_with(Cell::get).unwrap_or(NOBODY);
        Mark { run: RUN.load(Ordering::Relaxed), owner: owner as u32 }
    }

    fn count(self, bytes: i64) {
        if self.owner as usize != NOBODY && self.run == RUN.load(Ordering::Relaxed) {
            // Only the thread of the run counts, so that nothing comes between these two steps.
            let of_owner = &BYTES[self.owner as usize];
            of_owner.store(of_owner.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        }
    }
}

/// Returns the layout of a block with its mark, and the place of the block in it.
fn with_mark(layout: Layout) -> Option<(Layout, usize)> {
    let place = layout.align().max(size_of::<Mark>());
    let whole =
        Layout::from_size_align(layout.size() + place, layout.align().max(align_of::<Mark>()));
    whole.ok().map(|whole| (whole, place))
}

// SAFETY: each block stands in one of the system's allocator, behind a mark. Its place there follows
// from its alignment alone, which stays the same.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, place)) = with_mark(layout) else { return std::ptr::null_mut() };
        // SAFETY: the size is not zero, because of the mark.
        let start = unsafe { System.alloc(whole) };
        if start.is_null() {
            return start;
        }
        let mark = Mark::now();
        mark.count(layout.size() as i64);
        // SAFETY: the mark and the block are inside of what was allocated.
        unsafe {
            start.cast::<Mark>().write(mark);
            start.add(place)
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (whole, place) = with_mark(layout).expect("it was allocated with this layout");
        // SAFETY: `alloc` has made the block with this layout.
        unsafe {
            let start = block.sub(place);
            start.cast::<Mark>().read().count(-(layout.size() as i64));
            System.dealloc(start, whole);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (whole, place) = with_mark(layout).expect("it was allocated with this layout");
        let longer = Layout::from_size_align(size, layout.align()).ok().and_then(with_mark);
        let Some((longer, _)) = longer else { return std::ptr::null_mut() };
        // SAFETY: `alloc` has made the block with this layout, and the alignment stays.
        unsafe {
            let start = System.realloc(block.sub(place), whole, longer.size());
            if start.is_null() {
                return start;
            }
            start.cast::<Mark>().read().count(size as i64 - layout.size() as i64);
            start.add(place)
        }
    }
}

/// Begins to count for another run.
pub(crate) fn begin_run() {
    RUN.fetch_add(1, Ordering::Relaxed);
    BYTES.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
}

/// Lets what is allocated from now on belong to a process. Returns the former owner.
pub(crate) fn set_owner(owner: usize) -> usize {
    OWNER.replace(if owner < COUNTED { owner } else { NOBODY })
}

/// Lets what `act` allocates belong to nobody.
pub fn of_nobody<T>(act: impl FnOnce() -> T) -> T {
    let owner = set_owner(NOBODY);
    let result = act();
    set_owner(owner);
    result
}

/// Returns the bytes that the tasks of a process have allocated, and nobody has freed.
pub fn bytes_of(process: ProcessId) -> usize {
    let bytes = BYTES.get(process.index()).map_or(0, |bytes| bytes.load(Ordering::Relaxed));
    usize::try_from(bytes).unwrap_or(0)
}
