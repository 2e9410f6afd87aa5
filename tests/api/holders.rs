//! `holder`, `holders` and `waiting` of all kinds of locks.

use crate::client_record::record_key;
use crate::harness::faults::{NEVER, build, other, patient};
use crate::harness::holders::{GONE, JAVA, Stage, stage};
use crate::harness::{ChildProcess, eventually, eventually_some, in_time, join, process, sleeping};
use leasehold::kind::LockKind;
use leasehold::{CancelToken, Client, HolderInfo, Lock, OwnedGuard, RedLock, Result, WaitingInfo};
use std::collections::HashMap;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

fn is_lease(remaining: Option<Duration>, lease: Duration) -> bool {
    remaining.is_some_and(|left| left <= lease && left > lease / 2)
}

/// Asserts that the holder is a hold of this client that began between the two times.
#[track_caller]
fn assert_ours(holder: &HolderInfo, client: &Client, begin: SystemTime, end: SystemTime) {
    assert_eq!(holder.client_id(), Some(client.id()));
    let since = holder.since().expect("a hold of leasehold");
    // A number is one microsecond later than the number before, if the clock is not.
    let tolerance = Duration::from_millis(1);
    assert!(since + tolerance >= begin && since <= end + tolerance, "{since:?}");
    assert!(is_lease(holder.remaining(), NEVER), "{holder:?}");
    assert_eq!(holder.count(), 1);
}

// ---------------------------------------------------------------------------------
// Holders.

fn shows_its_holder<K: LockKind>(stage: &Stage, make: impl Fn(&Client) -> Lock<K>) {
    let (lock, seen) = (make(&stage.holding), make(&stage.looking));
    assert!(seen.holder().expect("an answer").is_none(), "free");
    let begin = SystemTime::now();
    let guard = lock.lock().expect("free");
    // The time of a holder of a fair lock is known when its process answers.
    let holder = eventually_some("the time is known", || {
        let holder = seen.holder().expect("an answer").expect("held");
        holder.since().is_some().then_some(holder)
    });
    assert_ours(&holder, &stage.holding, begin, SystemTime::now());
    let fields: HashMap<String, String> = stage.server.ask(&["HGETALL", lock.name()]);
    assert!(fields.contains_key(holder.owner()), "{fields:?}");
    assert_eq!(seen.holders().expect("an answer").len(), 1);
    guard.unlock().expect("held");
    assert!(seen.holder().expect("an answer").is_none(), "free again");
}

#[test]
fn a_client_that_never_locked_sees_the_holder_of_every_kind() {
    let stage = stage();
    shows_its_holder(&stage, |client| client.lock("plain"));
    shows_its_holder(&stage, |client| client.fair_lock("fair"));
    shows_its_holder(&stage, |client| client.fenced_lock("fenced"));
    shows_its_holder(&stage, |client| client.queue_lock("queue"));
    shows_its_holder(&stage, |client| client.spin_lock("spin"));
    shows_its_holder(&stage, |client| client.rw_lock("read").read_lock());
    shows_its_holder(&stage, |client| client.rw_lock("write").write_lock());
    shows_its_holder(&stage, |client| client.lock("{tag}and braces"));
}

#[test]
fn a_holder_with_a_name_has_an_entry_for_each_hold() {
    let stage = stage();
    let second = other(&stage.server);
    let lock = |client: &Client| client.lock("a").with_holder("job-17");
    let guards = [&stage.holding, &stage.holding, &second].map(|it| lock(it).lock_owned());
    let mut clients = vec![stage.holding.id(), stage.holding.id(), second.id()];
    clients.sort();
    for seen in [lock(&stage.looking), stage.looking.lock("a")] {
        let holders = seen.holders().expect("an answer");
        let mut ids: Vec<_> = holders.iter().filter_map(HolderInfo::client_id).collect();
        ids.sort();
        assert_eq!(ids, clients);
        for holder in &holders {
            assert_eq!((holder.owner(), holder.count()), ("job-17", 1));
            assert!(holder.since().is_some() && is_lease(holder.remaining(), NEVER));
        }
    }
    // Redisson, or a program of another library, adds two to the count.
    stage.server.ask::<()>(&["HINCRBY", "a", "job-17", "2"]);
    let holders = stage.holders("a");
    assert_eq!(holders.len(), 4);
    let [rest] = holders.iter().filter(|it| it.client_id().is_none()).collect::<Vec<_>>()[..]
    else {
        panic!("one entry for the counts without a hold: {holders:?}");
    };
    assert_eq!((rest.owner(), rest.count(), rest.since()), ("job-17", 2, None));
    drop(guards);
}

#[test]
fn readers_and_the_writer_are_shown_on_their_sides() {
    let stage = stage();
    let (lock, seen) = (stage.holding.rw_lock("a"), stage.looking.rw_lock("a"));
    let short = Duration::from_secs(40);
    let long = lock.read_lock().lock_owned().expect("free");
    let brief = lock.read_lock().with_lease(short).lock_owned().expect("shared");
    let readers = seen.read_lock().holders().expect("an answer");
    let mut left: Vec<_> = readers.iter().map(HolderInfo::remaining).collect();
    left.sort();
    assert!(is_lease(left[0], short) && is_lease(left[1], NEVER), "own leases: {left:?}");
    assert!(seen.write_lock().holders().expect("an answer").is_empty(), "no writer");
    // The time-out key of a reader is gone, and another reader keeps the lock.
    let keys = stage.server.keys();
    let timeouts = keys.iter().filter(|key| key.ends_with(":rwlock_timeout:1"));
    timeouts.for_each(|key| stage.server.ask(&["DEL", key]));
    let readers = seen.read_lock().holders().expect("an answer");
    assert_eq!(readers.len(), 2);
    assert!(readers.iter().all(|it| it.remaining() == Some(Duration::ZERO)));
    drop((long, brief));
    eventually("the readers leave", || !seen.read_lock().is_locked().expect("an answer"));

    let writing = lock.write().expect("free");
    let reading = lock.read().expect("the same thread");
    let (writer, reader) = (seen.write_lock().holders(), seen.read_lock().holders());
    let (writer, reader) = (writer.expect("an answer"), reader.expect("an answer"));
    assert_eq!((writer.len(), reader.len()), (1, 1));
    assert!(writer[0].owner().ends_with(":write") && !reader[0].owner().ends_with(":write"));
    assert_eq!(stage.holders("a").len(), 2, "another kind shows both sides");
    drop((reading, writing));
}

#[test]
fn threads_of_redisson_are_shown_with_their_number() {
    let stage = stage();
    stage.hash("plain", &[&format!("{JAVA}:94"), "3"]);
    let holder = stage.looking.lock("plain").holder().expect("an answer").expect("held");
    assert_eq!(holder.owner(), format!("{JAVA}:94"));
    assert_eq!(holder.client_id().map(|id| id.to_string()).as_deref(), Some(JAVA));
    assert_eq!((holder.thread(), holder.thread_number()), (Some("94"), Some(94)));
    assert_eq!((holder.count(), holder.since()), (3, None));
    assert!(is_lease(holder.remaining(), Duration::from_secs(60)));
    let unknown = (holder.host(), holder.pid(), holder.program(), holder.label());
    assert_eq!(unknown, (None, None, None, None));
    assert_eq!((holder.version(), holder.started(), holder.local_waiters()), (None, None, None));

    // A reader that has entered three times has a time-out key for each time.
    let field = format!("{JAVA}:7");
    stage.hash("rw", &["mode", "read", &field, "3", &format!("{JAVA}:8"), "1"]);
    for (number, lease) in [("1", "10000"), ("3", "50000")] {
        let key = format!("{{rw}}:{field}:rwlock_timeout:{number}");
        stage.server.ask::<()>(&["SET", &key, "1", "PX", lease]);
    }
    let readers = stage.looking.rw_lock("rw").read_lock().holders().expect("an answer");
    let reader = |number| readers.iter().find(|it| it.thread_number() == Some(number));
    let (first, second) = (reader(7).expect("shown"), reader(8).expect("shown"));
    assert!(first.count() == 3 && is_lease(first.remaining(), Duration::from_secs(50)));
    assert_eq!(second.remaining(), Some(Duration::ZERO));

    stage.hash("writing", &["mode", "write", &format!("{JAVA}:7:write"), "2"]);
    let writer = stage.looking.rw_lock("writing").write_lock().holder().expect("an answer");
    let writer = writer.expect("held");
    assert_eq!((writer.thread(), writer.count()), (Some("7"), 2));
}

#[test]
fn a_lock_in_its_minimum_hold_is_locked_and_has_no_holder() {
    let stage = stage();
    stage.hash("a", &[&format!("{GONE}:1700000000000000:min_hold"), "1"]);
    let lock = stage.looking.lock("a");
    assert!(lock.is_locked().expect("an answer"));
    assert!(lock.holder().expect("an answer").is_none());

    let writer = format!("{GONE}:1700000000000000:write:min_hold");
    stage.hash("rw", &["mode", "write", &writer, "1"]);
    let lock = stage.looking.rw_lock("rw");
    assert!(lock.write_lock().is_locked().expect("an answer"));
    for holders in [lock.write_lock().holders(), lock.read_lock().holders()] {
        assert!(holders.expect("an answer").is_empty());
    }
}

#[test]
fn garbage_in_the_hash_of_a_lock_is_no_error() {
    let stage = stage();
    stage.hash("text", &["job", "done"]);
    let holders = stage.holders("text");
    assert_eq!((holders.len(), holders[0].owner(), holders[0].count()), (1, "job", 0));
    assert_eq!((holders[0].client_id(), holders[0].since()), (None, None));

    // Numbers that are no time, and counts that are no numbers.
    for number in ["0", "94", "18446744073709551615", "18446744073709551616"] {
        let key = format!("number {number}");
        stage.hash(&key, &[&format!("{GONE}:{number}"), "1"]);
        assert_eq!(stage.holders(&key)[0].since(), None, "{number}");
    }
    for (number, count) in ["1e300", "inf", "nan", "-5", "0x10", "99999999999"].iter().enumerate() {
        let key = format!("count {number}");
        stage.hash(&key, &["mode", "read", &format!("{GONE}:1700000000000000"), count]);
        let readers = stage.looking.rw_lock(&key).read_lock().holders().expect("an answer");
        assert_eq!(readers.len(), 1, "{count}");
    }

    // A hold of a named holder without the holder, and names that are not UTF-8.
    stage.hash("hold", &[&format!("{GONE}:1700000000000000"), "0"]);
    assert!(stage.holders("hold").is_empty());
    let mut command = redis::cmd("HSET");
    command.arg("bytes").arg(b"\xff\xfe".as_slice()).arg("1");
    command.query::<()>(&mut stage.server.connection()).expect("a hash");
    assert_eq!(stage.holders("bytes")[0].owner(), "\u{fffd}\u{fffd}");
}

#[test]
fn keys_of_another_type_and_garbage_in_a_queue_are_no_error() {
    let stage = stage();
    stage.server.ask::<()>(&["SET", "string", "value"]);
    stage.server.ask::<()>(&["RPUSH", "redisson_lock_queue:{x}", "value"]);
    assert!(stage.holders("string").is_empty());
    stage.server.ask::<()>(&["ZADD", "leasehold_queue:{x}", "1", "value"]);
    let fair = stage.looking.fair_lock("x").waiting().expect("an answer");
    let queue = stage.looking.queue_lock("x").waiting().expect("an answer");
    for waiting in [fair, queue] {
        let [first] = waiting.queue() else { panic!("one caller: {waiting:?}") };
        assert_eq!((first.owner(), first.client_id(), waiting.processes()), ("value", None, 0));
    }
}

#[test]
fn a_lock_without_an_expiry_has_no_remaining_lease() {
    let stage = stage();
    stage.server.ask::<()>(&["HSET", "a", &format!("{JAVA}:1"), "1"]);
    assert_eq!(stage.holders("a")[0].remaining(), None);
}

// ---------------------------------------------------------------------------------
// The records of clients.

#[test]
fn the_process_of_a_holder_is_named_by_its_record() {
    let stage = stage();
    let begin = SystemTime::now() - Duration::from_millis(1);
    let labelled = build(patient(stage.server.url()).announce(true).label("billing"));
    let silent = build(patient(stage.server.url()).announce(false).label("secret"));
    let _guards = [labelled.lock("a").lock(), silent.lock("b").lock()];
    let look = |name: &str| stage.looking.lock(name).holder().expect("an answer").expect("held");
    eventually("the record is written", || look("a").host().is_some());
    let holder = look("a");
    assert_eq!(holder.host().map(str::to_owned), Some(host()));
    assert_eq!((holder.pid(), holder.label()), (Some(std::process::id()), Some("billing")));
    let program = std::env::current_exe().expect("a running program has a path");
    assert_eq!(holder.program(), program.file_name().and_then(|name| name.to_str()));
    assert_eq!(holder.version(), Some(env!("CARGO_PKG_VERSION")));
    assert!(holder.started().is_some_and(|start| start >= begin && start <= SystemTime::now()));
    let holder = look("b");
    assert_eq!((holder.host(), holder.pid(), holder.label()), (None, None, None));
    assert_eq!(holder.client_id(), Some(silent.id()));
    assert!(holder.since().is_some_and(|since| since >= begin));
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The lock of a killed process stays held until its lease ends, its record for up to 30 s.
#[test]
fn a_killed_process_is_named_until_its_record_expires() {
    let stage = stage();
    let mut child = ChildProcess::start("holders::child_entry", "hold", &[&stage.server.url()]);
    let (pid, key) = (child.pid(), child.next_line());
    child.kill();
    let look = || stage.looking.lock("a").holder().expect("an answer").expect("held");
    assert_eq!((look().pid(), look().host()), (Some(pid), Some(&*host())));
    stage.server.ask::<()>(&["PEXPIRE", &key, "1"]);
    eventually("the record expires", || look().pid().is_none());
    assert!(look().client_id().is_some() && look().since().is_some());
}

#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    let client = build(patient(role.arg(0)).announce(true));
    let _guard = client.lock("a").lock().expect("free");
    if role.name() == "hold many" {
        let count: usize = role.arg(1).parse().expect("a number");
        for number in 0..count {
            client.lock(format!("many {number}")).lock().expect("free").detach();
        }
        answered(&client.lock("a"));
        role.say("announced");
        role.hear();
        return;
    }
    let announced =
        || client.lock("a").holder().is_ok_and(|it| it.is_some_and(|it| it.pid().is_some()));
    eventually("the record is written", announced);
    role.say(&record_key(client.id()));
    role.hear();
}

#[test]
fn a_record_of_another_version_or_garbage_is_unknown() {
    let stage = stage();
    let key = record_key(GONE);
    stage.hash("a", &[&format!("{GONE}:1700000000000000"), "1"]);
    let look = || stage.looking.lock("a").holder().expect("an answer").expect("held");
    assert_eq!((look().host(), look().pid()), (None, None), "no record");

    stage.server.ask::<()>(&["HSET", &key, "host", "h", "pid", "many", "colour", "red"]);
    let holder = look();
    assert_eq!((holder.host(), holder.pid(), holder.program()), (Some("h"), None, None));
    assert_eq!(holder.client_id().map(|id| id.to_string()).as_deref(), Some(GONE));
    assert!(holder.since().is_some(), "the owner field says more than the record");

    stage.server.ask::<()>(&["DEL", &key]);
    stage.server.ask::<()>(&["SET", &key, "a text"]);
    assert_eq!((look().host(), look().pid()), (None, None), "a key of another type");
}

/// The process of the holder does not answer, so the time is that of the data in Redis.
#[test]
fn a_silent_holder_that_has_waited_shows_no_time_before_its_grant() {
    let stage = stage();
    let silent = build(patient(stage.server.url()).announce(false));
    shows_the_grant_after_a_wait(&stage, &silent, "queue", Client::queue_lock);
    shows_the_grant_after_a_wait(&stage, &silent, "fenced", Client::fenced_lock);
    shows_the_grant_after_a_wait(&stage, &silent, "plain", Client::lock);
    let (guard, _) = granted_after_a_wait(&stage, &silent, |client| client.fair_lock("fair"));
    let looks = [stage.looking.fair_lock("fair").holders(), Ok(stage.info_holders("fair"))];
    for holders in looks {
        assert_eq!(holders.expect("an answer")[0].since(), None, "only the wait is known");
    }
    drop(guard);
    let guard = silent.queue_lock("lost").lock_owned().expect("free");
    stage.server.ask::<()>(&["DEL", "redisson_lock_token:{lost}"]);
    assert_eq!(stage.info_holders("lost")[0].since(), None, "the token is lost");
    drop(guard);
}

fn shows_the_grant_after_a_wait<K: LockKind>(
    stage: &Stage,
    silent: &Client,
    name: &str,
    make: impl Fn(&Client, String) -> Lock<K>,
) {
    let lock = |client: &Client| make(client, name.into());
    let (guard, before) = granted_after_a_wait(stage, silent, lock);
    let holders = make(&stage.looking, name.into()).holders();
    for holders in [holders.expect("an answer"), stage.info_holders(name)] {
        assert_ours(&holders[0], silent, before, SystemTime::now());
        assert_eq!(holders[0].thread_number(), None, "nobody has answered");
    }
    drop(guard);
}

/// Returns a guard whose call has waited, and a time between its call and its grant.
fn granted_after_a_wait<K: LockKind>(
    stage: &Stage,
    client: &Client,
    make: impl Fn(&Client) -> Lock<K>,
) -> (OwnedGuard<K>, SystemTime) {
    let (lock, first) = (make(client), make(&stage.holding).lock_owned().expect("free"));
    let waiter = sleeping("waits", move || lock.lock_owned());
    eventually("it waits", || client.stats().waiting_now() == 1);
    thread::sleep(Duration::from_millis(20));
    let before = SystemTime::now();
    drop(first);
    (join(waiter).expect("granted"), before)
}

// ---------------------------------------------------------------------------------
// Answers of running processes.

/// Blocks until a query shows the holder's thread, which needs the record of its client.
fn answered<K: LockKind>(lock: &Lock<K>) -> HolderInfo {
    eventually_some("the process answers", || {
        let holder = lock.holder().expect("an answer").expect("held");
        holder.thread_number().is_some().then_some(holder)
    })
}

/// Runs `work` on a thread with this name.
fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn_scoped(scope, work).expect("a thread");
        in_time("the thread ends", thread)
    })
}

#[test]
fn a_running_process_tells_thread_guards_and_waiting_threads() {
    let stage = stage();
    let lock = stage.holding.lock("a");
    let stop = CancelToken::new();
    let waiters: Vec<_> = on_thread("worker-7", || {
        let begin = SystemTime::now();
        let _guards = [lock.lock().expect("free"), lock.lock().expect("again")];
        let end = SystemTime::now();
        let wait = |_| {
            let lock = lock.clone().with_cancel(&stop);
            sleeping("waits", move || lock.lock().map(drop))
        };
        let waiters = (0..2).map(wait).collect();
        let holder = answered(&stage.looking.lock("a"));
        assert_eq!((holder.thread(), holder.count()), (Some("worker-7"), 2));
        assert_eq!(holder.local_waiters(), Some(2));
        // The answer takes some time, which counts as time before the grant.
        let since = holder.since().expect("a time");
        assert!(since >= begin && since < end + Duration::from_secs(1), "{since:?}");
        stop.cancel();
        waiters
    });
    waiters.into_iter().for_each(|waiter| drop(join(waiter)));

    // An owned guard is shown with the thread that acquired it.
    let owned = on_thread("maker", || lock.lock_owned()).expect("free");
    assert_eq!(answered(&stage.looking.lock("a")).thread(), Some("maker"));
    drop(owned);
    // The waiters of a fair lock are in its queue.
    let _guard = stage.holding.fair_lock("b").lock().expect("free");
    let holder = answered(&stage.looking.fair_lock("b"));
    assert_eq!((holder.count(), holder.local_waiters()), (1, None));
}

/// Cancels the calls of these threads, and asserts that each call fails for that reason.
#[track_caller]
pub(crate) fn cancel_all(
    stop: &CancelToken,
    waiters: impl IntoIterator<Item = JoinHandle<Result<()>>>,
) {
    stop.cancel();
    for waiter in waiters {
        assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    }
}

/// The callers of the holder's process are in the queue too.
#[test]
fn the_waiting_threads_of_the_holder_of_a_queue_lock_are_counted() {
    let stage = stage();
    let lock = stage.holding.queue_lock("a");
    let (stop, seen) = (CancelToken::new(), stage.looking.queue_lock("a"));
    let _guard = on_thread("worker-7", || lock.lock_owned()).expect("free");
    assert_eq!(answered(&seen).local_waiters(), Some(0));
    let wait = |client: &Client| {
        let lock = client.queue_lock("a").with_cancel(&stop);
        thread::spawn(move || lock.lock_owned().map(drop))
    };
    let waiters = [&stage.holding, &stage.holding, &stage.looking].map(wait);
    eventually("all wait", || seen.waiting().expect("an answer").queue().len() == 3);
    let holder = answered(&seen);
    assert_eq!((holder.thread(), holder.count()), (Some("worker-7"), 1));
    assert_eq!(holder.local_waiters(), Some(2));
    cancel_all(&stop, waiters);
    assert_eq!(answered(&seen).local_waiters(), Some(0));
    eventually("the callers leave", || seen.waiting().expect("an answer").queue().is_empty());
}

#[test]
fn a_lock_that_was_handed_off_is_held_since_the_hand_off() {
    let stage = stage();
    let lock = stage.holding.lock("a");
    let first = lock.lock().expect("free");
    let before = answered(&stage.looking.lock("a"));
    let (next, done) = (lock.clone(), CancelToken::new());
    let held = done.clone();
    let waiter = sleeping("the next", move || {
        let guard = next.lock().expect("handed off");
        let handed_off = SystemTime::now();
        eventually("the test has looked", || held.is_cancelled());
        drop(guard);
        handed_off
    });
    drop(first);
    let after = eventually_some("the next thread is shown", || {
        let holder = answered(&stage.looking.lock("a"));
        (holder.thread() == Some("the next")).then_some(holder)
    });
    done.cancel();
    let handed_off = join(waiter);
    // The next thread has the same hold, or one of its own if it was too late for a hand-off.
    assert_ne!(before.thread_number(), after.thread_number());
    let tolerance = Duration::from_millis(1);
    assert!(
        after.since().is_some_and(|since| since + tolerance >= before.since().expect("a time"))
    );
    assert!(after.since().is_some_and(|since| since < handed_off + Duration::from_secs(1)));
}

#[test]
fn a_process_that_announces_nothing_is_not_asked() {
    let stage = stage();
    let silent = build(patient(stage.server.url()).announce(false));
    let _guard = silent.lock("a").lock().expect("free");
    stage.server.reset_stats();
    let holder = stage.looking.lock("a").holder().expect("an answer").expect("held");
    assert_eq!(
        (holder.thread(), holder.thread_number(), holder.local_waiters()),
        (None, None, None)
    );
    assert_eq!((stage.server.calls("publish"), stage.server.calls("subscribe")), (0, 0));
}

/// The record of a stopped process exists for up to 30 s.
#[test]
fn a_stopped_process_is_asked_once_in_a_search_for_all_its_locks() {
    const COUNT: usize = 300;
    let stage = stage();
    let count = COUNT.to_string();
    let url = stage.server.url();
    let mut child = ChildProcess::start("holders::child_entry", "hold many", &[&url, &count]);
    child.expect_line("announced");
    child.stop();
    stage.server.reset_stats();
    let locks = stage.looking.locks("many *").expect("a good pattern");
    let locks: Vec<_> = locks.map(|lock| lock.expect("an answer")).collect();
    assert_eq!(locks.len(), COUNT);
    for holder in locks.iter().map(|lock| &lock.holders()[0]) {
        assert_eq!((holder.pid(), holder.thread_number()), (Some(child.pid()), None));
        assert!(holder.since().is_some() && holder.count() == 1);
    }
    assert!(stage.server.calls("scan") > 3, "several pages");
    assert_eq!(stage.server.calls("publish"), 1, "one question");
    child.resume();
    let holder = answered(&stage.looking.lock("many 0"));
    assert_eq!(holder.pid(), Some(child.pid()));
}

// ---------------------------------------------------------------------------------
// Waiting callers.

#[test]
fn waiting_processes_are_counted_for_locks_without_a_queue() {
    let stage = stage();
    let others: Vec<Client> = (0..2).map(|_| other(&stage.server)).collect();
    let guard = stage.holding.lock("a").lock().expect("free");
    let writing = stage.holding.rw_lock("rw").write().expect("free");
    let spinning = stage.holding.spin_lock("s").lock().expect("free");
    let stop = CancelToken::new();
    assert_eq!(stage.looking.lock("a").waiting().expect("an answer").processes(), 0);
    let mut waiters = Vec::new();
    for client in &others {
        for _ in 0..2 {
            let lock = client.lock("a").with_cancel(&stop);
            waiters.push(sleeping("plain", move || lock.lock().map(drop)));
        }
        let lock = client.rw_lock("rw").with_cancel(&stop);
        waiters.push(sleeping("reader", move || lock.read().map(drop)));
        let lock = client.spin_lock("s").with_cancel(&stop);
        waiters.push(thread::spawn(move || lock.lock().map(drop)));
    }
    let count = |waiting: Result<WaitingInfo>| {
        let waiting = waiting.expect("an answer");
        assert!(waiting.queue().is_empty());
        waiting.processes()
    };
    let rw = stage.looking.rw_lock("rw");
    eventually("both processes wait", || {
        let plain = count(stage.looking.lock("a").waiting());
        let sides = [count(rw.read_lock().waiting()), count(rw.write_lock().waiting())];
        (plain, sides) == (2, [2, 2])
    });
    assert_eq!(count(stage.looking.spin_lock("s").waiting()), 0);
    stop.cancel();
    waiters.into_iter().for_each(|waiter| drop(join(waiter)));
    drop((guard, writing, spinning));
}

#[test]
fn the_queue_of_a_fair_lock_is_listed_in_order() {
    let stage = stage();
    let second = other(&stage.server);
    let guard = stage.holding.fair_lock("a").lock().expect("free");
    let (stop, seen) = (CancelToken::new(), stage.looking.fair_lock("a"));
    let clients = [&second, &stage.holding, &second];
    let begin = SystemTime::now();
    let mut waiters = Vec::new();
    for (before, client) in clients.iter().enumerate() {
        let lock = client.fair_lock("a").with_cancel(&stop);
        waiters.push(thread::spawn(move || lock.lock_owned().map(drop)));
        let queued = || seen.waiting().expect("an answer").queue().len() == before + 1;
        eventually("the caller is in the queue", queued);
    }
    stage.server.ask::<()>(&["RPUSH", "redisson_lock_queue:{a}", &format!("{JAVA}:94")]);
    let waiting = seen.waiting().expect("an answer");
    assert_eq!(waiting.processes(), 3);
    let queue = waiting.queue();
    let ids: Vec<_> = queue[..3].iter().filter_map(HolderInfo::client_id).collect();
    assert_eq!(ids, clients.map(Client::id));
    let times: Vec<_> = queue.iter().filter_map(HolderInfo::since).collect();
    assert!(times.is_sorted() && times.len() == 3 && times[0] >= begin, "{times:?}");
    assert!(queue.iter().all(|it| it.count() == 0 && it.remaining().is_none()));
    assert_eq!((queue[3].thread(), queue[3].since()), (Some("94"), None));
    cancel_all(&stop, waiters);
    drop(guard);
}

#[test]
fn the_queue_of_a_queue_lock_is_listed_in_the_order_of_grants() {
    let stage = stage();
    let second = other(&stage.server);
    let guard = stage.holding.queue_lock("a").lock_owned().expect("free");
    let (stop, seen) = (CancelToken::new(), stage.looking.queue_lock("a"));
    let callers = [(&second, 1), (&stage.holding, 1), (&second, 10)];
    let begin = SystemTime::now();
    let mut waiters = Vec::new();
    for (before, (client, weight)) in callers.iter().enumerate() {
        let lock = client.queue_lock("a").with_weight(*weight).with_cancel(&stop);
        waiters.push(thread::spawn(move || lock.lock_owned().map(drop)));
        let queued = || seen.waiting().expect("an answer").queue().len() == before + 1;
        eventually("the caller is in the queue", queued);
    }
    let waiting = seen.waiting().expect("an answer");
    assert_eq!(waiting.processes(), 2);
    let queue = waiting.queue();
    let ids: Vec<_> = queue.iter().filter_map(HolderInfo::client_id).collect();
    assert_eq!(ids, [&second, &second, &stage.holding].map(Client::id), "the weight counts");
    let times: Vec<_> = queue.iter().map(|it| it.since().expect("a call of leasehold")).collect();
    assert!(begin <= times[1] && times[1] <= times[2] && times[2] <= times[0], "{times:?}");
    assert!(queue.iter().all(|it| it.count() == 0 && it.remaining().is_none()));
    cancel_all(&stop, waiters);
    drop(guard);
}

/// A grant removes the grantee from the queue: the grantee is the holder, with its grant lease.
#[test]
fn a_waiter_of_a_queue_lock_is_shown_with_its_process_and_becomes_the_holder() {
    let stage = stage();
    let named = build(patient(stage.server.url()).announce(true).label("billing"));
    let guard = stage.holding.queue_lock("a").lock_owned().expect("free");
    let (lock, seen) = (named.queue_lock("a"), stage.looking.queue_lock("a"));
    let waiter = thread::spawn(move || lock.lock_owned());
    let waiting = eventually_some("the record is written", || {
        let waiting = seen.waiting().expect("an answer");
        waiting.queue().first().is_some_and(|it| it.pid().is_some()).then_some(waiting)
    });
    let caller = &waiting.queue()[0];
    assert_eq!((caller.pid(), caller.label()), (Some(std::process::id()), Some("billing")));
    assert_eq!((caller.host(), caller.thread()), (Some(&*host()), None));
    guard.unlock().expect("held");
    let granted = join(waiter).expect("granted");
    let holder = answered(&seen);
    assert_eq!((holder.owner(), holder.label()), (caller.owner(), Some("billing")));
    assert!(seen.waiting().expect("an answer").queue().is_empty());
    granted.unlock().expect("held");
    assert!(seen.holder().expect("an answer").is_none());
}

// ---------------------------------------------------------------------------------
// Costs and errors.

#[test]
fn a_query_takes_one_round_trip_for_the_lock_and_one_for_the_records() {
    let stage = stage();
    // The record of another client would count too.
    let silent = build(patient(stage.server.url()).announce(false));
    let _guard = silent.lock("a").lock().expect("free");
    let lock = stage.looking.lock("a");
    drop(lock.holder());
    stage.server.reset_stats();
    lock.holder().expect("an answer").expect("held");
    let calls = |stage: &Stage, names: &[&str]| -> u64 {
        let stats = stage.server.commandstats();
        names.iter().filter_map(|name| stats.get(*name)).sum()
    };
    assert_eq!(calls(&stage, &["evalsha", "hmget"]), 2);
    stage.server.reset_stats();
    lock.waiting().expect("an answer");
    assert_eq!(calls(&stage, &["evalsha", "hmget", "pubsub|numsub", "pubsub"]), 1);
}

#[test]
fn a_query_fails_like_the_other_queries() {
    let stage = stage();
    let lock = stage.looking.lock("a{");
    assert!(lock.holder().is_err_and(|error| error.is_invalid_name()));
    assert!(lock.waiting().is_err_and(|error| error.is_invalid_name()));
    let lock = stage.looking.lock("a");
    stage.server.kill();
    let error = lock.holder().expect_err("no server");
    assert!(error.is_retryable() && error.lock_name() == Some("a"), "{error:?}");
    stage.looking.close();
    assert!(lock.holders().is_err_and(|error| error.is_closed()));
    assert!(lock.waiting().is_err_and(|error| error.is_closed()));
}

#[test]
fn a_red_lock_shows_the_holder_on_each_of_its_servers() {
    let stages = [stage(), stage(), stage()];
    let holding = stages.each_ref().map(|stage| stage.holding.clone());
    let looking = stages.each_ref().map(|stage| stage.looking.clone());
    let ids = holding.each_ref().map(Client::id);
    let (lock, seen) = (RedLock::new(holding, "a"), RedLock::new(looking, "a"));
    assert!(seen.holders().expect("an answer").is_empty());
    let guard = lock.lock().expect("free");
    eventually("all servers are shown", || {
        let holders = seen.holders().expect("an answer");
        assert!(holders.iter().all(|it| it.client_id().is_some_and(|id| ids.contains(&id))));
        holders.len() >= 2
    });
    guard.unlock().expect("held");
}
