//! What the server knows: databases, connections, settings, counts.

use super::cluster::ClusterView;
use super::commands::{Command, Outcome};
use super::replication::{Change, Replication};
use super::resp::{Bytes, Reply};
use super::sentinel::WatchedMasters;
use super::store::{Entry, Keyspace};
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
    /// The end of the log after the last command, which `WAIT` waits for.
    pub(crate) offset: u64,
    /// Whether the next command was redirected here for once.
    pub(crate) is_asking: bool,
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

/// What kind of server it is.
#[derive(Debug)]
pub(crate) enum Mode {
    Standalone,
    Cluster(ClusterView),
    Sentinel(WatchedMasters),
}

impl Mode {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Cluster(_) => "cluster",
            Self::Sentinel(_) => "sentinel",
        }
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

/// The settings that `CONFIG SET` changes.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The password of the default user; empty for none.
    pub(crate) password: String,
    /// The replicas that a write needs.
    pub(crate) min_replicas: u32,
    /// Whether the limit of memory is reached.
    pub(crate) is_full: bool,
    /// The greatest number of connections.
    pub(crate) max_clients: u32,
    /// The seconds after which an idle connection is closed; 0 for never.
    pub(crate) timeout: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let password = String::new();
        Self { password, min_replicas: 0, is_full: false, max_clients: 10_000, timeout: 0 }
    }
}

/// What is counted until `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) calls: BTreeMap<&'static str, Calls>,
    /// Errors by their code.
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) connections: u64,
    pub(crate) rejected_connections: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

impl Counts {
    /// Counts an error, by its first word unless that is long.
    pub(crate) fn add_error(&mut self, error: &str) {
        let code =
            error.split_once(' ').map(|(code, _)| code).filter(|code| code.chars().count() < 31);
        *self.errors.entry(code.unwrap_or("ERR").to_owned()).or_default() += 1;
    }
}

/// The errors of a script.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Errors that the script has made.
    pub(crate) new: Vec<String>,
    /// The number of errors of commands, which count when they happen.
    pub(crate) counted: u64,
}

/// All that commands read and change.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    databases: Vec<Keyspace>,
    /// The database of the running command.
    pub(crate) database: usize,
    /// Whether the running command was redirected here for once.
    pub(crate) is_asking: bool,
    /// In microseconds since 1970. Stands still while a command or a script runs.
    pub(crate) now: i64,
    pub(crate) started_at: i64,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    pub(crate) settings: Settings,
    /// The last millisecond of a pause, since 1970.
    pub(crate) paused_until: Option<i64>,
    /// The connections whose next request waits for the end of the pause.
    pub(crate) postponed: BTreeSet<ConnectionId>,
    /// The connections that have waited, and whose next requests may run.
    pub(crate) released: Vec<ConnectionId>,
    /// Whether the running script has changed data. It may then take more memory.
    pub(crate) script_has_written: bool,
    pub(crate) replication: Replication,
    pub(crate) counts: Counts,
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
        let replication = Replication::new(run_id.clone());
        Self {
            mode: Mode::Standalone,
            databases: vec![Keyspace::default(); DATABASES],
            database: 0,
            is_asking: false,
            now: 0,
            started_at: 0,
            connections: BTreeMap::new(),
            settings: Settings::default(),
            paused_until: None,
            postponed: BTreeSet::new(),
            released: Vec::new(),
            script_has_written: false,
            replication,
            counts: Counts::default(),
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

    /// Returns the entry of a key that exists in the running command's database. A master forgets
    /// a key that has expired; a replica leaves that to its master.
    pub(crate) fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let (now, is_master) = (self.now_ms(), self.replication.master.is_none());
        if !self.keys().get(key)?.is_alive(now) {
            if is_master {
                self.remove(self.database, key);
            }
            return None;
        }
        self.keys().get(key)
    }

    /// Removes a key by a decision of the server.
    pub(crate) fn remove(&mut self, database: usize, key: &[u8]) {
        self.databases[database].remove(key);
        self.replication.record(Change::Key { database, key: key.to_vec(), entry: None });
    }

    /// Removes what has expired in a database. A replica leaves that to its master.
    pub(crate) fn remove_expired(&mut self, database: usize) {
        if self.replication.master.is_none() {
            let now = self.now_ms();
            for key in self.databases[database].remove_expired(now) {
                self.replication.record(Change::Key { database, key, entry: None });
            }
        }
    }

    /// Runs a command that is admitted, and counts it. Records what it changes for replicas.
    pub(crate) fn run(
        &mut self,
        command: &'static Command,
        args: &[Bytes],
        run: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        let is_recorded = command.writes && self.replication.is_active();
        let keys = if is_recorded { command.keys(args) } else { Vec::new() };
        let before: Vec<_> = keys.iter().map(|key| self.keys().get(key).cloned()).collect();
        let outcome = run(self);
        for (key, before) in keys.into_iter().zip(before) {
            let entry = self.keys().get(key).cloned();
            if entry != before {
                let (database, key) = (self.database, key.clone());
                self.replication.record(Change::Key { database, key, entry });
            }
        }
        self.count(command, &outcome);
        outcome
    }

    /// Fails, and counts the command, if it is refused.
    pub(crate) fn admit(&mut self, command: &'static Command) -> Result<(), String> {
        let refusal = self.refusal(command.name).or_else(|| self.refusal_of_writes(command));
        let Some(error) = refusal else { return Ok(()) };
        Err(self.rejected(command.name, error))
    }

    /// Counts a command that is refused, and returns the error.
    pub(crate) fn rejected(&mut self, command: &'static str, error: String) -> String {
        self.counts.calls.entry(command).or_default().rejected += 1;
        self.counts.add_error(&error);
        error
    }

    fn refusal_of_writes(&self, command: &Command) -> Option<String> {
        if !command.writes {
            return None;
        }
        if self.replication.master.is_some() {
            return Some("READONLY You can't write against a read only replica.".to_owned());
        }
        if self.settings.is_full && command.grows && !self.script_has_written {
            return Some("OOM command not allowed when used memory > 'maxmemory'.".to_owned());
        }
        let lacks_replicas =
            self.replication.count_good(self.now) < self.settings.min_replicas as usize;
        lacks_replicas.then(|| "NOREPLICAS Not enough good replicas to write.".to_owned())
    }

    /// Counts a command that has run, and its error.
    fn count(&mut self, command: &'static Command, outcome: &Outcome) {
        let calls = self.counts.calls.entry(command.name).or_default();
        calls.run += 1;
        if let Err(error) = outcome {
            calls.failed += 1;
            self.counts.add_error(error);
        }
    }

    /// Counts a script that has run. `failures` has what it returned.
    pub(crate) fn count_script(
        &mut self,
        command: &'static Command,
        outcome: &Outcome,
        failures: &Failures,
    ) {
        self.count(command, outcome);
        let calls = self.counts.calls.entry(command.name).or_default();
        calls.failed += failures.counted + u64::from(!failures.new.is_empty());
        for error in &failures.new {
            self.counts.add_error(error);
        }
    }

    /// Returns the error that takes the place of a command, named as `CLIENT|ID`. A refusal of
    /// `CLIENT` is one of all its subcommands.
    fn refusal(&self, name: &str) -> Option<String> {
        let container = name.split('|').next().unwrap_or(name);
        self.refusals.get(name).or_else(|| self.refusals.get(container)).cloned()
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        for database in 0..DATABASES {
            self.clear_database(database);
        }
    }

    /// Removes all keys of one database.
    pub(crate) fn clear_database(&mut self, database: usize) {
        self.databases[database].clear();
        self.replication.record(Change::Clear { database });
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
