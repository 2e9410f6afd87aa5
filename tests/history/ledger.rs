//! What the locks protect: a store on a server of its own, to which nothing happens.
//!
//! Each account is changed in two steps, read and write, with time between them, so two that
//! do it at once lose an update: the account's value then falls behind the number of writes
//! that were accepted. A fenced account refuses, at both steps, who comes with a smaller
//! token than another before.

use crate::harness::Server;
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
pub struct Ledger {
    connection: Connection,
}

/// What became of an account.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub name: String,
    /// How many writes were accepted.
    pub writes: u64,
    /// What the account says: each of them had added one.
    pub value: u64,
}

impl Account {
    /// How many accepted writes another has overwritten unseen.
    pub fn lost(&self) -> u64 {
        self.writes - self.value.min(self.writes)
    }
}

impl Ledger {
    pub fn open(url: &str) -> Ledger {
        let client = redis::Client::open(url).expect("a good address");
        let connection = client.get_connection().expect("nothing happens to the store");
        Ledger { connection }
    }

    /// The value of an account, or `None` if the token is stale.
    pub fn read(&mut self, account: &str, token: u64) -> Option<u64> {
        let call = call(READ, account, token);
        let value: i64 = call.query(&mut self.connection).expect("an answer");
        u64::try_from(value).ok()
    }

    /// Sets an account. Whether it was accepted.
    pub fn write(&mut self, account: &str, token: u64, value: u64) -> bool {
        let mut call = call(WRITE, account, token);
        call.arg(value).query(&mut self.connection).expect("an answer")
    }
}

fn call(script: &str, account: &str, token: u64) -> redis::Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(script).arg(1).arg(account).arg(token);
    call
}

/// All accounts of a store.
pub fn accounts(server: &Server) -> Vec<Account> {
    let account = |name: String| {
        let field = |field| server.ask::<Option<u64>>(&["HGET", &name, field]).unwrap_or(0);
        Account { writes: field("writes"), value: field("value"), name }
    };
    server.keys().into_iter().map(account).collect()
}

#[test]
fn a_fenced_account_refuses_who_is_stale_and_another_loses_its_update() {
    let server = Server::start();
    let [mut one, mut two] = [Ledger::open(&server.url()), Ledger::open(&server.url())];
    assert_eq!((one.read("fenced", 1), two.read("fenced", 2)), (Some(0), Some(0)));
    assert!(!one.write("fenced", 1, 1), "two has read since");
    assert!(two.write("fenced", 2, 1));
    assert_eq!(one.read("fenced", 1), None);

    assert_eq!((one.read("open", 0), two.read("open", 0)), (Some(0), Some(0)));
    assert!(one.write("open", 0, 1) && two.write("open", 0, 1));
    let mut lost: Vec<_> = accounts(&server).iter().map(|a| (a.name.clone(), a.lost())).collect();
    lost.sort();
    assert_eq!(lost, [("fenced".to_owned(), 0), ("open".to_owned(), 1)]);
}
