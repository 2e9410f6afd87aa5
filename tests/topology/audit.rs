//! How a server is set up, where that endangers locks: said once, in the log and to
//! events, or an error, or nothing.

use crate::harness::{Cluster, Config, Replicated, Server, eventually};
use leasehold::{Audit, AuditPolicy, Client, Events};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

struct Recorder(Sender<String>);

impl Events for Recorder {
    fn audit(&self, event: &Audit) {
        // Nobody hears it when the test is over.
        let _ = self.0.send(event.finding.to_string());
    }
}

/// A client of that server, and what it is told.
fn told_of(server: &Server) -> (Client, Receiver<String>) {
    let (sender, told) = mpsc::channel();
    let builder = Client::builder().single(server.url()).events(Recorder(sender));
    (builder.build().expect("a finding is no error by default"), told)
}

/// What is found at a server with that configuration, besides that it keeps nothing on disk.
fn findings(configure: impl FnOnce(Config) -> Config) -> Vec<String> {
    let server = Server::with(|config| configure(config.line("appendonly yes")));
    let (client, told) = told_of(&server);
    drop(client);
    // The events thread ends when all is told.
    told.iter().collect()
}

#[test]
fn a_server_that_is_set_up_well_is_not_talked_about() {
    assert_eq!(findings(|config| config), [""; 0]);
    assert_eq!(findings(|config| config.line("maxmemory 100mb")), [""; 0], "it refuses when full");
}

#[test]
fn every_policy_that_evicts_is_found_where_there_is_a_limit() {
    for policy in ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"] {
        let set = |config: Config| config.line(format!("maxmemory-policy {policy}"));
        assert_eq!(findings(set), [""; 0], "there is no limit");
        let found = findings(|config| set(config).line("maxmemory 100mb"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(policy), "{found:?}");
    }
}

#[test]
fn a_server_that_forgets_is_told_of_once_for_each_client() {
    let server = Server::start();
    let (client, told) = told_of(&server);
    let found = told.recv_timeout(Duration::from_secs(60)).expect("a finding");
    assert!(found.contains("appendonly no") && found.contains(&server.port().to_string()));
    // A server that is connected to again is not looked at again.
    let before = server.calls("time");
    server.client_kill_type("normal");
    client.lock("a").lock().expect("a free lock").unlock().expect("held");
    assert_eq!(server.calls("time"), before);
    drop(client);
    assert_eq!(told.iter().count(), 0, "once");
}

#[test]
fn a_master_that_needs_no_replica_is_found_if_it_has_one() {
    let found = |line: &str| {
        let replicated = Replicated::with(1, 0, |config| config.line("appendonly yes").line(line));
        let (client, told) = told_of(replicated.master());
        drop(client);
        told.iter().collect::<Vec<_>>()
    };
    let cut_off = found("min-replicas-to-write 0");
    assert!(cut_off.len() == 1 && cut_off[0].contains("min-replicas-to-write"), "{cut_off:?}");
    assert_eq!(found("min-replicas-to-write 1"), [""; 0]);
}

#[test]
fn a_single_server_in_cluster_mode_is_found() {
    let cluster = Cluster::with(1, 0, |config| config.line("appendonly yes"));
    let (client, told) = told_of(&cluster.nodes()[0]);
    drop(client);
    let found: Vec<_> = told.iter().collect();
    assert!(found.len() == 1 && found[0].contains("Builder::cluster"), "{found:?}");
    let single = Client::builder().single(cluster.nodes()[0].url());
    drop(single.audit_policy(AuditPolicy::Refuse).build().expect("it endangers no lock"));
    let (sender, told) = mpsc::channel();
    let builder = Client::builder().cluster(cluster.urls()).events(Recorder(sender));
    let client = builder.audit_policy(AuditPolicy::Refuse).build().expect("nothing is found");
    drop(client);
    assert_eq!(told.iter().collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_finding_may_be_an_error_or_not_be_looked_for() {
    let server = Server::start();
    let with = |audit| Client::builder().single(server.url()).audit_policy(audit).build();
    let error = with(AuditPolicy::Refuse).expect_err("it keeps nothing on disk");
    assert!(error.is_configuration() && error.to_string().contains("appendonly no"), "{error}");
    eventually("nothing is left of that client", || server.clients().is_empty());
    let before = server.calls("time");
    with(AuditPolicy::Ignore).expect("nothing is looked for").close();
    assert_eq!(server.calls("time"), before);
    let kept = Server::with(|config| config.line("appendonly yes"));
    let built = Client::builder().single(kept.url()).audit_policy(AuditPolicy::Refuse).build();
    drop(built.expect("nothing is found"));
}

#[test]
fn what_may_not_be_read_is_no_error() {
    let rule = "user default on nopass ~* &* +@all -info -config -time";
    let server = Server::with(|config| config.line(rule));
    let built = Client::builder().single(server.url()).audit_policy(AuditPolicy::Refuse).build();
    let client = built.expect("nothing can be found");
    client.lock("a").lock().expect("a free lock").unlock().expect("held");
}
