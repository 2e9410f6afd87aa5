//! Who holds: the number of a hold, its owner field, and the thread behind it.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use uuid::Uuid;

use crate::sync::thread_local;

/// The number of one hold: of one successful or unsuccessful attempt to get a
/// lock, never used twice by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldId(u64);

impl HoldId {
    pub(crate) fn next() -> HoldId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        HoldId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A number that differs from hold to hold: a seed for jitter.
    pub(crate) fn seed(self) -> u64 {
        self.0
    }
}

/// The owner field of a hold in Redis: `<client uuid>:<hold number>`, the form of
/// Redisson's `<uuid>:<thread id>`.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    text: [u8; Owner::LONGEST],
    length: usize,
}

impl Owner {
    /// A hyphenated UUID, a colon, the digits of a `u64`.
    const LONGEST: usize = 36 + 1 + 20;

    pub(crate) fn new(client: Uuid, hold: HoldId) -> Owner {
        let mut owner = Owner { text: [0; Owner::LONGEST], length: 0 };
        // It fits, by the length above: the writer below has nothing to refuse.
        let _ = write!(owner, "{client}:{}", hold.0);
        owner
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

impl fmt::Write for Owner {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.length + part.len();
        let room = self.text.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

/// One thread of this process, never two, also after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadId(u64);

impl ThreadId {
    /// The calling thread's; works also while its thread-locals are destroyed.
    pub(crate) fn current() -> ThreadId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static ID: Cell<u64> = const { Cell::new(0) });
        ID.with(|id| {
            if id.get() == 0 {
                id.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            ThreadId(id.get())
        })
    }
}

/// To whom a hold belongs.
#[derive(Clone, Debug)]
pub(crate) enum Holder {
    /// To a thread, which may re-enter. Its part of `alive` is dropped when it ends.
    Thread { id: ThreadId, alive: Weak<()> },
    /// To an owned guard, wherever it goes.
    Owned,
}

impl Holder {
    pub(crate) fn this_thread() -> Holder {
        thread_local!(static ALIVE: Arc<()> = Arc::default());
        let alive = ALIVE.try_with(Arc::downgrade).unwrap_or_default();
        Holder::Thread { id: ThreadId::current(), alive }
    }

    pub(crate) fn is_thread(&self, thread: ThreadId) -> bool {
        matches!(self, Holder::Thread { id, .. } if *id == thread)
    }

    pub(crate) fn is_owned(&self) -> bool {
        matches!(self, Holder::Owned)
    }

    /// Whether it belongs to a thread that has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Holder::Thread { alive, .. } if alive.strong_count() == 0)
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_redissons_form() {
        let client = Uuid::new_v4();
        let owner = Owner::new(client, HoldId(u64::MAX));
        let text = format!("{client}:18446744073709551615");
        assert_eq!(owner.as_bytes(), text.as_bytes());
        assert_eq!(format!("{:?}", Owner::new(client, HoldId(7))), format!("{client}:7"));
    }

    #[test]
    fn numbers_are_never_used_twice() {
        let many = |_| std::thread::spawn(|| (0..1000).map(|_| HoldId::next().0).collect());
        let threads: Vec<std::thread::JoinHandle<Vec<u64>>> = (0..4).map(many).collect();
        let mut all: Vec<u64> =
            threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4000);
    }

    #[test]
    fn a_holder_knows_its_thread_and_that_it_has_ended() {
        let mine = Holder::this_thread();
        assert!(mine.is_thread(ThreadId::current()) && !mine.has_ended());
        let other = std::thread::spawn(Holder::this_thread).join().expect("no panic");
        assert!(!other.is_thread(ThreadId::current()) && other.has_ended());
        assert!(Holder::Owned.is_owned() && !Holder::Owned.has_ended());
    }
}
