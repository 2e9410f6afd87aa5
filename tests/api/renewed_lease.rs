//! The length of a renewed lease per handle (`with_renewed_lease`).

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::{Server, eventually, exists, join, pttl, sleeping};
use leasehold::kind::LockKind;
use leasehold::{Client, Lock, MultiLock, RedLock, Result};
use std::time::Duration;

/// Far below the 30 s of the client.
const SHORT: Duration = Duration::from_secs(1);

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).expect("a lease")
}

/// Asserts that the lock `name` keeps a lease of `SHORT`, over three renewals of its client.
#[track_caller]
fn is_renewed_briefly(server: &Server, client: &Client, name: &str) {
    let before = client.stats().renewals();
    eventually("three renewals", || {
        let left = pttl(server, name);
        assert!((1..=millis(SHORT)).contains(&left), "{name} has {left} ms left");
        client.stats().renewals() >= before + 3
    });
}

fn for_kind<K: LockKind>(server: &Server, make: impl Fn(&Client) -> Lock<K>) {
    let client = build(Client::builder().single(server.url()));
    let guard = make(&client).with_renewed_lease(SHORT).lock().expect("free");
    is_renewed_briefly(server, &client, "a");
    assert!(guard.is_held() && guard.remaining() <= SHORT);
    guard.unlock().expect("held");
}

#[test]
fn holds_of_every_kind_keep_the_lease_of_their_handle() {
    let server = Server::start();
    for_kind(&server, |client| client.lock("a"));
    for_kind(&server, |client| client.lock("a").with_holder("job"));
    for_kind(&server, |client| client.fair_lock("a"));
    for_kind(&server, |client| client.queue_lock("a"));
    for_kind(&server, |client| client.spin_lock("a"));
    for_kind(&server, |client| client.rw_lock("a").with_renewed_lease(NEVER).read_lock());
    for_kind(&server, |client| client.rw_lock("a").write_lock());
    for_kind(&server, |client| client.fenced_lock("a"));
}

#[test]
fn permits_and_terms_keep_the_lease_of_their_handle() -> Result<()> {
    let server = Server::start();
    let client = build(Client::builder().single(server.url()));
    let permit = client.semaphore("s").with_permits(1).with_renewed_lease(SHORT).acquire()?;
    let before = client.stats().renewals();
    eventually("three renewals", || {
        let left = client.semaphore("s").holders().expect("an answer")[0].remaining();
        assert!(left.is_some_and(|left| left <= SHORT && !left.is_zero()), "{left:?}");
        client.stats().renewals() >= before + 3
    });
    permit.release()?;
    let term = client.election("e").with_value("x").with_renewed_lease(SHORT).campaign()?;
    is_renewed_briefly(&server, &client, "e");
    let record = pttl(&server, "leasehold_leader:{e}");
    assert!((1..=2 * millis(SHORT)).contains(&record), "{record} ms");
    term.resign()
}

#[test]
fn each_handle_of_a_client_has_its_own_lease() -> Result<()> {
    let server = Server::start();
    let client = build(patient(server.url()));
    let (long, short) = (client.lock("long").lock()?, client.lock("short"));
    let short = short.with_renewed_lease(SHORT).lock()?;
    is_renewed_briefly(&server, &client, "short");
    assert!(pttl(&server, "long") > 2 * millis(SHORT));
    // A re-entry keeps the lease of the hold.
    let inner = client.lock("short").lock()?;
    is_renewed_briefly(&server, &client, "short");
    drop((inner, short, long));

    let members = [client.lock("m1").with_renewed_lease(SHORT), client.lock("m2")];
    let guard = MultiLock::new(members).lock()?;
    is_renewed_briefly(&server, &client, "m1");
    assert!(pttl(&server, "m2") > 2 * millis(SHORT));
    guard.unlock()
}

#[test]
fn the_setting_that_comes_later_counts() -> Result<()> {
    let server = Server::start();
    let client = build(patient(server.url()));
    let lock = client.lock("a");
    let renewed = lock.clone().with_lease(NEVER).with_renewed_lease(SHORT).lock()?;
    is_renewed_briefly(&server, &client, "a");
    renewed.unlock()?;
    let fixed = lock.clone().with_renewed_lease(SHORT).with_lease(NEVER).lock()?;
    assert!(pttl(&server, "a") > 2 * millis(SHORT));
    fixed.unlock()?;
    let short = lock.with_renewed_lease(Duration::from_millis(99));
    assert!(short.try_lock().is_err_and(|error| error.is_configuration()));
    let election = client.election("e").with_renewed_lease(Duration::ZERO);
    assert!(election.campaign().is_err_and(|error| error.is_configuration()));
    let longest = client.lock("b").with_renewed_lease(Duration::MAX).lock()?;
    assert!(longest.is_held());
    longest.unlock()
}

#[test]
fn a_short_lease_is_handed_off_within_the_process() -> Result<()> {
    let server = Server::start();
    let client = build(Client::builder().single(server.url()).local_handoff(9, NEVER));
    let lock = client.lock("a").with_renewed_lease(SHORT);
    let guard = lock.lock()?;
    let other = client.lock("a").with_renewed_lease(2 * SHORT);
    let waiting = sleeping("next", move || other.lock_owned());
    guard.unlock()?;
    let next = join(waiting)?;
    assert_eq!(client.stats().passed_locally(), 1);
    // From its next renewal on, the hold has the lease of the receiver's handle.
    eventually("a longer lease", || pttl(&server, "a") > millis(SHORT));
    next.unlock()?;
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn a_red_lock_has_the_lease_on_each_server() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    let clients = servers.each_ref().map(|server| build(patient(server.url())));
    let guard = RedLock::new(clients.clone(), "a").with_renewed_lease(SHORT).lock()?;
    for (server, client) in servers.iter().zip(&clients) {
        is_renewed_briefly(server, client, "a");
    }
    assert!(guard.is_held() && guard.remaining() <= SHORT);
    guard.unlock()
}
