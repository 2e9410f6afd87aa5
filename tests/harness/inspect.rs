//! Questions of a test to its server.

use super::server::{HARNESS, Server};
use super::wait::{QUIET, await_unchanged};
use redis::FromRedisValue;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The start of the keys of the records that clients write about themselves.
const RECORDS: &str = "leasehold_client:";

/// One client connection of `CLIENT LIST`.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The id for `CLIENT KILL ID`.
    pub id: u64,
    /// The name of `CLIENT SETNAME`, or empty.
    pub name: String,
    /// The flags, such as `N` (nothing special), `P` (pub/sub), `b` (blocked).
    pub flags: String,
    /// The last command, in lower case, with its subcommand: `client|list`.
    pub cmd: String,
    /// The number of subscribed channels.
    pub sub: usize,
    /// All fields of the line, including those above.
    pub fields: HashMap<String, String>,
}

impl Server {
    /// Runs one command as the administrator; panics if the command fails.
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let (name, rest) = words.split_first().expect("a command has a name");
        redis::cmd(name)
            .arg(rest)
            .query(&mut self.connection())
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Runs one command as the administrator, or returns `None`.
    ///
    /// `None` if the server does not run, is stopped, refuses, or gives a reply that is no `T`.
    pub fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let (name, rest) = words.split_first().expect("a command has a name");
        let mut connection = self.runs().then(|| self.try_connection().ok())??;
        redis::cmd(name).arg(rest).query(&mut connection).ok()
    }

    /// Returns whether the server's `INFO replication` has this line, such as `role:master`.
    pub fn says(&self, line: &str) -> bool {
        let text: Option<String> = self.try_ask(&["INFO", "replication"]);
        text.is_some_and(|text| text.lines().any(|other| other == line))
    }

    /// Returns the fields of a section of `INFO`.
    pub fn info(&self, section: &str) -> HashMap<String, String> {
        let text: String = self.ask(&["INFO", section]);
        text.lines().filter_map(|line| line.split_once(':')).map(owned).collect()
    }

    /// Returns all keys except the records of clients, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]);
        keys.retain(|key| !key.starts_with(RECORDS));
        sorted(keys)
    }

    /// Returns the type and the whole value of a key, as a text that is the same for equal values.
    pub fn content(&self, key: &str) -> String {
        type Bytes = Vec<u8>;
        let kind: String = self.ask(&["TYPE", key]);
        let value = match &*kind {
            "none" => String::new(),
            "string" => format!("{:?}", self.ask::<Bytes>(&["GET", key])),
            "hash" => format!("{:?}", self.ask::<BTreeMap<Bytes, Bytes>>(&["HGETALL", key])),
            "list" => format!("{:?}", self.ask::<Vec<Bytes>>(&["LRANGE", key, "0", "-1"])),
            "set" => format!("{:?}", self.ask::<BTreeSet<Bytes>>(&["SMEMBERS", key])),
            "zset" => {
                let words = ["ZRANGE", key, "0", "-1", "WITHSCORES"];
                format!("{:?}", self.ask::<Vec<Bytes>>(&words))
            }
            _ => panic!("{key} is a {kind}"),
        };
        format!("{kind} {value}")
    }

    /// Returns the keys of the records of clients, sorted.
    pub fn client_records(&self) -> Vec<String> {
        sorted(self.ask(&["KEYS", &format!("{RECORDS}*")]))
    }

    /// Returns all channels with subscribers, sorted, without sharded channels.
    pub fn channels(&self) -> Vec<String> {
        sorted(self.ask(&["PUBSUB", "CHANNELS"]))
    }

    /// Returns the number of subscribers of this channel.
    pub fn numsub(&self, channel: &str) -> usize {
        let (_, count): (String, usize) = self.ask(&["PUBSUB", "NUMSUB", channel]);
        count
    }

    /// Blocks until one client is subscribed to this channel, and no client asks for a lock.
    ///
    /// After that, only a message or a poll can wake the waiter.
    pub fn await_quiet_waiter(&self, channel: &str) {
        await_unchanged("the waiter is subscribed and asks no more", QUIET, || {
            (self.numsub(channel) == 1).then(|| self.calls("evalsha"))
        });
    }

    /// Returns the number of subscribers of this channel, sharded or not.
    pub fn listeners(&self, channel: &str) -> usize {
        let count = |how: &str| -> usize {
            let reply: Option<(String, usize)> = self.try_ask(&["PUBSUB", how, channel]);
            reply.map_or(0, |(_, count)| count)
        };
        count("NUMSUB") + count("SHARDNUMSUB")
    }

    /// Returns all connections except those of the harness.
    pub fn clients(&self) -> Vec<Peer> {
        self.peers(&["CLIENT", "LIST"])
    }

    /// Closes the connections of this type (`normal` or `pubsub`), and returns their number.
    ///
    /// The connections of the harness stay open.
    pub fn client_kill_type(&self, kind: &str) -> usize {
        self.peers(&["CLIENT", "LIST", "TYPE", kind])
            .iter()
            .filter(|peer| self.client_kill(peer.id))
            .count()
    }

    /// Closes one connection, and returns whether it existed.
    pub fn client_kill(&self, id: u64) -> bool {
        self.ask(&["CLIENT", "KILL", "ID", &id.to_string()])
    }

    /// Returns the number of calls of each command, by its name in lower case.
    ///
    /// Calls by scripts and by the harness count too.
    pub fn commandstats(&self) -> HashMap<String, u64> {
        self.info("commandstats")
            .iter()
            .filter_map(|(name, stats)| Some((name.strip_prefix("cmdstat_")?, stats)))
            .map(|(name, stats)| (name.to_owned(), calls(stats)))
            .collect()
    }

    /// Returns the number of calls of this command.
    pub fn calls(&self, command: &str) -> u64 {
        self.commandstats().get(command).copied().unwrap_or(0)
    }

    /// Sets the counts of `commandstats` to 0.
    pub fn reset_stats(&self) {
        self.ask(&["CONFIG", "RESETSTAT"])
    }

    /// Makes the server refuse commands that take memory: it uses far more than it may.
    pub fn refuse_memory(&self) {
        self.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        self.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let refused = redis::cmd("SET").arg(&["new", "data"]).query::<()>(&mut self.connection());
        assert_eq!(refused.expect_err("the server is full").code(), Some("OOM"));
    }

    /// Lets the server take any memory again.
    pub fn grant_memory(&self) {
        self.ask(&["CONFIG", "SET", "maxmemory", "0"])
    }

    fn peers(&self, words: &[&str]) -> Vec<Peer> {
        let text: String = self.ask(words);
        text.lines().map(Peer::parse).filter(|peer| peer.name != HARNESS).collect()
    }
}

impl Peer {
    fn parse(line: &str) -> Self {
        let fields: HashMap<String, String> =
            line.split(' ').filter_map(|field| field.split_once('=')).map(owned).collect();
        let number = |name: &str| fields[name].parse().expect("a number");
        Self {
            id: number("id"),
            name: fields["name"].clone(),
            flags: fields["flags"].clone(),
            cmd: fields["cmd"].clone(),
            sub: usize::try_from(number("sub")).expect("a count fits"),
            fields,
        }
    }
}

/// Parses `calls=<n>,usec=...`.
fn calls(stats: &str) -> u64 {
    let (calls, _) = stats.split_once(',').expect("several fields");
    let count = calls.strip_prefix("calls=").expect("calls come first");
    count.parse().expect("a number")
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// Returns whether the key exists: the lock is held.
pub fn exists(server: &Server, name: &str) -> bool {
    server.ask(&["EXISTS", name])
}

/// Returns the reply of `PTTL`: the remaining lease of a lock in milliseconds.
pub fn pttl(server: &Server, name: &str) -> i64 {
    server.ask(&["PTTL", name])
}

/// Returns the owner field of a held lock.
pub fn owner(server: &Server, name: &str) -> String {
    let fields: Vec<String> = server.ask(&["HKEYS", name]);
    <[String; 1]>::try_from(fields).expect("one field").concat()
}
