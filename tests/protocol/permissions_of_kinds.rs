//! The table of docs/permissions.md with the additional permissions of each kind of lock:
//! they suffice, and each of them is used.

use crate::harness::subject::{Subject, SubjectGuard};
use crate::harness::{Server, eventually, in_time};
use leasehold::{Client, Events, Lock, Renewed};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Returns the rules of the documented `ACL SETUSER` line, without the user's name.
fn of_a_plain_lock() -> Vec<String> {
    let mut lines = include_str!("../../docs/permissions.md")
        .lines()
        .filter_map(|it| it.strip_prefix("ACL SETUSER "));
    let line = lines.next().expect("docs/permissions.md has that line");
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

/// The rows of the table, by kind.
fn table() -> BTreeMap<String, Vec<String>> {
    let (_, table) = include_str!("../../docs/permissions.md")
        .split_once("| kind | additional permissions |")
        .expect("docs/permissions.md has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let mut cells = line.trim_matches(['|', ' ']).split(" | ");
        let kind = cells.next().expect("a kind").to_owned();
        let words = cells.next().expect("words").trim().trim_matches('`').split_whitespace();
        (kind, words.filter(|word| *word != "nothing").map(str::to_owned).collect())
    };
    rows.map(row).collect()
}

/// Counts leases that were renewed.
#[derive(Clone, Debug, Default)]
struct Renewals(Arc<AtomicUsize>);

impl Events for Renewals {
    fn renewed(&self, event: &Renewed) {
        self.0.fetch_add(event.holds.len(), Ordering::SeqCst);
    }
}

struct Stage {
    server: Server,
    clients: [Client; 2],
    renewals: Renewals,
}

/// Two clients of a user that may do this.
fn stage(words: &[String]) -> Stage {
    let server = Server::start();
    let rule: Vec<&str> = words.iter().map(String::as_str).collect();
    server.ask::<()>(&[&["ACL", "SETUSER", "worker", "reset"], &rule[..]].concat());
    let password = words.iter().find_map(|word| word.strip_prefix('>')).expect("a password");
    let renewals = Renewals::default();
    let client = || {
        let builder = Client::builder().single(server.login_url("worker", password));
        let builder = builder.audit_policy(leasehold::AuditPolicy::Ignore);
        let builder = builder.watchdog_timeout(Duration::from_millis(1500));
        builder.poll_interval(Duration::from_millis(200)).events(renewals.clone()).build()
    };
    let clients = [client().expect("it may log in"), client().expect("it may log in")];
    Stage { server, clients, renewals }
}

impl Stage {
    /// Everything that can be done with a lock.
    fn live<S: Subject>(&self, make: impl Fn(&Client) -> S) {
        let [mine, theirs] = self.clients.each_ref().map(make);
        let guard = mine.lock().expect("free");
        assert!(theirs.is_locked().expect("an answer"));
        guard.extend(Duration::from_secs(60)).expect("held");
        let (many, asked) = (|| self.server.calls("evalsha"), self.server.calls("evalsha"));
        thread::scope(|scope| {
            let leaving = scope.spawn(|| theirs.try_lock_for_owned(Duration::from_millis(700)));
            eventually("it waits", || many() > asked + 1);
            let staying = scope.spawn(|| theirs.lock_owned());
            assert!(in_time("who leaves", leaving).expect("an answer").is_none());
            guard.unlock().expect("held");
            in_time("who stays", staying).expect("it comes round").unlock().expect("held");
        });
        let renewed = self.renewals.0.load(Ordering::SeqCst);
        let guard = mine.lock_owned().expect("free");
        eventually("it is renewed", || self.renewals.0.load(Ordering::SeqCst) > renewed + 1);
        assert!(theirs.remaining().expect("an answer").is_some());
        assert!(theirs.force_unlock().expect("an answer"));
        drop(guard);
        let guard = mine.try_lock().expect("an answer").expect("free");
        drop(guard);
        eventually("it is free", || !theirs.is_locked().expect("an answer"));
    }

    fn live_as(&self, kind: &str) {
        let named = |client: &Client| -> Lock {
            client.lock("orders:1").with_holder(client.id().to_string())
        };
        match kind {
            "fenced" => self.live(|client| client.fenced_lock("orders:1")),
            "fair" => self.live(|client| client.fair_lock("orders:1")),
            "named holder" => {
                self.live(named);
                let job = |client: &Client| client.lock("orders:1").with_holder("a job");
                job(&self.clients[0]).lock_owned().expect("free").detach();
                job(&self.clients[1]).unlock().expect("it presents the name");
            }
            "read and write" => {
                self.live(|client| client.rw_lock("orders:1").write_lock());
                let lock = self.clients[0].rw_lock("orders:1");
                let (writing, reading) = (lock.write().expect("free"), lock.read().expect("own"));
                writing.unlock().expect("held");
                let other = self.clients[1].rw_lock("orders:1");
                assert!(other.try_write().expect("an answer").is_none());
                assert!(other.read_lock().is_locked().expect("an answer"));
                let second = other.read().expect("they share");
                reading.extend(Duration::from_secs(60)).expect("held");
                second.unlock().expect("held");
                reading.unlock().expect("held");
            }
            "spin, multi, red" => self.live(|client| client.spin_lock("orders:1")),
            other => panic!("nobody knows how to use {other}"),
        }
    }

    fn denied(&self) -> usize {
        self.server.ask::<Vec<BTreeMap<String, redis::Value>>>(&["ACL", "LOG"]).len()
    }
}

#[test]
fn what_the_table_names_is_enough_and_used() {
    let table = table();
    assert_eq!(table.len(), 5, "{table:?}");
    thread::scope(|scope| {
        for (kind, more) in &table {
            scope.spawn(move || {
                let stage = stage(&[of_a_plain_lock(), more.clone()].concat());
                stage.server.reset_stats();
                stage.live_as(kind);
                assert_eq!(stage.denied(), 0, "{kind}: {:?}", stage.server.log());
                let commands = more.iter().filter_map(|word| word.strip_prefix('+'));
                let unused: Vec<_> =
                    commands.filter(|command| stage.server.calls(command) == 0).collect();
                assert_eq!(unused, Vec::<&str>::new(), "{kind}");
            });
        }
    });
}

#[test]
fn keys_and_channels_of_the_table_are_needed() {
    for (kind, more) in table() {
        for missing in more.iter().filter(|word| word.starts_with(['~', '&'])) {
            let fewer = more.iter().filter(|word| *word != missing).cloned().collect();
            let stage = stage(&[of_a_plain_lock(), fewer].concat());
            let take = |client: &Client| {
                let wait = Duration::from_millis(50);
                match kind.as_str() {
                    "fenced" => client.fenced_lock("orders:1").try_lock_for_owned(wait).map(drop),
                    "fair" => client.fair_lock("orders:1").try_lock_for_owned(wait).map(drop),
                    "read and write" => {
                        let lock = client.rw_lock("orders:1");
                        lock.read().and_then(|guard| guard.unlock())
                    }
                    other => panic!("nobody knows what {other} needs {missing} for"),
                }
            };
            let error = take(&stage.clients[0]).err();
            assert!(stage.denied() > 0, "{kind} without {missing}: {error:?}");
        }
    }
}
