//! The script calls of semaphores and latches through the library: after `SCRIPT FLUSH`, on a full
//! server, and their cost in commands.

use std::collections::BTreeMap;

use leasehold::Result;

use crate::harness::faults::{BRISK, build, patient, watched};
use crate::harness::{Server, eventually};

#[test]
fn every_script_of_semaphores_and_latches_is_loaded_again_after_a_flush() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let flush = || server.ask::<()>(&["SCRIPT", "FLUSH"]);
    let semaphore = client.semaphore("permits").with_permits(2);
    let permit = semaphore.acquire_many(2)?;
    flush();
    events.renewed(2);
    permit.check()?;
    flush();
    assert!(semaphore.try_acquire()?.is_none());
    flush();
    assert_eq!(semaphore.in_use()?, 2);
    flush();
    semaphore.resize(3)?;
    flush();
    permit.release()?;
    assert_eq!(semaphore.available()?, 3);

    let stock = client.plain_semaphore("stock");
    flush();
    assert!(stock.try_set_permits(5)?);
    flush();
    stock.acquire(2)?;
    flush();
    stock.release(1)?;
    flush();
    assert_eq!(stock.drain()?, 4);

    let latch = client.latch("latch");
    flush();
    assert!(latch.try_set_count(3)?);
    flush();
    latch.count_down()?;
    flush();
    drop(latch.count_down_on_drop());
    eventually("the guard has counted down", || latch.count().is_ok_and(|count| count == 1));
    flush();
    assert!(latch.delete()?);
    flush();
    latch.wait()?;
    assert_eq!(server.calls("eval"), 0, "scripts are called by their digests");
    Ok(())
}

#[test]
fn a_full_server_still_renews_and_frees_permits_and_opens_latches() -> Result<()> {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let semaphore = client.semaphore("permits").with_permits(4);
    let (released, dropped) = (semaphore.acquire_many(2)?, semaphore.acquire()?);
    let stock = client.plain_semaphore("stock");
    assert!(stock.try_set_permits(3)?);
    let [latch, deleted] = ["latch", "deleted"].map(|name| client.latch(name));
    assert!(latch.try_set_count(2)? && deleted.try_set_count(2)?);
    server.refuse_memory();

    events.renewed(4);
    released.check()?;
    dropped.check()?;
    released.release()?;
    drop(dropped);
    eventually("all permits are free", || semaphore.available().is_ok_and(|free| free == 4));
    stock.release(2)?;
    assert_eq!(stock.available()?, 5);
    latch.count_down()?;
    drop(latch.count_down_on_drop());
    latch.wait()?;
    assert!(deleted.delete()?);

    // Calls that take memory are refused, and change nothing.
    let refusals = [
        semaphore.try_acquire().map(drop),
        semaphore.acquire().map(drop),
        semaphore.resize(9),
        stock.try_acquire(1).map(drop),
        stock.acquire(1),
        stock.drain().map(drop),
        client.plain_semaphore("new").try_set_permits(1).map(drop),
        latch.try_set_count(1).map(drop),
    ];
    for refusal in refusals {
        let error = refusal.expect_err("the server is full");
        assert!(error.is_server() && error.code() == Some("OOM"), "{error}");
    }
    server.grant_memory();
    assert_eq!((semaphore.available()?, stock.available()?), (4, 5));
    let own = ["permits", "stock"];
    eventually("no request leaves a record", || server.keys() == own);
    Ok(())
}

/// Runs `pair` often, and asserts the number of each command per run.
#[track_caller]
fn assert_cost(server: &Server, pair: impl Fn() -> Result<()>, expected: &[(&str, u64)]) {
    const RUNS: u64 = 20;
    let records = |key: &String| key.starts_with("leasehold_request:");
    let run = || {
        pair().expect("taken and given back");
        eventually("no record is left", || !server.keys().iter().any(records));
    };
    run(); // loads the scripts
    server.reset_stats();
    for _ in 0..RUNS {
        run();
    }
    let mut commands = BTreeMap::from_iter(server.commandstats());
    // The commands of the harness. Redis before 7 counts no subcommands.
    for own in ["info", "config|resetstat", "config", "client|setname", "client", "keys"] {
        commands.remove(own);
    }
    let expected = expected.iter().map(|(name, calls)| ((*name).to_owned(), calls * RUNS));
    assert_eq!(commands, expected.collect());
}

/// The cost of a permit on the server.
#[test]
fn a_permit_takes_eleven_commands() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let semaphore = client.semaphore("permits").with_permits(4);
    let expected = [
        ("evalsha", 2),
        ("time", 1),
        ("get", 2),
        ("hmget", 1),
        ("zadd", 1),
        ("zrem", 1),
        ("incrby", 2),
        ("publish", 1),
    ];
    assert_cost(&server, || semaphore.acquire()?.release(), &expected);
}

/// The cost of a request with its record on the server.
#[test]
fn a_plain_permit_takes_thirteen_commands() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let stock = client.plain_semaphore("stock");
    assert!(stock.try_set_permits(4).expect("free"));
    let expected = [
        ("evalsha", 2),
        ("get", 2),
        ("decrby", 1),
        ("set", 2),
        ("exists", 1),
        ("del", 3),
        ("incrby", 1),
        ("publish", 1),
    ];
    assert_cost(&server, || stock.acquire(1).and_then(|()| stock.release(1)), &expected);
}
