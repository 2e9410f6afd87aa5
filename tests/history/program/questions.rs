//! Questions whether a lock is held, in each of the ways that the library has.
//!
//! Some ways show the last token of the lock too.

use super::{Thread, error_word};
use crate::kind::Kind;
use crate::record::{Event, Request, Seen, Verb};
use crate::system::{now, thread};
use leasehold::kind::LockKind;
use leasehold::{Client, Lock, LockInfo, RedLock, Result};
use std::collections::{BTreeMap, BTreeSet};

/// A way to ask.
#[derive(Clone, Copy)]
enum Way {
    IsLocked,
    Holder,
    LockInfo,
    /// A search, which answers for many locks at once.
    Search,
    /// A watch, which answers for some locks at each look.
    Watch,
}

const WAYS: [Way; 5] = [Way::IsLocked, Way::Holder, Way::LockInfo, Way::Search, Way::Watch];

/// The number of ways of a worker whose events are not checked.
const FEW: usize = 4;

/// The number of looks of a watch.
const LOOKS: usize = 3;

#[derive(Clone)]
enum Answer {
    Free,
    /// Held, and the last token of the lock if the way shows it.
    Held(Option<u64>),
}

impl Answer {
    fn of(lock: Option<&LockInfo>) -> Answer {
        lock.map_or(Answer::Free, |lock| Answer::Held(lock.token()))
    }
}

impl From<bool> for Answer {
    fn from(is_held: bool) -> Answer {
        if is_held { Answer::Held(None) } else { Answer::Free }
    }
}

impl Thread<'_> {
    /// Asks once whether a lock is held. The answer is recorded as `Done` or `Refused`.
    pub(super) fn ask(&mut self, kind: Kind) {
        let ways = if self.arguments.work.told { WAYS.len() } else { FEW };
        let way = *self.rng.choice(&WAYS[..ways]).expect("there are some");
        match way {
            Way::Search if kind != Kind::Red => return self.search(),
            Way::Watch if kind != Kind::Red => return self.watch(),
            _ => {}
        }
        let Request { lock, shared, .. } = self.request(kind, false);
        let question = Request { verb: Verb::Ask, shared, ..Request::waiting(lock, 0) };
        let attempt = self.asks(question.clone());
        self.answered(attempt, answer(kind, &question, self.clients, way));
    }

    fn answered(&self, attempt: u64, answer: Result<Answer>) {
        let at = now();
        let event = match answer {
            Ok(Answer::Held(token)) => {
                if let Some(token) = token {
                    self.record(attempt, at, Event::Seen(Some(Seen { token, value: 0 })));
                }
                Event::Done
            }
            Ok(Answer::Free) => Event::Refused,
            Err(error) => Event::Failed(error_word(&error)),
        };
        self.record(attempt, at, event);
    }

    /// Asks about some locks at once, with one answer for each lock and both of its sides.
    fn ask_for_each(
        &self,
        verb: Verb,
        locks: &BTreeSet<String>,
        ask: impl FnOnce() -> Vec<Result<Answer>>,
    ) {
        let mut asked = Vec::new();
        for lock in locks {
            let exclusive = Request { verb, ..Request::waiting(lock.clone(), 0) };
            let shared = Request { shared: true, ..exclusive.clone() };
            asked.push([exclusive, shared].map(|question| self.asks(question)));
        }
        for (sides, answer) in asked.into_iter().zip(ask()) {
            for attempt in sides {
                self.answered(attempt, answer.clone());
            }
        }
    }

    /// Returns a lock of each of these kinds that is in use at present.
    fn one_of_each(&mut self, kinds: Vec<Kind>) -> BTreeSet<String> {
        kinds.into_iter().map(|kind| kind.lock(self.number(kind))).collect()
    }

    fn kinds_with_one_key(&self) -> Vec<Kind> {
        let kinds = self.arguments.work.kinds.iter().filter(|kind| kind.is_one_key());
        kinds.copied().collect()
    }

    /// Searches for locks of all kinds, or of one. Records an answer for each lock that is in use
    /// at present, and for each other lock that is found.
    fn search(&mut self) {
        let mut kinds = self.kinds_with_one_key();
        let mut pattern = "*".to_owned();
        if self.rng.bool() {
            let kind = *self.rng.choice(&kinds).expect("the asking kind is one of them");
            kinds.retain(|it| *it == kind);
            pattern = format!("{kind}-*");
        }
        let from = now();
        let sought = self.one_of_each(kinds);
        let mut all_found = BTreeMap::new();
        self.ask_for_each(Verb::Search, &sought, || {
            let (found, failed) = found(&self.clients[0], &pattern);
            let answer = |lock| match (found.get(lock), &failed) {
                (Some(answer), _) => Ok(answer.clone()),
                (None, Some(error)) => Err(error.clone()),
                (None, None) => Ok(Answer::Free),
            };
            let answers = sought.iter().map(answer).collect();
            all_found = found;
            answers
        });
        for (lock, answer) in all_found.into_iter().filter(|(lock, _)| !sought.contains(lock)) {
            let attempt = self.next_attempt();
            let question = Request { verb: Verb::Search, ..Request::waiting(lock, 0) };
            self.record(attempt, from, Event::Asks(question));
            self.answered(attempt, Ok(answer));
        }
    }

    /// Looks at a lock of each kind a few times.
    fn watch(&mut self) {
        let kinds = self.kinds_with_one_key();
        let locks = self.one_of_each(kinds);
        let mut watch = self.clients[0].watch_locks(&locks).expect("an open client");
        for _ in 0..LOOKS {
            self.ask_for_each(Verb::Ask, &locks, || match watch.look_each() {
                Ok(states) => states
                    .into_iter()
                    .map(|state| state.map(|lock| Answer::of(lock.as_ref())))
                    .collect(),
                Err(error) => vec![Err(error); locks.len()],
            });
            let span = self.span();
            thread::sleep(span);
        }
    }
}

/// Returns the locks that a search finds, and its first error, if it has one.
fn found(client: &Client, pattern: &str) -> (BTreeMap<String, Answer>, Option<leasehold::Error>) {
    let (mut found, mut failed) = (BTreeMap::new(), None);
    let locks = match client.locks(pattern) {
        Ok(locks) => locks,
        Err(error) => return (found, Some(error)),
    };
    for lock in locks {
        match lock {
            Ok(lock) => {
                found.insert(lock.name().to_owned(), Answer::of(Some(&lock)));
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    (found, failed)
}

fn answer(kind: Kind, question: &Request, clients: &[Client], way: Way) -> Result<Answer> {
    let (client, name) = (&clients[0], &*question.lock);
    match kind {
        Kind::Red => RedLock::new(clients.to_vec(), name).is_locked().map(Answer::from),
        Kind::Fenced => asked(&client.fenced_lock(name), client, way),
        Kind::Fair => asked(&client.fair_lock(name), client, way),
        Kind::Rw if question.shared => asked(&client.rw_lock(name).read_lock(), client, way),
        Kind::Rw => asked(&client.rw_lock(name).write_lock(), client, way),
        Kind::Spin => asked(&client.spin_lock(name), client, way),
        Kind::Queued => asked(&client.queue_lock(name), client, way),
        _ => asked(&client.lock(name), client, way),
    }
}

fn asked<K: LockKind>(lock: &Lock<K>, client: &Client, way: Way) -> Result<Answer> {
    Ok(match way {
        Way::IsLocked => lock.is_locked()?.into(),
        Way::Holder => lock.holder()?.is_some().into(),
        Way::LockInfo | Way::Search | Way::Watch => {
            Answer::of(client.lock_info(lock.name())?.as_ref())
        }
    })
}
