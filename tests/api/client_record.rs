//! The record with which a client shows its process to others.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::harness::queued::is_listening;
use crate::harness::{ChildProcess, Server, eventually, exists, join, process, pttl, sleeping};
use leasehold::{Builder, Client, Result};

type Record = BTreeMap<String, String>;

/// Returns the key of the record of the client with this id.
pub(crate) fn record_key(client: impl Display) -> String {
    format!("leasehold_client:{{{client}}}")
}

fn record(server: &Server, key: &str) -> Record {
    server.ask(&["HGETALL", key])
}

fn builder(server: &Server) -> Builder {
    Client::builder().single(server.url())
}

/// Returns a client whose record is written.
fn announced(server: &Server, builder: Builder) -> Result<Client> {
    let client = builder.build()?;
    client.lock("first").lock()?.unlock()?;
    eventually("the record is written", || exists(server, &record_key(client.id())));
    Ok(client)
}

fn now_in_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis()
}

#[test]
fn the_record_names_the_process_after_the_first_hold() -> Result<()> {
    let (server, before) = (Server::start(), now_in_ms());
    let client = announced(&server, builder(&server).label("billing"))?;
    let record = record(&server, &record_key(client.id()));
    let fields: Vec<_> = record.keys().map(String::as_str).collect();
    assert_eq!(fields, ["host", "label", "pid", "program", "start", "version"]);
    assert_eq!(record["host"], rustix::system::uname().nodename().to_string_lossy());
    assert_eq!(record["pid"], std::process::id().to_string());
    let program = std::env::current_exe().expect("a running program has a path");
    assert_eq!(Some(record["program"].as_ref()), program.file_name());
    assert_eq!((&*record["label"], &*record["version"]), ("billing", env!("CARGO_PKG_VERSION")));
    let start = record["start"].parse().expect("a number");
    assert!((before..=now_in_ms()).contains(&start), "{start}");
    let ttl = pttl(&server, &record_key(client.id()));
    assert!((1..=30_000).contains(&ttl), "{ttl}");
    Ok(())
}

#[test]
fn a_client_without_a_label_has_no_such_field_and_an_idle_client_no_record() -> Result<()> {
    let server = Server::start();
    let idle = builder(&server).build()?;
    let client = announced(&server, builder(&server))?;
    assert!(!record(&server, &record_key(client.id())).contains_key("label"));
    assert_eq!(record(&server, &record_key(idle.id())), Record::new());
    Ok(())
}

#[test]
fn the_record_is_written_for_a_client_that_only_waits() -> Result<()> {
    let server = Server::start();
    let holder = builder(&server).announce(false).build()?;
    let guard = holder.lock("a").lock()?;
    let client = builder(&server).build()?;
    let lock = client.lock("a");
    let waiter = sleeping("waits", move || lock.lock_owned());
    eventually("the record is written", || exists(&server, &record_key(client.id())));
    guard.unlock()?;
    join(waiter)?.unlock()
}

#[test]
fn a_deleted_record_is_written_again_after_a_reconnection() -> Result<()> {
    let server = Server::start();
    let client = announced(&server, builder(&server))?;
    let before = record(&server, &record_key(client.id()));
    server.ask::<()>(&["DEL", &record_key(client.id())]);
    // A new connection makes the watchdog check the record at once.
    assert!(server.client_kill_type("normal") > 0);
    let guard = client.lock("a").lock()?;
    eventually("the record is back", || record(&server, &record_key(client.id())) == before);
    guard.unlock()
}

#[test]
fn close_and_the_drop_of_the_last_handle_delete_the_record() -> Result<()> {
    let server = Server::start();
    let client = announced(&server, builder(&server))?;
    client.close();
    assert_eq!(server.client_records(), Vec::<String>::new());
    drop(announced(&server, builder(&server))?);
    eventually("the record is deleted", || server.client_records().is_empty());
    Ok(())
}

#[test]
fn a_client_that_announces_nothing_writes_nothing() -> Result<()> {
    let server = Server::start();
    let silent = builder(&server).announce(false).label("x").build()?;
    let guard = silent.lock("a").lock()?;
    // The other client has the same second for its record.
    let client = announced(&server, builder(&server))?;
    assert_eq!(server.client_records(), [record_key(client.id())]);
    guard.unlock()
}

#[test]
fn invalid_labels_are_configuration_errors() {
    let build = |label: &str| {
        Client::builder().single("redis://127.0.0.1:1/").label(label).build_lazily().map(drop)
    };
    let long = "é".repeat(129);
    for bad in ["", "a\nb", "\u{7f}", &long] {
        let error = build(bad).expect_err("the label is invalid");
        assert!(error.is_configuration() && error.to_string().starts_with("the label "), "{error}");
    }
    assert!(build(&"é".repeat(128)).is_ok() && build("orders: *").is_ok());
}

#[test]
fn the_record_of_a_killed_process_expires() {
    let server = Server::start();
    let mut child = ChildProcess::start("client_record::child_entry", "holder", &[&server.url()]);
    let key = child.next_line();
    let ttl = pttl(&server, &key);
    assert!((1..=30_000).contains(&ttl), "{ttl}");
    child.kill();
    // The test does not wait for the rest of the time.
    assert!(server.ask::<bool>(&["PEXPIRE", &key, "50"]));
    eventually("the record expires", || !exists(&server, &key));
}

#[test]
fn child_entry() {
    let Some(role) = process::role().filter(|role| role.name() == "holder") else { return };
    let client = Client::open(role.arg(0)).expect("the server runs");
    let _guard = client.lock("a").lock().expect("the lock is free");
    let key = record_key(client.id());
    let mut connection =
        redis::Client::open(role.arg(0)).and_then(|c| c.get_connection()).expect("the server runs");
    eventually("the record is written", || {
        redis::cmd("EXISTS").arg(&key).query(&mut connection).expect("the server answers")
    });
    role.say(&key);
    role.hear();
}

/// Counts the commands and the bytes of 1,000 pairs of lock and release.
fn cost_of_pairs(server: &Server, client: &Client) -> Result<(BTreeMap<String, u64>, u64)> {
    let lock = client.lock("a");
    server.reset_stats();
    (0..1000).try_for_each(|_| lock.lock()?.unlock())?;
    Ok((server.commandstats().into_iter().collect(), bytes_received(server)))
}

/// Counts the bytes of one pair of lock and release, and of the questions of this test.
fn bytes_of_a_pair(server: &Server, client: &Client) -> Result<u64> {
    let before = bytes_received(server);
    client.lock("a").lock()?.unlock()?;
    Ok(bytes_received(server) - before)
}

fn bytes_received(server: &Server) -> u64 {
    server.info("stats")["total_net_input_bytes"].parse().expect("a number")
}

#[test]
fn acquires_and_releases_need_no_further_command_or_byte() -> Result<()> {
    let server = Server::start();
    let silent = builder(&server).announce(false).build()?;
    // The first pair loads the scripts.
    silent.lock("a").lock()?.unlock()?;
    let pair = bytes_of_a_pair(&server, &silent)?;
    let (silent, bytes) = cost_of_pairs(&server, &silent)?;
    let client = announced(&server, builder(&server))?;
    eventually("the client listens", || is_listening(&server, &client));
    // A listener that has just connected becomes quiet a moment later. Until then an acquire
    // carries the channels of its subscription request.
    eventually("an acquire carries no request", || {
        bytes_of_a_pair(&server, &client).expect("the lock is free") == pair
    });
    let (mut announced, more_bytes) = cost_of_pairs(&server, &client)?;
    // A slow machine may renew the record meanwhile: a PEXPIRE in 10 s, and then a PUBLISH.
    let mut more = |command: &str| {
        let calls = announced.insert(command.to_owned(), silent[command]);
        calls.unwrap_or(0) - silent[command]
    };
    let (renewals, heartbeats) = (more("pexpire"), more("publish"));
    assert!(heartbeats <= renewals && renewals <= heartbeats + 1, "{heartbeats} and {renewals}");
    assert_eq!(silent, announced);
    assert!(renewals <= 3 && more_bytes <= bytes + 300 * renewals, "{more_bytes} bytes, {bytes}");
    Ok(())
}
