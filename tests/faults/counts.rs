//! Faults of requests that change a count: late copies, time-outs, cancellations and closes. Each
//! change of a count takes effect once.

use crate::harness::bare::script;
use crate::harness::faults::*;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, eventually_some, in_time};
use leasehold::{Begin, Builder, CancelToken, Client, Error, Result};
use std::thread;
use std::time::Duration;

/// The time for which a request without a reply is sent again, and a minute for its last copy.
const RESEND_MILLIS: i64 = (600 + 60) * 1000;

/// The poll interval of callers that ask again soon.
const OFTEN: Duration = Duration::from_millis(100);

/// Returns the count of a semaphore or a latch; `None` without a key.
fn count(server: &Server, name: &str) -> Option<i64> {
    server.ask(&["GET", name])
}

fn records(server: &Server, name: &str) -> Vec<String> {
    let start = format!("leasehold_request:{{{name}}}:");
    server.keys().into_iter().filter(|key| key.starts_with(&start)).collect()
}

/// Returns the content of the only record; `None` if there is none.
#[track_caller]
fn record(server: &Server, name: &str) -> Option<String> {
    let records = records(server, name);
    assert!(records.len() <= 1, "one request has one record: {records:?}");
    server.ask(&["GET", records.first()?])
}

/// Loads a script into the server, and returns its digest.
fn load(server: &Server, name: &str) -> String {
    server.ask(&["SCRIPT", "LOAD", &script(name).source()])
}

/// A change of a count that starts at 10.
struct Change {
    script: &'static str,
    /// Whether the key exists before the change.
    exists: bool,
    run: fn(&Client, &str) -> Result<()>,
    /// The count after the change.
    done: Option<i64>,
    unanswered: Unanswered,
}

/// The end of a change without a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Unanswered {
    Undone,
    Completed,
    /// Done before its close, or never. The record of a change that was not done has this content.
    Closed(&'static str),
}

const TAKE: Change = Change {
    script: "count_take",
    exists: true,
    run: |client, name| client.plain_semaphore(name).try_acquire(3).map(|taken| assert!(taken)),
    done: Some(7),
    unanswered: Unanswered::Undone,
};

const DRAIN: Change = Change {
    script: "count_drain",
    exists: true,
    run: |client, name| client.plain_semaphore(name).drain().map(|taken| assert_eq!(taken, 10)),
    done: Some(0),
    unanswered: Unanswered::Undone,
};

const ADD: Change = Change {
    script: "count_add",
    exists: true,
    run: |client, name| client.plain_semaphore(name).release(4),
    done: Some(14),
    unanswered: Unanswered::Completed,
};

const SET: Change = Change {
    script: "count_set",
    exists: false,
    run: |client, name| client.plain_semaphore(name).try_set_permits(10).map(|set| assert!(set)),
    done: Some(10),
    unanswered: Unanswered::Closed("0"),
};

const COUNT_DOWN: Change = Change {
    script: "latch_count_down",
    exists: true,
    run: |client, name| client.latch(name).count_down(),
    done: Some(9),
    unanswered: Unanswered::Completed,
};

const SET_COUNT: Change = Change {
    script: "latch_set",
    exists: false,
    run: |client, name| client.latch(name).try_set_count(10).map(|set| assert!(set)),
    done: Some(10),
    unanswered: Unanswered::Closed("0"),
};

const DELETE: Change = Change {
    script: "latch_delete",
    exists: true,
    run: |client, name| client.latch(name).delete().map(|deleted| assert!(deleted)),
    done: None,
    unanswered: Unanswered::Closed("0"),
};

/// The capacity of a semaphore with leased permits, none of them in use.
const RESIZE: Change = Change {
    script: "semaphore_resize",
    exists: true,
    run: |client, name| client.semaphore(name).resize(25),
    done: Some(25),
    unanswered: Unanswered::Closed("0"),
};

const ALL: [Change; 8] = [TAKE, DRAIN, ADD, SET, COUNT_DOWN, SET_COUNT, DELETE, RESIZE];

impl Change {
    /// Sets the count, and returns the digest of the script.
    fn prepare(&self, server: &Server, name: &str) -> String {
        if self.exists {
            server.ask::<()>(&["SET", name, "10"]);
        }
        load(server, self.script)
    }

    fn before(&self) -> Option<i64> {
        self.exists.then_some(10)
    }

    /// Waits until a change without a reply is settled, and checks the count.
    #[track_caller]
    fn assert_settled(&self, server: &Server, name: &str, error: &Error) {
        let content = || record(server, name);
        let gives = self.unanswered == Unanswered::Completed;
        assert!(!(gives && error.is_retryable()), "a second call would count twice: {error}");
        match self.unanswered {
            Unanswered::Undone => {
                eventually("the change is undone", || content().as_deref() == Some("undone"));
                assert_eq!(count(server, name), self.before(), "{name}");
            }
            Unanswered::Completed => {
                eventually("the change is completed", || content().is_some());
                assert_eq!(count(server, name), self.done, "{name}");
            }
            Unanswered::Closed(not_done) => {
                eventually("the request is closed", || content().is_some());
                let is_done = content().as_deref() != Some(not_done);
                let expected = if is_done { self.done } else { self.before() };
                assert_eq!(count(server, name), expected, "{name}");
            }
        }
    }

    /// Asserts that the change is done, and that its record is deleted: no copy of it may run late.
    #[track_caller]
    fn assert_done(&self, server: &Server, name: &str) {
        assert_eq!(count(server, name), self.done, "{name}");
        eventually("the record is deleted", || records(server, name).is_empty());
    }
}

/// Deletes the keys of a name. Records that stay expire.
fn clean_up(server: &Server, name: &str) {
    for record in records(server, name) {
        let ttl: i64 = server.ask(&["PTTL", &record]);
        assert!(ttl > 0, "{record} stays for ever");
        assert!(ttl > RESEND_MILLIS, "{record} may expire before the last copy of its request");
        server.ask::<()>(&["DEL", &record]);
    }
    server.ask::<()>(&["DEL", name, &format!("leasehold_round:{{{name}}}")]);
}

/// A server, a client with a short response time-out behind a proxy that holds requests back, and a
/// client with a direct connection.
struct Stage {
    server: Server,
    proxy: Proxy,
    client: Client,
    other: Client,
}

impl Stage {
    fn new() -> Stage {
        let server = Server::start();
        let proxy = Proxy::start(server.addr());
        let client = build(hasty(proxy.url()).poll_interval(OFTEN));
        let other = other(&server);
        Stage { server, proxy, client, other }
    }

    fn on_next(&self, script: &str, direction: Direction, flow: Flow) {
        self.proxy.on_request(load(&self.server, script).as_bytes(), direction, flow);
    }

    /// Delivers the held requests. Returns when their connections have ended, so that the server
    /// has run all of them.
    fn deliver_late(&self) {
        let held = self.proxy.stats();
        assert!(held.requests.held > 0, "no request is late");
        self.proxy.release_held();
        self.proxy.wait_until("the end of the late connection", |s| s.open < held.open);
    }

    fn available(&self) -> i64 {
        self.other.plain_semaphore("late").available().expect("the server answers")
    }

    /// Drops the clients, and asserts that only records and counts are left.
    fn end(self) {
        let count = count(&self.server, "late");
        drop((self.client, self.other));
        // A closed client may still ask for the outcome of a request: a copy that comes behind the
        // check of what is left would make its keys anew.
        self.proxy.refuse();
        self.proxy.kill_all();
        eventually("all connections close", || self.server.clients().is_empty());
        assert_eq!(self::count(&self.server, "late"), count, "the end changed the count");
        clean_up(&self.server, "late");
        nothing_is_left(&self.server);
    }
}

#[test]
fn a_late_copy_of_a_request_changes_nothing() {
    for change in ALL {
        let stage = Stage::new();
        change.prepare(&stage.server, "late");
        stage.on_next(change.script, Direction::Requests, Flow::Hold);
        let error = (change.run)(&stage.client, "late").expect_err("the request is held back");
        assert!(error.is_timeout(), "{}: {error}", change.script);
        change.assert_settled(&stage.server, "late", &error);
        let (settled, calls) = (count(&stage.server, "late"), stage.server.calls("evalsha"));
        stage.deliver_late();
        assert!(stage.server.calls("evalsha") > calls, "the late copy ran");
        assert_eq!(count(&stage.server, "late"), settled, "{}", change.script);
        stage.end();
    }
}

/// A result that another run has committed meanwhile stays.
#[test]
fn a_late_copy_of_a_deletion_deletes_no_later_result() {
    let stage = Stage::new();
    let commit = |value: &str| match stage.other.once("late").begin().expect("nobody works on it") {
        Begin::Run(run) => run.commit(value).expect("held"),
        Begin::Done(done) => panic!("it is done: {done:?}"),
    };
    commit("first");
    load(&stage.server, "once_forget");
    stage.on_next("once_forget", Direction::Requests, Flow::Hold);
    let error = stage.client.once("late").forget().expect_err("the request is held back");
    assert!(error.is_timeout(), "{error}");
    eventually("the request is closed", || record(&stage.server, "late").as_deref() == Some("0"));
    assert!(stage.other.once("late").forget().expect("an answer"));
    let second = commit("second");
    let calls = stage.server.calls("evalsha");
    stage.deliver_late();
    assert!(stage.server.calls("evalsha") > calls, "the late copy ran");
    assert_eq!(stage.other.once("late").outcome(), Ok(Some(second)));
    assert!(stage.other.once("late").forget().expect("an answer"));
}

/// The client sends the request of the guard again over another connection.
#[test]
fn a_late_copy_of_the_request_of_a_guard_changes_nothing() {
    let stage = Stage::new();
    COUNT_DOWN.prepare(&stage.server, "late");
    stage.on_next("latch_count_down", Direction::Requests, Flow::Hold);
    drop(stage.client.latch("late").count_down_on_drop());
    eventually("the guard counts", || count(&stage.server, "late") == Some(9));
    let calls = stage.server.calls("evalsha");
    stage.deliver_late();
    assert!(stage.server.calls("evalsha") > calls, "the late copy ran");
    assert_eq!(count(&stage.server, "late"), Some(9));
    stage.end();
}

#[test]
fn a_request_on_a_half_open_connection_fails_in_time_and_is_settled() {
    for change in ALL {
        for direction in [Direction::Requests, Direction::Replies] {
            let stage = Stage::new();
            change.prepare(&stage.server, "late");
            stage.on_next(change.script, direction, Flow::Swallow);
            let error = (change.run)(&stage.client, "late").expect_err("no reply arrives");
            assert!(error.is_timeout(), "{}: {error}", change.script);
            change.assert_settled(&stage.server, "late", &error);
            stage.end();
        }
    }
}

/// A request that was not sent can be repeated by the program.
#[test]
fn a_request_that_was_not_sent_is_retryable_and_leaves_nothing() {
    for change in ALL {
        let stage = Stage::new();
        change.prepare(&stage.server, "late");
        stage.client.lock("quiet").is_locked().expect("the server answers");
        stage.proxy.refuse();
        stage.proxy.kill_all();
        let is_unreachable = || stage.client.ping().is_err();
        eventually("the client has noticed", is_unreachable);
        let error = (change.run)(&stage.client, "late").expect_err("there is no connection");
        assert!(error.is_connection() && error.is_retryable(), "{}: {error}", change.script);
        stage.proxy.heal();
        eventually("the client is connected", || stage.client.ping().is_ok());
        assert_eq!(count(&stage.server, "late"), change.before(), "{}", change.script);
        (change.run)(&stage.client, "late").expect("the server answers again");
        change.assert_done(&stage.server, "late");
        stage.end();
    }
}

/// A waiting caller asks again, and its question is late. Over another connection the caller gets
/// the permits by the same request.
#[test]
fn a_waiter_takes_its_permits_once_despite_a_late_question() {
    let stage = Stage::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| stage.client.plain_semaphore("late").acquire(3));
        let listens = || stage.server.numsub("redisson_sc:{late}") == 1;
        eventually("the waiter listens", listens);
        stage.on_next("count_take", Direction::Requests, Flow::Hold);
        stage.other.plain_semaphore("late").release(10).expect("the server answers");
        in_time("the waiter returns", waiter).expect("the permits are free");
    });
    assert_eq!(stage.available(), 7);
    stage.deliver_late();
    assert_eq!(stage.available(), 7);
    stage.end();
}

/// A late question takes the permits after the refusal of its copy. No message and no poll tells
/// the caller, which therefore asks at each poll interval.
#[test]
fn a_waiter_notices_the_permits_that_its_late_question_takes() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(hasty(proxy.url()).poll_interval(BRIEF * 3));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.plain_semaphore("late").acquire(3));
        // The second question follows the confirmation of the subscription.
        eventually("two questions are answered", || client.stats().round_trip().count() == 2);
        proxy.on_request(load(&server, "count_take").as_bytes(), Direction::Requests, Flow::Hold);
        server.ask::<()>(&["PUBLISH", "redisson_sc:{late}", "3"]);
        something_is_held(&proxy);
        eventually("its copy is refused", || client.stats().round_trip().count() == 3);
        server.ask::<()>(&["SET", "late", "3"]);
        proxy.release_held();
        eventually("the late question takes them", || count(&server, "late") == Some(0));
        in_time("the waiter returns", waiter).expect("it has the permits");
    });
    assert_eq!(count(&server, "late"), Some(0));
    drop(client);
    clean_up(&server, "late");
    nothing_is_left(&server);
}

/// A waiting caller asks again, and its question is late. The caller gives up at its deadline.
#[test]
fn a_late_question_of_a_caller_that_gave_up_takes_nothing() {
    let stage = Stage::new();
    thread::scope(|scope| {
        let semaphore = stage.client.plain_semaphore("late");
        let waiter = scope.spawn(move || semaphore.try_acquire_for(3, BRIEF * 4));
        let listens = || stage.server.numsub("redisson_sc:{late}") == 1;
        eventually("the waiter listens", listens);
        stage.on_next("count_take", Direction::Requests, Flow::Hold);
        something_is_held(&stage.proxy);
        // Refused once more, over another connection.
        let taken = in_time("the waiter returns", waiter).expect("the server answers again");
        assert!(!taken, "no permit is free");
    });
    let undone = || record(&stage.server, "late").as_deref() == Some("undone");
    eventually("the request is undone", undone);
    stage.other.plain_semaphore("late").release(10).expect("the server answers");
    stage.deliver_late();
    assert_eq!(stage.available(), 10);
    stage.end();
}

#[test]
fn a_waiter_waits_through_an_outage() {
    let stage = Stage::new();
    assert!(stage.other.latch("opens").try_set_count(1).expect("the server answers"));
    thread::scope(|scope| {
        let taker = scope.spawn(|| stage.client.plain_semaphore("late").acquire(3));
        let waiter = scope.spawn(|| stage.client.latch("opens").wait());
        eventually("both wait", || stage.client.stats().waiting_now() == 2);
        stage.proxy.refuse();
        stage.proxy.kill_all();
        eventually("the client has noticed", || stage.client.ping().is_err());
        stage.other.plain_semaphore("late").release(3).expect("the server answers");
        stage.other.latch("opens").count_down().expect("the server answers");
        stage.proxy.heal();
        in_time("the taker returns", taker).expect("the permits are free");
        in_time("the waiter returns", waiter).expect("the latch is open");
    });
    assert_eq!(stage.available(), 0);
    stage.end();
}

/// Permits are free while the server refuses all writes, until a replica is back.
#[test]
fn a_waiter_waits_through_a_time_without_replicas() {
    let stage = Stage::new();
    let need_replicas = |replicas| {
        stage.server.ask::<()>(&["CONFIG", "SET", "min-replicas-to-write", replicas]);
    };
    thread::scope(|scope| {
        let taker = scope.spawn(|| stage.client.plain_semaphore("late").acquire(3));
        eventually("it waits", || stage.client.stats().waiting_now() == 1);
        stage.other.plain_semaphore("late").release(2).expect("the server answers");
        let mut both = redis::pipe();
        both.atomic().cmd("INCR").arg("late");
        both.cmd("CONFIG").arg(&["SET", "min-replicas-to-write", "1"]);
        both.query::<redis::Value>(&mut stage.server.connection()).expect("they may");
        let refused = || stage.server.info("errorstats").contains_key("errorstat_NOREPLICAS");
        eventually("the waiter is refused", refused);
        need_replicas("0");
        in_time("the taker returns", taker).expect("the permits are free");
    });
    assert_eq!(stage.available(), 0);
    stage.end();
}

#[test]
fn a_cancelled_take_in_flight_is_undone() {
    let stage = Stage::new();
    TAKE.prepare(&stage.server, "late");
    stage.on_next("count_take", Direction::Replies, Flow::Hold);
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let semaphore = stage.client.plain_semaphore("late").with_cancel(&stop);
        let caller = scope.spawn(move || semaphore.acquire(3));
        something_is_held(&stage.proxy);
        stop.cancel();
        let error = in_time("the call returns", caller).expect_err("it was cancelled");
        assert!(error.is_cancelled(), "{error}");
        stage.proxy.release_held();
        TAKE.assert_settled(&stage.server, "late", &error);
    });
    stage.end();
}

#[test]
fn a_request_in_flight_at_the_close_of_its_client_is_settled() {
    for change in ALL {
        for direction in [Direction::Requests, Direction::Replies] {
            let stage = Stage::new();
            change.prepare(&stage.server, "late");
            stage.on_next(change.script, direction, Flow::Swallow);
            thread::scope(|scope| {
                let caller = scope.spawn(|| (change.run)(&stage.client, "late"));
                stage.proxy.wait_until("the request", |stats| stats.triggered == 1);
                stage.client.close();
                let error = in_time("the call returns", caller).expect_err("no reply arrives");
                assert!(error.is_timeout() || error.is_closed(), "{error}");
                change.assert_settled(&stage.server, "late", &error);
            });
            stage.end();
        }
    }
}

/// A drop of the client waits for the requests of its guards.
#[test]
fn the_end_of_a_client_waits_for_its_guards() {
    let server = Server::start();
    for end in [|client: Client| client.close(), |client: Client| drop(client)] {
        server.ask::<()>(&["SET", "late", "10"]);
        let proxy = Proxy::start(server.addr());
        let client = build(patient(proxy.url()));
        proxy.on_request(
            load(&server, "latch_count_down").as_bytes(),
            Direction::Requests,
            Flow::Hold,
        );
        drop(client.latch("late").count_down_on_drop());
        something_is_held(&proxy);
        thread::scope(|scope| {
            let ending = scope.spawn(|| {
                end(client);
                assert_eq!(count(&server, "late"), Some(9), "it ended before the request");
            });
            proxy.release_held();
            in_time("the end", ending);
        });
        clean_up(&server, "late");
    }
    nothing_is_left(&server);
}

/// Calls that take permits need the acknowledgements of replicas; others do not.
#[test]
fn a_take_without_enough_replicas_is_undone() {
    let server = Server::start();
    let settings = patient(server.url()).min_replicas(1, OFTEN);
    let (client, other) = (build(settings), other(&server));
    let stock = client.plain_semaphore("late");
    assert!(stock.try_set_permits(10).expect("it needs no replica"));
    for outcome in [stock.acquire(3), stock.try_acquire(3).map(drop), stock.drain().map(drop)] {
        assert!(outcome.expect_err("there is no replica").is_not_replicated());
    }
    stock.release(1).expect("it needs no replica");
    client.latch("latch").count_down().expect("it needs no replica");
    eventually("all takes are undone", || count(&server, "late") == Some(11));
    let undone = || records(&server, "late").len() == 3;
    eventually("their records stay", undone);
    drop((client, other, stock));
    clean_up(&server, "late");
    nothing_is_left(&server);
}

/// Returns a client of a user who may do everything but this.
fn limited(server: &Server, rules: &[&str], settings: impl FnOnce(Builder) -> Builder) -> Client {
    let user = ["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all"];
    server.ask::<()>(&[&user, rules].concat());
    build(settings(patient(server.login_url("limited", "secret"))))
}

/// The takes have run when the server refuses the `WAIT` behind them.
#[test]
fn a_take_whose_wait_for_replicas_is_forbidden_is_undone() {
    let server = Server::start();
    let client = limited(&server, &["-wait"], |settings| settings.min_replicas(1, OFTEN));
    let stock = client.plain_semaphore("late");
    assert!(stock.try_set_permits(10).expect("it needs no replica"));
    for outcome in [stock.acquire(3), stock.try_acquire(3).map(drop), stock.drain().map(drop)] {
        let error = outcome.expect_err("WAIT is forbidden");
        assert!(error.is_not_replicated() && !error.is_retryable(), "{error:?}");
        assert_eq!(error.code(), Some("NOPERM"));
        let text = error.to_string();
        assert!(text.contains("wait") && text.contains("docs/permissions.md"), "{text}");
    }
    eventually("all takes are undone", || count(&server, "late") == Some(10));
    eventually("their records stay", || records(&server, "late").len() == 3);
    drop((client, stock));
    clean_up(&server, "late");
    nothing_is_left(&server);
}

/// Returns the id of a connection that waits for replicas.
fn waits_for_replicas(server: &Server) -> Option<String> {
    let mut peers = server.clients().into_iter();
    let peer = peers.find(|peer| peer.cmd == "wait" && peer.flags.contains('b'));
    peer.map(|peer| peer.id.to_string())
}

/// An operator ends the `WAIT` of a take that has run, or makes a replica of its server.
#[test]
fn a_take_whose_wait_for_replicas_is_ended_is_undone() {
    let server = Server::start();
    let unblock = |server: &Server, id: &str| {
        assert_eq!(server.ask::<i64>(&["CLIENT", "UNBLOCK", id, "ERROR"]), 1);
    };
    let demote = |server: &Server, _: &str| {
        // There is no such master, so the server keeps its data.
        server.ask::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    };
    for end in [unblock as fn(&Server, &str), demote] {
        for change in [TAKE, DRAIN] {
            let client = build(patient(server.url()).min_replicas(1, NEVER));
            change.prepare(&server, "late");
            thread::scope(|scope| {
                let taking = scope.spawn(|| (change.run)(&client, "late"));
                let id = eventually_some("it waits", || waits_for_replicas(&server));
                assert_eq!(count(&server, "late"), change.done, "it has run");
                end(&server, &id);
                let error = in_time("the call ends", taking).expect_err("WAIT has ended");
                assert!(error.is_not_replicated() && error.is_retryable(), "{error:?}");
                assert_eq!(error.code(), Some("UNBLOCKED"), "{error}");
            });
            let undone = || record(&server, "late").as_deref() == Some("undone");
            eventually("the take is undone", undone);
            assert_eq!(count(&server, "late"), change.before(), "{}", change.script);
            drop(client);
            clean_up(&server, "late");
        }
    }
    nothing_is_left(&server);
}

/// A request whose message is forbidden has changed the count: its script fails after the change.
#[test]
fn a_change_whose_message_is_forbidden_is_settled() {
    let server = Server::start();
    for change in ALL {
        let rules = ["resetchannels", "&leasehold:wake:*"];
        let client = limited(&server, &rules, |settings| settings);
        change.prepare(&server, "late");
        let done = match change.script {
            // The latch opens, which needs a message.
            "latch_count_down" => {
                server.ask::<()>(&["SET", "late", "1"]);
                None
            }
            _ => change.done,
        };
        match (change.run)(&client, "late") {
            Ok(()) => assert_eq!(change.unanswered, Unanswered::Undone, "{}", change.script),
            Err(error) => {
                assert!(error.is_server() && !error.is_retryable(), "{error}");
                assert!(error.to_string().contains("docs/permissions.md"), "{error}");
            }
        }
        drop(client);
        eventually("all connections close", || server.clients().is_empty());
        assert_eq!(count(&server, "late"), done, "{}", change.script);
        clean_up(&server, "late");
    }
    nothing_is_left(&server);
}

/// No script changes a count without its record, by which a copy or an undo knows the change.
#[test]
fn a_change_whose_record_is_forbidden_changes_nothing() {
    let server = Server::start();
    let of_records = [TAKE, DRAIN, ADD, COUNT_DOWN].map(|change| (change, "-set"));
    let of_counts = [(TAKE, "-decrby"), (DRAIN, "-decrby"), (ADD, "-incrby")];
    for (change, forbidden) in of_records.into_iter().chain(of_counts) {
        let client = limited(&server, &[forbidden], |settings| settings);
        change.prepare(&server, "late");
        let error = (change.run)(&client, "late").expect_err("it is forbidden");
        assert!(error.is_server() && !error.is_retryable(), "{error}");
        drop(client);
        eventually("all connections close", || server.clients().is_empty());
        assert_eq!(count(&server, "late"), change.before(), "{}", change.script);
        clean_up(&server, "late");
    }
    nothing_is_left(&server);
}

/// A full server refuses a request that takes; a request that gives works.
#[test]
fn a_full_server_refuses_to_take_and_leaves_the_count() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let stock = client.plain_semaphore("late");
    assert!(stock.try_set_permits(10).expect("the server has memory"));
    assert!(stock.try_acquire(1).expect("the server has memory"));
    eventually("the records are deleted", || records(&server, "late").is_empty());
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = stock.try_acquire(3).expect_err("the server is full");
    assert_eq!((error.code(), error.is_retryable()), (Some("OOM"), true), "{error}");
    stock.release(2).expect("a full server accepts it");
    client.latch("opens").count_down().expect("a full server accepts it");
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(count(&server, "late"), Some(11));
}

/// A request behind one whose script is missing runs twice, to keep the order. The first copy was
/// answered, so no copy runs late: the record is deleted, and waiting callers ask no questions.
#[test]
fn a_request_that_ran_too_early_leaves_no_record() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let (latch, stock) = (client.latch("a"), client.plain_semaphore("b"));
    stock.release(3).expect("the server answers");
    eventually("the record is deleted", || records(&server, "b").is_empty());
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    load(&server, "count_take");
    let (first, second) =
        written_together(&proxy, &client, move || latch.wait(), move || stock.try_acquire(1));
    first.expect("the latch is open");
    assert!(second.expect("permits are free"));
    assert_eq!(count(&server, "b"), Some(2));
    eventually("the record is deleted", || records(&server, "b").is_empty());
}
