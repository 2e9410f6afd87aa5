//! Semaphores and latches shared with Redisson, on one server and in a cluster.
//!
//! Leases and poll intervals are far longer than these tests, so that waiters are woken by the
//! messages of the other side. Without a JDK or Maven each test prints that it is skipped; with
//! `LEASEHOLD_INTEROP` set that is a failure.

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::process::{self, ChildProcess};
use crate::harness::wait::BOUND;
use crate::harness::{Cluster, Server, eventually, in_time};
use crate::java::Java;
use crate::shared::{Redisson, channel_of, with_java, with_name};
use leasehold::{Client, Permit};
use std::thread;
use std::time::Duration;

/// A lease that ends, or is renewed, during a test.
const BRIEF: Duration = Duration::from_secs(3);

#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    assert_eq!(role.name(), "permits");
    let client = Client::builder().single(role.arg(0)).watchdog_timeout(BRIEF).build();
    let semaphore = client.expect("the server is there").semaphore(role.arg(1));
    let _permits = semaphore.acquire_many(2).expect("they are free");
    role.say("acquired");
    thread::park();
}

/// A client of Redisson and a client of leasehold on the same servers.
struct Sides<'a> {
    java: &'a Java,
    rust: &'a Client,
    servers: &'a [Server],
}

/// A change by one side that must wake a waiter of the other side.
struct Wakes {
    /// Orders to Redisson that precede the wait.
    setup: &'static [&'static str],
    /// An order to Redisson: the change, or the wait. `{}` is the last answer of the setup.
    order: &'static str,
    /// The wait, or the change, of leasehold. Its permits are kept until the other side is awake.
    rust: fn(&Client, &str) -> Option<Permit>,
}

impl Sides<'_> {
    fn does(&self, name: &str, order: &str) -> String {
        self.java.does(name, &with_name(order, name))
    }

    /// Executes the orders before the wait, and returns the last answer.
    fn prepare(&self, name: &str, setup: &[&str]) -> String {
        setup.iter().fold(String::new(), |_, order| self.does(name, order))
    }

    /// Asserts that a change by Redisson wakes a waiter of leasehold.
    fn java_wakes_rust(&self, name: &str, case: &Wakes) {
        let order = case.order.replace("{}", &self.prepare(name, case.setup));
        let channel = channel_of(&order, name);
        let is_awaited = || self.servers.iter().any(|server| server.listeners(&channel) > 0);
        thread::scope(|scope| {
            let waits = scope.spawn(|| (case.rust)(self.rust, name));
            eventually("leasehold subscribes", is_awaited);
            assert!(!waits.is_finished(), "leasehold waits");
            self.does(name, &order);
            in_time(&order, waits);
        });
    }

    /// Asserts that the end of a permit of leasehold wakes a waiter of Redisson.
    fn end_wakes_java(&self, name: &str, end: fn(Permit)) {
        self.prepare(name, &["set permits 2"]);
        let permit = self.rust.semaphore(name).acquire().expect("it is free");
        self.rust_wakes_java(name, "acquire permits 2", || end(permit));
    }

    /// Asserts that a change by leasehold wakes a waiter of Redisson.
    fn rust_wakes_java<T>(&self, name: &str, order: &str, change: impl FnOnce() -> T) {
        let waits = self.java.order("waiter", &with_name(order, name));
        eventually("Redisson waits", || self.java.is_parked("waiter"));
        let _kept = change();
        waits.answer().expect("no exception");
    }

    /// Asserts all of these for names with the prefix, which `name` completes.
    fn wake_each_other(&self, name: &dyn Fn(&str) -> String) {
        for (number, case) in JAVA_WAKES_RUST.iter().enumerate() {
            self.java_wakes_rust(&name(&format!("java-{number}-")), case);
        }
        for (number, case) in RUST_WAKES_JAVA.iter().enumerate() {
            let name = name(&format!("rust-{number}-"));
            self.prepare(&name, case.setup);
            self.rust_wakes_java(&name, case.order, || (case.rust)(self.rust, &name));
        }
        self.end_wakes_java(&name("drop-"), drop);
        self.end_wakes_java(&name("release-"), |permit| permit.release().expect("held"));
    }
}

fn take_two(client: &Client, name: &str) -> Option<Permit> {
    client.plain_semaphore(name).acquire(2).expect("they become free");
    None
}

fn lease_two(client: &Client, name: &str) -> Option<Permit> {
    Some(client.semaphore(name).acquire_many(2).expect("they become free"))
}

fn wait_for_latch(client: &Client, name: &str) -> Option<Permit> {
    client.latch(name).wait().expect("it opens");
    None
}

const JAVA_WAKES_RUST: &[Wakes] = &[
    Wakes { setup: &["set semaphore 1"], order: "release semaphore 1", rust: take_two },
    Wakes { setup: &["set semaphore 1"], order: "add semaphore 1", rust: take_two },
    Wakes { setup: &[], order: "set semaphore 2", rust: take_two },
    Wakes {
        setup: &["set permits 2", "acquire permits 1"],
        order: "release permits {}",
        rust: lease_two,
    },
    // Redisson's message names the two permits of the list; the total is 3.
    Wakes {
        setup: &["set permits 3", "acquire permits 2"],
        order: "releaseAll permits {}",
        rust: lease_two,
    },
    Wakes {
        setup: &["set permits 2", "acquire permits 1"],
        order: "resize permits 3",
        rust: lease_two,
    },
    Wakes {
        setup: &["set permits 2", "acquire permits 1"],
        order: "add permits 1",
        rust: lease_two,
    },
    Wakes { setup: &["set latch 1"], order: "down latch", rust: wait_for_latch },
    Wakes { setup: &["set latch 2"], order: "delete latch", rust: wait_for_latch },
];

const RUST_WAKES_JAVA: &[Wakes] = &[
    Wakes {
        setup: &["set semaphore 1"],
        order: "acquire semaphore 2",
        rust: |client, name| {
            client.plain_semaphore(name).release(1).expect("an answer");
            None
        },
    },
    Wakes {
        setup: &["set semaphore 1"],
        order: "acquire semaphore 2",
        rust: |client, name| {
            client.plain_semaphore(name).add_permits(1).expect("an answer");
            None
        },
    },
    Wakes {
        setup: &[],
        order: "acquire semaphore 2",
        rust: |client, name| {
            assert!(client.plain_semaphore(name).try_set_permits(2).expect("an answer"));
            None
        },
    },
    Wakes {
        setup: &[],
        order: "acquire permits 1",
        rust: |client, name| {
            let semaphore = client.semaphore(name).with_permits(2);
            Some(semaphore.acquire().expect("the capacity is set"))
        },
    },
    Wakes {
        setup: &["set permits 1"],
        order: "acquire permits 2",
        rust: |client, name| {
            client.semaphore(name).resize(2).expect("an answer");
            None
        },
    },
    Wakes {
        setup: &["set latch 1"],
        order: "await latch",
        rust: |client, name| {
            client.latch(name).count_down().expect("an answer");
            None
        },
    },
    Wakes {
        setup: &["set latch 1"],
        order: "await latch",
        rust: |client, name| {
            drop(client.latch(name).count_down_on_drop());
            None
        },
    },
    Wakes {
        setup: &["set latch 2"],
        order: "await latch",
        rust: |client, name| {
            assert!(client.latch(name).delete().expect("an answer"));
            None
        },
    },
];

#[test]
fn each_side_wakes_the_other_on_one_server() {
    let redisson = with_java!(Redisson::start());
    let rust = build(patient(redisson.server.url()));
    let servers = std::slice::from_ref(&redisson.server);
    Sides { java: &redisson.java, rust: &rust, servers }
        .wake_each_other(&|prefix| format!("{prefix}one"));
}

#[test]
fn each_side_wakes_the_other_on_every_node_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let java = with_java!(Java::start_in(&cluster, NEVER));
    let rust = Client::builder().cluster(cluster.urls());
    let rust = build(rust.poll_interval(NEVER).watchdog_timeout(NEVER));
    let sides = Sides { java: &java, rust: &rust, servers: cluster.nodes() };
    for node in cluster.nodes() {
        sides.wake_each_other(&|prefix| cluster.key_on(node, prefix));
    }
}

#[test]
fn both_sides_count_the_same_plain_permits() {
    let redisson = with_java!(Redisson::start());
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
    let redisson = with_java!(Redisson::start());
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

#[test]
fn both_sides_keep_one_capacity() {
    let redisson = with_java!(Redisson::start());
    let client = build(patient(redisson.server.url()));
    let jobs = client.semaphore("jobs").with_permits(4);
    let ours = jobs.acquire_many(2).expect("they are free");
    redisson.answers("jobs", &[("set permits 9", "false"), ("capacity permits", "4")]);
    let theirs = redisson.does("jobs", "acquire permits 1");
    assert!(jobs.try_acquire_many(2).expect("an answer").is_none(), "1 is free");
    let last = jobs.acquire().expect("it is free");
    let full = [("try permits 1", ""), ("available permits", "0"), ("acquired permits", "4")];
    redisson.answers("jobs", &full);
    assert!(jobs.try_acquire().expect("an answer").is_none());
    let counts = || (jobs.available(), jobs.in_use(), jobs.permits());
    let counts = || match counts() {
        (Ok(available), Ok(in_use), Ok(permits)) => (available, in_use, permits),
        other => panic!("{other:?}"),
    };
    assert_eq!(counts(), (0, 4, 4));
    let holders = jobs.holders().expect("an answer");
    let foreign: Vec<_> = holders.iter().filter(|holder| holder.client_id().is_none()).collect();
    assert_eq!(foreign.iter().map(|holder| holder.owner()).collect::<Vec<_>>(), [&theirs]);
    assert_eq!(holders.len(), 3, "{holders:?}");
    ours.release().expect("held");
    redisson.answers("jobs", &[("available permits", "2"), ("capacity permits", "4")]);
    redisson.does("jobs", &format!("release permits {theirs}"));
    last.release().expect("held");
    assert_eq!(counts(), (4, 0, 4));
}

#[test]
fn each_side_reclaims_the_permits_of_a_killed_process_of_the_other() {
    let server = &Server::start();
    let java = with_java!(Java::start_alone(&[server], NEVER));
    java.does("t", "set permits a 2");
    let entry = "semaphores::child_entry";
    let mut child = ChildProcess::start(entry, "permits", &[&server.url(), "a"]);
    child.expect_line("acquired");
    assert_eq!(java.does("t", "try permits a 1"), "");
    let waiting = java.order("t", &format!("acquire permits a 2 {}", BRIEF.as_millis()));
    eventually("Java waits", || java.is_parked("t"));
    child.kill();
    waiting.answer().expect("the lease of the child ends");
    // No message tells of the end of Java's lease, and no poll is due.
    let client = build(patient(server.url()));
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.semaphore("a").acquire_many(2));
        eventually("leasehold waits", || server.numsub("redisson_sc:{a}") > 0);
        java.kill();
        in_time("Java's lease ends", waits).expect("two permits").release().expect("held");
    });
}

#[test]
fn a_permit_that_redisson_releases_is_lost() {
    let redisson = with_java!(Redisson::start());
    let client = Client::builder().single(redisson.server.url()).watchdog_timeout(BRIEF);
    let semaphore = build(client).semaphore("given").with_permits(2);
    let permit = semaphore.acquire().expect("it is free");
    let ids: Vec<Vec<u8>> = redisson.server.ask(&["ZRANGE", "{given}:timeout", "0", "-1"]);
    let id: String = ids[0].iter().map(|byte| format!("{byte:02x}")).collect();
    redisson.does("given", &format!("release permits {id}"));
    assert!(permit.wait_lost(BOUND), "the next renewal reports it");
    assert!(permit.release().is_err_and(|error| error.is_lost()));
    redisson.answers("given", &[("available permits", "2"), ("acquired permits", "0")]);
}

#[test]
fn a_permit_is_renewed_in_the_sight_of_redisson() {
    let redisson = with_java!(Redisson::start());
    let client = Client::builder().single(redisson.server.url()).watchdog_timeout(BRIEF);
    let semaphore = build(client).semaphore("renewed").with_permits(1);
    let permit = semaphore.acquire().expect("it is free");
    let expiry = || -> f64 {
        let members: Vec<(Vec<u8>, f64)> =
            redisson.server.ask(&["ZRANGE", "{renewed}:timeout", "0", "-1", "WITHSCORES"]);
        members[0].1
    };
    let first = expiry();
    eventually("a full lease later", || expiry() > first + BRIEF.as_millis() as f64);
    redisson.answers("renewed", &[("try permits 1", ""), ("acquired permits", "1")]);
    permit.release().expect("held");
}
