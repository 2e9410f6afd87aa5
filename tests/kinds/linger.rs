//! Holds that linger: taken over without a command, given up when somebody asks.

use crate::harness::bare::{Bare, Listener};
use crate::harness::details::wake_channel;
use crate::harness::faults::{EventLog, NEVER, build, channel_of, left, other, patient};
use crate::harness::{Server, eventually, exists, in_time};
use leasehold::kind::LockKind;
use leasehold::{Client, FencedLock, Lock, MultiLock};
use std::thread;
use std::time::Duration;

/// A linger time that no test outlasts.
const LONG: Duration = NEVER.checked_div(2).expect("not by zero");

/// A linger time that a test waits for.
const SHORT: Duration = Duration::from_millis(200);

fn client(server: &Server) -> Client {
    build(patient(server.url()))
}

/// Returns a client that listens to requests for its holds, as from its first such hold on.
fn listening(server: &Server) -> Client {
    let client = client(server);
    drop(client.lock("another").with_linger(SHORT).lock().expect("free"));
    let channel = wake_channel(client.id());
    eventually("the client listens", || server.numsub(&channel) == 1);
    client
}

fn lock(client: &Client) -> Lock {
    client.lock("a").with_linger(LONG)
}

/// Returns the number of scripts that the server has run.
fn scripts(server: &Server) -> u64 {
    server.calls("evalsha")
}

/// Blocks until nobody holds the lock.
fn is_freed(server: &Server) {
    eventually("the hold is given up", || !exists(server, "a"));
}

fn takes_over<K: LockKind>(server: &Server, client: &Client, lock: &Lock<K>) {
    lock.lock().expect("free").unlock().expect("held");
    assert!(exists(server, "a"), "it lingers");
    let (before, scripts_before) = (client.stats(), scripts(server));
    for _ in 0..9 {
        let guard = lock.lock().expect("it lingers");
        assert!(guard.is_held() && left(server, "a") >= guard.remaining());
        drop(lock.lock().expect("the thread holds it"));
    }
    lock.lock_owned().expect("it lingers").unlock().expect("held");
    thread::scope(|scope| {
        let taken = scope.spawn(|| drop(lock.try_lock().expect("no call").expect("it lingers")));
        taken.join().expect("no panic");
    });
    assert_eq!(scripts(server), scripts_before, "no command");
    let now = client.stats();
    assert_eq!((now.acquired(), now.released()), (before.acquired(), before.released()));
    assert_eq!((now.lingered(), now.held_now()), (before.lingered() + 11, 1));
    client.close();
    assert!(!exists(server, "a"), "a close gives up");
    let (now, lost) = (client.stats(), client.stats().lost_in_total());
    assert_eq!((now.held_now(), now.released(), lost), (0, now.acquired(), 0));
}

#[test]
fn the_next_caller_takes_a_hold_over_without_a_command() {
    let server = Server::start();
    let plain = client(&server);
    takes_over(&server, &plain, &plain.lock("a").with_linger(LONG));
    let fenced = client(&server);
    takes_over(&server, &fenced, &fenced.fenced_lock("a").with_linger(LONG));
    let write = client(&server);
    takes_over(&server, &write, &write.rw_lock("a").with_linger(LONG).write_lock());
}

#[test]
fn a_hold_that_lingers_is_given_up_when_another_client_asks() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| listening(&server));
    drop(lock(&one).lock().expect("free"));
    lock(&two).lock().expect("given up").unlock().expect("held");
    assert!(exists(&server, "a"));
    drop(one.rw_lock("rw").with_linger(LONG).write().expect("free"));
    two.rw_lock("rw").read().expect("given up").unlock().expect("held");
    drop(one.rw_lock("rw").with_linger(LONG).write().expect("free"));
    two.rw_lock("rw").write().expect("given up").unlock().expect("held");
    drop(one.fenced_lock("fenced").with_linger(LONG).lock().expect("free"));
    two.fenced_lock("fenced").lock().expect("given up").unlock().expect("held");
}

#[test]
fn a_hold_in_use_that_was_asked_for_does_not_linger() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| listening(&server));
    let guard = lock(&one).lock_owned().expect("free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.lock("a").lock_owned());
        eventually("it waits", || server.numsub(&channel_of("a")) == 1);
        guard.unlock().expect("held");
        in_time("it gets the lock", waiting).expect("granted").unlock().expect("held");
    });
    assert!(!exists(&server, "a"));
}

#[test]
fn a_call_that_does_not_wait_asks_too() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| listening(&server));
    drop(lock(&one).lock().expect("free"));
    assert!(two.lock("a").try_lock().expect("a reply").is_none());
    is_freed(&server);
}

#[test]
fn a_try_of_several_locks_asks_too() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| listening(&server));
    drop(lock(&one).lock().expect("free"));
    let both = MultiLock::new([two.lock("a"), two.lock("b")]);
    assert!(both.try_lock().expect("a reply").is_none());
    is_freed(&server);
}

/// The polls for a waiting thread of the process do not ask the process itself.
#[test]
fn a_hold_with_local_waiters_is_handed_off_while_it_may_linger() {
    let server = Server::start();
    let client = build(patient(server.url()).poll_interval(Duration::from_millis(200)));
    let lock = lock(&client);
    let guard = lock.lock_owned().expect("free");
    thread::scope(|scope| {
        let next = scope.spawn(|| lock.lock_owned().expect("handed off"));
        let before = scripts(&server);
        eventually("the watchdog polls", || scripts(&server) >= before + 3);
        guard.unlock().expect("held");
        in_time("the waiter has the lock", next).unlock().expect("held");
    });
    assert_eq!(client.stats().passed_locally(), 1);
    assert!(exists(&server, "a"), "it lingers");
    let reading = client.rw_lock("rw").with_linger(LONG);
    let writing = reading.write_owned().expect("free");
    thread::scope(|scope| {
        let reader = scope.spawn(|| reading.read_owned().expect("granted"));
        eventually("the reader waits", || server.numsub("redisson_rwlock:{rw}") == 1);
        writing.unlock().expect("held");
        in_time("the reader has the lock", reader).unlock().expect("held");
    });
}

/// After useless holds no hold lingers for a time.
#[test]
fn a_lock_that_clients_take_in_turn_does_not_linger() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| listening(&server));
    drop(lock(&one).lock().expect("free"));
    lock(&two).lock().expect("given up").unlock().expect("held");
    lock(&one).lock().expect("given up").unlock().expect("held");
    for client in [&one, &two, &one, &two] {
        lock(client).lock().expect("free").unlock().expect("held");
        assert!(!exists(&server, "a"), "it was released");
    }
    assert_eq!((one.stats().lingered(), two.stats().lingered()), (0, 0));
}

#[test]
fn a_hold_that_was_of_use_lingers_again() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| listening(&server));
    for _ in 0..3 {
        for client in [&one, &two] {
            (0..3).for_each(|_| drop(lock(client).lock().expect("given up")));
        }
    }
    assert_eq!((one.stats().lingered(), two.stats().lingered()), (6, 6));
}

#[test]
fn callers_that_do_not_ask_wait_for_one_linger_time() {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a").with_linger(SHORT);
    let mut listener = Listener::on(&server, &channel_of("a"));
    drop(lock.lock().expect("free"));
    assert!(exists(&server, "a"));
    assert_eq!(listener.next_message().1, "0");
    assert!(!exists(&server, "a"));
    // A busy lock is released too: by a guard that exists at that moment.
    let guard = lock.lock().expect("free");
    thread::sleep(SHORT);
    drop(guard);
    listener.next_message();
    is_freed(&server);
}

#[test]
fn callers_of_the_process_that_need_another_hold_get_it_at_once() {
    let server = Server::start();
    let client = client(&server);
    drop(lock(&client).lock().expect("free"));
    let fixed = client.lock("a").with_lease(Duration::from_secs(9));
    let guard = fixed.try_lock().expect("a reply").expect("given up");
    assert!(left(&server, "a") < Duration::from_secs(10));
    guard.unlock().expect("held");
    drop(lock(&client).lock().expect("free"));
    client.fair_lock("a").try_lock().expect("a reply").expect("given up").unlock().expect("held");
    let rw = client.rw_lock("rw").with_linger(LONG);
    drop(rw.write().expect("free"));
    rw.try_read().expect("a reply").expect("given up").unlock().expect("held");
    drop(rw.write().expect("free"));
    assert_eq!(client.stats().lingered(), 0);
    // A handle without a linger time takes over. The linger time stays that of the grant.
    drop(lock(&client).lock().expect("free"));
    client.lock("a").lock().expect("it lingers").unlock().expect("held");
    assert!(exists(&server, "a"));
    assert_eq!(client.stats().lingered(), 1);
}

#[test]
fn a_write_hold_does_not_linger_while_its_thread_reads() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| listening(&server));
    let rw = one.rw_lock("a").with_linger(LONG);
    let writing = rw.write().expect("free");
    let reading = rw.read().expect("beside the write hold");
    writing.unlock().expect("held");
    two.rw_lock("a").try_read().expect("a reply").expect("shared").unlock().expect("held");
    reading.unlock().expect("held");
    assert!(!exists(&server, "a"));
}

fn tokens(lock: &FencedLock, count: usize) -> Vec<u64> {
    (0..count).map(|_| lock.lock().expect("free").token()).collect()
}

#[test]
fn each_take_over_has_a_greater_token() {
    let server = Server::start();
    let client = listening(&server);
    let tokens = tokens(&client.fenced_lock("a").with_linger(LONG), 300);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let stats = client.stats();
    // One grant is that of the other lock.
    assert_eq!((stats.acquired(), stats.lingered()), (4, 297), "128 tokens for each grant");
    let next = other(&server).fenced_lock("a").lock().expect("given up").token();
    assert!(next > tokens[299]);
}

#[test]
fn a_hold_that_is_lost_while_it_lingers_is_no_loss() {
    let server = Server::start();
    let (builder, events) = EventLog::from(patient(server.url()));
    let client = build(builder);
    drop(lock(&client).lock().expect("free"));
    server.ask::<()>(&["DEL", "a"]);
    let stolen = other(&server).lock("a").lock_owned().expect("free");
    // The caller cannot know yet, as with every hold whose key is deleted.
    drop(lock(&client).lock().expect("it lingers"));
    client.close();
    assert_eq!(events.released().error, None);
    assert_eq!((client.stats().lost_in_total(), client.stats().released_after_expiry()), (0, 0));
    stolen.unlock().expect("held");
}

#[test]
fn limits_and_minimums_are_those_of_each_holder() {
    let server = Server::start();
    let (builder, events) = EventLog::from(patient(server.url()));
    let client = build(builder);
    let limited = lock(&client).with_max_hold(SHORT);
    drop(limited.lock().expect("free"));
    thread::sleep(2 * SHORT);
    let guard = limited.lock().expect("a hold that lingers has no limit");
    assert_eq!(client.stats().lingered(), 1);
    let overdue = events.overdue();
    assert!(overdue.held >= SHORT && overdue.held < NEVER, "{overdue:?}");
    guard.unlock().expect("held");
    assert!(!exists(&server, "a"), "an overdue hold does not linger");
    let kept = lock(&client).with_min_hold(NEVER);
    kept.lock().expect("free").unlock().expect("held");
    assert!(kept.try_lock().expect("a reply").is_none(), "kept without a holder");
}

#[test]
fn a_detached_hold_lingers_after_its_unlock() {
    let server = Server::start();
    let client = client(&server);
    lock(&client).lock().expect("free").detach();
    lock(&client).unlock().expect("held");
    assert!(exists(&server, "a"));
    drop(lock(&client).lock().expect("it lingers"));
    assert_eq!(client.stats().lingered(), 1);
}

#[test]
fn the_drop_of_the_last_clone_gives_up() {
    let server = Server::start();
    let client = client(&server);
    drop(lock(&client).lock().expect("free"));
    let clone = client.clone();
    drop(client);
    assert!(exists(&server, "a"));
    drop(clone);
    assert!(!exists(&server, "a"));
}

#[test]
fn a_guard_that_outlives_the_close_of_its_client_does_not_linger() {
    let server = Server::start();
    let client = client(&server);
    let guard = lock(&client).lock().expect("free");
    client.close();
    drop(guard);
    is_freed(&server);
}

#[test]
fn others_see_that_nobody_uses_the_lock() {
    let server = Server::start();
    let client = build(patient(server.url()).announce(true));
    let looking = other(&server);
    let guard = lock(&client).lock().expect("free");
    let holder = || looking.lock("a").holder().expect("an answer").expect("held");
    eventually("the process answers", || holder().thread_number().is_some());
    assert!(!holder().is_idle() && holder().count() == 1);
    guard.unlock().expect("held");
    assert_eq!(looking.lock("a").is_locked(), Ok(true));
    eventually("the process answers", || holder().is_idle());
    assert_eq!((holder().count(), holder().acquired()), (0, Some(1)));
    assert!(!lock(&client).is_held());
}

#[test]
fn settings_that_cannot_linger_are_configuration_errors() {
    let client = Client::builder().single("redis://127.0.0.1:1/").watchdog_timeout(NEVER);
    let client = client.build_lazily().expect("no call");
    let long = LONG + Duration::from_millis(1);
    let errors = [
        client.lock("a").with_linger(long).lock().map(drop),
        client.lock("a").with_linger(SHORT).with_renewed_lease(SHORT).lock().map(drop),
        client.fair_lock("a").with_linger(SHORT).lock().map(drop),
        client.queue_lock("a").with_linger(SHORT).lock().map(drop),
        client.spin_lock("a").with_linger(SHORT).lock().map(drop),
        client.lock("a").with_linger(SHORT).with_holder("job").lock().map(drop),
        client.rw_lock("a").with_linger(long).write().map(drop),
    ];
    for error in errors {
        assert!(error.expect_err("refused").is_configuration());
    }
}

/// A message for an earlier hold, for no hold, and without a meaning.
#[test]
fn other_messages_end_no_hold() {
    let mut bare = Bare::start();
    let client = build(patient(bare.server.url()).announce(true));
    drop(lock(&client).lock().expect("free"));
    let channel = wake_channel(client.id());
    eventually("the client listens", || bare.server.numsub(&channel) == 1);
    for message in ["asked 15 a", "asked x a", "asked 15", "asked 15 other"] {
        assert_eq!(bare.ask::<i64>(&["PUBLISH", &channel, message]), 1);
    }
    let holder = client.lock("a").holder().expect("an answer").expect("held");
    let (_, number) = holder.owner().split_once(':').expect("an owner field");
    assert_eq!(bare.ask::<i64>(&["PUBLISH", &channel, &format!("asked {number} a")]), 1);
    is_freed(&bare.server);
    assert_eq!(client.stats().lost_in_total(), 0);
}
