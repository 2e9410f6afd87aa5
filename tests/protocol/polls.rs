//! Polls: the safety net for messages that are lost, cast by the watchdog for all who
//! wait.

use crate::harness::{Server, eventually, join};
use leasehold::{Client, Result};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(100);
const LOCKS: u64 = 200;

/// A client whose poll interval is soon over, while its leases and those of others last.
fn client(server: &Server) -> Client {
    let builder = Client::builder().single(server.url()).poll_interval(SOON);
    builder.watchdog_timeout(Duration::from_secs(600)).build().expect("the server answers")
}

/// Locks that others hold, and a thread for each that waits.
fn wait_for_many(server: &Server, client: &Client) -> Vec<JoinHandle<Result<()>>> {
    let wait = |name: String| {
        server.ask::<()>(&["HSET", &name, "another", "1"]);
        server.ask::<()>(&["PEXPIRE", &name, "600000"]);
        let lock = client.lock(name);
        thread::spawn(move || lock.lock()?.unlock())
    };
    let waiters = (0..LOCKS).map(|number| wait(format!("lock:{number}"))).collect();
    let subscribed = || server.channels().len() as u64 > LOCKS;
    eventually("all are subscribed", subscribed);
    waiters
}

fn free_in_silence(server: &Server) {
    let names: Vec<_> = (0..LOCKS).map(|number| format!("lock:{number}")).collect();
    let words: Vec<_> = ["DEL"].into_iter().chain(names.iter().map(String::as_str)).collect();
    assert_eq!(server.ask::<u64>(&words), LOCKS);
}

#[test]
fn polls_of_many_locks_go_together_and_find_those_that_are_free() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let waiters = wait_for_many(&server, &client);
    server.reset_stats();
    eventually("each has been looked at some times", || server.calls("hlen") >= 10 * LOCKS);
    let (looks, calls) = (server.calls("hlen"), server.calls("evalsha"));
    assert!(calls * 10 <= looks, "{calls} script calls for {looks} looks");
    free_in_silence(&server);
    waiters.into_iter().try_for_each(join)
}

#[test]
fn nothing_is_polled_when_nobody_waits_any_more() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let waiters = wait_for_many(&server, &client);
    free_in_silence(&server);
    waiters.into_iter().try_for_each(join)?;
    let (mut last, mut looks) = (0, 0);
    eventually("there are no polls for three poll intervals", || {
        let polls = server.calls("hlen");
        looks = if polls == last { looks + 1 } else { 0 };
        last = polls;
        looks == 3 * SOON.as_millis()
    });
    Ok(())
}

#[test]
fn a_lock_that_vanishes_under_its_holder_is_found_free_by_a_thread_behind_it() -> Result<()> {
    let server = Server::start();
    let client = client(&server);
    let lock = client.lock("a");
    let guard = lock.lock()?;
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    eventually("the thread behind it is polled for", || server.calls("hlen") > 2);
    assert_eq!(server.ask::<u32>(&["DEL", "a"]), 1);
    join(waiter)?;
    assert!(!guard.is_held());
    Ok(())
}

#[test]
fn who_waits_for_what_is_no_lock_any_more_is_told_at_the_next_poll() -> Result<()> {
    let server = Server::start();
    // Without the poll the waiter would ask again when the lease ends that it was told of,
    // or after many poll intervals.
    let builder = Client::builder().single(server.url()).poll_interval(Duration::from_secs(2));
    let client = builder.build()?;
    server.ask::<()>(&["HSET", "a", "another", "1"]);
    server.ask::<()>(&["PEXPIRE", "a", "600000"]);
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock().map(drop));
    eventually("it waits", || server.channels().len() > 1);
    server.ask::<()>(&["SET", "a", "no lock"]);
    eventually("it is told", || waiter.is_finished());
    let error = join(waiter).expect_err("a text is no lock");
    assert!(error.is_server() && error.to_string().contains("WRONGTYPE"), "{error}");
    Ok(())
}
