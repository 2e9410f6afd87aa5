//! Changes of the capacity of semaphores.

use super::acquire::until_not_retryable;
use super::{Thread, error_word};
use crate::kind::{CAPACITY, Kind};
use crate::record::{Event, Request, Verb};
use crate::system::{now, thread};

/// The largest capacity that a call sets, and the most permits that a call adds or takes away.
const LARGEST: u32 = 5;
const MOST: u32 = 2;

impl Thread<'_> {
    /// Sets the capacity of a semaphore with leases, or changes that of a plain one for a while.
    pub(super) fn resize(&mut self, kind: Kind) {
        let lock = self.request(kind, false).lock;
        if kind == Kind::Semaphore {
            let permits = self.rng.u32(1..=LARGEST);
            let semaphore = self.clients[0].semaphore(&*lock);
            let resize = Request { verb: Verb::Resize, permits, ..Request::waiting(lock, 0) };
            return self.change(resize, || semaphore.resize(permits));
        }
        let verbs =
            if self.rng.bool() { [Verb::Add, Verb::Remove] } else { [Verb::Remove, Verb::Add] };
        let permits = self.rng.u32(1..=MOST);
        // Permits that are added to a semaphore without a key are all that it has.
        if self.clients[0].plain_semaphore(&*lock).try_set_permits(CAPACITY).is_err() {
            return;
        }
        self.add(&lock, verbs[0], permits);
        thread::sleep(self.span());
        self.add(&lock, verbs[1], permits);
    }

    fn add(&self, lock: &str, verb: Verb, permits: u32) {
        let semaphore = self.clients[0].plain_semaphore(lock);
        let change = Request { verb, permits, ..Request::waiting(lock.to_owned(), 0) };
        let added = change.added();
        self.change(change, || until_not_retryable(|| semaphore.add_permits(added)));
    }

    fn change(&self, change: Request, call: impl FnOnce() -> leasehold::Result<()>) {
        let attempt = self.asks(change);
        let event = call().map_or_else(|error| Event::Failed(error_word(&error)), |()| Event::Done);
        self.record(attempt, now(), event);
    }
}
