//! `with_events`: the listener of one lock handle, in each combination with the kinds of holds.

use crate::events::{Event, Recorder, Recording, logged, start_log};
use crate::harness::faults::BRISK;
use crate::harness::{Server, eventually, join, sleeping};
use leasehold::kind::{Kind, LockKind};
use leasehold::{
    Acquired, CancelToken, Client, Events, Lock, Lost, LostReason, MultiLock, Overdue, RedLock,
    Released, Result,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a client without a listener of its own.
fn client(server: &Server, watchdog: Duration) -> Client {
    let builder = Client::builder().single(server.url()).watchdog_timeout(watchdog);
    builder.local_handoff(512, MINUTE).build().expect("the server answers")
}

fn recorder() -> (Arc<Recorder>, Recording) {
    let (sender, receiver) = mpsc::channel();
    (Arc::new(Recorder(sender)), Recording(receiver))
}

/// Returns the name of an event and the number of its hold.
fn summary(event: &Event) -> (&'static str, Option<u64>) {
    match event {
        Event::Acquired(event) => ("acquired", Some(event.hold)),
        Event::Waited(event) => ("waited", event.hold),
        Event::Released(event) => ("released", Some(event.hold)),
        Event::Renewed(event) => ("renewed", event.holds.first().copied()),
        Event::Failed(event) => ("failed", Some(event.hold)),
        Event::Lost(event) => ("lost", Some(event.hold)),
        Event::Reconnected(_) => ("reconnected", None),
    }
}

impl Recording {
    /// Returns all further events, once the listener is dropped.
    fn rest(self) -> Vec<(&'static str, Option<u64>)> {
        let mut events = Vec::new();
        loop {
            match self.0.recv_timeout(MINUTE) {
                Ok((_, event)) => events.push(summary(&event)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return events,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("the listener is not dropped"),
            }
        }
    }

    /// Returns the hold of the next loss, and the reason.
    fn loss(&self) -> (u64, LostReason) {
        let lost = self.lost();
        (lost.hold, lost.reason)
    }
}

fn names(events: &[(&'static str, Option<u64>)]) -> Vec<&'static str> {
    events.iter().map(|(name, _)| *name).collect()
}

/// Takes and releases a lock in several ways; checks the events of its listener.
fn reports_each_hold<K: LockKind>(lock: Lock<K>, kind: Kind) -> Result<()> {
    let (recorder, recording) = recorder();
    let heard = lock.clone().with_events(recorder);
    lock.lock()?.unlock()?; // by another handle
    heard.lock()?.unlock()?;
    drop(heard.try_lock()?);
    heard.lock_owned()?.unlock()?;
    heard.clone().with_lease(MINUTE).lock()?.unlock()?;
    for _ in 0..4 {
        let (acquired, released) = (recording.acquired(), recording.released());
        assert_eq!((acquired.kind, released.kind), (kind, kind));
        assert_eq!((&*acquired.name, acquired.hold), (lock.name(), released.hold));
    }
    drop(heard);
    assert_eq!(recording.rest(), [], "{kind}");
    Ok(())
}

#[test]
fn a_handle_of_any_kind_reports_its_own_holds() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    reports_each_hold(client.lock("a"), Kind::Plain)?;
    reports_each_hold(client.lock("a").with_holder("tx"), Kind::Named)?;
    reports_each_hold(client.fair_lock("a"), Kind::Fair)?;
    reports_each_hold(client.fenced_lock("a"), Kind::Fenced)?;
    reports_each_hold(client.queue_lock("a"), Kind::Queued)?;
    reports_each_hold(client.spin_lock("a"), Kind::Spin)?;
    reports_each_hold(client.rw_lock("a").read_lock(), Kind::Read)?;
    reports_each_hold(client.rw_lock("a").write_lock(), Kind::Write)
}

/// Sends the name of the listener and of the event.
struct Tagged(&'static str, Sender<(&'static str, &'static str)>);

impl Events for Tagged {
    fn acquired(&self, _: &Acquired) {
        let _ = self.1.send((self.0, "acquired"));
        panic!("the panic of this callback");
    }
    fn released(&self, _: &Released) {
        let _ = self.1.send((self.0, "released"));
    }
}

#[test]
fn the_listener_of_the_client_is_called_first_and_a_panic_ends_only_its_own_call() -> Result<()> {
    start_log();
    let server = Server::start();
    let (sender, receiver) = mpsc::channel();
    let builder = Client::builder().single(server.url());
    let client = builder.events(Tagged("client", sender.clone())).build()?;
    let lock = client.lock("tagged").with_events(Arc::new(Tagged("handle", sender)));
    lock.lock()?.unlock()?;
    client.lock("b").lock()?.unlock()?;
    let expected = [
        ("client", "acquired"),
        ("handle", "acquired"),
        ("client", "released"),
        ("handle", "released"),
        ("client", "acquired"),
        ("client", "released"),
    ];
    for expected in expected {
        assert_eq!(receiver.recv_timeout(MINUTE), Ok(expected));
    }
    eventually("both panics are logged", || {
        logged(&["ERROR", "panicked while reporting Acquired", "tagged"]) == 2
    });
    Ok(())
}

#[test]
fn a_listener_of_client_and_handle_gets_an_event_twice() -> Result<()> {
    let server = Server::start();
    let (recorder, recording) = recorder();
    let builder = Client::builder().single(server.url()).events(Arc::clone(&recorder));
    let client = builder.build()?;
    client.lock("a").with_events(recorder).lock()?.unlock()?;
    drop(client);
    assert_eq!(names(&recording.rest()), ["acquired", "acquired", "released", "released"]);
    Ok(())
}

#[test]
fn a_call_that_gives_up_reports_its_wait() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let holder = client.lock("a").lock_owned()?;
    let (recorder, recording) = recorder();
    let lock = client.lock("a").with_events(recorder);
    assert!(lock.try_lock_for(Duration::from_millis(300))?.is_none());
    let waited = recording.waited();
    assert_eq!((waited.hold, waited.acquired), (None, false));

    let token = CancelToken::new();
    let cancelled = lock.clone().with_cancel(&token);
    let waiter = sleeping("cancelled", move || cancelled.lock().map(drop));
    token.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    assert!(!recording.waited().acquired);

    let waiter = sleeping("granted", move || lock.lock().and_then(|guard| guard.unlock()));
    holder.unlock()?;
    join(waiter)?;
    let (acquired, waited) = (recording.acquired(), recording.waited());
    assert_eq!((waited.hold, waited.acquired), (Some(acquired.hold), true));
    assert_eq!(names(&recording.rest()), ["released"]);
    Ok(())
}

/// Returns the numbers of `renewed` events until `count` different ones are there.
fn renewed(recording: &Recording, count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        numbers.extend(recording.find(|event| match event {
            Event::Renewed(renewed) => Some(renewed.holds),
            _ => None,
        }));
        numbers.sort_unstable();
        numbers.dedup();
    }
    numbers
}

#[test]
fn renewals_report_the_holds_of_the_handle_only() -> Result<()> {
    let server = Server::start();
    let (all, everything) = recorder();
    let builder = Client::builder().single(server.url()).watchdog_timeout(BRISK);
    let client = builder.events(all).build()?;
    let ((mine, my_recording), (shared, recording)) = (recorder(), recorder());
    let locks = [
        client.lock("a").with_events(mine),
        client.lock("b").with_events(Arc::clone(&shared) as _),
        client.lock("c").with_events(shared),
        client.lock("d"),
    ];
    let guards = locks.iter().map(Lock::lock).collect::<Result<Vec<_>>>()?;
    let numbers: Vec<_> = (0..4).map(|_| everything.acquired().hold).collect();
    let sorted = |mut numbers: Vec<u64>| {
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(renewed(&my_recording, 1), numbers[..1]);
    assert_eq!(renewed(&recording, 2), sorted(numbers[1..3].to_vec()));
    assert_eq!(renewed(&everything, 4), sorted(numbers.clone()));
    server.stop();
    let failed = my_recording.find(|event| match event {
        Event::Failed(failed) => Some(failed.hold),
        Event::Renewed(renewed) => {
            assert_eq!(renewed.holds, numbers[..1]);
            None
        }
        _ => None,
    });
    server.resume();
    assert_eq!(failed, numbers[0]);
    drop(guards);
    Ok(())
}

#[test]
fn losses_are_reported_to_the_handle_of_the_hold() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (recorder, recording) = recorder();
    let lock = client.lock("a").with_events(recorder);
    let forced = lock.lock()?;
    client.lock("a").force_unlock()?;
    assert_eq!(recording.loss(), (hold_of(&forced), LostReason::Gone));
    drop(forced);

    let expired = lock.clone().with_lease(Duration::from_millis(200)).lock()?;
    assert_eq!(recording.loss(), (hold_of(&expired), LostReason::Expired));
    drop(expired);

    let gone = lock.clone().with_lease(MINUTE).lock()?;
    let hold = hold_of(&gone);
    server.ask::<()>(&["DEL", "a"]);
    drop(gone); // the reply to the release reveals the loss
    assert_eq!(recording.loss(), (hold, LostReason::Gone));
    assert!(recording.released().error.is_some_and(|error| error.is_lost()));
    drop(lock);
    assert_eq!(recording.rest(), []);
    Ok(())
}

/// Sends the names of the events that end a hold beyond its limit.
struct Late(Sender<(&'static str, u64)>);

impl Events for Late {
    fn overdue(&self, event: &Overdue) {
        let _ = self.0.send(("overdue", event.hold));
    }
    fn lost(&self, event: &Lost) {
        assert_eq!(event.reason, LostReason::HeldTooLong);
        let _ = self.0.send(("lost", event.hold));
    }
}

#[test]
fn a_hold_beyond_its_limit_is_reported_to_its_handle() -> Result<()> {
    let server = Server::start();
    let client = client(&server, BRISK);
    let (sender, receiver) = mpsc::channel();
    let lock = client.lock("a").with_max_hold(Duration::from_millis(20));
    let guard = lock.with_events(Arc::new(Late(sender))).lock()?;
    let hold = hold_of(&guard);
    for name in ["overdue", "lost"] {
        assert_eq!(receiver.recv_timeout(MINUTE), Ok((name, hold)));
    }
    drop(guard);
    assert!(receiver.recv().is_err(), "each is reported once");
    Ok(())
}

/// Returns the number of the hold of a guard.
fn hold_of(guard: &leasehold::Guard) -> u64 {
    let shown = format!("{guard:?}");
    let number = shown.split_once("owner: ").and_then(|(_, owner)| owner.split(',').next());
    let number = number.and_then(|owner| owner.split(':').nth(1)?.parse().ok());
    number.unwrap_or_else(|| panic!("{shown} has a number"))
}

#[test]
fn a_nested_guard_belongs_to_the_hold_of_the_outer_one() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let ((outer, of_outer), (inner, of_inner)) = (recorder(), recorder());
    let outer_guard = client.lock("a").with_events(outer).lock()?;
    let nested = client.lock("a").with_events(inner).lock()?;
    drop(outer_guard);
    nested.unlock()?; // ends the hold
    assert_eq!(names(&of_outer.rest()), ["acquired", "released"]);
    assert_eq!(of_inner.rest(), []);
    Ok(())
}

#[test]
fn a_hand_off_changes_the_listener_to_that_of_the_receiver() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let ((giver, of_giver), (receiver, of_receiver)) = (recorder(), recorder());
    let guard = client.lock("a").with_events(giver).lock()?;
    let lock = client.lock("a").with_events(receiver);
    let waiter = sleeping("receiver", move || {
        let guard = lock.lock()?;
        lock.force_unlock()?;
        Result::Ok(guard.check().is_err_and(|error| error.is_lost()))
    });
    guard.unlock()?;
    assert!(join(waiter)?);
    let [("acquired", Some(given))] = of_giver.rest()[..] else { panic!("one event") };
    let received = of_receiver.rest();
    assert_eq!(names(&received), ["acquired", "waited", "lost"]);
    assert!(received.iter().all(|(_, hold)| *hold == Some(given)), "{received:?}");
    Ok(())
}

#[test]
fn a_detached_hold_keeps_its_listener() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (recorder, recording) = recorder();
    client.lock("a").with_events(recorder).lock()?.detach();
    client.lock("a").unlock()?;
    assert_eq!(names(&recording.rest()), ["acquired", "released"]);
    Ok(())
}

#[test]
fn both_sides_of_a_read_write_lock_and_all_members_report() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| client(server, MINUTE));
    let (listener, recording) = recorder();
    let rw = clients[0].rw_lock("rw").with_events(listener);
    rw.read()?.unlock()?;
    rw.write()?.unlock()?;
    drop(rw);
    assert_eq!(names(&recording.rest()), ["acquired", "released", "acquired", "released"]);

    let ((a, of_a), (b, of_b)) = (recorder(), recorder());
    let members = [clients[0].lock("a").with_events(a), clients[0].lock("b").with_events(b)];
    let multi = MultiLock::new(members);
    multi.lock()?.unlock()?;
    drop(multi);
    assert_eq!(names(&of_a.rest()), ["acquired", "released"]);
    assert_eq!(names(&of_b.rest()), ["acquired", "released"]);

    let (listener, recording) = recorder();
    let red = RedLock::new(clients.clone(), "red").with_events(listener);
    red.lock()?.unlock()?;
    drop((red, clients));
    let mut events = names(&recording.rest());
    events.sort_unstable();
    assert!(matches!(events[..], ["acquired", "acquired", .., "released"]), "{events:?}");
    Ok(())
}

#[test]
fn events_without_a_lock_go_to_the_listener_of_the_client_only() -> Result<()> {
    let server = Server::start();
    let ((all, everything), (mine, recording)) = (recorder(), recorder());
    let client = Client::builder().single(server.url()).events(all).build()?;
    let lock = client.lock("a").with_events(mine);
    server.client_kill_type("normal");
    lock.lock()?.unlock()?;
    everything.find(|event| matches!(event, Event::Reconnected(_)).then_some(()));
    drop(lock);
    assert_eq!(names(&recording.rest()), ["acquired", "released"]);
    Ok(())
}

#[test]
fn a_second_listener_replaces_the_first() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let ((first, of_first), (second, of_second)) = (recorder(), recorder());
    client.lock("a").with_events(first).with_events(second).lock()?.unlock()?;
    assert_eq!(of_first.rest(), []);
    assert_eq!(names(&of_second.rest()), ["acquired", "released"]);
    Ok(())
}

/// Takes the lock when it is dropped, and counts that.
struct LocksAtDrop(Mutex<Receiver<Lock>>, Arc<AtomicUsize>);

impl Events for LocksAtDrop {}

impl Drop for LocksAtDrop {
    fn drop(&mut self) {
        let lock = self.0.get_mut().expect("no thread panics").recv().expect("a lock");
        lock.lock().and_then(|guard| guard.unlock()).expect("the lock becomes free");
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_drop_of_a_listener_may_use_its_lock() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let dropped = Arc::new(AtomicUsize::new(0));
    let heard = || {
        let (sender, receiver) = mpsc::channel();
        sender.send(client.lock("a")).expect("the receiver is here");
        let listener = LocksAtDrop(Mutex::new(receiver), Arc::clone(&dropped));
        client.lock("a").with_events(Arc::new(listener))
    };
    heard().lock()?.unlock()?;
    drop(heard().lock()?);
    // A hand-off ends the use of the listener.
    let (guard, lock) = (heard().lock()?, client.lock("a"));
    let waiter = sleeping("receiver", move || lock.lock().and_then(|guard| guard.unlock()));
    drop(guard);
    join(waiter)?;
    // A lost hold leaves the table at the next call.
    heard().with_lease(Duration::from_millis(200)).lock_owned()?.detach();
    client.lock("a").lock()?.unlock()?;
    eventually("all listeners are dropped", || dropped.load(Ordering::SeqCst) == 4);
    Ok(())
}

#[test]
fn a_listener_of_an_invalid_name_or_a_closed_client_changes_no_error() -> Result<()> {
    let server = Server::start();
    let client = client(&server, MINUTE);
    let (recorder, recording) = recorder();
    let invalid = client.lock("").with_events(recorder);
    assert!(invalid.lock().is_err_and(|error| error.is_invalid_name()));
    assert_eq!(recording.rest(), []);
    client.close();
    let (recorder, _recording) = self::recorder();
    let lock = client.lock("a").with_events(recorder);
    assert!(lock.lock().is_err_and(|error| error.is_closed()));
    Ok(())
}
