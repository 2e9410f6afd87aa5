//! A master with replicas, and sentinels that watch over them.

use super::config::{Config, Credentials};
use super::server::Server;
use super::wait::{BOUND, eventually, eventually_some, holds_within};
use std::collections::HashMap;
use std::time::Duration;

/// The name under which the sentinels know the master.
pub const MASTER: &str = "main";

/// After how long a silence a sentinel takes a server for dead.
pub const DOWN_AFTER: Duration = Duration::from_millis(1000);

/// How long a fail-over may take before the sentinels give it up. After one that
/// failed they wait twice as long for the next.
pub const FAILOVER_TIMEOUT: Duration = Duration::from_millis(3000);

/// How long a fail-over may take before the test fails. A starved sentinel of Redis 6.2 does
/// nothing for 30 s (see `HURRY`), and a fail-over that fails is repeated after twice its time-out.
const FAILOVER_BOUND: Duration = BOUND.saturating_mul(4);

/// How many lines of a sentinel's log a failed wait shows.
const LOGGED: usize = 30;

/// Makes a sentinel look and tell oftener than every 10 and 2 s, as its start and the return
/// of a dead master take several such periods. It chooses only replicas that it has heard in
/// the last three looks, so those should not be all too short.
///
/// A sentinel that has not run for 2 s suspects the clock and only watches for a while: its
/// tilt mode. The 30 s of that are cut to one second, in which it hears from all servers once,
/// so that a starved sentinel does not take the others for dead. Redis 6.2 has no such command,
/// and takes its time.
const HURRY: &[&str] =
    &["SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "PUBLISH-PERIOD", "250", "TILT-PERIOD", "1000"];

/// A master, its replicas and its sentinels on loopback. Any of them may be
/// stopped, killed and restarted by itself. A server that was the master and comes
/// back believes that it still is until a sentinel tells it otherwise.
#[derive(Debug)]
pub struct Replicated {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Replicated {
    /// Starts a master, `replicas` and `sentinels`, of which there may be none.
    /// Blocks until they have settled.
    pub fn start(replicas: usize, sentinels: usize) -> Self {
        Self::with(replicas, sentinels, |config| config)
    }

    /// The same with more configuration for the servers (the master and the
    /// replicas). A password in there is told to the sentinels.
    pub fn with(replicas: usize, sentinels: usize, configure: impl Fn(Config) -> Config) -> Self {
        let config = configure(Config::default().follower()).login_at_master();
        let master = Server::with(|_| config.clone());
        let line = format!("replicaof 127.0.0.1 {}", master.port());
        let follow = |_| Server::with(|_| config.clone().line(&line));
        let mut servers = vec![master];
        servers.extend((0..replicas).map(follow));
        let mut replicated = Self { servers, sentinels: Vec::new() };
        // What is there when a sentinel looks first it need not discover later.
        replicated.settle();
        replicated.add_sentinels(sentinels, &config);
        replicated.settle();
        replicated
    }

    /// All servers with data, whatever they are now. The first one started as the
    /// master.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Where the sentinels listen, as clients want it.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The server with data on this port.
    pub fn server_at(&self, port: u16) -> &Server {
        self.servers.iter().find(|server| server.port() == port).expect("a server of ours")
    }

    /// The master. Blocks until there is one: a majority of the sentinels that
    /// run announce it, and it says itself that it is. Without sentinels its word
    /// is enough.
    pub fn master(&self) -> &Server {
        eventually_some("there is a master", || self.agreed_master())
    }

    /// The servers that run and say that they are replicas.
    pub fn replicas(&self) -> Vec<&Server> {
        self.servers.iter().filter(|server| server.says("role:slave")).collect()
    }

    /// The number of the last fail-over of which a sentinel knows.
    pub fn epoch(&self) -> u64 {
        let known = |sentinel: &Server| -> Option<u64> {
            let known: Fields = sentinel.tells(&["SENTINEL", "MASTER", MASTER])?;
            known.get("config-epoch")?.parse().ok()
        };
        self.sentinels.iter().filter_map(known).max().unwrap_or(0)
    }

    /// Lets a sentinel put a replica in the master's place, which is well. Blocks
    /// until there is another master, and returns it.
    pub fn fail_over(&self) -> &Server {
        let old = self.master().port();
        let another = || self.agreed_master().filter(|master| master.port() != old);
        let completed = holds_within(FAILOVER_BOUND, || {
            self.ask_for_fail_over(old);
            holds_within(FAILOVER_TIMEOUT, || another().is_some())
        });
        assert!(completed, "a sentinel completes a fail-over: {}", self.logs_of_sentinels());
        self.await_master_other_than(old)
    }

    /// Asks one sentinel, unless a fail-over is under way: a second one beside it would come
    /// after it. A sentinel that has not heard of the last fail-over would try that one again.
    fn ask_for_fail_over(&self, old: u16) {
        if self.sentinels.iter().any(is_failing_over) {
            return;
        }
        let mut informed = self.sentinels.iter().filter(|one| announces(one) == Some(old));
        informed.any(|one| one.tells::<()>(&["SENTINEL", "FAILOVER", MASTER]).is_some());
    }

    /// Blocks until there is a master on another port than this one, as `master`
    /// says it, and returns it.
    pub fn await_master_other_than(&self, port: u16) -> &Server {
        let mut found = None;
        let in_time = holds_within(FAILOVER_BOUND, || {
            found = self.agreed_master().filter(|master| master.port() != port);
            found.is_some()
        });
        assert!(in_time, "never happened: there is another master: {}", self.logs_of_sentinels());
        found.expect("the wait ends when a master was found")
    }

    /// What the sentinels did last.
    fn logs_of_sentinels(&self) -> String {
        let last = |log: String| {
            let lines: Vec<_> = log.lines().rev().take(LOGGED).map(str::to_owned).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        let told = self.sentinels.iter().map(|one| format!("\n{}\n", last(one.log())));
        told.collect()
    }

    /// Blocks until all servers but one follow that one in sync, and every sentinel
    /// knows it, all its replicas and all other sentinels. All have to run.
    pub fn settle(&self) {
        eventually("servers and sentinels settle", || {
            self.agreed_master().is_some_and(|master| self.agree_on(master.port()))
        });
    }

    fn add_sentinels(&mut self, count: usize, config: &Config) {
        let credentials = config.credentials.as_ref();
        let lines = sentinel_lines(self.servers[0].port(), count / 2 + 1, credentials);
        let hasty = Config { members: config.members.clone(), ..Config::default() };
        let hasty = hasty.sentinel().greeting(HURRY);
        let start = |_| Server::with(|_| lines.iter().fold(hasty.clone(), Config::line));
        self.sentinels = (0..count).map(start).collect();
    }

    fn agreed_master(&self) -> Option<&Server> {
        let mut masters = self.servers.iter().filter(|server| server.says("role:master"));
        if self.sentinels.is_empty() {
            return masters.next();
        }
        let announced = self.announced()?;
        masters.find(|master| master.port() == announced)
    }

    /// The port that more than half of the sentinels announce that answer.
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
        let known: Option<Fields> = sentinel.tells(&["SENTINEL", "MASTER", MASTER]);
        known.is_some_and(|known| {
            is(&known, "flags", "master")
                && is(&known, "port", &master.to_string())
                && is(&known, "num-slaves", &(self.servers.len() - 1).to_string())
                && is(&known, "num-other-sentinels", &(self.sentinels.len() - 1).to_string())
        }) && knows_replicas(sentinel)
    }
}

/// What a sentinel says of one server.
type Fields = HashMap<String, String>;

fn is(fields: &Fields, name: &str, value: &str) -> bool {
    fields.get(name).is_some_and(|told| told == value)
}

/// Whether the server is in sync with this master.
fn follows(server: &Server, master: u16) -> bool {
    server.says(&format!("master_port:{master}")) && server.says("master_link_status:up")
}

/// Whether all replicas that the sentinel knows have told it who they are, and are
/// well as far as it knows.
fn knows_replicas(sentinel: &Server) -> bool {
    let replicas: Option<Vec<Fields>> = sentinel.tells(&["SENTINEL", "REPLICAS", MASTER]);
    let is_known = |replica: &Fields| is(replica, "flags", "slave") && !is(replica, "runid", "");
    replicas.is_some_and(|replicas| replicas.iter().all(is_known))
}

fn is_failing_over(sentinel: &Server) -> bool {
    let known: Option<Fields> = sentinel.tells(&["SENTINEL", "MASTER", MASTER]);
    let flags = known.and_then(|known| known.get("flags").cloned()).unwrap_or_default();
    flags.split(',').any(|flag| flag == "failover_in_progress")
}

/// The port of the master that a sentinel announces.
fn announces(sentinel: &Server) -> Option<u16> {
    let address: Option<(String, u16)> =
        sentinel.tells(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
    address.map(|(_, port)| port)
}

fn sentinel_lines(port: u16, quorum: usize, credentials: Option<&Credentials>) -> Vec<String> {
    let (down, timeout) = (DOWN_AFTER.as_millis(), FAILOVER_TIMEOUT.as_millis());
    let mut lines = vec![
        format!("sentinel monitor {MASTER} 127.0.0.1 {port} {quorum}"),
        format!("sentinel down-after-milliseconds {MASTER} {down}"),
        format!("sentinel failover-timeout {MASTER} {timeout}"),
        format!("sentinel parallel-syncs {MASTER} 1"),
    ];
    if let Some(Credentials { user, password }) = credentials {
        lines.push(format!("sentinel auth-pass {MASTER} {password}"));
        lines.extend(user.iter().map(|user| format!("sentinel auth-user {MASTER} {user}")));
    }
    lines
}
