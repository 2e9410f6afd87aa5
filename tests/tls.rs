//! `rediss://`, against a real server with a certificate of its own.
//!
//! The trusted roots are read from `SSL_CERT_FILE`, which a test cannot set for
//! itself: it runs this binary again, with one that names its authority.
#![cfg(feature = "tls")]

mod support;

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use leasehold::Client;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use support::server::free_port;
use support::{Server, eventually};

const URL: &str = "LEASEHOLD_TLS_URL";

/// A server that speaks TLS on a second port, and the authority of its certificate.
struct Encrypted {
    server: Server,
    url: String,
    authority: String,
}

impl Encrypted {
    fn start() -> Encrypted {
        let authority_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).expect("an authority").pem();
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned()];
        let params = CertificateParams::new(names).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();

        let port = free_port();
        let server = Server::with(|config| {
            config
                .file("authority.pem", &authority)
                .file("server.pem", certificate)
                .file("server.key", key.serialize_pem())
                .line(format!("tls-port {port}"))
                .line("tls-ca-cert-file authority.pem")
                .line("tls-cert-file server.pem")
                .line("tls-key-file server.key")
                .line("tls-auth-clients no")
                .password("pass-word")
        });
        let authority = server.path("authority.pem").display().to_string();
        let url = format!("rediss://:pass-word@localhost:{port}/2");
        Encrypted { server, url, authority }
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
