//! The scripts of the queue lock and the renewal, one function each. Every script is atomic.

use super::state::{
    AcquireReply, BeatReply, GRANT_LEASE, LEASE, Life, NOBODY, NUMBERS, State, Terms,
};
use super::{Layout, Seed};

/// A run of one script.
pub(super) struct Script<'a> {
    pub(super) state: &'a mut State,
    pub(super) layout: Layout,
    /// The number and token of the message that the script publishes.
    pub(super) granted: Option<(u8, u8)>,
}

impl Script<'_> {
    /// `lua/queue_acquire.lua`, from a caller that waits.
    pub(super) fn acquire(&mut self, number: u8, place: u8) -> AcquireReply {
        let is_queue_empty = self.state.server.queue == [0; NUMBERS];
        if self.state.server.holder == NOBODY && is_queue_empty {
            self.take(number, u8::MAX, LEASE);
            return AcquireReply::Held;
        }
        if self.state.server.holder == number {
            self.state.server.lease = LEASE;
            return AcquireReply::Held;
        }
        let own = self.join(number, place);
        let client = self.layout.client_of(number);
        let (terms_since, is_new) = self.keep_alive(client, 0);
        if self.state.server.holder == NOBODY {
            self.grant_to_best(Some(number));
            if self.state.server.holder == NOBODY && self.state.server.queue == [0; NUMBERS] {
                self.take(number, u8::MAX, LEASE);
            }
            if self.state.server.holder == number && self.granted.is_none() {
                return AcquireReply::Held;
            }
        }
        self.note_idle();
        AcquireReply::Refused { bound: self.state.server.token, place: own, terms_since, is_new }
    }

    /// `lua/queue_acquire.lua`, from a caller that does not wait. Returns whether it has the lock.
    pub(super) fn try_acquire(&mut self, number: u8) -> bool {
        self.grant_if_free();
        let is_free = self.state.server.holder == NOBODY;
        if is_free {
            self.take(number, u8::MAX, LEASE);
        }
        is_free
    }

    /// `lua/queue_release.lua`.
    pub(super) fn release(&mut self, number: u8) {
        if self.state.server.holder == number {
            self.state.server.holder = NOBODY;
        } else {
            self.state.server.queue[number as usize] = 0;
        }
        self.grant_if_free();
        self.note_idle();
    }

    /// `lua/queue_force_unlock.lua`. The former holder may not know of its grant, so the time
    /// of its client's terms changes.
    pub(super) fn force_unlock(&mut self) {
        let holder = std::mem::replace(&mut self.state.server.holder, NOBODY);
        if holder != NOBODY && self.layout.seed != Some(Seed::ForceUnlockKeepsTerms) {
            let client = self.layout.client_of(holder);
            let fresh = self.fresh_terms_since(client);
            let terms = &mut self.state.server.terms[client];
            terms.since = if terms.since == 0 { 0 } else { fresh };
        }
        self.grant_if_free();
        self.note_idle();
    }

    /// A release that only leaves the queue: the fault "leave forgets a grant".
    pub(super) fn leave_queue(&mut self, number: u8) {
        self.state.server.queue[number as usize] = 0;
    }

    /// `lua/queue_heartbeat.lua`. `waiters` are the numbers that a faulty heartbeat adds again.
    pub(super) fn heartbeat(&mut self, client: usize, waiters: u8) -> BeatReply {
        let is_awaited = self.state.server.queue != [0; NUMBERS];
        let has_flag = self.layout.seed == Some(Seed::FlagOfLostPlaces);
        let (terms_since, is_new) =
            if is_awaited || has_flag { self.keep_alive(client, GRANT_LEASE) } else { (0, false) };
        for number in (0..NUMBERS as u8).filter(|n| waiters & 1 << n != 0) {
            if self.state.server.holder != number {
                self.join(number, 0);
            }
        }
        self.grant_if_free();
        self.note_idle();
        let server = &self.state.server;
        let is_own = server.holder != NOBODY && self.layout.client_of(server.holder) == client;
        let repeats = is_own && self.layout.seed != Some(Seed::HeartbeatDoesNotRepeat);
        BeatReply {
            terms_since,
            is_new,
            hold: if repeats { server.holder } else { NOBODY },
            ttl: if repeats { server.lease } else { 0 },
            bound: server.token,
        }
    }

    /// `lua/plain_renew.lua`.
    pub(super) fn renew(&mut self, number: u8) -> bool {
        let is_held = self.state.server.holder == number;
        if is_held {
            self.state.server.lease = LEASE;
        }
        is_held
    }

    /// `grant_to_best` in `lua/queue_grant.lua`.
    fn grant_to_best(&mut self, caller: Option<u8>) {
        while let Some(best) = self.best() {
            let score = std::mem::take(&mut self.state.server.queue[best as usize]);
            if caller == Some(best) {
                return self.take(best, score, LEASE);
            }
            let client = self.layout.client_of(best);
            if self.layout.seed == Some(Seed::DeadAreNotSkipped) || self.is_live(best) {
                self.state.seen.order |= self.state.server.terms[client].left == 0;
                self.take(best, score, GRANT_LEASE);
                self.granted = Some((best, self.state.server.token));
                return;
            }
            self.state.server.terms[client] = Terms::default();
        }
        self.state.server.terms = Default::default();
    }

    fn grant_if_free(&mut self) {
        if self.state.server.holder == NOBODY {
            self.grant_to_best(None);
        }
    }

    /// `take` in `lua/queue_grant.lua`. The score is the place that the number had.
    fn take(&mut self, number: u8, score: u8, lease: u8) {
        let queue = &self.state.server.queue;
        let is_better = |n: u8| queue[n as usize] > 0 && queue[n as usize] < score;
        self.state.seen.order |= (0..NUMBERS as u8).any(|n| is_better(n) && self.is_live(n));
        let server = &mut self.state.server;
        server.holder = number;
        server.lease = lease;
        server.token += 1;
    }

    /// `keep_alive` in `lua/queue_grant.lua`. Returns the time of the terms, and whether they are
    /// new.
    ///
    /// An acquire extends no terms here, although the script extends those in their last half.
    fn keep_alive(&mut self, client: usize, enough: u8) -> (u8, bool) {
        let fresh = self.fresh_terms_since(client);
        let terms = &mut self.state.server.terms[client];
        let is_new = terms.since == 0;
        if is_new {
            terms.since = fresh;
        }
        if terms.left <= enough {
            terms.left = GRANT_LEASE;
        }
        (terms.since, is_new)
    }

    /// Returns a time that is later than all times of the client's terms.
    fn fresh_terms_since(&mut self, client: usize) -> u8 {
        let mut fresh = 1;
        self.state.each_terms_since(client, self.layout, |since| fresh = fresh.max(*since + 1));
        fresh
    }

    /// Adds the number to the queue, or gives it a better place. Returns its place.
    fn join(&mut self, number: u8, place: u8) -> u8 {
        let mut last = 1;
        self.state.each_place(|place| last = last.max(*place + 1));
        let own = &mut self.state.server.queue[number as usize];
        if *own == 0 {
            *own = if place == 0 { last } else { place };
        }
        if place > 0 && place < *own {
            *own = place;
        }
        *own
    }

    fn best(&self) -> Option<u8> {
        let queue = &self.state.server.queue;
        (0..NUMBERS as u8).filter(|n| queue[*n as usize] > 0).min_by_key(|n| queue[*n as usize])
    }

    fn is_live(&self, number: u8) -> bool {
        let client = self.layout.client_of(number);
        self.state.server.terms[client].left > 0 && self.listens(client)
    }

    /// Whether PUBLISH counts the client. A stopped process keeps its connection; in a cluster the
    /// count means nothing.
    fn listens(&self, client: usize) -> bool {
        let client = self.state.clients[client];
        self.layout.is_cluster || client.listens && client.life != Life::Crashed
    }

    fn note_idle(&mut self) {
        let server = &self.state.server;
        let waits = |n: u8| server.queue[n as usize] > 0 && self.is_live(n);
        self.state.seen.idle |= server.holder == NOBODY && (0..NUMBERS as u8).any(waits);
    }
}
