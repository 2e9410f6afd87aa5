//! `on_lost`: a closure that a loss calls once, in each combination with the ends of a hold.

use crate::events::{Blocking, logged, start_log};
use crate::harness::faults::BRISK;
use crate::harness::{Server, eventually, join, pttl, sleeping};
use leasehold::kind::LockKind;
use leasehold::{Client, Error, Lock, LostReason, MultiLock, RedLock, Result};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(200);
const NO_CALL: [u32; 0] = [];

fn client(server: &Server, watchdog: Duration) -> Client {
    let builder = Client::builder().single(server.url()).watchdog_timeout(watchdog);
    builder.local_handoff(512, MINUTE).build().expect("the server answers")
}

/// The calls of closures that a test has registered.
struct Calls(Sender<u32>, Receiver<u32>);

impl Calls {
    fn new() -> Calls {
        let (sender, receiver) = mpsc::channel();
        Calls(sender, receiver)
    }

    /// Returns a closure that sends `number` when it is called.
    fn of(&self, number: u32) -> impl FnOnce() + Send + 'static {
        let sender = self.0.clone();
        move || {
            assert_eq!(thread::current().name(), Some("leasehold-events"));
            sender.send(number).expect("the test receives it");
        }
    }

    #[track_caller]
    fn next(&self) -> u32 {
        self.1.recv_timeout(MINUTE).expect("the closure is called")
    }

    /// Returns the numbers of all further calls, once all closures are called or dropped.
    fn rest(self) -> Vec<u32> {
        let Calls(sender, receiver) = self;
        drop(sender);
        let mut calls = Vec::new();
        loop {
            match receiver.recv_timeout(MINUTE) {
                Ok(number) => calls.push(number),
                Err(RecvTimeoutError::Disconnected) => return calls,
                Err(RecvTimeoutError::Timeout) => panic!("a closure is not dropped"),
            }
        }
    }
}

#[test]
fn a_lease_that_ends_calls_the_closure_without_a_query() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (lock, calls) = (client.lock("a").with_lease(SOON), Calls::new());
    let guard = lock.lock()?;
    guard.on_lost(calls.of(1));
    assert_eq!(calls.next(), 1);
    let owned = client.lock("b").with_lease(SOON).lock_owned()?;
    owned.on_lost(calls.of(2));
    assert_eq!(calls.next(), 2);
    drop((guard, owned));
    assert_eq!(calls.rest(), NO_CALL, "each is called once");
    Ok(())
}

#[test]
fn a_renewal_that_finds_the_hold_gone_calls_the_closure() -> Result<()> {
    let server = Server::start();
    let client = client(&server, BRISK);
    let (guard, calls) = (client.lock("a").lock()?, Calls::new());
    guard.on_lost(calls.of(1));
    server.ask::<()>(&["DEL", "a"]);
    assert_eq!(calls.rest(), [1]);
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    Ok(())
}

#[test]
fn a_hold_that_ends_after_its_limit_calls_the_closure() -> Result<()> {
    let server = Server::start();
    let client = client(&server, BRISK);
    let (lock, calls) = (client.lock("a").with_max_hold(SOON), Calls::new());
    let guard = lock.lock()?;
    guard.on_lost(calls.of(1));
    assert_eq!(calls.rest(), [1]);
    assert_eq!(guard.check().expect_err("lost").lost_reason(), Some(LostReason::HeldTooLong));
    Ok(())
}

#[test]
fn the_reply_to_a_release_calls_the_closure_if_it_reveals_the_loss() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let calls = Calls::new();
    let guard = client.lock("a").lock()?;
    guard.on_lost(calls.of(1));
    server.ask::<()>(&["DEL", "a"]);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert_eq!(calls.next(), 1);
    let guard = client.lock("a").lock_owned()?;
    guard.on_lost(calls.of(2));
    server.ask::<()>(&["DEL", "a"]);
    drop(guard);
    assert_eq!(calls.next(), 2);
    assert_eq!(calls.rest(), NO_CALL);
    Ok(())
}

fn is_called_for<K: LockKind>(lock: &Lock<K>) -> Result<()> {
    let calls = Calls::new();
    let guard = lock.lock()?;
    guard.on_lost(calls.of(1));
    assert!(lock.force_unlock()?);
    assert_eq!(calls.rest(), [1], "{lock:?}");
    drop(guard);

    let calls = Calls::new();
    let guard = lock.lock_owned()?;
    guard.on_lost(calls.of(1));
    guard.unlock()?;
    assert_eq!(calls.rest(), NO_CALL, "{lock:?}");
    Ok(())
}

#[test]
fn holds_of_all_kinds_call_the_closure_at_a_loss_and_drop_it_at_a_release() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    is_called_for(&client.lock("a"))?;
    is_called_for(&client.lock("a").with_holder("tx"))?;
    is_called_for(&client.fair_lock("a"))?;
    is_called_for(&client.fenced_lock("a"))?;
    is_called_for(&client.queue_lock("a"))?;
    is_called_for(&client.spin_lock("a"))?;
    is_called_for(&client.rw_lock("a").read_lock())?;
    is_called_for(&client.rw_lock("a").write_lock())
}

#[test]
fn a_closure_registered_after_the_loss_is_called_at_once() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (guard, calls) = (client.lock("a").lock()?, Calls::new());
    client.lock("a").force_unlock()?;
    for number in 1..=3 {
        guard.on_lost(calls.of(number));
    }
    assert_eq!([(); 3].map(|()| calls.next()), [1, 2, 3]);

    // The closed client notices no loss; the registration does.
    let expired = client.lock("b").with_lease(SOON).lock()?;
    client.close();
    eventually("the lease ends", || expired.remaining().is_zero());
    expired.on_lost(calls.of(4));
    assert_eq!(calls.next(), 4);
    Ok(())
}

#[test]
fn a_query_after_the_close_of_the_client_notices_the_loss() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (guard, calls) = (client.lock("a").with_lease(SOON).lock()?, Calls::new());
    client.close();
    guard.on_lost(calls.of(1));
    eventually("the lease ends", || !guard.is_held());
    assert_eq!(calls.rest(), [1]);
    Ok(())
}

#[test]
fn a_closure_of_a_nested_guard_belongs_to_the_hold() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (lock, calls) = (client.lock("a"), Calls::new());
    let outer = lock.lock()?;
    let nested = lock.lock()?;
    nested.on_lost(calls.of(1));
    outer.on_lost(calls.of(2));
    nested.unlock()?;
    lock.force_unlock()?;
    assert_eq!(calls.rest(), [1, 2]);
    Ok(())
}

#[test]
fn a_hand_off_drops_the_closures_of_the_former_holder() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (before, after) = (Calls::new(), Calls::new());
    let guard = client.lock("a").lock()?;
    guard.on_lost(before.of(1));
    let (lock, of_receiver) = (client.lock("a"), after.of(2));
    let waiter = sleeping("receiver", move || {
        let guard = lock.lock()?;
        guard.on_lost(of_receiver);
        lock.force_unlock().map(|_| drop(guard))
    });
    guard.unlock()?;
    join(waiter)?;
    assert_eq!(after.rest(), [2]);
    assert_eq!(before.rest(), NO_CALL);
    assert_eq!(client.stats().passed_locally(), 1);
    Ok(())
}

#[test]
fn a_detached_hold_keeps_its_closures() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (lost, released) = (Calls::new(), Calls::new());
    let guard = client.lock("a").with_lease(SOON).lock()?;
    guard.on_lost(lost.of(1));
    guard.detach();
    assert_eq!(lost.rest(), [1]);
    let guard = client.lock("b").lock_owned()?;
    guard.on_lost(released.of(2));
    guard.detach();
    client.lock("b").unlock()?;
    assert_eq!(released.rest(), NO_CALL);
    Ok(())
}

#[test]
fn a_closure_that_panics_is_logged_and_the_next_is_called() -> Result<()> {
    start_log();
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (guard, calls) = (client.lock("panicking closure").lock()?, Calls::new());
    guard.on_lost(calls.of(1));
    guard.on_lost(|| panic!("the panic of this closure"));
    guard.on_lost(calls.of(2));
    client.lock("panicking closure").force_unlock()?;
    assert_eq!(calls.rest(), [1, 2]);
    let panics = || logged(&["ERROR", "calling a closure of `on_lost`", "panicking closure"]);
    eventually("the panic is logged", || panics() == 1);
    Ok(())
}

#[test]
fn a_full_queue_of_events_drops_no_closure() -> Result<()> {
    let server = Server::start();
    let (frees, freed) = mpsc::channel();
    let (blocks, blocked) = mpsc::channel();
    let builder = Client::builder().single(server.url());
    let client = builder.events(Blocking(Mutex::new(freed), blocks)).build()?;
    let (guard, calls) = (client.lock("a").lock()?, Calls::new());
    blocked.recv_timeout(MINUTE).expect("the callback is called");
    guard.on_lost(calls.of(1));
    // Two events each: more than the queue of events holds.
    for _ in 0..2500 {
        client.lock("many times").lock()?.unlock()?;
    }
    client.lock("a").force_unlock()?;
    drop(frees);
    assert_eq!(calls.rest(), [1]);
    Ok(())
}

#[test]
fn a_closure_and_its_drop_may_use_the_lock_and_close_the_client() -> Result<()> {
    /// Takes the lock when it is dropped.
    struct LocksAtDrop(Lock, Sender<Result<()>>);
    impl Drop for LocksAtDrop {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.lock().and_then(|guard| guard.unlock()));
        }
    }
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (lock, (sender, done)) = (client.lock("a"), mpsc::channel());
    let locks = || LocksAtDrop(lock.clone(), sender.clone());
    let next = || done.recv_timeout(MINUTE).expect("the value is dropped");

    let (guard, value) = (lock.lock()?, locks());
    guard.on_lost(move || drop(value));
    guard.unlock()?;
    next()?;
    let (guard, value, behind) = (lock.lock()?, locks(), lock.clone());
    guard.on_lost(move || drop(value));
    let waiter = sleeping("receiver", move || behind.lock().and_then(|guard| guard.unlock()));
    drop(guard); // hands the hold off
    join(waiter)?;
    next()?;
    let (guard, value) = (lock.lock()?, locks());
    guard.on_lost(move || {
        drop(value);
        client.close();
    });
    lock.force_unlock()?;
    drop(guard);
    next()?;
    eventually("the client is closed", || lock.lock().is_err_and(|error| error.is_closed()));
    Ok(())
}

#[test]
fn the_first_loss_of_a_member_calls_the_closure_of_a_multi_lock_once() -> Result<()> {
    let servers = [(); 2].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| client(server, MINUTE));
    let multi = MultiLock::new(["a", "b"].into_iter().zip(&clients).map(|(n, c)| c.lock(n)));
    let calls = Calls::new();
    let guard = multi.lock()?;
    for number in 1..=2 {
        guard.on_lost(calls.of(number));
    }
    clients[1].lock("b").force_unlock()?;
    assert_eq!([calls.next(), calls.next()], [1, 2]);
    clients[0].lock("a").force_unlock()?;
    guard.on_lost(calls.of(3));
    drop(guard);
    assert_eq!(calls.rest(), [3]);

    let calls = Calls::new();
    let guard = multi.lock_owned()?;
    guard.on_lost(calls.of(4));
    guard.unlock()?;
    assert_eq!(calls.rest(), NO_CALL);
    Ok(())
}

/// The majority of a red lock on three servers is lost without a query by the program.
#[test]
fn the_loss_of_the_majority_calls_the_closure_of_a_red_lock_once() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| client(server, MINUTE));
    let red = RedLock::new(clients.clone(), "a");
    let calls = Calls::new();
    let guard = red.lock()?;
    guard.on_lost(calls.of(1));
    // The hold gets the same extension on a server whose grant comes late.
    guard.extend(2 * MINUTE)?;
    let is_long = |server: &Server| pttl(server, "a") > 60_000;
    eventually("the hold counts on all servers", || servers.iter().all(is_long));
    guard.on_lost(calls.of(2));
    clients[0].lock("a").force_unlock()?;
    let (marker, marked) = (clients[0].lock("marker").lock()?, Calls::new());
    marker.on_lost(marked.of(0));
    clients[0].lock("marker").force_unlock()?;
    assert_eq!(marked.next(), 0, "the thread has done what it had to do before");
    assert!(guard.is_held() && calls.1.try_recv().is_err());
    clients[1].lock("a").force_unlock()?;
    assert_eq!([calls.next(), calls.next()], [1, 2]);
    guard.on_lost(calls.of(3));
    assert_eq!(calls.next(), 3);
    assert!(guard.check().as_ref().is_err_and(Error::is_lost));
    drop(guard);

    let released = Calls::new();
    let guard = red.lock_owned()?;
    guard.on_lost(released.of(4));
    guard.unlock()?;
    assert_eq!(released.rest(), NO_CALL);
    assert_eq!(calls.rest(), NO_CALL);
    Ok(())
}

#[test]
fn a_red_lock_with_expired_leases_calls_its_closure() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| client(server, MINUTE));
    let red = RedLock::new(clients, "a").with_lease(SOON);
    let calls = Calls::new();
    let guard = red.lock_owned()?;
    guard.on_lost(calls.of(1));
    guard.detach();
    assert_eq!(calls.rest(), [1]);
    Ok(())
}
