//! Detached and forgotten guards: which threads end their holds, and when renewal ends.

use crate::harness::faults::{BRISK, watched};
use crate::harness::{Server, eventually, exists, join};
use leasehold::{Client, Guard, OwnedGuard, Result};
use std::cell::RefCell;
use std::mem;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Runs `act` on another thread and returns its result.
fn on_other_thread<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    join(thread::spawn(act))
}

#[test]
fn a_thread_can_unlock_its_detached_hold_once() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    assert!(lock.unlock().is_err_and(|e| e.is_not_held()));
    lock.lock()?.detach();
    assert!(exists(&server, "a") && lock.is_held() && lock.hold_count() == 1);
    client.lock("a").unlock()?;
    assert!(!exists(&server, "a") && !lock.is_held());
    assert!(lock.unlock().is_err_and(|e| e.is_not_held()));
    Ok(())
}

#[test]
fn unlock_of_a_lock_does_not_end_a_hold_with_a_guard() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let guard = lock.lock()?;
    assert!(lock.unlock().is_err_and(|e| e.is_not_held()));
    assert!(guard.is_held() && exists(&server, "a"));
    guard.unlock()?;
    let owned = lock.lock_owned()?;
    assert!(lock.unlock().is_err_and(|e| e.is_not_held()));
    owned.unlock()
}

#[test]
fn detached_shares_are_counted_beside_guards() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let (first, second, third) = (lock.lock()?, lock.lock()?, lock.lock()?);
    first.detach();
    second.detach();
    assert_eq!(lock.hold_count(), 3);
    lock.unlock()?;
    assert_eq!(lock.hold_count(), 2);
    third.unlock()?;
    assert!(exists(&server, "a") && lock.hold_count() == 1, "a detached share is left");
    let fourth = lock.lock()?;
    lock.unlock()?;
    assert!(lock.unlock().is_err_and(|e| e.is_not_held()), "only a guard is left");
    assert!(exists(&server, "a") && fourth.is_held());
    fourth.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn no_other_thread_can_unlock_the_detached_hold_of_a_live_thread() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    lock.lock()?.detach();
    let other = lock.clone();
    let refused =
        on_other_thread(move || (other.unlock(), other.try_lock().map(|got| got.is_some())));
    assert!(refused.0.is_err_and(|e| e.is_not_held()));
    assert!(!refused.1?);
    assert!(exists(&server, "a"));
    lock.unlock()
}

#[test]
fn any_thread_can_unlock_a_detached_owned_hold() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    lock.lock_owned()?.detach();
    let other = lock.clone();
    on_other_thread(move || other.unlock())?;
    assert!(!exists(&server, "a"));
    assert!(lock.unlock().is_err_and(|e| e.is_not_held()));
    lock.lock_owned()?.detach();
    lock.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn one_unlock_by_any_thread_ends_the_hold_of_an_ended_thread() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    for forgotten in [false, true] {
        let lock = client.lock("a");
        on_other_thread(move || {
            lock.lock()?.detach();
            lock.lock()?.detach();
            if forgotten {
                mem::forget(lock.lock()?);
            }
            Result::Ok(())
        })?;
        assert!(exists(&server, "a"));
        client.lock("a").unlock()?;
        assert!(!exists(&server, "a"));
        assert!(client.lock("a").unlock().is_err_and(|e| e.is_not_held()));
    }
    Ok(())
}

#[test]
fn another_client_cannot_unlock_a_detached_hold() -> Result<()> {
    let server = Server::start();
    let (client, other) = (Client::open(server.url())?, Client::open(server.url())?);
    client.lock("a").lock_owned()?.detach();
    assert!(other.lock("a").unlock().is_err_and(|e| e.is_not_held()));
    assert!(client.lock("b").unlock().is_err_and(|e| e.is_not_held()));
    client.lock("a").unlock()
}

#[test]
fn unlock_of_a_lost_detached_hold_reports_the_loss() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    lock.lock()?.detach();
    assert!(lock.force_unlock()?);
    assert!(lock.lock().is_err_and(|e| e.is_lost()), "this thread still has the lost hold");
    assert!(lock.unlock().is_err_and(|e| e.is_lost()));
    lock.lock()?.unlock()
}

#[test]
fn expired_detached_owned_holds_are_removed() -> Result<()> {
    let server = Server::start();
    let lock = Client::open(server.url())?.lock("a").with_lease(Duration::from_millis(100));
    for _ in 0..20 {
        lock.try_lock_for_owned(MINUTE)?.expect("the previous hold has expired").detach();
    }
    let longer = lock.clone().with_lease(MINUTE);
    longer.try_lock_for_owned(MINUTE)?.expect("the previous hold has expired").unlock()?;
    assert!(lock.unlock().is_err_and(|error| error.is_not_held()), "the expired holds are removed");
    Ok(())
}

#[test]
fn the_hold_of_an_ended_thread_is_not_renewed_and_others_get_the_lock() -> Result<()> {
    let server = Server::start();
    let (client, _renewals) = watched(&server, BRISK);
    for forgotten in [false, true] {
        let lock = client.lock("a");
        on_other_thread(move || {
            let guard = lock.lock()?;
            if forgotten {
                mem::forget(guard)
            } else {
                guard.detach()
            }
            Result::Ok(())
        })?;
        eventually("the lease expires", || !exists(&server, "a"));
        client.lock("a").try_lock()?.expect("the lock is free").unlock()?;
    }
    Ok(())
}

#[test]
fn a_waiter_gets_the_lock_when_the_lease_of_an_ended_thread_expires() -> Result<()> {
    let server = Server::start();
    let (client, _renewals) = watched(&server, BRISK);
    let lock = client.lock("a");
    on_other_thread(move || lock.lock().map(|guard| guard.detach()))?;
    client.lock("a").try_lock_for(MINUTE)?.expect("the lease expires").unlock()
}

#[test]
fn holds_of_detached_and_forgotten_guards_are_renewed_while_their_thread_lives() -> Result<()> {
    let server = Server::start();
    let (client, renewals) = watched(&server, BRISK);
    let (detached, forgotten) = (client.lock("detached"), client.lock("forgotten"));
    detached.lock()?.detach();
    mem::forget(forgotten.lock()?);
    renewals.renewed(6);
    assert!(detached.is_held() && forgotten.is_held());
    assert!(exists(&server, "detached") && exists(&server, "forgotten"));
    assert!(
        forgotten.unlock().is_err_and(|e| e.is_not_held()),
        "a forgotten guard counts as a live guard"
    );
    detached.unlock()?;
    assert!(!exists(&server, "detached"));
    Ok(())
}

#[test]
fn a_detached_owned_hold_is_renewed_after_the_end_of_its_thread() -> Result<()> {
    let server = Server::start();
    let (client, renewals) = watched(&server, BRISK);
    let lock = client.lock("a");
    on_other_thread(move || lock.lock_owned().map(|guard| guard.detach()))?;
    renewals.renewed(4);
    assert!(exists(&server, "a"));
    client.lock("a").unlock()
}

#[test]
fn a_guard_is_released_while_its_thread_unwinds() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let (lock, owned) = (client.lock("a"), client.lock("b"));
    let unwinds = thread::spawn(move || {
        let _guards =
            (lock.lock().expect("the lock is free"), lock.lock().expect("the thread re-enters"));
        let _owned = owned.lock_owned().expect("the lock is free");
        panic!("the panic of this test");
    });
    assert!(unwinds.join().is_err());
    client.lock("a").try_lock_for(MINUTE)?.expect("the hold is released").unlock()?;
    eventually("all locks are free", || server.keys().is_empty());
    Ok(())
}

#[test]
fn a_guard_in_a_thread_local_is_released_at_the_end_of_its_thread() -> Result<()> {
    thread_local!(static KEPT: RefCell<Vec<(Guard, OwnedGuard)>> = const { RefCell::new(vec![]) });
    let server = Server::start();
    let client = Client::open(server.url())?;
    let (lock, owned) = (client.lock("a"), client.lock("b"));
    let keep = move |early: bool| {
        // The order of destruction is not defined: the thread-local values of the library may
        // be destroyed before or after this one.
        if early {
            KEPT.with_borrow(Vec::len);
        }
        let guards = (lock.lock()?, owned.lock_owned()?);
        KEPT.with_borrow_mut(|kept| kept.push(guards));
        Result::Ok(())
    };
    for early in [true, false] {
        let keep = keep.clone();
        on_other_thread(move || keep(early))?;
        client.lock("a").try_lock_for(MINUTE)?.expect("the hold is released").unlock()?;
        eventually("all locks are free", || server.keys().is_empty());
    }
    Ok(())
}

#[test]
fn a_thread_may_lock_while_its_locals_are_destroyed() -> Result<()> {
    /// Locks in its destructor.
    struct Late(Option<(Client, Sender<Result<()>>)>);
    impl Drop for Late {
        fn drop(&mut self) {
            let (client, sender) = self.0.take().expect("a single drop");
            let locked = client.lock("a").lock().and_then(|guard| guard.unlock());
            sender.send(locked).expect("the test listens");
        }
    }
    thread_local!(static LATE: RefCell<Vec<Late>> = const { RefCell::new(vec![]) });
    let server = Server::start();
    let client = Client::open(server.url())?;
    for early in [true, false] {
        let (sender, locked) = mpsc::channel();
        let client = client.clone();
        on_other_thread(move || {
            if early {
                LATE.with_borrow(Vec::len);
            }
            drop(client.lock("b").lock()?);
            LATE.with_borrow_mut(|late| late.push(Late(Some((client, sender)))));
            Result::Ok(())
        })?;
        locked.recv().expect("the destructor runs")?;
    }
    Ok(())
}

#[test]
fn unlock_ends_a_valid_detached_hold_before_a_lost_one() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    lock.lock_owned()?.detach();
    assert!(lock.force_unlock()?);
    lock.lock_owned()?.detach();
    lock.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}
