//! Questions whether a lock is held, in each of the ways that the library has.

use super::{Thread, error_word};
use crate::kind::Kind;
use crate::record::{Event, Request, Verb};
use crate::system::now;
use leasehold::kind::LockKind;
use leasehold::{Client, Lock, RedLock, Result};
use std::collections::BTreeSet;

/// A way to ask.
#[derive(Clone, Copy)]
enum Way {
    IsLocked,
    Holder,
    LockInfo,
    /// A search, which answers for many locks at once.
    Search,
}

const WAYS: [Way; 4] = [Way::IsLocked, Way::Holder, Way::LockInfo, Way::Search];

impl Thread<'_> {
    /// Asks once whether a lock is held. The answer is recorded as `Done` or `Refused`.
    pub(super) fn ask(&mut self, kind: Kind) {
        let way = *self.rng.choice(&WAYS).expect("there are some");
        if matches!(way, Way::Search) && kind != Kind::Red {
            return self.search();
        }
        let Request { lock, shared, .. } = self.request(kind, false);
        let question = Request { verb: Verb::Ask, shared, ..Request::waiting(lock, 0) };
        let attempt = self.asks(question.clone());
        let event = match is_held(kind, &question, self.clients, way) {
            Ok(true) => Event::Done,
            Ok(false) => Event::Refused,
            Err(error) => Event::Failed(error_word(&error)),
        };
        self.record(attempt, now(), event);
    }

    /// Searches for locks of all kinds, or of one. Records an answer for each lock that is in use at
    /// present, and for each other lock that is found.
    fn search(&mut self) {
        let kinds = self.arguments.work.kinds.iter().filter(|kind| kind.is_one_key());
        let mut kinds: Vec<Kind> = kinds.copied().collect();
        let mut pattern = "*".to_owned();
        if self.rng.bool() {
            let kind = *self.rng.choice(&kinds).expect("the asking kind is one of them");
            kinds.retain(|it| *it == kind);
            pattern = format!("{kind}-*");
        }
        let from = now();
        let sought: BTreeSet<String> =
            kinds.into_iter().map(|kind| kind.lock(self.number(kind))).collect();
        let question = |lock: &String, shared| Request {
            verb: Verb::Search,
            shared,
            ..Request::waiting(lock.clone(), 0)
        };
        // A search shows both sides of a lock.
        let both = [false, true];
        let asked: Vec<_> =
            sought.iter().flat_map(|lock| both.map(|it| question(lock, it))).collect();
        let attempts: Vec<_> =
            asked.into_iter().map(|it| (it.lock.clone(), self.asks(it))).collect();
        let (found, error) = found(&self.clients[0], &pattern);
        let at = now();
        for (lock, attempt) in attempts {
            let event = match (&error, found.contains(&lock)) {
                (_, true) => Event::Done,
                (None, false) => Event::Refused,
                (Some(error), false) => Event::Failed(error.clone()),
            };
            self.record(attempt, at, event);
        }
        for lock in found.difference(&sought) {
            let attempt = self.next_attempt();
            self.record(attempt, from, Event::Asks(question(lock, false)));
            self.record(attempt, at, Event::Done);
        }
    }
}

/// Returns the names of the locks that a search finds, and its first error, if it has one.
fn found(client: &Client, pattern: &str) -> (BTreeSet<String>, Option<String>) {
    let (mut found, mut error) = (BTreeSet::new(), None);
    let locks = match client.locks(pattern) {
        Ok(locks) => locks,
        Err(error) => return (found, Some(error_word(&error))),
    };
    for lock in locks {
        match lock {
            Ok(lock) => drop(found.insert(lock.name().to_owned())),
            Err(failed) => error = error.or_else(|| Some(error_word(&failed))),
        }
    }
    (found, error)
}

fn is_held(kind: Kind, question: &Request, clients: &[Client], way: Way) -> Result<bool> {
    let (client, name) = (&clients[0], &*question.lock);
    match kind {
        Kind::Red => RedLock::new(clients.to_vec(), name).is_locked(),
        Kind::Fenced => asked(&client.fenced_lock(name), client, way),
        Kind::Fair => asked(&client.fair_lock(name), client, way),
        Kind::Rw if question.shared => asked(&client.rw_lock(name).read_lock(), client, way),
        Kind::Rw => asked(&client.rw_lock(name).write_lock(), client, way),
        Kind::Spin => asked(&client.spin_lock(name), client, way),
        Kind::Queued => asked(&client.queue_lock(name), client, way),
        _ => asked(&client.lock(name), client, way),
    }
}

fn asked<K: LockKind>(lock: &Lock<K>, client: &Client, way: Way) -> Result<bool> {
    match way {
        Way::IsLocked => lock.is_locked(),
        Way::Holder => Ok(lock.holder()?.is_some()),
        Way::LockInfo | Way::Search => Ok(client.lock_info(lock.name())?.is_some()),
    }
}
