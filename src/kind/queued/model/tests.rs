//! The properties of the model, the exhaustive runs, and the seeded faults.

use super::*;
use stateright::{Checker, HasDiscoveries};
use std::time::Instant;

const EXCLUSION: &str = "mutual exclusion by deadline";
const DEADLINE: &str = "no deadline is after the server's";
const ONE_GRANT: &str = "at most one grant of a number";
const ORDER: &str = "the best live waiter is granted";
const IDLE: &str = "no script leaves a free lock with a live waiter";
const REPEAT: &str = "a heartbeat repeats a grant";
const LEAVE: &str = "an ended call leaves nothing behind";
const FORGOTTEN: &str = "no waiter is forgotten";

pub(super) fn properties() -> Vec<Property<QueueModel>> {
    vec![
        Property::always(EXCLUSION, |_, state| valid_holds(state).count() <= 1),
        Property::always(DEADLINE, |_, state| {
            valid_holds(state).all(|(number, left)| {
                state.server.holder == number && state.server.lease >= left
            })
        }),
        Property::always(ONE_GRANT, |_, state: &State| {
            let holder = state.server.holder;
            holder == NOBODY || state.server.queue[holder as usize] == 0
        }),
        Property::always(ORDER, |_, state: &State| !state.seen.order),
        Property::always(IDLE, |_, state: &State| !state.seen.idle),
        Property::always(REPEAT, |_, state: &State| !state.seen.unrepeated),
        Property::always(LEAVE, |model, state| leaves_nothing(model.layout, state)),
        Property::always(FORGOTTEN, |model, state| {
            (0..SLOTS).all(|slot| is_remembered(model.layout, state, slot))
        }),
        Property::sometimes("all rounds end", |model: &QueueModel, state: &State| {
            state.calls.iter().all(|call| call.round == model.rounds) && state.budget == 0
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

/// A number whose call has ended is at the server only while a release of it is in flight.
fn leaves_nothing(layout: Layout, state: &State) -> bool {
    (0..NUMBERS as u8).all(|number| {
        let is_there = state.server.holder == number || state.server.queue[number as usize] > 0;
        let is_gone = state.clients[layout.client_of(number)].life == Life::Crashed;
        !is_there || is_gone || state.seen.restored || !state.has_ended(number) || state.has_release_of(number)
    })
}

/// A waiter has a place, an acquire in flight or due, or gets one of them by a heartbeat.
fn is_remembered(layout: Layout, state: &State, slot: usize) -> bool {
    let number = state.number(slot);
    let Some(wait) = state.wait(number) else { return true };
    let moved = state.clients[layout.clients[slot]].moved;
    if wait.asks || wait.again || moved || state.server.queue[number as usize] > 0 {
        return true;
    }
    let mut state = state.clone();
    state.clients[layout.clients[slot]].life = Life::Up;
    let mut world = World {
        layout,
        state: &mut state,
        link: Link::Prompt,
        is_message_late: false,
        has_message: false,
    };
    world.run(Step::Heartbeat(layout.clients[slot]));
    state.wait(number).is_none_or(|wait| wait.again)
}

const THREE_CLIENTS: [usize; SLOTS] = [0, 1, 2];
const TWO_CLIENTS: [usize; SLOTS] = [0, 0, 1];

fn explore(clients: [usize; SLOTS], budget: u8, rounds: u8, fails_over: bool, is_cluster: bool) {
    let start = Instant::now();
    let model = QueueModel { layout: Layout { clients, is_cluster, seed: None }, budget, rounds, fails_over };
    let checker =
        model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!(
        "clients {clients:?}, {budget} faults, {rounds} rounds: {} states, {} transitions, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f32(),
    );
    for (name, path) in checker.discoveries() {
        if name == "all rounds end" { continue; }
        println!("{name}:");
        for (state, action) in path.into_vec() {
            println!("  {state:?}\n{action:?}");
        }
    }
    checker.assert_properties();
}

#[test]
fn experiment() {
    let get = |name: &str, default: u8| {
        std::env::var(name).map_or(default, |value| value.parse().unwrap())
    };
    let clients = if get("TWO", 0) == 1 { TWO_CLIENTS } else { THREE_CLIENTS };
    explore(clients, get("BUDGET", 1), get("ROUNDS", 1), get("COPY", 0) == 1, get("CLUSTER", 0) == 1);
}

/// The checker finds the seeded fault, by the property.
fn finds(seed: Seed, clients: [usize; SLOTS], budget: u8, rounds: u8, property: &'static str) {
    let start = Instant::now();
    let layout = Layout { clients, is_cluster: false, seed: Some(seed) };
    let fails_over = seed == Seed::FailOverChangesNothing;
    let checker = QueueModel { layout, budget, rounds, fails_over }
        .checker()
        .finish_when(HasDiscoveries::AnyOf([property].into()))
        .spawn_bfs()
        .join();
    let others: Vec<_> =
        checker.discoveries().into_keys().filter(|name| *name != "all rounds end").collect();
    println!(
        "{seed:?}, {budget} faults: {others:?} after {} states, {:.1} s",
        checker.unique_state_count(),
        start.elapsed().as_secs_f32(),
    );
    let path = checker.assert_any_discovery(property);
    for action in path.into_actions() {
        println!("    {action:?}");
    }
}

#[test]
fn seeds() {
    finds(Seed::HeartbeatDoesNotRepeat, THREE_CLIENTS, 1, 2, REPEAT);
    finds(Seed::DeadAreNotSkipped, THREE_CLIENTS, 1, 2, ORDER);
    finds(Seed::LeaveForgetsGrant, THREE_CLIENTS, 1, 2, LEAVE);
    finds(Seed::HeartbeatRevives, THREE_CLIENTS, 1, 2, LEAVE);
    finds(Seed::DeadlineFromArrival, THREE_CLIENTS, 1, 2, EXCLUSION);
    finds(Seed::NoTokenRule, THREE_CLIENTS, 2, 2, EXCLUSION);
    finds(Seed::UnknownGrantIsReleased, TWO_CLIENTS, 1, 2, EXCLUSION);
    finds(Seed::FlagOfLostPlaces, THREE_CLIENTS, 2, 1, FORGOTTEN);
    finds(Seed::OldBaseIsKept, THREE_CLIENTS, 2, 1, FORGOTTEN);
    finds(Seed::ForceUnlockKeepsTerms, THREE_CLIENTS, 2, 1, FORGOTTEN);
    finds(Seed::FailOverChangesNothing, TWO_CLIENTS, 1, 1, FORGOTTEN);
}
