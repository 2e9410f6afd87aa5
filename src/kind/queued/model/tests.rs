//! The properties of the model, the exhaustive runs, and the seeded faults.

use super::state::{NOBODY, NUMBERS};
use super::*;
use stateright::{Checker, HasDiscoveries};
use std::time::Instant;

const EXCLUSION: &str = "no two calls have valid deadlines";
const DEADLINE: &str = "no deadline is after the server's";
const ONE_GRANT: &str = "a granted number is not in the queue";
const ORDER: &str = "the best live waiter is granted";
const IDLE: &str = "no script leaves a free lock with a live waiter";
const REPEAT: &str = "a heartbeat repeats a grant";
const LEAVE: &str = "an ended call leaves nothing behind";
const FORGOTTEN: &str = "after one heartbeat each waiter has a place or asks for one";
const PROGRESS: &str = "without further faults each waiter gets the lock";
/// Only the exhaustive runs need it: the faults of the budget do not prevent the calls.
const ENDS: &str = "all rounds end";

/// The longest time until all waiters had the lock, without further faults and with short holds.
const PROGRESS_TICKS: u32 = 12;

pub(super) fn properties() -> Vec<Property<QueueModel>> {
    vec![
        Property::always(EXCLUSION, |_, state: &State| valid_holds(state).count() <= 1),
        Property::always(DEADLINE, |_, state: &State| {
            let server = &state.server;
            valid_holds(state).all(|(number, left)| server.holder == number && server.lease >= left)
        }),
        Property::always(ONE_GRANT, |_, state: &State| {
            let holder = state.server.holder;
            holder == NOBODY || state.server.queue[holder as usize] == 0
        }),
        Property::always(ORDER, |_, state: &State| !state.seen.order),
        Property::always(IDLE, |_, state: &State| !state.seen.idle),
        Property::always(REPEAT, |_, state: &State| !state.seen.unrepeated),
        Property::always(LEAVE, |model: &QueueModel, state: &State| {
            (0..NUMBERS as u8).all(|number| leaves_nothing(model.layout, state, number))
        }),
        Property::always(FORGOTTEN, |model: &QueueModel, state: &State| {
            (0..SLOTS).all(|slot| is_remembered(model.layout, state, slot))
        }),
        Property::always(PROGRESS, |model: &QueueModel, state: &State| {
            gets_on(model.layout, state.clone())
        }),
        Property::sometimes(ENDS, |model: &QueueModel, state: &State| {
            state.budget == 0 && state.calls.iter().all(|call| call.round == model.rounds)
        }),
    ]
}

/// The holds that count: neither over nor void.
fn valid_holds(state: &State) -> impl Iterator<Item = (u8, u8)> + '_ {
    (0..SLOTS).filter_map(|slot| match state.calls[slot].phase {
        Phase::Holding { left, void: false } => Some((state.number(slot), left)),
        _ => None,
    })
}

/// A number whose call has ended is at the server only while a release of it is in flight. Crashed
/// clients and a fail-over are excused.
fn leaves_nothing(layout: Layout, state: &State, number: u8) -> bool {
    let is_there = state.server.holder == number || state.server.queue[number as usize] > 0;
    let is_gone = state.clients[layout.client_of(number)].life == Life::Crashed;
    let is_excused = is_gone || state.seen.restored || state.has_release_of(number);
    !is_there || is_excused || !state.has_ended(number)
}

fn is_remembered(layout: Layout, state: &State, slot: usize) -> bool {
    let (number, client) = (state.number(slot), layout.clients[slot]);
    let Some(wait) = state.wait(number) else { return true };
    let will_ask = wait.asks || wait.again || state.clients[client].moved;
    if will_ask || state.server.queue[number as usize] > 0 {
        return true;
    }
    let mut state = state.clone();
    let mut world = World::new(layout, &mut state);
    world.run(Step::Resume(client));
    world.run(Step::Heartbeat(client));
    state.wait(number).is_none_or(|wait| wait.again)
}

/// The packets in flight are lost, except for releases, which are repeated.
fn gets_on(layout: Layout, mut state: State) -> bool {
    state.packets.retain(|packet| matches!(packet, Packet::Release { .. }));
    for _ in 0..PROGRESS_TICKS {
        if state.calls.iter().all(|call| call.phase == Phase::Idle) {
            return true;
        }
        let mut world = World::new(layout, &mut state);
        (0..SLOTS).for_each(|client| world.recover(client));
        (0..SLOTS).for_each(|slot| world.go_on(slot));
        world.run(Step::Tick);
    }
    false
}

impl World<'_> {
    fn recover(&mut self, client: usize) {
        if self.state.clients[client].life == Life::Crashed {
            return;
        }
        self.run(Step::Resume(client));
        self.run(Step::Listen(client));
        if self.state.clients[client].moved {
            self.run(Step::Notice(client));
        }
    }

    /// The work for one slot in one tick.
    fn go_on(&mut self, slot: usize) {
        if let Phase::Waiting(wait) = self.state.calls[slot].phase {
            if wait.asks {
                self.run(Step::GiveUp(slot));
            }
            if wait.asks || wait.again {
                self.run(Step::Ask(slot));
            }
        }
        if matches!(self.state.calls[slot].phase, Phase::Waiting(_)) {
            self.run(Step::Heartbeat(self.layout.clients[slot]));
        }
        if matches!(self.state.calls[slot].phase, Phase::Holding { .. }) {
            self.run(Step::Release(slot));
        }
        let releases = std::mem::take(&mut self.state.packets);
        for packet in releases {
            self.state.packets.push(packet);
            self.run(Step::Arrive(self.state.packets.len() - 1));
        }
    }
}

const THREE_CLIENTS: [usize; SLOTS] = [0, 1, 2];
const TWO_CLIENTS: [usize; SLOTS] = [0, 0, 1];

fn model(clients: [usize; SLOTS], budget: u8, rounds: u8) -> QueueModel {
    let layout = Layout { clients, is_cluster: false, seed: None };
    QueueModel { layout, budget, rounds, fails_over: false }
}

/// Explores all states, and prints their number and the time.
fn holds(model: QueueModel) {
    let start = Instant::now();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "{model:?}: {} states, {} transitions, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f32(),
    );
    checker.assert_properties();
}

/// The checker finds the seeded fault by the property.
fn finds(seed: Seed, property: &'static str, mut model: QueueModel) {
    model.layout.seed = Some(seed);
    let finish = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(finish).spawn_bfs().join();
    let path = checker.assert_any_discovery(property);
    println!("{seed:?}, {} states:", checker.unique_state_count());
    path.into_actions().iter().for_each(|action| println!("    {action:?}"));
}

#[test]
fn three_clients() {
    holds(model(THREE_CLIENTS, 1 + further_faults(), 2));
}

#[test]
fn two_threads_of_one_client() {
    holds(model(TWO_CLIENTS, 1 + further_faults(), 2));
}

#[test]
fn one_round_with_two_faults() {
    holds(model(THREE_CLIENTS, 2 + further_faults(), 1));
}

/// Returns how many faults more than usual the four largest runs have: `LEASEHOLD_MODEL_FAULTS`.
fn further_faults() -> u8 {
    let value = std::env::var("LEASEHOLD_MODEL_FAULTS");
    value.map_or(0, |value| value.parse().expect("LEASEHOLD_MODEL_FAULTS is a small number"))
}

#[test]
fn a_fail_over() {
    holds(QueueModel { fails_over: true, ..model(TWO_CLIENTS, 1 + further_faults(), 1) });
}

#[test]
fn a_cluster_that_does_not_count_receivers() {
    let mut model = model(THREE_CLIENTS, 2, 1);
    model.layout.is_cluster = true;
    holds(model);
}

#[test]
fn a_heartbeat_that_does_not_repeat_a_grant_is_found() {
    finds(Seed::HeartbeatDoesNotRepeat, REPEAT, model(THREE_CLIENTS, 1, 1));
    finds(Seed::HeartbeatDoesNotRepeat, FORGOTTEN, model(THREE_CLIENTS, 1, 1));
}

#[test]
fn a_grant_to_a_dead_waiter_is_found() {
    finds(Seed::DeadAreNotSkipped, ORDER, model(THREE_CLIENTS, 1, 1));
}

#[test]
fn a_deadline_from_the_arrival_of_the_message_is_found() {
    finds(Seed::DeadlineFromArrival, EXCLUSION, model(THREE_CLIENTS, 1, 1));
}

#[test]
fn a_leave_that_forgets_a_grant_is_found() {
    finds(Seed::LeaveForgetsGrant, LEAVE, model(THREE_CLIENTS, 1, 1));
}

#[test]
fn a_heartbeat_that_revives_a_waiter_is_found() {
    finds(Seed::HeartbeatRevives, LEAVE, model(THREE_CLIENTS, 1, 1));
}

#[test]
fn a_message_that_counts_whatever_its_token_is_found() {
    finds(Seed::NoTokenRule, EXCLUSION, model(THREE_CLIENTS, 2, 1));
}

#[test]
fn the_release_of_a_hold_that_is_not_registered_yet_is_found() {
    finds(Seed::UnknownGrantIsReleased, EXCLUSION, model(TWO_CLIENTS, 1, 1));
}

#[test]
fn a_flag_of_lost_places_that_is_lost_is_found() {
    finds(Seed::FlagOfLostPlaces, FORGOTTEN, model(THREE_CLIENTS, 2, 1));
}

#[test]
fn a_grant_that_ends_unseen_is_found() {
    finds(Seed::OldBaseIsKept, FORGOTTEN, model(THREE_CLIENTS, 2, 1));
}

#[test]
fn a_force_unlock_that_keeps_the_terms_is_found() {
    finds(Seed::ForceUnlockKeepsTerms, FORGOTTEN, model(THREE_CLIENTS, 2, 2));
}

#[test]
fn a_fail_over_that_waiters_do_not_notice_is_found() {
    let model = model(TWO_CLIENTS, 1, 1);
    finds(Seed::FailOverChangesNothing, FORGOTTEN, QueueModel { fails_over: true, ..model });
}
