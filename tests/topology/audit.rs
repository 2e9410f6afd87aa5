//! The audit: settings of a server that endanger locks are events, or errors, or ignored.

use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Config, Replicated, Server, eventually};
use leasehold::{Audit, AuditPolicy, Client, Events};
use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

struct Recorder(Sender<String>);

impl Events for Recorder {
    fn audit(&self, event: &Audit) {
        let (server, finding) = (&*event.server, &*event.finding);
        assert!(finding.starts_with(&format!("the server at {server} ")), "{server}: {finding}");
        // The test may have ended.
        let _ = self.0.send(finding.to_owned());
    }
}

/// Returns a client of this server, and its findings.
fn audited(server: &Server) -> (Client, Receiver<String>) {
    let (sender, findings) = mpsc::channel();
    let builder = Client::builder().single(server.url()).events(Recorder(sender));
    (builder.build().expect("a finding is no error by default"), findings)
}

/// Returns the findings about a server with this configuration and an append-only file.
fn findings(configure: impl FnOnce(Config) -> Config) -> Vec<String> {
    let server = Server::with(|config| configure(config.line("appendonly yes")));
    let (client, findings) = audited(&server);
    drop(client);
    // The events thread ends after the last event.
    findings.iter().collect()
}

#[test]
fn a_safe_configuration_has_no_findings() {
    assert_eq!(findings(|config| config), [""; 0]);
    assert_eq!(findings(|config| config.line("maxmemory 100mb")), [""; 0], "writes are refused");
}

#[test]
fn every_eviction_policy_is_found_if_memory_is_limited() {
    for policy in ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"] {
        let set = |config: Config| config.line(format!("maxmemory-policy {policy}"));
        assert_eq!(findings(set), [""; 0], "memory is unlimited");
        let found = findings(|config| set(config).line("maxmemory 100mb"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(policy), "{found:?}");
    }
}

#[test]
fn a_server_without_persistence_is_reported_once_per_client() {
    let server = Server::start();
    let (client, findings) = audited(&server);
    let found = findings.recv_timeout(Duration::from_secs(60)).expect("a finding");
    assert!(found.contains("appendonly no") && found.contains(&server.port().to_string()));
    // A new connection to the server causes no new audit.
    let before = server.calls("time");
    server.client_kill_type("normal");
    client.lock("a").lock().expect("a free lock").unlock().expect("held");
    assert_eq!(server.calls("time"), before);
    drop(client);
    assert_eq!(findings.iter().count(), 0, "the finding is reported once");
}

#[test]
fn a_master_with_a_replica_is_found_if_it_requires_none() {
    let found = |line: &str| {
        let replicated = Replicated::with(1, 0, |config| config.line("appendonly yes").line(line));
        let (client, findings) = audited(replicated.master());
        drop(client);
        findings.iter().collect::<Vec<_>>()
    };
    let zero = found("min-replicas-to-write 0");
    assert!(zero.len() == 1 && zero[0].contains("min-replicas-to-write"), "{zero:?}");
    assert_eq!(found("min-replicas-to-write 1"), [""; 0]);
}

#[test]
fn a_single_server_in_cluster_mode_is_found() {
    let cluster = Cluster::with(1, 0, |config| config.line("appendonly yes"));
    let (client, findings) = audited(&cluster.nodes()[0]);
    drop(client);
    let found: Vec<_> = findings.iter().collect();
    assert!(found.len() == 1 && found[0].contains("Builder::cluster"), "{found:?}");
    let single = Client::builder().single(cluster.nodes()[0].url());
    drop(single.audit_policy(AuditPolicy::Refuse).build().expect("the finding endangers no lock"));
    let (sender, findings) = mpsc::channel();
    let builder = Client::builder().cluster(cluster.urls()).events(Recorder(sender));
    let client = builder.audit_policy(AuditPolicy::Refuse).build().expect("no findings");
    drop(client);
    assert_eq!(findings.iter().collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_audit_policy_turns_findings_into_errors_or_skips_the_audit() {
    let server = Server::start();
    let with = |audit| Client::builder().single(server.url()).audit_policy(audit).build();
    let error = with(AuditPolicy::Refuse).expect_err("the server has no persistence");
    assert!(error.is_configuration() && error.to_string().contains("appendonly no"), "{error}");
    eventually("nothing is left of that client", || server.clients().is_empty());
    let before = server.calls("time");
    with(AuditPolicy::Ignore).expect("the audit is skipped").close();
    assert_eq!(server.calls("time"), before);
    let persistent = Server::with(|config| config.line("appendonly yes"));
    let built =
        Client::builder().single(persistent.url()).audit_policy(AuditPolicy::Refuse).build();
    drop(built.expect("no findings"));
}

#[test]
fn a_setting_that_may_not_be_read_is_no_error() {
    let rule = "user default on nopass ~* &* +@all -info -config -time";
    let server = Server::with(|config| config.line(rule));
    let built = Client::builder().single(server.url()).audit_policy(AuditPolicy::Refuse).build();
    let client = built.expect("no setting can be read");
    client.lock("a").lock().expect("a free lock").unlock().expect("held");
}

// ---------------------------------------------------------------------------------
// `Client::audit`.

/// Returns the server and the text of each finding.
fn audit(client: &Client) -> Vec<(String, String)> {
    let found = client.audit().expect("an answer").into_iter();
    found.map(|it| (it.server.to_string(), it.text.to_string())).collect()
}

fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

#[test]
fn an_audit_by_call_returns_all_findings_each_time_and_emits_none() {
    let server = Server::with(|config| {
        config.line("maxmemory 100mb").line("maxmemory-policy allkeys-lru").line("appendonly no")
    });
    let (sender, events) = mpsc::channel();
    let builder = Client::builder().single(server.url()).events(Recorder(sender));
    let client = builder.audit_policy(AuditPolicy::Ignore).build().expect("the server answers");
    for _ in 0..2 {
        let found = audit(&client);
        let [eviction, persistence] = &found[..] else { panic!("two findings: {found:?}") };
        assert!(eviction.1.contains("allkeys-lru") && persistence.1.contains("appendonly no"));
        assert_eq!([&eviction.0, &persistence.0], [&address(&server); 2]);
    }
    let shown = client.audit().expect("an answer")[0].to_string();
    assert!(shown.starts_with(&format!("the server at {} evicts", address(&server))), "{shown}");
    server.ask::<()>(&["CONFIG", "SET", "appendonly", "yes", "maxmemory", "0"]);
    assert_eq!(audit(&client), []);
    drop(client);
    assert_eq!(events.iter().count(), 0);
}

#[test]
fn an_audit_by_call_needs_a_server_and_no_permission() {
    let server = Server::start();
    let rules = ["on", ">secret", "~*", "&*", "+@all", "-info", "-config", "-time", "-ping"];
    server.ask::<()>(&[&["ACL", "SETUSER", "worker"], &rules[..]].concat());
    let builder = Client::builder().single(server.login_url("worker", "secret"));
    let client = builder.build_lazily().expect("no call");
    assert_eq!(audit(&client), []);
    server.kill();
    let error = client.audit().expect_err("no server");
    assert!(error.is_retryable() && !error.to_string().contains("secret"), "{error:?}");
    client.close();
    assert!(client.audit().is_err_and(|error| error.is_closed()));
}

#[test]
fn an_audit_by_call_covers_all_masters_of_a_cluster_and_goes_on_past_a_silent_one() {
    let cluster = Cluster::start(3, 0);
    let builder = Client::builder().cluster(cluster.urls());
    let brief = builder.response_timeout(Duration::from_secs(2));
    let client = brief.build().expect("the cluster is well");
    let servers = |text: &str| -> Vec<String> {
        let found = audit(&client).into_iter().filter(|it| it.1.contains(text));
        let mut servers: Vec<_> = found.map(|it| it.0).collect();
        servers.sort();
        servers
    };
    let mut all: Vec<_> = cluster.nodes().iter().map(address).collect();
    all.sort();
    assert_eq!(servers("appendonly no"), all);
    let silent = &cluster.nodes()[0];
    silent.stop();
    let others: Vec<_> = all.iter().filter(|it| **it != address(silent)).cloned().collect();
    let found = audit(&client);
    silent.resume();
    let with = |text: &str| found.iter().filter(|it| it.1.contains(text)).count();
    assert_eq!((with("does not answer"), with("appendonly no")), (1, others.len()), "{found:?}");
    let unanswered = found.iter().find(|it| it.1.starts_with("does not answer: "));
    assert_eq!(unanswered.map(|it| &it.0), Some(&address(silent)));
}

#[test]
fn an_audit_by_call_is_that_of_the_master() {
    let servers = Replicated::with(1, 3, |config| config.line("min-replicas-to-write 0"));
    let builder = Client::builder().sentinel(MASTER, servers.sentinel_urls());
    let client = builder.build_lazily().expect("no connection");
    let masters = || audit(&client).into_iter().map(|it| it.0).collect::<BTreeSet<_>>();
    assert_eq!(masters(), [address(servers.master())].into());
    let new = address(servers.fail_over());
    eventually("the new master is audited", || {
        client.audit().is_ok_and(|found| found.iter().any(|it| *it.server == *new))
    });
    assert_eq!(masters(), [new].into());
}
