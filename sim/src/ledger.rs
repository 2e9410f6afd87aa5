//! What clients tell of their holds and count of them: both must add up when all guards are gone.

use leasehold::{Acquired, Client, Error, Events, Idle, Lost, Released, Stats};
use simulated::memory;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The events of the clients of one process.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    acquired: u64,
    lost: u64,
    /// The state of each hold by its number.
    holds: BTreeMap<u64, State>,
    /// The events that do not follow from those before.
    wrong: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Held,
    Idle,
    Lost,
    Released,
}

impl Ledger {
    fn note(&self, hold: u64, after: &[Option<State>], state: State, event: &dyn std::fmt::Debug) {
        memory::of_nobody(|| {
            let mut told = self.0.lock().expect("no panic");
            let before = told.holds.insert(hold, state);
            match state {
                State::Held => told.acquired += 1,
                State::Lost => told.lost += 1,
                State::Idle | State::Released => {}
            }
            if !after.contains(&before) {
                told.wrong.push(format!("{event:?} after {before:?}"));
            }
        });
    }

    /// Returns a text for each event and each count that is wrong. All guards are gone.
    pub fn check(&self, clients: &[Client]) -> Vec<String> {
        memory::of_nobody(|| {
            let mut told = self.0.lock().expect("no panic");
            let mut wrong = std::mem::take(&mut told.wrong);
            let stats: Vec<Stats> = clients.iter().map(Client::stats).collect();
            let sum = |count: fn(&Stats) -> u64| stats.iter().map(count).sum::<u64>();
            let ended = sum(Stats::released) + sum(Stats::lost_in_total);
            let taken = [Stats::acquired, Stats::passed_locally, Stats::lingered].map(sum);
            let is_open = |state: &State| matches!(state, State::Held | State::Idle);
            let open = told.holds.iter().filter(|(_, state)| is_open(state));
            wrong.extend(open.map(|(hold, _)| format!("hold {hold} has no end")));
            for (name, counted, right) in [
                ("acquired", taken.iter().sum(), told.acquired),
                ("lost", sum(Stats::lost_in_total), told.lost),
                // A hold that is lost before it has a guard is not released.
                ("ended", ended, sum(Stats::acquired) + sum(Stats::released_after_expiry)),
                ("waiting now", sum(Stats::waiting_now), 0),
            ] {
                if counted != right {
                    wrong.push(format!("{name}: {counted}, not {right}"));
                }
            }
            wrong
        })
    }
}

impl Events for Ledger {
    fn acquired(&self, event: &Acquired) {
        // A hand-off keeps the hold, and so does a take-over.
        let before = [None, Some(State::Held), Some(State::Idle)];
        self.note(event.hold, &before, State::Held, event);
    }

    fn idle(&self, event: &Idle) {
        self.note(event.hold, &[Some(State::Held)], State::Idle, event);
    }

    fn lost(&self, event: &Lost) {
        self.note(event.hold, &[Some(State::Held)], State::Lost, event);
    }

    fn released(&self, event: &Released) {
        // A release that finds the hold lost tells of both.
        let is_lost = event.error.as_ref().is_some_and(Error::is_lost);
        let before = if is_lost { [State::Lost; 2] } else { [State::Held, State::Idle] };
        self.note(event.hold, &before.map(Some), State::Released, event);
    }
}
