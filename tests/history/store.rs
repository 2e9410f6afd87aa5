//! The store that the locks protect, on a separate server without faults.
//!
//! A worker changes an account in two steps, a read and a later write. Two workers that do this at
//! once lose an update: the value of the account then falls behind the number of accepted writes.
//! A fenced account refuses, at both steps, a token smaller than the largest it has seen.

use crate::harness::Server;
use crate::report::Account;
use redis::Connection;

/// KEYS: 1 the account. ARGV: 1 fencing token, 0 for none. RETURNS: the value, or -1: stale.
const READ: &str = "
local newest = tonumber(redis.call('hget', KEYS[1], 'newest') or 0)
local token = tonumber(ARGV[1])
if token > 0 and token < newest then return -1 end
redis.call('hset', KEYS[1], 'newest', string.format('%.0f', math.max(token, newest)))
return tonumber(redis.call('hget', KEYS[1], 'value') or 0)";

/// KEYS: 1 the account. ARGV: 1 fencing token, 0 for none, 2 the new value.
/// RETURNS: 1, or 0: stale.
const WRITE: &str = "
local newest = tonumber(redis.call('hget', KEYS[1], 'newest') or 0)
local token = tonumber(ARGV[1])
if token > 0 and token < newest then return 0 end
redis.call('hset', KEYS[1], 'newest', string.format('%.0f', math.max(token, newest)))
redis.call('hset', KEYS[1], 'value', ARGV[2])
redis.call('hincrby', KEYS[1], 'writes', 1)
return 1";

/// A connection to the store.
pub struct Store {
    connection: Connection,
}

impl Store {
    pub fn open(url: &str) -> Store {
        let client = redis::Client::open(url).expect("a good address");
        let connection = client.get_connection().expect("the store is free of faults");
        Store { connection }
    }

    /// Returns the value of an account, or `None` if the token is stale.
    pub fn read(&mut self, account: &str, token: u64) -> Option<u64> {
        let call = call(READ, account, token);
        let value: i64 = call.query(&mut self.connection).expect("a reply");
        u64::try_from(value).ok()
    }

    /// Sets the value of an account. Returns whether the store accepted the write.
    pub fn write(&mut self, account: &str, token: u64, value: u64) -> bool {
        let mut call = call(WRITE, account, token);
        call.arg(value).query(&mut self.connection).expect("a reply")
    }
}

fn call(script: &str, account: &str, token: u64) -> redis::Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(script).arg(1).arg(account).arg(token);
    call
}

/// Returns all accounts of a store.
pub fn accounts(server: &Server) -> Vec<Account> {
    let account = |name: String| {
        let field = |field| server.ask::<Option<u64>>(&["HGET", &name, field]).unwrap_or(0);
        Account { writes: field("writes"), value: field("value"), name }
    };
    server.keys().into_iter().map(account).collect()
}

#[test]
fn a_fenced_account_refuses_a_stale_token_and_an_unfenced_one_loses_an_update() {
    let server = Server::start();
    let [mut one, mut two] = [Store::open(&server.url()), Store::open(&server.url())];
    assert_eq!((one.read("fenced", 1), two.read("fenced", 2)), (Some(0), Some(0)));
    assert!(!one.write("fenced", 1, 1), "token 2 has read since");
    assert!(two.write("fenced", 2, 1));
    assert_eq!(one.read("fenced", 1), None);

    assert_eq!((one.read("open", 0), two.read("open", 0)), (Some(0), Some(0)));
    assert!(one.write("open", 0, 1) && two.write("open", 0, 1));
    let mut lost: Vec<_> = accounts(&server).iter().map(|a| (a.name.clone(), a.lost())).collect();
    lost.sort();
    assert_eq!(lost, [("fenced".to_owned(), 0), ("open".to_owned(), 1)]);
}
