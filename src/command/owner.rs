//! Who holds: the number of a hold, its owner field, and the thread behind it.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use uuid::Uuid;

use crate::util::sync::thread_local;

/// Returns a new client id: a random UUID of version 8. Redisson's are of version 4, so an owner
/// field tells which library wrote it.
pub(crate) fn client_id() -> Uuid {
    uuid::Builder::from_custom_bytes(Uuid::new_v4().into_bytes()).into_uuid()
}

/// Returns whether a name has the form of an owner field of this library. No caller may present
/// one: the hold behind it ends all that stands under that name.
pub(crate) fn is_owner_field(name: &str) -> bool {
    let id = name.split_once(':').and_then(|(id, _)| Uuid::try_parse(id).ok());
    id.is_some_and(|id| id.get_version_num() == 8)
}

/// The number of one hold: of one successful or unsuccessful attempt to get a
/// lock, never used twice by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldId(u64);

impl HoldId {
    pub(crate) fn next() -> HoldId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        HoldId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number as events show it, and the owner field in Redis.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// A number that differs from hold to hold: a seed for jitter.
    pub(crate) fn seed(self) -> u64 {
        self.0
    }
}

/// The owner field of a hold in Redis: `<client uuid>:<hold number>`, the form of
/// Redisson's `<uuid>:<thread id>`, with what a kind of lock puts behind it; or the name
/// that the caller gave to the holder.
#[derive(Clone)]
pub(crate) struct Owner {
    text: [u8; Owner::LONGEST],
    length: u8,
    holder: Option<Arc<str>>,
}

impl Owner {
    /// A hyphenated UUID, a colon, the digits of a `u64`, `:write`.
    const LONGEST: usize = 36 + 1 + 20 + 6;

    pub(crate) fn new(client: Uuid, hold: HoldId, suffix: &str) -> Owner {
        let mut owner = Owner { text: [0; Owner::LONGEST], length: 0, holder: None };
        // It fits, by the length above: the writer below has nothing to refuse.
        let _ = write!(owner, "{client}:{}{suffix}", hold.0);
        owner
    }

    /// Gives the hold to a named holder, if there is one.
    pub(crate) fn named(self, holder: Option<Arc<str>>) -> Owner {
        Owner { holder, ..self }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.holder {
            Some(holder) => holder.as_bytes(),
            None => &self.text[..usize::from(self.length)],
        }
    }

    /// The hold itself, also where its holder has a name.
    pub(crate) fn hold(&self) -> &str {
        // Only text was written into it.
        std::str::from_utf8(&self.text[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Write for Owner {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let start = usize::from(self.length);
        let end = start + part.len();
        let room = self.text.get_mut(start..end).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        // It is no longer than the text, which is short.
        self.length = end as u8;
        Ok(())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.holder.as_deref().unwrap_or_else(|| self.hold()))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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
    /// To an owned guard that this thread took, wherever it is now.
    Owned { by: ThreadId },
}

impl Holder {
    pub(crate) fn this_thread() -> Holder {
        thread_local!(static ALIVE: Arc<()> = Arc::default());
        let alive = ALIVE.try_with(Arc::downgrade).unwrap_or_default();
        Holder::Thread { id: ThreadId::current(), alive }
    }

    pub(crate) fn owned() -> Holder {
        Holder::Owned { by: ThreadId::current() }
    }

    /// Whether it is an owned guard that this thread took.
    pub(crate) fn was_taken_by(&self, thread: ThreadId) -> bool {
        matches!(self, Holder::Owned { by } if *by == thread)
    }

    pub(crate) fn is_thread(&self, thread: ThreadId) -> bool {
        matches!(self, Holder::Thread { id, .. } if *id == thread)
    }

    pub(crate) fn thread(&self) -> Option<ThreadId> {
        match self {
            Holder::Thread { id, .. } => Some(*id),
            Holder::Owned { .. } => None,
        }
    }

    pub(crate) fn is_same_thread(&self, other: &Holder) -> bool {
        matches!(other, Holder::Thread { id, .. } if self.is_thread(*id))
    }

    pub(crate) fn is_owned(&self) -> bool {
        matches!(self, Holder::Owned { .. })
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
        let owner = Owner::new(client, HoldId(u64::MAX), ":write");
        let text = format!("{client}:18446744073709551615:write");
        assert_eq!(owner.as_bytes(), text.as_bytes());
        let owner = Owner::new(client, HoldId(7), "");
        assert_eq!(format!("{owner:?}"), format!("{client}:7"));
        let named = owner.named(Some("tx-42".into()));
        assert_eq!((named.as_bytes(), named.to_string()), (&b"tx-42"[..], "tx-42".to_owned()));
        assert_eq!(named.hold(), format!("{client}:7"));
    }

    #[test]
    fn an_owner_field_of_this_library_is_known_by_its_client() {
        let (client, redisson) = (client_id(), Uuid::new_v4());
        assert_ne!(client, client_id());
        assert_eq!(client.get_variant(), redisson.get_variant());
        for ours in [format!("{client}:1"), format!("{client}:7:write")] {
            assert!(is_owner_field(&ours), "{ours}");
        }
        for free in [format!("{redisson}:1"), client.to_string(), "tx-42".into(), "é:1".into()] {
            assert!(!is_owner_field(&free), "{free}");
        }
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
        let owned = Holder::owned();
        assert!(owned.is_owned() && !owned.has_ended() && !owned.is_thread(ThreadId::current()));
        assert!(owned.was_taken_by(ThreadId::current()) && !mine.was_taken_by(ThreadId::current()));
    }
}
