//! The steps of the clients, of the network and of time.

use super::server::Script;
use super::state::{
    AcquireReply, BeatReply, Call, Client, GRANT_LEASE, LEASE, Life, NOBODY, Packet, Phase, ROUNDS,
    SLOTS, Sent, Server, State, Wait, slot_of,
};
use super::{Layout, Seed};

/// One transition of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) step: Step,
    pub(super) link: Link,
    /// The message that the step publishes stays in flight, perhaps for ever.
    pub(super) is_message_late: bool,
}

/// Arguments are slots, clients and indices of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Ask(usize),
    TryLock(usize),
    GiveUp(usize),
    Leave(usize),
    Release(usize),
    Renew(usize),
    Heartbeat(usize),
    Arrive(usize),
    Tick,
    Crash(usize),
    Stop(usize),
    Resume(usize),
    Deafen(usize),
    Listen(usize),
    /// From here on the replica lags behind.
    Copy,
    FailOver,
    Notice(usize),
    LoseData,
    ForceUnlock,
}

/// The fate of a command. Packets in flight may arrive at any time, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Prompt,
    RequestLate,
    ReplyLate,
    /// The command and its reply are prompt, and a copy of the command stays in flight.
    CopyLate,
}

/// One transition in progress.
pub(super) struct World<'a> {
    pub(super) layout: Layout,
    pub(super) state: &'a mut State,
    pub(super) link: Link,
    pub(super) is_message_late: bool,
    pub(super) has_message: bool,
}

/// The `void` of packets: the server keeps what it has granted.
const VALID: bool = false;

impl<'a> World<'a> {
    /// A transition without a late packet.
    pub(super) fn new(layout: Layout, state: &'a mut State) -> Self {
        Self { layout, state, link: Link::Prompt, is_message_late: false, has_message: false }
    }
}

impl World<'_> {
    pub(super) fn run(&mut self, step: Step) {
        match step {
            Step::Ask(slot) => self.ask(slot),
            Step::TryLock(slot) => self.try_lock(slot),
            Step::GiveUp(slot) => self.give_up(slot),
            Step::Leave(slot) => self.leave(slot),
            Step::Release(slot) => self.end(slot, false),
            Step::Renew(slot) => self.renew(slot),
            Step::Heartbeat(client) => self.heartbeat(client),
            Step::Arrive(index) => self.arrive(index),
            Step::Tick => self.tick(),
            Step::Crash(client) => self.crash(client),
            Step::Stop(client) => self.state.clients[client].life = Life::Stopped,
            Step::Resume(client) => self.state.clients[client].life = Life::Up,
            Step::Deafen(client) => self.state.clients[client].listens = false,
            Step::Listen(client) => {
                self.state.clients[client].listens = true;
                self.state.clients[client].beat = false;
            }
            Step::Copy => self.state.copy = Some(Box::new(self.state.server.clone())),
            Step::FailOver => self.fail_over(),
            Step::Notice(client) => self.notice(client),
            Step::LoseData => self.lose_data(),
            Step::ForceUnlock => self.force_unlock(),
        }
    }

    /// Starts the call of the next round, or repeats the acquire of a waiter.
    fn ask(&mut self, slot: usize) {
        let number = self.state.number(slot);
        let mut wait = self.state.wait(number).unwrap_or(Wait {
            age: 0,
            bound: 0,
            place: 0,
            stamp: 0,
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
    fn try_lock(&mut self, slot: usize) {
        let number = self.state.number(slot);
        let mut script = self.script();
        let is_held = script.try_acquire(number);
        let granted = script.granted;
        match is_held {
            true => self.hold(number, LEASE, VALID),
            false => self.finish(slot),
        }
        self.publish(granted);
    }

    /// The acquire has had no reply for too long; the waiter repeats it.
    fn give_up(&mut self, slot: usize) {
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

    fn leave(&mut self, slot: usize) {
        self.end(slot, self.layout.seed == Some(Seed::LeaveForgetsGrant));
    }

    /// Ends a wait or a hold, and sends the release.
    fn end(&mut self, slot: usize, only_queue: bool) {
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

    fn finish(&mut self, slot: usize) {
        let number = self.state.number(slot);
        self.state.calls[slot] =
            Call { round: self.state.calls[slot].round + 1, phase: Phase::Idle };
        self.forget_replies(number);
    }

    /// The sender of these commands no longer waits.
    fn forget_replies(&mut self, number: u8) {
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

    fn renew(&mut self, slot: usize) {
        let number = self.state.number(slot);
        if self.sends(|sent| Packet::Renew { number, sent }) {
            self.serve_renewal(number, Some(0));
        }
    }

    fn heartbeat(&mut self, client: usize) {
        self.state.clients[client].beat = true;
        let waiters = self.revived(client);
        let id = client as u8;
        if self.sends(|sent| Packet::Heartbeat { client: id, sent, waiters }) {
            self.serve_heartbeat(client, waiters, Some(0));
        }
    }

    /// The waiters that a faulty heartbeat adds to the queue, as a set of bits.
    fn revived(&self, client: usize) -> u8 {
        if self.layout.seed != Some(Seed::HeartbeatRevives) {
            return 0;
        }
        self.state.waiting_of(client, self.layout).map(|slot| 1 << self.state.number(slot)).sum()
    }

    /// Puts a command in flight as the link says. Returns whether the command also runs now.
    fn sends(&mut self, packet: impl Fn(Sent) -> Packet) -> bool {
        match self.link {
            Link::RequestLate => self.state.packets.push(packet(Sent::Awaited(0))),
            Link::CopyLate => self.state.packets.push(packet(Sent::Copy)),
            Link::Prompt | Link::ReplyLate => {}
        }
        self.link != Link::RequestLate
    }

    /// A packet reaches the server or the client.
    fn arrive(&mut self, index: usize) {
        let age_of = |sent| match sent {
            Sent::Awaited(age) => Some(age),
            Sent::Copy => None,
        };
        match self.state.packets.remove(index) {
            Packet::Granted { number, token, void } => self.on_message(number, token, void),
            Packet::Acquire { number, place, sent } => {
                self.serve_acquire(number, place, age_of(sent));
            }
            Packet::Acquired { number, age, reply, void } => {
                self.on_acquired(number, age, reply, void);
            }
            Packet::Release { number } => self.serve_release(number),
            Packet::Heartbeat { client, sent, waiters } => {
                self.serve_heartbeat(client as usize, waiters, age_of(sent));
            }
            Packet::Beat { client, age, reply, void } => {
                self.on_beat(client as usize, age, reply, void);
            }
            Packet::Renew { number, sent } => self.serve_renewal(number, age_of(sent)),
            Packet::Renewed { number, age, is_held, void } => {
                self.on_renewed(number, age, is_held, void);
            }
        }
    }

    fn script(&mut self) -> Script<'_> {
        Script { state: self.state, layout: self.layout, granted: None }
    }

    fn serve_acquire(&mut self, number: u8, place: u8, age: Option<u8>) {
        let mut script = self.script();
        let reply = script.acquire(number, place);
        let granted = script.granted;
        if let Some(age) = age {
            if self.is_reply_late(self.layout.client_of(number)) {
                self.state.packets.push(Packet::Acquired { number, age, reply, void: VALID });
            } else {
                self.on_acquired(number, age, reply, VALID);
            }
        }
        self.publish(granted);
    }

    /// The release is repeated while an acquire of the number may still run.
    fn serve_release(&mut self, number: u8) {
        let mut script = self.script();
        script.release(number);
        let granted = script.granted;
        if self.state.has_acquire_of(number) {
            self.state.packets.push(Packet::Release { number });
        }
        self.publish(granted);
    }

    fn serve_heartbeat(&mut self, client: usize, waiters: u8, age: Option<u8>) {
        let mut script = self.script();
        let reply = script.heartbeat(client, waiters);
        let granted = script.granted;
        if let Some(age) = age {
            if self.is_reply_late(client) {
                let client = client as u8;
                self.state.packets.push(Packet::Beat { client, age, reply, void: VALID });
            } else {
                self.on_beat(client, age, reply, VALID);
                let holder = self.state.server.holder;
                let is_own = holder != NOBODY && self.layout.client_of(holder) == client;
                let unused = is_own && self.state.wait(holder).is_some_and(|wait| !wait.again);
                self.state.seen.unrepeated |= age == 0 && unused;
            }
        }
        self.publish(granted);
    }

    fn serve_renewal(&mut self, number: u8, age: Option<u8>) {
        let is_held = self.script().renew(number);
        let Some(age) = age else { return };
        if self.is_reply_late(self.layout.client_of(number)) {
            self.state.packets.push(Packet::Renewed { number, age, is_held, void: VALID });
        } else {
            self.on_renewed(number, age, is_held, VALID);
        }
    }

    fn is_reply_late(&self, client: usize) -> bool {
        self.link == Link::ReplyLate || self.state.clients[client].life == Life::Stopped
    }

    fn publish(&mut self, granted: Option<(u8, u8)>) {
        let Some((number, token)) = granted else { return };
        let Client { life, listens, .. } = self.state.clients[self.layout.client_of(number)];
        if !listens {
            return;
        }
        self.has_message = life == Life::Up;
        if life == Life::Stopped || life == Life::Up && self.is_message_late {
            self.state.packets.push(Packet::Granted { number, token, void: VALID });
        } else if life == Life::Up {
            self.on_message(number, token, VALID);
        }
    }

    /// The grant in a message: the deadline counts from the base, if the token is newer.
    fn on_message(&mut self, number: u8, token: u8, void: bool) {
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
    fn hold(&mut self, number: u8, left: u8, void: bool) {
        if left == 0 {
            return self.change_wait(slot_of(number), |wait| wait.again = true);
        }
        self.state.calls[slot_of(number)].phase = Phase::Holding { left, void };
        self.forget_replies(number);
    }

    fn on_acquired(&mut self, number: u8, age: u8, reply: AcquireReply, void: bool) {
        if self.state.wait(number).is_none() {
            return;
        }
        self.change_wait(slot_of(number), |wait| wait.asks = false);
        match reply {
            AcquireReply::Held => self.hold(number, LEASE.saturating_sub(age), void),
            AcquireReply::Refused { bound, place, stamp, is_new } => {
                if self.layout.seed == Some(Seed::FlagOfLostPlaces) && is_new {
                    self.others_ask_again(number);
                }
                self.change_wait(slot_of(number), |wait| {
                    (wait.place, wait.stamp) = (place, stamp);
                    wait.rebase(age, bound);
                });
            }
        }
    }

    fn others_ask_again(&mut self, number: u8) {
        let client = self.layout.client_of(number);
        let slots: Vec<usize> = self.state.waiting_of(client, self.layout).collect();
        for slot in slots.into_iter().filter(|slot| *slot != slot_of(number)) {
            self.change_wait(slot, |wait| wait.again = true);
        }
    }

    /// The reply of a heartbeat: a repeated grant for one waiter, a new base for the others.
    fn on_beat(&mut self, client: usize, age: u8, reply: BeatReply, void: bool) {
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
    fn knows(&self, slot: usize, number: u8) -> bool {
        let registers_late = self.layout.seed == Some(Seed::UnknownGrantIsReleased);
        number != NOBODY
            && self.state.number(slot) == number
            && self.state.wait(number).is_some_and(|wait| !registers_late || wait.place > 0)
    }

    /// The waiter may have lost its place: with the client's terms, or with a grant that nobody saw.
    fn keep_waiting(&mut self, slot: usize, age: u8, reply: BeatReply) {
        let Layout { seed, .. } = self.layout;
        self.change_wait(slot, |wait| {
            let lost_terms = match seed {
                Some(Seed::FlagOfLostPlaces) => reply.is_new,
                _ => wait.place > 0 && wait.stamp != reply.stamp,
            };
            let lost_grant = wait.age >= GRANT_LEASE && seed != Some(Seed::OldBaseIsKept);
            wait.again |= lost_terms || lost_grant;
            wait.rebase(age, reply.bound);
        });
    }

    fn on_renewed(&mut self, number: u8, age: u8, is_held: bool, renewed_void: bool) {
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
    fn lose(&mut self, slot: usize) {
        self.state.packets.push(Packet::Release { number: self.state.number(slot) });
        self.finish(slot);
    }

    fn change_wait(&mut self, slot: usize, change: impl FnOnce(&mut Wait)) {
        if let Phase::Waiting(wait) = &mut self.state.calls[slot].phase {
            change(wait);
        }
    }

    fn tick(&mut self) {
        self.state.server.grow_older();
        if let Some(copy) = &mut self.state.copy {
            copy.grow_older();
        }
        for packet in &mut self.state.packets {
            packet.grow_older();
        }
        for client in &mut self.state.clients {
            client.beat = false;
        }
        (0..SLOTS).for_each(|slot| self.tick_call(slot));
    }

    fn tick_call(&mut self, slot: usize) {
        match &mut self.state.calls[slot].phase {
            Phase::Idle => {}
            Phase::Waiting(wait) => wait.age = GRANT_LEASE.min(wait.age + 1),
            Phase::Holding { left: 1, .. } => self.lose(slot),
            Phase::Holding { left, .. } => *left -= 1,
        }
    }

    /// The process is gone, and with it all that it would receive.
    fn crash(&mut self, client: usize) {
        self.state.clients[client].life = Life::Crashed;
        let layout = self.layout;
        for slot in (0..SLOTS).filter(|slot| layout.clients[*slot] == client) {
            self.forget_replies(self.state.number(slot));
            self.state.calls[slot] = Call { round: ROUNDS, phase: Phase::Idle };
        }
        self.state.packets.retain(|packet| match packet {
            Packet::Granted { number, .. }
            | Packet::Acquired { number, .. }
            | Packet::Renewed { number, .. } => layout.client_of(*number) != client,
            Packet::Beat { client: of, .. } => *of as usize != client,
            _ => true,
        });
    }

    /// The server restarts without its data. All that it has granted is void.
    fn lose_data(&mut self) {
        self.state.server = Server::new(self.state.server.token);
        self.void(None);
    }

    /// The replica becomes the server. Its clock, and so its tokens, agree with the former server's.
    fn fail_over(&mut self) {
        let Some(copy) = self.state.copy.take() else { return };
        let token = self.state.server.token;
        self.state.server = Server { token, ..*copy };
        self.state.seen.restored = true;
        self.void(None);
        for client in &mut self.state.clients {
            client.moved = client.life != Life::Crashed;
        }
    }

    /// The client finds that the servers have changed: all waiters ask again.
    fn notice(&mut self, client: usize) {
        self.state.clients[client].moved = false;
        if self.layout.seed == Some(Seed::FailOverChangesNothing) {
            return;
        }
        let slots: Vec<usize> = self.state.waiting_of(client, self.layout).collect();
        for slot in slots {
            self.change_wait(slot, |wait| wait.again = true);
        }
    }

    fn force_unlock(&mut self) {
        match self.state.server.holder {
            NOBODY => {}
            holder => self.void(Some(holder)),
        }
        let mut script = self.script();
        script.force_unlock();
        let granted = script.granted;
        self.publish(granted);
    }

    /// Marks what the server has granted to the number, or to all: the server no longer keeps it.
    fn void(&mut self, only: Option<u8>) {
        let is_meant = |number: u8| only.is_none_or(|it| it == number);
        for slot in 0..SLOTS {
            let number = self.state.number(slot);
            if let Phase::Holding { void, .. } = &mut self.state.calls[slot].phase {
                *void |= is_meant(number);
            }
        }
        for packet in &mut self.state.packets {
            match packet {
                Packet::Granted { number, void, .. }
                | Packet::Acquired { number, void, .. }
                | Packet::Beat { reply: BeatReply { hold: number, .. }, void, .. }
                | Packet::Renewed { number, void, .. } => *void |= is_meant(*number),
                _ => {}
            }
        }
    }
}

impl Wait {
    /// Takes a later request as the base.
    fn rebase(&mut self, age: u8, bound: u8) {
        if age < self.age || age == self.age && bound > self.bound {
            (self.age, self.bound) = (age, bound);
        }
    }
}

impl Server {
    fn grow_older(&mut self) {
        self.lease = self.lease.saturating_sub(1);
        if self.lease == 0 {
            self.holder = NOBODY;
        }
        for terms in &mut self.terms {
            terms.left = terms.left.saturating_sub(1);
        }
    }
}

impl Packet {
    fn grow_older(&mut self) {
        match self {
            Packet::Acquire { sent: Sent::Awaited(age), .. }
            | Packet::Heartbeat { sent: Sent::Awaited(age), .. }
            | Packet::Renew { sent: Sent::Awaited(age), .. }
            | Packet::Acquired { age, .. }
            | Packet::Beat { age, .. }
            | Packet::Renewed { age, .. } => *age = LEASE.min(*age + 1),
            _ => {}
        }
    }
}
