//! The scripts of semaphores and latches against models, in random orders of all steps: repeated
//! requests, late copies, undos, expired leases, early releases, claims, Redisson's operations, and
//! lost keys.
//!
//! The server's clock moves by hours, and leases end at half hours. So the real time that a
//! sequence takes changes no outcome.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::harness::bare::*;
use crate::harness::faults::stress;
use crate::harness::redisson::{self, EXPIRIES, LATCH, LATCH_CHANNEL, PERMITS, SEMAPHORE_CHANNEL};
use crate::harness::{Config, Server};
use crate::sequences::try_sequences;

const HOUR: i64 = 3_600_000;
const HALF: i64 = HOUR / 2;
const CLAIM: &str = "leasehold_claim:{the-permits}";
const ROUND: &str = "leasehold_round:{the-latch}";
/// Longer than all sequences.
const LIFETIME: &str = "36000000000";

/// A server with a clock that a test moves, and a listener on one channel.
struct Stage {
    bare: Bare,
    listener: Listener,
    channel: &'static str,
    /// The offset of the server's clock, in ms.
    ahead: i64,
    /// The server's time at the beginning of the sequence, in ms since 1970.
    start: i64,
}

impl Stage {
    fn on(channel: &'static str) -> Stage {
        let bare = Bare::on(Server::with(Config::movable_clock));
        let listener = Listener::on(&bare.server, channel);
        Stage { bare, listener, channel, ahead: 0, start: 0 }
    }

    /// Begins a sequence without any key.
    fn begin(&mut self) {
        self.bare.ask::<()>(&["FLUSHALL"]);
        self.start = self.now();
    }

    fn now(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = self.bare.ask(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    fn pass(&mut self, hours: i64) {
        self.ahead += hours * HOUR;
        self.bare.server.set_clock(self.ahead);
    }

    /// Returns the payloads of the messages since the last call.
    fn messages(&mut self) -> Vec<i64> {
        let _: i64 = self.bare.ask(&["PUBLISH", self.channel, "end"]);
        let next = || Some(self.listener.next_message().1).filter(|it| it != "end");
        std::iter::from_fn(next).map(|it| it.parse().expect("a decimal")).collect()
    }
}

/// Returns the key of the record of a request.
fn record_of(name: &str, request: usize) -> String {
    format!("leasehold_request:{{{name}}}:client:{request}")
}

/// Runs random sequences of steps. `sequence` panics or fails on a difference.
fn run<S: Strategy>(
    stage: Stage,
    step: S,
    sequence: impl Fn(&mut Stage, Vec<S::Value>) -> Result<(), TestCaseError>,
) {
    let cases = 150 * u32::try_from(stress()).expect("a small factor");
    try_sequences(stage, cases, vec(step, 1..60), |stage, steps| {
        stage.begin();
        sequence(stage, steps)
    });
}

// ---------------------------------------------------------------------------------
// The semaphore with leased permits.

/// The capacity that acquires set.
const CAPACITY: i64 = 4;
/// The capacities of the requests for another one.
const CAPACITIES: [i64; 4] = [1, 3, 6, 8];
const HOLDS: usize = 6;

/// The permits of a hold: 1, 2 or 3. Redisson's permits are those of holds above `HOLDS`.
fn ids_of(hold: usize) -> Vec<String> {
    (0..=hold % 3).map(|at| format!("{hold:08}{at:08}")).collect()
}

/// Returns the id of a permit that a minimum keeps in use. The byte 255 is shown as a character.
fn kept_id(id: &str) -> String {
    format!("{}\u{fffd}{}", &id[..8], &id[9..])
}

fn claimant_of(hold: usize) -> String {
    format!("waiter:{hold}")
}

/// A step of a sequence. An acquire may be the first copy, a repeated one, or a late one. Leases
/// and waits are in hours. `skew` is the number of hours by which the clock of Redisson is ahead.
#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire {
        hold: usize,
        lease: i64,
        waits: bool,
        sets: bool,
    },
    Release(usize),
    /// A release before the minimum, which ends after so many hours and a half.
    EndEarly {
        hold: usize,
        left: i64,
    },
    Leave(usize),
    Renew(usize, i64),
    Check(usize),
    Poll {
        hold: usize,
        waited: i64,
        claims: bool,
    },
    Resize(usize),
    Pass(i64),
    LoseCount,
    TakeAsRedisson {
        hold: usize,
        lease: i64,
        skew: i64,
    },
    GiveAsRedisson {
        hold: usize,
        skew: i64,
    },
    GiveAllAsRedisson {
        hold: usize,
        skew: i64,
    },
    UpdateAsRedisson {
        hold: usize,
        lease: i64,
        skew: i64,
    },
    CountAsRedisson {
        skew: i64,
    },
    AddAsRedisson(i64),
    ResizeAsRedisson(i64),
}

fn steps_of_holds() -> impl Strategy<Value = Step> {
    let (hold, each) = (0..HOLDS, 0..2 * HOLDS);
    let (lease, skew) = (0..4i64, -1..=1i64);
    let acquire = (hold.clone(), lease.clone(), any::<bool>(), any::<bool>());
    let taken = (HOLDS..2 * HOLDS, lease.clone(), skew.clone());
    let updated = (each.clone(), lease.clone(), skew.clone());
    prop_oneof![
        12 => acquire.prop_map(|(hold, lease, waits, sets)| Step::Acquire {
            hold, lease, waits, sets
        }),
        6 => hold.clone().prop_map(Step::Release),
        // Few holds: a late copy of an acquire takes the same permits again, which end early again.
        8 => (0..2usize, 0..2i64).prop_map(|(hold, left)| Step::EndEarly { hold, left }),
        3 => hold.clone().prop_map(Step::Leave),
        2 => (hold.clone(), lease).prop_map(|(hold, lease)| Step::Renew(hold, lease)),
        1 => hold.clone().prop_map(Step::Check),
        4 => (hold, 0..3i64, any::<bool>())
            .prop_map(|(hold, waited, claims)| Step::Poll { hold, waited, claims }),
        1 => (0..CAPACITIES.len()).prop_map(Step::Resize),
        3 => (1..3i64).prop_map(Step::Pass),
        1 => Just(Step::LoseCount),
        3 => taken.prop_map(|(hold, lease, skew)| Step::TakeAsRedisson { hold, lease, skew }),
        2 => (each.clone(), skew.clone())
            .prop_map(|(hold, skew)| Step::GiveAsRedisson { hold, skew }),
        1 => (each, skew.clone()).prop_map(|(hold, skew)| Step::GiveAllAsRedisson { hold, skew }),
        1 => updated
            .prop_map(|(hold, lease, skew)| Step::UpdateAsRedisson { hold, lease, skew }),
        1 => skew.prop_map(|skew| Step::CountAsRedisson { skew }),
        1 => (-2..3i64).prop_map(Step::AddAsRedisson),
        1 => (1..6i64).prop_map(Step::ResizeAsRedisson),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Claim {
    claimant: String,
    permits: i64,
    /// In sixths of an hour. No two claimants have the same.
    since: i64,
    /// In half hours.
    end: i64,
}

/// An outcome of a step, with the times in half hours from now.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Acquired { others: i64 },
    TooMany { capacity: i64 },
    Refused { left: Option<i64>, others: i64 },
    Polled { must_ask: bool, others: i64, left: Option<i64>, capacity: i64 },
    Lost(Vec<usize>),
    Done(bool),
    Number(i64),
}

/// A semaphore as the documentation describes it, with times in half hours.
#[derive(Clone, Debug, Default)]
struct Model {
    now: i64,
    /// `None` without a key.
    free: Option<i64>,
    /// The permits in use, with their expiries, which are odd.
    used: BTreeMap<String, i64>,
    claim: Option<Claim>,
    /// The requests for another capacity that have run.
    resized: Vec<usize>,
    /// The capacity, by the history of its changes alone.
    capacity: Option<i64>,
    messages: Vec<i64>,
}

impl Model {
    fn in_use(&self) -> i64 {
        self.used.len() as i64
    }

    fn valid(&self) -> i64 {
        self.used.values().filter(|end| **end > self.now).count() as i64
    }

    fn has(&self, id: &str) -> bool {
        self.used.get(id).is_some_and(|end| *end > self.now)
    }

    fn end_of(&self, lease: i64) -> i64 {
        self.now + 2 * lease + 1
    }

    fn publish(&mut self, payload: i64) {
        if payload > 0 {
            self.messages.push(payload);
        }
    }

    fn left(&self) -> Option<i64> {
        self.used.values().min().map(|end| end - self.now)
    }

    fn claimed(&self) -> i64 {
        self.claim.as_ref().map_or(0, |claim| claim.permits)
    }

    fn others(&self) -> i64 {
        (self.free.unwrap_or(0) - self.claimed()).max(0)
    }

    fn is_claimed_by(&self, claimant: &str) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.claimant == claimant)
    }

    /// Gives all permits back that have expired at this time, and returns their number.
    fn reclaim(&mut self, now: i64) -> i64 {
        let before = self.in_use();
        self.used.retain(|_, end| *end > now);
        let gain = before - self.in_use();
        self.free = self.free.map(|free| free + gain);
        gain
    }

    fn acquire(&mut self, hold: usize, lease: i64, waits: bool, sets: bool) -> Outcome {
        let ids = ids_of(hold);
        let wanted = ids.len() as i64;
        let capacity = if sets { CAPACITY } else { 0 };
        let was_known = self.free.is_some();
        let mut free = self.free.unwrap_or(capacity - self.in_use());
        let is_own = waits && self.is_claimed_by(&claimant_of(hold));
        let reserved = if is_own { 0 } else { self.claimed() };
        let held = ids.iter().filter(|id| self.has(id)).count() as i64;
        let mut gain = 0;
        let mut is_refused = false;
        if free - reserved < wanted && held < wanted {
            if free + self.in_use() < wanted {
                return Outcome::TooMany { capacity: free + self.in_use() };
            }
            gain = self.reclaim(self.now);
            free += gain;
            is_refused = free - reserved < wanted - held;
        }
        if !is_refused {
            let end = self.end_of(lease);
            for id in ids {
                let is_new = !self.used.contains_key(&id);
                free -= i64::from(is_new);
                let expiry = self.used.entry(id).or_insert(end);
                *expiry = end.max(*expiry);
            }
            if is_own {
                self.claim = None;
            }
        }
        if !was_known {
            self.capacity = Some(capacity);
        }
        self.free = Some(free);
        if gain > 0 || !was_known {
            self.publish(free);
        }
        let others = self.others();
        if is_refused {
            Outcome::Refused { left: self.left(), others }
        } else {
            Outcome::Acquired { others }
        }
    }

    /// Returns the number of the permits that were in use.
    fn give_back(&mut self, ids: &[String]) -> i64 {
        let removed = ids.iter().filter(|id| self.used.remove(*id).is_some()).count() as i64;
        self.free = self.free.map(|free| free + removed);
        removed
    }

    fn release(&mut self, hold: usize) -> Outcome {
        let ids = ids_of(hold);
        let removed = self.give_back(&ids);
        if removed > 0 {
            self.publish(self.free.unwrap_or(0));
        }
        Outcome::Done(removed == ids.len() as i64)
    }

    /// Replaces the ids of a hold by ids without a holder, which expire at the end of the minimum.
    ///
    /// A late copy of the acquire may have taken the permits again. They then keep their ids.
    fn end_early(&mut self, hold: usize, left: i64) -> Outcome {
        let (ids, end) = (ids_of(hold), self.end_of(left));
        let held: Vec<&String> = ids.iter().filter(|id| self.used.contains_key(*id)).collect();
        for id in &held {
            match self.used.insert(kept_id(id), end) {
                None => self.used.remove(*id),
                Some(_) => self.used.insert(id.to_string(), end),
            };
        }
        Outcome::Done(held.len() == ids.len())
    }

    fn leave(&mut self, hold: usize) -> Outcome {
        let ids = ids_of(hold);
        let is_own = self.is_claimed_by(&claimant_of(hold));
        let removed = self.give_back(&ids);
        if is_own {
            self.claim = None;
        }
        if removed > 0 || is_own {
            self.publish(self.free.unwrap_or(0));
        }
        Outcome::Done(removed == ids.len() as i64)
    }

    fn renew(&mut self, hold: usize, lease: Option<i64>) -> Outcome {
        let mut lost = Vec::new();
        for (at, id) in ids_of(hold).iter().enumerate() {
            let end = lease.map_or(i64::MIN, |lease| self.end_of(lease));
            match self.used.get_mut(id) {
                Some(expiry) => *expiry = end.max(*expiry),
                None => lost.push(at + 1),
            }
        }
        Outcome::Lost(lost)
    }

    fn poll(&mut self, hold: usize, waited: i64, claims: bool) -> Outcome {
        let wanted = ids_of(hold).len() as i64;
        if self.free.is_none() {
            return Outcome::Polled { must_ask: true, others: 0, left: None, capacity: 0 };
        }
        let gain = self.reclaim(self.now);
        let free = self.free.unwrap_or(0);
        let capacity = free + self.in_use();
        let since = 3 * self.now - 6 * waited - hold as i64;
        let (claimant, end) = (claimant_of(hold), self.now + 3);
        if claims && wanted <= capacity {
            let is_older = self.claim.as_ref().is_none_or(|claim| since < claim.since);
            if !self.is_claimed_by(&claimant) && is_older {
                let claimant = claimant.clone();
                self.claim = Some(Claim { claimant, permits: wanted, since, end });
            }
            if let Some(own) = self.claim.as_mut().filter(|claim| claim.claimant == claimant) {
                own.end = end;
            }
        }
        if gain > 0 {
            self.publish(free);
        }
        let reserved = if self.is_claimed_by(&claimant) { 0 } else { self.claimed() };
        let must_ask = wanted <= (free - reserved).max(0) || wanted > capacity;
        Outcome::Polled { must_ask, others: self.others(), left: self.left(), capacity }
    }

    fn set_free(&mut self, free: i64) {
        self.free = Some(free);
        self.capacity = Some(free + self.in_use());
    }

    fn resize(&mut self, request: usize) -> Outcome {
        if !self.resized.contains(&request) {
            self.resized.push(request);
            let before = self.free;
            self.set_free(CAPACITIES[request] - self.in_use());
            if self.free != before {
                self.publish(self.free.unwrap_or(0));
            }
        }
        Outcome::Done(true)
    }

    /// Reclaims as Redisson does, before most of its operations. Without a key, Redisson makes one.
    fn reclaim_as_redisson(&mut self, skew: i64) {
        let now = self.now + 2 * skew;
        if self.used.values().any(|end| *end <= now) {
            self.make_key();
            self.reclaim(now);
            self.publish(self.free.unwrap_or(0));
        }
    }

    /// Makes the key without a free permit, as the first increment does.
    fn make_key(&mut self) {
        if self.free.is_none() {
            self.set_free(0);
        }
    }

    /// Returns whether Redisson would not take this step.
    ///
    /// The ids of Redisson are new. And of more expired permits than Redisson wants, it would
    /// reclaim those that expired first, by the millisecond.
    fn excludes(&self, step: Step) -> bool {
        let Step::TakeAsRedisson { hold, skew, .. } = step else { return false };
        let ids = ids_of(hold);
        let expired = self.used.values().filter(|end| **end <= self.now + 2 * skew).count();
        expired > ids.len() || ids.iter().any(|id| self.used.contains_key(id))
    }

    fn take_as_redisson(&mut self, hold: usize, lease: i64, skew: i64) -> Outcome {
        let ids = ids_of(hold);
        self.reclaim_as_redisson(skew);
        let wanted = ids.len() as i64;
        let is_granted = self.free.is_some_and(|free| free >= wanted);
        if is_granted {
            self.free = self.free.map(|free| free - wanted);
            let end = self.end_of(lease + skew);
            self.used.extend(ids.into_iter().map(|id| (id, end)));
        }
        Outcome::Done(is_granted)
    }

    fn give_as_redisson(&mut self, id: &str, skew: i64) -> Outcome {
        let Some(end) = self.used.get(id).copied() else { return Outcome::Done(false) };
        self.make_key();
        self.give_back(&[id.to_owned()]);
        // Redisson publishes each total.
        self.messages.push(self.free.unwrap_or(0));
        Outcome::Done(end > self.now + 2 * skew)
    }

    fn give_all_as_redisson(&mut self, hold: usize, skew: i64) -> Outcome {
        let (ids, now) = (ids_of(hold), self.now + 2 * skew);
        if !ids.iter().all(|id| self.used.get(id).is_some_and(|end| *end > now)) {
            return Outcome::Done(false);
        }
        self.reclaim_as_redisson(skew);
        self.make_key();
        let removed = self.give_back(&ids);
        self.messages.push(removed);
        Outcome::Done(true)
    }

    fn update_as_redisson(&mut self, id: &str, lease: i64, skew: i64) -> Outcome {
        self.reclaim_as_redisson(skew);
        let end = self.end_of(lease + skew);
        let Some(expiry) = self.used.get_mut(id) else { return Outcome::Done(false) };
        *expiry = end;
        Outcome::Done(true)
    }

    fn count_as_redisson(&mut self, skew: i64) -> Outcome {
        self.reclaim_as_redisson(skew);
        Outcome::Number(self.free.map_or(0, |free| free + self.in_use()))
    }

    fn resize_as_redisson(&mut self, capacity: i64) -> Outcome {
        let before = self.free.map(|free| free + self.in_use());
        if before != Some(capacity) {
            match before {
                Some(_) => self.set_free(capacity - self.in_use()),
                None => self.set_free(capacity),
            }
            self.messages.push(capacity);
        }
        Outcome::Done(true)
    }

    fn add_as_redisson(&mut self, permits: i64) -> Outcome {
        self.set_free(self.free.unwrap_or(0) + permits);
        self.publish(permits);
        Outcome::Done(true)
    }

    fn pass(&mut self, hours: i64) -> Outcome {
        self.now += 2 * hours;
        self.claim = self.claim.take().filter(|claim| claim.end > self.now);
        Outcome::Done(true)
    }

    fn apply(&mut self, step: Step) -> Outcome {
        match step {
            Step::Acquire { hold, lease, waits, sets } => self.acquire(hold, lease, waits, sets),
            Step::Release(hold) => self.release(hold),
            Step::EndEarly { hold, left } => self.end_early(hold, left),
            Step::Leave(hold) => self.leave(hold),
            Step::Renew(hold, lease) => self.renew(hold, Some(lease)),
            Step::Check(hold) => self.renew(hold, None),
            Step::Poll { hold, waited, claims } => self.poll(hold, waited, claims),
            Step::Resize(request) => self.resize(request),
            Step::Pass(hours) => self.pass(hours),
            Step::LoseCount => {
                (self.free, self.capacity) = (None, None);
                Outcome::Done(true)
            }
            Step::TakeAsRedisson { hold, lease, skew } => self.take_as_redisson(hold, lease, skew),
            Step::GiveAsRedisson { hold, skew } => self.give_as_redisson(&ids_of(hold)[0], skew),
            Step::GiveAllAsRedisson { hold, skew } => self.give_all_as_redisson(hold, skew),
            Step::UpdateAsRedisson { hold, lease, skew } => {
                self.update_as_redisson(&ids_of(hold)[0], lease, skew)
            }
            Step::CountAsRedisson { skew } => self.count_as_redisson(skew),
            Step::AddAsRedisson(permits) => self.add_as_redisson(permits),
            Step::ResizeAsRedisson(capacity) => self.resize_as_redisson(capacity),
        }
    }
}

/// Returns a span in half hours; the real time of a sequence rounds away.
fn halves(millis: i64) -> i64 {
    (millis + HALF / 2).div_euclid(HALF)
}

fn left_of(millis: i64) -> Option<i64> {
    (millis >= 0).then(|| halves(millis))
}

fn acquire(bare: &mut Bare, hold: usize, lease: i64, waits: bool, sets: bool) -> Outcome {
    let claimant = if waits { claimant_of(hold) } else { String::new() };
    let capacity = if sets { CAPACITY.to_string() } else { String::new() };
    let lease = (lease * HOUR + HALF).to_string();
    let ids = ids_of(hold);
    let args = [&[&*lease, &capacity, SEMAPHORE_CHANNEL, &claimant][..], &texts(&ids)].concat();
    match bare.reply("semaphore_acquire", &[PERMITS, EXPIRIES, CLAIM], &args) {
        (-2, others) => Outcome::Acquired { others },
        (-3, capacity) => Outcome::TooMany { capacity },
        (left, others) => Outcome::Refused { left: left_of(left), others },
    }
}

fn release(bare: &mut Bare, hold: usize) -> Outcome {
    let ids = ids_of(hold);
    let args = [&[SEMAPHORE_CHANNEL][..], &texts(&ids)].concat();
    Outcome::Done(bare.call("semaphore_release", &[PERMITS, EXPIRIES], &args) >= 0)
}

fn end_early(bare: &mut Bare, hold: usize, left: i64) -> Outcome {
    let (ids, left) = (ids_of(hold), (left * HOUR + HALF).to_string());
    let args = [&[&*left][..], &texts(&ids)].concat();
    Outcome::Done(bare.call("semaphore_early_release", &[EXPIRIES], &args) == 0)
}

fn leave(bare: &mut Bare, hold: usize) -> Outcome {
    let (ids, claimant) = (ids_of(hold), claimant_of(hold));
    let args = [&[SEMAPHORE_CHANNEL, &claimant][..], &texts(&ids)].concat();
    Outcome::Done(bare.call("semaphore_leave", &[PERMITS, EXPIRIES, CLAIM], &args) >= 0)
}

fn renew(bare: &mut Bare, hold: usize, lease: Option<i64>) -> Outcome {
    let ids = ids_of(hold);
    let lease = lease.map_or(-2, |lease| lease * HOUR + HALF).to_string();
    let args = [&[&*lease][..], &texts(&ids)].concat();
    Outcome::Lost(bare.reply("semaphore_renew", &vec![EXPIRIES; ids.len()], &args))
}

fn poll(bare: &mut Bare, hold: usize, waited: i64, claims: bool) -> Outcome {
    let (permits, claimant) = (ids_of(hold).len().to_string(), claimant_of(hold));
    let waited = (waited * HOUR + hold as i64 * HOUR / 6).to_string();
    let lifetime = (HOUR + HALF).to_string();
    let mode = if claims { "claim" } else { "wait" };
    let args = [&*lifetime, SEMAPHORE_CHANNEL, &claimant, &permits, &waited, mode];
    let (must_ask, others, left, capacity): (i64, i64, i64, i64) =
        bare.reply("semaphore_poll", &[PERMITS, EXPIRIES, CLAIM], &args);
    Outcome::Polled { must_ask: must_ask == 1, others, left: left_of(left), capacity }
}

fn resize(bare: &mut Bare, request: usize) -> Outcome {
    let keys = [PERMITS, EXPIRIES, &record_of(PERMITS, request)];
    let args = [&*CAPACITIES[request].to_string(), SEMAPHORE_CHANNEL, LIFETIME];
    bare.call("semaphore_resize", &keys, &args);
    Outcome::Done(true)
}

/// Runs a step on the server.
fn take_step(stage: &mut Stage, step: Step) -> Outcome {
    let now = stage.now();
    let moment = |skew: i64| now + skew * HOUR;
    let end = |skew: i64, lease: i64| moment(skew) + lease * HOUR + HALF;
    let bare = &mut stage.bare;
    match step {
        Step::Acquire { hold, lease, waits, sets } => acquire(bare, hold, lease, waits, sets),
        Step::Release(hold) => release(bare, hold),
        Step::EndEarly { hold, left } => end_early(bare, hold, left),
        Step::Leave(hold) => leave(bare, hold),
        Step::Renew(hold, lease) => renew(bare, hold, Some(lease)),
        Step::Check(hold) => renew(bare, hold, None),
        Step::Poll { hold, waited, claims } => poll(bare, hold, waited, claims),
        Step::Resize(request) => resize(bare, request),
        Step::CountAsRedisson { skew } => Outcome::Number(redisson::capacity(bare, moment(skew))),
        Step::TakeAsRedisson { hold, lease, skew } => {
            let ids = ids_of(hold);
            let end = end(skew, lease);
            Outcome::Done(redisson::acquire(bare, moment(skew), end, &texts(&ids)))
        }
        Step::GiveAsRedisson { hold, skew } => {
            Outcome::Done(redisson::release(bare, moment(skew), &ids_of(hold)[0]))
        }
        Step::GiveAllAsRedisson { hold, skew } => {
            Outcome::Done(redisson::release_many(bare, moment(skew), &texts(&ids_of(hold))))
        }
        Step::UpdateAsRedisson { hold, lease, skew } => {
            let (id, end) = (&ids_of(hold)[0], end(skew, lease));
            Outcome::Done(redisson::update_lease(bare, moment(skew), end, id))
        }
        Step::AddAsRedisson(permits) => done(|| redisson::add(bare, permits)),
        Step::ResizeAsRedisson(capacity) => done(|| redisson::set_capacity(bare, capacity)),
        Step::LoseCount => done(|| bare.ask::<()>(&["DEL", PERMITS])),
        Step::Pass(hours) => done(|| stage.pass(hours)),
    }
}

fn done(step: impl FnOnce()) -> Outcome {
    step();
    Outcome::Done(true)
}

/// What a server knows of a semaphore, with times in half hours.
type Look = (Option<i64>, BTreeMap<String, i64>, Option<Claim>);

fn look(stage: &mut Stage, now: i64) -> Look {
    let (bare, start) = (&mut stage.bare, stage.start);
    let used: Vec<(Vec<u8>, i64)> = bare.ask(&["ZRANGE", EXPIRIES, "0", "-1", "WITHSCORES"]);
    let text = |id: Vec<u8>| String::from_utf8_lossy(&id).into_owned();
    let used = used.into_iter().map(|(id, score)| (text(id), halves(score - start))).collect();
    let fields: BTreeMap<String, String> = bare.ask(&["HGETALL", CLAIM]);
    let left: i64 = bare.ask(&["PTTL", CLAIM]);
    let claim = (left >= 0).then(|| {
        let number = |field: &str| fields[field].parse::<i64>().expect("a number");
        let (sixth, since) = (HOUR / 6, number("since") - start);
        Claim {
            claimant: fields["claimant"].clone(),
            permits: number("permits"),
            since: (since + sixth / 2).div_euclid(sixth),
            end: now + halves(left),
        }
    });
    (bare.ask(&["GET", PERMITS]), used, claim)
}

#[test]
fn permits_are_counted_once_in_every_order_of_the_steps() {
    let stage = Stage::on(SEMAPHORE_CHANNEL);
    run(stage, steps_of_holds(), |stage, steps| {
        let mut model = Model::default();
        for step in steps {
            if model.excludes(step) {
                continue;
            }
            let before = model.clone();
            let expected = model.apply(step);
            prop_assert_eq!(take_step(stage, step), expected.clone(), "{:?} {:?}", step, before);
            let found = look(stage, model.now);
            let known = (model.free, model.used.clone(), model.claim.clone());
            prop_assert_eq!(found, known, "{:?} after {:?}", step, before);
            let messages = std::mem::take(&mut model.messages);
            prop_assert_eq!(stage.messages(), messages, "{:?} after {:?}", step, before);
            // The promises.
            let total = model.free.map(|free| free + model.in_use());
            prop_assert_eq!(total, model.capacity, "{:?} after {:?}", step, before);
            let is_grant = matches!(expected, Outcome::Acquired { .. });
            let has_taken = is_grant && model.in_use() > before.in_use();
            let capacity = model.capacity.unwrap_or(i64::MAX);
            prop_assert!(!has_taken || model.valid() <= capacity, "{step:?} after {before:?}");
        }
        Ok(())
    });
}

// ---------------------------------------------------------------------------------
// The plain semaphore.

/// A request of a client. Its copies may run at any time.
#[derive(Clone, Copy, Debug)]
enum Request {
    Take(i64),
    Add(i64),
    Drain,
    Set(i64),
}

const REQUESTS: [Request; 10] = [
    Request::Take(1),
    Request::Take(2),
    Request::Take(3),
    Request::Add(3),
    Request::Add(-2),
    Request::Add(5),
    Request::Drain,
    Request::Drain,
    Request::Set(4),
    Request::Set(2),
];

#[derive(Clone, Copy, Debug)]
enum CountStep {
    /// A copy of a request, in time or late.
    Run(usize),
    /// Only for a request that takes.
    Undo(usize),
    /// Only for other requests.
    Close(usize),
    TakeAsRedisson(i64),
    GiveAsRedisson(i64),
    DrainAsRedisson,
    SetAsRedisson(i64),
    Lose,
}

fn steps_of_counts() -> impl Strategy<Value = CountStep> {
    let takes = prop_oneof![0..3usize, 6..8usize];
    let others = prop_oneof![3..6usize, 8..10usize];
    prop_oneof![
        12 => (0..REQUESTS.len()).prop_map(CountStep::Run),
        4 => takes.prop_map(CountStep::Undo),
        1 => others.prop_map(CountStep::Close),
        1 => (1..4i64).prop_map(CountStep::TakeAsRedisson),
        1 => (1..4i64).prop_map(CountStep::GiveAsRedisson),
        1 => Just(CountStep::DrainAsRedisson),
        1 => (1..6i64).prop_map(CountStep::SetAsRedisson),
        1 => Just(CountStep::Lose),
    ]
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// The request changed the count by this number.
    Ran(i64),
    Undone,
    Closed,
}

/// A plain semaphore that knows the fate of each request.
#[derive(Clone, Debug, Default)]
struct CountModel {
    free: Option<i64>,
    fates: BTreeMap<usize, Fate>,
    messages: Vec<i64>,
}

impl CountModel {
    fn change(&mut self, request: usize, change: i64) {
        self.free = Some(self.free.unwrap_or(0) + change);
        self.fates.insert(request, Fate::Ran(change));
    }

    fn publish(&mut self) {
        self.messages.extend(self.free.filter(|free| *free > 0));
    }

    fn take(&mut self, request: usize, permits: i64) -> Vec<i64> {
        let fate = self.fates.get(&request).copied();
        if fate.is_none() && self.free.unwrap_or(0) >= permits {
            self.change(request, -permits);
        }
        let has_run = matches!(self.fates.get(&request), Some(Fate::Ran(_)));
        vec![i64::from(has_run), self.free.unwrap_or(0).max(0)]
    }

    fn add(&mut self, request: usize, permits: i64) -> Vec<i64> {
        if !self.fates.contains_key(&request) {
            self.change(request, permits);
            self.publish();
        }
        vec![]
    }

    fn drain(&mut self, request: usize) -> Vec<i64> {
        let fate = self.fates.get(&request).copied();
        match (fate, self.free) {
            (None, None) => {
                self.fates.insert(request, Fate::Ran(0));
            }
            (None, Some(free)) => self.change(request, -free),
            _ => {}
        }
        match self.fates[&request] {
            Fate::Ran(change) => vec![-change],
            _ => vec![0],
        }
    }

    fn set(&mut self, request: usize, permits: i64) -> Vec<i64> {
        let is_done = self.fates.contains_key(&request);
        if !is_done && self.free.is_none() {
            self.change(request, permits);
            self.publish();
            return vec![1];
        }
        vec![i64::from(is_done)]
    }

    fn undo(&mut self, request: usize) -> Vec<i64> {
        let fate = self.fates.insert(request, Fate::Undone);
        match (fate, self.free) {
            (Some(Fate::Ran(change)), Some(free)) => {
                self.free = Some(free - change);
                self.publish();
                vec![1]
            }
            _ => vec![0],
        }
    }

    fn close(&mut self, request: usize) -> Vec<i64> {
        let is_new = !self.fates.contains_key(&request);
        self.fates.entry(request).or_insert(Fate::Closed);
        vec![i64::from(is_new)]
    }

    fn take_as_redisson(&mut self, permits: i64) -> Vec<i64> {
        let is_granted = self.free.is_some_and(|free| free >= permits);
        if is_granted {
            self.free = self.free.map(|free| free - permits);
        }
        vec![i64::from(is_granted)]
    }

    fn set_as_redisson(&mut self, permits: i64) -> Vec<i64> {
        let is_new = self.free.is_none();
        if is_new {
            self.free = Some(permits);
            self.publish();
        }
        vec![i64::from(is_new)]
    }

    fn apply(&mut self, step: CountStep) -> Vec<i64> {
        match step {
            CountStep::Run(request) => match REQUESTS[request] {
                Request::Take(permits) => self.take(request, permits),
                Request::Add(permits) => self.add(request, permits),
                Request::Drain => self.drain(request),
                Request::Set(permits) => self.set(request, permits),
            },
            CountStep::Undo(request) => self.undo(request),
            CountStep::Close(request) => self.close(request),
            CountStep::TakeAsRedisson(permits) => self.take_as_redisson(permits),
            CountStep::GiveAsRedisson(permits) => {
                let free = self.free.unwrap_or(0) + permits;
                self.free = Some(free);
                self.messages.push(free);
                vec![]
            }
            CountStep::DrainAsRedisson => {
                let free = self.free;
                self.free = free.map(|_| 0);
                vec![free.unwrap_or(0)]
            }
            CountStep::SetAsRedisson(permits) => self.set_as_redisson(permits),
            CountStep::Lose => {
                self.free = None;
                vec![]
            }
        }
    }
}

fn run_request(bare: &mut Bare, request: usize) -> Vec<i64> {
    let record = record_of(PERMITS, request);
    let keys = [PERMITS, &record];
    match REQUESTS[request] {
        Request::Take(permits) => {
            bare.reply("count_take", &keys, &[&permits.to_string(), LIFETIME])
        }
        Request::Add(permits) => {
            let args = [&*permits.to_string(), LIFETIME, SEMAPHORE_CHANNEL];
            assert!(bare.call("count_add", &keys, &args) <= 1);
            vec![]
        }
        Request::Drain => {
            let taken: String = bare.reply("count_drain", &keys, &[LIFETIME]);
            vec![taken.parse().expect("a number")]
        }
        Request::Set(permits) => {
            let args = [&*permits.to_string(), LIFETIME, SEMAPHORE_CHANNEL];
            vec![bare.call("count_set", &keys, &args)]
        }
    }
}

fn take_count_step(bare: &mut Bare, step: CountStep) -> Vec<i64> {
    match step {
        CountStep::Run(request) => run_request(bare, request),
        CountStep::Undo(request) => {
            let args = [LIFETIME, SEMAPHORE_CHANNEL];
            vec![bare.call("count_undo", &[PERMITS, &record_of(PERMITS, request)], &args)]
        }
        CountStep::Close(request) => {
            vec![bare.call("request_close", &[&record_of(PERMITS, request)], &[LIFETIME])]
        }
        CountStep::TakeAsRedisson(permits) => vec![i64::from(redisson::take(bare, permits))],
        CountStep::GiveAsRedisson(permits) => nothing(|| redisson::give(bare, permits)),
        CountStep::DrainAsRedisson => vec![redisson::drain(bare)],
        CountStep::SetAsRedisson(permits) => vec![i64::from(redisson::set_permits(bare, permits))],
        CountStep::Lose => nothing(|| bare.ask::<()>(&["DEL", PERMITS])),
    }
}

fn nothing(step: impl FnOnce()) -> Vec<i64> {
    step();
    vec![]
}

/// Returns the requests that have a record that expires.
fn recorded(bare: &mut Bare, name: &str, count: usize) -> Vec<usize> {
    let has_record = |request: &usize| bare.ask::<i64>(&["PTTL", &record_of(name, *request)]) > 0;
    (0..count).filter(has_record).collect()
}

#[test]
fn each_request_to_a_plain_semaphore_counts_once_or_not_at_all() {
    run(Stage::on(SEMAPHORE_CHANNEL), steps_of_counts(), |stage, steps| {
        let mut model = CountModel::default();
        for step in steps {
            let before = model.clone();
            let expected = model.apply(step);
            let reply = take_count_step(&mut stage.bare, step);
            prop_assert_eq!(reply, expected, "{:?} after {:?}", step, before);
            let free: Option<i64> = stage.bare.ask(&["GET", PERMITS]);
            prop_assert_eq!(free, model.free, "{:?} after {:?}", step, before);
            let messages = std::mem::take(&mut model.messages);
            prop_assert_eq!(stage.messages(), messages, "{:?} after {:?}", step, before);
            let records = recorded(&mut stage.bare, PERMITS, REQUESTS.len());
            let known: Vec<usize> = model.fates.keys().copied().collect();
            prop_assert_eq!(records, known, "{:?} after {:?}", step, before);
        }
        Ok(())
    });
}

// ---------------------------------------------------------------------------------
// The latch.

/// The requests to a latch: the first two set a count, the next five count down, the last two
/// delete.
const SETS: std::ops::Range<usize> = 0..2;
const DOWNS: std::ops::Range<usize> = 2..7;
const LATCH_REQUESTS: usize = 9;

#[derive(Clone, Copy, Debug)]
enum LatchStep {
    Run(usize),
    Close(usize),
    /// The request has its reply, and a new one takes its place.
    Renew(usize),
    SetAsRedisson(i64),
    DownAsRedisson,
    DeleteAsRedisson,
    LoseRound,
}

fn steps_of_latches() -> impl Strategy<Value = LatchStep> {
    prop_oneof![
        12 => (0..LATCH_REQUESTS).prop_map(LatchStep::Run),
        1 => (0..LATCH_REQUESTS).prop_map(LatchStep::Close),
        6 => (0..LATCH_REQUESTS).prop_map(LatchStep::Renew),
        1 => (0..4i64).prop_map(LatchStep::SetAsRedisson),
        2 => Just(LatchStep::DownAsRedisson),
        1 => Just(LatchStep::DeleteAsRedisson),
        1 => Just(LatchStep::LoseRound),
    ]
}

/// A latch that knows the outcome of each request. Rounds are numbered from 1.
#[derive(Clone, Debug, Default)]
struct LatchModel {
    count: Option<i64>,
    round: Option<usize>,
    rounds: usize,
    outcomes: BTreeMap<usize, i64>,
    messages: Vec<i64>,
}

impl LatchModel {
    fn set(&mut self, request: usize) -> i64 {
        if self.outcomes.contains_key(&request) {
            return 1;
        }
        if self.count.is_some_and(|count| count > 0) {
            return 0;
        }
        self.rounds += 1;
        (self.count, self.round) = (Some(request as i64 + 2), Some(self.rounds));
        self.outcomes.insert(request, 1);
        self.messages.push(1);
        1
    }

    fn count_down(&mut self, request: usize) -> i64 {
        if let Some(outcome) = self.outcomes.get(&request) {
            return *outcome;
        }
        let count = self.count.filter(|count| *count > 0);
        if let Some(count) = count {
            self.count = Some(count - 1);
        }
        if count == Some(1) {
            (self.count, self.round) = (None, None);
            self.messages.push(0);
        }
        self.outcomes.insert(request, i64::from(count.is_some()));
        i64::from(count.is_some())
    }

    fn delete(&mut self, request: usize) -> i64 {
        if let Some(outcome) = self.outcomes.get(&request) {
            return *outcome;
        }
        let existed = self.count.is_some();
        (self.count, self.round) = (None, None);
        self.outcomes.insert(request, i64::from(existed));
        self.messages.extend(existed.then_some(0));
        i64::from(existed)
    }

    fn close(&mut self, request: usize) -> i64 {
        let is_new = !self.outcomes.contains_key(&request);
        // The record of a closed request is that of a request without effect.
        self.outcomes.entry(request).or_insert(0);
        i64::from(is_new)
    }

    fn apply(&mut self, step: LatchStep) -> Option<i64> {
        match step {
            LatchStep::Run(request) if SETS.contains(&request) => Some(self.set(request)),
            LatchStep::Run(request) if DOWNS.contains(&request) => Some(self.count_down(request)),
            LatchStep::Run(request) => Some(self.delete(request)),
            LatchStep::Close(request) => Some(self.close(request)),
            LatchStep::Renew(request) => {
                self.outcomes.remove(&request);
                None
            }
            LatchStep::SetAsRedisson(count) => {
                let is_new = self.count.is_none();
                self.count.get_or_insert(count);
                self.messages.extend(is_new.then_some(1));
                Some(i64::from(is_new))
            }
            LatchStep::DownAsRedisson => {
                let count = self.count.unwrap_or(0) - 1;
                self.count = Some(count).filter(|count| *count > 0);
                self.messages.extend((count == 0).then_some(0));
                None
            }
            LatchStep::DeleteAsRedisson => {
                let existed = self.count.take().is_some();
                self.messages.extend(existed.then_some(1));
                Some(i64::from(existed))
            }
            LatchStep::LoseRound => {
                self.round = None;
                None
            }
        }
    }
}

/// Calls the scripts of a latch, and knows the texts of its rounds.
struct Latch<'a> {
    bare: &'a mut Bare,
    /// The texts of all rounds so far.
    rounds: Vec<String>,
}

impl Latch<'_> {
    fn look(&mut self) -> (i64, String) {
        self.bare.reply("latch_look", &[LATCH, ROUND], &[])
    }

    fn run(&mut self, request: usize) -> i64 {
        let record = record_of(LATCH, request);
        let keys = [LATCH, ROUND, &record];
        if SETS.contains(&request) {
            let count = (request + 2).to_string();
            let args = [&*count, LIFETIME, LATCH_CHANNEL, LIFETIME];
            let reply = self.bare.call("latch_set", &keys, &args);
            let (_, round) = self.look();
            if !round.is_empty() && self.rounds.last() != Some(&round) {
                self.rounds.push(round);
            }
            return reply;
        }
        if DOWNS.contains(&request) {
            let args = [LIFETIME, LATCH_CHANNEL, LIFETIME];
            return self.bare.call("latch_count_down", &keys, &args);
        }
        self.bare.call("latch_delete", &keys, &[LIFETIME, LATCH_CHANNEL])
    }

    fn take_step(&mut self, step: LatchStep) -> Option<i64> {
        match step {
            LatchStep::Run(request) => Some(self.run(request)),
            LatchStep::Close(request) => {
                let record = record_of(LATCH, request);
                Some(self.bare.call("request_close", &[&record], &[LIFETIME]))
            }
            LatchStep::Renew(request) => {
                none(|| self.bare.ask::<()>(&["DEL", &record_of(LATCH, request)]))
            }
            LatchStep::SetAsRedisson(count) => {
                Some(i64::from(redisson::set_count(self.bare, count)))
            }
            LatchStep::DownAsRedisson => none(|| redisson::count_down(self.bare)),
            LatchStep::DeleteAsRedisson => Some(i64::from(redisson::delete_latch(self.bare))),
            LatchStep::LoseRound => none(|| self.bare.ask::<()>(&["DEL", ROUND])),
        }
    }
}

fn none(step: impl FnOnce()) -> Option<i64> {
    step();
    None
}

#[test]
fn each_request_to_a_latch_counts_once() {
    run(Stage::on(LATCH_CHANNEL), steps_of_latches(), |stage, steps| {
        let mut model = LatchModel::default();
        let mut rounds = Vec::new();
        for step in steps {
            let before = model.clone();
            let expected = model.apply(step);
            let mut latch = Latch { bare: &mut stage.bare, rounds };
            let reply = latch.take_step(step);
            let (count, round) = latch.look();
            rounds = latch.rounds;
            prop_assert_eq!(reply, expected, "{:?} after {:?}", step, before);
            prop_assert_eq!(count, model.count.unwrap_or(0), "{:?} after {:?}", step, before);
            let known = model.round.map_or(String::new(), |round| rounds[round - 1].clone());
            prop_assert_eq!(round, known, "{:?} after {:?}", step, before);
            let messages = std::mem::take(&mut model.messages);
            prop_assert_eq!(stage.messages(), messages, "{:?} after {:?}", step, before);
            let records = recorded(&mut stage.bare, LATCH, LATCH_REQUESTS);
            let known: Vec<usize> = model.outcomes.keys().copied().collect();
            prop_assert_eq!(records, known, "{:?} after {:?}", step, before);
        }
        Ok(())
    });
}
