//! Clients that are built before their servers run, and readiness probes.

use std::time::{Duration, Instant};

use crate::harness::replicated;
use crate::harness::{Cluster, Impostor, Replicated, Server, eventually, in_time, join, sleeping};
use leasehold::{AuditPolicy, Builder, CancelToken, Client, MultiLock, RedLock, Result};

const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(100);

/// Checks the calls of a client before and after `start` starts its servers.
fn check_before_and_after(client: &Client, start: impl FnOnce()) -> Result<()> {
    for _ in 0..2 {
        let error = client.ping().expect_err("no server runs");
        assert!(error.is_connection() && error.is_retryable(), "{error:?}");
    }
    assert!(client.lock("a").lock().is_err_and(|error| error.is_connection()));
    assert!(client.lock("a").try_lock().is_err_and(|error| error.is_connection()));
    assert!(client.lock("a").is_locked().is_err_and(|error| error.is_connection()));
    assert!(client.lock("a").force_unlock().is_err_and(|error| error.is_connection()));
    let both = MultiLock::new([client.lock("a"), client.lock("b")]);
    assert!(both.lock().is_err_and(|error| error.is_connection()));
    start();
    let guard = client.lock("a").lock()?;
    client.ping()?;
    let lock = client.lock("a");
    let waiter = sleeping("waits", move || lock.lock_owned());
    guard.unlock()?;
    join(waiter)?.unlock()?;
    both.lock()?.unlock()?;
    client.ping()
}

#[test]
fn the_first_call_connects_to_a_server_that_was_started_later() -> Result<()> {
    let server = Server::start();
    for url in [server.url(), server.unix_url()] {
        server.kill();
        let client = Client::builder().single(url).build_lazily()?;
        check_before_and_after(&client, || server.restart())?;
    }
    Ok(())
}

#[test]
fn the_first_call_connects_through_sentinels_that_were_started_later() -> Result<()> {
    let group = Replicated::start(0, 1);
    let all = || group.servers().iter().chain(group.sentinels());
    all().for_each(Server::kill);
    let builder = Client::builder().sentinel(replicated::MASTER, group.sentinel_urls());
    let client = builder.build_lazily()?;
    let start = || {
        all().for_each(Server::restart);
        group.settle();
    };
    check_before_and_after(&client, start)
}

#[test]
fn the_first_call_connects_to_a_cluster_that_was_started_later() -> Result<()> {
    let cluster = Cluster::start(3, 0);
    cluster.nodes().iter().for_each(Server::kill);
    let start = || {
        cluster.nodes().iter().for_each(Server::restart);
        cluster.settle();
    };
    // No server listens on the first of the addresses.
    let urls = [format!("redis://127.0.0.1:{}/", crate::harness::ports::free_port())];
    let urls = urls.into_iter().chain(cluster.urls());
    let client = Client::builder().cluster(urls).poll_interval(MINUTE).build_lazily()?;
    check_before_and_after(&client, start)?;
    let names: Vec<_> = cluster.nodes().iter().map(|node| cluster.key_on(node, "on")).collect();
    names.iter().try_for_each(|name| client.lock(name.as_str()).lock()?.unlock())
}

#[test]
fn a_red_lock_works_once_a_majority_of_servers_has_started() -> Result<()> {
    let servers = [(); 3].map(|()| Server::start());
    servers.iter().for_each(Server::kill);
    let open = |server: &Server| Client::builder().single(server.url()).build_lazily();
    let clients: Result<Vec<_>> = servers.iter().map(open).collect();
    let lock = RedLock::new(clients?, "a");
    let down = |outcome: Result<()>| {
        assert!(outcome.is_err_and(|error| error.is_connection()));
    };
    down(lock.ping());
    down(lock.lock().map(drop));
    servers[0].restart();
    down(lock.ping());
    servers[1].restart();
    lock.ping()?;
    lock.lock()?.unlock()
}

#[test]
fn a_first_call_to_a_silent_cluster_ends_by_deadline_cancellation_and_close() -> Result<()> {
    let silent = Impostor::always("");
    let builder = Client::builder().cluster([silent.url()]);
    let client = builder.connect_timeout(MINUTE).response_timeout(MINUTE).build_lazily()?;
    let started = Instant::now();
    let error = client.lock("a").try_lock_for(SOON).expect_err("the cluster is silent");
    assert!(error.is_timeout() && started.elapsed() < MINUTE, "{error:?}");
    let token = CancelToken::new();
    let lock = client.lock("a").with_cancel(&token);
    let waiter = sleeping("cancelled", move || lock.lock().map(drop));
    token.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    let probe = client.clone();
    let waiter = sleeping("closed", move || probe.ping());
    std::thread::scope(|scope| {
        scope.spawn(|| client.close());
        assert!(
            in_time("the probe returns", scope.spawn(|| join(waiter)))
                .is_err_and(|error| error.is_closed())
        );
    });
    Ok(())
}

#[test]
fn ping_waits_for_the_reply_of_every_node() -> Result<()> {
    let cluster = Cluster::start(3, 0);
    let builder = Client::builder().cluster(cluster.urls()).response_timeout(4 * SOON);
    let client = builder.build()?;
    client.ping()?;
    let node = &cluster.nodes()[1];
    node.stop();
    let error = client.ping().expect_err("a node is stopped");
    assert!(error.is_timeout() && error.server() == Some(&node.addr().to_string()), "{error:?}");
    node.resume();
    eventually("the node answers again", || client.ping().is_ok());
    client.close();
    assert!(client.ping().is_err_and(|error| error.is_closed()));
    Ok(())
}

#[test]
fn ping_needs_no_permission_and_fails_without_a_valid_login() -> Result<()> {
    let server = Server::start();
    server.ask::<()>(&["ACL", "SETUSER", "worker", "on", ">geheim", "~*", "&*", "-@all"]);
    Client::open(server.login_url("worker", "geheim"))?.ping()?;
    let client = Client::open(server.url())?;
    let mut admin = server.connection();
    let set = redis::cmd("CONFIG").arg(&["SET", "requirepass", "geheim"]).exec(&mut admin);
    set.expect("the password is set");
    let kill = ["KILL", "TYPE", "normal", "SKIPME", "yes"];
    redis::cmd("CLIENT").arg(&kill).exec(&mut admin).expect("the connections are closed");
    let error = client.ping().expect_err("the server wants a password");
    assert_eq!((error.code(), error.is_retryable()), (Some("NOAUTH"), false), "{error:?}");
    Ok(())
}

#[test]
fn build_lazily_checks_the_settings_without_a_server() {
    let refused = |builder: Builder| builder.build_lazily().expect_err("the settings are invalid");
    assert!(refused(Client::builder()).is_configuration());
    assert!(refused(Client::builder().single("http://x/")).is_configuration());
    let valid = || Client::builder().single("redis://127.0.0.1:1/");
    assert!(refused(valid().poll_interval(Duration::ZERO)).is_configuration());
    assert!(refused(valid().audit_policy(AuditPolicy::Refuse)).is_configuration());
}
