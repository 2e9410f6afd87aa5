//! The audit: findings about a server's configuration that endanger locks.
//!
//! A client audits each server once, after its first connection to the server, in one round trip.
//! A server that leaves the deployment and comes back is audited again.
//! [`Client::audit`](crate::Client::audit) audits all servers at any time. In such an audit, a
//! command that the server refuses is a finding; in the first audit of a client it is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::events::{Audit, Event, EventSink};
use crate::transport::call::Call;
use crate::transport::reply::Reply;
use crate::util::clock;
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Mutex;

/// The oldest supported version of Redis.
const OLDEST: (u32, u32) = (6, 2);

/// The audited settings.
const SETTINGS: [&str; 5] =
    ["maxmemory", "maxmemory-policy", "appendonly", "save", "min-replicas-to-write"];

/// The tolerated difference between the clocks, beyond the duration of the round trip.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);

/// The reaction to a server whose configuration endangers locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditPolicy {
    /// Does not audit servers.
    Ignore,
    /// Reports each finding once: as a warning in the log and to
    /// [`Events::audit`](crate::Events::audit).
    #[default]
    Report,
    /// Reports findings, and does not build the client if there are any.
    Refuse,
}

/// A setting or a state of a server that endangers locks.
///
/// Returned by [`Client::audit`](crate::Client::audit). Shown as a sentence that begins with the
/// server. With the feature `serde`, serialized as a structure with the same fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditFinding {
    /// The address of the server, without user and password.
    pub server: Arc<str>,
    /// The end of a sentence that begins with the server, such as `has version 5.0; ...`.
    pub text: Arc<str>,
}

impl fmt::Display for AuditFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server at {} {}", self.server, self.text)
    }
}

/// The settings of a client that decide which facts about a server are findings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuditScope {
    /// Whether the client is configured for a cluster.
    pub(crate) of_cluster: bool,
    /// Whether the client takes locks on replicas.
    pub(crate) allows_replica: bool,
}

/// Audits one server. `ask` sends the commands in one round trip.
///
/// A server that does not answer is an error. Commands that it refuses are a finding.
pub(crate) fn examine(
    server: &Arc<str>,
    scope: AuditScope,
    ask: impl FnOnce(Vec<Call>) -> Vec<Result<Reply>>,
) -> Result<Vec<AuditFinding>> {
    let before = clock::unix_time();
    let (mut replies, mut refused) = (Vec::new(), BTreeSet::new());
    for (command, reply) in audited_commands().zip(ask(audit_commands())) {
        match reply {
            Err(error) if error.is_server() => drop(refused.insert(command)),
            reply => replies.push(reply?),
        }
    }
    let facts = ServerFacts::read(replies, before, clock::unix_time());
    let mut texts = facts.findings(scope);
    texts.extend(facts.cluster_mode_finding(scope));
    if !refused.is_empty() {
        let commands = Vec::from_iter(refused).join(", ");
        texts.push(format!("refuses {commands}: a part of it is not audited"));
    }
    Ok(texts.into_iter().map(|text| finding(server, text)).collect())
}

/// Returns the finding that a server does not answer.
pub(crate) fn unanswered(server: &Arc<str>, error: &Error) -> AuditFinding {
    finding(server, format!("does not answer: {}", error.with_causes()))
}

fn finding(server: &Arc<str>, text: String) -> AuditFinding {
    AuditFinding { server: Arc::clone(server), text: text.into() }
}

/// The audit of one client.
pub(crate) struct Auditor {
    audit_policy: AuditPolicy,
    scope: AuditScope,
    events: EventSink,
    audited: Mutex<BTreeSet<Arc<str>>>,
}

impl fmt::Debug for Auditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Auditor").field(&self.audit_policy).finish()
    }
}

impl Auditor {
    pub(crate) fn new(audit_policy: AuditPolicy, scope: AuditScope, events: EventSink) -> Auditor {
        Auditor { audit_policy, scope, events, audited: Mutex::default() }
    }

    /// Returns whether the client audits servers.
    pub(crate) fn is_on(&self) -> bool {
        self.audit_policy != AuditPolicy::Ignore
    }

    /// Returns whether a server has to be audited: `true` once per server in use.
    fn is_first(&self, server: &Arc<str>) -> bool {
        self.is_on() && self.audited.lock().insert(Arc::clone(server))
    }

    /// Forgets the servers that are not among these. One that comes back is audited again.
    pub(crate) fn retain(&self, servers: &BTreeSet<Arc<str>>) {
        self.audited.lock().retain(|server| servers.contains(server));
    }

    /// Audits a server once, and reports the findings. `ask` sends the commands and returns the
    /// replies, in one round trip.
    ///
    /// With [`AuditPolicy::Refuse`], a finding is an error.
    pub(crate) fn audit(
        &self,
        server: Arc<str>,
        ask: impl FnOnce(Vec<Call>) -> Vec<Reply>,
    ) -> Result<()> {
        if !self.is_first(&server) {
            return Ok(());
        }
        let before = clock::unix_time();
        let replies = ask(audit_commands());
        let facts = ServerFacts::read(replies, before, clock::unix_time());
        let findings = facts.findings(self.scope);
        // This finding never refuses a server: cluster mode costs commands, but endangers no lock.
        let harmless = facts.cluster_mode_finding(self.scope);
        for text in findings.iter().chain(&harmless) {
            let finding: Arc<str> = finding(&server, text.clone()).to_string().into();
            log::warn!(
                logger: LINES, target: log_target::AUDIT, server = &*server;
                "{finding}"
            );
            let (at, server) = (clock::wall_time(), Arc::clone(&server));
            self.events.emit(|| Event::Audit(Audit { at, server, finding }));
        }
        match findings.first() {
            Some(first) if self.audit_policy == AuditPolicy::Refuse => {
                Err(Error::configuration(format!("the server {first}")).with_server(server))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the commands of an audit. `TIME` comes last.
fn audit_commands() -> Vec<Call> {
    let settings = SETTINGS.map(|name| Call::command(&[b"CONFIG", b"GET", name.as_bytes()]));
    let [info, time] = [&[b"INFO" as &[u8]], &[b"TIME" as &[u8]]].map(|parts| Call::command(parts));
    [info].into_iter().chain(settings).chain([time]).collect()
}

/// Returns the names of the commands of [`audit_commands`], in their order.
fn audited_commands() -> impl Iterator<Item = &'static str> {
    let settings = SETTINGS.map(|_| "CONFIG GET");
    ["INFO"].into_iter().chain(settings).chain(["TIME"])
}

/// The facts that a server has reported about itself.
#[derive(Debug, Default)]
struct ServerFacts {
    /// The fields of `INFO`, and settings, by name.
    facts: BTreeMap<String, String>,
    /// The least possible difference between the server's clock and the client's.
    clock_offset: Duration,
}

impl ServerFacts {
    /// Reads the replies to [`audit_commands`].
    ///
    /// `before` and `after` are the client's times before and after the round trip.
    fn read(replies: Vec<Reply>, before: Duration, after: Duration) -> ServerFacts {
        let mut found = ServerFacts::default();
        for reply in replies {
            match (&reply, time(&reply)) {
                (_, Some(time)) => found.clock_offset = offset(time, before, after),
                (Reply::Text(info), None) => found.read_info(&String::from_utf8_lossy(info)),
                (Reply::List(pairs), None) => found.read_settings(pairs),
                _ => {}
            }
        }
        found
    }

    fn read_info(&mut self, info: &str) {
        let facts = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.facts.extend(facts);
    }

    fn read_settings(&mut self, pairs: &[Reply]) {
        for pair in pairs.chunks_exact(2) {
            if let [Reply::Text(name), Reply::Text(value)] = pair {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                self.facts.insert(text(name), text(value));
            }
        }
    }

    /// Returns the value of the first of two names that the server has reported.
    fn fact(&self, names: [&str; 2]) -> Option<&str> {
        names.into_iter().find_map(|name| self.facts.get(name)).map(String::as_str)
    }

    fn number(&self, names: [&str; 2]) -> Option<u64> {
        self.fact(names)?.parse().ok()
    }

    /// Returns the findings. Each is the end of a sentence that starts with the server.
    fn findings(&self, scope: AuditScope) -> Vec<String> {
        let all = [
            self.eviction_finding(),
            self.persistence_finding(),
            self.role_finding().filter(|_| !scope.allows_replica),
            self.replica_finding(),
            self.version_finding(),
            self.clock_finding(),
        ];
        all.into_iter().flatten().collect()
    }

    fn eviction_finding(&self) -> Option<String> {
        let policy = self.fact(["maxmemory-policy", "maxmemory_policy"])?;
        let full = self.number(["maxmemory", "maxmemory"])? > 0;
        (full && policy != "noeviction").then(|| {
            format!(
                "evicts keys when its memory is full, including held locks \
                     (maxmemory-policy {policy})"
            )
        })
    }

    fn persistence_finding(&self) -> Option<String> {
        let snapshots = self.fact(["save", "save"])?;
        let log = self.fact(["appendonly", "appendonly"])?;
        (snapshots.is_empty() && log == "no").then(|| {
            "keeps nothing on disk: a restart frees all held locks (appendonly no)".to_owned()
        })
    }

    fn role_finding(&self) -> Option<String> {
        let is_replica = self.fact(["role", "role"])? != "master";
        let [host, port] = ["host", "port"].map(|part| self.facts.get(&format!("master_{part}")));
        let (host, port) = (host.filter(|_| is_replica)?, port?);
        let accepts = match self.fact(["slave_read_only", "replica_read_only"]) {
            Some("0") => "accepts writes, which it loses at its next synchronization",
            _ => "accepts no writes",
        };
        Some(format!("is a replica of {host}:{port} and {accepts}: take locks at the master"))
    }

    fn replica_finding(&self) -> Option<String> {
        let replicas = self.number(["connected_slaves", "connected_replicas"])?;
        let wanted = self.number(["min-replicas-to-write", "min-slaves-to-write"])?;
        let master = self.fact(["role", "role"])? == "master";
        (master && replicas > 0 && wanted == 0).then(|| {
            "keeps granting locks when it is cut off from its replicas, although one of them may \
             have become the master (min-replicas-to-write 0)"
                .to_owned()
        })
    }

    fn version_finding(&self) -> Option<String> {
        let version = self.fact(["redis_version", "redis_version"])?;
        let mut parts = version.split('.').map(|part| part.parse().ok());
        let numbers = (parts.next()??, parts.next()??);
        let (major, minor) = OLDEST;
        (numbers < OLDEST)
            .then(|| format!("has version {version}; {major}.{minor} is the oldest supported"))
    }

    /// Returns a finding for clients that are not configured for a cluster.
    fn cluster_mode_finding(&self, scope: AuditScope) -> Option<String> {
        let is_node = self.fact(["redis_mode", "server_mode"])? == "cluster";
        (is_node && !scope.of_cluster).then(|| {
            "is in cluster mode: it refuses commands on keys of different slots, which are then \
             sent one by one (use Builder::cluster)"
                .to_owned()
        })
    }

    fn clock_finding(&self) -> Option<String> {
        (self.clock_offset > CLOCK_TOLERANCE)
            .then(|| format!("has a clock that is {:?} off from the client's", self.clock_offset))
    }
}

/// Reads the reply to `TIME`: seconds and microseconds since 1970, in text.
fn time(reply: &Reply) -> Option<Duration> {
    let Reply::List(parts) = reply else { return None };
    let [Reply::Text(seconds), Reply::Text(micros)] = &parts[..] else { return None };
    let number = |text| std::str::from_utf8(text).ok()?.parse().ok();
    Some(Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?))
}

/// Returns the least offset of a clock that showed `time` at a moment from `before` to `after`.
fn offset(time: Duration, before: Duration, after: Duration) -> Duration {
    let behind = before.saturating_sub(time);
    behind.max(time.saturating_sub(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.as_bytes().to_vec())
    }

    fn settings(pairs: &[(&str, &str)]) -> Reply {
        Reply::List(pairs.iter().flat_map(|(name, value)| [text(name), text(value)]).collect())
    }

    const SCOPE: AuditScope = AuditScope { of_cluster: false, allows_replica: false };

    fn findings(replies: Vec<Reply>) -> Vec<String> {
        let [before, after] = [100, 101].map(Duration::from_secs);
        ServerFacts::read(replies, before, after).findings(SCOPE)
    }

    const GOOD: &str = "# Server\r\nredis_version:6.2.0\r\nrole:master\r\nmaxmemory:100\r\n\
                        maxmemory_policy:noeviction\r\nconnected_slaves:2\r\n";

    #[test]
    fn a_good_server_and_a_server_without_facts_have_no_findings() {
        let good = settings(&[("appendonly", "yes"), ("save", ""), ("min-replicas-to-write", "1")]);
        let time = Reply::List(vec![text("105"), text("999999")]);
        assert_eq!(findings(vec![text(GOOD), good, time]), [""; 0]);
        assert_eq!(findings(vec![Reply::Nil, Reply::Nil]), [""; 0]);
    }

    #[test]
    fn each_dangerous_setting_is_a_finding() {
        let info = GOOD.replace("noeviction", "volatile-ttl").replace("6.2.0", "6.0.20");
        let bad = settings(&[("appendonly", "no"), ("save", ""), ("min-replicas-to-write", "0")]);
        let time = Reply::List(vec![text("94"), text("0")]);
        let findings = findings(vec![text(&info), bad, time]);
        let words =
            ["volatile-ttl", "appendonly no", "min-replicas-to-write 0", "6.0.20", "6s off"];
        assert_eq!(findings.len(), words.len(), "{findings:?}");
        for (finding, word) in findings.iter().zip(words) {
            assert!(finding.contains(word), "{finding:?} does not contain {word:?}");
        }
    }

    #[test]
    fn a_replica_is_found_with_its_master() {
        for (read_only, words) in [("1", "accepts no writes"), ("0", "accepts writes")] {
            let info = format!(
                "role:slave\r\nmaster_host:m\r\nmaster_port:6379\r\nslave_read_only:{read_only}\r\n"
            );
            let found = findings(vec![text(&info)]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("m:6379") && found[0].contains(words), "{found:?}");
        }
    }

    #[test]
    fn the_clock_offset_leaves_out_the_duration_of_the_round_trip() {
        let [a, b] = [100, 101].map(Duration::from_secs);
        assert_eq!(offset(Duration::from_millis(100_500), a, b), Duration::ZERO);
        assert_eq!(offset(Duration::from_secs(90), a, b), Duration::from_secs(10));
        assert_eq!(offset(Duration::from_secs(111), a, b), Duration::from_secs(10));
    }

    #[test]
    fn a_server_is_audited_once() {
        let server: Arc<str> = "s".into();
        let auditor = |policy| Auditor::new(policy, SCOPE, EventSink::default());
        let ignores = auditor(AuditPolicy::Ignore);
        let auditor = auditor(AuditPolicy::Report);
        assert!(auditor.is_first(&server) && !auditor.is_first(&server));
        assert!(!ignores.is_first(&server));
    }
}
