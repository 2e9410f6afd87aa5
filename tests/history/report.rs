//! The report of a run: what has happened, and the promises that were broken.

use crate::checks::{Disturbance, Findings, History, Promise, STALL, Violation};
use crate::plan::Plan;
use crate::record::millis;
use crate::system::Nanos;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

const MILLI: Nanos = millis(1);

/// The number of violations of a run that are printed.
const PRINTED: usize = 10;

/// The final state of an account.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub name: String,
    /// The number of accepted writes.
    pub writes: u64,
    /// The value: each write adds one to the value that was read.
    pub value: u64,
}

impl Account {
    /// Returns the number of lost updates: accepted writes that another write replaced unread.
    pub fn lost(&self) -> u64 {
        self.writes - self.value.min(self.writes)
    }
}

/// The result of a run.
pub struct Report {
    plan: Plan,
    pub counts: Counts,
    kinds_of_faults: BTreeMap<String, usize>,
    accounts: Vec<Account>,
    /// The longest wait beside a free lock, and its bound.
    longest_wait: (Nanos, Nanos),
    /// The longest stall of the machine that a worker noticed or a server felt.
    longest_stall: Nanos,
    disturbances: Vec<Disturbance>,
    pub violations: Vec<Violation>,
}

/// The number of events of each sort.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub attempts: usize,
    pub holds: usize,
    pub hand_offs: usize,
    pub rounds: usize,
    pub sightings: usize,
    pub losses: usize,
    pub faults: usize,
    pub violations: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.attempts += other.attempts;
        self.holds += other.holds;
        self.hand_offs += other.hand_offs;
        self.rounds += other.rounds;
        self.sightings += other.sightings;
        self.losses += other.losses;
        self.faults += other.faults;
        self.violations += other.violations;
    }
}

impl Report {
    /// Runs the checks of a history.
    ///
    /// `left` has a text for everything that was left behind.
    pub fn of(plan: &Plan, history: &History, accounts: Vec<Account>, left: &[String]) -> Report {
        let Findings { mut violations, longest_wait } = history.findings();
        if plan.work.fenced {
            // Two holds with the same token, which the check of tokens judges, may lose an update.
            for account in accounts.iter().filter(|account| account.lost() > 0) {
                if account.lost() > history.repeated_tokens(&account.name) as u64 {
                    violations.push(Promise::Updates.violation(format!("{account:?}")));
                }
            }
        }
        violations.extend(left.iter().map(|text| Promise::Leftovers.violation(text)));
        let mut kinds_of_faults = BTreeMap::new();
        for disturbance in &history.disturbances {
            *kinds_of_faults.entry(disturbance.name.clone()).or_default() += 1;
        }
        let of = |name| kinds_of_faults.get(name).copied().unwrap_or(0);
        let (quiet, stalls) = (of("Quiet"), of(STALL));
        let counts = Counts {
            attempts: history.attempts.len(),
            holds: history.holds(),
            hand_offs: history.hand_offs(),
            rounds: history.rounds(),
            sightings: history.sightings(),
            losses: history.losses(),
            faults: history.disturbances.len() - quiet - stalls,
            violations: violations.len(),
        };
        Report {
            plan: plan.clone(),
            counts,
            kinds_of_faults,
            accounts,
            longest_wait: (longest_wait, history.bounds.wait()),
            longest_stall: history.longest_stall(0, Nanos::MAX),
            disturbances: history.disturbances.clone(),
            violations,
        }
    }

    /// Fails if a promise was broken, or if too little happened for a meaningful result.
    #[track_caller]
    pub fn assert_kept_and_busy(&self) {
        println!("{self}");
        assert!(self.violations.is_empty(), "{self}");
        let seconds = usize::try_from(self.plan.span.as_secs()).expect("a short span");
        assert!(self.counts.hand_offs >= seconds, "too few hand-offs: the run is void\n{self}");
    }

    /// Returns the number of lost updates, and of all updates.
    pub fn lost_updates(&self) -> (u64, u64) {
        let sum = |count: fn(&Account) -> u64| self.accounts.iter().map(count).sum();
        (sum(Account::lost), sum(|account| account.writes))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { attempts, holds, hand_offs, rounds, sightings, .. } = self;
        let Counts { losses, faults, violations, .. } = self;
        write!(f, "{attempts} attempts, {holds} holds, {hand_offs} hand-offs, ")?;
        write!(f, "{rounds} rounds, {sightings} sightings, {losses} lost, ")?;
        write!(f, "{faults} faults, {violations} violations")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { plan, counts, .. } = self;
        let (lost, writes) = self.lost_updates();
        let Plan { name, layout, seed, span, .. } = plan;
        writeln!(f, "{name}, {layout:?}, seed {seed}, {} s: {counts}", span.as_secs())?;
        let (waited, bound) = self.longest_wait;
        write!(f, "  {lost} of {writes} writes lost; ")?;
        write!(f, "{} of {} ms waited beside a free lock; ", waited / MILLI, bound / MILLI)?;
        write!(f, "stalls of the machine up to {} ms; ", self.longest_stall / MILLI)?;
        writeln!(f, "faults: {:?}", self.kinds_of_faults)?;
        for violation in self.violations.iter().take(PRINTED) {
            writeln!(f, "  {violation}")?;
        }
        if !self.violations.is_empty() {
            for disturbance in &self.disturbances {
                writeln!(f, "  {disturbance}")?;
            }
        }
        Ok(())
    }
}
