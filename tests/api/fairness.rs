//! A caller that takes a lock again and again leaves it to the waiting callers of other clients.

use crate::harness::{Server, holds_during_waits};
use leasehold::kind::LockKind;
use leasehold::{Client, Guard, Lock, MultiLock, RedLock, Result};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// The number of holds of the waiting client.
const TURNS: usize = 40;

/// The mean number of holds of the loop during a wait of another client, at most.
///
/// A run is a few holds. On a busy machine the waiting client misses some yields. Without yields
/// there are 30 to 200 holds.
const MOST_HOLDS: usize = 25;

/// The same during a wait of another caller of the same client.
const MOST_HOLDS_OF_CLIENT: usize = 100;

/// Checks the holds of a loop while another client waits. See [`holds_during_waits`].
fn check_turns<G>(what: &str, take: impl Fn() -> Option<G> + Sync, wait: impl Fn()) {
    let passed = holds_during_waits(TURNS, take, wait);
    println!("{what}: {passed} holds in {TURNS} waits");
    assert!(passed <= TURNS * MOST_HOLDS, "{what}: {passed} holds in {TURNS} waits");
}

/// The same while another caller of the same client waits.
fn check_turns_of_client<G>(what: &str, take: impl Fn() -> Option<G> + Sync, wait: impl Fn()) {
    let passed = holds_during_waits(TURNS, take, wait);
    println!("{what}: {passed} holds in {TURNS} waits");
    assert!(passed <= TURNS * MOST_HOLDS_OF_CLIENT, "{what}: {passed} holds in {TURNS} waits");
}

fn lock<K: LockKind>(lock: &Lock<K>) -> Option<Guard<K>> {
    Some(lock.lock().expect("the server answers"))
}

fn try_lock<K: LockKind>(lock: &Lock<K>) -> Option<Guard<K>> {
    lock.try_lock().expect("the server answers")
}

fn take_turn<K: LockKind>(lock: &Lock<K>) {
    let guard = lock.try_lock_for(MINUTE).expect("the server answers");
    guard.expect("the loop yields").unlock().expect("the lock is held");
}

fn two_clients() -> (Server, [Client; 2]) {
    let server = Server::start();
    let clients = [(); 2].map(|()| Client::open(server.url()).expect("the server answers"));
    (server, clients)
}

#[test]
fn a_holder_in_a_loop_yields_to_another_client() {
    let (_server, [here, there]) = two_clients();
    let (mine, theirs) = (here.lock("plain"), there.lock("plain"));
    check_turns("a plain lock", || lock(&mine), || take_turn(&theirs));
    let (mine, theirs) = (here.fenced_lock("fenced"), there.fenced_lock("fenced"));
    check_turns("a fenced lock", || lock(&mine), || take_turn(&theirs));
}

#[test]
fn a_named_holder_in_a_loop_yields_to_other_clients_and_other_holders() {
    let (_server, [here, there]) = two_clients();
    let named = |client: &Client, holder: &str| client.lock("a").with_holder(holder);
    let (mine, theirs) = (named(&here, "tx-1"), named(&there, "tx-2"));
    check_turns("another client", || lock(&mine), || take_turn(&theirs));
    let another = named(&here, "tx-3");
    check_turns_of_client("the same client", || lock(&mine), || take_turn(&another));
    check_turns("without waiting", || try_lock(&mine), || take_turn(&theirs));
    let plain = there.lock("a");
    check_turns("a caller without a name", || lock(&mine), || take_turn(&plain));
}

#[test]
fn a_reader_in_a_loop_yields_to_a_writer_and_a_writer_to_all() {
    let (_server, [here, there]) = two_clients();
    let sides = |client: &Client| {
        let rw = client.rw_lock("a");
        (rw.read_lock(), rw.write_lock())
    };
    let ((reads, writes), (their_reads, their_writes)) = (sides(&here), sides(&there));
    check_turns("a writer", || lock(&reads), || take_turn(&their_writes));
    check_turns("a writer beside tries", || try_lock(&reads), || take_turn(&their_writes));
    check_turns_of_client("the own writer", || lock(&reads), || take_turn(&writes));
    check_turns("a reader", || lock(&writes), || take_turn(&their_reads));
    check_turns("a second writer", || lock(&writes), || take_turn(&their_writes));
    check_turns_of_client("the own reader", || lock(&writes), || take_turn(&reads));
}

#[test]
fn a_loop_of_calls_that_do_not_wait_yields() {
    let (_server, [here, there]) = two_clients();
    let (mine, theirs) = (here.lock("a"), there.lock("a"));
    check_turns("try_lock", || try_lock(&mine), || take_turn(&theirs));
    let at_once = || mine.try_lock_for(Duration::ZERO).expect("the server answers");
    check_turns("try_lock_for zero", at_once, || take_turn(&theirs));
    let owned = || mine.try_lock_owned().expect("the server answers");
    check_turns("try_lock_owned", owned, || take_turn(&theirs));
}

#[test]
fn a_multi_lock_in_a_loop_yields() {
    let (_server, [here, there]) = two_clients();
    let both = |client: &Client| MultiLock::new([client.lock("a"), client.lock("b")]);
    let (mine, theirs) = (both(&here), both(&there));
    let lock = || Some(mine.lock().expect("the server answers"));
    let wait = || theirs.lock().expect("the server answers").unlock().expect("it is held");
    check_turns("lock", lock, wait);
    let tries = || mine.try_lock().expect("the server answers");
    check_turns("try_lock", tries, wait);
    let single = there.lock("b");
    check_turns("one member", lock, || take_turn(&single));
}

#[test]
fn a_red_lock_in_a_loop_yields() {
    let servers = [(); 3].map(|()| Server::start());
    let open = |server: &Server| Client::open(server.url()).expect("the server answers");
    let [mine, theirs] = [(); 2].map(|()| RedLock::new(servers.iter().map(open), "a"));
    let lock = || Some(mine.lock().expect("the servers answer"));
    let wait = || theirs.lock().expect("the servers answer").unlock().expect("it is held");
    check_turns("lock", lock, wait);
    let tries = || mine.try_lock().expect("the servers answer");
    check_turns("try_lock", tries, wait);
}

#[test]
fn a_permit_holder_in_a_loop_yields() {
    let (_server, [here, there]) = two_clients();
    let [mine, theirs] = [here, there].map(|client| client.semaphore("a").with_permits(1));
    let wait = || theirs.acquire().expect("the server answers").release().expect("it is held");
    check_turns("acquire", || Some(mine.acquire().expect("the server answers")), wait);
}

/// Without a process that is known to listen, a call that does not wait takes every free lock.
#[test]
fn a_call_that_does_not_wait_yields_to_nobody_without_another_client() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let (plain, rw) = (client.lock("plain"), client.rw_lock("rw"));
    let (spin, named) = (client.spin_lock("spin"), client.lock("named").with_holder("tx-1"));
    for _ in 0..200 {
        plain.try_lock()?.expect("it is free").unlock()?;
        spin.try_lock()?.expect("it is free").unlock()?;
        spin.try_lock_for(Duration::ZERO)?.expect("it is free").unlock()?;
        named.try_lock()?.expect("it is free").unlock()?;
        rw.try_read()?.expect("it is free").unlock()?;
        rw.try_write()?.expect("it is free").unlock()?;
    }
    Ok(())
}
