//! `audit`: settings of servers that endanger locks.

use super::program::{json, run};
use crate::harness::{Cluster, Server};
use serde_json::json as value;
use std::collections::BTreeSet;

#[test]
fn a_safe_server_has_no_findings() {
    let server = Server::with(|config| config.line("appendonly yes"));
    assert_eq!(json(&["audit", "--url", &server.url()]), (Some(0), value!([])));
    let outcome = run(&["audit", "--url", &server.url()]);
    assert_eq!((outcome.code, &*outcome.out, &*outcome.err), (Some(0), "", ""));
}

#[test]
fn the_findings_about_a_server_are_shown() {
    let server =
        Server::with(|config| config.line("maxmemory 100mb").line("maxmemory-policy allkeys-lru"));
    let (code, findings) = json(&["audit", "--url", &server.url()]);
    assert_eq!(code, Some(1));
    let findings = findings.as_array().expect("an array");
    assert_eq!(findings.len(), 2, "eviction and persistence: {findings:?}");
    assert!(findings.iter().all(|it| it["server"] == server.addr().to_string()), "{findings:?}");
    let outcome = run(&["audit", "--url", &server.url()]);
    assert_eq!((outcome.code, outcome.out.lines().count()), (Some(1), 2), "{outcome:?}");
    for word in ["allkeys-lru", "appendonly", &server.addr().to_string()] {
        assert!(outcome.out.contains(word), "{outcome:?}");
    }
}

#[test]
fn every_node_of_a_cluster_is_audited() {
    let cluster = Cluster::start(3, 0);
    let (code, findings) = json(&["audit", "--cluster", "--url", &cluster.nodes()[0].url()]);
    assert_eq!(code, Some(1));
    let servers = findings.as_array().expect("an array").iter().map(|it| it["server"].clone());
    let servers: BTreeSet<_> = servers.map(|it| it.as_str().expect("a text").to_owned()).collect();
    let nodes: BTreeSet<_> = cluster.nodes().iter().map(|node| node.addr().to_string()).collect();
    assert_eq!(servers, nodes);
}

#[test]
fn a_finding_names_the_settings_of_the_program() {
    let cluster = Cluster::start(3, 0);
    let url = cluster.nodes()[0].url();
    for options in [&["audit"][..], &["audit", "--json"]] {
        let outcome = run(&[options, &["--url", &url]].concat());
        assert!(outcome.out.contains("use --cluster"), "{outcome:?}");
        assert!(!outcome.out.contains("Builder::"), "{outcome:?}");
    }
}
