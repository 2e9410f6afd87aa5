//! A server with holders to look at, for tests of queries.

use leasehold::{Client, Guard, HolderInfo, LockInfo};
use std::collections::BTreeMap;

use super::faults::{build, other, patient};
use super::server::Server;

/// A client of Redisson.
pub const JAVA: &str = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";

/// A client of leasehold that has ended and has no record.
pub const GONE: &str = "6ba7b810-9dad-81d1-80b4-00c04fd430c8";

/// A server, a client that holds locks, and a client that never locks anything.
pub struct Stage {
    // Fields are dropped in this order: the clients send their releases before the server ends.
    pub holding: Client,
    pub looking: Client,
    pub server: Server,
}

pub fn stage() -> Stage {
    let server = Server::start();
    let holding = build(patient(server.url()).pool_size(4).announce(true));
    let looking = other(&server);
    Stage { holding, looking, server }
}

impl Stage {
    /// Sets the fields of a hash; its key expires in 60 s.
    pub fn hash(&self, key: &str, fields: &[&str]) {
        self.server.ask::<()>(&[&["HSET", key], fields].concat());
        self.server.ask::<()>(&["PEXPIRE", key, "60000"]);
    }

    /// Takes these locks.
    pub fn hold(&self, names: &[&str]) -> Vec<Guard> {
        names.iter().map(|name| self.holding.lock(*name).lock().expect("free")).collect()
    }

    /// Returns what the handle of a lock shows of its holders.
    pub fn holders(&self, name: &str) -> Vec<HolderInfo> {
        self.looking.lock(name).holders().expect("an answer")
    }

    /// Returns what the client shows of the holders of a lock.
    pub fn info_holders(&self, name: &str) -> Vec<HolderInfo> {
        let info = self.looking.lock_info(name).expect("an answer").expect("held");
        info.holders().to_vec()
    }

    /// Returns the locks that a pattern selects, by their names.
    pub fn find(&self, pattern: &str) -> BTreeMap<String, LockInfo> {
        find(&self.looking, pattern)
    }

    pub fn names(&self, pattern: &str) -> Vec<String> {
        self.find(pattern).into_keys().collect()
    }
}

/// Returns the locks by their name, each of which is found once.
pub fn find(client: &Client, pattern: &str) -> BTreeMap<String, LockInfo> {
    let mut found = BTreeMap::new();
    for lock in client.locks(pattern).expect("a good pattern") {
        let lock = lock.expect("an answer");
        let before = found.insert(lock.name().to_owned(), lock);
        assert!(before.is_none(), "found twice: {before:?}");
    }
    found
}
