//! The data format of Redisson's `RLock`, semaphores and latch: keys, fields, messages, and locks
//! and permits that Redisson holds.

use crate::harness::bare::Bare;
use crate::harness::redisson::{self, EXPIRIES, LATCH, PERMITS};
use crate::harness::synchronizers::Synchronizer;
use crate::harness::{Server, eventually, join, owner, pttl};
use leasehold::{Client, Result};
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const REDISSON: &str = "6f0829ed-bfd3-4e6f-bba3-6f3d66cd176c:57";

/// Names of locks, and their channels.
const NAMES: [(&str, &str); 4] = [
    ("orders:42", "redisson_lock__channel:{orders:42}"),
    ("orders:{42}", "redisson_lock__channel:orders:{42}"),
    ("{a}b{c}", "redisson_lock__channel:{a}b{c}"),
    ("Bücher und \"mehr\"", "redisson_lock__channel:{Bücher und \"mehr\"}"),
];

fn patient(server: &Server) -> Client {
    let builder = Client::builder().single(server.url()).poll_interval(MINUTE);
    builder.build().expect("the server answers")
}

fn hash(server: &Server, name: &str) -> HashMap<String, String> {
    server.ask(&["HGETALL", name])
}

fn lock_as_redisson(server: &Server, name: &str, count: u32) {
    server.ask::<()>(&["HSET", name, REDISSON, &count.to_string()]);
    server.ask::<()>(&["PEXPIRE", name, "600000"]);
}

/// Receives all further messages on the channels of locks, as pairs of channel and message.
fn receive_messages(server: &Server) -> Receiver<(String, String)> {
    receive_messages_on(server, "redisson_lock__channel:*")
}

fn receive_messages_on(server: &Server, channels: &'static str) -> Receiver<(String, String)> {
    let mut connection = server.connection();
    let (sender, messages) = mpsc::channel();
    let (starts, started) = mpsc::channel();
    thread::spawn(move || {
        let mut pubsub = connection.as_pubsub();
        pubsub.psubscribe(channels).expect("the connection may subscribe");
        starts.send(()).expect("the test waits");
        // Ends with the server, or at the read time-out of the connection.
        while let Ok(message) = pubsub.get_message() {
            let payload = message.get_payload().expect("text");
            let _ = sender.send((message.get_channel_name().to_owned(), payload));
        }
    });
    started.recv().expect("the thread subscribes");
    messages
}

#[test]
fn a_lock_is_an_expiring_hash_with_one_owner_field() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    for (name, _) in NAMES {
        let guard = client.lock(name).lock()?;
        assert_eq!(server.keys(), [name]);
        assert_eq!(server.ask::<String>(&["TYPE", name]), "hash");
        let field = owner(&server, name);
        let (uuid, number) = field.split_once(':').expect("a colon");
        assert_eq!(uuid, client.id().to_string());
        assert_eq!(number.parse::<u64>().expect("decimal").to_string(), number);
        assert_eq!(hash(&server, name)[&field], "1");
        let left = pttl(&server, name);
        assert!((1..=30_000).contains(&left), "{left}");
        guard.unlock()?;
        assert!(server.keys().is_empty());
    }
    Ok(())
}

#[test]
fn every_way_to_free_a_lock_publishes_0_on_redissons_channel() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let messages = receive_messages(&server);
    for (name, channel) in NAMES {
        let lock = client.lock(name);
        let ways: [&dyn Fn() -> Result<()>; 5] = [
            &|| lock.lock()?.unlock(),
            &|| lock.lock().map(drop),
            &|| lock.lock_owned()?.unlock(),
            &|| {
                lock.lock()?.detach();
                lock.unlock()
            },
            &|| {
                let guard = lock.lock()?;
                assert!(lock.force_unlock()?);
                drop(guard);
                Ok(())
            },
        ];
        for way in ways {
            way()?;
            let message = messages.recv_timeout(MINUTE).expect("a message");
            assert_eq!(message, (channel.to_owned(), "0".to_owned()));
        }
    }
    assert!(messages.try_recv().is_err(), "one message for each release");
    Ok(())
}

#[test]
fn nothing_is_published_while_a_lock_is_held_or_refused() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    lock_as_redisson(&server, "a", 1);
    let messages = receive_messages(&server);
    let guard = client.lock("b").lock()?;
    assert!(client.lock("a").try_lock()?.is_none() && client.lock("b").try_lock()?.is_some());
    assert!(client.lock("a").try_lock_for(Duration::from_millis(300))?.is_none());
    assert!(!client.lock("c").force_unlock()?);
    guard.unlock()?;
    let (channel, _) = messages.recv_timeout(MINUTE).expect("the release");
    assert_eq!(channel, "redisson_lock__channel:{b}");
    Ok(())
}

#[test]
fn a_lock_of_redisson_is_respected_at_any_count() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    for count in [1, 3] {
        lock_as_redisson(&server, "a", count);
        let before = hash(&server, "a");
        let lock = client.lock("a");
        assert!(lock.try_lock()?.is_none() && lock.try_lock_owned()?.is_none());
        assert!(lock.try_lock_for(Duration::from_millis(300))?.is_none());
        assert!(lock.is_locked()? && !lock.is_held());
        assert!(lock.unlock().is_err_and(|e| e.is_not_held()));
        assert_eq!(hash(&server, "a"), before);
        assert!(pttl(&server, "a") <= 600_000, "its lease was not extended");
    }
    Ok(())
}

#[test]
fn the_message_of_a_release_by_redisson_wakes_a_waiter() -> Result<()> {
    let server = Server::start();
    let client = patient(&server);
    for (name, channel) in NAMES {
        lock_as_redisson(&server, name, 1);
        let lock = client.lock(name);
        let waiter = thread::spawn(move || lock.lock()?.unlock());
        server.await_quiet_waiter(channel);
        // The commands of Redisson's script.
        server.ask::<()>(&["DEL", name]);
        server.ask::<()>(&["PUBLISH", channel, "0"]);
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn a_late_release_does_not_change_the_hash_of_the_next_holder() -> Result<()> {
    let server = Server::start();
    for unlock in [true, false] {
        let client = Client::open(server.url())?;
        let guard = client.lock("a").lock()?;
        server.ask::<()>(&["DEL", "a"]);
        lock_as_redisson(&server, "a", 2);
        let before = hash(&server, "a");
        if unlock {
            assert!(guard.unlock().is_err_and(|e| e.is_lost()))
        } else {
            drop(guard)
        }
        drop(client); // waits for background requests
        assert_eq!(hash(&server, "a"), before);
        server.ask::<()>(&["DEL", "a"]);
    }
    Ok(())
}

#[test]
fn hold_numbers_are_never_reused() -> Result<()> {
    let server = Server::start();
    let open = || Client::builder().single(server.url()).local_handoff(0, Duration::ZERO).build();
    let clients = [open()?, open()?];
    let hold = |number: usize| {
        let (client, server) = (clients[number % 2].clone(), &server);
        let name = format!("lock {}", number % 4);
        move || {
            let mut owners = Vec::new();
            for turn in 0..20 {
                // Failed attempts use numbers too.
                let _ = client.lock(&name).try_lock()?.map(|guard| guard.unlock());
                let guard = client.lock(&name).lock_owned()?;
                owners.push(owner(server, &name));
                if turn % 2 == 0 { drop(guard) } else { guard.unlock()? }
            }
            Result::Ok(owners)
        }
    };
    let owners = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(hold(number))).collect();
        let all = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        all.collect::<Result<Vec<_>>>()
    })?;
    let numbers = owners.iter().flatten().filter_map(|owner| owner.split_once(':'));
    let distinct: HashSet<_> = numbers.map(|(_, number)| number).collect();
    assert_eq!(distinct.len(), 8 * 20);
    Ok(())
}

#[test]
fn clones_share_the_id_of_their_client_and_other_clients_do_not() -> Result<()> {
    let server = Server::start();
    let (client, other) = (Client::open(server.url())?, Client::open(server.url())?);
    assert_eq!(client.id(), client.clone().id());
    assert_ne!(client.id(), other.id());
    let guards = [other.lock("a").lock()?, client.clone().lock("b").lock()?];
    assert!(owner(&server, "a").starts_with(&other.id().to_string()));
    assert!(owner(&server, "b").starts_with(&client.id().to_string()));
    drop(guards);
    Ok(())
}

// ---------------------------------------------------------------------------------
// Semaphores and latches.

/// Returns a key with this suffix, or a channel with this prefix, of a name.
fn derived(prefix: &str, name: &str, suffix: &str) -> String {
    if name.contains('{') {
        format!("{prefix}{name}{suffix}")
    } else {
        format!("{prefix}{{{name}}}{suffix}")
    }
}

/// Returns the ids of the permits in use, and their expiries.
fn permits(server: &Server, name: &str) -> Vec<(Vec<u8>, i64)> {
    server.ask(&["ZRANGE", &derived("", name, ":timeout"), "0", "-1", "WITHSCORES"])
}

#[test]
fn a_semaphore_is_a_number_and_a_sorted_set_of_ids_with_their_expiries() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    for (name, _) in NAMES {
        let semaphore = client.semaphore(name).with_permits(5);
        let permit = semaphore.with_lease(MINUTE).acquire_many(3)?;
        let expiries = derived("", name, ":timeout");
        let mut keys = vec![name.to_owned(), expiries.clone()];
        keys.sort();
        assert_eq!(server.keys(), keys);
        assert_eq!(server.ask::<String>(&["GET", name]), "2");
        assert_eq!(server.ask::<String>(&["TYPE", &expiries]), "zset");
        let (seconds, _): (i64, i64) = server.ask(&["TIME"]);
        let permits = permits(&server, name);
        let half = |id: &[u8]| id[..8].to_vec();
        let first = &permits[0].0;
        assert_eq!(half(first), client.id().as_bytes()[..8]);
        assert_eq!(half(first), half(&client.id().into_bytes()).to_vec());
        for (at, (id, expiry)) in (0u64..).zip(&permits) {
            assert_eq!((id.len(), half(id)), (16, half(first)));
            let number = |id: &[u8]| u64::from_be_bytes(id[8..].try_into().expect("8 bytes"));
            assert_eq!(number(id), number(first) + at);
            let left = expiry - seconds * 1000;
            assert!((1..=62_000).contains(&left), "{left}");
        }
        permit.release()?;
        assert_eq!(server.keys(), [name]);
        assert_eq!(server.ask::<String>(&["GET", name]), "5");
        server.ask::<()>(&["FLUSHALL"]);
    }
    Ok(())
}

#[test]
fn a_plain_semaphore_and_a_latch_are_numbers() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let only = |name: &str, number: &str| {
        // A record is deleted in the background.
        eventually("only the number and the round remain", || {
            let keys = server.keys();
            let is_round = |key: &String| *key == derived("leasehold_round:", name, "");
            keys.iter().all(|key| key == name || is_round(key))
        });
        assert_eq!(server.ask::<String>(&["GET", name]), number);
        assert_eq!(pttl(&server, name), -1);
    };
    for (name, _) in NAMES {
        let semaphore = client.plain_semaphore(name);
        assert!(semaphore.try_set_permits(5)? && semaphore.try_acquire(2)?);
        only(name, "3");
        semaphore.release(4)?;
        only(name, "7");
        assert_eq!(semaphore.drain()?, 7);
        only(name, "0");
        server.ask::<()>(&["FLUSHALL"]);
        let latch = client.latch(name);
        assert!(latch.try_set_count(2)?);
        only(name, "2");
        latch.count_down()?;
        only(name, "1");
        latch.count_down()?;
        eventually("nothing is left", || server.keys().is_empty());
    }
    Ok(())
}

#[test]
fn every_way_to_free_permits_publishes_their_number_on_redissons_channel() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let messages = receive_messages_on(&server, "redisson_sc:*");
    for (name, _) in NAMES {
        let channel = derived("redisson_sc:", name, "");
        let next = |payload: &str| {
            let message = messages.recv_timeout(MINUTE).expect("a message");
            assert_eq!(message, (channel.clone(), payload.to_owned()));
        };
        let semaphore = client.semaphore(name).with_permits(5);
        let permit = semaphore.acquire()?;
        next("4");
        permit.release()?;
        next("5");
        drop(semaphore.acquire_many(2)?);
        next("5");
        semaphore.resize(7)?;
        next("7");
        server.ask::<()>(&["FLUSHALL"]);
        let semaphore = client.plain_semaphore(name);
        assert!(semaphore.try_set_permits(3)?);
        next("3");
        semaphore.acquire(3)?;
        semaphore.release(2)?;
        next("2");
        semaphore.add_permits(-2)?;
        semaphore.add_permits(1)?;
        next("1");
    }
    assert!(messages.try_recv().is_err(), "one message for each");
    Ok(())
}

#[test]
fn every_way_to_change_a_latch_publishes_on_redissons_channel() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let messages = receive_messages_on(&server, "redisson_countdownlatch__channel__*");
    for (name, _) in NAMES {
        let next = |payload: &str| {
            let message = messages.recv_timeout(MINUTE).expect("a message");
            // The braces are always there.
            let channel = format!("redisson_countdownlatch__channel__{{{name}}}");
            assert_eq!(message, (channel, payload.to_owned()));
        };
        let latch = client.latch(name);
        assert!(latch.try_set_count(2)? && !latch.try_set_count(2)?);
        next("1");
        latch.count_down()?;
        latch.count_down()?;
        next("0");
        assert!(latch.try_set_count(1)?);
        next("1");
        drop(latch.count_down_on_drop());
        next("0");
        assert!(latch.try_set_count(1)?);
        next("1");
        assert!(latch.delete()? && !latch.delete()?);
        next("0");
    }
    assert!(messages.try_recv().is_err(), "one message for each");
    Ok(())
}

/// Asserts that each operation of Redisson wakes a caller that waits for the key. The operation
/// comes when only a message can wake the caller.
fn each_wakes_a_waiter(kind: Synchronizer, key: &str, operations: &[&dyn Fn(&mut Bare)]) {
    let mut bare = Bare::start();
    let client = patient(&bare.server);
    for operation in operations {
        kind.occupy(&bare.server, key);
        let waiter = kind.wait(&client, key);
        bare.server.await_quiet_waiter(&kind.channel(key));
        waiter.still_waits();
        operation(&mut bare);
        waiter.ends();
        bare.ask::<()>(&["DEL", PERMITS, EXPIRIES, LATCH]);
    }
}

#[test]
fn each_operation_of_redisson_that_frees_permits_wakes_a_waiter() {
    let operations: [&dyn Fn(&mut Bare); 6] = [
        &|bare| assert!(redisson::release(bare, 0, "java")),
        &|bare| assert!(redisson::release_many(bare, 0, &["java"])),
        &|bare| redisson::set_capacity(bare, 2),
        &|bare| redisson::add(bare, 1),
        // By a clock that is ahead of all expiries.
        &|bare| assert_eq!(redisson::capacity(bare, redisson::NEVER + 1), 1),
        &|bare| {
            bare.ask::<()>(&["DEL", PERMITS, EXPIRIES]);
            assert!(redisson::set_permits(bare, 1));
        },
    ];
    each_wakes_a_waiter(Synchronizer::Semaphore, PERMITS, &operations);
}

#[test]
fn each_operation_of_redisson_that_adds_plain_permits_wakes_a_waiter() {
    let operations: [&dyn Fn(&mut Bare); 2] = [&|bare| redisson::give(bare, 1), &|bare| {
        bare.ask::<()>(&["DEL", PERMITS]);
        assert!(redisson::set_permits(bare, 3));
    }];
    each_wakes_a_waiter(Synchronizer::PlainSemaphore, PERMITS, &operations);
}

#[test]
fn each_operation_of_redisson_that_opens_a_latch_wakes_a_waiter() {
    let operations: [&dyn Fn(&mut Bare); 2] =
        [&|bare| redisson::count_down(bare), &|bare| assert!(redisson::delete_latch(bare))];
    each_wakes_a_waiter(Synchronizer::Latch, LATCH, &operations);
}
