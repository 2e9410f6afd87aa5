//! A master with replicas.

use crate::clients::{SECOND, START, ask, asks, output, server};
use crate::requests::{Request, Requests};
use crate::wire::encode;
use leasehold_testserver::Data;
use leasehold_testserver::core::{Address, Core, LogEntry};

/// A master with one replica.
struct Pair {
    master: Core,
    replica: Core,
    /// What the master has logged and the replica does not have.
    log: Vec<LogEntry>,
}

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

/// Makes a server the replica of a master at port 1.
fn join(master: &mut Core, replica: &mut Core, port: u16) {
    replica.become_replica_of(at(1));
    assert!(replica.load(master.add_replica(at(port))));
}

impl Pair {
    fn start() -> Self {
        let (mut master, mut replica) = (server(1), server(2));
        join(&mut master, &mut replica, 2);
        Self { master, replica, log: Vec::new() }
    }

    /// Carries so many entries of the log to the replica.
    fn carry(&mut self, count: usize) {
        self.log.extend(self.master.take_log());
        for entry in self.log.drain(..count) {
            assert!(self.replica.apply(&entry));
        }
    }

    fn carry_all(&mut self) {
        self.log.extend(self.master.take_log());
        self.carry(self.log.len());
    }

    fn acknowledge(&mut self) {
        let offset = self.replica.offset();
        self.master.acknowledge(&at(2), offset);
    }

    fn set_clock(&mut self, now: i64) {
        self.master.set_clock(now);
        self.replica.set_clock(now);
    }
}

#[test]
fn a_replica_has_a_prefix_of_its_masters_changes_and_loses_the_rest_by_its_promotion() {
    let mut pair = Pair::start();
    for request in ["SET a 1", "HSET h f 1", "SET a 2 NX", "DEL missing", "INCR a", "RPUSH l x"] {
        asks(&mut pair.master, request);
    }
    pair.carry(3);
    assert_eq!(pair.log.len(), 1, "requests that change nothing have no entry");
    assert_eq!(pair.replica.offset() + 1, pair.master.offset());
    assert_eq!(asks(&mut pair.replica, "MGET a l"), "*2|$1|2|$-1");
    assert_eq!(asks(&mut pair.replica, "HGET h f"), "$1|1");
    pair.replica.promote();
    assert_eq!(asks(&mut pair.replica, "INCR a"), ":3");
    assert!(!pair.replica.apply(&pair.log[0]), "an entry of the former master");
    assert_eq!(asks(&mut pair.replica, "EXISTS l"), ":0");
    // The former master follows, and loses what the replica did not have.
    join(&mut pair.replica, &mut pair.master, 1);
    assert_eq!(asks(&mut pair.master, "EXISTS l"), ":0");
    assert_eq!(asks(&mut pair.master, "GET a"), "$1|3");
    assert_eq!(pair.master.master(), Some(at(1)));
}

#[test]
fn an_entry_is_applied_once_and_in_order_and_by_synchronized_replicas_only() {
    let mut pair = Pair::start();
    for request in ["SET a 1", "APPEND a 2", "APPEND a 3"] {
        asks(&mut pair.master, request);
    }
    let log = pair.master.take_log();
    assert_eq!(log.iter().map(LogEntry::offset).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(!pair.replica.apply(&log[1]));
    assert!(pair.replica.apply(&log[0]));
    assert!(!pair.replica.apply(&log[0]));
    assert!(!pair.master.apply(&log[1]), "a master follows nobody");
    pair.replica.restart(Data::Kept);
    assert!(!pair.replica.apply(&log[1]), "a restarted replica loads the data first");
    assert_eq!(asks(&mut pair.replica, "GET a"), "$1|1");
    let snapshot = pair.master.add_replica(at(2));
    assert_eq!(snapshot.offset(), 3);
    assert!(pair.replica.load(snapshot.clone()));
    assert_eq!(asks(&mut pair.replica, "GET a"), "$3|123");
    assert!(!pair.master.load(snapshot));
}

#[test]
fn a_script_is_one_entry_with_its_effects_and_its_messages() {
    let mut pair = Pair::start();
    let subscriber = pair.replica.connect();
    ask(&mut pair.replica, subscriber, "HELLO 3");
    ask(&mut pair.replica, subscriber, "SUBSCRIBE c");
    asks(&mut pair.master, "HSET h a 1 b 2 c 3 d 4");
    let script = "redis.call([[set]],[[x]],redis.call([[hrandfield]],[[h]]))\
                  redis.call([[set]],[[t]],redis.call([[time]])[2],[[px]],7)\
                  redis.call([[publish]],[[c]],[[m]])";
    let script = script.replace(' ', "");
    asks(&mut pair.master, &format!("EVAL {script} 0"));
    pair.replica.set_clock(START + 3000);
    pair.carry(2);
    assert_eq!(output(&mut pair.replica, subscriber), ">3|$7|message|$1|c|$1|m");
    for request in ["MGET x t", "PEXPIRETIME t"] {
        let expected = asks(&mut pair.master, request);
        assert_eq!(asks(&mut pair.replica, request), expected, "{request}");
    }
    assert!(asks(&mut pair.replica, &format!("EVALSHA {} 0", "f".repeat(40))).contains("NOSCRIPT"));
    asks(&mut pair.master, "FLUSHALL");
    pair.carry_all();
    assert!(pair.replica.keys().is_empty());
}

#[test]
fn a_replica_hides_what_has_expired_and_its_master_removes_it() {
    let mut pair = Pair::start();
    asks(&mut pair.master, "SET a 1 PX 1000");
    pair.carry_all();
    asks(&mut pair.master, "PEXPIRE a 5000");
    // The replica has not yet the longer time.
    pair.set_clock(START + 2 * SECOND);
    assert_eq!(asks(&mut pair.replica, "EXISTS a"), ":0");
    assert_eq!(asks(&mut pair.replica, "DBSIZE"), ":0");
    pair.carry_all();
    assert_eq!(asks(&mut pair.replica, "PTTL a"), ":3000");
    pair.set_clock(START + 6 * SECOND);
    assert_eq!(asks(&mut pair.master, "GET a"), "$-1");
    pair.carry(1);
    // Had the clock of the replica gone back, the key would still be gone.
    pair.replica.set_clock(START);
    assert_eq!(asks(&mut pair.replica, "EXISTS a"), ":0");
    asks(&mut pair.master, "SET b 1 PX 1000");
    pair.carry_all();
    assert!(pair.master.expire(b"b"));
    pair.carry(1);
    assert!(pair.replica.keys().is_empty());
    asks(&mut pair.master, "SET c 1 PX 1000");
    pair.carry_all();
    pair.master.set_clock(START + 8 * SECOND);
    pair.replica.remove_expired();
    assert_eq!(pair.replica.keys().len(), 1, "it has not expired by the clock of the replica");
    pair.master.remove_expired();
    pair.carry(1);
    assert!(pair.replica.keys().is_empty());
    pair.replica.promote();
    asks(&mut pair.replica, "SET c 1 PX 1000");
    pair.replica.set_clock(START + 2 * SECOND);
    assert_eq!(asks(&mut pair.replica, "EXISTS c"), ":0");
}

#[test]
fn a_connection_waits_for_replicas_with_the_requests_behind() {
    let mut pair = Pair::start();
    let waiting = pair.master.connect();
    let Pair { master, .. } = &mut pair;
    assert_eq!(ask(master, waiting, "WAIT 1 1000\r\nPING"), "", "the replica is not online");
    assert_eq!(master.next_deadline(), Some(START + SECOND));
    assert_eq!(asks(master, "PING"), "+PONG", "other connections are served");
    assert_eq!(ask(master, waiting, "PING a"), "");
    pair.acknowledge();
    assert_eq!(output(&mut pair.master, waiting), ":1|+PONG|$1|a");
    assert_eq!(pair.master.next_deadline(), None);
    // The write of another connection is not waited for, as little as by a new connection.
    asks(&mut pair.master, "SET b 1");
    assert_eq!(asks(&mut pair.master, "WAIT 1 1000"), ":1");
    assert_eq!(ask(&mut pair.master, waiting, "WAIT 1 1000"), ":1");
    assert_eq!(ask(&mut pair.master, waiting, "SET a 1\r\nWAIT 1 1000"), "+OK");
    pair.carry(1);
    pair.acknowledge();
    assert_eq!(output(&mut pair.master, waiting), "", "too early");
    pair.carry(1);
    pair.acknowledge();
    assert_eq!(output(&mut pair.master, waiting), ":1");
    // Two of one replicas: until the time is over.
    assert_eq!(ask(&mut pair.master, waiting, "WAIT 2 1000"), "");
    pair.set_clock(START + SECOND - 1);
    assert_eq!(output(&mut pair.master, waiting), "");
    pair.set_clock(START + SECOND);
    assert_eq!(output(&mut pair.master, waiting), ":1");
    assert_eq!(ask(&mut pair.master, waiting, "WAIT 2 0"), "");
    assert_eq!(pair.master.next_deadline(), None, "it waits for ever");
    pair.master.disconnect(waiting);
}

#[test]
fn a_demotion_ends_waiting_connections_and_no_others() {
    let mut pair = Pair::start();
    let [waiting, other] = [(); 2].map(|()| pair.master.connect());
    ask(&mut pair.master, waiting, "WAIT 1 0\r\nPING");
    pair.master.become_replica_of(at(2));
    let error = "-UNBLOCKED force unblock from blocking operation, instance state changed (master \
                 -> replica?) END";
    assert_eq!(output(&mut pair.master, waiting), error);
    let refused = "-READONLY You can't write against a read only replica.";
    assert_eq!(ask(&mut pair.master, other, "SET a 1"), refused);
    assert_eq!(ask(&mut pair.master, other, "PING"), "+PONG");
    pair.master.close_connections();
    assert_eq!(output(&mut pair.master, other), " END");
}

#[test]
fn a_master_without_enough_good_replicas_takes_no_writes() {
    let mut pair = Pair::start();
    asks(&mut pair.master, "CONFIG SET min-replicas-to-write 1");
    pair.master.promote();
    pair.replica.become_replica_of(at(1));
    let refused = "-NOREPLICAS Not enough good replicas to write.";
    assert_eq!(asks(&mut pair.master, "SET a 1"), refused, "the replica is not online");
    pair.acknowledge();
    assert_eq!(asks(&mut pair.master, "SET a 1"), "+OK", "a master cannot be promoted");
    pair.carry(1);
    pair.set_clock(START + 10 * SECOND);
    assert_eq!(asks(&mut pair.master, "SET a 1"), "+OK");
    pair.set_clock(START + 11 * SECOND);
    assert_eq!(asks(&mut pair.master, "SET a 1"), refused);
    assert!(
        asks(&mut pair.master, "EVAL return(redis.call([[del]],[[a]])) 0").starts_with(refused)
    );
    assert_eq!(asks(&mut pair.master, "GET a"), "$1|1");
    pair.acknowledge();
    assert_eq!(asks(&mut pair.master, "DEL a"), ":1");
    pair.master.remove_replica(&at(2));
    assert_eq!(asks(&mut pair.master, "DEL a"), refused);
}

/// Returns all data of a server, as replies.
fn data(core: &mut Core) -> Vec<u8> {
    let connection = core.connect();
    let mut keys = core.keys();
    keys.sort();
    for key in keys {
        core.receive(connection, &encode(&[b"ECHO".to_vec(), key.clone()]));
        for read in
            ["PEXPIRETIME", "GET", "HGETALL", "LRANGE 0 -1", "SMEMBERS", "ZRANGE 0 -1 WITHSCORES"]
        {
            let mut request: Request = read.split(' ').map(|word| word.into()).collect();
            request.insert(1, key.clone());
            core.receive(connection, &encode(&request));
        }
    }
    let (replies, _) = core.take_output(connection);
    core.disconnect(connection);
    replies
}

/// The data of the master at some offset, and when they were so.
struct Past {
    offset: u64,
    at: i64,
    data: Vec<u8>,
}

#[test]
fn after_random_requests_a_replica_has_exactly_what_its_master_had() {
    for seed in 1..=10 {
        let mut pair = Pair::start();
        let mut requests = Requests::new(seed, START);
        let client = pair.master.connect();
        for load in requests.loads() {
            pair.master.receive(client, &encode(&load));
        }
        let mut pasts: Vec<Past> = Vec::new();
        for _ in 0..40 {
            requests.pass_time();
            pair.master.set_clock(requests.now);
            for _ in 0..50 {
                pair.master.receive(client, &encode(&requests.request()));
            }
            let data = data(&mut pair.master);
            pasts.push(Past { offset: pair.master.offset(), at: requests.now, data });
            // The replica is behind, by its clock too.
            let past = &pasts[requests.below(pasts.len())];
            if let Some(count) = past.offset.checked_sub(pair.replica.offset()) {
                pair.carry(count as usize);
                pair.replica.set_clock(past.at);
                assert!(self::data(&mut pair.replica) == past.data, "seed {seed}");
            }
        }
        assert!(pair.master.offset() > 200, "enough requests change something");
        pair.carry_all();
        pair.set_clock(requests.now);
        assert!(!pair.replica.keys().is_empty());
        assert!(data(&mut pair.replica) == data(&mut pair.master), "seed {seed}");
    }
}
