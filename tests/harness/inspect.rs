//! What a test asks its server.

use super::server::{HARNESS, Server};
use redis::FromRedisValue;
use std::collections::HashMap;

/// One client connection, as `CLIENT LIST` describes it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The number for `CLIENT KILL ID`.
    pub id: u64,
    /// What `CLIENT SETNAME` said, or nothing.
    pub name: String,
    /// For instance `N` (nothing special), `P` (pub/sub), `b` (blocked).
    pub flags: String,
    /// The last command, in lower case, with its subcommand: `client|list`.
    pub cmd: String,
    /// How many channels it has subscribed.
    pub sub: usize,
    /// All fields of the line, these among them.
    pub fields: HashMap<String, String>,
}

impl Server {
    /// Runs one command as the administrator.
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let (name, rest) = words.split_first().expect("a command has a name");
        redis::cmd(name)
            .arg(rest)
            .query(&mut self.connection())
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Runs one command as the administrator, and gives nothing where the server
    /// does not run, stands still, refuses, or answers something else than a `T`.
    pub fn tells<T: FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let (name, rest) = words.split_first().expect("a command has a name");
        let mut connection = self.runs().then(|| self.try_connection().ok())??;
        redis::cmd(name).arg(rest).query(&mut connection).ok()
    }

    /// Whether this is a line of the server's `INFO replication`, for instance
    /// `role:master`.
    pub fn says(&self, line: &str) -> bool {
        let text: Option<String> = self.tells(&["INFO", "replication"]);
        text.is_some_and(|text| text.lines().any(|told| told == line))
    }

    /// The fields of a section of INFO.
    pub fn info(&self, section: &str) -> HashMap<String, String> {
        let text: String = self.ask(&["INFO", section]);
        text.lines().filter_map(|line| line.split_once(':')).map(owned).collect()
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        sorted(self.ask(&["KEYS", "*"]))
    }

    /// All channels that somebody has subscribed, sorted; no sharded ones.
    pub fn channels(&self) -> Vec<String> {
        sorted(self.ask(&["PUBSUB", "CHANNELS"]))
    }

    /// How many connections have subscribed this channel.
    pub fn numsub(&self, channel: &str) -> usize {
        let (_, count): (String, usize) = self.ask(&["PUBSUB", "NUMSUB", channel]);
        count
    }

    /// How many connections have subscribed this channel, as a sharded one or not.
    pub fn listeners(&self, channel: &str) -> usize {
        let count = |how: &str| -> usize {
            let heard: Option<(String, usize)> = self.tells(&["PUBSUB", how, channel]);
            heard.map_or(0, |(_, count)| count)
        };
        count("NUMSUB") + count("SHARDNUMSUB")
    }

    /// All connections but the harness's own.
    pub fn clients(&self) -> Vec<Peer> {
        self.peers(&["CLIENT", "LIST"])
    }

    /// Closes the connections of this type (`normal` or `pubsub`) but the
    /// harness's own, and says how many there were.
    pub fn client_kill_type(&self, kind: &str) -> usize {
        self.peers(&["CLIENT", "LIST", "TYPE", kind])
            .iter()
            .filter(|peer| self.client_kill(peer.id))
            .count()
    }

    /// Closes one connection, and says whether it was there.
    pub fn client_kill(&self, id: u64) -> bool {
        self.ask(&["CLIENT", "KILL", "ID", &id.to_string()])
    }

    /// How often each command was called, by its name in lower case, calls from
    /// scripts and the harness's own among them.
    pub fn commandstats(&self) -> HashMap<String, u64> {
        self.info("commandstats")
            .iter()
            .filter_map(|(name, stats)| Some((name.strip_prefix("cmdstat_")?, stats)))
            .map(|(name, stats)| (name.to_owned(), calls(stats)))
            .collect()
    }

    /// How often this command was called.
    pub fn calls(&self, command: &str) -> u64 {
        self.commandstats().get(command).copied().unwrap_or(0)
    }

    /// Sets the counts of `commandstats` to 0.
    pub fn reset_stats(&self) {
        self.ask(&["CONFIG", "RESETSTAT"])
    }

    /// The memory that the server uses, in bytes.
    pub fn used(&self) -> u64 {
        self.info("memory")["used_memory"].parse().expect("used_memory is a number")
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

/// Reads `calls=<n>,usec=...`.
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

/// Whether there is a key of that name: somebody holds the lock.
pub fn exists(server: &Server, name: &str) -> bool {
    server.ask(&["EXISTS", name])
}

/// What is left of the lease of a lock in milliseconds, as Redis says it.
pub fn pttl(server: &Server, name: &str) -> i64 {
    server.ask(&["PTTL", name])
}

/// The owner field of a lock that somebody holds.
pub fn owner(server: &Server, name: &str) -> String {
    let fields: Vec<String> = server.ask(&["HKEYS", name]);
    <[String; 1]>::try_from(fields).expect("one field").concat()
}
