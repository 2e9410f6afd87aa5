//! The order of the faults of a run, their lengths and their records, as they follow from the seed.

use crate::checks::{ALL_SLOTS, Affected, Disturbance, Effect, Slots};
use crate::fault::{Fault, STEP};
use crate::plan::{Layout, Plan};
use crate::record::millis;
use crate::slots::slot;
use crate::system::{Nanos, thread};
use std::ops::Range;
use std::time::Duration;

/// How long a fault may be felt after its end: a response time-out for a request that is in flight,
/// and as long again for the next connection.
const RECOVERY: Nanos = millis(2000);

/// The number of cuts during a fault that cuts connections.
pub const CUTS: usize = 12;

/// The longest delay of replies while connections are cut.
pub const SLOW: Duration = Duration::from_millis(100);

/// Percentage of the faults of servers and connections beside which there is one of a worker.
const ACCOMPANIED: u8 = 40;

/// The faults of a run, one after the other.
pub struct Schedule<'a> {
    pub plan: &'a Plan,
    pub rng: fastrand::Rng,
    /// The faults that come before any fault is repeated.
    pending: Vec<Fault>,
    /// How often all faults were shuffled into `pending`.
    rounds: usize,
    pub disturbances: Vec<Disturbance>,
}

/// The affected workers and slots of a fault, and its effect.
pub struct Impact {
    pub affected: Affected,
    pub effect: Effect,
    pub slots: Vec<Slots>,
}

impl Impact {
    pub fn on_all_slots(affected: Affected, effect: Effect) -> Impact {
        Impact { affected, effect, slots: vec![ALL_SLOTS] }
    }

    /// The loss of a lock.
    pub fn on_lock(lock: &str) -> Impact {
        let slot = slot(lock);
        let (affected, effect) = (Affected::CallersOfSlots, Effect::LosesHolds);
        Impact { affected, effect, slots: vec![slot..=slot] }
    }
}

impl<'a> Schedule<'a> {
    pub fn new(plan: &'a Plan) -> Schedule<'a> {
        let rng = fastrand::Rng::with_seed(plan.seed);
        Schedule { plan, rng, pending: Vec::new(), rounds: 0, disturbances: Vec::new() }
    }

    /// Whether every fault was injected once.
    pub fn has_injected_all(&self) -> bool {
        self.rounds > 0 && self.pending.is_empty()
    }

    /// Returns the next fault, and often the fault of a worker beside it.
    pub fn next(&mut self) -> (Fault, Option<Fault>) {
        if self.pending.is_empty() {
            self.pending = self.plan.faults.clone();
            self.rng.shuffle(&mut self.pending);
            self.rounds += 1;
        }
        let fault = self.pending.pop().expect("a plan has faults");
        if fault.is_of_clients() || self.rng.u8(0..100) >= ACCOMPANIED {
            return (fault, None);
        }
        let beside = self.rng.choice(Fault::CLIENTS).expect("there are some");
        (fault, self.plan.faults.contains(&beside).then_some(beside))
    }

    /// Returns the fault that begins during these, if there is one.
    #[allow(dead_code, reason = "only in the simulation do faults overlap")]
    pub fn during(&mut self, begun: &[Fault]) -> Option<Fault> {
        if self.plan.overlapping == 0 || self.rng.u8(0..100) >= self.plan.overlapping {
            return None;
        }
        let may_begin = |it: &&Fault| begun.iter().all(|other| it.may_begin_during(*other));
        let others: Vec<_> = self.plan.faults.iter().filter(may_begin).copied().collect();
        self.rng.choice(others)
    }

    /// Returns the lock of a fault of single locks: one that is always in use.
    pub fn lock(&mut self) -> String {
        let kinds = self.plan.work.kinds.iter().filter(|kind| kind.is_one_key());
        let kinds: Vec<_> = kinds.collect();
        self.rng.choice(kinds).expect("the plan has such locks").lock(0)
    }

    /// Returns the step of a server's clock, in milliseconds.
    pub fn step(&mut self) -> i64 {
        let step = i64::try_from(STEP).expect("a few seconds");
        if self.rng.bool() { step } else { -step }
    }

    /// Returns the effect of a fault of independent servers.
    pub fn effect_on_servers(&self, fault: Fault) -> Effect {
        match fault {
            Fault::EmptyServer if self.plan.layout == Layout::One => Effect::LosesAllHolds,
            Fault::EmptyServer | Fault::MoveClock => Effect::LosesHolds,
            _ => Effect::Delays,
        }
    }

    /// Returns the impact of a fault of a replica or a sentinel.
    pub fn impact_of_bystander(&self, fault: Fault) -> Impact {
        let is_replica = matches!(fault, Fault::StopReplica | Fault::KillReplica);
        let is_awaited = is_replica && self.plan.work.min_replicas > 0;
        let affected = if is_awaited { Affected::All } else { Affected::Nobody };
        Impact::on_all_slots(affected, Effect::Delays)
    }

    /// Blocks for a random time.
    pub fn pause(&mut self, millis: Range<u64>) {
        thread::sleep(Duration::from_millis(self.rng.u64(millis)));
    }

    /// Blocks for a time without a fault.
    pub fn rest(&mut self) {
        self.pause(self.plan.quiet.clone());
    }

    /// Blocks for the length of a fault.
    pub fn wait_out(&mut self) {
        self.pause(self.plan.lasting.clone());
    }

    /// Blocks until another fault may come after this one, apart from a rest.
    pub fn settle(&mut self, fault: Fault) {
        if matches!(fault, Fault::EmptyServer | Fault::MoveClock) {
            // Tokens may be ahead of the clock for this long. A lost counter would repeat them, and
            // so would a clock that steps back after the loss.
            self.pause(STEP..STEP + 1);
        }
    }

    /// Records a fault that lasted between two moments.
    pub fn record(&mut self, name: String, [from, until]: [Nanos; 2], impact: Impact) {
        let (felt_until, Impact { affected, effect, slots }) = (until + RECOVERY, impact);
        let disturbance = Disturbance { name, from, until, felt_until, affected, effect, slots };
        self.disturbances.push(disturbance);
    }
}
