//! The same requests to real servers in the same topology: every reply is the same, byte by byte.

use crate::clients::START;
use crate::wire::{Connection, encode};
use leasehold_testserver::core::{Address, ClusterMap, ConnectionId, Core, SLOTS, slot_of};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a real server may take to start, to answer or to learn something.
const BOUND: Duration = Duration::from_secs(60);

/// A redis-server at a port, which ends with this value.
struct Real {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl Real {
    /// Starts a server with more lines of configuration, into which `PORT2` puts a second port.
    fn start(role: &[&str], lines: &str) -> Self {
        // Another program may take the ports before the server does.
        let attempts = (0..10).find_map(|_| Self::try_start(role, lines));
        attempts.expect("a redis-server that starts")
    }

    fn try_start(role: &[&str], lines: &str) -> Option<Self> {
        let [port, second] = free_ports();
        let folder = TempDir::new().expect("a temporary folder can be made");
        let path = folder.path().join("redis.conf");
        let text = format!("port {port}\nbind 127.0.0.1\nrepl-diskless-sync-delay 0\nsave \"\"\n");
        let is_sentinel = role.contains(&"--sentinel");
        let text = if is_sentinel { format!("port {port}\n") } else { text };
        let text = text + &lines.replace("PORT2", &second.to_string());
        std::fs::write(&path, text).expect("our own folder is writable");
        let program = std::env::var("LEASEHOLD_REDIS_SERVER");
        let process = Command::new(program.as_deref().unwrap_or("redis-server"))
            .arg(&path)
            .args(role)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let mut server = Self { process, port, _folder: folder };
        let start = Instant::now();
        while start.elapsed() < BOUND && server.process.try_wait().ok()?.is_none() {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(server);
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn address(&self) -> Address {
        Address::new("127.0.0.1", self.port)
    }

    fn connect(&self) -> Connection<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).expect("the time is not zero");
        Connection::new(stream)
    }

    fn ask(&self, request: &str) -> String {
        let mut connection = self.connect();
        connection.send(&bytes_of(request));
        String::from_utf8(connection.reply(request)).expect("a text")
    }

    fn await_reply(&self, request: &str, part: &str) {
        self.await_fact(request, |reply| reply.contains(part));
    }

    fn await_fact(&self, request: &str, is_fact: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            let reply = self.ask(request);
            if is_fact(&reply) {
                return;
            }
            assert!(start.elapsed() < BOUND, "{request} stays {reply}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("there are ports"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}

fn bytes_of(request: &str) -> Vec<u8> {
    let words: Vec<Vec<u8>> = request.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    encode(&words)
}

/// A connection to a real server, and one to a core in the same place.
struct Pair<'a> {
    real: Connection<TcpStream>,
    core: &'a mut Core,
    ours: ConnectionId,
}

impl<'a> Pair<'a> {
    fn new(real: &Real, core: &'a mut Core) -> Self {
        let ours = core.connect();
        Self { real: real.connect(), core, ours }
    }

    /// Sends a request to both, and returns both replies.
    fn replies(&mut self, request: &str) -> [String; 2] {
        self.real.send(&bytes_of(request));
        self.core.receive(self.ours, &bytes_of(request));
        let real = self.real.reply(request);
        if let Some(deadline) = self.core.next_deadline() {
            self.core.set_clock(deadline);
        }
        [real, self.core.take_output(self.ours).0].map(text)
    }

    /// Compares the replies to requests, one in each line.
    fn compare(&mut self, requests: &str) {
        for request in requests.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let [real, ours] = self.replies(request);
            assert_eq!(real, ours, "{request}");
        }
    }

    /// Compares the replies to requests without their numbers.
    fn compare_shapes(&mut self, requests: &str) {
        for request in requests.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let [real, ours] = self.replies(request).map(|reply| without_numbers(&reply));
            assert_eq!(real, ours, "{request}");
        }
    }

    /// Compares the names of the facts in replies, one in each line.
    fn compare_facts(&mut self, requests: &str) {
        for request in requests.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let [real, ours] = self.replies(request).map(|reply| fact_names(&reply));
            assert_eq!(real, ours, "{request}");
        }
    }

    /// Compares what the servers have sent without a request.
    fn compare_message(&mut self) {
        let real = text(self.real.reply("a subscriber"));
        assert_eq!(real, text(self.core.take_output(self.ours).0));
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("a text")
}

fn without_numbers(reply: &str) -> String {
    let is_digit = |character: char| character.is_ascii_digit() || character == '-';
    let parts: Vec<&str> = reply.split(is_digit).filter(|part| !part.is_empty()).collect();
    parts.join("0")
}

/// Returns the names in lines as `name:value`.
fn fact_names(reply: &str) -> Vec<String> {
    let names = reply.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name);
    // The kinds of messages between nodes, of which the core has the sums.
    let is_detail =
        |name: &&str| name.starts_with("cluster_stats_messages_") && name.matches('_').count() > 3;
    names.filter(|name| !is_detail(name)).map(str::to_owned).collect()
}

#[test]
fn replicas_and_sentinels_answer_as_real_ones() {
    let [real_master, real_replica] = [(); 2].map(|()| Real::start(&[], ""));
    let monitor = format!("sentinel monitor main 127.0.0.1 {} 1\n", real_master.port);
    real_replica.ask(&format!("REPLICAOF 127.0.0.1 {}", real_master.port));
    let real_sentinel = Real::start(&["--sentinel"], &monitor);
    real_replica.await_reply("INFO replication", "master_link_status:up");
    real_master.await_reply("INFO replication", "state=online");
    let (mut master, mut replica) = (Core::new(1), Core::new(2));
    for core in [&mut master, &mut replica] {
        core.set_clock(START);
    }
    replica.become_replica_of(real_master.address());
    assert!(replica.load(master.add_replica(real_replica.address())));
    master.acknowledge(&real_replica.address(), 0);

    let mut at_replica = Pair::new(&real_replica, &mut replica);
    at_replica.compare(
        "SET a 1
        FLUSHALL
        GET a
        PUBLISH a b
        EVAL return(redis.call('set',KEYS[1],1)) 1 a
        EVAL return(redis.pcall('set',KEYS[1],1)) 1 a
        EVAL return(redis.pcall('set',KEYS[1],1).err) 1 a
        EVAL return(redis.call('get',KEYS[1])) 1 a
        WAIT 1 10
        WAIT x 10",
    );
    at_replica.compare_shapes("HELLO 3\nROLE");
    at_replica.compare_facts("INFO replication");

    let mut at_master = Pair::new(&real_master, &mut master);
    at_master.compare_shapes("HELLO 2\nROLE\nWAIT 1 1000\nWAIT 1 9223372036854775807");
    at_master.compare_facts("INFO replication");
    at_master.compare(
        "WAIT x y
        WAIT 0 y
        WAIT 1 -1
        WAIT 2 20
        CONFIG SET min-replicas-to-write 2
        SET a 1
        FLUSHALL
        PUBLISH a b
        EVAL return(redis.call('set',KEYS[1],1)) 1 a",
    );
    at_master.compare_facts("INFO replication");
    at_master.compare("CONFIG SET min-replicas-to-write 1\nSET a 1");
    at_master.real.send(&bytes_of("WAIT 5 0"));
    at_master.core.receive(at_master.ours, &bytes_of("WAIT 5 0"));
    real_master.await_reply("INFO clients", "blocked_clients:1");
    real_master.ask("REPLICAOF 127.0.0.1 1");
    at_master.core.become_replica_of(Address::new("127.0.0.1", 1));
    at_master.compare_message();

    let mut sentinel = Core::new_sentinel(3);
    sentinel.set_master("main", real_master.address(), 0);
    let mut at_sentinel = Pair::new(&real_sentinel, &mut sentinel);
    at_sentinel.compare(
        "PING
        ROLE
        SENTINEL GET-MASTER-ADDR-BY-NAME main
        SENTINEL GET-MASTER-ADDR-BY-NAME nosuch
        SENTINEL MASTER nosuch
        SENTINEL REPLICAS nosuch
        SENTINEL SENTINELS nosuch
        SENTINEL SENTINELS main
        SENTINEL nosuch
        SENTINEL MASTER
        CLIENT SETNAME x
        GET a
        SELECT 0
        SUBSCRIBE +switch-master
        UNSUBSCRIBE",
    );
    at_sentinel.compare_shapes("HELLO 3");
    at_sentinel.compare("SENTINEL GET-MASTER-ADDR-BY-NAME nosuch");
    let [real, ours] = at_sentinel.replies("SENTINEL MASTER main");
    let names = |reply: &str| {
        let lines: Vec<&str> = reply.lines().collect();
        let names = lines[1..].chunks(4).map(|field| field[1].to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&real), names(&ours));
}

/// The nodes A and B of a cluster, real ones and cores, which share the slots.
struct Nodes {
    real: [Real; 2],
    cores: [Core; 2],
    ids: [String; 2],
    map: ClusterMap,
}

impl Nodes {
    fn start() -> Self {
        let lines = "cluster-enabled yes\ncluster-port PORT2\ncluster-node-timeout 5000\n";
        let real = [(); 2].map(|()| Real::start(&[], lines));
        let ids = real.each_ref().map(|node| {
            let reply = node.ask("CLUSTER MYID");
            reply.lines().nth(1).expect("an id").to_owned()
        });
        for (node, request) in real.iter().zip([
            "CLUSTER SET-CONFIG-EPOCH 1|CLUSTER ADDSLOTSRANGE 0 8191",
            "CLUSTER SET-CONFIG-EPOCH 2|CLUSTER ADDSLOTSRANGE 8192 16383",
        ]) {
            for request in request.split('|') {
                assert_eq!(node.ask(request), "+OK\r\n");
            }
        }
        let bus = bus_port(&real[1]);
        real[0].ask(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", real[1].port));
        for node in &real {
            node.await_reply("CLUSTER INFO", "cluster_state:ok");
            let knows_all = |slots: &str| slots.starts_with("*2") && !slots.contains("$0");
            node.await_fact("CLUSTER SLOTS", knows_all);
        }
        let mut map = ClusterMap::new();
        map.add_master(&ids[0], real[0].address(), 0..=8191);
        map.add_master(&ids[1], real[1].address(), 8192..=16_383);
        let mut nodes = Self { real, cores: [Core::new(1), Core::new(2)], ids, map };
        for (core, id) in nodes.cores.iter_mut().zip(&nodes.ids) {
            core.set_clock(START);
            core.join_cluster(id);
        }
        nodes.tell();
        nodes
    }

    /// Hands the map out to the cores.
    fn tell(&mut self) {
        let map = Rc::new(self.map.clone());
        self.cores.iter_mut().for_each(|core| core.set_cluster_map(&map));
    }

    fn at(&mut self, node: usize) -> Pair<'_> {
        Pair::new(&self.real[node], &mut self.cores[node])
    }
}

fn bus_port(node: &Real) -> String {
    let nodes = node.ask("CLUSTER NODES");
    let address = nodes.lines().nth(1).and_then(|line| line.split(' ').nth(1));
    let bus = address.and_then(|address| address.split(['@', ',']).nth(1));
    bus.expect("the port of the bus").to_owned()
}

#[test]
fn nodes_of_a_cluster_answer_as_real_ones() {
    let mut nodes = Nodes::start();
    for protocol in [2, 3] {
        let mut pair = nodes.at(0);
        pair.compare_shapes(&format!("HELLO {protocol}"));
        pair.compare(STABLE);
        pair.compare_facts("CLUSTER INFO\nINFO cluster");
    }
    // The slot of bar moves from A to B.
    let slot = slot_of(b"bar");
    let [a, b] = nodes.ids.clone();
    nodes.at(0).compare("SET {bar}1 1");
    nodes.real[1].ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {a}"));
    nodes.real[0].ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {b}"));
    nodes.cores[1].begin_import(slot);
    nodes.cores[0].begin_migration(slot, &b);
    nodes.at(0).compare(SOURCE);
    nodes.at(1).compare(TARGET);
    let ([real, real_b], [core, core_b]) = (&nodes.real, &mut nodes.cores);
    let mut subscriber = Pair::new(real, core);
    subscriber.compare_shapes("HELLO 3");
    subscriber.compare("SSUBSCRIBE {bar}1\nSSUBSCRIBE hello");
    let mut early = Pair::new(real_b, core_b);
    early.compare_shapes("HELLO 3");
    early.compare("SSUBSCRIBE {bar}1\nASKING\nSSUBSCRIBE {bar}1");
    real.ask(&format!("MIGRATE 127.0.0.1 {} {{bar}}1 0 5000", real_b.port));
    real_b.ask(&format!("CLUSTER SETSLOT {slot} NODE {b}"));
    real.ask(&format!("CLUSTER SETSLOT {slot} NODE {b}"));
    nodes.map.give(slot, &b);
    let map = Rc::new(nodes.map.clone());
    let exported = subscriber.core.export_key(b"{bar}1").expect("the key is there");
    subscriber.core.set_cluster_map(&map);
    subscriber.compare_message();
    subscriber.compare("SSUBSCRIBE {bar}1\nGET {bar}1");
    early.core.import_key(exported);
    early.core.set_cluster_map(&map);
    // The subscription at the slot's new owner stays.
    early.compare("PING still\nPUBSUB SHARDNUMSUB {bar}1");
    nodes.at(0).compare("GET {bar}1\nCLUSTER SLOTS");
    nodes.at(1).compare("GET {bar}1\nCLUSTER SLOTS\nASKING\nGET {bar}2\nSSUBSCRIBE {bar}1");

    assert_eq!(slot_of(b"k52280"), 9000);
    nodes.real[1].ask("CLUSTER DELSLOTS 9000");
    nodes.real[1].await_reply("CLUSTER INFO", "cluster_state:fail");
    let addresses = nodes.real.each_ref().map(Real::address);
    let mut map = ClusterMap::new();
    map.add_master(&a, addresses[0].clone(), 0..=8191);
    map.add_master(&b, addresses[1].clone(), 8192..=8999);
    (9001..SLOTS).chain([slot]).for_each(|slot| map.give(slot, &b));
    nodes.cores[1].set_cluster_map(&Rc::new(map));
    nodes.at(1).compare(DOWN);
}

/// Requests to A while no slot moves.
const STABLE: &str = "
    SET a 1
    SET bar 1
    GET bar
    MSET a 1 bar 1
    MSET a 1 a 2
    DEL a b
    COPY bar foo
    RENAME bar foo
    HSET a b
    GET
    EVAL return(redis.call('set',KEYS[1],1)) 1 a
    EVAL return(redis.call('set',ARGV[1],1)) 0 a
    EVAL return(redis.pcall('set',ARGV[1],1)) 0 a
    EVAL return(redis.call('mset','bar',1,'foo',2)) 0
    EVAL return(redis.call('mset','bar',1,'hello',2)) 0
    EVAL redis.call('set','bar',1)return(redis.call('set','hello',1)) 1 bar
    EVAL return(redis.call('spublish','a',1)) 0
    EVAL return(redis.call('spublish','bar',1)) 0
    EVAL return(redis.call('publish','a',1)) 0
    EVAL return(redis.call('ping')) 0
    EVAL return(1) 2 a bar
    EVAL return(1) 2 bar {bar}1
    EVAL x 5 a
    EVAL x y a
    EVAL x -1 a
    EVALSHA abc 1 a
    EVALSHA abc 1 bar
    EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 bar
    SELECT 1
    SELECT 0
    SELECT x
    SPUBLISH a b
    SPUBLISH bar b
    PUBLISH a b
    PUBSUB SHARDNUMSUB
    PUBSUB SHARDNUMSUB a bar
    SSUBSCRIBE a
    SSUBSCRIBE bar foo
    SUNSUBSCRIBE a
    SUNSUBSCRIBE
    CLUSTER SLOTS
    CLUSTER KEYSLOT a
    CLUSTER KEYSLOT x{}y
    CLUSTER KEYSLOT x{y}z
    CLUSTER KEYSLOT {{y}}
    CLUSTER KEYSLOT {y
    CLUSTER KEYSLOT
    CLUSTER NOSUCH
    CLUSTER
    CLUSTER MYID
    ASKING
    ASKING a
    GET a
    CONFIG GET cluster-enabled
    WAIT 0 0
    DBSIZE
    FLUSHALL";

/// Requests to A while the slot of bar moves to B.
const SOURCE: &str = "
    GET {bar}1
    GET {bar}2
    SET {bar}2 1
    MGET {bar}1 {bar}2
    MGET {bar}1 {bar}1
    MGET {bar}2 {bar}3
    EVAL return(redis.call('get',KEYS[1])) 1 {bar}2
    EVAL return(redis.call('get',KEYS[1])) 1 {bar}1
    EVAL return(redis.call('get','{bar}2')) 1 {bar}1
    EVAL return(redis.call('mget','{bar}2','{bar}1')) 1 {bar}1
    EVALSHA ffffffffffffffffffffffffffffffffffffffff 2 {bar}1 {bar}2
    SPUBLISH {bar}2 x
    SSUBSCRIBE {bar}2
    SUNSUBSCRIBE {bar}2
    ASKING
    GET {bar}2
    CLUSTER SLOTS";

/// Requests to B while the slot of bar moves from A.
const TARGET: &str = "
    GET {bar}1
    ASKING
    GET {bar}1
    GET {bar}1
    ASKING
    ASKING
    GET {bar}1
    ASKING
    PING
    GET {bar}1
    ASKING
    NOSUCH
    GET {bar}1
    ASKING
    GET
    GET {bar}1
    ASKING
    MGET {bar}1 {bar}2
    ASKING
    MGET {bar}1 {bar}1
    ASKING
    EVAL return(redis.call('set',KEYS[1],1)) 1 {bar}2
    ASKING
    EVAL return(redis.call('mget','{bar}2','{bar}1')) 1 {bar}2
    ASKING
    MGET {bar}2 {bar}2
    ASKING
    SPUBLISH {bar}2 x
    SPUBLISH {bar}2 x
    SSUBSCRIBE {bar}2
    ASKING
    SSUBSCRIBE {bar}2
    SUNSUBSCRIBE {bar}2
    CLUSTER SLOTS";

/// Requests to B without an owner of the slot of k52280.
const DOWN: &str = "
    GET foo
    GET bar
    GET k52280
    MGET k52280 foo
    MGET foo k52280
    EVAL return(redis.call('get','foo')) 0
    EVAL return(redis.call('get','k52280')) 0
    EVAL return(redis.call('get',KEYS[1])) 1 foo
    EVAL return(redis.call('ping')) 0
    SPUBLISH foo x
    SPUBLISH k52280 x
    CLUSTER SLOTS
    PING
    SSUBSCRIBE k52280
    SSUBSCRIBE foo";
