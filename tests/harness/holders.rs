//! A server with holders to look at, for tests of queries.

use leasehold::Client;

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
}
