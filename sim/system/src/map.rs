//! Hash maps whose order is the same in each run.

use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// The hasher of the maps, without random keys.
pub type Fixed = BuildHasherDefault<DefaultHasher>;

pub type HashMap<K, V> = std::collections::HashMap<K, V, Fixed>;
pub type HashSet<T> = std::collections::HashSet<T, Fixed>;
