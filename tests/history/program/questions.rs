//! Questions whether a lock is held, in each of the ways that the library has.

use super::{Thread, error_word};
use crate::kind::Kind;
use crate::record::{Event, Request, Verb};
use crate::system::now;
use leasehold::kind::LockKind;
use leasehold::{Client, Lock, RedLock, Result};

/// A way to ask.
#[derive(Clone, Copy)]
enum Way {
    IsLocked,
    Holder,
    LockInfo,
}

const WAYS: [Way; 3] = [Way::IsLocked, Way::Holder, Way::LockInfo];

impl Thread<'_> {
    /// Asks once whether a lock is held. The answer is recorded as `Done` or `Refused`.
    pub(super) fn ask(&mut self, kind: Kind) {
        let way = *self.rng.choice(&WAYS).expect("there are some");
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
        Way::LockInfo => Ok(client.lock_info(lock.name())?.is_some()),
    }
}
