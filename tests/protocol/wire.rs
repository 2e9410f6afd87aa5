//! The data format of Redisson's `RLock`: keys, fields, messages, and locks that Redisson holds.

use crate::harness::{Server, eventually, join, owner};
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
    let mut connection = server.connection();
    let (sender, messages) = mpsc::channel();
    let (starts, started) = mpsc::channel();
    thread::spawn(move || {
        let mut pubsub = connection.as_pubsub();
        pubsub.psubscribe("redisson_lock__channel:*").expect("the connection may subscribe");
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
        let left: i64 = server.ask(&["PTTL", name]);
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
        assert!(server.ask::<i64>(&["PTTL", "a"]) <= 600_000, "its lease was not extended");
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
        let (mut last, mut looks) = (0, 0);
        eventually("the waiter is subscribed and sends no more attempts", || {
            let asked = server.calls("evalsha");
            let is_quiet = asked == last && server.numsub(channel) == 1;
            looks = if is_quiet { looks + 1 } else { 0 };
            last = asked;
            looks == 15
        });
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
        match unlock {
            true => assert!(guard.unlock().is_err_and(|e| e.is_lost())),
            false => drop(guard),
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
