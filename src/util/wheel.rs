//! A hashed timer wheel, for many timers that are mostly cancelled before they are due.
//!
//! Time is cut into ticks. Tick `n` belongs to slot `n % SLOTS`. A slot is a doubly linked list of
//! the items due in its ticks, in any turn of the wheel. The wheel stores the tick it has reached:
//!
//! 1. An item goes to the slot of its tick, or of the reached tick if the item is due earlier. So
//!    no item is behind the reached tick.
//! 2. `advance` visits the slots from the reached tick to the tick of `now`, both included, or each
//!    slot once if that is more than a turn. It takes the items that are due. Items of a later
//!    turn, or later in the last tick, stay.
//! 3. Each slot has a moment before which none of its items is due. The moment is exact until an
//!    item is cancelled. Then it may be too early until the next visit, because an exact moment
//!    would require a walk through the list. `advance` skips a slot whose moment is later than
//!    `now`, and `next_due` is the earliest of these moments.
//!
//! The lists are links between the entries of one slab. A free entry is used again. Its generation
//! counts its items, and a key fits only the item of its own generation.
//!
//! | call               | cost                                                      |
//! |--------------------|-----------------------------------------------------------|
//! | `insert`, `cancel` | constant; memory grows only past the most items ever held |
//! | `advance`          | the slots passed, at most a turn, and the items in them   |
//! | `next_due`         | one look at each slot                                     |
//! | `iter`             | the most items ever held                                  |

use std::fmt;
use std::time::Duration;

use crate::util::clock::{self, Moment};

#[cfg(test)]
mod tests;

/// The slots in a turn. A power of two, so that some bits of a tick are its slot.
///
/// Enough that a timer of a few seconds is visited only a few times before it is due, and few
/// enough to check all in well under a microsecond.
const SLOTS: usize = 512;

/// A set of items with due times. The caller supplies the current time.
pub(crate) struct Wheel<T> {
    /// The start of tick 0, which includes all earlier moments.
    start: Moment,
    /// The length of a tick in nanoseconds, at least one.
    tick: u64,
    /// The tick that `advance` has reached. Never decreases.
    reached: u64,
    slots: Box<[WheelSlot; SLOTS]>,
    entries: Vec<WheelEntry<T>>,
    /// The first free entry; its `next` links to the others.
    free: Option<usize>,
    len: usize,
}

/// Identifies one item while the wheel holds it, and no other item afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: usize,
    generation: u64,
}

/// The head of one list.
#[derive(Clone, Copy)]
struct WheelSlot {
    first: Option<usize>,
    /// No item of the list is due before this moment.
    earliest: Moment,
}

impl WheelSlot {
    const EMPTY: WheelSlot = WheelSlot { first: None, earliest: Moment::END };
}

/// An item and its links in a list, or a link in the chain of free entries.
struct WheelEntry<T> {
    /// `None` while the entry is free.
    item: Option<T>,
    due: Moment,
    /// The number of items that have left this entry.
    generation: u64,
    slot: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

impl<T> WheelEntry<T> {
    const FREE: WheelEntry<T> = WheelEntry {
        item: None,
        due: Moment::END,
        generation: 0,
        slot: 0,
        previous: None,
        next: None,
    };
}

impl<T> Wheel<T> {
    /// Returns an empty wheel whose first tick begins at `start`.
    ///
    /// A shorter `tick` means fewer items per slot but more slots to visit. The due times do not
    /// depend on it.
    pub(crate) fn new(tick: Duration, start: Moment) -> Wheel<T> {
        Wheel {
            start,
            tick: clock::nanos(tick).max(1),
            reached: 0,
            slots: Box::new([WheelSlot::EMPTY; SLOTS]),
            entries: Vec::new(),
            free: None,
            len: 0,
        }
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all items, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.item.as_ref())
    }

    /// Holds `item` until `due`. The next `advance` fires an item that is due already.
    pub(crate) fn insert(&mut self, due: Moment, item: T) -> Key {
        let index = match self.free {
            Some(free) => {
                self.free = self.entries[free].next;
                free
            }
            None => {
                self.entries.push(WheelEntry::FREE);
                self.entries.len() - 1
            }
        };
        let slot = slot_of(self.tick_of(due).max(self.reached));
        let entry = &mut self.entries[index];
        entry.item = Some(item);
        entry.due = due;
        let generation = entry.generation;
        self.link(index, slot);
        self.len += 1;
        Key { index, generation }
    }

    /// Removes the item and returns it. `None` if the item has fired or was cancelled.
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get(key.index)?;
        if entry.generation != key.generation {
            return None;
        }
        self.remove(key.index)
    }

    /// Moves every item that is due at `now` to the end of `fired`.
    ///
    /// No item fires early or twice. The order within one call is not specified. `now` may be
    /// earlier than in an earlier call.
    pub(crate) fn advance(&mut self, now: Moment, fired: &mut Vec<T>) {
        let last = self.tick_of(now).max(self.reached);
        let turn_end = self.reached.saturating_add(SLOTS as u64 - 1);
        for tick in self.reached..=last.min(turn_end) {
            let slot = slot_of(tick);
            if self.slots[slot].earliest > now {
                continue;
            }
            // The earliest due time of the items that stay.
            let mut earliest = Moment::END;
            let mut cursor = self.slots[slot].first;
            while let Some(index) = cursor {
                let due = self.entries[index].due;
                cursor = self.entries[index].next;
                if due <= now {
                    fired.extend(self.remove(index));
                } else {
                    earliest = earliest.min(due);
                }
            }
            self.slots[slot].earliest = earliest;
        }
        self.reached = last;
    }

    /// Returns a moment before which no item is due, or `None` without items.
    ///
    /// The moment is that of the earliest item, unless an earlier item of the same slot was
    /// cancelled. Right after `advance(now)` it is later than `now`. So a thread that sleeps until
    /// `next_due`, advances and repeats never spins: each round fires an item, or is the one round
    /// that a cancelled item may still cost.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        if self.is_empty() {
            return None;
        }
        self.slots.iter().map(|slot| slot.earliest).min()
    }

    fn tick_of(&self, moment: Moment) -> u64 {
        moment.nanos().saturating_sub(self.start.nanos()) / self.tick
    }

    /// Empties an entry that holds an item. The key of the item then fits no item.
    fn remove(&mut self, index: usize) -> Option<T> {
        self.unlink(index);
        self.len -= 1;
        let entry = &mut self.entries[index];
        entry.generation += 1;
        entry.next = self.free.replace(index);
        entry.item.take()
    }

    /// Inserts an entry at the head of a slot's list.
    fn link(&mut self, index: usize, slot: usize) {
        let head = &mut self.slots[slot];
        let next = head.first.replace(index);
        let entry = &mut self.entries[index];
        head.earliest = head.earliest.min(entry.due);
        entry.slot = slot;
        entry.previous = None;
        entry.next = next;
        if let Some(next) = next {
            self.entries[next].previous = Some(index);
        }
    }

    /// Removes an entry from its slot's list, and resets the slot if the list is empty then.
    fn unlink(&mut self, index: usize) {
        let WheelEntry { slot, previous, next, .. } = self.entries[index];
        if let Some(next) = next {
            self.entries[next].previous = previous;
        }
        match (previous, next) {
            (Some(previous), _) => self.entries[previous].next = next,
            (None, Some(_)) => self.slots[slot].first = next,
            (None, None) => self.slots[slot] = WheelSlot::EMPTY,
        }
    }
}

fn slot_of(tick: u64) -> usize {
    (tick % SLOTS as u64) as usize
}

/// Shows the number of items, but not the items, which may be secret.
impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("len", &self.len)
            .field("next_due", &self.next_due())
            .finish_non_exhaustive()
    }
}
