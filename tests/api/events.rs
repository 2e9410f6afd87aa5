//! Events and log lines: their data, and the thread that reports the events.

use crate::harness::faults::BRISK;
use crate::harness::{Server, eventually, join, owner, sleeping};
use leasehold::kind::{Kind, LockKind};
use leasehold::{
    Acquired, Audit, Client, Events, Lost, LostReason, Reconnected, Released, RenewalFailed,
    Renewed, Result, Waited,
};
use leasehold::{CancelToken, Error, ErrorKind, Guard, Lock, RedLock};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Acquired(Acquired),
    Waited(Waited),
    Released(Released),
    Renewed(Renewed),
    Failed(RenewalFailed),
    Lost(Lost),
    Reconnected(Reconnected),
}

/// Sends each event, with the name of the thread that reports it, to the test.
pub(crate) struct Recorder(pub(crate) Sender<(String, Event)>);

impl Recorder {
    fn record(&self, event: Event) {
        let thread = thread::current().name().unwrap_or_default().to_owned();
        // The receiver is gone when the test is over.
        let _ = self.0.send((thread, event));
    }
}

impl Events for Recorder {
    fn acquired(&self, event: &Acquired) {
        self.record(Event::Acquired(event.clone()));
    }
    fn waited(&self, event: &Waited) {
        self.record(Event::Waited(event.clone()));
    }
    fn released(&self, event: &Released) {
        self.record(Event::Released(event.clone()));
    }
    fn renewed(&self, event: &Renewed) {
        self.record(Event::Renewed(event.clone()));
    }
    fn renewal_failed(&self, event: &RenewalFailed) {
        self.record(Event::Failed(event.clone()));
    }
    fn lost(&self, event: &Lost) {
        self.record(Event::Lost(event.clone()));
    }
    fn reconnected(&self, event: &Reconnected) {
        self.record(Event::Reconnected(event.clone()));
    }
}

/// The events that a recorder has sent.
pub(crate) struct Recording(pub(crate) Receiver<(String, Event)>);

impl Recording {
    pub(crate) fn next(&self) -> Event {
        let (thread, event) = self.0.recv_timeout(MINUTE).expect("the client reports an event");
        assert_eq!(thread, "leasehold-events");
        event
    }

    /// Returns the first value that `find` returns, and skips the events before it.
    pub(crate) fn find<T>(&self, mut find: impl FnMut(Event) -> Option<T>) -> T {
        let end = Instant::now() + MINUTE;
        loop {
            if let Some(found) = find(self.next()) {
                return found;
            }
            assert!(Instant::now() < end, "the expected event is not reported");
        }
    }

    pub(crate) fn acquired(&self) -> Acquired {
        self.find(|event| if let Event::Acquired(acquired) = event { Some(acquired) } else { None })
    }

    pub(crate) fn waited(&self) -> Waited {
        self.find(|event| if let Event::Waited(waited) = event { Some(waited) } else { None })
    }

    pub(crate) fn released(&self) -> Released {
        self.find(|event| if let Event::Released(released) = event { Some(released) } else { None })
    }

    pub(crate) fn lost(&self) -> Lost {
        self.find(|event| if let Event::Lost(lost) = event { Some(lost) } else { None })
    }

    fn failed(&self) -> RenewalFailed {
        self.find(|event| if let Event::Failed(failed) = event { Some(failed) } else { None })
    }
}

fn client(server: &Server, watchdog: Duration) -> (Client, Recording) {
    let (sender, receiver) = mpsc::channel();
    let builder = Client::builder().single(server.url()).watchdog_timeout(watchdog);
    let builder = builder.poll_interval(Duration::from_millis(100)).name_prefix("app:");
    let builder = builder.events(Recorder(sender));
    (builder.build().expect("the server answers"), Recording(receiver))
}

/// A logger that keeps all lines.
struct Log(Mutex<Vec<String>>);

static LOG: Log = Log(Mutex::new(Vec::new()));

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{}: {}", record.level(), record.args());
        self.0.lock().expect("no thread panics").push(line);
    }
    fn flush(&self) {}
}

pub(crate) fn start_log() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::set_logger(&LOG).expect("no other logger is set");
        log::set_max_level(log::LevelFilter::Debug);
    });
}

/// Counts the log lines that contain all `words`.
///
/// All tests of this file share the log.
pub(crate) fn logged(words: &[&str]) -> usize {
    let log = LOG.0.lock().expect("no thread panics");
    log.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn acquisition_and_release_are_reported_with_the_given_name() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, MINUTE);
    let lock = client.lock("a");
    for unlock in [true, false] {
        let start = Instant::now();
        let guard = lock.lock()?;
        let took = start.elapsed();
        let nested = lock.lock()?;
        drop(nested);
        if unlock {
            guard.unlock()?
        } else {
            drop(guard)
        }
        let Event::Acquired(acquired) = recording.next() else {
            panic!("the first event is not `acquired`")
        };
        assert_eq!(&*acquired.name, "a");
        assert!(acquired.waited > Duration::ZERO && acquired.waited <= took);
        let Event::Released(released) = recording.next() else {
            panic!("the next event is not `released`")
        };
        assert_eq!((&*released.name, released.heard_by), ("a", Some(0)));
        assert!(released.error.is_none());
    }
    Ok(())
}

/// The server does not know the scripts. A release that is written behind the record of the client,
/// whose script has to be loaded first, runs before the record, and once more behind it.
#[test]
fn a_release_that_ran_before_its_turn_reports_its_receivers() {
    let server = Server::start();
    for round in 0..100 {
        server.ask::<()>(&["SCRIPT", "FLUSH"]);
        let (client, recording) = client(&server, MINUTE);
        client.lock("a").lock().expect("free").unlock().expect("held");
        assert_eq!(recording.released().heard_by, Some(0), "in round {round}");
        drop(client.lock("a").lock().expect("free"));
        assert_eq!(recording.released().heard_by, Some(0), "in round {round}");
    }
}

#[test]
fn a_wait_reports_its_outcome_and_a_release_the_number_of_its_receivers() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, MINUTE);
    let (other, other_recording) = self::client(&server, MINUTE);
    let guard = other.lock("a").with_lease(MINUTE).lock()?;
    let short = Duration::from_millis(50);
    assert!(client.lock("a").try_lock_for(short)?.is_none());
    let waited = recording.waited();
    assert_eq!((&*waited.name, waited.acquired), ("a", false));
    assert!(waited.waited >= short && waited.waited < MINUTE);

    let guard_of_b = other.lock("b").lock()?;
    let lock = client.lock("b");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    let asked = server.calls("evalsha");
    eventually("the waiter asks several times", || server.calls("evalsha") >= asked + 4);
    guard_of_b.unlock()?;
    join(waiter)?;
    assert_eq!(other_recording.released().heard_by, Some(1));
    let acquired = recording.acquired();
    let waited = recording.waited();
    assert_eq!((&*waited.name, waited.acquired), ("b", true));
    assert!(waited.waited > Duration::ZERO && acquired.waited == waited.waited);
    guard.unlock()
}

#[test]
fn a_call_that_does_not_wait_reports_no_wait() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, MINUTE);
    server.ask::<()>(&["HSET", "app:a", "java:1", "1"]);
    assert!(client.lock("a").try_lock()?.is_none());
    client.lock("b").lock()?.unlock()?;
    let first = recording.next();
    assert!(matches!(&first, Event::Acquired(event) if &*event.name == "b"), "{first:?}");
    Ok(())
}

#[test]
fn renewals_and_losses_are_reported() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, BRISK);
    let guards = [client.lock("a").lock()?, client.lock("b").lock()?];
    let mut leases = 0;
    while leases < 2 {
        leases += recording.find(|event| match event {
            Event::Renewed(renewed) => Some(renewed.holds.len()),
            _ => None,
        });
    }
    server.ask::<()>(&["DEL", "app:a"]);
    let gone = recording.lost();
    assert_eq!((&*gone.name, gone.reason), ("a", LostReason::Gone));

    let fixed = client.lock("c").with_lease(Duration::from_millis(200)).lock()?;
    let expired = recording.lost();
    assert_eq!((&*expired.name, expired.reason), ("c", LostReason::Expired));
    drop((guards, fixed));
    Ok(())
}

#[test]
fn a_release_of_a_lost_hold_is_reported_as_a_failure_and_as_a_loss() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, MINUTE);
    let guard = client.lock("a").with_lease(MINUTE).lock()?;
    server.ask::<()>(&["DEL", "app:a"]);
    drop(guard);
    let lost = recording.lost();
    assert_eq!((&*lost.name, lost.reason), ("a", LostReason::Gone));
    let released = recording.released();
    assert_eq!((&*released.name, released.heard_by), ("a", None));
    assert!(released.error.is_some_and(|error| error.is_lost()));
    Ok(())
}

#[test]
fn failed_renewals_and_reconnects_are_reported() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, BRISK);
    let guard = client.lock("a").lock()?;
    server.stop();
    let failed = recording.failed();
    server.resume();
    assert_eq!(&*failed.name, "a");
    assert!(failed.remaining > Duration::ZERO && failed.remaining < BRISK);
    assert!(failed.error.is_timeout());
    drop(guard);

    server.client_kill_type("normal");
    client.lock("b").lock()?.unlock()?;
    let again = recording.find(|event| {
        if let Event::Reconnected(reconnected) = event { Some(reconnected) } else { None }
    });
    assert_eq!(*again.server, server.addr().to_string());
    Ok(())
}

/// Panics at each acquisition and release, after recording it.
struct Panicking(Recorder);

impl Events for Panicking {
    fn acquired(&self, event: &Acquired) {
        self.0.acquired(event);
        panic!("the panic of this callback");
    }
    fn released(&self, event: &Released) {
        self.0.released(event);
        panic!("the panic of this callback");
    }
}

#[test]
fn a_callback_that_panics_is_logged_and_called_again() -> Result<()> {
    start_log();
    let server = Server::start();
    let (sender, receiver) = mpsc::channel();
    let (events, recording) = (Panicking(Recorder(sender)), Recording(receiver));
    let client = Client::builder().single(server.url()).events(events).build()?;
    for _ in 0..3 {
        client.lock("panicking").lock()?.unlock()?;
        assert_eq!(&*recording.acquired().name, "panicking");
        assert_eq!(&*recording.released().name, "panicking");
    }
    eventually("all panics are logged", || logged(&["ERROR", "panicked", "panicking"]) == 6);
    Ok(())
}

/// Blocks at each acquisition until the test drops its sender.
pub(crate) struct Blocking(pub(crate) Mutex<Receiver<()>>, pub(crate) Sender<()>);

impl Events for Blocking {
    fn acquired(&self, _: &Acquired) {
        let _ = self.1.send(());
        // The call ends when the sender is dropped.
        let _ = self.0.lock().expect("no thread panics").recv();
    }
}

#[test]
fn a_callback_that_blocks_delays_no_lock_no_renewal_and_no_close() -> Result<()> {
    start_log();
    let server = Server::start();
    let (frees, freed) = mpsc::channel();
    let (blocks, blocked) = mpsc::channel();
    let builder = Client::builder().single(server.url()).watchdog_timeout(BRISK);
    let client = builder.events(Blocking(Mutex::new(freed), blocks)).build()?;
    let start = Instant::now();
    let kept = client.lock("kept").lock()?;
    blocked.recv_timeout(MINUTE).expect("the callback is called");
    // Two events each: more than the queue of events holds.
    for _ in 0..2500 {
        client.lock("many times").lock()?.unlock()?;
    }
    eventually("dropped events are logged", || logged(&["too slow", "dropped"]) > 0);
    eventually("two leases pass", || start.elapsed() > 2 * BRISK);
    assert!(kept.is_held());
    kept.unlock()?;
    client.close();
    drop(frees);
    Ok(())
}

#[test]
fn a_callback_may_use_the_client_and_close_it() -> Result<()> {
    /// Locks and closes the client at the acquisition of the lock `a`.
    struct Busy(Mutex<Receiver<Client>>, Sender<Result<()>>);
    impl Events for Busy {
        fn acquired(&self, event: &Acquired) {
            if &*event.name == "a" {
                let client = self.0.lock().expect("no thread panics").recv().expect("a client");
                let done = client.lock("b").lock().and_then(|guard| guard.unlock());
                client.close();
                let _ = self.1.send(done);
            }
        }
    }
    let server = Server::start();
    let (gives, given) = mpsc::channel();
    let (reports, reported) = mpsc::channel();
    let client =
        Client::builder().single(server.url()).events(Busy(Mutex::new(given), reports)).build()?;
    gives.send(client.clone()).expect("the callback listens");
    client.lock("a").lock()?.unlock()?;
    reported.recv_timeout(MINUTE).expect("the callback returns")?;
    assert!(client.lock("a").lock().is_err_and(|e| e.is_closed()));
    Ok(())
}

#[test]
fn a_lock_without_a_time_to_live_is_waited_for_and_logged_once_per_wait() -> Result<()> {
    start_log();
    let server = Server::start();
    let soon = Duration::from_millis(100);
    let client = Client::builder().single(server.url()).poll_interval(soon).build()?;
    server.ask::<()>(&["HSET", "endless", "java:1", "1"]);
    let lock = client.lock("endless");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    let before = server.calls("evalsha");
    eventually("the waiter asks several times", || server.calls("evalsha") >= before + 5);
    let warnings = || logged(&["WARN", "endless", "without a time to live"]);
    eventually("the wait is logged", || warnings() > 0);
    server.ask::<()>(&["DEL", "endless"]); // without a message
    join(waiter)?;
    client.close();
    assert_eq!(warnings(), 1);
    Ok(())
}

#[test]
fn the_log_reports_the_end_of_a_thread_with_a_lock_and_the_loss_of_the_lock() -> Result<()> {
    start_log();
    let server = Server::start();
    let (client, _tidings) = client(&server, BRISK);
    for (name, owned) in [("detached by a thread", false), ("detached and owned", true)] {
        let lock = client.lock(name);
        let detaches = move || {
            if owned {
                lock.lock_owned().map(|guard| guard.detach())
            } else {
                lock.lock().map(|guard| guard.detach())
            }
        };
        join(thread::spawn(detaches))?;
    }
    let warnings = |name| logged(&["WARN", name, "has ended: its lease is not renewed any more"]);
    eventually("the end of the thread is logged", || warnings("detached by a thread") == 1);
    eventually("the loss is logged", || {
        logged(&["WARN", "detached by a thread", "lost: the lease expired"]) == 1
    });
    assert_eq!(warnings("detached and owned"), 0);
    client.lock("detached and owned").unlock()
}

#[test]
fn the_events_thread_ends_with_the_last_handle() -> Result<()> {
    let server = Server::start();
    let (sender, receiver) = mpsc::channel();
    let client = Client::builder().single(server.url()).events(Recorder(sender)).build()?;
    let guard = client.lock("a").lock()?;
    drop(client);
    guard.unlock()?;
    // The recorder, and with it the sender, is dropped after all events.
    let events: Vec<_> = receiver.iter().map(|(_, event)| event).collect();
    assert!(matches!(events.last(), Some(Event::Released(_))), "{events:?}");
    Ok(())
}

/// Takes and releases a lock, checks the events, and returns the hold number.
fn one_hold<P: LockKind>(
    server: &Server,
    recording: &Recording,
    lock: &Lock<P>,
    kind: Kind,
) -> u64 {
    let (before, began) = (SystemTime::now(), Instant::now());
    let guard: Guard<P> = lock.lock().expect("the lock is free");
    let granted = Instant::now();
    let acquired = recording.acquired();
    // The owner field of a named holder has no number. A read-write lock has a field for the mode.
    if !matches!(kind, Kind::Named | Kind::Read | Kind::Write) {
        let owner = owner(server, "app:a");
        let number = owner.split(':').nth(1).and_then(|number| number.parse::<u64>().ok());
        assert_eq!(number, Some(acquired.hold), "{owner}: {acquired:?}");
    }
    let held = granted.elapsed();
    guard.unlock().expect("the lock is held");
    let released = recording.released();
    let (ended, after) = (began.elapsed(), SystemTime::now());
    assert_eq!((acquired.kind, released.kind), (kind, kind));
    assert_eq!((&*acquired.name, &*released.name), ("a", "a"));
    assert_eq!(released.hold, acquired.hold, "{kind}");
    assert!(held <= released.held && released.held <= ended, "{released:?}");
    assert!(before <= acquired.at && acquired.at <= released.at && released.at <= after);
    acquired.hold
}

#[test]
fn the_events_of_a_hold_state_its_kind_its_number_and_their_times() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, MINUTE);
    let rw = client.rw_lock("a");
    let holds = [
        one_hold(&server, &recording, &client.lock("a"), Kind::Plain),
        one_hold(&server, &recording, &client.lock("a").with_holder("tx"), Kind::Named),
        one_hold(&server, &recording, &client.fair_lock("a"), Kind::Fair),
        one_hold(&server, &recording, &client.fenced_lock("a"), Kind::Fenced),
        one_hold(&server, &recording, &client.queue_lock("a"), Kind::Queued),
        one_hold(&server, &recording, &client.spin_lock("a"), Kind::Spin),
        one_hold(&server, &recording, &rw.read_lock(), Kind::Read),
        one_hold(&server, &recording, &rw.write_lock(), Kind::Write),
    ];
    assert!(holds.is_sorted_by(|a, b| a < b), "the numbers differ and grow: {holds:?}");
    Ok(())
}

#[test]
fn renewals_losses_and_waits_name_the_hold() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, BRISK);
    let guard = client.lock("a").lock()?;
    let hold = recording.acquired().hold;
    let renewed = |event| if let Event::Renewed(renewed) = event { Some(renewed) } else { None };
    assert_eq!(recording.find(renewed).holds, [hold]);
    server.stop();
    let failed = recording.failed();
    server.resume();
    assert_eq!(
        (failed.hold, failed.kind, failed.error.lock_name()),
        (hold, Kind::Plain, Some("a"))
    );
    client.lock("a").force_unlock()?;
    let lost = recording.lost();
    assert_eq!((lost.hold, lost.kind), (hold, Kind::Plain));
    drop(guard);
    let holder = client.fair_lock("b").lock_owned()?;
    let (lock, token) = (client.fair_lock("b"), CancelToken::new());
    let cancelled = lock.clone().with_cancel(&token);
    let waiter = sleeping("cancelled", move || cancelled.lock().map(drop));
    token.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    let waited = recording.waited();
    assert_eq!((waited.hold, waited.kind, waited.acquired), (None, Kind::Fair, false));
    let waiter = sleeping("granted", move || lock.lock().and_then(|guard| guard.unlock()));
    drop(holder);
    join(waiter)?;
    let waited = recording.waited();
    assert!(waited.acquired && waited.hold.is_some(), "{waited:?}");
    Ok(())
}

#[test]
fn a_grant_by_message_is_reported_with_the_number_of_the_wait() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, MINUTE);
    let lock = client.queue_lock("a");
    let holder = lock.lock_owned()?;
    let first = recording.acquired().hold;
    let waiter = sleeping("granted", move || lock.lock().and_then(|guard| guard.unlock()));
    holder.unlock()?;
    join(waiter)?;
    let (mut waited, mut acquired) = (None, None);
    let released = recording.find(|event| match event {
        Event::Waited(event) => waited.replace(event).and(None),
        Event::Acquired(event) => acquired.replace(event).and(None),
        Event::Released(event) => Some(event).filter(|event| event.hold != first),
        _ => None,
    });
    let (waited, acquired) = (waited.expect("a wait"), acquired.expect("a hold"));
    assert!(waited.acquired && waited.kind == Kind::Queued, "{waited:?}");
    assert_eq!((waited.hold, acquired.hold), (Some(released.hold), released.hold));
    Ok(())
}

#[test]
fn a_hand_off_keeps_the_number_of_the_hold_and_releases_once() -> Result<()> {
    let server = Server::start();
    let (sender, receiver) = mpsc::channel();
    let builder = Client::builder().single(server.url()).events(Recorder(sender));
    let (client, recording) = (builder.local_handoff(512, MINUTE).build()?, Recording(receiver));
    let lock = client.lock("a");
    let guard = lock.lock()?;
    let waiter = sleeping("next", move || lock.lock().and_then(|guard| guard.unlock()));
    guard.unlock()?;
    join(waiter)?;
    let (first, second, released) =
        (recording.acquired(), recording.acquired(), recording.released());
    assert_eq!((first.hold, second.hold), (released.hold, released.hold));
    Ok(())
}

#[test]
fn the_wait_for_a_majority_names_no_hold() -> Result<()> {
    let server = Server::start();
    let (client, recording) = client(&server, MINUTE);
    let lock = RedLock::new([client], "a");
    let guard = lock.lock_owned()?;
    let waiter = sleeping("red", move || lock.lock().and_then(|guard| guard.unlock()));
    guard.unlock()?;
    join(waiter)?;
    let waited = recording.waited();
    assert_eq!((waited.kind, waited.hold, waited.acquired), (Kind::Red, None, true));
    Ok(())
}

#[test]
fn clients_may_share_one_recorder() -> Result<()> {
    let server = Server::start();
    let (sender, receiver) = mpsc::channel();
    let recorder: Arc<dyn Events> = Arc::new(Recorder(sender));
    let make = || Client::builder().single(server.url()).events(Arc::clone(&recorder)).build();
    let clients = [make()?, make()?];
    let recording = Recording(receiver);
    for client in &clients {
        client.lock("a").lock()?.unlock()?;
        let (acquired, released) = (recording.acquired(), recording.released());
        assert_eq!(acquired.hold, released.hold);
    }
    Ok(())
}

/// `Arc<dyn Events>` forwards every method.
#[test]
fn a_program_can_create_and_report_events() {
    let (sender, receiver) = mpsc::channel();
    let events: Arc<dyn Events> = Arc::new(Recorder(sender));
    let error = Error::new(ErrorKind::Timeout, "no answer");
    let mut acquired = Acquired::new("a");
    (acquired.kind, acquired.hold) = (Kind::Fair, 7);
    events.acquired(&acquired);
    events.waited(&Waited::new("a"));
    events.released(&Released::new("a"));
    events.renewed(&Renewed::new([7]));
    events.renewal_failed(&RenewalFailed::new("a", error.clone()));
    events.lost(&Lost::new("a", LostReason::Gone));
    events.reconnected(&Reconnected::new("127.0.0.1:6379"));
    events.audit(&Audit::new("it evicts"));
    let recorded: Vec<_> = receiver.try_iter().map(|(_, event)| event).collect();
    let [
        Event::Acquired(first),
        Event::Waited(_),
        Event::Released(released),
        Event::Renewed(renewed),
        Event::Failed(failed),
        Event::Lost(lost),
        Event::Reconnected(again),
    ] = &recorded[..]
    else {
        panic!("{recorded:?}")
    };
    assert_eq!((first, failed), (&acquired, &RenewalFailed::new("a", error)));
    assert_ne!(first, &Acquired::new("a"));
    assert_eq!((released.at, renewed.holds.as_slice()), (UNIX_EPOCH, &[7][..]));
    assert_eq!((lost.reason, &*again.server), (LostReason::Gone, "127.0.0.1:6379"));
}
