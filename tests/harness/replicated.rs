//! A master with replicas and sentinels.

use super::config::{Config, Credentials};
use super::server::Server;
use super::wait::{BOUND, eventually, eventually_some, holds_within};
use std::collections::HashMap;
use std::time::Duration;

/// The name of the master in the sentinels' configuration.
pub const MASTER: &str = "main";

/// The silence after which a sentinel considers a server down.
const DOWN_AFTER: Duration = Duration::from_millis(1000);

/// The time-out of a fail-over for the sentinels. After a failure they wait twice as long.
const FAILOVER_TIMEOUT: Duration = Duration::from_millis(3000);

/// The bound of a fail-over, after which the test fails.
///
/// A starved sentinel of Redis 6.2 does nothing for 30 s (see `HURRY`), and sentinels repeat a
/// failed fail-over after twice its time-out.
const FAILOVER_BOUND: Duration = BOUND.saturating_mul(4);

/// The number of lines of each sentinel's log that a failed test shows.
const LOGGED: usize = 60;

/// The command that shortens periods of a sentinel.
///
/// By default a sentinel asks for `INFO` every 10 s. Its start and the return of a dead master take
/// several periods. A sentinel promotes only a replica that has answered within the last three
/// periods, so the period must not be much shorter.
///
/// A sentinel that has not run for 2 s suspects the clock, and for 30 s only watches (tilt mode).
/// The command shortens that to one second. In that second the sentinel gets an answer of every
/// server, so that a starved sentinel does not consider the others down. Redis 6.2 has no such
/// command.
const HURRY: &[&str] = &["SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "TILT-PERIOD", "1000"];

/// The milliseconds between two messages by which sentinels find each other: while they start, and
/// later.
///
/// A sentinel that sees the new master in its role, and has not heard of a fail-over for four of
/// these periods, makes it a replica of the old master again. The sentinel in charge tells of the
/// fail-over only when it has read `INFO` of the new master, one period of `INFO` later. So only
/// the start, which has no fail-over, is hurried.
const PUBLISH_PERIODS: [&str; 2] = ["250", "1000"];

/// A master, its replicas and its sentinels on loopback.
///
/// A test may stop, kill and restart each of them. A former master that comes back remains a master
/// until a sentinel demotes it.
#[derive(Debug)]
pub struct Replicated {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Replicated {
    /// Starts a master with replicas and sentinels; blocks as `settle` does.
    ///
    /// Both numbers may be 0.
    pub fn start(replicas: usize, sentinels: usize) -> Self {
        Self::with(replicas, sentinels, |config| config)
    }

    /// Starts like `start`, with more configuration for the master and the replicas.
    ///
    /// The sentinels get the password of that configuration.
    pub fn with(replicas: usize, sentinels: usize, configure: impl Fn(Config) -> Config) -> Self {
        let config = configure(Config::default().follower()).login_at_master();
        let master = Server::with(|_| config.clone());
        let line = format!("replicaof 127.0.0.1 {}", master.port());
        let follow = |_| Server::with(|_| config.clone().line(&line));
        let mut servers = vec![master];
        servers.extend((0..replicas).map(follow));
        let mut replicated = Self { servers, sentinels: Vec::new() };
        // A sentinel finds all replicas at its first look, and need not discover them later.
        replicated.settle();
        replicated.add_sentinels(sentinels, &config);
        let [at_start, later] = PUBLISH_PERIODS;
        replicated.set_publish_period(at_start);
        replicated.settle();
        replicated.set_publish_period(later);
        replicated
    }

    /// Returns all servers with data, in every role. The first one started as the master.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns the sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Returns the URLs of the sentinels.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// Returns the server with data on this port.
    pub fn server_at(&self, port: u16) -> &Server {
        self.servers.iter().find(|server| server.port() == port).expect("a server of ours")
    }

    /// Returns the master; blocks until there is one.
    ///
    /// A majority of the running sentinels announce the master, and it reports that role itself.
    /// Without sentinels its own report is enough.
    pub fn master(&self) -> &Server {
        eventually_some("there is a master", || self.agreed_master())
    }

    /// Returns the running servers that report that they are replicas.
    pub fn replicas(&self) -> Vec<&Server> {
        self.servers.iter().filter(|server| server.says("role:slave")).collect()
    }

    /// Returns the number of the last fail-over that a sentinel knows.
    pub fn epoch(&self) -> u64 {
        let known = |sentinel: &Server| -> Option<u64> {
            let known: Fields = sentinel.try_ask(&["SENTINEL", "MASTER", MASTER])?;
            known.get("config-epoch")?.parse().ok()
        };
        self.sentinels.iter().filter_map(known).max().unwrap_or(0)
    }

    /// Makes a sentinel replace the healthy master by a replica; returns the new master.
    pub fn fail_over(&self) -> &Server {
        let old = self.master().port();
        let another = || self.agreed_master().filter(|master| master.port() != old);
        let completed = holds_within(FAILOVER_BOUND, || {
            self.ask_for_fail_over(old);
            holds_within(FAILOVER_TIMEOUT, || another().is_some())
        });
        assert!(completed, "a sentinel completes a fail-over");
        self.await_master_other_than(old)
    }

    /// Like `fail_over`; also blocks until the former master follows the new one.
    ///
    /// Until then it takes writes, and they are lost.
    pub fn fail_over_and_settle(&self) -> &Server {
        let new = self.fail_over();
        self.settle();
        new
    }

    /// Asks one sentinel for a fail-over, unless a fail-over is in progress.
    ///
    /// A second fail-over would follow the first. A sentinel that does not know of the last
    /// fail-over would repeat that one.
    fn ask_for_fail_over(&self, old: u16) {
        if self.sentinels.iter().any(is_failing_over) {
            return;
        }
        let mut informed = self.sentinels.iter().filter(|one| announces(one) == Some(old));
        informed.any(|one| one.try_ask::<()>(&["SENTINEL", "FAILOVER", MASTER]).is_some());
    }

    /// Blocks until there is a master on another port, as for `master`, and returns it.
    pub fn await_master_other_than(&self, port: u16) -> &Server {
        let mut found = None;
        let in_time = holds_within(FAILOVER_BOUND, || {
            found = self.agreed_master().filter(|master| master.port() != port);
            found.is_some()
        });
        assert!(in_time, "never happened: there is another master");
        found.expect("the wait ends with a master")
    }

    /// Blocks until all servers and sentinels agree on the master. All have to run.
    ///
    /// Then all other servers follow the master in sync, and every sentinel knows the master, all
    /// its replicas and all other sentinels.
    pub fn settle(&self) {
        eventually("servers and sentinels agree on the master", || {
            self.agreed_master().is_some_and(|master| self.agree_on(master.port()))
        });
    }

    fn add_sentinels(&mut self, count: usize, config: &Config) {
        let (port, quorum) = (self.servers[0].port(), count / 2 + 1);
        let (down, timeout) = (DOWN_AFTER.as_millis(), FAILOVER_TIMEOUT.as_millis());
        let hasty = Config { members: config.members.clone(), ..Config::default() };
        let mut hasty = hasty
            .sentinel()
            .greeting(HURRY)
            .line(format!("sentinel monitor {MASTER} 127.0.0.1 {port} {quorum}"))
            .line(format!("sentinel down-after-milliseconds {MASTER} {down}"))
            .line(format!("sentinel failover-timeout {MASTER} {timeout}"))
            .line(format!("sentinel parallel-syncs {MASTER} 1"));
        if let Some(Credentials { user, password }) = &config.credentials {
            hasty = hasty.line(format!("sentinel auth-pass {MASTER} {password}"));
            if let Some(user) = user {
                hasty = hasty.line(format!("sentinel auth-user {MASTER} {user}"));
            }
        }
        self.sentinels = (0..count).map(|_| Server::with(|_| hasty.clone())).collect();
    }

    /// Sets the period of the messages of all sentinels. Redis 6.2 has no such command.
    fn set_publish_period(&self, millis: &str) {
        for sentinel in &self.sentinels {
            let _ = sentinel.try_ask::<()>(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", millis]);
        }
    }

    fn agreed_master(&self) -> Option<&Server> {
        let mut masters = self.servers.iter().filter(|server| server.says("role:master"));
        if self.sentinels.is_empty() {
            return masters.next();
        }
        let announced = self.announced()?;
        masters.find(|master| master.port() == announced)
    }

    /// Returns the port that more than half of the answering sentinels announce.
    fn announced(&self) -> Option<u16> {
        let ports: Vec<u16> = self.sentinels.iter().filter_map(announces).collect();
        let votes = |port| ports.iter().filter(|other| **other == port).count();
        ports.iter().copied().find(|port| votes(*port) * 2 > ports.len())
    }

    fn agree_on(&self, master: u16) -> bool {
        let mut replicas = self.servers.iter().filter(|server| server.port() != master);
        replicas.all(|replica| follows(replica, master))
            && self.sentinels.iter().all(|sentinel| self.is_known_to(sentinel, master))
    }

    fn is_known_to(&self, sentinel: &Server, master: u16) -> bool {
        let known: Option<Fields> = sentinel.try_ask(&["SENTINEL", "MASTER", MASTER]);
        known.is_some_and(|known| {
            is(&known, "flags", "master")
                && is(&known, "port", &master.to_string())
                && is(&known, "num-slaves", &(self.servers.len() - 1).to_string())
                && is(&known, "num-other-sentinels", &(self.sentinels.len() - 1).to_string())
        }) && knows_replicas(sentinel)
    }
}

/// Shows the logs of the sentinels if the test fails: they tell of fail-overs that nobody asked
/// for.
impl Drop for Replicated {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for sentinel in &self.sentinels {
            let log = sentinel.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOGGED)..];
            eprintln!("a sentinel:\n{}\n", last.join("\n"));
        }
    }
}

/// The fields of a sentinel's report about one server.
type Fields = HashMap<String, String>;

fn is(fields: &Fields, name: &str, value: &str) -> bool {
    fields.get(name).is_some_and(|other| other == value)
}

/// Returns whether the server is in sync with this master.
fn follows(server: &Server, master: u16) -> bool {
    server.says(&format!("master_port:{master}")) && server.says("master_link_status:up")
}

/// Returns whether the sentinel knows the id of every replica, and reports none as down.
fn knows_replicas(sentinel: &Server) -> bool {
    let replicas: Option<Vec<Fields>> = sentinel.try_ask(&["SENTINEL", "REPLICAS", MASTER]);
    let is_known = |replica: &Fields| is(replica, "flags", "slave") && !is(replica, "runid", "");
    replicas.is_some_and(|replicas| replicas.iter().all(is_known))
}

fn is_failing_over(sentinel: &Server) -> bool {
    let known: Option<Fields> = sentinel.try_ask(&["SENTINEL", "MASTER", MASTER]);
    let flags = known.and_then(|known| known.get("flags").cloned()).unwrap_or_default();
    flags.split(',').any(|flag| flag == "failover_in_progress")
}

/// Returns the port of the master that a sentinel announces.
fn announces(sentinel: &Server) -> Option<u16> {
    let address: Option<(String, u16)> =
        sentinel.try_ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
    address.map(|(_, port)| port)
}
