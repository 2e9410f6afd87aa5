//! The servers of a run, and what can be done to them.

use super::checks::{ALL_SLOTS, Effect, Slots};
use super::plan::Layout;
use super::worker::Orders;
use crate::harness::nodes::Node;
use crate::harness::replicated::MASTER;
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{
    Cluster, Config, Connections, Members, Proxy, Replicated, Server, eventually,
};
use std::cell::RefCell;
use std::fs;

/// How much of each server's log is shown when something does not happen.
const LOGGED: usize = 20;

/// Servers with gates before them, so that any of them can be cut off from any process.
#[derive(Debug)]
pub struct Site {
    pub members: Members,
    servers: Servers,
    /// The ports of those that stand still, and of those that were killed.
    stopped: RefCell<Vec<u16>>,
    killed: RefCell<Vec<u16>>,
}

#[derive(Debug)]
enum Servers {
    Alone(Vec<Server>),
    Replicated(Replicated),
    Cluster(Cluster),
}

impl Site {
    pub fn start(layout: Layout) -> Site {
        let members = Members::default();
        let gated = |config: Config| config.gated(&members);
        let alone = |count| {
            let config = |config| lasting(gated(config).movable_clock());
            Servers::Alone((0..count).map(|_| Server::with(config)).collect())
        };
        let servers = match layout {
            Layout::One => alone(1),
            Layout::Five => alone(5),
            Layout::Sentinel => Servers::Replicated(Replicated::with(2, 3, gated)),
            Layout::Cluster => Servers::Cluster(Cluster::with(3, 1, gated)),
        };
        Site { members, servers, stopped: RefCell::default(), killed: RefCell::default() }
    }

    /// Tells a worker where the servers are.
    pub fn show(&self, orders: &mut Orders) {
        let urls = |servers: &[Server]| servers.iter().map(Server::url).collect();
        let (way, urls) = match &self.servers {
            Servers::Alone(servers) => ("single", urls(servers)),
            Servers::Replicated(replicated) => (MASTER, replicated.sentinel_urls()),
            Servers::Cluster(cluster) => ("cluster", cluster.urls()),
        };
        (orders.way, orders.urls) = (way.to_owned(), urls);
    }

    /// All servers with data.
    pub fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::Alone(servers) => servers,
            Servers::Replicated(replicated) => replicated.servers(),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    pub fn sentinels(&self) -> &[Server] {
        match &self.servers {
            Servers::Replicated(replicated) => replicated.sentinels(),
            Servers::Alone(_) | Servers::Cluster(_) => &[],
        }
    }

    /// All that run, with data or not.
    fn all(&self) -> impl Iterator<Item = &Server> {
        self.servers().iter().chain(self.sentinels())
    }

    /// Has all gates find out who is connected.
    pub fn identify(&self) {
        self.all().for_each(|server| server.gate().identify());
    }

    /// The proxies before the servers with data.
    pub fn fronts(&self) -> impl Iterator<Item = &Proxy> {
        self.servers().iter().map(|server| server.gate().front())
    }

    /// Those that serve locks.
    pub fn masters(&self) -> Vec<&Server> {
        self.servers().iter().filter(|server| server.says("role:master")).collect()
    }

    /// How often one has taken another's place, as far as they count that.
    pub fn epoch(&self) -> u64 {
        match &self.servers {
            Servers::Alone(_) => 0,
            Servers::Replicated(replicated) => replicated.epoch(),
            Servers::Cluster(cluster) => cluster.epoch(),
        }
    }

    /// The slots that a server serves; all, where there is no cluster.
    pub fn slots_of(&self, server: &Server) -> Vec<Slots> {
        match &self.servers {
            Servers::Cluster(_) => Node::itself(server).expect("a node that is well").slots,
            Servers::Alone(_) | Servers::Replicated(_) => vec![ALL_SLOTS],
        }
    }

    pub fn replicas(&self) -> Vec<&Server> {
        self.servers().iter().filter(|server| server.says("role:slave")).collect()
    }

    pub fn cluster(&self) -> &Cluster {
        match &self.servers {
            Servers::Cluster(cluster) => cluster,
            Servers::Alone(_) | Servers::Replicated(_) => panic!("it is no cluster"),
        }
    }

    /// Lets a server stand still until `heal`.
    pub fn stop(&self, server: &Server) {
        server.stop();
        self.stopped.borrow_mut().push(server.port());
    }

    /// Kills a server; `heal` starts it again.
    pub fn kill(&self, server: &Server) {
        server.kill();
        self.killed.borrow_mut().push(server.port());
    }

    /// Keeps these apart from all other servers, whoever connects to whom.
    pub fn cut_off(&self, minority: &[&Server]) {
        let is_inside = |server: &&Server| minority.iter().any(|one| one.port() == server.port());
        for outside in self.all().filter(|server| !is_inside(server)) {
            for inside in minority {
                outside.gate().keep_apart(&whose(inside.member()));
                inside.gate().keep_apart(&whose(outside.member()));
            }
        }
    }

    /// Keeps a process apart from these servers.
    pub fn cut_off_client(&self, client: &str, from: impl Fn(&Server) -> bool) {
        for server in self.all().filter(|server| from(server)) {
            server.gate().keep_apart(&whose(client.to_owned()));
        }
    }

    /// Puts another in the place of a master as planned. What that may do.
    pub fn fail_over(&self, master: &Server) -> Effect {
        match &self.servers {
            Servers::Alone(_) => panic!("there is no other"),
            Servers::Replicated(replicated) => {
                replicated.fail_over();
                Effect::Forgets
            }
            Servers::Cluster(cluster) => {
                cluster.fail_over(cluster.replica_of(master));
                Effect::Delays
            }
        }
    }

    /// Blocks until another serves in the place of this one.
    pub fn await_another(&self, master: &Server, replica: &Server) {
        match &self.servers {
            Servers::Alone(_) => panic!("there is no other"),
            Servers::Replicated(replicated) => {
                replicated.await_master_other_than(master.port());
            }
            Servers::Cluster(_) => {
                let replaced = || replica.says("role:master");
                let ports = (master.port(), replica.port());
                assert!(holds_within(BOUND, replaced), "{ports:?}: {}", self.describe());
            }
        }
    }

    /// Undoes all that was done. Blocks until all servers are well again.
    pub fn heal(&self) {
        for port in self.stopped.borrow_mut().drain(..) {
            self.at(port).resume();
        }
        for port in self.killed.borrow_mut().drain(..) {
            self.at(port).restart();
        }
        self.all().for_each(|server| server.gate().heal());
        self.settle();
    }

    fn settle(&self) {
        match &self.servers {
            Servers::Alone(servers) => eventually("the servers answer", || {
                servers.iter().all(|server| server.try_ask::<String>(&["PING"]).is_some())
            }),
            Servers::Replicated(replicated) => replicated.settle(),
            Servers::Cluster(cluster) => cluster.settle(),
        }
    }

    /// What the servers say of each other, and have written down at last.
    fn describe(&self) -> String {
        let describe = |server: &Server| {
            let (member, log) = (server.member(), server.log());
            let view: Option<String> = server.try_ask(&["CLUSTER", "NODES"]);
            let log: Vec<_> = log.lines().rev().take(LOGGED).collect();
            format!("{member}, port {}: {view:?}, {log:#?}", server.port())
        };
        let running = self.all().filter(|server| server.runs());
        running.map(describe).collect::<Vec<_>>().join("\n")
    }

    fn at(&self, port: u16) -> &Server {
        self.all().find(|server| server.port() == port).expect("a server of ours")
    }
}

/// A member's connections.
pub fn whose(member: String) -> Connections {
    Connections::Member(member.into())
}

/// A server that forgets nothing that it has acknowledged.
fn lasting(config: Config) -> Config {
    config.line("appendonly yes").line("appendfsync always")
}

/// Makes a server that is down forget all.
pub fn wipe(server: &Server) {
    let (new, old) = (server.path("appendonlydir"), server.path("appendonly.aof"));
    let gone = fs::remove_dir_all(new).is_ok() | fs::remove_file(old).is_ok();
    assert!(gone, "a server that keeps its data somewhere else");
}
