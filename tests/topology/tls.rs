//! `rediss://`, against a real server with a certificate of its own.
//!
//! The trusted roots are read from `SSL_CERT_FILE`, which a test cannot set for
//! itself: it runs this binary again, with one that names its authority.
#![cfg(feature = "tls")]

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;
use std::{slice, thread};

use crate::harness::server::free_port;
use crate::harness::{Cluster, Config, Server, eventually, exists, in_time, pttl};
use leasehold::{Builder, Client, Sharding};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

const URL: &str = "LEASEHOLD_TLS_URL";
const PLAIN_URL: &str = "LEASEHOLD_PLAIN_URL";
const MINUTE: Duration = Duration::from_secs(60);

/// An authority that signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let pem = params.self_signed(&key).expect("an authority").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for our own machine, and its key.
    fn sign(&self) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, "signed by it");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        (certificate, key.serialize_pem())
    }

    /// What a server or a sentinel is told, beside its port.
    fn tell(&self, config: Config) -> Config {
        let (certificate, key) = self.sign();
        config
            .file("authority.pem", &self.pem)
            .file("server.pem", certificate)
            .file("server.key", key)
            .line("tls-ca-cert-file authority.pem")
            .line("tls-cert-file server.pem")
            .line("tls-key-file server.key")
    }
}

/// A server that speaks TLS on a second port, and the authority of its certificate.
struct Encrypted {
    server: Server,
    url: String,
    authority: String,
    signs: Authority,
}

impl Encrypted {
    fn start() -> Encrypted {
        Encrypted::asking_clients("no")
    }

    /// One that asks clients for certificates: `yes` or `no`.
    fn asking_clients(asks: &str) -> Encrypted {
        let signs = Authority::new();
        let port = free_port();
        let server = Server::with(|config| {
            signs
                .tell(config)
                .line(format!("tls-port {port}"))
                .line(format!("tls-auth-clients {asks}"))
                .password("pass-word")
        });
        let authority = server.path("authority.pem").display().to_string();
        let url = format!("rediss://:pass-word@localhost:{port}/2");
        Encrypted { server, url, authority, signs }
    }

    /// Runs a test of this binary that is ignored otherwise, trusting this authority.
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
fn a_lock_works_over_tls_and_is_woken_there() {
    let encrypted = Encrypted::start();
    encrypted.run("tls::locks_over_tls");
    eventually("nothing is left", || encrypted.server.keys().is_empty());
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
        // The listener is up as soon as somebody waits; only its message can end a
        // wait whose poll interval is a minute.
        let channel = "redisson_lock__channel:{a}";
        let mut admin = admin();
        eventually("the waiter is subscribed", || {
            let (_, heard): (String, usize) = redis::cmd("PUBSUB")
                .arg("NUMSUB")
                .arg(channel)
                .query(&mut admin)
                .expect("an answer");
            heard == 1
        });
        guard.unlock().expect("a held lock");
        gets.recv_timeout(Duration::from_secs(30)).expect("woken by the message");
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
    assert!(Client::open(&url).is_err(), "another client reads them again");
}

/// A connection without TLS, of a part that runs by itself.
fn admin() -> redis::Connection {
    let url = std::env::var(PLAIN_URL).expect("started by a test");
    redis::Client::open(url).and_then(|client| client.get_connection()).expect("an administrator")
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_refused_and_the_password_not_shown() {
    let encrypted = Encrypted::start();
    let error = Client::open(&encrypted.url).expect_err("an unknown authority");
    assert!(error.is_connection(), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("pass-word"), "{error:?}");
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(source.is_some_and(|source| !source.is_empty()), "it says why");
}

/// The lock is taken, another waits for it and is told of the release, over as many
/// connections as that takes.
fn pass(server: &Server, open: impl Fn() -> Builder) {
    let open = || open().poll_interval(MINUTE).build();
    let (holder, waiter) = (open().expect("it may connect"), open().expect("it may connect"));
    let guard = holder.lock("a").lock().expect("a free lock");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").lock().and_then(|guard| guard.unlock()));
        await_listener(slice::from_ref(server), "a");
        guard.unlock().expect("held");
        in_time("it gets the lock", waits).expect("a lock");
    });
}

#[test]
fn a_given_authority_is_trusted_and_no_other() {
    let encrypted = Encrypted::start();
    let open = || Client::builder().single(&encrypted.url).tls_authority(&*encrypted.signs.pem);
    pass(&encrypted.server, open);
    let other = Authority::new().pem;
    let error = open().tls_authority(other).build().expect_err("another authority");
    assert!(error.is_connection(), "{error:?}");
}

#[test]
fn who_is_asked_for_a_certificate_shows_it() {
    let encrypted = Encrypted::asking_clients("yes");
    let nameless = || Client::builder().single(&encrypted.url).tls_authority(&*encrypted.signs.pem);
    let error = nameless().build().expect_err("the server wants a certificate");
    assert!(error.is_connection(), "{error:?}");
    let (certificate, key) = encrypted.signs.sign();
    pass(&encrypted.server, || nameless().tls_identity(&*certificate, &*key));
    let (strange, key) = Authority::new().sign();
    let error = nameless().tls_identity(strange, key).build().expect_err("who is that?");
    assert!(error.is_connection(), "{error:?}");
}

#[test]
fn a_master_that_sentinels_name_is_spoken_to_over_tls() {
    let signs = Authority::new();
    let with = |config| signs.tell(config).encrypted().line("tls-auth-clients yes");
    let master = Server::with(with);
    let watch = format!("sentinel monitor main 127.0.0.1 {} 1", master.port());
    let sentinel = Server::with(|config| with(config.sentinel()).line(watch));
    let (certificate, key) = signs.sign();
    pass(&master, || {
        let builder = Client::builder().sentinel("main", [sentinel.url()]);
        builder.tls_authority(&*signs.pem).tls_identity(&*certificate, &*key)
    });
}

/// A cluster that speaks nothing but TLS, and only with those who show a certificate.
struct EncryptedCluster {
    cluster: Cluster,
    authority: String,
    identity: (String, String),
}

impl EncryptedCluster {
    fn start(masters: usize, replicas_each: usize) -> EncryptedCluster {
        let signs = Authority::new();
        let cluster = Cluster::with(masters, replicas_each, |config| {
            signs.tell(config).encrypted().line("tls-auth-clients yes")
        });
        let identity = signs.sign();
        EncryptedCluster { cluster, authority: signs.pem, identity }
    }

    /// For a client that is told of one node, and has to find the others.
    fn untrusting(&self) -> Builder {
        let (certificate, key) = &self.identity;
        let first = self.cluster.nodes()[0].url();
        Client::builder().cluster([first]).tls_identity(&**certificate, &**key)
    }

    fn builder(&self) -> Builder {
        self.untrusting().tls_authority(&*self.authority)
    }

    /// A client whose waiters are woken by messages alone.
    fn quiet(&self, sharding: Sharding) -> Client {
        let builder = self.builder().sharding(sharding).poll_interval(MINUTE * 10);
        builder.build().expect("the cluster is well")
    }
}

/// Whether it gets the lock. It does not wait for ever, or a test would not fail.
fn waits_for(client: &Client, name: &str) -> bool {
    client.lock(name).try_lock_for(MINUTE * 2).expect("an answer").is_some()
}

/// Blocks until somebody listens at these nodes for the release of that lock.
fn await_listener(nodes: &[Server], name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let listeners = || nodes.iter().map(|node| node.listeners(&channel)).sum::<usize>();
    eventually("the waiter listens", || listeners() == 1);
}

#[test]
fn the_nodes_of_a_cluster_are_found_and_spoken_to_over_tls() {
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
                await_listener(nodes, &name);
                guard.unlock().expect("held");
                assert!(in_time("it is told", waits));
            });
        }
    }
    let url = nodes[0].url();
    let nameless = Client::builder().cluster([&url]).tls_authority(&*encrypted.authority);
    let plain = Client::builder().cluster([url.replace("rediss", "redis")]);
    for stranger in [nameless, encrypted.untrusting(), plain] {
        let error = stranger.build().expect_err("it is not let in, or does not trust the node");
        assert!(error.is_connection(), "{error:?}");
    }
}

#[test]
fn a_hold_is_found_over_tls_where_a_resharding_and_a_fail_over_have_taken_it() {
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
        await_listener(slice::from_ref(old), &name);
        cluster.begin_migration(slot, new);
        cluster.move_keys(slot, new);
        guard.extend(MINUTE).expect("the old node says ASK");
        cluster.end_migration(slot, new);
        guard.extend(MINUTE * 2).expect("the old node says MOVED");
        await_listener(slice::from_ref(new), &name);
        // No slots are a replica's: the client has not heard of it.
        cluster.fail_over(replica);
        guard.extend(MINUTE * 3).expect("found on the new master");
        assert!(pttl(replica, &name) > 150_000);
        await_listener(slice::from_ref(replica), &name);
        guard.unlock().expect("held");
        assert!(in_time("it is told there", waits));
    });
}

#[test]
fn what_is_no_certificate_is_an_error_at_once() {
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
