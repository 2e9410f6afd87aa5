//! How a server is set up, where that endangers locks.
//!
//! Each server is looked at when a client has connected to it for the first time, in one
//! round trip. What may not be read counts as good.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::command::call::Call;
use crate::command::reply::Reply;
use crate::error::{Error, Result};
use crate::events::{Audit, Event, EventSink};
use crate::util::clock;
use crate::util::sync::Mutex;
use crate::util::threads;

/// The oldest version that is supported.
const OLDEST: (u32, u32) = (6, 2);

/// The settings that matter.
const SETTINGS: [&str; 5] =
    ["maxmemory", "maxmemory-policy", "appendonly", "save", "min-replicas-to-write"];

/// How far the server's clock may be from ours, beyond what the question took.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// What is done about a server that is set up in a way that endangers locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditPolicy {
    /// Servers are not looked at.
    Ignore,
    /// Each finding is a warning in the log and told to [`Events::audit`](crate::Events::audit),
    /// once.
    #[default]
    Report,
    /// The same, and the client is not built.
    Refuse,
}

/// What one client has found.
pub(crate) struct Auditor {
    audit_policy: AuditPolicy,
    /// The servers are the nodes of a cluster, and used as such.
    of_cluster: bool,
    events: EventSink,
    looked_at: Mutex<BTreeSet<Arc<str>>>,
}

impl fmt::Debug for Auditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Auditor").field(&self.audit_policy).finish()
    }
}

impl Auditor {
    pub(crate) fn new(audit_policy: AuditPolicy, of_cluster: bool, events: EventSink) -> Auditor {
        Auditor { audit_policy, of_cluster, events, looked_at: Mutex::default() }
    }

    /// Whether servers are asked how they are.
    pub(crate) fn is_on(&self) -> bool {
        self.audit_policy != AuditPolicy::Ignore
    }

    /// Whether that server is to be looked at; `true` once.
    fn wants(&self, server: &Arc<str>) -> bool {
        self.is_on() && self.looked_at.lock().insert(Arc::clone(server))
    }

    /// Looks at a server, if it has not been looked at; `ask` asks it many questions at once.
    /// An error if there is a finding and that is wanted.
    pub(crate) fn look(
        &self,
        server: Arc<str>,
        ask: impl FnOnce(Vec<Call>) -> Vec<Reply>,
    ) -> Result<()> {
        if !self.wants(&server) {
            return Ok(());
        }
        let before = clock::wall_clock();
        let replies = ask(schedule());
        self.judge(&server, &ServerFacts::read(replies, before, clock::wall_clock()))
    }

    /// Takes in what a server answered, and tells what is wrong with it. An error if that is
    /// wanted.
    fn judge(&self, server: &Arc<str>, found: &ServerFacts) -> Result<()> {
        let findings = found.findings();
        // It costs commands and endangers no lock.
        let harmless = found.has_slots().filter(|_| !self.of_cluster);
        for finding in findings.iter().chain(&harmless) {
            let finding: Arc<str> = format!("the server at {server} {finding}").into();
            threads::say(|| log::warn!("{finding}"));
            let at = clock::wall_time();
            self.events.emit(|| Event::Audit(Audit { at, finding }));
        }
        match findings.first().filter(|_| self.audit_policy == AuditPolicy::Refuse) {
            Some(first) => {
                let error = Error::configuration(format!("the server {first}"));
                Err(error.with_server(Arc::clone(server)))
            }
            None => Ok(()),
        }
    }
}

/// What a server is asked; the clock comes last.
fn schedule() -> Vec<Call> {
    let settings = SETTINGS.map(|name| Call::command(&[b"CONFIG", b"GET", name.as_bytes()]));
    let [info, time] = [&[b"INFO" as &[u8]], &[b"TIME" as &[u8]]].map(|parts| Call::command(parts));
    [info].into_iter().chain(settings).chain([time]).collect()
}

/// What a server says of itself, as far as it does.
#[derive(Debug, Default)]
struct ServerFacts {
    /// Lines of `INFO`, and settings.
    facts: BTreeMap<String, String>,
    /// How far its clock is from ours at least.
    clocks_apart: Duration,
}

impl ServerFacts {
    /// Reads the answers to [`questions`]; ours were the times before and after.
    fn read(replies: Vec<Reply>, before: Duration, after: Duration) -> ServerFacts {
        let mut found = ServerFacts::default();
        for reply in replies {
            match (&reply, seconds(&reply)) {
                (_, Some(theirs)) => found.clocks_apart = apart(theirs, before, after),
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

    fn fact(&self, names: [&str; 2]) -> Option<&str> {
        names.into_iter().find_map(|name| self.facts.get(name)).map(String::as_str)
    }

    fn number(&self, names: [&str; 2]) -> Option<u64> {
        self.fact(names)?.parse().ok()
    }

    /// What endangers locks, each as the end of a sentence that begins with the server.
    fn findings(&self) -> Vec<String> {
        let all = [self.evicts(), self.forgets(), self.is_cut_off(), self.is_old(), self.is_off()];
        all.into_iter().flatten().collect()
    }

    fn evicts(&self) -> Option<String> {
        let policy = self.fact(["maxmemory-policy", "maxmemory_policy"])?;
        let full = self.number(["maxmemory", "maxmemory"])? > 0;
        (full && policy != "noeviction").then(|| {
            format!(
                "removes keys when it is full, locks that are held among them \
                     (maxmemory-policy {policy})"
            )
        })
    }

    fn forgets(&self) -> Option<String> {
        let snapshots = self.fact(["save", "save"])?;
        let log = self.fact(["appendonly", "appendonly"])?;
        (snapshots.is_empty() && log == "no").then(|| {
            "keeps nothing on disk: after a restart locks that are held are free (appendonly no)"
                .to_owned()
        })
    }

    fn is_cut_off(&self) -> Option<String> {
        let replicas = self.number(["connected_slaves", "connected_replicas"])?;
        let wanted = self.number(["min-replicas-to-write", "min-slaves-to-write"])?;
        let master = self.fact(["role", "role"])? == "master";
        (master && replicas > 0 && wanted == 0).then(|| {
            "goes on granting locks when it is cut off from its replicas, one of which may be \
             the master by then (min-replicas-to-write 0)"
                .to_owned()
        })
    }

    fn is_old(&self) -> Option<String> {
        let version = self.fact(["redis_version", "redis_version"])?;
        let mut parts = version.split('.').map(|part| part.parse().ok());
        let numbers = (parts.next()??, parts.next()??);
        let (major, minor) = OLDEST;
        (numbers < OLDEST)
            .then(|| format!("is of version {version}; {major}.{minor} is the oldest supported"))
    }

    /// Only a finding where nobody knows of slots.
    fn has_slots(&self) -> Option<String> {
        (self.fact(["redis_mode", "server_mode"])? == "cluster").then(|| {
            "is in cluster mode: it refuses commands on keys of different slots, which are then \
             sent one by one (Builder::cluster knows of slots)"
                .to_owned()
        })
    }

    fn is_off(&self) -> Option<String> {
        (self.clocks_apart > CLOCKS_APART)
            .then(|| format!("has a clock that is {:?} off from ours", self.clocks_apart))
    }
}

/// The answer to `TIME`: the seconds and microseconds since 1970, in text.
fn seconds(reply: &Reply) -> Option<Duration> {
    let Reply::List(parts) = reply else { return None };
    let [Reply::Text(seconds), Reply::Text(micros)] = &parts[..] else { return None };
    let number = |text| std::str::from_utf8(text).ok()?.parse().ok();
    Some(Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?))
}

/// How far a clock is away that was read at some time between those two.
fn apart(theirs: Duration, before: Duration, after: Duration) -> Duration {
    let behind = before.saturating_sub(theirs);
    behind.max(theirs.saturating_sub(after))
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

    fn findings(replies: Vec<Reply>) -> Vec<String> {
        ServerFacts::read(replies, Duration::from_secs(100), Duration::from_secs(101)).findings()
    }

    const GOOD: &str = "# Server\r\nredis_version:6.2.0\r\nrole:master\r\nmaxmemory:100\r\n\
                        maxmemory_policy:noeviction\r\nconnected_slaves:2\r\n";

    #[test]
    fn a_good_server_has_no_findings_and_neither_has_one_that_says_nothing() {
        let good = settings(&[("appendonly", "yes"), ("save", ""), ("min-replicas-to-write", "1")]);
        let time = Reply::List(vec![text("105"), text("999999")]);
        assert_eq!(findings(vec![text(GOOD), good, time]), [""; 0]);
        assert_eq!(findings(vec![Reply::Nil, Reply::Nil]), [""; 0]);
    }

    #[test]
    fn each_danger_is_a_finding() {
        let info = GOOD.replace("noeviction", "volatile-ttl").replace("6.2.0", "6.0.20");
        let bad = settings(&[("appendonly", "no"), ("save", ""), ("min-replicas-to-write", "0")]);
        let time = Reply::List(vec![text("94"), text("0")]);
        let findings = findings(vec![text(&info), bad, time]);
        let words =
            ["volatile-ttl", "appendonly no", "min-replicas-to-write 0", "6.0.20", "6s off"];
        assert_eq!(findings.len(), words.len(), "{findings:?}");
        for (finding, word) in findings.iter().zip(words) {
            assert!(finding.contains(word), "{finding:?} says nothing of {word:?}");
        }
    }

    #[test]
    fn a_clock_is_off_by_what_the_question_cannot_have_taken() {
        let [a, b] = [100, 101].map(Duration::from_secs);
        assert_eq!(apart(Duration::from_millis(100_500), a, b), Duration::ZERO);
        assert_eq!(apart(Duration::from_secs(90), a, b), Duration::from_secs(10));
        assert_eq!(apart(Duration::from_secs(111), a, b), Duration::from_secs(10));
    }

    #[test]
    fn a_server_is_looked_at_once() {
        let server: Arc<str> = "s".into();
        let auditor = Auditor::new(AuditPolicy::Report, false, EventSink::default());
        assert!(auditor.wants(&server) && !auditor.wants(&server));
        assert!(!Auditor::new(AuditPolicy::Ignore, false, EventSink::default()).wants(&server));
    }
}
