//! The store that the locks protect: without faults, one step at a time.

use crate::report::Account;
use simulated::{memory, thread, world};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time of a request and of its reply on their ways, in microseconds.
const WAY: u64 = 100;

#[derive(Default)]
struct Entry {
    newest: u64,
    value: u64,
    writes: u64,
}

thread_local! {
    static ENTRIES: RefCell<BTreeMap<String, Entry>> = const { RefCell::new(BTreeMap::new()) };
}

/// A connection to the store of the run.
#[derive(Debug)]
pub struct Store;

impl Store {
    pub fn open(_url: &str) -> Store {
        Store
    }

    /// Returns the value of an account, or `None` if the token is stale. A token of 0 is none.
    pub fn read(&mut self, account: &str, token: u64) -> Option<u64> {
        step(account, token, |entry| entry.value)
    }

    /// Sets the value of an account. Returns whether the store accepted the write.
    pub fn write(&mut self, account: &str, token: u64, value: u64) -> bool {
        step(account, token, |entry| (entry.value, entry.writes) = (value, entry.writes + 1))
            .is_some()
    }
}

fn step<T>(account: &str, token: u64, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
    let way = || thread::sleep(Duration::from_micros(world::random() % WAY));
    way();
    let act = |entries: &mut BTreeMap<String, Entry>| {
        let entry = entries.entry(account.to_owned()).or_default();
        if token > 0 && token < entry.newest {
            return None;
        }
        entry.newest = entry.newest.max(token);
        Some(act(entry))
    };
    let done = memory::of_nobody(|| ENTRIES.with_borrow_mut(act));
    way();
    done
}

/// Empties the store, and returns what it had.
pub fn take_accounts() -> Vec<Account> {
    let entries = ENTRIES.take();
    let account =
        |(name, entry): (String, Entry)| Account { name, writes: entry.writes, value: entry.value };
    entries.into_iter().map(account).collect()
}
