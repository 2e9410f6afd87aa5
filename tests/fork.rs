//! A forked child: what it does with a client of its parent must not harm that.
//!
//! This package forbids unsafe code, so the fork is another's.

mod support;

use fork::{Fork, fork, waitpid};
use leasehold::{Client, Lock, OwnedGuard, Result};
use std::mem;
use std::time::Duration;
use support::{Server, eventually, join, sleeping};

const MINUTE: Duration = Duration::from_secs(60);

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

/// Runs it in a child, and gives the child's exit code.
fn in_child(act: impl FnOnce() -> i32) -> i32 {
    match fork().expect("a process") {
        Fork::Child => std::process::exit(act()),
        Fork::Parent(child) => {
            let status = waitpid(child).expect("it is ours");
            assert_eq!(status & 0xff, 0, "a signal ended it: {status:#x}");
            status >> 8
        }
    }
}

#[test]
fn a_child_is_refused_and_takes_nothing_from_its_parent() {
    let server = Server::start();
    let builder = Client::builder().single(server.url()).poll_bound(MINUTE);
    let client = builder.build().expect("the server answers");
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
