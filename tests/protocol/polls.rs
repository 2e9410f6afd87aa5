//! Polls: the watchdog asks about all awaited locks, in case messages are lost.

use crate::harness::synchronizers::{SYNCHRONIZERS, Synchronizer};
use crate::harness::{Server, await_unchanged, eventually, join};
use leasehold::{Client, Result};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
const LOCKS: u64 = 200;

/// Returns a client with a short poll interval and long leases.
fn client(server: &Server) -> Client {
    let builder =
        Client::builder().single(server.url()).poll_interval(POLL_INTERVAL).announce(false);
    builder.watchdog_timeout(Duration::from_secs(600)).build().expect("the server answers")
}

/// Starts a waiting thread for each of many locks that other holders have.
fn wait_for_many(server: &Server, client: &Client) -> Vec<JoinHandle<Result<()>>> {
    let wait = |name: String| {
        server.ask::<()>(&["HSET", &name, "another", "1"]);
        server.ask::<()>(&["PEXPIRE", &name, "600000"]);
        let lock = client.lock(name);
        thread::spawn(move || lock.lock()?.unlock())
    };
    let waiters = (0..LOCKS).map(|number| wait(format!("lock:{number}"))).collect();
    let subscribed = || server.channels().len() as u64 > LOCKS;
    eventually("all waiters are subscribed", subscribed);
    waiters
}

fn free_without_messages(server: &Server) {
    let names: Vec<_> = (0..LOCKS).map(|number| format!("lock:{number}")).collect();
    let words: Vec<_> = ["DEL"].into_iter().chain(names.iter().map(String::as_str)).collect();
    assert_eq!(server.ask::<u64>(&words), LOCKS);
}

#[test]
fn polls_of_many_locks_share_script_calls_and_find_free_locks() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let waiters = wait_for_many(&server, &client);
    server.reset_stats();
    eventually("each lock is polled several times", || server.calls("hlen") >= 10 * LOCKS);
    let (polls, calls) = (server.calls("hlen"), server.calls("evalsha"));
    assert!(calls * 10 <= polls, "{calls} script calls for {polls} polls");
    free_without_messages(&server);
    waiters.into_iter().try_for_each(join)
}

#[test]
fn polls_end_with_the_last_waiter() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let waiters = wait_for_many(&server, &client);
    free_without_messages(&server);
    waiters.into_iter().try_for_each(join)?;
    let polls = || Some(server.calls("hlen"));
    await_unchanged("there are no polls for three poll intervals", 3 * POLL_INTERVAL, polls);
    Ok(())
}

#[test]
fn a_poll_finds_a_deleted_lock_for_a_thread_behind_the_holder() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a");
    let guard = lock.lock()?;
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    eventually("the watchdog polls for the thread behind the holder", || server.calls("hlen") > 2);
    assert_eq!(server.ask::<u32>(&["DEL", "a"]), 1);
    join(waiter)?;
    assert!(!guard.is_held());
    Ok(())
}

#[test]
fn a_poll_reports_an_awaited_key_that_is_no_lock() -> Result<()> {
    let server = Server::start();
    // Without the poll, the waiter would ask again only at the end of the known lease, or after
    // many poll intervals.
    let builder = Client::builder().single(server.url()).poll_interval(Duration::from_secs(2));
    let client = builder.build()?;
    server.ask::<()>(&["HSET", "a", "another", "1"]);
    server.ask::<()>(&["PEXPIRE", "a", "600000"]);
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock().map(drop));
    eventually("the caller waits", || server.channels().len() > 1);
    server.ask::<()>(&["SET", "a", "no lock"]);
    eventually("the wait ends", || waiter.is_finished());
    let error = join(waiter).expect_err("a string is no lock");
    assert!(error.is_server() && error.to_string().contains("WRONGTYPE"), "{error}");
    Ok(())
}

#[test]
fn polls_end_the_waits_for_semaphores_and_latches_without_messages() {
    for kind in SYNCHRONIZERS {
        let server = Server::start();
        let client = client(&server);
        let names: Vec<String> = (0..10).map(|number| format!("name {number}")).collect();
        for name in &names {
            kind.occupy(&server, name);
        }
        let wait = |name: &String| kind.wait_subscribed(&server, &client, name);
        let waiters: Vec<_> = names.iter().map(wait).collect();
        for waiter in &waiters {
            waiter.still_waits();
        }
        for name in &names {
            kind.free_silently(&server, name);
        }
        for waiter in waiters {
            waiter.ends();
        }
    }
}

#[test]
fn polls_of_many_semaphores_share_script_calls() {
    let server = Server::start();
    let client = client(&server);
    let kind = Synchronizer::Semaphore;
    let names: Vec<String> = (0..LOCKS).map(|number| format!("name {number}")).collect();
    for name in &names {
        kind.occupy(&server, name);
    }
    let waiters: Vec<_> = names.iter().map(|name| kind.wait(&client, name)).collect();
    eventually("all waiters are subscribed", || server.channels().len() as u64 > LOCKS);
    server.reset_stats();
    eventually("each is polled several times", || server.calls("zrangebyscore") >= 10 * LOCKS);
    let (polls, calls) = (server.calls("zrangebyscore"), server.calls("evalsha"));
    assert!(calls * 10 <= polls, "{calls} script calls for {polls} polls");
    for name in &names {
        kind.free_silently(&server, name);
    }
    for waiter in waiters {
        waiter.ends();
    }
}

#[test]
fn a_poll_reports_an_awaited_key_that_is_no_semaphore_or_latch() {
    for kind in SYNCHRONIZERS {
        let server = Server::start();
        let client = client(&server);
        kind.occupy(&server, "a");
        let waiter = kind.wait_subscribed(&server, &client, "a");
        server.ask::<()>(&["RPUSH", "list", "an element"]);
        // In one step: a missing key is a semaphore without a capacity, or an open latch.
        server.ask::<()>(&["RENAME", "list", "a"]);
        let error = waiter.fails();
        assert!(error.is_server() && error.to_string().contains("WRONGTYPE"), "{kind:?}: {error}");
    }
}
