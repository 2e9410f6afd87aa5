//! Waiting: the line inside one process, messages, the poll interval, and every way
//! in which a wait ends without the lock.

use crate::harness::{Peer, Server, eventually, join, sleeping};
use leasehold::{CancelToken, Client, Result};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval that no test lives to see: only messages can explain a success.
const NEVER: Duration = Duration::from_secs(60);
/// One that is seen soon.
const SOON: Duration = Duration::from_millis(100);
/// How long nothing happens before nothing will, in looks a millisecond or more apart.
const LOOKS: u32 = 15;

/// A client with leases so long that neither their end nor their renewal explains
/// anything.
fn client(server: &Server, poll_interval: Duration) -> Client {
    let builder = Client::builder().single(server.url()).poll_interval(poll_interval);
    builder.watchdog_timeout(10 * NEVER).build().expect("the server answers")
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Takes a lock as a Java service does.
fn java_locks(server: &Server, name: &str) {
    server.ask::<()>(&["HSET", name, "6f0829ed-bfd3-4e6f-bba3-6f3d66cd176c:57", "1"]);
    server.ask::<()>(&["PEXPIRE", name, "600000"]);
}

/// Frees it without a word, as one does whose message gets lost.
fn frees_in_silence(server: &Server, name: &str) {
    assert_eq!(server.ask::<u32>(&["DEL", name]), 1);
}

fn java_unlocks(server: &Server, name: &str) {
    frees_in_silence(server, name);
    server.ask::<()>(&["PUBLISH", &channel(name), "0"]);
}

fn is_subscribed(server: &Server, name: &str) {
    eventually("the waiter is subscribed", || server.numsub(&channel(name)) == 1);
}

/// Returns when the waiters have asked all that they will before a message comes or
/// their poll interval: from here on only a message can wake them.
fn ask_no_more(server: &Server) {
    let (mut last, mut looks) = (0, 0);
    eventually("the waiters ask no more", || {
        let asked = server.calls("evalsha");
        looks = if asked == last { looks + 1 } else { 0 };
        last = asked;
        looks == LOOKS
    });
}

#[test]
fn a_message_wakes_a_waiter_that_has_never_waited_before() -> Result<()> {
    let server = Server::start();
    for name in ["a", "b"] {
        let client = client(&server, NEVER);
        java_locks(&server, name);
        let lock = client.lock(name);
        let waiter = thread::spawn(move || lock.lock()?.unlock());
        is_subscribed(&server, name);
        ask_no_more(&server);
        java_unlocks(&server, name);
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn a_message_wakes_a_waiter_of_a_client_that_listens_already() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    for name in ["a", "b", "a", "a", "b"] {
        java_locks(&server, name);
        let lock = client.lock(name);
        let waiter = sleeping("old-channel", move || lock.lock()?.unlock());
        is_subscribed(&server, name);
        ask_no_more(&server);
        java_unlocks(&server, name);
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn waiters_that_come_all_at_once_for_many_locks_are_all_subscribed_to() -> Result<()> {
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
        ask_no_more(&server);
        names.iter().for_each(|name| java_unlocks(&server, name));
        waiters.into_iter().try_for_each(join)?;
        client.close();
    }
    Ok(())
}

#[test]
fn a_lost_message_is_found_out_by_the_poll_interval() -> Result<()> {
    let server = Server::start();
    let client = client(&server, SOON);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    frees_in_silence(&server, "a");
    join(waiter)
}

#[test]
fn a_waiter_gets_in_when_the_lease_of_another_process_runs_out() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    server.ask::<()>(&["PEXPIRE", "a", "400"]);
    let lock = client.lock("a");
    join(thread::spawn(move || lock.lock()?.unlock()))
}

#[test]
fn the_threads_of_a_process_wait_as_one_contender_with_one_subscription() -> Result<()> {
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
    eventually("they have asked some times", || server.calls("evalsha") >= before + 5);
    let asked = server.calls("evalsha") - before;
    let periods = start.elapsed().as_millis() / (poll_interval / 2).as_millis();
    assert!(u128::from(asked) <= periods + 2, "{asked} questions in {:?}", start.elapsed());
    assert_eq!(server.numsub(&channel("a")), 1);
    java_unlocks(&server, "a");
    waiters.into_iter().try_for_each(join)
}

#[test]
fn threads_get_the_lock_in_the_order_in_which_they_came() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let guard = client.lock("a").lock()?;
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..8)
        .map(|number| {
            let (lock, order) = (client.lock("a"), Arc::clone(&order));
            sleeping(&format!("in-order-{number}"), move || {
                let guard = lock.lock()?;
                order.lock().expect("nobody panics").push(number);
                guard.unlock()
            })
        })
        .collect();
    guard.unlock()?;
    waiters.into_iter().try_for_each(join)?;
    assert_eq!(*order.lock().expect("nobody panics"), (0..8).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_released_lock_goes_to_the_next_thread_of_the_process_without_a_poll() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    for dropped in [true, false] {
        let guard = client.lock("a").lock()?;
        let lock = client.lock("a");
        let next = sleeping("next-of-us", move || lock.lock()?.unlock());
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
fn who_gives_up_leaves_neither_a_hold_nor_for_long_a_subscription() -> Result<()> {
    let server = Server::start();
    let client = client(&server, SOON);
    java_locks(&server, "a");
    assert!(client.lock("a").try_lock_for(2 * SOON)?.is_none());
    eventually("it is not subscribed", || server.numsub(&channel("a")) == 0);
    java_unlocks(&server, "a");
    assert!(server.keys().is_empty());
    client.lock("a").try_lock()?.expect("it is free, and nobody stands in line").unlock()?;

    java_locks(&server, "a");
    let lock = client.lock("a");
    let again = thread::spawn(move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    java_unlocks(&server, "a");
    join(again)
}

#[test]
fn a_long_wait_keeps_its_one_connection_and_subscription() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    ask_no_more(&server);
    // The listener gives a connection up that is silent for 3 s.
    let is_old =
        |peer: &Peer| peer.sub == 2 && peer.fields["age"].parse().is_ok_and(|age: u32| age >= 5);
    eventually("it waits for long", || server.clients().iter().any(is_old));
    java_unlocks(&server, "a");
    join(waiter)
}

#[test]
fn the_next_in_line_gets_in_after_a_front_that_gave_up() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let front = sleeping("front-gives-up", move || Ok(lock.try_lock_for(10 * SOON)?.is_none()));
    let lock = client.lock("a");
    let next = sleeping("comes-after", move || lock.lock()?.unlock());
    assert!(join(front)?);
    ask_no_more(&server);
    java_unlocks(&server, "a");
    join(next)
}

#[test]
fn threads_behind_the_front_give_up_at_their_own_deadlines() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let lock = client.lock("a");
    let front = sleeping("patient-front", move || lock.lock()?.unlock());
    assert!(client.lock("a").try_lock_for(SOON)?.is_none());
    assert!(client.lock("a").try_lock_until(Instant::now() + SOON)?.is_none());
    assert!(client.lock("a").try_lock()?.is_none(), "somebody stands in line");
    java_unlocks(&server, "a");
    join(front)
}

#[test]
fn deadlines_that_end_in_the_moment_of_the_release_leave_no_hold_behind() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let run = |seed: u64| {
        let lock = client.lock("a");
        thread::spawn(move || {
            for turn in 0..60 {
                let wait = Duration::from_micros((seed * 977 + turn * 461) % 3000);
                if let Some(guard) = lock.try_lock_for(wait)? {
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
    client.lock("a").try_lock()?.expect("nobody stands in line").unlock()
}

#[test]
fn a_cancelled_token_ends_a_call_before_it_asks() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    let token = CancelToken::new();
    let lock = client.lock("a").with_cancel(&token);
    let guard = lock.lock()?;
    token.clone().cancel();
    assert!(guard.is_held(), "what is held stays held");
    server.reset_stats();
    assert!(lock.lock().is_err_and(|e| e.is_cancelled()));
    assert!(lock.try_lock().is_err_and(|e| e.is_cancelled()));
    assert!(lock.try_lock_for(NEVER).is_err_and(|e| e.is_cancelled()));
    assert!(lock.lock_owned().is_err_and(|e| e.is_cancelled()));
    assert!(lock.try_lock_owned().is_err_and(|e| e.is_cancelled()));
    assert_eq!(server.calls("evalsha"), 0);
    drop(client.lock("a").lock()?); // a handle without the token goes on as ever
    guard.unlock()
}

#[test]
fn cancelling_ends_the_wait_of_the_front_and_of_those_behind_it() -> Result<()> {
    let server = Server::start();
    let client = client(&server, NEVER);
    java_locks(&server, "a");
    let tokens = [CancelToken::new(), CancelToken::new()];
    let waits = |name: &'static str, token: &CancelToken| {
        let lock = client.lock("a").with_cancel(token);
        sleeping(name, move || lock.lock().map(drop).expect_err("it is cancelled").is_cancelled())
    };
    let front = waits("cancel-front", &tokens[0]);
    let behind = waits("cancel-behind", &tokens[1]);
    let lock = client.lock("a");
    let last = sleeping("cancel-last", move || lock.lock()?.unlock());
    is_subscribed(&server, "a");
    ask_no_more(&server);

    tokens[1].cancel();
    assert!(join(behind));
    assert!(!front.is_finished() && !last.is_finished(), "others wait on");
    tokens[0].cancel();
    assert!(join(front));
    ask_no_more(&server);
    java_unlocks(&server, "a");
    join(last)
}

#[test]
fn cancelling_ends_the_wait_for_a_thread_of_the_same_process() -> Result<()> {
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
fn a_hold_that_was_taken_away_does_not_keep_its_own_process_out() -> Result<()> {
    let server = Server::start();
    let client = client(&server, SOON);
    for by_force in [true, false] {
        let guard = client.lock("a").lock()?;
        let lock = client.lock("a");
        let next = sleeping("after-theft", move || lock.lock()?.unlock());
        if by_force {
            assert!(Client::open(server.url())?.lock("a").force_unlock()?);
        } else {
            frees_in_silence(&server, "a");
        }
        join(next)?;
        assert!(!guard.is_held(), "another thread had the lock");
        assert!(guard.unlock().is_err_and(|e| e.is_lost()));
    }
    Ok(())
}

#[test]
fn a_hold_that_is_over_opens_the_gate_while_its_guard_lives() -> Result<()> {
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
fn force_unlock_by_the_holders_own_client_opens_the_gate_at_once() -> Result<()> {
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
