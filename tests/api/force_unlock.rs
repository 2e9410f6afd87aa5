//! `Client::force_unlock`: frees a lock without knowledge of its kind.

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::holders::{GONE, JAVA, Stage, stage};
use crate::harness::queued::is_listening;
use crate::harness::wait::BOUND;
use crate::harness::{eventually, exists, join, pttl};
use leasehold::kind::LockKind;
use leasehold::{Client, Lock, LostReason, MultiLock, Result};
use std::thread::{self, JoinHandle};

fn force(stage: &Stage, name: &str) -> bool {
    stage.looking.force_unlock(name).expect("an answer")
}

/// Returns a thread that waits for the lock, after the lock has a waiting caller.
fn waiter<K: LockKind>(stage: &Stage, lock: Lock<K>) -> JoinHandle<Result<()>> {
    let name = lock.name().to_owned();
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    eventually("the caller waits", || {
        let info = stage.looking.lock_info(&*name).expect("an answer").expect("held");
        info.waiting().processes() == 1
    });
    waiter
}

/// Frees a lock that is held, which wakes its waiter before any poll.
#[track_caller]
fn frees<K: LockKind>(make: impl Fn(&Client) -> Lock<K>) {
    let stage = stage();
    let waiting = build(patient(stage.server.url()));
    let lock = make(&stage.holding);
    let guard = lock.lock_owned().expect("free");
    let waiter = waiter(&stage, make(&waiting));
    assert!(force(&stage, lock.name()));
    join(waiter).expect("the waiter gets the lock");
    let error = guard.unlock().expect_err("the hold is lost");
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
    eventually("the lock is free", || !exists(&stage.server, lock.name()));
    assert!(!force(&stage, lock.name()), "nothing is held");
}

#[test]
fn the_holders_of_every_kind_learn_of_their_loss_at_once() {
    /// Frees a lock whose holder renews nothing and does not poll: only a message tells it.
    #[track_caller]
    fn tells<K: LockKind>(stage: &Stage, lock: &Lock<K>) {
        let guard = lock.lock_owned().expect("free");
        assert!(force(stage, lock.name()));
        assert!(guard.wait_lost(BOUND), "{lock:?}");
        assert_eq!(guard.check().expect_err("lost").lost_reason(), Some(LostReason::Gone));
    }
    let stage = stage();
    let holding = &stage.holding;
    let first = holding.lock("first").lock().expect("free");
    eventually("the holder listens", || is_listening(&stage.server, holding));
    tells(&stage, &holding.lock("plain"));
    tells(&stage, &holding.lock("named").with_holder("job"));
    tells(&stage, &holding.fair_lock("fair"));
    tells(&stage, &holding.fenced_lock("fenced"));
    tells(&stage, &holding.queue_lock("queued"));
    tells(&stage, &holding.rw_lock("read").read_lock());
    tells(&stage, &holding.rw_lock("write").write_lock());
    let spinning = holding.spin_lock("spin").lock().expect("free");
    assert!(stage.looking.spin_lock("spin").force_unlock().expect("an answer"));
    assert!(spinning.wait_lost(BOUND));
    let term = holding.election("election").campaign().expect("no other candidate");
    assert!(stage.looking.queue_lock("election").force_unlock().expect("an answer"));
    assert!(term.wait_lost(BOUND));
    first.check().expect("only the holders of a freed lock are told of it");
}

#[test]
fn the_permits_of_a_semaphore_are_taken_away_and_their_holders_told() {
    let stage = stage();
    let semaphore = stage.holding.semaphore("jobs").with_permits(3);
    let permits = semaphore.acquire_many(2).expect("free");
    semaphore.clone().with_min_hold(NEVER).acquire().expect("free").release().expect("held");
    eventually("the holder listens", || is_listening(&stage.server, &stage.holding));
    let waiting = build(patient(stage.server.url()));
    let waiter = {
        let semaphore = waiting.semaphore("jobs");
        thread::spawn(move || semaphore.acquire_many(3).and_then(|permits| permits.release()))
    };
    eventually("the caller waits", || semaphore.waiting().expect("an answer").processes() == 1);
    assert!(force(&stage, "jobs"));
    join(waiter).expect("the waiter gets all permits");
    assert!(permits.wait_lost(BOUND), "a message tells the holder");
    let error = stage.looking.force_unlock("jobs").expect_err("only a number of free permits");
    assert_eq!(error.code(), Some("WRONGTYPE"));
    assert_eq!(stage.looking.semaphore("jobs").available(), Ok(3));
    stage.server.ask::<()>(&["DEL", "jobs"]);
    let permits = semaphore.acquire().expect("free");
    stage.server.ask::<()>(&["DEL", "jobs"]);
    assert!(force(&stage, "jobs"), "also without the key of the free permits");
    assert!(permits.wait_lost(BOUND));
    assert_eq!(semaphore.acquire_many(3).map(|permits| permits.count()), Ok(3));
}

#[test]
fn each_of_several_readers_learns_of_its_loss_at_once() {
    let stage = stage();
    let clients = [(); 3].map(|()| build(patient(stage.server.url()).announce(true)));
    let read = |client: &Client| client.rw_lock("a").read_owned().expect("no writer");
    let readers: Vec<_> = clients.iter().chain(&clients).map(read).collect();
    let listen = || clients.iter().all(|client| is_listening(&stage.server, client));
    eventually("the readers listen", listen);
    assert!(force(&stage, "a"));
    assert!(readers.iter().all(|reader| reader.wait_lost(BOUND)));
}

/// The channels of clients are forbidden.
#[test]
fn a_user_who_must_not_tell_the_holders_frees_the_lock() {
    let stage = stage();
    let guard = stage.holding.lock("a").lock().expect("free");
    let user = ["on", ">secret", "~*", "+@all", "resetchannels", "&redisson_lock__channel:*"];
    stage.server.ask::<()>(&[&["ACL", "SETUSER", "repairing"][..], &user].concat());
    let url = stage.server.url().replace("redis://", "redis://repairing:secret@");
    let repairing = build(patient(url));
    assert!(repairing.force_unlock("a").expect("an answer"));
    assert!(repairing.lock("b").try_lock().expect("an answer").is_some());
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
}

#[test]
fn the_waiters_of_a_plain_lock_are_woken() {
    frees(|client| client.lock("a"));
}

#[test]
fn the_waiters_of_a_fenced_lock_are_woken() {
    frees(|client| client.fenced_lock("a"));
}

#[test]
fn the_first_waiter_of_a_fair_lock_is_woken() {
    frees(|client| client.fair_lock("a"));
}

#[test]
fn a_queue_lock_is_granted_to_its_waiter() {
    frees(|client| client.queue_lock("a"));
}

#[test]
fn the_waiters_of_a_write_lock_are_woken() {
    frees(|client| client.rw_lock("a").write_lock());
}

#[test]
fn a_writer_that_waits_for_readers_is_woken() {
    let stage = stage();
    let guards = ["one", "two"].map(|_| stage.holding.rw_lock("a").read_owned().expect("shared"));
    let waiting = build(patient(stage.server.url()));
    let waiter = waiter(&stage, waiting.rw_lock("a").write_lock());
    assert!(force(&stage, "a"));
    join(waiter).expect("the writer gets the lock");
    drop(guards);
    assert_eq!(stage.server.keys(), [""; 0], "no time-out key of a reader is left");
}

#[test]
fn a_lock_without_waiters_is_freed_whatever_its_kind() {
    let stage = stage();
    let client = &stage.holding;
    let both = client.rw_lock("both");
    client.lock("plain").lock().expect("free").detach();
    client.spin_lock("spin").lock().expect("free").detach();
    client.fair_lock("fair").lock().expect("free").detach();
    client.fenced_lock("fenced").lock().expect("free").detach();
    client.queue_lock("queued").lock().expect("free").detach();
    client.lock("named").with_holder("job").lock().expect("free").detach();
    client.rw_lock("read").read().expect("free").detach();
    both.write().expect("free").detach();
    both.read().expect("the same thread").detach();
    stage.hash("java", &[&format!("{JAVA}:94"), "2"]);
    stage.hash("kept", &[&format!("{GONE}:1700000000000000:min_hold"), "1"]);
    let names = ["plain", "spin", "fair", "fenced", "queued", "named", "read", "both", "java"];
    for name in names.into_iter().chain(["kept"]) {
        assert!(force(&stage, name), "{name}");
        assert!(!exists(&stage.server, name), "{name}");
        assert!(!force(&stage, name), "{name}");
    }
}

/// Each key has another type or form than a lock, and every verb that could delete it refuses it.
#[test]
fn keys_of_other_programs_and_counts_stay() {
    let stage = stage();
    let owner = format!("{GONE}:1700000000000000");
    let min_hold = format!("{owner}:min_hold:1");
    stage.hash("user:1", &["name", "Ann"]);
    stage.hash("settings", &["mode", "read"]);
    stage.hash("theme", &["mode", "write", "theme", "dark"]);
    stage.hash("mixed", &["mode", "read", "theme", "dark", &owner, "1"]);
    stage.hash("named", &["tx-42", "1", "theme", "dark", &owner, "0"]);
    stage.hash("visits", &["tx-42", "7", "errors", "0"]);
    stage.hash("text value", &[&owner, "a text"]);
    stage.hash("longer field", &[&min_hold, "1"]);
    let many: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    stage.hash("many", &Vec::from_iter(many.iter().map(String::as_str)));
    stage.server.ask::<()>(&["SET", "text", "1"]);
    stage.server.ask::<()>(&["RPUSH", "list", "1"]);
    stage.server.ask::<()>(&["SADD", "set", "1"]);
    stage.server.ask::<()>(&["ZADD", "sorted", "1", "1"]);
    let client = &stage.looking;
    assert!(client.plain_semaphore("permits").try_set_permits(7).expect("a reply"));
    assert!(client.latch("latch").try_set_count(7).expect("a reply"));
    let before = stage.server.keys();
    let names = "user:1,settings,theme,mixed,named,visits,text value,longer field,many,text,list,\
                 set,sorted,permits,latch";
    for name in names.split(',') {
        stage.server.ask::<()>(&["PERSIST", name]);
        let content = || stage.server.content(name);
        let data = content();
        let rw = client.rw_lock(name);
        let forced = [
            ("any kind", client.force_unlock(name)),
            ("plain", client.lock(name).force_unlock()),
            ("named", client.lock(name).with_holder("tx-42").force_unlock()),
            ("spin", client.spin_lock(name).force_unlock()),
            ("fair", client.fair_lock(name).force_unlock()),
            ("fenced", client.fenced_lock(name).force_unlock()),
            ("queue", client.queue_lock(name).force_unlock()),
            ("multi", MultiLock::new([client.lock("free"), client.lock(name)]).force_unlock()),
        ];
        for (verb, outcome) in forced {
            let error = outcome.expect_err(&format!("{name}: {verb}"));
            assert!(error.is_server() && error.to_string().contains("WRONGTYPE"), "{error}");
            assert!(content() == data, "{name}: {verb}");
        }
        // A side of a read-write lock frees its own holds only.
        for freed in [rw.read_lock().force_unlock(), rw.write_lock().force_unlock()] {
            assert!(freed.is_err() || freed == Ok(false), "{name}");
        }
        // These calls end a hold, or take one, whose expiry would delete the key. A hash with a
        // holder's field counts as a lock.
        assert!(client.lock(name).with_holder("tx-42").unlock().is_err(), "{name}");
        let named = client.lock(name).with_holder("tx-42");
        if !["mixed", "named"].contains(&name) {
            assert!(!matches!(rw.try_read(), Ok(Some(_))), "{name}");
            assert!(!matches!(named.try_lock(), Ok(Some(_))), "{name}");
        }
        assert!(content() == data, "{name}");
        assert_eq!(pttl(&stage.server, name), -1, "{name}");
    }
    assert!(!force(&stage, "free"), "nothing is there");
    assert_eq!(stage.server.keys(), before);
}

/// The keys beside a lock, too, may belong to another program.
#[test]
fn a_key_of_another_type_beside_a_lock_stays() {
    let stage = stage();
    let (client, server) = (&stage.looking, &stage.server);
    let owner = format!("{GONE}:1700000000000000");
    let list = |key: &str| {
        server.ask::<()>(&["DEL", key]);
        server.ask::<()>(&["RPUSH", key, "of another program"]);
        key.to_owned()
    };
    let is_list = |key: &str| server.ask::<String>(&["TYPE", key]) == "list";
    let refused = |outcome: Result<bool>| {
        let error = outcome.expect_err("a key of another type");
        assert!(error.is_server() && error.to_string().contains("WRONGTYPE"), "{error}");
    };
    for name in ["fair", "queue"] {
        stage.hash(name, &[&owner, "1"]);
    }
    server.ask::<()>(&["SET", "redisson_lock_queue:{fair}", "a text"]);
    refused(client.fair_lock("fair").force_unlock());
    let queues = ["leasehold_queue:{queue}", "leasehold_alive:{queue}"].map(list);
    refused(client.queue_lock("queue").force_unlock());
    assert!(exists(server, "fair") && exists(server, "queue"), "refused before the release");
    assert!(queues.iter().all(|key| is_list(key)));

    let guard = client.queue_lock("released").lock().expect("free");
    let alive = list("leasehold_alive:{released}");
    guard.unlock().expect("held");
    assert!(is_list(&alive) && !exists(server, "released"));

    let rw = client.rw_lock("shared");
    for by_force in [true, false] {
        let guard = rw.read().expect("free");
        let holder = rw.read_lock().holder().expect("an answer").expect("held");
        let timeout = list(&format!("{{shared}}:{}:rwlock_timeout:1", holder.owner()));
        if by_force {
            assert!(rw.read_lock().force_unlock().expect("a reply"));
        } else {
            guard.unlock().expect("held");
        }
        assert!(is_list(&timeout) && !exists(server, "shared"), "by force: {by_force}");
    }

    let latch = client.latch("latch");
    let round = list("leasehold_round:{latch}");
    refused(latch.try_set_count(1));
    server.ask::<()>(&["SET", "latch", "1"]);
    assert!(latch.count_down().is_err());
    refused(latch.delete());
    assert!(is_list(&round) && server.ask::<String>(&["GET", "latch"]) == "1");
}

#[test]
fn a_lock_with_a_name_that_only_redisson_takes_is_freed_and_its_waiters_are_woken() {
    let stage = stage();
    for (name, channel) in
        [("order{1", "redisson_lock__channel:order{1"), ("a}b", "redisson_lock__channel:{a}b}")]
    {
        stage.hash(name, &[&format!("{JAVA}:5"), "1"]);
        let mut connection = stage.server.connection();
        let mut messages = connection.as_pubsub();
        messages.subscribe(channel).expect("subscribed");
        assert!(stage.holding.force_unlock(name).expect("an answer"));
        assert!(!exists(&stage.server, name));
        let message = messages.get_message().expect("the release");
        assert_eq!(message.get_payload::<String>().expect("a text"), "0");
    }
}

#[test]
fn a_holder_in_the_same_process_loses_its_hold_at_once() {
    let stage = stage();
    let client = &stage.holding;
    let guard = client.rw_lock("a").write().expect("free");
    assert!(client.force_unlock("a").expect("an answer"));
    assert!(!guard.is_held());
    let error = guard.unlock().expect_err("lost");
    assert_eq!(error.lost_reason(), Some(LostReason::Gone), "{error:?}");
}

#[test]
fn an_invalid_name_and_a_closed_client_are_errors() {
    let client = Client::builder().single("redis://127.0.0.1:1/").build_lazily().expect("no call");
    assert!(client.force_unlock("").is_err_and(|error| error.is_invalid_name()));
    let error = client.force_unlock("a").expect_err("no server");
    assert!(error.is_retryable() && error.lock_name() == Some("a"), "{error:?}");
    client.close();
    assert!(client.force_unlock("a").is_err_and(|error| error.is_closed()));
}
