//! A forked child does not harm the client of its parent.
//!
//! The crate `fork` starts the child, because this package forbids unsafe code.

use crate::harness::process::alone;
use crate::harness::wait::{BOUND, threads_named};
use crate::harness::{Server, eventually, join, sleeping};
use fork::{Fork, fork, waitpid};
use leasehold::{AnyLock, Client, Events, Lock, MultiLock, OwnedGuard, RedLock, Result};
use std::mem;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a client whose leases, polls and time-outs outlast a test.
fn client_of(server: &Server) -> Client {
    let builder = Client::builder().single(server.url()).watchdog_timeout(MINUTE).announce(false);
    builder.poll_interval(MINUTE).response_timeout(MINUTE).build().expect("the server answers")
}

/// The name of an act of a child, the act, and whether the act is refused.
type Act = (&'static str, fn(&Client, &Lock, OwnedGuard) -> Result<()>, bool);

const ACTS: [Act; 14] = [
    ("drops", drops, false),
    ("unlocks", |_, _, guard| guard.unlock(), true),
    ("extends", |_, _, guard| guard.extend(MINUTE), true),
    ("unlocks by force", |_, lock, guard| forget_guard(guard, lock.force_unlock().map(drop)), true),
    ("queries", |_, lock, guard| forget_guard(guard, lock.is_locked().map(drop)), true),
    (
        "locks another",
        |client, _, guard| forget_guard(guard, client.lock("b").lock().map(drop)),
        true,
    ),
    ("tries a held lock", |_, lock, guard| forget_guard(guard, lock.try_lock().map(drop)), true),
    (
        "waits for a held lock",
        |_, lock, guard| forget_guard(guard, lock.lock_owned().map(drop)),
        true,
    ),
    ("closes", closes, false),
    ("registers a closure", registers_a_closure, false),
    ("sets a listener", sets_a_listener, true),
    (
        "takes permits",
        |client, _, guard| forget_guard(guard, client.plain_semaphore("b").acquire(1)),
        true,
    ),
    ("waits for a latch", |client, _, guard| forget_guard(guard, client.latch("b").wait()), true),
    ("drops a guard of a latch", counts_down, false),
];

fn drops(_: &Client, _: &Lock, guard: OwnedGuard) -> Result<()> {
    drop(guard);
    Ok(())
}

fn closes(client: &Client, _: &Lock, guard: OwnedGuard) -> Result<()> {
    client.close();
    forget_guard(guard, Ok(()))
}

fn counts_down(client: &Client, _: &Lock, guard: OwnedGuard) -> Result<()> {
    drop(client.latch("b").count_down_on_drop());
    forget_guard(guard, Ok(()))
}

/// The child drops the closure, and has no events thread.
fn registers_a_closure(_: &Client, _: &Lock, guard: OwnedGuard) -> Result<()> {
    let (sender, receiver) = mpsc::channel::<()>();
    guard.on_lost(move || drop(sender));
    assert!(receiver.recv().is_err() && threads_named("leasehold-events") == 0);
    forget_guard(guard, Ok(()))
}

fn sets_a_listener(client: &Client, _: &Lock, guard: OwnedGuard) -> Result<()> {
    let lock = client.lock("b").with_events(Arc::new(Ignores));
    assert_eq!(threads_named("leasehold-events"), 0);
    forget_guard(guard, lock.try_lock().map(drop))
}

/// A listener that ignores all events.
struct Ignores;

impl Events for Ignores {}

/// Forgets the guard and returns the outcome.
fn forget_guard(guard: OwnedGuard, outcome: Result<()>) -> Result<()> {
    mem::forget(guard);
    outcome
}

const SUCCESS: i32 = 0;
const REFUSED: i32 = 1;
const OTHER: i32 = 2;
/// The child has not ended in time.
const HANGS: i32 = 255;

/// Drops a copy of the value in a forked child, and returns the value of this process.
#[track_caller]
fn drop_in_child<T>(what: &str, value: T) -> T {
    let mut copy = Some(value);
    let code = in_child(|| {
        drop(copy.take());
        SUCCESS
    });
    assert_eq!(code, SUCCESS, "{what}: a drop in a child");
    copy.expect("the child has taken only its copy")
}

/// Runs `act` in a forked child and returns the exit code.
pub(crate) fn in_child(act: impl FnOnce() -> i32) -> i32 {
    match fork().expect("the process can be forked") {
        Fork::Child => {
            thread::spawn(|| {
                thread::sleep(BOUND);
                std::process::exit(HANGS);
            });
            std::process::exit(act())
        }
        Fork::Parent(child) => {
            let status = waitpid(child).expect("the child can be waited for");
            assert_eq!(status & 0xff, 0, "a signal ended the child: {status:#x}");
            status >> 8
        }
    }
}

#[test]
fn a_child_is_refused_and_takes_nothing_from_its_parent() {
    if !alone("fork::a_child_is_refused_and_takes_nothing_from_its_parent") {
        return;
    }
    let server = Server::start();
    let client = client_of(&server);
    for (what, act, is_refused) in ACTS {
        let lock = client.lock("a");
        let guard = lock.lock_owned().expect("the lock is free");
        // Starts the events thread of the parent; the drop of the child's copy must not use it.
        guard.on_lost(|| ());
        let mut guard = Some(guard);
        // A child has the queue entry of the waiter, but not its thread.
        let behind = lock.clone();
        let waiter = sleeping("waiter", move || behind.lock()?.unlock());
        let calls = server.calls("evalsha");
        let code =
            in_child(|| match act(&client, &lock, guard.take().expect("the copy of the child")) {
                Ok(()) => SUCCESS,
                Err(error) if error.is_configuration() => REFUSED,
                Err(_) => OTHER,
            });
        assert_eq!(code, if is_refused { REFUSED } else { SUCCESS }, "a child that {what}");
        assert_eq!(server.calls("evalsha"), calls, "a child that {what} sends a request");
        let guard = guard.expect("the child has taken only its copy");
        assert!(guard.is_held() && lock.is_locked().expect("the server answers"), "{what}");
        guard.unlock().expect("the parent holds the lock");
        join(waiter).expect("the waiter gets the lock");
    }
    client.close();
    eventually("all locks are free", || server.keys().is_empty());
}

#[test]
fn a_child_does_not_take_over_a_hold_of_its_parent_that_lingers() {
    if !alone("fork::a_child_does_not_take_over_a_hold_of_its_parent_that_lingers") {
        return;
    }
    let server = Server::start();
    let client = client_of(&server);
    let lock = client.lock("a").with_linger(MINUTE / 2);
    drop(lock.lock().expect("free"));
    let calls = server.calls("evalsha");
    let takes: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("lock", &|| lock.lock().map(drop)),
        ("try_lock_owned", &|| lock.try_lock_owned().map(drop)),
        ("fixed lease", &|| client.lock("a").with_lease(MINUTE).lock().map(drop)),
        ("another kind", &|| client.fair_lock("a").lock().map(drop)),
    ];
    for (what, take) in takes {
        let code = in_child(|| match take() {
            Err(error) if error.is_configuration() => REFUSED,
            _ => OTHER,
        });
        assert_eq!(code, REFUSED, "{what}");
    }
    let client = drop_in_child("the client", client);
    assert_eq!(server.calls("evalsha"), calls, "a child sends a request");
    drop(client.lock("a").lock().expect("it lingers"));
    assert_eq!((server.calls("evalsha"), client.stats().lingered()), (calls, 1));
    client.close();
    assert!(server.keys().is_empty());
}

/// The name and the call of a verb or query.
type Verb<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>);

/// Returns all verbs and queries of a lock of any kind that send a command.
///
/// The calls forget their guards, because a drop in the child is not the subject.
macro_rules! verbs_of {
    ($lock:expr) => {{
        let lock = $lock;
        let soon = || Instant::now() + BRIEF;
        let verbs: Vec<Verb<'_>> = vec![
            ("lock", Box::new(|| lock.lock().map(mem::forget))),
            ("try_lock", Box::new(|| lock.try_lock().map(mem::forget))),
            ("try_lock_for", Box::new(|| lock.try_lock_for(BRIEF).map(mem::forget))),
            ("try_lock_until", Box::new(move || lock.try_lock_until(soon()).map(mem::forget))),
            ("lock_owned", Box::new(|| lock.lock_owned().map(mem::forget))),
            ("try_lock_owned", Box::new(|| lock.try_lock_owned().map(mem::forget))),
            ("try_lock_for_owned", Box::new(|| lock.try_lock_for_owned(BRIEF).map(mem::forget))),
            (
                "try_lock_until_owned",
                Box::new(move || lock.try_lock_until_owned(soon()).map(mem::forget)),
            ),
            ("is_locked", Box::new(|| lock.is_locked().map(drop))),
            ("remaining", Box::new(|| lock.remaining().map(drop))),
            ("force_unlock", Box::new(|| lock.force_unlock().map(drop))),
        ];
        verbs
    }};
}

/// A deadline that does not pass before the wait checks its process.
const BRIEF: Duration = Duration::from_secs(5);

/// Runs all verbs in a child and returns the name of the first accepted verb.
fn first_accepted<'a>(verbs: Vec<Verb<'a>>) -> Option<&'static str> {
    let names: Vec<_> = verbs.iter().map(|(name, _)| *name).collect();
    let code = in_child(|| {
        let is_refused = |verb: &Verb<'_>| verb.1().is_err_and(|error| error.is_configuration());
        let accepted = verbs.iter().position(|verb| !is_refused(verb));
        accepted.map_or(SUCCESS, |at| i32::try_from(at).expect("few verbs") + 1)
    });
    match code {
        SUCCESS => None,
        HANGS => Some("a verb that does not return"),
        number => Some(names[usize::try_from(number).expect("a code") - 1]),
    }
}

/// Checks that children are refused all verbs of a free, a held and an awaited lock.
///
/// Checks the ends and extensions of guards too. `$rival` waits while `$lock` is held.
macro_rules! assert_refused_in_children {
    ($kind:expr, $lock:expr) => {{
        let lock = $lock;
        assert_refused_in_children!($kind, lock.clone(), lock);
    }};
    ($kind:expr, $lock:expr, $rival:expr) => {{
        let (kind, lock, behind) = ($kind, $lock, $rival);
        assert_eq!(first_accepted(verbs_of!(&lock)), None, "{kind}, free");
        let guard = lock.lock_owned().expect("the lock is free");
        assert_eq!(first_accepted(verbs_of!(&lock)), None, "{kind}, held");
        let waiter = sleeping("waiter", move || behind.lock_owned()?.unlock());
        assert_eq!(first_accepted(verbs_of!(&lock)), None, "{kind}, held and waited for");
        let cell = Mutex::new(Some(guard));
        let copy =
            || cell.lock().expect("no panic").take().expect("the process still has its copy");
        let ends: Vec<Verb<'_>> = vec![("Guard::unlock", Box::new(|| copy().unlock()))];
        assert_eq!(first_accepted(ends), None, "{kind}");
        let extends: Vec<Verb<'_>> =
            vec![("Guard::extend", Box::new(|| mem::ManuallyDrop::new(copy()).extend(MINUTE)))];
        assert_eq!(first_accepted(extends), None, "{kind}");
        let guard = drop_in_child(kind, copy());
        assert!(guard.is_held(), "{kind}: the parent's hold");
        guard.unlock().expect("the parent holds the lock");
        join(waiter).expect("the waiter gets the lock");
        lock.lock_owned().expect("the lock is free").detach();
        let detached: Vec<Verb<'_>> = vec![("unlock", Box::new(|| lock.unlock()))];
        assert_eq!(first_accepted(detached), None, "{kind}, detached");
        lock.unlock().expect("the parent has detached the hold");
    }};
}

#[test]
fn every_verb_of_every_kind_is_refused_in_a_child() {
    if !alone("fork::every_verb_of_every_kind_is_refused_in_a_child") {
        return;
    }
    let server = Server::start();
    let client = client_of(&server);
    let rw = client.rw_lock("read and write");
    assert_refused_in_children!("plain", client.lock("plain"));
    assert_refused_in_children!("fenced", client.fenced_lock("fenced"));
    assert_refused_in_children!("fair", client.fair_lock("fair"));
    assert_refused_in_children!("queue", client.queue_lock("queue"));
    assert_refused_in_children!("spin", client.spin_lock("spin"));
    assert_refused_in_children!("write", rw.write_lock());
    assert_refused_in_children!("read", rw.read_lock(), rw.write_lock());
    let named = |holder: &str| client.lock("named").with_holder(holder);
    assert_refused_in_children!("named", named("job"), named("another"));
    let several = MultiLock::new([client.lock("one"), client.lock("two")]);
    assert_refused_in_children!("multi", several);
    let mixed = [client.lock("three").into(), AnyLock::from(client.fair_lock("four"))];
    assert_refused_in_children!("multi of two kinds", MultiLock::new(mixed));
    client.close();
    let is_permanent = |key: &String| {
        key.starts_with("redisson_lock_token:") || key.starts_with("leasehold_request:")
    };
    eventually("no lock is left", || server.keys().iter().all(is_permanent));
}

#[test]
fn every_verb_of_a_red_lock_is_refused_in_a_child() {
    if !alone("fork::every_verb_of_a_red_lock_is_refused_in_a_child") {
        return;
    }
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let clients: Vec<_> = servers.iter().map(client_of).collect();
    assert_refused_in_children!("red", RedLock::new(clients.clone(), "a"));
    let guard = RedLock::new(clients.clone(), "a").lock_owned().expect("the lock is free");
    let (guard, clients) =
        drop_in_child("the last handles of clients with a hold", (guard, clients));
    // A child may create clients of its own.
    let code = in_child(|| {
        let clients: Vec<_> = servers.iter().map(client_of).collect();
        let lock = RedLock::new(clients.clone(), "a");
        let is_refused = lock.try_lock().expect("a reply").is_none();
        let other = RedLock::new(clients.clone(), "b").lock().expect("the lock is free");
        let is_released = other.unlock().is_ok();
        for client in &clients {
            client.close();
        }
        if is_refused && is_released { SUCCESS } else { OTHER }
    });
    assert_eq!(code, SUCCESS, "clients of the child");
    guard.unlock().expect("the lock is held");
    for client in &clients {
        client.close();
    }
    eventually("all locks are free", || servers.iter().all(|server| server.keys().is_empty()));
}

#[test]
fn every_verb_of_elections_is_refused_in_a_child() {
    if !alone("fork::every_verb_of_elections_is_refused_in_a_child") {
        return;
    }
    let server = Server::start();
    let client = client_of(&server);
    let election = client.election("a").with_value("x");
    let term = election.campaign().expect("nobody leads");
    let behind = election.clone();
    let waiter = sleeping("waiter", move || behind.campaign());
    let stop = leasehold::CancelToken::new();
    let run = || election.run(&stop, |_| unreachable!("a child leads nothing"));
    let verbs: Vec<Verb<'_>> = vec![
        ("Election::campaign", Box::new(|| election.campaign().map(mem::forget))),
        ("Election::try_campaign", Box::new(|| election.try_campaign().map(mem::forget))),
        ("Election::run", Box::new(run)),
        ("Election::leader", Box::new(|| election.leader().map(drop))),
        ("Election::waiting", Box::new(|| election.waiting().map(drop))),
        ("Election::observe", Box::new(|| election.observe().map(drop))),
    ];
    assert_eq!(first_accepted(verbs), None);
    let term = drop_in_child("a term", term);
    let leader = election.leader().expect("the server answers").expect("a leader");
    assert_eq!((leader.value(), leader.token()), ("x", term.token()));
    term.resign().expect("the parent has the term");
    join(waiter).expect("the next candidate wins").resign().expect("it leads");
    client.close();
}

#[test]
fn every_verb_of_semaphores_and_latches_is_refused_in_a_child() {
    if !alone("fork::every_verb_of_semaphores_and_latches_is_refused_in_a_child") {
        return;
    }
    let server = Server::start();
    let client = client_of(&server);
    let jobs = client.semaphore("jobs").with_permits(2);
    let (stock, latch) = (client.plain_semaphore("stock"), client.latch("latch"));
    stock.release(2).expect("the server answers");
    assert!(latch.try_set_count(2).expect("the server answers"));
    let held = (jobs.acquire().expect("it is free"), latch.count_down_on_drop());
    // A child has the place of the waiter, but not its thread.
    let (behind, opens) = (stock.clone(), latch.clone());
    let waiter = sleeping("waiter", move || behind.acquire(3));
    let opens = sleeping("opens", move || opens.wait());
    let verbs: Vec<Verb<'_>> = vec![
        ("Semaphore::acquire", Box::new(|| jobs.acquire().map(mem::forget))),
        ("Semaphore::try_acquire", Box::new(|| jobs.try_acquire().map(mem::forget))),
        ("Semaphore::acquire_many", Box::new(|| jobs.acquire_many(2).map(mem::forget))),
        ("Semaphore::available", Box::new(|| jobs.available().map(drop))),
        ("Semaphore::in_use", Box::new(|| jobs.in_use().map(drop))),
        ("Semaphore::permits", Box::new(|| jobs.permits().map(drop))),
        ("Semaphore::resize", Box::new(|| jobs.resize(3))),
        ("PlainSemaphore::try_set_permits", Box::new(|| stock.try_set_permits(1).map(drop))),
        ("PlainSemaphore::add_permits", Box::new(|| stock.add_permits(1))),
        ("PlainSemaphore::release", Box::new(|| stock.release(1))),
        ("PlainSemaphore::drain", Box::new(|| stock.drain().map(drop))),
        ("PlainSemaphore::available", Box::new(|| stock.available().map(drop))),
        ("PlainSemaphore::acquire", Box::new(|| stock.acquire(1))),
        ("PlainSemaphore::try_acquire", Box::new(|| stock.try_acquire(1).map(drop))),
        ("PlainSemaphore::try_acquire_for", Box::new(|| stock.try_acquire_for(3, BRIEF).map(drop))),
        ("PlainSemaphore::waiting", Box::new(|| stock.waiting().map(drop))),
        ("CountDownLatch::try_set_count", Box::new(|| latch.try_set_count(1).map(drop))),
        ("CountDownLatch::count_down", Box::new(|| latch.count_down())),
        ("CountDownLatch::count", Box::new(|| latch.count().map(drop))),
        ("CountDownLatch::delete", Box::new(|| latch.delete().map(drop))),
        ("CountDownLatch::wait", Box::new(|| latch.wait())),
        ("CountDownLatch::wait_for", Box::new(|| latch.wait_for(BRIEF).map(drop))),
        ("CountDownLatch::waiting", Box::new(|| latch.waiting().map(drop))),
    ];
    assert_eq!(first_accepted(verbs), None);
    let (permit, done) = drop_in_child("a permit and a guard of a latch", held);
    assert_eq!(stock.available().expect("the server answers"), 2);
    assert_eq!(latch.count().expect("the server answers"), 2);
    assert!(permit.is_held() && permit.check().is_ok());
    permit.release().expect("the parent has the permit");
    stock.release(1).expect("the server answers");
    join(waiter).expect("the waiter gets the permits");
    latch.count_down().expect("the server answers");
    drop(done);
    join(opens).expect("the latch is open");
    client.close();
    let is_count = |key: &String| ["jobs", "stock"].contains(&&**key);
    eventually("only the counts are left", || server.keys().iter().all(is_count));
}
