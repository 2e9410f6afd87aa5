//! The additional permissions of each kind in docs/permissions.md suffice, and are used.

use crate::harness::faults::Renewals;
use crate::harness::permissions::{DOCUMENT, rules_of_a_plain_lock};
use crate::harness::subject::{Subject, SubjectGuard};
use crate::harness::{Server, eventually, in_time, join};
use leasehold::kind::LockKind;
use leasehold::{Begin, CancelToken, Client, Lock};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

/// Returns the rows of the table, by kind.
fn table() -> BTreeMap<&'static str, Vec<&'static str>> {
    let (_, table) = DOCUMENT
        .split_once("| kind | additional permissions |")
        .expect("docs/permissions.md has the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &'static str| {
        let mut cells = line.trim_matches(['|', ' ']).split(" | ");
        let kind = cells.next().expect("a kind");
        let words = cells.next().expect("words").trim().trim_matches('`').split_whitespace();
        (kind, words.filter(|word| *word != "nothing").collect())
    };
    rows.map(row).collect()
}

struct Stage {
    server: Server,
    clients: [Client; 2],
    renewals: Renewals,
}

/// Returns two clients of a user with these rules.
fn stage(words: &[&str]) -> Stage {
    let server = Server::start();
    server.ask::<()>(&[&["ACL", "SETUSER", "worker", "reset"], words].concat());
    let password = words.iter().find_map(|word| word.strip_prefix('>')).expect("a password");
    let renewals = Renewals::default();
    let client = || {
        let builder = Client::builder().single(server.login_url("worker", password));
        let builder = builder.audit_policy(leasehold::AuditPolicy::Ignore).announce(false);
        let builder = builder.watchdog_timeout(Duration::from_millis(1500));
        builder.poll_interval(Duration::from_millis(200)).events(renewals.clone()).build()
    };
    let clients = [client().expect("the user may log in"), client().expect("the user may log in")];
    Stage { server, clients, renewals }
}

impl Stage {
    /// Uses every operation of a lock.
    fn use_all_operations<S: Subject>(&self, make: impl Fn(&Client) -> S) {
        let [mine, theirs] = self.clients.each_ref().map(make);
        let guard = mine.lock().expect("free");
        assert!(theirs.is_locked().expect("a reply"));
        guard.extend(Duration::from_secs(60)).expect("held");
        let calls = || self.server.calls("evalsha");
        let before = calls();
        thread::scope(|scope| {
            let leaving = scope.spawn(|| theirs.try_lock_for_owned(Duration::from_millis(700)));
            eventually("the caller waits", || calls() > before + 1);
            let staying = scope.spawn(|| theirs.lock_owned());
            assert!(in_time("the caller leaves", leaving).expect("a reply").is_none());
            guard.unlock().expect("held");
            in_time("the caller that stays", staying).expect("acquired").unlock().expect("held");
        });
        let guard = mine.lock_owned().expect("free");
        self.renewals.await_more(2);
        assert!(theirs.remaining().expect("a reply").is_some());
        assert!(theirs.force_unlock().expect("a reply"));
        drop(guard);
        let guard = mine.try_lock().expect("a reply").expect("free");
        drop(guard);
        eventually("the lock is free", || !theirs.is_locked().expect("a reply"));
    }

    fn use_kind(&self, kind: &str) {
        let named = |client: &Client| -> Lock {
            client.lock("orders:1").with_holder(client.id().to_string())
        };
        match kind {
            "fenced" => self.use_all_operations(|client| client.fenced_lock("orders:1")),
            "once" => self.use_once(),
            "fair" => self.use_all_operations(|client| client.fair_lock("orders:1")),
            "queue" => {
                self.use_all_operations(|client| client.queue_lock("orders:1"));
                self.lose_a_place();
            }
            "election" => {
                self.use_an_election();
                self.lose_a_place();
            }
            "named holder" => {
                self.use_all_operations(named);
                let job = |client: &Client| client.lock("orders:1").with_holder("a job");
                job(&self.clients[0]).lock_owned().expect("free").detach();
                job(&self.clients[1]).unlock().expect("the same holder");
            }
            "read and write" => {
                self.use_all_operations(|client| client.rw_lock("orders:1").write_lock());
                let lock = self.clients[0].rw_lock("orders:1");
                let (writing, reading) = (lock.write().expect("free"), lock.read().expect("own"));
                writing.unlock().expect("held");
                let other = self.clients[1].rw_lock("orders:1");
                assert!(other.try_write().expect("a reply").is_none());
                assert!(other.read_lock().is_locked().expect("a reply"));
                let second = other.read().expect("readers share");
                reading.extend(Duration::from_secs(60)).expect("held");
                second.unlock().expect("held");
                reading.unlock().expect("held");
            }
            "spin, multi, red" => self.use_all_operations(|client| client.spin_lock("orders:1")),
            "semaphore" => self.use_a_semaphore(),
            "plain semaphore" => self.use_a_plain_semaphore(),
            "latch" => self.use_a_latch(),
            other => panic!("unknown kind: {other}"),
        }
    }

    /// Releases a lock of this kind before its minimum, while another caller waits.
    fn use_minimum(&self, kind: &str) {
        match kind {
            "fenced" => self.release_early(|client| client.fenced_lock("orders:2")),
            "fair" => self.release_early(|client| client.fair_lock("orders:2")),
            "queue" => self.release_early(|client| client.queue_lock("orders:2")),
            "read and write" => {
                self.release_early(|client| client.rw_lock("orders:2").write_lock())
            }
            "spin, multi, red" => {
                self.release_early(|client| client.spin_lock("orders:2"));
                self.release_early(|client| client.lock("orders:3"));
            }
            "once" | "election" | "named holder" | "semaphore" | "plain semaphore" | "latch" => {}
            other => panic!("unknown kind: {other}"),
        }
    }

    fn release_early<K: LockKind>(&self, make: impl Fn(&Client) -> Lock<K>) {
        let [mine, theirs] = self.clients.each_ref().map(make);
        let minimum = Duration::from_millis(500);
        let mine = mine.with_min_hold(minimum).with_max_hold(Duration::from_secs(60));
        let guard = mine.lock().expect("free");
        let release = || guard.unlock().expect("held");
        let next = self.wait_until(|| theirs.lock_owned(), release).expect("acquired");
        next.unlock().expect("held");
    }

    /// Runs a call that waits, and `end` once it waits.
    fn wait_until<T: Send>(&self, wait: impl FnOnce() -> T + Send, end: impl FnOnce()) -> T {
        thread::scope(|scope| {
            let waiting = scope.spawn(wait);
            eventually("the caller waits", || self.clients[1].stats().waiting_now() > 0);
            end();
            in_time("the caller", waiting)
        })
    }

    fn use_once(&self) {
        let [mine, theirs] = self.clients.each_ref().map(|it| it.once("orders:1"));
        let Begin::Run(run) = mine.begin().expect("free") else { panic!("nobody has committed") };
        self.renewals.await_more(2);
        let done = self.wait_until(|| theirs.begin(), || drop(run.commit("x").expect("held")));
        let Ok(Begin::Done(done)) = done else { panic!("{done:?}") };
        assert_eq!(mine.outcome().expect("a reply"), Some(done));
        assert!(theirs.forget().expect("a reply"));
        drop(mine.begin().expect("free"));
        eventually("it is released", || !self.server.ask::<bool>(&["EXISTS", "orders:1"]));
    }

    fn use_a_semaphore(&self) {
        let [mine, theirs] = self.clients.each_ref().map(|it| it.semaphore("orders:1"));
        let permit = mine.with_permits(2).with_slots().acquire_many(2).expect("free");
        let (token, claim) = (CancelToken::new(), "leasehold_claim:{orders:1}");
        let claims = || self.server.ask::<bool>(&["EXISTS", claim]);
        let cancel = || {
            eventually("the caller claims a permit", claims);
            token.cancel();
        };
        let cancelled = self.wait_until(|| theirs.clone().with_cancel(&token).acquire(), cancel);
        assert!(cancelled.expect_err("no permit is free").is_cancelled());
        eventually("the claim is gone", || !claims());
        self.renewals.await_more(2);
        let second = self.wait_until(|| theirs.acquire(), || theirs.resize(3).expect("a reply"));
        permit.release().expect("held");
        assert_eq!(theirs.available().expect("a reply"), 2);
        drop(second);
        eventually("the permit is free", || theirs.in_use().expect("a reply") == 0);
        assert_eq!(theirs.permits().expect("a reply"), 3);
    }

    fn use_a_plain_semaphore(&self) {
        let [mine, theirs] = self.clients.each_ref().map(|it| it.plain_semaphore("orders:1"));
        assert!(mine.try_set_permits(2).expect("a reply"));
        mine.acquire(2).expect("free");
        let release = || {
            eventually("the watchdog polls", || self.server.calls("mget") > 0);
            mine.release(2).expect("a reply");
        };
        self.wait_until(|| theirs.acquire(1), release).expect("free");
        mine.add_permits(4).expect("a reply");
        assert_eq!((mine.available().expect("a reply"), mine.drain().expect("a reply")), (5, 5));
    }

    fn use_a_latch(&self) {
        let [mine, theirs] = self.clients.each_ref().map(|client| client.latch("orders:1"));
        assert!(mine.try_set_count(2).expect("a reply"));
        mine.count_down().expect("a reply");
        let end = || {
            eventually("the watchdog polls", || self.server.calls("mget") > 0);
            drop(mine.count_down_on_drop());
        };
        self.wait_until(|| theirs.wait(), end).expect("open");
        assert!(mine.try_set_count(2).expect("a reply"));
        let end = || assert!(mine.delete().expect("a reply"));
        self.wait_until(|| theirs.wait(), end).expect("open");
        assert_eq!(theirs.count().expect("a reply"), 0);
    }

    fn use_an_election(&self) {
        let [mine, theirs] = self.clients.each_ref().map(|client| client.election("orders:1"));
        let observer = theirs.observe().expect("a reply");
        assert_eq!(observer.recv().expect("a state"), None);
        let term = mine.campaign().expect("nobody leads");
        assert_eq!(theirs.leader().expect("a reply").expect("a leader").token(), term.token());
        assert!(observer.recv().expect("a state").is_some());
        let brief = Duration::from_millis(300);
        let leaves = self.wait_until(|| theirs.try_campaign_for(brief), || ());
        assert!(leaves.expect("a reply").is_none());
        let resign = || term.resign().expect("valid");
        drop(self.wait_until(|| theirs.campaign(), resign).expect("won"));
        let is_over = || theirs.leader().expect("a reply").is_none();
        eventually("the term ends", is_over);
    }

    /// Has a caller that waits for a queue lock ask for its place once more.
    fn lose_a_place(&self) {
        let [mine, theirs] = self.clients.each_ref().map(|client| client.queue_lock("orders:1"));
        let guard = mine.lock_owned().expect("free");
        let waiter = thread::spawn(move || theirs.lock_owned());
        let clients = "leasehold_alive:{orders:1}";
        eventually("the caller waits", || self.server.ask::<bool>(&["DEL", clients]));
        eventually("the caller asks again", || self.server.calls("zscore") > 0);
        guard.unlock().expect("held");
        join(waiter).expect("granted").unlock().expect("held");
    }

    fn denied(&self) -> usize {
        self.server.ask::<Vec<BTreeMap<String, redis::Value>>>(&["ACL", "LOG"]).len()
    }
}

#[test]
fn the_permissions_of_each_kind_suffice_and_are_used() {
    let table = table();
    assert_eq!(table.len(), 11, "{table:?}");
    thread::scope(|scope| {
        for (kind, more) in &table {
            scope.spawn(move || {
                let stage = stage(&[rules_of_a_plain_lock(), more.clone()].concat());
                stage.server.reset_stats();
                stage.use_kind(kind);
                stage.use_minimum(kind);
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
fn the_keys_and_channels_of_each_kind_are_needed() {
    for (kind, more) in table() {
        for missing in more.iter().filter(|word| word.starts_with(['~', '&'])) {
            let fewer = more.iter().filter(|word| *word != missing).copied().collect();
            let stage = stage(&[rules_of_a_plain_lock(), fewer].concat());
            let take = |client: &Client| {
                let wait = Duration::from_millis(50);
                match kind {
                    "fenced" => client.fenced_lock("orders:1").try_lock_for_owned(wait).map(drop),
                    "once" => {
                        let once = client.once("orders:1");
                        once.try_begin_for(wait).and_then(|_| once.forget()).map(drop)
                    }
                    "fair" => client.fair_lock("orders:1").try_lock_for_owned(wait).map(drop),
                    "queue" => client.queue_lock("orders:1").try_lock_for_owned(wait).map(drop),
                    "election" => {
                        let election = client.election("orders:1");
                        let _term = election.try_campaign_for(wait)?;
                        election.leader().map(drop)
                    }
                    "read and write" => {
                        let lock = client.rw_lock("orders:1");
                        lock.read().and_then(|guard| guard.unlock())
                    }
                    "semaphore" => {
                        let semaphore = client.semaphore("orders:1").with_slots();
                        semaphore.resize(3).and_then(|()| semaphore.try_acquire()).map(drop)
                    }
                    "plain semaphore" => {
                        client.plain_semaphore("orders:1").try_set_permits(1).map(drop)
                    }
                    "latch" => client.latch("orders:1").try_set_count(1).map(drop),
                    other => panic!("unknown: {missing} of {other}"),
                }
            };
            let error = take(&stage.clients[0]).err();
            assert!(stage.denied() > 0, "{kind} without {missing}: {error:?}");
        }
    }
}

/// The result is written before the message, which the server refuses.
#[test]
fn a_caller_that_may_not_publish_commits_a_result() {
    let mut rules = [rules_of_a_plain_lock(), table()["once"].clone()].concat();
    rules.retain(|word| *word != "+publish");
    let stage = stage(&rules);
    let [mine, theirs] = stage.clients.each_ref().map(|client| client.once("orders:1"));
    let Begin::Run(run) = mine.begin().expect("free") else { panic!("nobody has committed") };
    let done = run.commit("x").expect("held");
    assert_eq!(theirs.outcome(), Ok(Some(done)));
}

/// The server cannot send a grant to such a client. The client takes the lock when it asks again.
#[test]
fn a_caller_that_may_not_subscribe_gets_a_queue_lock() {
    let mut rules = [rules_of_a_plain_lock(), table()["queue"].clone()].concat();
    rules.retain(|word| *word != "+subscribe");
    let stage = stage(&rules);
    let [mine, theirs] = stage.clients.each_ref().map(|client| client.queue_lock("orders:1"));
    for _ in 0..3 {
        let guard = mine.lock_owned().expect("free");
        let lock = theirs.clone();
        let waiter = thread::spawn(move || lock.lock_owned());
        eventually("the caller waits", || stage.clients[1].stats().waiting_now() > 0);
        guard.unlock().expect("held");
        join(waiter).expect("acquired").unlock().expect("held");
    }
}
