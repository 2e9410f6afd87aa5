//! One shared value per name, for as long as it has a user.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::util::sync::Mutex;
use crate::util::system::HashMap;

/// Shared values by name. Keeps none of them alive.
///
/// A lookup costs one hash. Entries of dropped values are removed when the table has doubled.
#[derive(Debug)]
pub(crate) struct Interned<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    by_name: HashMap<Box<str>, Weak<T>>,
    /// The number of entries at which those of dropped values are removed.
    cleanup_at: usize,
}

impl<T> Default for Interned<T> {
    fn default() -> Interned<T> {
        Interned(Mutex::new(Table { by_name: HashMap::default(), cleanup_at: 64 }))
    }
}

impl<T> Interned<T> {
    /// Returns the value of that name. Calls `make` if no value of that name has a user.
    pub(crate) fn get(&self, name: &str, make: impl FnOnce() -> T) -> Arc<T> {
        let mut table = self.0.lock();
        if let Some(value) = table.by_name.get(name).and_then(Weak::upgrade) {
            return value;
        }
        table.remove_dropped();
        let value = Arc::new(make());
        table.by_name.insert(name.into(), Arc::downgrade(&value));
        value
    }

    /// Returns the value of that name, if it has a user.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<T>> {
        self.0.lock().by_name.get(name).and_then(Weak::upgrade)
    }

    /// Returns all values that have a user.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().by_name.values().filter_map(Weak::upgrade).collect()
    }
}

/// Keeps the most recently used values alive.
#[derive(Debug)]
pub(crate) struct Recent<T>(Mutex<VecDeque<Arc<T>>>);

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent(Mutex::new(VecDeque::new()))
    }
}

impl<T> Recent<T> {
    const CAPACITY: usize = 32;

    /// Marks a value as the most recent one; lets the oldest go if there are too many.
    pub(crate) fn keep(&self, value: &Arc<T>) {
        let mut all = self.0.lock();
        let before = all.iter().position(|kept| Arc::ptr_eq(kept, value));
        let oldest = match before {
            Some(at) => all.remove(at),
            None if all.len() < Self::CAPACITY => None,
            None => all.pop_front(),
        };
        all.push_back(Arc::clone(value));
        // A destructor must not run under the mutex.
        drop(all);
        drop(oldest);
    }
}

impl<T> Table<T> {
    fn remove_dropped(&mut self) {
        if self.by_name.len() >= self.cleanup_at {
            self.by_name.retain(|_, value| value.strong_count() > 0);
            self.cleanup_at = 2 * self.by_name.len().max(32);
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn values_are_shared_by_name_and_forgotten_when_dropped() {
        let table = Interned::default();
        let first = table.get("a", || 1);
        assert!(Arc::ptr_eq(&first, &table.get("a", || 2)));
        (0..1000).for_each(|n| drop(table.get(&format!("x{n}"), || n)));
        assert!(table.0.lock().by_name.len() < 100);
        assert_eq!(table.find("a").as_deref(), Some(&1));
        assert!(table.find("x1").is_none() && table.find("y").is_none());
        assert_eq!(table.all(), [first]);
    }

    #[test]
    fn a_dropped_value_is_made_anew() {
        let table = Interned::default();
        drop(table.get("a", || 1));
        assert_eq!(*table.get("a", || 2), 2);
    }

    #[test]
    fn recently_used_values_are_kept_and_the_oldest_is_dropped() {
        let (table, recent) = (Interned::default(), Recent::default());
        let capacity = Recent::<usize>::CAPACITY;
        let used = |number: usize| recent.keep(&table.get(&number.to_string(), || number));
        (0..capacity).for_each(used);
        // The first value is used again, and one more is added.
        [0, capacity].into_iter().for_each(used);
        let mut left: Vec<_> = table.all().into_iter().map(|value| *value).collect();
        left.sort_unstable();
        assert_eq!(left, Vec::from_iter((0..=capacity).filter(|number| *number != 1)));
    }
}
