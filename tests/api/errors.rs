//! Errors state the lock, the server, the reason and the code, each once.

use std::error::Error as _;
use std::time::Duration;

use leasehold::{Client, Error, ErrorKind, LostReason, MultiLock, RedLock, Result};

use crate::harness::{Server, eventually, ports};

const SOON: Duration = Duration::from_millis(200);
const MINUTE: Duration = Duration::from_secs(60);

/// A lock name that occurs nowhere else in an error.
const NAME: &str = "orders:42";

/// Returns the text of an error and of all its causes.
fn full_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}\n{error}");
        cause = error.source();
    }
    text
}

/// Checks the facts of the error, and that its full text has each fact once.
fn check(error: &Error, kind: ErrorKind, lock: Option<&str>, server: Option<&str>) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert_eq!(error.lock_name(), lock, "{error:?}");
    assert_eq!(error.server(), server, "{error:?}");
    let reason = error.lost_reason().map(|reason| reason.to_string());
    assert_eq!(error.is_lost(), reason.is_some(), "{error:?}");
    let text = full_text(error);
    let facts = [lock, server, error.code(), reason.as_deref()];
    for fact in facts.into_iter().flatten() {
        assert_eq!(text.matches(fact).count(), 1, "{fact:?} in {text:?}");
    }
}

#[test]
fn a_silent_server_is_a_timeout_that_names_the_server() -> Result<()> {
    let server = Server::start();
    let builder = || Client::builder().single(server.url()).response_timeout(SOON);
    let client = builder().build()?;
    let lock = client.lock(NAME);
    let guard = lock.lock()?;
    let addr = server.addr().to_string();
    let timed_out = |error: &Error| check(error, ErrorKind::Timeout, Some(NAME), Some(&addr));
    server.stop();
    timed_out(&guard.extend(MINUTE).expect_err("the server is stopped"));
    timed_out(&lock.is_locked().expect_err("the server is stopped"));
    timed_out(&lock.force_unlock().expect_err("the server is stopped"));
    let other = client.lock("other").try_lock().expect_err("the server is stopped");
    check(&other, ErrorKind::Timeout, Some("other"), Some(&addr));
    let several = MultiLock::new([client.lock("c"), client.lock("d")]).lock();
    let several = several.expect_err("the server is stopped");
    check(&several, ErrorKind::Timeout, Some("c, d"), Some(&addr));
    timed_out(&guard.unlock().expect_err("the server is stopped"));
    let handshake = builder().build().expect_err("the server is stopped");
    check(&handshake, ErrorKind::Timeout, None, Some(&addr));
    assert!(handshake.is_retryable(), "{handshake:?}");
    server.resume();
    Ok(())
}

#[test]
fn an_ended_server_is_a_connection_error_that_names_the_server() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let (lock, addr) = (client.lock(NAME), server.addr().to_string());
    drop(server);
    let error = lock.lock().expect_err("no server listens");
    check(&error, ErrorKind::Connection, Some(NAME), Some(&addr));
    assert!(error.is_retryable() && error.source().is_some(), "{error:?}");
    let port = ports::free_port();
    let error = Client::open(format!("redis://127.0.0.1:{port}/")).expect_err("no server listens");
    check(&error, ErrorKind::Connection, None, Some(&format!("127.0.0.1:{port}")));
    Ok(())
}

#[test]
fn each_cause_is_shown_once() {
    let no_socket = "redis+unix:///nowhere/redis.sock".to_owned();
    let nobody_listens = format!("redis://127.0.0.1:{}/", ports::free_port());
    for (url, cause) in [
        (nobody_listens, "Connection refused"),
        (no_socket, "No such file or directory"),
        // No name server is asked for this name.
        ("redis://no..name/".to_owned(), "failed to lookup address information"),
    ] {
        let error = Client::open(&url).expect_err("no server can be reached");
        assert!(!error.to_string().contains(cause), "{error}");
        let text = error.with_causes().to_string();
        assert!(text.starts_with(&format!("{error}: ")), "{text}");
        assert_eq!(text.matches(cause).count(), 1, "{text}");
        let server = error.server().expect("the error names the server");
        assert_eq!(text.matches(server).count(), 1, "{text}");
    }
    // A cause that the text has already is not repeated.
    let inner = Error::new(ErrorKind::Connection, "the connection to the server broke");
    let outer = Error::new(ErrorKind::Timeout, "no answer").with_source(inner.clone());
    let wrapped = Error::new(ErrorKind::Server, "no answer: tired").with_source(outer);
    assert_eq!(wrapped.with_causes().to_string(), format!("no answer: tired: {inner}"));
}

#[test]
fn an_error_reply_is_reported_with_its_code_the_lock_and_the_server() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let addr = server.addr().to_string();
    server.ask::<()>(&["SET", NAME, "no lock"]);
    let error = client.lock(NAME).lock().expect_err("the key is no lock");
    check(&error, ErrorKind::Server, Some(NAME), Some(&addr));
    assert_eq!(error.code(), Some("WRONGTYPE"));
    assert!(!error.is_retryable(), "{error}");
    let several = MultiLock::new([client.lock("a"), client.lock(NAME)]);
    let error = several.lock().expect_err("one of the keys is no lock");
    check(&error, ErrorKind::Server, Some(NAME), Some(&addr));
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = client.lock("another").lock().expect_err("the server is full");
    check(&error, ErrorKind::Server, Some("another"), Some(&addr));
    assert_eq!(error.code(), Some("OOM"));
    assert!(error.is_retryable(), "{error}");
    let refused = Client::open(server.login_url("nobody", "nothing")).expect_err("no such user");
    check(&refused, ErrorKind::Server, None, Some(&addr));
    assert_eq!(refused.code(), Some("WRONGPASS"));
    Ok(())
}

#[test]
fn a_loss_states_its_reason() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lost = |error: &Error, reason| {
        check(error, ErrorKind::Lost, Some(NAME), None);
        assert_eq!(error.lost_reason(), Some(reason), "{error:?}");
        assert!(!error.is_retryable(), "{error}");
    };
    let guard = client.lock(NAME).with_lease(SOON).lock()?;
    assert!(guard.wait_lost(MINUTE));
    lost(&guard.check().expect_err("lost"), LostReason::Expired);
    lost(&guard.extend(MINUTE).expect_err("lost"), LostReason::Expired);
    lost(
        &client.lock(NAME).lock().expect_err("this thread has lost the lock"),
        LostReason::Expired,
    );
    lost(&guard.unlock().expect_err("lost"), LostReason::Expired);
    let guard = client.lock(NAME).lock()?;
    assert!(client.lock(NAME).force_unlock()?);
    lost(&guard.check().expect_err("lost"), LostReason::Gone);
    lost(&guard.unlock().expect_err("lost"), LostReason::Gone);
    let guard = client.lock(NAME).lock()?;
    server.ask::<()>(&["DEL", NAME]);
    lost(&guard.unlock().expect_err("lost"), LostReason::Gone);
    let guard = client.lock(NAME).lock()?;
    server.ask::<()>(&["DEL", NAME]);
    lost(&guard.extend(MINUTE).expect_err("lost"), LostReason::Gone);
    Ok(())
}

#[test]
fn the_loss_of_a_majority_states_its_reason() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    let clients: Result<Vec<_>> = servers.iter().map(|server| Client::open(server.url())).collect();
    let clients = clients?;
    let lock = RedLock::new(clients.clone(), NAME);
    let guard = lock.with_lease(SOON).lock()?;
    assert!(guard.wait_lost(MINUTE));
    let error = guard.check().expect_err("lost");
    check(&error, ErrorKind::Lost, Some(NAME), None);
    assert_eq!(error.lost_reason(), Some(LostReason::Expired));
    drop(guard);
    let lock = RedLock::new(clients, NAME);
    eventually("the lock is free again", || !lock.is_locked().expect("the servers answer"));
    let guard = lock.lock()?;
    assert!(lock.force_unlock()?);
    let error = guard.unlock().expect_err("lost");
    check(&error, ErrorKind::Lost, Some(NAME), None);
    assert_eq!(error.lost_reason(), Some(LostReason::Gone));
    Ok(())
}

#[test]
fn an_error_without_a_request_names_only_the_lock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock(NAME);
    let named = |error: &Error, kind| check(error, kind, Some(NAME), None);
    named(&lock.unlock().expect_err("nothing is detached"), ErrorKind::NotHeld);
    let short = lock.clone().with_lease(Duration::ZERO);
    named(&short.lock().expect_err("too short"), ErrorKind::Configuration);
    let guard = lock.lock()?;
    named(&lock.lock_owned().expect_err("the thread would wait for itself"), ErrorKind::Deadlock);
    named(&guard.extend(Duration::ZERO).expect_err("too short"), ErrorKind::Configuration);
    guard.unlock()?;
    let token = leasehold::CancelToken::new();
    token.cancel();
    let cancelled = lock.clone().with_cancel(&token).lock().expect_err("cancelled");
    named(&cancelled, ErrorKind::Cancelled);
    let red = RedLock::new([client.clone()], NAME);
    named(&red.unlock().expect_err("nothing is detached"), ErrorKind::NotHeld);
    client.close();
    named(&lock.lock().expect_err("closed"), ErrorKind::Closed);
    named(&lock.is_locked().expect_err("closed"), ErrorKind::Closed);
    named(&red.lock().expect_err("closed"), ErrorKind::Closed);
    let odd = client.lock("a}b").is_locked().expect_err("the name has an invalid hash tag");
    check(&odd, ErrorKind::InvalidName, Some("a}b"), None);
    Ok(())
}

#[test]
fn a_silent_majority_is_a_retryable_timeout_that_names_the_lock() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    let open =
        |server: &Server| Client::builder().single(server.url()).response_timeout(SOON).build();
    let clients: Result<Vec<_>> = servers.iter().map(open).collect();
    let lock = RedLock::new(clients?, NAME);
    servers.iter().for_each(Server::stop);
    let error = lock.lock().expect_err("the server is stopped");
    assert!(error.is_timeout() && error.is_retryable(), "{error:?}");
    assert_eq!(error.lock_name(), Some(NAME));
    servers.iter().for_each(Server::resume);
    Ok(())
}
