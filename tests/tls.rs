//! `rediss://`, against a real server with a certificate of its own.
//!
//! The trusted roots are read from `SSL_CERT_FILE`, which a test cannot set for
//! itself: it runs this binary again, with one that names its authority.
#![cfg(feature = "tls")]

mod support;

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use leasehold::{Builder, Client};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use support::server::free_port;
use support::{Config, Server, eventually, in_time};

const URL: &str = "LEASEHOLD_TLS_URL";

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
            .env("SSL_CERT_FILE", &self.authority)
            .output()
            .expect("this binary runs again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}

#[test]
fn a_lock_works_over_tls_and_is_woken_there() {
    let encrypted = Encrypted::start();
    encrypted.run("locks_over_tls");
    eventually("nothing is left", || encrypted.server.keys().is_empty());
}

#[test]
#[ignore = "a part of the test above, which runs it with SSL_CERT_FILE set"]
fn locks_over_tls() {
    let url = std::env::var(URL).expect("started by the test above");
    let open = || Client::builder().single(&url).poll_bound(Duration::from_secs(60));
    let holder = open().build().expect("the certificate is trusted");
    let waiter = open().build().expect("the certificate is trusted");
    let guard = holder.lock("a").lock().expect("a free lock");
    let (got, gets) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            waiter.lock("a").lock().expect("a released lock").unlock().expect("a held lock");
            got.send(()).expect("the test waits");
        });
        // The listener is up as soon as somebody waits; only its message can end a
        // wait whose poll bound is a minute.
        let channel = "redisson_lock__channel:{a}";
        let mut admin = admin(&url);
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

fn admin(url: &str) -> redis::Connection {
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
fn pass(open: impl Fn() -> Builder) {
    let open = || open().poll_bound(Duration::from_secs(60)).build();
    let (holder, waiter) = (open().expect("it may connect"), open().expect("it may connect"));
    let guard = holder.lock("a").lock().expect("a free lock");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").lock().and_then(|guard| guard.unlock()));
        eventually("it is refused", || holder.lock("a").is_locked().is_ok_and(|held| held));
        guard.unlock().expect("held");
        in_time("it gets the lock", waits).expect("a lock");
    });
}

#[test]
fn a_given_authority_is_trusted_and_no_other() {
    let encrypted = Encrypted::start();
    let open = || Client::builder().single(&encrypted.url).tls_authority(&*encrypted.signs.pem);
    pass(open);
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
    pass(|| nameless().tls_identity(&*certificate, &*key));
    let (strange, key) = Authority::new().sign();
    let error = nameless().tls_identity(strange, key).build().expect_err("who is that?");
    assert!(error.is_connection(), "{error:?}");
}

#[test]
fn a_master_that_sentinels_name_is_spoken_to_over_tls() {
    let signs = Authority::new();
    let (port, sentinel_port) = (free_port(), free_port());
    let with = |config, lines: &[String]| {
        let told = signs.tell(config);
        lines.iter().fold(told, Config::line)
    };
    let secret = ["tls-auth-clients yes".to_owned(), format!("tls-port {port}")];
    let _master = Server::with(|config| with(config, &secret));
    let watch = [
        "tls-replication yes".to_owned(),
        format!("tls-port {sentinel_port}"),
        format!("sentinel monitor main 127.0.0.1 {port} 1"),
    ];
    let _sentinel = Server::with(|config| with(config.sentinel(), &watch));
    let (certificate, key) = signs.sign();
    pass(|| {
        let url = format!("rediss://127.0.0.1:{sentinel_port}/");
        let builder = Client::builder().sentinel("main", [url]);
        builder.tls_authority(&*signs.pem).tls_identity(&*certificate, &*key)
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
