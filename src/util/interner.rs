//! One shared value per name, for as long as somebody has it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use crate::util::sync::Mutex;

/// Values by name. It keeps none alive, and forgets the dropped ones by and by: a
/// look costs one hash, whatever was here before.
#[derive(Debug)]
pub(crate) struct Interned<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    by_name: HashMap<Box<str>, Weak<T>>,
    /// The dropped values are cleared away when there are this many entries.
    tidy_at: usize,
}

impl<T> Default for Interned<T> {
    fn default() -> Interned<T> {
        Interned(Mutex::new(Table { by_name: HashMap::new(), tidy_at: 64 }))
    }
}

impl<T> Interned<T> {
    /// The value of that name; `make` makes it if nobody has one.
    pub(crate) fn get(&self, name: &str, make: impl FnOnce() -> T) -> Arc<T> {
        let mut table = self.0.lock();
        if let Some(value) = table.by_name.get(name).and_then(Weak::upgrade) {
            return value;
        }
        table.tidy();
        let value = Arc::new(make());
        table.by_name.insert(name.into(), Arc::downgrade(&value));
        value
    }

    /// All values that somebody has.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().by_name.values().filter_map(Weak::upgrade).collect()
    }
}

/// Values that were used lately: these are kept alive.
#[derive(Debug)]
pub(crate) struct Recent<T>(Mutex<VecDeque<Arc<T>>>);

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent(Mutex::new(VecDeque::new()))
    }
}

impl<T> Recent<T> {
    const MANY: usize = 32;

    pub(crate) fn keep(&self, value: &Arc<T>) {
        let mut all = self.0.lock();
        let before = all.iter().position(|watched| Arc::ptr_eq(watched, value));
        let oldest = match before {
            Some(at) => all.remove(at),
            None if all.len() < Self::MANY => None,
            None => all.pop_front(),
        };
        all.push_back(Arc::clone(value));
        drop(all);
        drop(oldest);
    }
}

impl<T> Table<T> {
    fn tidy(&mut self) {
        if self.by_name.len() >= self.tidy_at {
            self.by_name.retain(|_, value| value.strong_count() > 0);
            self.tidy_at = 2 * self.by_name.len().max(32);
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
        assert_eq!(table.all(), [first]);
    }

    #[test]
    fn a_dropped_value_is_made_anew() {
        let table = Interned::default();
        drop(table.get("a", || 1));
        assert_eq!(*table.get("a", || 2), 2);
    }

    #[test]
    fn what_was_used_lately_is_kept_and_the_oldest_let_go() {
        let (table, recent) = (Interned::default(), Recent::default());
        let many = Recent::<usize>::MANY;
        let used = |number: usize| recent.keep(&table.get(&number.to_string(), || number));
        (0..many).for_each(used);
        // The first is used again, and one more comes.
        [0, many].into_iter().for_each(used);
        let mut left: Vec<_> = table.all().into_iter().map(|value| *value).collect();
        left.sort_unstable();
        assert_eq!(left, Vec::from_iter((0..=many).filter(|number| *number != 1)));
    }
}
