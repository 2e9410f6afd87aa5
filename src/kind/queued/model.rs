//! A model of the protocol of the queue lock, explored exhaustively with stateright.
//!
//! Reading order: `state.rs` (all data), `server.rs` (the scripts of `lua/queue_*.lua`),
//! `client.rs` (the steps of the clients), `world.rs` (the network, time and faults), this file
//! (the steps that are possible in a state), `tests.rs` (properties, runs, seeded faults).
//!
//! # What is modelled
//!
//! One lock and three threads, each in its own client, or two of them in one client. A thread calls
//! `lock` or `try_lock` twice, each time under a new hold number. It holds and renews, or leaves
//! while it waits. A script is one atomic step. By default a command, its reply and the published
//! message arrive at once. Each deviation is a fault from a budget of two or three per run:
//! * a command, a reply or a message arrives late, in any order, or never;
//! * a copy of a command arrives late;
//! * a client crashes, stops (and perhaps resumes), or has no connected listener;
//! * a running client does not do the work of a tick;
//! * the server loses all data, or brings back an older copy of it (a fail-over);
//! * `force_unlock`.
//!
//! Time passes in ticks of one poll interval. The grant lease is two ticks, a full lease three.
//! Each running client with waiters sends one heartbeat per tick, at any moment of the tick.
//!
//! # What is abstracted
//!
//! * Tokens, places and times of terms are ranks: the protocol only compares them. A loss of the
//!   data or a fail-over does not turn the clock of the server back.
//! * Weights. They only change the first score, and every property is about the order of scores.
//! * Packets in flight have no order, although a connection keeps the order of its messages.
//! * Fixed leases, named holders, holders of other kinds.
//!
//! Two reductions keep the state space small. A packet that can no longer have an effect is dropped
//! (`State::matters`). States that differ only in the order of equal threads or clients are one
//! (`State::sort_slots`); no step and no property distinguishes threads.
//!
//! # Sizes
//!
//! | run | states | transitions | depth | s |
//! | --- | --- | --- | --- | --- |
//! | three clients, 2 rounds, 2 faults | 9,159,620 | 61,569,565 | 31 | 200 |
//! | two threads of one client and a third, 2 rounds, 2 faults | 10,149,915 | 68,167,506 | 33 | 197 |
//! | three clients, 1 round, 3 faults | 5,447,767 | 37,136,638 | 29 | 111 |
//! | fail-over: two clients, 1 round, 2 faults | 4,088,195 | 22,017,590 | 28 | 64 |
//! | cluster: three clients, 1 round, 2 faults | 294,063 | 1,688,244 | 26 | 4 |
//!
//! Optimized, two runs at a time on two busy cores. By default the first four runs have one fault
//! less; `LEASEHOLD_MODEL_FAULTS=1 script/model queued::model` runs them in full.
//!
//! # What the model found
//!
//! Each is a seeded fault now:
//! * A flag "your places may be lost" that one reply carries is lost with that reply. So each reply
//!   carries the time since which the server has the client's terms (`TermsSince`).
//! * A waiter whose grant ended before any message or heartbeat told it had no place and never
//!   asked. So a waiter asks again if its base is a grant lease old when a heartbeat is answered.
//! * `force_unlock` ended a grant that its client had not seen. So the script changes the
//!   time of the terms of the holder's client.

mod client;
mod server;
mod state;
mod tests;
mod world;

use state::{LEASE, Life, Packet, Phase, SLOTS, Sent, State, slot_of};
use stateright::{Model, Property};
use world::{Action, Link, Step, World};

/// A fault of the protocol that the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seed {
    HeartbeatDoesNotRepeat,
    DeadAreNotSkipped,
    DeadlineFromArrival,
    LeaveForgetsGrant,
    /// The heartbeat names its waiters, and the script adds those that are not in the queue.
    HeartbeatRevives,
    /// A message counts whatever its token.
    NoTokenRule,
    /// A waiter registers at its first refusal, and a heartbeat releases a hold of no waiter.
    UnknownGrantIsReleased,
    /// One reply says that the terms of the client are new, instead of their time in every reply.
    FlagOfLostPlaces,
    /// A heartbeat after a grant lease without a heartbeat changes nothing for waiters.
    OldBaseIsKept,
    ForceUnlockKeepsTerms,
    FailOverChangesNothing,
}

/// The facts that hold for a whole run.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// The client of each slot. A slot is a thread.
    clients: [usize; SLOTS],
    /// The number of receivers of a message is unknown.
    is_cluster: bool,
    seed: Option<Seed>,
}

impl Layout {
    fn client_of(self, number: u8) -> usize {
        self.clients[slot_of(number)]
    }

    /// Seeded runs keep the names of threads, for readable paths.
    fn is_symmetric(self) -> bool {
        self.seed.is_none()
    }

    fn has_own_clients(self) -> bool {
        self.clients == [0, 1, 2]
    }
}

/// The model of one lock.
#[derive(Clone, Copy, Debug)]
struct QueueModel {
    layout: Layout,
    /// The number of faults of the surroundings in one run.
    budget: u8,
    rounds: u8,
    /// Whether a fail-over may happen.
    fails_over: bool,
}

impl Model for QueueModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.budget)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for step in self.steps(state) {
            for &link in step.links(state) {
                let prompt = Action { step, link, is_message_late: false };
                let late = step.may_publish().then_some(Action { is_message_late: true, ..prompt });
                actions.extend([Some(prompt), late].into_iter().flatten());
            }
        }
        actions.retain(|action| self.cost(state, *action) <= state.budget);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.budget -= self.cost(last, action);
        let mut world = World::new(self.layout, &mut state);
        (world.link, world.is_message_late) = (action.link, action.is_message_late);
        world.run(action.step);
        if action.is_message_late && !world.has_message {
            return None;
        }
        state.tidy(self.layout);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        tests::properties()
    }
}

impl QueueModel {
    /// The possible steps, faults included.
    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = vec![Step::Tick, Step::LoseData, Step::ForceUnlock];
        if self.fails_over {
            steps.push(if state.copy.is_none() { Step::Copy } else { Step::FailOver });
        }
        let is_used = |client: &usize| self.layout.clients.contains(client);
        for client in (0..SLOTS).filter(is_used) {
            self.steps_of_client(state, client, &mut steps);
        }
        let is_up = |client: usize| state.clients[client].life == Life::Up;
        for slot in (0..SLOTS).filter(|&slot| is_up(self.layout.clients[slot])) {
            self.steps_of_slot(state, slot, &mut steps);
        }
        let receiver = |index: &usize| state.packets[*index].receiver(self.layout);
        let can_arrive = |index: &usize| receiver(index).is_none_or(is_up);
        steps.extend((0..state.packets.len()).filter(can_arrive).map(Step::Arrive));
        steps
    }

    fn steps_of_client(&self, state: &State, client: usize, steps: &mut Vec<Step>) {
        let it = state.clients[client];
        match it.life {
            Life::Up => steps.extend([Step::Crash(client), Step::Stop(client)]),
            Life::Stopped => steps.push(Step::Resume(client)),
            Life::Crashed => return,
        }
        steps.push(if it.listens { Step::Deafen(client) } else { Step::Listen(client) });
        if it.life == Life::Up && it.moved {
            steps.push(Step::Notice(client));
        }
        if it.life == Life::Up && self.owes_heartbeat(state, client) {
            steps.push(Step::Heartbeat(client));
        }
    }

    fn steps_of_slot(&self, state: &State, slot: usize, steps: &mut Vec<Step>) {
        match state.calls[slot].phase {
            Phase::Idle if state.calls[slot].round < self.rounds => {
                steps.extend([Step::Ask(slot), Step::TryLock(slot)]);
            }
            Phase::Idle => {}
            Phase::Waiting(wait) => {
                steps.push(Step::Leave(slot));
                if wait.asks {
                    steps.push(Step::GiveUp(slot));
                } else if wait.again {
                    steps.push(Step::Ask(slot));
                }
            }
            Phase::Holding { left, .. } => {
                steps.push(Step::Release(slot));
                if left < LEASE {
                    steps.push(Step::Renew(slot));
                }
            }
        }
    }

    fn owes_heartbeat(&self, state: &State, client: usize) -> bool {
        !state.clients[client].beat && state.waiting_of(client, self.layout).next().is_some()
    }

    /// The faults that the action takes from the budget.
    fn cost(&self, state: &State, action: Action) -> u8 {
        let is_fault = match action.step {
            Step::Crash(_) | Step::Stop(_) | Step::Deafen(_) | Step::Copy => true,
            Step::LoseData | Step::ForceUnlock => true,
            Step::Tick => (0..SLOTS).any(|slot| self.is_late(state, slot)),
            _ => false,
        };
        [is_fault, action.link != Link::Prompt, action.is_message_late].map(u8::from).iter().sum()
    }

    /// Whether a running client has not done its work for the slot in this tick.
    fn is_late(&self, state: &State, slot: usize) -> bool {
        let client = self.layout.clients[slot];
        let owes = match state.calls[slot].phase {
            Phase::Idle => false,
            Phase::Waiting(wait) => wait.again && !wait.asks || self.owes_heartbeat(state, client),
            Phase::Holding { left, .. } => left == 1,
        };
        let client = state.clients[client];
        client.life == Life::Up && (owes || client.moved)
    }
}

impl Step {
    fn links(self, state: &State) -> &'static [Link] {
        use Link::{CopyLate, Prompt, ReplyLate, RequestLate};
        match self {
            Step::Ask(_) | Step::Heartbeat(_) | Step::Renew(_) => {
                &[Prompt, RequestLate, ReplyLate, CopyLate]
            }
            Step::Leave(_) | Step::Release(_) => &[Prompt, RequestLate],
            Step::Arrive(index) if state.packets[index].is_awaited() => &[Prompt, ReplyLate],
            _ => &[Prompt],
        }
    }

    fn may_publish(self) -> bool {
        use Step::{Arrive, Ask, ForceUnlock, Heartbeat, Leave, Release, TryLock};
        let is_of_call = matches!(self, Ask(_) | TryLock(_) | Leave(_) | Release(_));
        is_of_call || matches!(self, Heartbeat(_) | Arrive(_) | ForceUnlock)
    }
}

impl Packet {
    fn is_awaited(self) -> bool {
        match self {
            Packet::Acquire { sent, .. }
            | Packet::Heartbeat { sent, .. }
            | Packet::Renew { sent, .. } => sent != Sent::Copy,
            _ => false,
        }
    }

    /// The client that receives the packet, or nothing for the server.
    fn receiver(self, layout: Layout) -> Option<usize> {
        match self {
            Packet::Granted { number, .. }
            | Packet::Acquired { number, .. }
            | Packet::Renewed { number, .. } => Some(layout.client_of(number)),
            Packet::Beat { client, .. } => Some(client as usize),
            _ => None,
        }
    }
}
