//! Semaphores and latches shared with Redisson, on one server and in a cluster.
//!
//! Leases and poll intervals are far longer than these tests, so that waiters are woken by the
//! messages of the other side. Without a JDK or Maven each test prints that it is skipped; with
//! `LEASEHOLD_INTEROP` set that is a failure.

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::{Cluster, Server, eventually, in_time};
use crate::java::Java;
use crate::shared::{Redisson, channel_of, with_java, with_name};
use leasehold::Client;
use std::thread;

/// A client of Redisson and a client of leasehold on the same servers.
struct Sides<'a> {
    java: &'a Java,
    rust: &'a Client,
    servers: &'a [Server],
}

/// A change by one side that must wake a waiter of the other side.
struct Wakes<R> {
    /// An order to Redisson that makes the waiter wait.
    setup: &'static str,
    /// An order to Redisson: the change, or the wait.
    order: &'static str,
    /// The wait, or the change, of leasehold.
    rust: R,
}

type Call = fn(&Client, &str);

impl Sides<'_> {
    fn does(&self, name: &str, order: &str) -> String {
        self.java.does(name, &with_name(order, name))
    }

    /// Blocks until a client waits for the semaphore or latch of that kind.
    fn await_waiter(&self, order: &str, name: &str) {
        let channel = channel_of(order, name);
        let is_subscribed = |server: &Server| server.listeners(&channel) > 0;
        eventually("a client subscribes", || self.servers.iter().any(is_subscribed));
    }

    /// Asserts that a change by Redisson wakes a waiter of leasehold.
    fn java_wakes_rust(&self, name: &str, case: &Wakes<Call>) {
        self.does(name, case.setup);
        thread::scope(|scope| {
            let waits = scope.spawn(|| (case.rust)(self.rust, name));
            self.await_waiter(case.order, name);
            assert!(!waits.is_finished(), "leasehold waits");
            self.does(name, case.order);
            in_time(case.order, waits);
        });
    }

    /// Asserts that a change by leasehold wakes a waiter of Redisson.
    fn rust_wakes_java(&self, name: &str, case: &Wakes<Call>) {
        self.does(name, case.setup);
        let waits = self.java.order("waiter", &with_name(case.order, name));
        self.await_waiter(case.order, name);
        assert!(waits.is_open(), "Redisson waits");
        (case.rust)(self.rust, name);
        waits.answer().expect("no exception");
    }

    /// Asserts all of these for names with the prefix, which `name` completes.
    fn wake_each_other(&self, name: &dyn Fn(&str) -> String) {
        for (number, case) in JAVA_WAKES_RUST.iter().enumerate() {
            self.java_wakes_rust(&name(&format!("java-{number}-")), case);
        }
        for (number, case) in RUST_WAKES_JAVA.iter().enumerate() {
            self.rust_wakes_java(&name(&format!("rust-{number}-")), case);
        }
    }
}

fn take_two(client: &Client, name: &str) {
    client.plain_semaphore(name).acquire(2).expect("they become free");
}

fn wait_for_latch(client: &Client, name: &str) {
    client.latch(name).wait().expect("it opens");
}

const JAVA_WAKES_RUST: &[Wakes<Call>] = &[
    Wakes { setup: "set semaphore 1", order: "release semaphore 1", rust: take_two },
    Wakes { setup: "set semaphore 1", order: "add semaphore 1", rust: take_two },
    Wakes { setup: "available semaphore", order: "set semaphore 2", rust: take_two },
    Wakes { setup: "set latch 1", order: "down latch", rust: wait_for_latch },
    Wakes { setup: "set latch 2", order: "delete latch", rust: wait_for_latch },
];

const RUST_WAKES_JAVA: &[Wakes<Call>] = &[
    Wakes {
        setup: "set semaphore 1",
        order: "acquire semaphore 2",
        rust: |client, name| client.plain_semaphore(name).release(1).expect("an answer"),
    },
    Wakes {
        setup: "set semaphore 1",
        order: "acquire semaphore 2",
        rust: |client, name| client.plain_semaphore(name).add_permits(1).expect("an answer"),
    },
    Wakes {
        setup: "available semaphore",
        order: "acquire semaphore 2",
        rust: |client, name| {
            assert!(client.plain_semaphore(name).try_set_permits(2).expect("an answer"));
        },
    },
    Wakes {
        setup: "set latch 1",
        order: "await latch",
        rust: |client, name| client.latch(name).count_down().expect("an answer"),
    },
    Wakes {
        setup: "set latch 1",
        order: "await latch",
        rust: |client, name| drop(client.latch(name).count_down_on_drop()),
    },
    Wakes {
        setup: "set latch 2",
        order: "await latch",
        rust: |client, name| assert!(client.latch(name).delete().expect("an answer")),
    },
];

#[test]
fn each_side_wakes_the_other_on_one_server() {
    let redisson = with_java!(Redisson::shared());
    let rust = build(patient(redisson.server.url()));
    let servers = std::slice::from_ref(&redisson.server);
    Sides { java: &redisson.java, rust: &rust, servers }
        .wake_each_other(&|prefix| format!("{prefix}one"));
}

#[test]
fn each_side_wakes_the_other_on_every_node_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let place = format!("cluster={}", cluster.urls().join(","));
    let java = with_java!(Java::start_at(&place, NEVER));
    let rust = Client::builder().cluster(cluster.urls());
    let rust = build(rust.poll_interval(NEVER).watchdog_timeout(NEVER));
    let sides = Sides { java: &java, rust: &rust, servers: cluster.nodes() };
    for node in cluster.nodes() {
        sides.wake_each_other(&|prefix| cluster.key_on(node, prefix));
    }
}

#[test]
fn both_sides_count_the_same_plain_permits() {
    let redisson = with_java!(Redisson::shared());
    let client = build(patient(redisson.server.url()));
    let stock = client.plain_semaphore("stock");
    assert!(stock.try_set_permits(5).expect("an answer"));
    redisson.answers("stock", &[("set semaphore 9", "false"), ("acquire semaphore 3", "acquired")]);
    assert!(!stock.try_acquire(3).expect("an answer"), "2 are free");
    stock.acquire(2).expect("they are free");
    redisson.answers("stock", &[("try semaphore 1", "false"), ("add semaphore -2", "added")]);
    assert_eq!(stock.available().expect("an answer"), -2);
    stock.release(5).expect("an answer");
    redisson.answers("stock", &[("available semaphore", "3"), ("drain semaphore", "3")]);
    assert_eq!(stock.drain().expect("an answer"), 0);
}

#[test]
fn both_sides_count_the_same_latch() {
    let redisson = with_java!(Redisson::shared());
    let client = build(patient(redisson.server.url()));
    let latch = client.latch("loaded");
    assert!(latch.try_set_count(3).expect("an answer"));
    redisson.answers("loaded", &[("set latch 9", "false"), ("down latch", "counted")]);
    assert_eq!(latch.count().expect("an answer"), 2);
    latch.count_down().expect("an answer");
    redisson.answers("loaded", &[("count latch", "1"), ("down latch", "counted")]);
    assert_eq!(latch.count().expect("an answer"), 0);
    latch.wait().expect("it is open");
    // The next round is set by the other side.
    redisson.answers("loaded", &[("await latch", "open"), ("set latch 1", "true")]);
    assert!(!latch.try_set_count(5).expect("an answer"));
    latch.count_down().expect("an answer");
    redisson.answers("loaded", &[("await latch", "open")]);
}
