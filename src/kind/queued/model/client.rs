//! The steps of the clients: commands, and what replies and messages mean to them.

use super::Seed;
use super::server::Script;
use super::state::{
    AcquireReply, BeatReply, Call, GRANT_LEASE, LEASE, NOBODY, Packet, Phase, Sent, Wait, slot_of,
};
use super::world::{Link, VALID, World};

impl World<'_> {
    /// Starts the call of the next round, or repeats the acquire of a waiter.
    pub(super) fn ask(&mut self, slot: usize) {
        let number = self.state.number(slot);
        let mut wait = self.state.wait(number).unwrap_or(Wait {
            age: 0,
            bound: 0,
            place: 0,
            terms_since: 0,
            asks: false,
            again: false,
        });
        (wait.asks, wait.again) = (true, false);
        self.state.calls[slot].phase = Phase::Waiting(wait);
        let place = wait.place;
        if self.sends(|sent| Packet::Acquire { number, place, sent }) {
            self.serve_acquire(number, place, Some(0));
        }
    }

    /// A call that does not wait. Without the lock, its round is over.
    pub(super) fn try_lock(&mut self, slot: usize) {
        let number = self.state.number(slot);
        let mut script = self.script();
        let is_held = script.try_acquire(number);
        let granted = script.granted;
        if is_held {
            self.hold(number, LEASE, VALID)
        } else {
            self.finish(slot)
        }
        self.publish(granted);
    }

    /// The acquire has had no reply for too long; the waiter repeats it.
    pub(super) fn give_up(&mut self, slot: usize) {
        let number = self.state.number(slot);
        for packet in &mut self.state.packets {
            match packet {
                Packet::Acquire { number: n, sent, .. } if *n == number => *sent = Sent::Copy,
                _ => {}
            }
        }
        self.state
            .packets
            .retain(|p| !matches!(p, Packet::Acquired { number: n, .. } if *n == number));
        self.change_wait(slot, |wait| (wait.asks, wait.again) = (false, true));
    }

    pub(super) fn leave(&mut self, slot: usize) {
        self.end(slot, self.layout.seed == Some(Seed::LeaveForgetsGrant));
    }

    /// Ends a wait or a hold, and sends the release.
    pub(super) fn end(&mut self, slot: usize, only_queue: bool) {
        let number = self.state.number(slot);
        self.finish(slot);
        if only_queue {
            Script { state: self.state, layout: self.layout, granted: None }.leave_queue(number);
        } else if self.link == Link::RequestLate {
            self.state.packets.push(Packet::Release { number });
        } else {
            self.serve_release(number);
        }
    }

    pub(super) fn finish(&mut self, slot: usize) {
        let number = self.state.number(slot);
        self.state.calls[slot] =
            Call { round: self.state.calls[slot].round + 1, phase: Phase::Idle };
        self.forget_replies(number);
    }

    /// The sender of these commands no longer waits.
    pub(super) fn forget_replies(&mut self, number: u8) {
        for packet in &mut self.state.packets {
            match packet {
                Packet::Acquire { number: n, sent, .. } | Packet::Renew { number: n, sent }
                    if *n == number =>
                {
                    *sent = Sent::Copy;
                }
                _ => {}
            }
        }
    }

    pub(super) fn renew(&mut self, slot: usize) {
        let number = self.state.number(slot);
        if self.sends(|sent| Packet::Renew { number, sent }) {
            self.serve_renewal(number, Some(0));
        }
    }

    pub(super) fn heartbeat(&mut self, client: usize) {
        self.state.clients[client].beat = true;
        let waiters = self.revived(client);
        let id = client as u8;
        if self.sends(|sent| Packet::Heartbeat { client: id, sent, waiters }) {
            self.serve_heartbeat(client, waiters, Some(0));
        }
    }

    /// The waiters that a faulty heartbeat adds to the queue, as a set of bits.
    pub(super) fn revived(&self, client: usize) -> u8 {
        if self.layout.seed != Some(Seed::HeartbeatRevives) {
            return 0;
        }
        self.state.waiting_of(client, self.layout).map(|slot| 1 << self.state.number(slot)).sum()
    }

    /// The grant in a message: the deadline counts from the base, if the token is newer.
    pub(super) fn on_message(&mut self, number: u8, token: u8, void: bool) {
        let Some(wait) = self.state.wait(number) else {
            if self.state.has_ended(number) {
                self.state.packets.push(Packet::Release { number });
            }
            return;
        };
        if token <= wait.bound && self.layout.seed != Some(Seed::NoTokenRule) {
            return;
        }
        let is_naive = self.layout.seed == Some(Seed::DeadlineFromArrival);
        let age = if is_naive { 0 } else { wait.age };
        self.hold(number, GRANT_LEASE.saturating_sub(age), void);
    }

    /// The waiter holds the lock for the time left. Without time it asks again.
    pub(super) fn hold(&mut self, number: u8, left: u8, void: bool) {
        if left == 0 {
            return self.change_wait(slot_of(number), |wait| wait.again = true);
        }
        self.state.calls[slot_of(number)].phase = Phase::Holding { left, void };
        self.forget_replies(number);
    }

    pub(super) fn on_acquired(&mut self, number: u8, age: u8, reply: AcquireReply, void: bool) {
        if self.state.wait(number).is_none() {
            return;
        }
        self.change_wait(slot_of(number), |wait| wait.asks = false);
        match reply {
            AcquireReply::Held => self.hold(number, LEASE.saturating_sub(age), void),
            AcquireReply::Refused { bound, place, terms_since, is_new } => {
                if self.layout.seed == Some(Seed::FlagOfLostPlaces) && is_new {
                    self.others_ask_again(number);
                }
                self.change_wait(slot_of(number), |wait| {
                    (wait.place, wait.terms_since) = (place, terms_since);
                    wait.rebase(age, bound);
                });
            }
        }
    }

    pub(super) fn others_ask_again(&mut self, number: u8) {
        let client = self.layout.client_of(number);
        let slots: Vec<usize> = self.state.waiting_of(client, self.layout).collect();
        for slot in slots.into_iter().filter(|slot| *slot != slot_of(number)) {
            self.change_wait(slot, |wait| wait.again = true);
        }
    }

    /// The reply of a heartbeat: a repeated grant for one waiter, a new base for the others.
    pub(super) fn on_beat(&mut self, client: usize, age: u8, reply: BeatReply, void: bool) {
        let slots: Vec<usize> = self.state.waiting_of(client, self.layout).collect();
        let is_unknown = reply.hold != NOBODY && !slots.iter().any(|s| self.knows(*s, reply.hold));
        if self.layout.seed == Some(Seed::UnknownGrantIsReleased)
            && is_unknown
            && !self.state.is_holding(reply.hold)
        {
            self.state.packets.push(Packet::Release { number: reply.hold });
        }
        for slot in slots {
            if self.knows(slot, reply.hold) {
                self.hold(reply.hold, reply.ttl.saturating_sub(age), void);
            } else {
                self.keep_waiting(slot, age, reply);
            }
        }
    }

    /// Whether the slot waits under the number, and has registered it.
    pub(super) fn knows(&self, slot: usize, number: u8) -> bool {
        let registers_late = self.layout.seed == Some(Seed::UnknownGrantIsReleased);
        number != NOBODY
            && self.state.number(slot) == number
            && self.state.wait(number).is_some_and(|wait| !registers_late || wait.place > 0)
    }

    /// The waiter may have lost its place: with the client's terms, or with an unseen grant.
    pub(super) fn keep_waiting(&mut self, slot: usize, age: u8, reply: BeatReply) {
        let seed = self.layout.seed;
        self.change_wait(slot, |wait| {
            let is_latest = age <= wait.age;
            let lost_terms = match seed {
                Some(Seed::FlagOfLostPlaces) => reply.is_new,
                _ => is_latest && wait.place > 0 && wait.terms_since != reply.terms_since,
            };
            let lost_grant = wait.age >= GRANT_LEASE && seed != Some(Seed::OldBaseIsKept);
            wait.again |= lost_terms || lost_grant;
            wait.rebase(age, reply.bound);
        });
    }

    pub(super) fn on_renewed(&mut self, number: u8, age: u8, is_held: bool, renewed_void: bool) {
        let slot = slot_of(number);
        let Phase::Holding { left, void } = self.state.calls[slot].phase else { return };
        if self.state.number(slot) != number {
            return;
        }
        if !is_held {
            return self.lose(slot);
        }
        let left = left.max(LEASE.saturating_sub(age));
        let void = void || renewed_void;
        self.state.calls[slot].phase = Phase::Holding { left, void };
    }

    /// A lost hold. The guard's drop sends a release all the same.
    pub(super) fn lose(&mut self, slot: usize) {
        self.state.packets.push(Packet::Release { number: self.state.number(slot) });
        self.finish(slot);
    }

    pub(super) fn change_wait(&mut self, slot: usize, change: impl FnOnce(&mut Wait)) {
        if let Phase::Waiting(wait) = &mut self.state.calls[slot].phase {
            change(wait);
        }
    }
}

impl Wait {
    /// Takes a later request as the base.
    pub(super) fn rebase(&mut self, age: u8, bound: u8) {
        if age < self.age || age == self.age && bound > self.bound {
            (self.age, self.bound) = (age, bound);
        }
    }
}
