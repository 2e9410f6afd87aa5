//! A model of the protocol of the queue lock.

mod client;
mod server;
mod state;
mod tests;

use client::{Action, Link, Step, World};
use state::{
    Life, NOBODY, NUMBERS, Packet, Phase, SLOTS, Sent, State, slot_of,
};
use stateright::{Model, Property};

/// A fault of the protocol that the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seed {
    HeartbeatDoesNotRepeat,
    DeadAreNotSkipped,
    DeadlineFromArrival,
    LeaveForgetsGrant,
    HeartbeatRevives,
    NoTokenRule,
    UnknownGrantIsReleased,
    FlagOfLostPlaces,
    OldBaseIsKept,
    ForceUnlockKeepsTerms,
    FailOverChangesNothing,
}

/// The client of each slot, and the seeded fault.
#[derive(Clone, Copy, Debug)]
struct Layout {
    clients: [usize; SLOTS],
    is_cluster: bool,
    seed: Option<Seed>,
}

impl Layout {
    /// A faulty heartbeat names numbers that a change of their order would have to rename.
    fn is_symmetric(self) -> bool {
        self.seed.is_none()
    }

    fn has_own_clients(self) -> bool {
        self.clients == [0, 1, 2]
    }

    fn client_of(self, number: u8) -> usize {
        self.clients[slot_of(number)]
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
        let mut add = |step: Step, link: Link| {
            for is_message_late in [false, true] {
                let action = Action { step, link, is_message_late };
                if self.cost(state, action) <= state.budget && (!is_message_late || step.runs_script())
                {
                    actions.push(action);
                }
            }
        };
        for step in self.steps(state) {
            for &link in step.links(state) {
                add(step, link);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.budget -= self.cost(last, action);
        let mut world = World {
            layout: self.layout,
            state: &mut state,
            link: action.link,
            is_message_late: action.is_message_late,
            has_message: false,
        };
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
    /// The steps that are possible, faults included.
    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = vec![Step::Tick, Step::LoseData, Step::ForceUnlock];
        if self.fails_over {
            steps.push(if state.copy.is_none() { Step::Copy } else { Step::FailOver });
        }
        for (client, it) in state.clients.iter().enumerate() {
            if !self.layout.clients.contains(&client) {
                continue;
            }
            match it.life {
                Life::Up => steps.extend([Step::Crash(client), Step::Stop(client)]),
                Life::Stopped => steps.push(Step::Resume(client)),
                Life::Crashed => continue,
            }
            steps.push(if it.listens { Step::Deafen(client) } else { Step::Listen(client) });
            if it.life == Life::Up && it.moved {
                steps.push(Step::Notice(client));
            }
            if it.life == Life::Up && self.owes_heartbeat(state, client) {
                steps.push(Step::Heartbeat(client));
            }
        }
        let is_up = |client: usize| state.clients[client].life == Life::Up;
        for slot in (0..SLOTS).filter(|&slot| is_up(self.layout.clients[slot])) {
            self.steps_of_slot(state, slot, &mut steps);
        }
        let can_arrive = |index: &usize| {
            state.packets[*index].receiver(self.layout).is_none_or(is_up)
        };
        steps.extend((0..state.packets.len()).filter(can_arrive).map(Step::Arrive));
        steps
    }

    fn steps_of_slot(&self, state: &State, slot: usize, steps: &mut Vec<Step>) {
        match state.calls[slot].phase {
            Phase::Idle if state.calls[slot].round < self.rounds => steps.push(Step::Ask(slot)),
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
                if left < state::LEASE {
                    steps.push(Step::Renew(slot));
                }
            }
        }
    }

    fn owes_heartbeat(&self, state: &State, client: usize) -> bool {
        !state.clients[client].beat && state.waiting_of(client, self.layout).next().is_some()
    }

    /// The faults that the action takes from the budget. A tick is a fault if a client is late.
    fn cost(&self, state: &State, action: Action) -> u8 {
        let is_fault = match action.step {
            Step::Crash(_) | Step::Stop(_) | Step::Deafen(_) | Step::Copy => true,
            Step::LoseData | Step::ForceUnlock => true,
            Step::Tick => self.is_late(state),
            _ => false,
        };
        u8::from(is_fault)
            + u8::from(action.link != Link::Prompt)
            + u8::from(action.is_message_late)
    }

    /// Whether a running client has not done the work of this tick.
    fn is_late(&self, state: &State) -> bool {
        (0..SLOTS).any(|slot| {
            let client = self.layout.clients[slot];
            let owes = match state.calls[slot].phase {
                Phase::Idle => false,
                Phase::Waiting(wait) => {
                    wait.again && !wait.asks || self.owes_heartbeat(state, client)
                }
                Phase::Holding { left, .. } => left == 1,
            };
            (owes || state.clients[client].moved) && state.clients[client].life == Life::Up
        })
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

    fn runs_script(self) -> bool {
        matches!(
            self,
            Step::Ask(_)
                | Step::Leave(_)
                | Step::Release(_)
                | Step::Heartbeat(_)
                | Step::Arrive(_)
                | Step::ForceUnlock
        )
    }
}

impl Packet {
    fn is_awaited(self) -> bool {
        matches!(
            self,
            Packet::Acquire { sent: Sent::Awaited(_), .. }
                | Packet::Heartbeat { sent: Sent::Awaited(_), .. }
                | Packet::Renew { sent: Sent::Awaited(_), .. }
        )
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
