//! What the server knows: databases, connections, settings, counts.

use super::commands::{Command, Outcome};
use super::resp::{Bytes, Reply};
use super::store::Keyspace;
use std::collections::{BTreeMap, BTreeSet};

/// The number of databases.
pub(crate) const DATABASES: usize = 16;

/// A connection's number, which `CLIENT ID` answers. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

/// One connection of a client.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) name: Bytes,
    pub(crate) resp3: bool,
    pub(crate) is_logged_in: bool,
    pub(crate) database: usize,
    /// Bytes that have come, without a whole request.
    pub(crate) input: Bytes,
    /// Bytes to send.
    pub(crate) output: Bytes,
    /// Whether the connection ends when its output has been sent.
    pub(crate) is_closing: bool,
    pub(crate) channels: BTreeSet<Bytes>,
    /// Patterns of names of channels.
    pub(crate) patterns: BTreeSet<Bytes>,
    pub(crate) shard_channels: BTreeSet<Bytes>,
    /// The last command, as `CLIENT LIST` shows it.
    pub(crate) last_command: String,
    /// In microseconds since 1970.
    pub(crate) connected_at: i64,
    pub(crate) last_used: i64,
}

impl Connection {
    /// Tells whether the connection is one for messages.
    pub(crate) fn is_subscriber(&self) -> bool {
        let sets = [&self.channels, &self.patterns, &self.shard_channels];
        sets.iter().any(|set| !set.is_empty())
    }

    pub(crate) fn send(&mut self, reply: &Reply) {
        reply.encode(self.resp3, &mut self.output);
    }
}

/// How often a command was called.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) run: u64,
    /// Refused before they ran.
    pub(crate) rejected: u64,
    /// Ended with an error.
    pub(crate) failed: u64,
}

/// All that commands read and change.
#[derive(Debug)]
pub(crate) struct State {
    databases: Vec<Keyspace>,
    /// The database of the running command.
    pub(crate) database: usize,
    /// In microseconds since 1970. Stands still while a command or a script runs.
    pub(crate) now: i64,
    pub(crate) started_at: i64,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) connections_made: u64,
    /// The password of the default user; empty for none.
    pub(crate) password: String,
    /// The replicas that a write needs. There are none.
    pub(crate) min_replicas: u32,
    pub(crate) calls: BTreeMap<&'static str, Calls>,
    /// Errors that take the place of a command, by the command's name in upper case.
    pub(crate) refusals: BTreeMap<String, String>,
    pub(crate) random: Random,
    /// Forty hexadecimal digits, new at each start.
    pub(crate) run_id: String,
    pub(crate) is_shut_down: bool,
}

impl State {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let run_id = random.run_id();
        Self {
            databases: vec![Keyspace::default(); DATABASES],
            database: 0,
            now: 0,
            started_at: 0,
            connections: BTreeMap::new(),
            connections_made: 0,
            password: String::new(),
            min_replicas: 0,
            calls: BTreeMap::new(),
            refusals: BTreeMap::new(),
            random,
            run_id,
            is_shut_down: false,
        }
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.now.div_euclid(1000)
    }

    /// Returns the keys of the running command's database.
    pub(crate) fn keys(&mut self) -> &mut Keyspace {
        &mut self.databases[self.database]
    }

    pub(crate) fn databases(&mut self) -> &mut [Keyspace] {
        &mut self.databases
    }

    /// Runs a command unless it is refused, and counts it.
    pub(crate) fn run(
        &mut self,
        command: &'static Command,
        run: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        self.admit(command)?;
        let outcome = run(self);
        self.count(command, &outcome);
        outcome
    }

    /// Fails, and counts the command, if it is refused.
    pub(crate) fn admit(&mut self, command: &'static Command) -> Result<(), String> {
        let lacks_replicas = command.writes && self.min_replicas > 0;
        let no_replicas = || "NOREPLICAS Not enough good replicas to write.".to_owned();
        let refusal = self.refusal(command.name).or(lacks_replicas.then(no_replicas));
        let Some(error) = refusal else { return Ok(()) };
        self.calls.entry(command.name).or_default().rejected += 1;
        Err(error)
    }

    /// Counts a command that has run.
    pub(crate) fn count(&mut self, command: &'static Command, outcome: &Outcome) {
        let calls = self.calls.entry(command.name).or_default();
        calls.run += 1;
        calls.failed += u64::from(matches!(outcome, Err(_) | Ok(Reply::Error(_))));
    }

    /// Returns the error that takes the place of a command, named as `CLIENT|ID`. A refusal of
    /// `CLIENT` is one of all its subcommands.
    fn refusal(&self, name: &str) -> Option<String> {
        let container = name.split('|').next().unwrap_or(name);
        self.refusals.get(name).or_else(|| self.refusals.get(container)).cloned()
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        for database in &mut self.databases {
            database.clear();
        }
    }
}

/// Numbers that only depend on the seed (xorshift64*). The seed 0 gives zeros, so that every choice
/// is the first.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Neighbouring seeds shall not begin alike.
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(mixed ^ (mixed >> 31))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn run_id(&mut self) -> String {
        format!("{:016x}{:016x}{:08x}", self.next(), self.next(), self.next() as u32)
    }
}
