//! Waiting: the queue of one process, messages, polls, and waits that end without the lock.

use crate::harness::faults::channel_of;
use crate::harness::wait::QUIET;
use crate::harness::{Peer, Server, await_unchanged, eventually, join, or_too_late, sleeping};
use leasehold::{CancelToken, Client, Result};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval longer than any test: only a message can wake a waiter.
const NEVER: Duration = Duration::from_secs(60);
/// A poll interval that passes soon.
const SOON: Duration = Duration::from_millis(100);

/// Returns a client whose leases neither end nor are renewed during a test.
///
/// The client sends only the commands of its calls and of its waits.
fn client(server: &Server, poll_interval: Duration) -> Client {
    let builder = Client::builder().single(server.url()).announce(false);
    builder
        .poll_interval(poll_interval)
        .watchdog_timeout(10 * NEVER)
        .build()
        .expect("the server answers")
}

/// Takes a lock as a Java service does.
fn java_locks(server: &Server, name: &str) {
    server.ask::<()>(&["HSET", name, "6f0829ed-bfd3-4e6f-bba3-6f3d66cd176c:57", "1"]);
    server.ask::<()>(&["PEXPIRE", name, "600000"]);
}

/// Frees a lock without a message, as if the message were lost.
fn frees_without_a_message(server: &Server, name: &str) {
    assert_eq!(server.ask::<u32>(&["DEL", name]), 1);
}

fn java_unlocks(server: &Server, name: &str) {
    frees_without_a_message(server, name);
    server.ask::<()>(&["PUBLISH", &channel_of(name), "0"]);
}

fn is_subscribed(server: &Server, name: &str) {
    eventually("the waiter is subscribed", || server.numsub(&channel_of(name)) == 1);
}

/// Blocks until the waiters send no requests.
///
/// After that, only a message or a poll can wake a waiter.
fn wait_until_quiet(server: &Server) {
    await_unchanged("the waiters send no requests", QUIET, || Some(server.calls("evalsha")));
}

#[test]
fn a_message_wakes_the_first_waiter_of_a_client() -> Result<()> {
    let server = Server::start();
    for name in ["a", "b"] {
        let client = client(&server, NEVER);
        java_locks(&server, name);
        let lock = client.lock(name);
        let waiter = thread::spawn(move || lock.lock()?.unlock());
        is_subscribed(&server, name);
        wait_until_quiet(&server);
        java_unlocks(&server, name);
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn a_message_wakes_a_waiter_of_a_client_that_already_listens() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    for name in ["a", "b", "a", "a", "b"] {
        java_locks(&server, name);
        let lock = client.lock(name);
        let waiter = sleeping("old-channel", move || lock.lock()?.unlock());
        is_subscribed(&server, name);
        wait_until_quiet(&server);
        java_unlocks(&server, name);
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn waiters_that_start_at_once_for_many_locks_are_all_subscribed() -> Result<()> {
    let server = Server::start();
    for round in 0..3 {
        let client = client(&server, NEVER);
        let names: Vec<_> = (0..60).map(|number| format!("{round}:{number}")).collect();
        names.iter().for_each(|name| java_locks(&server, name));
        let wait = |name: &String| {
            let lock = client.lock(name);
            thread::spawn(move || lock.lock()?.unlock())
        };
        let waiters: Vec<_> = names.iter().map(wait).collect();
        eventually("all are subscribed", || server.channels().len() == names.len() + 1);
        wait_until_quiet(&server);
        names.iter().for_each(|name| java_unlocks(&server, name));
        waiters.into_iter().try_for_each(join)?;
        client.close();
    }
    Ok(())
}

#[test]
fn a_poll_makes_up_for_a_lost_message() -> Result<()> {
    let server = Server::start();
    let client = client(&server, SOON);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    frees_without_a_message(&server, "a");
    join(waiter)
}

#[test]
fn a_waiter_gets_the_lock_when_the_lease_of_another_process_expires() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    server.ask::<()>(&["PEXPIRE", "a", "400"]);
    let lock = client.lock("a");
    join(thread::spawn(move || lock.lock()?.unlock()))
}

#[test]
fn the_waiting_threads_of_a_process_share_requests_and_one_subscription() -> Result<()> {
    let server = Server::start();
    let poll_interval = Duration::from_millis(200);
    let client = client(&server, poll_interval);
    java_locks(&server, "a");
    let waiters: Vec<_> = (0..24)
        .map(|number| {
            let lock = client.lock("a");
            sleeping(&format!("contender-{number}"), move || lock.lock()?.unlock())
        })
        .collect();
    is_subscribed(&server, "a");

    let start = Instant::now();
    let before = server.calls("evalsha");
    eventually("the waiters send some requests", || server.calls("evalsha") >= before + 5);
    let requests = server.calls("evalsha") - before;
    // Each poll asks whether the lock is free, and who has it.
    let periods = start.elapsed().as_millis() / (poll_interval / 3).as_millis();
    assert!(u128::from(requests) <= periods + 2, "{requests} requests in {:?}", start.elapsed());
    assert_eq!(server.numsub(&channel_of("a")), 1);
    java_unlocks(&server, "a");
    waiters.into_iter().try_for_each(join)
}

#[test]
fn threads_get_the_lock_in_the_order_of_their_arrival() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let guard = client.lock("a").lock()?;
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..8)
        .map(|number| {
            let (lock, order) = (client.lock("a"), Arc::clone(&order));
            sleeping(&format!("in-order-{number}"), move || {
                let guard = lock.lock()?;
                order.lock().expect("no thread panics").push(number);
                guard.unlock()
            })
        })
        .collect();
    guard.unlock()?;
    waiters.into_iter().try_for_each(join)?;
    assert_eq!(*order.lock().expect("no thread panics"), (0..8).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_released_lock_goes_to_the_next_thread_of_the_process_without_a_poll() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    for dropped in [true, false] {
        let guard = client.lock("a").lock()?;
        let lock = client.lock("a");
        let next = sleeping("next-thread", move || lock.lock()?.unlock());
        if dropped {
            drop(guard)
        } else {
            guard.unlock()?
        }
        join(next)?;
    }
    Ok(())
}

#[test]
fn a_waiter_that_gives_up_leaves_no_hold_and_soon_no_subscription() -> Result<()> {
    let server = Server::start();
    let client = client(&server, SOON);
    java_locks(&server, "a");
    assert!(client.lock("a").try_lock_for(2 * SOON)?.is_none());
    eventually("the subscription ends", || server.numsub(&channel_of("a")) == 0);
    java_unlocks(&server, "a");
    assert!(server.keys().is_empty());
    client.lock("a").try_lock()?.expect("the lock is free and the queue is empty").unlock()?;

    java_locks(&server, "a");
    let lock = client.lock("a");
    let again = thread::spawn(move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    java_unlocks(&server, "a");
    join(again)
}

#[test]
fn a_long_wait_keeps_one_connection_and_one_subscription() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    wait_until_quiet(&server);
    // The listener gives up a connection that is silent for 3 s.
    let is_old =
        |peer: &Peer| peer.sub == 2 && peer.fields["age"].parse().is_ok_and(|age: u32| age >= 5);
    eventually("the connection is 5 s old", || server.clients().iter().any(is_old));
    java_unlocks(&server, "a");
    join(waiter)
}

#[test]
fn the_next_thread_gets_the_lock_after_the_head_of_the_queue_gives_up() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let head = sleeping("head-gives-up", move || Ok(lock.try_lock_for(10 * SOON)?.is_none()));
    let lock = client.lock("a");
    let next = sleeping("comes-after", move || lock.lock()?.unlock());
    assert!(join(head)?);
    wait_until_quiet(&server);
    java_unlocks(&server, "a");
    join(next)
}

#[test]
fn threads_behind_the_head_of_the_queue_give_up_at_their_own_deadlines() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let head = sleeping("patient-head", move || lock.lock()?.unlock());
    assert!(client.lock("a").try_lock_for(SOON)?.is_none());
    assert!(client.lock("a").try_lock_until(Instant::now() + SOON)?.is_none());
    assert!(client.lock("a").try_lock()?.is_none(), "another thread is in the queue");
    java_unlocks(&server, "a");
    join(head)
}

#[test]
fn deadlines_that_pass_during_a_release_leave_no_hold() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let run = |seed: u64| {
        let lock = client.lock("a");
        thread::spawn(move || {
            for turn in 0..60 {
                let wait = Duration::from_micros((seed * 977 + turn * 461) % 3000);
                if let Some(guard) = or_too_late(lock.try_lock_for(wait))? {
                    thread::yield_now();
                    if turn % 2 == 0 { drop(guard) } else { guard.unlock()? }
                }
            }
            Result::Ok(())
        })
    };
    let threads: Vec<_> = (0..8).map(run).collect();
    threads.into_iter().try_for_each(join)?;
    eventually("the lock is free", || server.keys().is_empty());
    client.lock("a").try_lock()?.expect("the queue is empty").unlock()
}

#[test]
fn a_cancelled_token_ends_a_call_before_its_first_request() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let token = CancelToken::new();
    let lock = client.lock("a").with_cancel(&token);
    let guard = lock.lock()?;
    token.clone().cancel();
    assert!(guard.is_held(), "a cancellation ends no hold");
    server.reset_stats();
    assert!(lock.lock().is_err_and(|e| e.is_cancelled()));
    assert!(lock.try_lock().is_err_and(|e| e.is_cancelled()));
    assert!(lock.try_lock_for(NEVER).is_err_and(|e| e.is_cancelled()));
    assert!(lock.lock_owned().is_err_and(|e| e.is_cancelled()));
    assert!(lock.try_lock_owned().is_err_and(|e| e.is_cancelled()));
    assert_eq!(server.calls("evalsha"), 0);
    drop(client.lock("a").lock()?); // a handle without the token is not cancelled
    guard.unlock()
}

#[test]
fn a_cancellation_ends_the_wait_of_the_head_and_of_a_thread_behind_it() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let tokens = [CancelToken::new(), CancelToken::new()];
    let waits = |name: &'static str, token: &CancelToken| {
        let lock = client.lock("a").with_cancel(token);
        sleeping(name, move || {
            lock.lock().map(drop).expect_err("the wait is cancelled").is_cancelled()
        })
    };
    let head = waits("cancel-head", &tokens[0]);
    let behind = waits("cancel-behind", &tokens[1]);
    let lock = client.lock("a");
    let last = sleeping("cancel-last", move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    wait_until_quiet(&server);

    tokens[1].cancel();
    assert!(join(behind));
    assert!(!head.is_finished() && !last.is_finished(), "the other threads still wait");
    tokens[0].cancel();
    assert!(join(head));
    wait_until_quiet(&server);
    java_unlocks(&server, "a");
    join(last)
}

#[test]
fn a_cancellation_ends_the_wait_for_a_thread_of_the_same_process() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let guard = client.lock("a").lock()?;
    let token = CancelToken::new();
    let lock = client.lock("a").with_cancel(&token);
    let waiter = sleeping("cancel-local", move || lock.lock_owned().map(drop));
    token.cancel();
    assert!(join(waiter).is_err_and(|e| e.is_cancelled()));
    guard.unlock()
}

#[test]
fn a_lost_hold_does_not_block_the_other_threads_of_its_process() -> Result<()> {
    let server = Server::start();
    let client = client(&server, SOON);
    for by_force in [true, false] {
        let guard = client.lock("a").lock()?;
        let lock = client.lock("a");
        let next = sleeping("after-loss", move || lock.lock()?.unlock());
        if by_force {
            assert!(Client::open(server.url())?.lock("a").force_unlock()?);
        } else {
            frees_without_a_message(&server, "a");
        }
        join(next)?;
        assert!(!guard.is_held(), "another thread had the lock");
        assert!(guard.unlock().is_err_and(|e| e.is_lost()));
    }
    Ok(())
}

#[test]
fn the_next_thread_gets_the_lock_of_an_expired_hold_whose_guard_lives() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let guard = client.lock("a").with_lease(3 * SOON).lock()?;
    let lock = client.lock("a");
    let next = thread::spawn(move || lock.lock()?.unlock());
    join(next)?;
    assert!(!guard.is_held());
    assert!(guard.unlock().is_err_and(|e| e.is_lost()));
    Ok(())
}

#[test]
fn force_unlock_by_the_client_of_the_holder_wakes_the_next_thread_at_once() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let guard = client.lock("a").lock()?;
    let lock = client.lock("a");
    let next = sleeping("after-force", move || lock.lock()?.unlock());
    assert!(client.lock("a").force_unlock()?);
    join(next)?;
    assert!(!guard.is_held());
    Ok(())
}

#[test]
fn many_threads_of_several_clients_lose_no_increment() -> Result<()> {
    let server = Server::start();
    let clients: Vec<_> = (0..3).map(|_| client(&server, NEVER)).collect();
    let count = |client: Client| {
        let mut connection = server.connection();
        thread::spawn(move || {
            for _ in 0..25 {
                let guard = client.lock("a").lock()?;
                let value: Option<u64> =
                    redis::cmd("GET").arg("n").query(&mut connection).expect("GET");
                let next = value.unwrap_or(0) + 1;
                redis::cmd("SET").arg("n").arg(next).exec(&mut connection).expect("SET");
                guard.unlock()?;
            }
            Result::Ok(())
        })
    };
    let threads: Vec<_> = (0..18).map(|number| count(clients[number % 3].clone())).collect();
    threads.into_iter().try_for_each(join)?;
    assert_eq!(server.ask::<u64>(&["GET", "n"]), 18 * 25);
    assert_eq!(server.keys(), ["n"]);
    Ok(())
}
