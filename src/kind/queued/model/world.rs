//! The network, time, and the faults of the surroundings.

use super::server::Script;
use super::state::{
    BeatReply, Call, Client, GRANT_LEASE, LEASE, Life, NOBODY, Packet, Phase, ROUNDS, SLOTS, Sent,
    Server, State,
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
pub(super) const VALID: bool = false;

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

    /// Puts a command in flight as the link says. Returns whether the command also runs now.
    pub(super) fn sends(&mut self, packet: impl Fn(Sent) -> Packet) -> bool {
        match self.link {
            Link::RequestLate => self.state.packets.push(packet(Sent::Awaited(0))),
            Link::CopyLate => self.state.packets.push(packet(Sent::Copy)),
            Link::Prompt | Link::ReplyLate => {}
        }
        self.link != Link::RequestLate
    }

    pub(super) fn script(&mut self) -> Script<'_> {
        Script { state: self.state, layout: self.layout, granted: None }
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

    pub(super) fn serve_acquire(&mut self, number: u8, place: u8, age: Option<u8>) {
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
    pub(super) fn serve_release(&mut self, number: u8) {
        let mut script = self.script();
        script.release(number);
        let granted = script.granted;
        if self.state.has_acquire_of(number) {
            self.state.packets.push(Packet::Release { number });
        }
        self.publish(granted);
    }

    pub(super) fn serve_heartbeat(&mut self, client: usize, waiters: u8, age: Option<u8>) {
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

    pub(super) fn serve_renewal(&mut self, number: u8, age: Option<u8>) {
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

    pub(super) fn publish(&mut self, granted: Option<(u8, u8)>) {
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

    /// The replica becomes the server. Its clock, and so its tokens, agree with the former one's.
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
