//! A forked child: what it does with a client of its parent must not harm that.
//!
//! This package forbids unsafe code, so the fork is another's.

use crate::harness::process::alone;
use crate::harness::wait::BOUND;
use crate::harness::{Server, eventually, join, sleeping};
use fork::{Fork, fork, waitpid};
use leasehold::{AnyLock, Client, Lock, MultiLock, OwnedGuard, RedLock, Result};
use std::mem;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// A client whose leases, polls and time-outs outlast a test.
fn client_of(server: &Server) -> Client {
    let builder = Client::builder().single(server.url()).watchdog_timeout(MINUTE);
    builder.poll_interval(MINUTE).response_timeout(MINUTE).build().expect("the server answers")
}

/// What a child does with its copies, and whether it is told that it may not.
type Act = (&'static str, fn(&Client, &Lock, OwnedGuard) -> Result<()>, bool);

const ACTS: [Act; 9] = [
    ("drops", drops, false),
    ("unlocks", |_, _, guard| guard.unlock(), true),
    ("extends", |_, _, guard| guard.extend(MINUTE), true),
    ("forces", |_, lock, guard| keeping(guard, lock.force_unlock().map(drop)), true),
    ("asks", |_, lock, guard| keeping(guard, lock.is_locked().map(drop)), true),
    ("locks another", |client, _, guard| keeping(guard, client.lock("b").lock().map(drop)), true),
    ("is in its own way", |_, lock, guard| keeping(guard, lock.try_lock().map(drop)), true),
    ("stands in line", |_, lock, guard| keeping(guard, lock.lock_owned().map(drop)), true),
    ("closes", closes, false),
];

fn drops(_: &Client, _: &Lock, guard: OwnedGuard) -> Result<()> {
    drop(guard);
    Ok(())
}

fn closes(client: &Client, _: &Lock, guard: OwnedGuard) -> Result<()> {
    client.close();
    keeping(guard, Ok(()))
}

fn keeping(guard: OwnedGuard, outcome: Result<()>) -> Result<()> {
    mem::forget(guard);
    outcome
}

const FINE: i32 = 0;
const REFUSED: i32 = 1;
const ELSE: i32 = 2;
/// The child has not ended in time.
const HANGS: i32 = 255;

/// Runs it in a child, and gives the child's exit code.
fn in_child(act: impl FnOnce() -> i32) -> i32 {
    match fork().expect("a process") {
        Fork::Child => {
            thread::spawn(|| {
                thread::sleep(BOUND);
                std::process::exit(HANGS);
            });
            std::process::exit(act())
        }
        Fork::Parent(child) => {
            let status = waitpid(child).expect("it is ours");
            assert_eq!(status & 0xff, 0, "a signal ended it: {status:#x}");
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
    for (what, act, is_told) in ACTS {
        let lock = client.lock("a");
        let mut guard = Some(lock.lock_owned().expect("it is free"));
        // Who stands in line here is not there in a child, and its place is.
        let behind = lock.clone();
        let waiter = sleeping("waiter", move || behind.lock()?.unlock());
        let heard = server.calls("evalsha");
        let code = in_child(|| match act(&client, &lock, guard.take().expect("its copy")) {
            Ok(()) => FINE,
            Err(error) if error.is_configuration() => REFUSED,
            Err(_) => ELSE,
        });
        assert_eq!(code, if is_told { REFUSED } else { FINE }, "a child that {what}");
        assert_eq!(server.calls("evalsha"), heard, "a child that {what} was heard");
        let guard = guard.expect("the child took a copy");
        assert!(guard.is_held() && lock.is_locked().expect("all is well"), "{what}");
        guard.unlock().expect("it is held, here and there");
        join(waiter).expect("it gets in");
    }
    client.close();
    eventually("nothing is left", || server.keys().is_empty());
}

/// A verb or query, and its name.
type Verb<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>);

/// All verbs and queries of a lock that send a command, whatever its kind. What they return is
/// forgotten: a guard's drop in the child is not the subject.
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

/// Long enough that no wait ends before its process is looked at.
const BRIEF: Duration = Duration::from_secs(5);

/// Runs all of these in a child. Returns the name of the first that is not refused.
fn first_accepted<'a>(verbs: Vec<Verb<'a>>) -> Option<&'static str> {
    let names: Vec<_> = verbs.iter().map(|(name, _)| *name).collect();
    let code = in_child(|| {
        let is_refused = |verb: &Verb<'_>| verb.1().is_err_and(|error| error.is_configuration());
        let accepted = verbs.iter().position(|verb| !is_refused(verb));
        accepted.map_or(FINE, |at| i32::try_from(at).expect("few verbs") + 1)
    });
    match code {
        FINE => None,
        HANGS => Some("one that does not return"),
        number => Some(names[usize::try_from(number).expect("a code") - 1]),
    }
}

/// Tries all verbs in children: the lock is free, held by the parent, and waited for there.
/// The ends and extensions of guards are tried too. `$rival` waits while `$lock` is held.
macro_rules! is_refused_in_children {
    ($kind:expr, $lock:expr) => {{
        let lock = $lock;
        is_refused_in_children!($kind, lock.clone(), lock);
    }};
    ($kind:expr, $lock:expr, $rival:expr) => {{
        let (kind, lock, behind) = ($kind, $lock, $rival);
        assert_eq!(first_accepted(verbs_of!(&lock)), None, "{kind}, free");
        let guard = lock.lock_owned().expect("free");
        assert_eq!(first_accepted(verbs_of!(&lock)), None, "{kind}, held");
        let waiter = sleeping("waiter", move || behind.lock_owned()?.unlock());
        assert_eq!(first_accepted(verbs_of!(&lock)), None, "{kind}, held and waited for");
        let cell = Mutex::new(Some(guard));
        let copy = || cell.lock().expect("no panic").take().expect("its copy");
        let ends: Vec<Verb<'_>> = vec![("Guard::unlock", Box::new(|| copy().unlock()))];
        assert_eq!(first_accepted(ends), None, "{kind}");
        let extends: Vec<Verb<'_>> =
            vec![("Guard::extend", Box::new(|| mem::ManuallyDrop::new(copy()).extend(MINUTE)))];
        assert_eq!(first_accepted(extends), None, "{kind}");
        assert_eq!(
            in_child(|| {
                drop(copy());
                FINE
            }),
            FINE,
            "{kind}: a drop"
        );
        let guard = copy();
        assert!(guard.is_held(), "{kind}: the parent's hold");
        guard.unlock().expect("it is held, here and there");
        join(waiter).expect("it gets in");
        lock.lock_owned().expect("free").detach();
        let detached: Vec<Verb<'_>> = vec![("unlock", Box::new(|| lock.unlock()))];
        assert_eq!(first_accepted(detached), None, "{kind}, detached");
        lock.unlock().expect("it is detached here");
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
    is_refused_in_children!("plain", client.lock("plain"));
    is_refused_in_children!("fenced", client.fenced_lock("fenced"));
    is_refused_in_children!("fair", client.fair_lock("fair"));
    is_refused_in_children!("spin", client.spin_lock("spin"));
    is_refused_in_children!("write", rw.write_lock());
    is_refused_in_children!("read", rw.read_lock(), rw.write_lock());
    let named = |holder: &str| client.lock("named").with_holder(holder);
    is_refused_in_children!("named", named("job"), named("another"));
    let several = MultiLock::new([client.lock("one"), client.lock("two")]);
    is_refused_in_children!("multi", several);
    let mixed = [client.lock("three").into(), AnyLock::from(client.fair_lock("four"))];
    is_refused_in_children!("multi of two kinds", MultiLock::new(mixed));
    client.close();
    let is_kept = |key: &String| {
        key.starts_with("redisson_lock_token:") || key.starts_with("leasehold_request:")
    };
    eventually("no lock is left", || server.keys().iter().all(is_kept));
}

#[test]
fn every_verb_of_a_red_lock_is_refused_in_a_child() {
    if !alone("fork::every_verb_of_a_red_lock_is_refused_in_a_child") {
        return;
    }
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let clients: Vec<_> = servers.iter().map(client_of).collect();
    is_refused_in_children!("red", RedLock::new(clients.clone(), "a"));
    let mut guard = Some(RedLock::new(clients.clone(), "a").lock_owned().expect("free"));
    let mut copies = Some(clients);
    let code = in_child(|| {
        drop((guard.take(), copies.take()));
        FINE
    });
    assert_eq!(code, FINE, "the last drop of a client, which owes a release");
    let (guard, clients) = (guard.expect("a copy"), copies.expect("a copy"));
    // A child that makes its own clients is another process like any other.
    let code = in_child(|| {
        let clients: Vec<_> = servers.iter().map(client_of).collect();
        let lock = RedLock::new(clients.clone(), "a");
        let is_busy = lock.try_lock().expect("an answer").is_none();
        let other = RedLock::new(clients.clone(), "b").lock().expect("free");
        let is_released = other.unlock().is_ok();
        clients.iter().for_each(Client::close);
        if is_busy && is_released { FINE } else { ELSE }
    });
    assert_eq!(code, FINE, "clients of the child");
    guard.unlock().expect("held");
    clients.iter().for_each(Client::close);
    eventually("nothing is left", || servers.iter().all(|server| server.keys().is_empty()));
}
