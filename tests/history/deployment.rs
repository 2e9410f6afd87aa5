//! The servers of a run, and the faults that they can suffer.

use super::checks::{ALL_SLOTS, Effect, Slots};
use super::plan::Layout;
use super::program::Arguments;
use crate::harness::nodes::Node;
use crate::harness::replicated::MASTER;
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{
    Cluster, Config, Connections, Members, Proxy, Replicated, Server, eventually,
};
use std::cell::RefCell;
use std::fs;

/// The number of lines of each server's log that a failed wait shows.
const LOGGED: usize = 20;

/// Servers behind gates, so that any server can be cut off from any process.
#[derive(Debug)]
pub struct Deployment {
    pub members: Members,
    servers: Servers,
    /// The ports of the stopped servers.
    stopped: RefCell<Vec<u16>>,
    /// The ports of the killed servers.
    killed: RefCell<Vec<u16>>,
}

#[derive(Debug)]
enum Servers {
    Independent(Vec<Server>),
    Replicated(Replicated),
    Cluster(Cluster),
}

impl Deployment {
    pub fn start(layout: Layout) -> Deployment {
        let members = Members::default();
        let gated = |config: Config| config.gated(&members);
        let independent = |count| {
            let config = |config| gated(config).movable_clock().durable();
            Servers::Independent((0..count).map(|_| Server::with(config)).collect())
        };
        let servers = match layout {
            Layout::One => independent(1),
            Layout::Five => independent(5),
            Layout::Sentinel => Servers::Replicated(Replicated::with(2, 3, gated)),
            Layout::Cluster => Servers::Cluster(Cluster::with(3, 1, gated)),
        };
        Deployment { members, servers, stopped: RefCell::default(), killed: RefCell::default() }
    }

    /// Adds the topology and the addresses of the servers to the arguments of a worker.
    pub fn add_addresses(&self, arguments: &mut Arguments) {
        let urls = |servers: &[Server]| servers.iter().map(Server::url).collect();
        let (topology, urls) = match &self.servers {
            Servers::Independent(servers) => ("single", urls(servers)),
            Servers::Replicated(replicated) => (MASTER, replicated.sentinel_urls()),
            Servers::Cluster(cluster) => ("cluster", cluster.urls()),
        };
        (arguments.topology, arguments.urls) = (topology.to_owned(), urls);
    }

    /// Returns all servers with data.
    pub fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::Independent(servers) => servers,
            Servers::Replicated(replicated) => replicated.servers(),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    pub fn sentinels(&self) -> &[Server] {
        match &self.servers {
            Servers::Replicated(replicated) => replicated.sentinels(),
            Servers::Independent(_) | Servers::Cluster(_) => &[],
        }
    }

    /// Returns all servers and sentinels.
    fn all(&self) -> impl Iterator<Item = &Server> {
        self.servers().iter().chain(self.sentinels())
    }

    /// Makes all gates identify the processes behind their connections.
    pub fn identify(&self) {
        self.all().for_each(|server| server.gate().identify());
    }

    /// Returns the proxies in front of the servers with data.
    pub fn fronts(&self) -> impl Iterator<Item = &Proxy> {
        self.servers().iter().map(|server| server.gate().front())
    }

    /// Returns the servers that serve locks.
    pub fn masters(&self) -> Vec<&Server> {
        self.servers().iter().filter(|server| server.says("role:master")).collect()
    }

    /// Returns the server that serves a lock.
    pub fn server_of(&self, lock: &str) -> &Server {
        match &self.servers {
            Servers::Cluster(cluster) => cluster.owner_of(lock),
            Servers::Independent(_) | Servers::Replicated(_) => self.masters()[0],
        }
    }

    /// Returns the number of fail-overs, as far as the servers count them.
    pub fn epoch(&self) -> u64 {
        match &self.servers {
            Servers::Independent(_) => 0,
            Servers::Replicated(replicated) => replicated.epoch(),
            Servers::Cluster(cluster) => cluster.epoch(),
        }
    }

    /// Returns the slots of a server: all slots, except in a cluster.
    pub fn slots_of(&self, server: &Server) -> Vec<Slots> {
        match &self.servers {
            Servers::Cluster(_) => Node::itself(server).expect("a healthy node").slots,
            Servers::Independent(_) | Servers::Replicated(_) => vec![ALL_SLOTS],
        }
    }

    pub fn replicas(&self) -> Vec<&Server> {
        self.servers().iter().filter(|server| server.says("role:slave")).collect()
    }

    pub fn cluster(&self) -> &Cluster {
        match &self.servers {
            Servers::Cluster(cluster) => cluster,
            Servers::Independent(_) | Servers::Replicated(_) => panic!("this is no cluster"),
        }
    }

    /// Stops a server until [`Deployment::heal`].
    pub fn stop(&self, server: &Server) {
        server.stop();
        self.stopped.borrow_mut().push(server.port());
    }

    /// Kills a server. [`Deployment::heal`] starts it again.
    pub fn kill(&self, server: &Server) {
        server.kill();
        self.killed.borrow_mut().push(server.port());
    }

    /// Cuts these servers off from all others, in both directions.
    pub fn cut_off(&self, minority: &[&Server]) {
        let is_inside = |server: &&Server| minority.iter().any(|one| one.port() == server.port());
        for outside in self.all().filter(|server| !is_inside(server)) {
            for inside in minority {
                outside.gate().keep_apart(&whose(inside.member()));
                inside.gate().keep_apart(&whose(outside.member()));
            }
        }
    }

    /// Cuts a client off from the servers that `from` selects.
    pub fn cut_off_client(&self, client: &str, from: impl Fn(&Server) -> bool) {
        for server in self.all().filter(|server| from(server)) {
            server.gate().keep_apart(&whose(client.to_owned()));
        }
    }

    /// Replaces a master by a planned fail-over. Returns the effect.
    pub fn fail_over(&self, master: &Server) -> Effect {
        match &self.servers {
            Servers::Independent(_) => panic!("there is no replica"),
            Servers::Replicated(replicated) => {
                replicated.fail_over();
                Effect::LosesHolds
            }
            Servers::Cluster(cluster) => {
                cluster.fail_over(cluster.replica_of(master));
                Effect::Delays
            }
        }
    }

    /// Blocks until a replica has replaced the master.
    pub fn await_replacement(&self, master: &Server, replica: &Server) {
        match &self.servers {
            Servers::Independent(_) => panic!("there is no replica"),
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

    /// Undoes all faults. Blocks until all servers work again.
    pub fn heal(&self) {
        for port in self.stopped.borrow_mut().drain(..) {
            self.server_at(port).resume();
        }
        for port in self.killed.borrow_mut().drain(..) {
            self.server_at(port).restart();
        }
        self.all().for_each(|server| server.gate().heal());
        match &self.servers {
            Servers::Independent(servers) => eventually("the servers answer", || {
                servers.iter().all(|server| server.try_ask::<String>(&["PING"]).is_some())
            }),
            Servers::Replicated(replicated) => replicated.settle(),
            Servers::Cluster(cluster) => cluster.settle(),
        }
    }

    /// Returns the reports of the servers about each other, and the ends of their logs.
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

    fn server_at(&self, port: u16) -> &Server {
        self.all().find(|server| server.port() == port).expect("a server of this deployment")
    }
}

/// Returns the connections of a member.
pub fn whose(member: String) -> Connections {
    Connections::Member(member.into())
}

/// Deletes the data of a server that does not run.
pub fn wipe(server: &Server) {
    let (new, old) = (server.path("appendonlydir"), server.path("appendonly.aof"));
    let gone = fs::remove_dir_all(new).is_ok() | fs::remove_file(old).is_ok();
    assert!(gone, "the server has no append-only file");
}
