//! Keys, their values and their expiry.

use super::resp::Bytes;
use super::sorted_set::SortedSet;
use indexmap::IndexMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};

/// What a key holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(Bytes),
    List(VecDeque<Bytes>),
    /// Fields in the order in which they came, as Redis keeps them in a small hash.
    Hash(IndexMap<Bytes, Bytes>),
    Set(BTreeSet<Bytes>),
    SortedSet(SortedSet),
}

impl Value {
    /// Returns the name that `TYPE` answers.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::List(_) => "list",
            Self::Hash(_) => "hash",
            Self::Set(_) => "set",
            Self::SortedSet(_) => "zset",
        }
    }

    /// Tells whether nothing is left, so that the key ends.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::List(items) => items.is_empty(),
            Self::Hash(fields) => fields.is_empty(),
            Self::Set(members) => members.is_empty(),
            Self::SortedSet(members) => members.is_empty(),
        }
    }
}

/// A type of values, which commands ask for.
pub(crate) trait Kind: Default {
    fn of(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
}

macro_rules! kind {
    ($type:ty, $variant:ident) => {
        impl Kind for $type {
            fn of(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn into_value(self) -> Value {
                Value::$variant(self)
            }
        }
    };
}

kind!(Bytes, Text);
kind!(VecDeque<Bytes>, List);
kind!(IndexMap<Bytes, Bytes>, Hash);
kind!(BTreeSet<Bytes>, Set);
kind!(SortedSet, SortedSet);

/// A key's value, and the time after which the key is gone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// In milliseconds since 1970.
    pub(crate) expires: Option<i64>,
}

impl Entry {
    pub(crate) fn is_alive(&self, now: i64) -> bool {
        self.expires.is_none_or(|at| now <= at)
    }
}

/// The keys of one database.
///
/// They stand in the order of their hashes, so that a cursor of `SCAN` is a hash: whatever comes
/// and goes between two calls, every key that stays is returned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keyspace {
    buckets: BTreeMap<u64, Vec<(Bytes, Entry)>>,
    len: usize,
    /// The entries that were made since the last removal of all that has expired.
    made: usize,
}

impl Keyspace {
    /// Returns the entry of a key, whether it has expired or not.
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let bucket = self.buckets.get_mut(&hash_of(key))?;
        bucket.iter_mut().find(|(other, _)| other == key).map(|(_, entry)| entry)
    }

    /// Sets the value and the expiry of a key.
    pub(crate) fn set(&mut self, key: &[u8], entry: Entry) {
        let bucket = self.buckets.entry(hash_of(key)).or_default();
        match bucket.iter_mut().find(|(other, _)| other == key) {
            Some((_, old)) => *old = entry,
            None => {
                bucket.push((key.to_vec(), entry));
                self.len += 1;
                self.made += 1;
            }
        }
    }

    /// Removes a key, whether it has expired or not.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let hash = hash_of(key);
        let bucket = self.buckets.get_mut(&hash)?;
        let at = bucket.iter().position(|(other, _)| other == key)?;
        let (_, entry) = bucket.swap_remove(at);
        if bucket.is_empty() {
            self.buckets.remove(&hash);
        }
        self.len -= 1;
        Some(entry)
    }

    /// Removes a key whose value has nothing left.
    pub(crate) fn remove_if_empty(&mut self, key: &[u8]) {
        if self.get(key).is_some_and(|entry| entry.value.is_empty()) {
            self.remove(key);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of keys that exist at `now`, in milliseconds since 1970.
    pub(crate) fn count(&self, now: i64) -> usize {
        self.starting_at(0, now).map(|(_, keys)| keys.count()).sum()
    }

    /// Tells whether half of the keys are new, so that it is time to remove what has expired: keys
    /// that nobody asks for again shall not take memory for ever.
    pub(crate) fn has_many_new(&self) -> bool {
        self.made > 1000 && 2 * self.made > self.len
    }

    /// Removes what has expired, and returns its keys.
    pub(crate) fn remove_expired(&mut self, now: i64) -> Vec<Bytes> {
        let all = self.buckets.values().flatten();
        let expired = all.filter(|(_, entry)| !entry.is_alive(now));
        let expired: Vec<Bytes> = expired.map(|(key, _)| key.clone()).collect();
        for key in &expired {
            self.remove(key);
        }
        self.made = 0;
        expired
    }

    /// Returns the keys that exist at `now` and whose hash is `from` at least, in groups of one
    /// hash, with their hash.
    pub(crate) fn starting_at(
        &self,
        from: u64,
        now: i64,
    ) -> impl Iterator<Item = (u64, impl Iterator<Item = (&Bytes, &Entry)>)> {
        self.buckets.range(from..).map(move |(hash, bucket)| {
            let alive = bucket.iter().filter(move |(_, entry)| entry.is_alive(now));
            (*hash, alive.map(|(key, entry)| (key, entry)))
        })
    }
}

/// Returns the hash of a key, the same in every process.
fn hash_of(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}
