//! `rediss://`, on real servers with test certificates.
//!
//! The trusted roots come from `SSL_CERT_FILE`, which a test cannot set in its own process. So a
//! test runs this binary again, with an `SSL_CERT_FILE` that contains its authority.
#![cfg(feature = "tls")]

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;
use std::{slice, thread};

use crate::await_subscriber;
use crate::harness::certificates::Authority;
use crate::harness::faults::channel_of;
use crate::harness::ports::free_port;
use crate::harness::{Cluster, Server, eventually, exists, in_time, pttl};
use leasehold::{Builder, Client, Sharding};

const URL: &str = "LEASEHOLD_TLS_URL";
const PLAIN_URL: &str = "LEASEHOLD_PLAIN_URL";
const MINUTE: Duration = Duration::from_secs(60);

/// A server with TLS on a second port, and the authority of its certificate.
struct Encrypted {
    server: Server,
    url: String,
    authority: String,
    signer: Authority,
}

impl Encrypted {
    fn start() -> Encrypted {
        Encrypted::asking_clients("no")
    }

    /// Starts a server with this value of `tls-auth-clients`: `yes` or `no`.
    fn asking_clients(asks: &str) -> Encrypted {
        let signer = Authority::new();
        let port = free_port();
        let server = Server::with(|config| {
            signer
                .configure(config)
                .line(format!("tls-port {port}"))
                .line(format!("tls-auth-clients {asks}"))
                .password("pass-word")
        });
        let authority = server.path("authority.pem").display().to_string();
        let url = format!("rediss://:pass-word@localhost:{port}/2");
        Encrypted { server, url, authority, signer }
    }

    /// Runs an ignored test of this binary in a process that trusts this authority.
    fn run(&self, test: &str) {
        let output = Command::new(std::env::current_exe().expect("a running program"))
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(URL, &self.url)
            .env(PLAIN_URL, self.server.login_url("default", "pass-word"))
            .env("SSL_CERT_FILE", &self.authority)
            .output()
            .expect("this binary runs again");
        let text = String::from_utf8_lossy(&output.stdout);
        let passed = output.status.success() && text.contains("1 passed");
        assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_waiter_is_woken_over_tls() {
    let encrypted = Encrypted::start();
    encrypted.run("tls::locks_over_tls");
    eventually("all keys are deleted", || encrypted.server.keys().is_empty());
}

#[test]
#[ignore = "a part of the test above, which runs it with SSL_CERT_FILE set"]
fn locks_over_tls() {
    let url = std::env::var(URL).expect("started by the test above");
    let open = || Client::builder().single(&url).poll_interval(MINUTE);
    let holder = open().build().expect("the certificate is trusted");
    let waiter = open().build().expect("the certificate is trusted");
    let guard = holder.lock("a").lock().expect("a free lock");
    let (got, gets) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            waiter.lock("a").lock().expect("a released lock").unlock().expect("a held lock");
            got.send(()).expect("the test waits");
        });
        // The poll interval is a minute, so only a message ends the wait in time.
        let channel = "redisson_lock__channel:{a}";
        let mut admin = admin();
        eventually("the waiter is subscribed", || {
            let (_, subscribers): (String, usize) = redis::cmd("PUBSUB")
                .arg("NUMSUB")
                .arg(channel)
                .query(&mut admin)
                .expect("an answer");
            subscribers == 1
        });
        guard.unlock().expect("a held lock");
        gets.recv_timeout(Duration::from_secs(30)).expect("the message wakes the waiter");
    });
}

#[test]
fn the_roots_of_the_system_are_read_once_per_client() {
    let encrypted = Encrypted::start();
    encrypted.run("tls::connects_again_without_the_roots");
}

#[test]
#[ignore = "a part of the test above, which runs it with SSL_CERT_FILE set"]
fn connects_again_without_the_roots() {
    let url = std::env::var(URL).expect("started by the test above");
    let client = Client::open(&url).expect("the certificate is trusted");
    let mut admin = admin();
    std::fs::remove_file(std::env::var("SSL_CERT_FILE").expect("set")).expect("a file");
    redis::cmd("CLIENT").arg("KILL").arg("SKIPME").arg("yes").exec(&mut admin).expect("killed");
    client.lock("a").lock().expect("the roots are known").unlock().expect("held");
    assert!(Client::open(&url).is_err(), "another client reads the roots again");
}

/// Returns a connection without TLS, for an ignored test in its own process.
fn admin() -> redis::Connection {
    let url = std::env::var(PLAIN_URL).expect("started by a test");
    redis::Client::open(url).and_then(|client| client.get_connection()).expect("an administrator")
}

#[test]
fn a_certificate_of_an_unknown_authority_is_refused_and_the_password_hidden() {
    let encrypted = Encrypted::start();
    let error = Client::open(&encrypted.url).expect_err("an unknown authority");
    assert!(error.is_connection(), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("pass-word"), "{error:?}");
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(source.is_some_and(|source| !source.is_empty()), "the error has a source");
}

/// Passes a lock from a holder to a waiter of another client, through a message.
fn pass(server: &Server, open: impl Fn() -> Builder) {
    let open = || open().poll_interval(MINUTE).build();
    let (holder, waiter) =
        (open().expect("the client may connect"), open().expect("the client may connect"));
    let guard = holder.lock("a").lock().expect("a free lock");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").lock().and_then(|guard| guard.unlock()));
        await_subscriber(slice::from_ref(server), &channel_of("a"));
        guard.unlock().expect("held");
        in_time("the waiter gets the lock", waits).expect("a lock");
    });
}

#[test]
fn the_chain_of_causes_names_the_fault_of_a_certificate() {
    let signer = Authority::new();
    let stranger = Authority::named("a stranger").sign();
    for (certificate, cause) in [
        (stranger, "UnknownIssuer"),
        (signer.sign_for(&["localhost"], 2001), "certificate expired"),
        (signer.sign_for(&["elsewhere.example"], 4000), "not valid for name \"localhost\""),
    ] {
        let port = free_port();
        let server = Server::with(|config| {
            let config = signer.configure_with(config, certificate.clone());
            config.line(format!("tls-port {port}")).line("tls-auth-clients no")
        });
        let url = format!("rediss://localhost:{port}/");
        let open = Client::builder().single(url).tls_authority(&*signer.pem);
        let error = open.build().expect_err("the certificate is refused");
        assert!(error.is_connection() && !error.to_string().contains(cause), "{error:?}");
        let text = error.with_causes().to_string();
        assert_eq!(text.matches(cause).count(), 1, "{text}");
        drop(server);
    }
}

#[test]
fn a_given_authority_is_trusted_and_no_other() {
    let encrypted = Encrypted::start();
    let open = || Client::builder().single(&encrypted.url).tls_authority(&*encrypted.signer.pem);
    pass(&encrypted.server, open);
    let other = Authority::new().pem;
    let error = open().tls_authority(other).build().expect_err("another authority");
    assert!(error.is_connection(), "{error:?}");
}

#[test]
fn a_server_without_tls_gets_a_hint() {
    let server = Server::start();
    let url = server.url().replace("redis://", "rediss://");
    let authority = Authority::new();
    let client = Client::builder().single(&url).tls_authority(&*authority.pem);
    let error = client.response_timeout(Duration::from_millis(300)).build().expect_err("no TLS");
    assert!(error.with_causes().to_string().contains("the address asks for TLS"), "{error:?}");
}

#[test]
fn a_client_presents_its_certificate_when_asked() {
    let encrypted = Encrypted::asking_clients("yes");
    let nameless =
        || Client::builder().single(&encrypted.url).tls_authority(&*encrypted.signer.pem);
    let error = nameless().build().expect_err("the server wants a certificate");
    assert!(error.is_connection(), "{error:?}");
    let (certificate, key) = encrypted.signer.sign();
    pass(&encrypted.server, || nameless().tls_identity(&*certificate, &*key));
    let (strange, key) = Authority::new().sign();
    let error = nameless()
        .tls_identity(strange, key)
        .build()
        .expect_err("a certificate of an unknown authority");
    assert!(error.is_connection(), "{error:?}");
}

#[test]
fn sentinels_and_their_master_are_reached_over_tls() {
    let signer = Authority::new();
    let with = |config| signer.configure(config).encrypted().line("tls-auth-clients yes");
    let master = Server::with(with);
    let watch = format!("sentinel monitor main 127.0.0.1 {} 1", master.port());
    let sentinel = Server::with(|config| with(config.sentinel()).line(watch));
    let (certificate, key) = signer.sign();
    pass(&master, || {
        let builder = Client::builder().sentinel("main", [sentinel.url()]);
        builder.tls_authority(&*signer.pem).tls_identity(&*certificate, &*key)
    });
}

#[test]
fn sentinels_and_their_master_may_differ_in_tls() {
    let [of_master, of_sentinels] = [Authority::named("the master's"), Authority::named("theirs")];
    let encrypted = |signer: &Authority, config| {
        signer.configure(config).encrypted().line("tls-auth-clients yes")
    };
    let watch = |master: &Server| format!("sentinel monitor main 127.0.0.1 {} 1", master.port());
    let plain_sentinel = |master: &Server| {
        let watch = watch(master);
        Server::with(|config| of_master.configure(config.sentinel()).line(watch))
    };
    let encrypted_sentinel = |master: &Server| {
        let watch = watch(master);
        Server::with(|config| {
            encrypted(&of_sentinels, config.sentinel()).line("tls-replication no").line(watch)
        })
    };
    let open = |sentinel: &Server| {
        let (certificate, key) = of_master.sign();
        let builder = Client::builder().sentinel("main", [sentinel.url()]);
        builder.tls_authority(&*of_master.pem).tls_identity(certificate, key)
    };
    let with_sentinels = |builder: Builder| {
        let (certificate, key) = of_sentinels.sign();
        let builder = builder.sentinel_tls_authority(&*of_sentinels.pem);
        builder.sentinel_tls_identity(certificate, key)
    };
    let plain_master = Server::start();
    let encrypted_master = Server::with(|config| encrypted(&of_master, config));

    let sentinel = plain_sentinel(&encrypted_master);
    pass(&encrypted_master, || open(&sentinel).master_tls(true));
    let sentinel = encrypted_sentinel(&plain_master);
    pass(&plain_master, || with_sentinels(open(&sentinel)).master_tls(false));
    let sentinel = encrypted_sentinel(&encrypted_master);
    pass(&encrypted_master, || with_sentinels(open(&sentinel)));
    let error = open(&sentinel).build().expect_err("another authority signed for the sentinel");
    assert!(error.is_connection(), "{error:?}");
}

#[test]
fn certificates_may_have_a_name_that_no_address_has() {
    let signer = Authority::new();
    let cluster = Cluster::with(3, 0, |config| {
        let config = signer.configure_with(config, signer.sign_for(&["*.redis.example"], 4000));
        config.encrypted().line("tls-auth-clients no")
    });
    let open = || {
        let builder = Client::builder().cluster([cluster.nodes()[0].url()]);
        builder.tls_authority(&*signer.pem)
    };
    let error = open().build().expect_err("the certificate is for another name");
    assert!(error.with_causes().to_string().contains("not valid for name"), "{error:?}");
    let client = open().tls_host_name("cache-1.redis.example").build().expect("the right name");
    for node in cluster.nodes() {
        let name = cluster.key_on(node, "lock");
        client.lock(name).lock().expect("free").unlock().expect("held");
    }
    let wrong = open().tls_host_name("no name").build().expect_err("a name has no space");
    assert!(wrong.is_configuration(), "{wrong:?}");
}

/// A cluster that serves TLS only, and only clients with a certificate.
struct EncryptedCluster {
    cluster: Cluster,
    authority: String,
    identity: (String, String),
}

impl EncryptedCluster {
    fn start(masters: usize, replicas_each: usize) -> EncryptedCluster {
        let signer = Authority::new();
        let cluster = Cluster::with(masters, replicas_each, |config| {
            signer.configure(config).encrypted().line("tls-auth-clients yes")
        });
        let identity = signer.sign();
        EncryptedCluster { cluster, authority: signer.pem, identity }
    }

    /// Returns the settings of a client with one address that trusts no authority.
    fn untrusting(&self) -> Builder {
        let (certificate, key) = &self.identity;
        let first = self.cluster.nodes()[0].url();
        Client::builder().cluster([first]).tls_identity(&**certificate, &**key)
    }

    fn builder(&self) -> Builder {
        self.untrusting().tls_authority(&*self.authority)
    }

    /// Returns a client whose waiters are woken by messages alone.
    fn quiet(&self, sharding: Sharding) -> Client {
        let builder = self.builder().sharding(sharding).poll_interval(MINUTE * 10);
        builder.build().expect("the cluster is well")
    }
}

/// Returns whether the client gets the lock within two minutes.
fn waits_for(client: &Client, name: &str) -> bool {
    client.lock(name).try_lock_for(MINUTE * 2).expect("an answer").is_some()
}

#[test]
fn the_nodes_of_a_cluster_are_found_and_reached_over_tls() {
    let encrypted = EncryptedCluster::start(3, 0);
    let nodes = encrypted.cluster.nodes();
    for sharding in [Sharding::Auto, Sharding::Off] {
        let [holder, waiter] = [(); 2].map(|()| encrypted.quiet(sharding));
        for node in nodes {
            let name = encrypted.cluster.key_on(node, &format!("{sharding:?}"));
            let guard = holder.lock(&name).lock().expect("free");
            assert!(exists(node, &name));
            thread::scope(|scope| {
                let waits = scope.spawn(|| waits_for(&waiter, &name));
                await_subscriber(nodes, &channel_of(&name));
                guard.unlock().expect("held");
                assert!(in_time("the waiter gets the message", waits));
            });
        }
    }
    let url = nodes[0].url();
    let nameless = Client::builder().cluster([&url]).tls_authority(&*encrypted.authority);
    let plain = Client::builder().cluster([url.replace("rediss", "redis")]);
    for stranger in [nameless, encrypted.untrusting(), plain] {
        let error = stranger.build().expect_err("the node or the client refuses");
        assert!(error.is_connection(), "{error:?}");
    }
}

#[test]
fn a_hold_is_found_over_tls_after_a_resharding_and_a_fail_over() {
    let encrypted = EncryptedCluster::start(3, 1);
    let cluster = &encrypted.cluster;
    let [holder, waiter] = [(); 2].map(|()| encrypted.quiet(Sharding::On));
    let [old, new] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let replica = cluster.replica_of(new);
    let name = cluster.key_on(old, "lock");
    let slot = cluster.slot_of(&name);
    let guard = holder.lock(&name).lock().expect("free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waits_for(&waiter, &name));
        await_subscriber(slice::from_ref(old), &channel_of(&name));
        cluster.begin_migration(slot, new);
        cluster.move_keys(slot, new);
        guard.extend(MINUTE).expect("the old node replies ASK");
        cluster.end_migration(slot, new);
        guard.extend(MINUTE * 2).expect("the old node replies MOVED");
        await_subscriber(slice::from_ref(new), &channel_of(&name));
        // A replica serves no slots, so the client does not know this node.
        cluster.fail_over(replica);
        guard.extend(MINUTE * 3).expect("the new master has the lock");
        assert!(pttl(replica, &name) > 150_000);
        await_subscriber(slice::from_ref(replica), &channel_of(&name));
        guard.unlock().expect("held");
        assert!(in_time("the waiter gets the message there", waits));
    });
}

#[test]
fn malformed_certificates_are_errors_at_once() {
    let url = "rediss://localhost:1/";
    let (certificate, key) = Authority::new().sign();
    let broken = certificate.replacen("MII", "!!!", 1);
    for wrong in [
        Client::builder().single(url).tls_authority("nothing"),
        Client::builder().single(url).tls_authority(broken),
        Client::builder().single(url).tls_identity(&*certificate, "nothing"),
        Client::builder().single(url).tls_identity("", &*key).tls_authority(""),
    ] {
        let error = wrong.build().expect_err("no certificate");
        assert!(error.is_configuration(), "{error:?}");
    }
}
