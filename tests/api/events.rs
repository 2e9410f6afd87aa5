//! What a program is told: by its `Events`, each with the right data and on a
//! thread of their own, and by the log.

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
/// A watchdog time-out of which some pass in a test, and of which no stall of a slow
/// machine takes two thirds.
const BRISK: Duration = Duration::from_millis(1500);

#[derive(Clone, Debug)]
enum Told {
    Acquired(Acquired),
    Waited(Waited),
    Released(Released),
    Renewed(Renewed),
    Failed(RenewalFailed),
    Lost(Lost),
    Reconnected(Reconnected),
}

/// Sends on what it is told, and the name of the thread on which.
struct Recorder(Sender<(String, Told)>);

impl Recorder {
    fn tell(&self, told: Told) {
        let thread = thread::current().name().unwrap_or_default().to_owned();
        // Nobody hears it when the test is over.
        let _ = self.0.send((thread, told));
    }
}

impl Events for Recorder {
    fn acquired(&self, event: &Acquired) {
        self.tell(Told::Acquired(event.clone()));
    }
    fn waited(&self, event: &Waited) {
        self.tell(Told::Waited(event.clone()));
    }
    fn released(&self, event: &Released) {
        self.tell(Told::Released(event.clone()));
    }
    fn renewed(&self, event: &Renewed) {
        self.tell(Told::Renewed(event.clone()));
    }
    fn renewal_failed(&self, event: &RenewalFailed) {
        self.tell(Told::Failed(event.clone()));
    }
    fn lost(&self, event: &Lost) {
        self.tell(Told::Lost(event.clone()));
    }
    fn reconnected(&self, event: &Reconnected) {
        self.tell(Told::Reconnected(event.clone()));
    }
}

struct Tidings(Receiver<(String, Told)>);

impl Tidings {
    fn next(&self) -> Told {
        let (thread, told) = self.0.recv_timeout(MINUTE).expect("the client tells something");
        assert_eq!(thread, "leasehold-events");
        told
    }

    /// The next that `find` finds; what comes before is skipped.
    fn find<T>(&self, mut find: impl FnMut(Told) -> Option<T>) -> T {
        let end = Instant::now() + MINUTE;
        loop {
            if let Some(found) = find(self.next()) {
                return found;
            }
            assert!(Instant::now() < end, "much is told, but not that");
        }
    }

    fn acquired(&self) -> Acquired {
        self.find(|told| if let Told::Acquired(event) = told { Some(event) } else { None })
    }

    fn waited(&self) -> Waited {
        self.find(|told| if let Told::Waited(event) = told { Some(event) } else { None })
    }

    fn released(&self) -> Released {
        self.find(|told| if let Told::Released(event) = told { Some(event) } else { None })
    }
}

fn client(server: &Server, watchdog: Duration) -> (Client, Tidings) {
    let (sender, told) = mpsc::channel();
    let builder = Client::builder().single(server.url()).watchdog_timeout(watchdog);
    let builder = builder.poll_interval(Duration::from_millis(100)).name_prefix("app:");
    let builder = builder.events(Recorder(sender));
    (builder.build().expect("the server answers"), Tidings(told))
}

/// A logger that keeps what is logged.
struct Log(Mutex<Vec<String>>);

static LOG: Log = Log(Mutex::new(Vec::new()));

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{}: {}", record.level(), record.args());
        self.0.lock().expect("nobody panics here").push(line);
    }
    fn flush(&self) {}
}

fn start_log() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::set_logger(&LOG).expect("nobody else logs");
        log::set_max_level(log::LevelFilter::Debug);
    });
}

/// The lines of the log, of all tests of this file, with all of these words.
fn logged(words: &[&str]) -> usize {
    let log = LOG.0.lock().expect("nobody panics here");
    log.iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn getting_and_releasing_a_lock_is_told_under_the_name_that_was_given() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, MINUTE);
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
        let Told::Acquired(acquired) = tidings.next() else { panic!("acquired comes first") };
        assert_eq!(&*acquired.name, "a");
        assert!(acquired.waited > Duration::ZERO && acquired.waited <= took);
        let Told::Released(released) = tidings.next() else { panic!("released, and no more") };
        assert_eq!((&*released.name, released.heard_by), ("a", Some(0)));
        assert!(released.error.is_none());
    }
    Ok(())
}

#[test]
fn a_wait_is_told_whatever_came_of_it_and_a_release_says_who_heard_it() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, MINUTE);
    let (other, heard) = self::client(&server, MINUTE);
    let guard = other.lock("a").with_lease(MINUTE).lock()?;
    let short = Duration::from_millis(50);
    assert!(client.lock("a").try_lock_for(short)?.is_none());
    let waited = tidings.waited();
    assert_eq!((&*waited.name, waited.acquired), ("a", false));
    assert!(waited.waited >= short && waited.waited < MINUTE);

    let guard_of_b = other.lock("b").lock()?;
    let lock = client.lock("b");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    let asked = server.calls("evalsha");
    eventually("it sleeps between its questions", || server.calls("evalsha") >= asked + 4);
    guard_of_b.unlock()?;
    waiter.join().expect("no panic")?;
    assert_eq!(heard.released().heard_by, Some(1));
    let acquired = tidings.acquired();
    let waited = tidings.waited();
    assert_eq!((&*waited.name, waited.acquired), ("b", true));
    assert!(waited.waited > Duration::ZERO && acquired.waited == waited.waited);
    guard.unlock()
}

#[test]
fn who_does_not_wait_tells_of_no_wait() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, MINUTE);
    server.ask::<()>(&["HSET", "app:a", "java:1", "1"]);
    assert!(client.lock("a").try_lock()?.is_none());
    client.lock("b").lock()?.unlock()?;
    let first = tidings.next();
    assert!(matches!(&first, Told::Acquired(event) if &*event.name == "b"), "{first:?}");
    Ok(())
}

#[test]
fn renewals_and_losses_are_told() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, BRISK);
    let guards = [client.lock("a").lock()?, client.lock("b").lock()?];
    let mut leases = 0;
    while leases < 2 {
        leases += tidings.find(|told| match told {
            Told::Renewed(event) => Some(event.holds.len()),
            _ => None,
        });
    }
    server.ask::<()>(&["DEL", "app:a"]);
    let lost = |told| if let Told::Lost(event) = told { Some(event) } else { None };
    let gone = tidings.find(lost);
    assert_eq!((&*gone.name, gone.reason), ("a", LostReason::Gone));

    let fixed = client.lock("c").with_lease(Duration::from_millis(50)).lock()?;
    let expired = tidings.find(lost);
    assert_eq!((&*expired.name, expired.reason), ("c", LostReason::Expired));
    drop((guards, fixed));
    Ok(())
}

#[test]
fn a_release_that_finds_nothing_is_told_as_a_failure_and_as_a_loss() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, MINUTE);
    let guard = client.lock("a").with_lease(MINUTE).lock()?;
    server.ask::<()>(&["DEL", "app:a"]);
    drop(guard);
    let lost = tidings.find(|told| if let Told::Lost(event) = told { Some(event) } else { None });
    assert_eq!((&*lost.name, lost.reason), ("a", LostReason::Gone));
    let released = tidings.released();
    assert_eq!((&*released.name, released.heard_by), ("a", None));
    assert!(released.error.is_some_and(|error| error.is_lost()));
    Ok(())
}

#[test]
fn failed_renewals_and_reconnects_are_told() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, BRISK);
    let guard = client.lock("a").lock()?;
    server.stop();
    let failed =
        tidings.find(|told| if let Told::Failed(event) = told { Some(event) } else { None });
    server.resume();
    assert_eq!(&*failed.name, "a");
    assert!(failed.remaining > Duration::ZERO && failed.remaining < BRISK);
    assert!(failed.error.is_timeout());
    drop(guard);

    server.client_kill_type("normal");
    client.lock("b").lock()?.unlock()?;
    let again =
        tidings.find(|told| if let Told::Reconnected(event) = told { Some(event) } else { None });
    assert_eq!(*again.address, server.addr().to_string());
    Ok(())
}

/// Panics at everything it is told, after passing it on.
struct Clumsy(Recorder);

impl Events for Clumsy {
    fn acquired(&self, event: &Acquired) {
        self.0.acquired(event);
        panic!("what a clumsy callback does");
    }
    fn released(&self, event: &Released) {
        self.0.released(event);
        panic!("what a clumsy callback does");
    }
}

#[test]
fn a_callback_that_panics_harms_nobody_and_is_called_again() -> Result<()> {
    start_log();
    let server = Server::start();
    let (sender, told) = mpsc::channel();
    let (events, tidings) = (Clumsy(Recorder(sender)), Tidings(told));
    let client = Client::builder().single(server.url()).events(events).build()?;
    for _ in 0..3 {
        client.lock("clumsy").lock()?.unlock()?;
        assert_eq!(&*tidings.acquired().name, "clumsy");
        assert_eq!(&*tidings.released().name, "clumsy");
    }
    eventually("the log says so", || logged(&["ERROR", "panicked", "clumsy"]) == 6);
    Ok(())
}

/// Stands still at the first event until it is let go.
struct Stubborn(Mutex<Receiver<()>>, Sender<()>);

impl Events for Stubborn {
    fn acquired(&self, _: &Acquired) {
        let _ = self.1.send(());
        // Ends when the test does.
        let _ = self.0.lock().expect("nobody panics here").recv();
    }
}

#[test]
fn a_callback_that_blocks_keeps_nobody_from_locking_renewing_or_closing() -> Result<()> {
    start_log();
    let server = Server::start();
    let (let_go, held) = mpsc::channel();
    let (blocks, blocked) = mpsc::channel();
    let builder = Client::builder().single(server.url()).watchdog_timeout(BRISK);
    let client = builder.events(Stubborn(Mutex::new(held), blocks)).build()?;
    let start = Instant::now();
    let kept = client.lock("kept").lock()?;
    blocked.recv_timeout(MINUTE).expect("the callback is called");
    // More than the client keeps for a slow listener: two events each.
    for _ in 0..2500 {
        client.lock("stubborn").lock()?.unlock()?;
    }
    assert!(logged(&["too slow", "dropped"]) > 0);
    eventually("it was renewed for longer than its lease", || start.elapsed() > 2 * BRISK);
    assert!(kept.is_held());
    kept.unlock()?;
    client.close();
    drop(let_go);
    Ok(())
}

#[test]
fn a_callback_may_use_the_client_and_close_it() -> Result<()> {
    /// Locks, and closes, when it hears of a lock.
    struct Busy(Mutex<Receiver<Client>>, Sender<Result<()>>);
    impl Events for Busy {
        fn acquired(&self, event: &Acquired) {
            if &*event.name == "a" {
                let client = self.0.lock().expect("nobody panics here").recv().expect("a client");
                let done = client.lock("b").lock().and_then(|guard| guard.unlock());
                client.close();
                let _ = self.1.send(done);
            }
        }
    }
    let server = Server::start();
    let (gives, given) = mpsc::channel();
    let (tells, told) = mpsc::channel();
    let client =
        Client::builder().single(server.url()).events(Busy(Mutex::new(given), tells)).build()?;
    gives.send(client.clone()).expect("the callback listens");
    client.lock("a").lock()?.unlock()?;
    told.recv_timeout(MINUTE).expect("the callback comes to an end")?;
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
    eventually("it was asked for again and again", || server.calls("evalsha") >= before + 5);
    assert_eq!(logged(&["WARN", "endless", "without a time to live"]), 1);
    server.ask::<()>(&["DEL", "endless"]); // and no message
    waiter.join().expect("no panic")
}

#[test]
fn the_log_says_that_a_thread_ended_with_a_lock_and_that_the_lock_was_lost() -> Result<()> {
    start_log();
    let server = Server::start();
    let (client, _tidings) = client(&server, BRISK);
    for (name, owned) in [("orphan of a thread", false), ("orphan of nobody", true)] {
        let lock = client.lock(name);
        let detaches = move || match owned {
            true => lock.lock_owned().map(|guard| guard.detach()),
            false => lock.lock().map(|guard| guard.detach()),
        };
        thread::spawn(detaches).join().expect("no panic")?;
    }
    let said = |name| logged(&["WARN", name, "has ended: its lease is not renewed any more"]);
    eventually("the log says so", || said("orphan of a thread") == 1);
    eventually("it is lost", || {
        logged(&["WARN", "orphan of a thread", "lost: the lease expired"]) == 1
    });
    assert_eq!(said("orphan of nobody"), 0);
    client.lock("orphan of nobody").unlock()
}

#[test]
fn the_thread_of_the_events_ends_with_the_last_handle() -> Result<()> {
    let server = Server::start();
    let (sender, told) = mpsc::channel();
    let client = Client::builder().single(server.url()).events(Recorder(sender)).build()?;
    let guard = client.lock("a").lock()?;
    drop(client);
    guard.unlock()?;
    // The channel closes when the recorder is dropped, after all that was to be told.
    let told: Vec<_> = told.iter().map(|(_, told)| told).collect();
    assert!(matches!(told.last(), Some(Told::Released(_))), "{told:?}");
    Ok(())
}

/// The number in the owner field of a lock that is held.
fn number(server: &Server, key: &str) -> u64 {
    let owner = owner(server, key);
    let number = owner.split(':').nth(1).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{owner} has a number"))
}

/// Takes a lock and releases it, and checks what the events of that hold say.
fn one_hold<P: LockKind>(server: &Server, tidings: &Tidings, lock: &Lock<P>, kind: Kind) -> u64 {
    let (before, began) = (SystemTime::now(), Instant::now());
    let guard: Guard<P> = lock.lock().expect("it is free");
    let granted = Instant::now();
    let acquired = tidings.acquired();
    // That of a named holder has no number in it, and that of readers stands beside the mode.
    if !matches!(kind, Kind::Named | Kind::Read | Kind::Write) {
        assert_eq!(number(server, "app:a"), acquired.hold, "{acquired:?}");
    }
    let held = granted.elapsed();
    guard.unlock().expect("it is held");
    let released = tidings.released();
    let (ended, after) = (began.elapsed(), SystemTime::now());
    assert_eq!((acquired.kind, released.kind), (kind, kind));
    assert_eq!((&*acquired.name, &*released.name), ("a", "a"));
    assert_eq!(released.hold, acquired.hold, "{kind}");
    assert!(held <= released.held && released.held <= ended, "{released:?}");
    assert!(before <= acquired.at && acquired.at <= released.at && released.at <= after);
    acquired.hold
}

#[test]
fn the_events_of_a_hold_name_its_kind_its_number_and_their_moments() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, MINUTE);
    let rw = client.rw_lock("a");
    let holds = [
        one_hold(&server, &tidings, &client.lock("a"), Kind::Plain),
        one_hold(&server, &tidings, &client.lock("a").with_holder("tx"), Kind::Named),
        one_hold(&server, &tidings, &client.fair_lock("a"), Kind::Fair),
        one_hold(&server, &tidings, &client.fenced_lock("a"), Kind::Fenced),
        one_hold(&server, &tidings, &client.spin_lock("a"), Kind::Spin),
        one_hold(&server, &tidings, &rw.read_lock(), Kind::Read),
        one_hold(&server, &tidings, &rw.write_lock(), Kind::Write),
    ];
    assert!(holds.is_sorted_by(|a, b| a < b), "each has a number of its own: {holds:?}");
    Ok(())
}

#[test]
fn renewals_losses_and_waits_name_the_hold() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, BRISK);
    let guard = client.lock("a").lock()?;
    let hold = tidings.acquired().hold;
    let renewed = |told| if let Told::Renewed(event) = told { Some(event) } else { None };
    assert_eq!(tidings.find(renewed).holds, [hold]);
    server.stop();
    let failed =
        tidings.find(|told| if let Told::Failed(event) = told { Some(event) } else { None });
    server.resume();
    assert_eq!(
        (failed.hold, failed.kind, failed.error.lock_name()),
        (hold, Kind::Plain, Some("a"))
    );
    client.lock("a").force_unlock()?;
    let lost = tidings.find(|told| if let Told::Lost(event) = told { Some(event) } else { None });
    assert_eq!((lost.hold, lost.kind), (hold, Kind::Plain));
    drop(guard);
    let holder = client.fair_lock("b").lock_owned()?;
    let (lock, token) = (client.fair_lock("b"), CancelToken::new());
    let cancelled = lock.clone().with_cancel(&token);
    let waiter = sleeping("cancelled", move || cancelled.lock().map(drop));
    token.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    let waited = tidings.waited();
    assert_eq!((waited.hold, waited.kind, waited.acquired), (None, Kind::Fair, false));
    let waiter = sleeping("granted", move || lock.lock().and_then(|guard| guard.unlock()));
    drop(holder);
    join(waiter)?;
    let waited = tidings.waited();
    assert!(waited.acquired && waited.hold.is_some(), "{waited:?}");
    Ok(())
}

#[test]
fn a_hold_that_is_passed_keeps_its_number_and_is_released_once() -> Result<()> {
    let server = Server::start();
    let (sender, told) = mpsc::channel();
    let builder = Client::builder().single(server.url()).events(Recorder(sender));
    let (client, tidings) = (builder.local_handoff(512, MINUTE).build()?, Tidings(told));
    let lock = client.lock("a");
    let guard = lock.lock()?;
    let waiter = sleeping("next", move || lock.lock().and_then(|guard| guard.unlock()));
    guard.unlock()?;
    join(waiter)?;
    let (first, second, released) = (tidings.acquired(), tidings.acquired(), tidings.released());
    assert_eq!((first.hold, second.hold), (released.hold, released.hold));
    Ok(())
}

#[test]
fn the_wait_for_a_majority_is_of_no_single_hold() -> Result<()> {
    let server = Server::start();
    let (client, tidings) = client(&server, MINUTE);
    let lock = RedLock::new([client], "a");
    let guard = lock.lock_owned()?;
    let waiter = sleeping("red", move || lock.lock().and_then(|guard| guard.unlock()));
    guard.unlock()?;
    join(waiter)?;
    let waited = tidings.waited();
    assert_eq!((waited.kind, waited.hold, waited.acquired), (Kind::Red, None, true));
    Ok(())
}

#[test]
fn a_listener_may_be_shared() -> Result<()> {
    let server = Server::start();
    let (sender, told) = mpsc::channel();
    let recorder: Arc<dyn Events> = Arc::new(Recorder(sender));
    let make = || Client::builder().single(server.url()).events(Arc::clone(&recorder)).build();
    let clients = [make()?, make()?];
    let tidings = Tidings(told);
    for client in &clients {
        client.lock("a").lock()?.unlock()?;
        let (acquired, released) = (tidings.acquired(), tidings.released());
        assert_eq!(acquired.hold, released.hold);
    }
    Ok(())
}

/// Every method of a shared listener is that of the listener.
#[test]
fn a_program_can_make_events_and_tell_them_itself() {
    let (sender, told) = mpsc::channel();
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
    let told: Vec<_> = told.try_iter().map(|(_, told)| told).collect();
    let [
        Told::Acquired(first),
        Told::Waited(_),
        Told::Released(released),
        Told::Renewed(renewed),
        Told::Failed(failed),
        Told::Lost(lost),
        Told::Reconnected(again),
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((first, failed), (&acquired, &RenewalFailed::new("a", error)));
    assert_ne!(first, &Acquired::new("a"));
    assert_eq!((released.at, renewed.holds.as_slice()), (UNIX_EPOCH, &[7][..]));
    assert_eq!((lost.reason, &*again.address), (LostReason::Gone, "127.0.0.1:6379"));
}
