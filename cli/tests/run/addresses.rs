//! Servers: clusters, sentinels, sockets, several URLs.

use std::fs;

use crate::command::leasehold;
use crate::harness::certificates::Authority;
use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, Server, exists};
use crate::program::Running;

/// Returns the exit code of `leasehold run x -- true` with these options.
#[track_caller]
fn code_with(options: &[&str]) -> i32 {
    let mut command = leasehold();
    command.args(options).args(["run", "--min-hold", "1h", "x", "--", "true"]);
    Running::start(command).finish().code()
}

#[test]
fn a_cluster_is_found_by_some_of_its_nodes() {
    let cluster = Cluster::start(3, 0);
    let urls = cluster.urls();
    assert_eq!(code_with(&["--cluster", "--url", &urls[..2].join(",")]), 0);
    assert!(exists(cluster.owner_of("x"), "x"));
}

#[test]
fn a_master_is_found_by_its_sentinels() {
    let replicated = Replicated::start(1, 1);
    let urls = replicated.sentinel_urls();
    assert_eq!(code_with(&["--sentinel", MASTER, "--url", &urls[0]]), 0);
    assert!(exists(replicated.master(), "x"));
}

/// The sentinels have no password, and the servers have one.
#[test]
fn a_login_for_the_servers_behind_sentinels_stands_in_a_variable() {
    let replicated = Replicated::with(1, 1, |config| config.password("se:cret"));
    let end_with = |login: &str| {
        let mut command = leasehold();
        command.args(["--sentinel", MASTER, "--url", &replicated.sentinel_urls()[0]]);
        command.env("LEASEHOLD_LOGIN", login).args(["run", "x", "--", "true"]);
        let end = Running::start(command).finish();
        assert!(!end.errors.contains("cret"), "{end:?}");
        end.code()
    };
    assert_eq!(end_with(":se:cret"), 0);
    assert_eq!(end_with("default:se:cret"), 0);
    assert_eq!(end_with(""), 77, "the servers need a password");
    assert_eq!(end_with(":wrong se:cret"), 77);
    assert_eq!(end_with("se;cret"), 64, "there is no colon");
}

#[test]
fn the_login_of_the_variable_takes_the_place_of_that_in_the_url() {
    let server = Server::with(|config| config.password("secret"));
    let code_of = |password: &str, login: &str| {
        let mut command = leasehold();
        command.env("LEASEHOLD_URL", server.login_url("default", password));
        command.env("LEASEHOLD_LOGIN", login).args(["run", "x", "--", "true"]);
        Running::start(command).finish().code()
    };
    assert_eq!(code_of("wrong", ":secret"), 0);
    assert_eq!(code_of("secret", ":wrong"), 77);
}

#[test]
fn certificates_of_tls_are_files() {
    let signer = Authority::new();
    let server = Server::with(|config| {
        let config = signer.configure_with(config, signer.sign_for(&["*.redis.example"], 4000));
        config.encrypted().line("tls-auth-clients yes")
    });
    let (certificate, key) = signer.sign();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("the file is written");
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let [authority, certificate, key] =
        [file("ca.pem", &signer.pem), file("cert.pem", &certificate), file("key.pem", &key)];
    let url = server.url();
    let identity = ["--url", &url, "--cert", &certificate, "--key", &key];
    let name = ["--sni", "cache.redis.example"];
    let code = |parts: &[&[&str]]| code_with(&parts.concat());
    assert_eq!(code(&[&identity, &name, &["--cacert", &authority]]), 0);
    assert_eq!(code(&[&identity, &["--cacert", &authority]]), 69, "the name is another");
    assert_eq!(code(&[&identity, &name]), 69, "the system has no such authority");
    assert_eq!(code(&[&["--url", &url], &name, &["--cacert", &authority]]), 69, "no certificate");
    assert_eq!(code(&[&identity, &["--cacert", "/absent"]]), 64);
    assert_eq!(code(&[&identity, &["--cacert", &key]]), 64, "a key is no authority");
    assert_eq!(code(&[&["--url", &url, "--cert", &certificate]]), 64, "there is no key");
    assert_eq!(code(&[&["--url", "redis://localhost/"], &name]), 64, "there is no TLS");

    let mut command = leasehold();
    command.env("SSL_CERT_FILE", &authority).args(identity).args(name);
    command.args(["run", "y", "--", "true"]);
    assert_eq!(Running::start(command).finish().code(), 0);
}

#[test]
fn a_server_may_have_a_socket_and_a_database() {
    let server = Server::start();
    assert_eq!(code_with(&["--url", &server.unix_url()]), 0);
    assert!(exists(&server, "x"));
    assert_eq!(code_with(&["--url", &format!("{}?db=3", server.url())]), 0);
    let keys: String = server.ask(&["INFO", "keyspace"]);
    assert!(keys.contains("db3:keys="), "{keys}");
}

/// A part of the password would be the host, and two services would exclude nobody.
#[test]
fn a_url_that_is_not_understood_is_refused_without_a_part_of_it() {
    for (url, reason) in [
        ("redis://worker:4711#secret@redis.example/", "must be percent-encoded"),
        ("redis://worker:4711?secret@redis.example/", "must be percent-encoded"),
        ("redis://worker:secret@redis.example:65536/", "from 1 to 65535"),
        ("redis://redis.example/-1", "number of a database"),
        ("redis://redis.example/?user=worker&password=secret", "its only parameter may be db"),
    ] {
        for (option, variable) in [(true, ""), (false, "LEASEHOLD_URL"), (false, "REDIS_URL")] {
            let mut command = leasehold();
            if option {
                command.args(["--url", url]);
            } else {
                command.env(variable, url);
            }
            command.args(["run", "x", "--", "true"]);
            let end = Running::start(command).finish();
            assert!(end.errors.contains(reason), "{url}: {end:?}");
            assert!(!end.errors.contains("secret") && !end.errors.contains("4711"), "{end:?}");
            assert_eq!(end.code(), 64, "{url}");
        }
    }
}

#[test]
fn several_urls_need_a_kind_of_deployment() {
    for options in [
        &["--url", "redis://127.0.0.1:1/,redis://127.0.0.1:2/"][..],
        &["--url", "redis://127.0.0.1:1/", "--url", "redis://127.0.0.1:2/"],
    ] {
        assert_eq!(code_with(options), 64, "{options:?}");
    }
}
