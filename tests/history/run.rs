//! One run from its start to its report.

use super::checks::{Bounds, Disturbance, Findings, History, Promise, Violation};
use super::crew::Crew;
use super::fault::Fault;
use super::ledger::{self, Account};
use super::nemesis::{Nemesis, STEP};
use super::plan::Plan;
use super::site::Site;
use super::worker::{Orders, sweep};
use super::{Nanos, millis};
use crate::harness::Server;
use crate::harness::wait::holds_within;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// What a busy machine may add to a bound: its two processors serve some thirty processes.
const SLACK: Nanos = millis(1500);

/// What may stay in Redis: the counters of fencing tokens.
const COUNTERS: &str = "redisson_lock_token:";

/// Fair queues, in which the dead stand until others come.
const QUEUES: &str = "redisson_lock_";

/// How soon all that is idle is gone.
const IDLE: Duration = Duration::from_secs(8);

const MILLI: Nanos = millis(1);

/// How many violations of a run are printed.
const PRINTED: usize = 10;

/// What came of a run.
pub struct Report {
    plan: Plan,
    pub counts: Counts,
    kinds_of_faults: BTreeMap<String, usize>,
    accounts: Vec<Account>,
    longest_wait: (Nanos, Nanos),
    disturbances: Vec<Disturbance>,
    pub violations: Vec<Violation>,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub attempts: usize,
    pub holds: usize,
    pub hand_offs: usize,
    pub losses: usize,
    pub faults: usize,
    pub violations: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.attempts += other.attempts;
        self.holds += other.holds;
        self.hand_offs += other.hand_offs;
        self.losses += other.losses;
        self.faults += other.faults;
        self.violations += other.violations;
    }
}

/// Runs a plan.
pub fn run(plan: &Plan) -> Report {
    let (site, store) = (Site::start(plan.layout), Server::start());
    let mut crew = Crew::start(plan, &site, store.url());
    let mut nemesis = Nemesis::new(plan, &site);
    let end = Instant::now() + plan.span;
    while Instant::now() < end || !nemesis.has_dealt_all() {
        nemesis.strike(&mut crew);
    }
    nemesis.rest();
    crew.rest();
    nemesis.look_for_changes(Fault::Quiet);
    let mut left = held_by_nobody(plan, &site);
    let mut history =
        History { disturbances: nemesis.disturbances, bounds: bounds(plan), ..History::default() };
    crew.finish().for_each(|(worker, records)| history.add(worker, records));
    left.append(&mut crew.leftovers);
    if left.is_empty() {
        left = leftovers(plan, &site);
    }
    Report::of(plan, &history, ledger::accounts(&store), &left)
}

fn bounds(plan: &Plan) -> Bounds {
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).expect("a short span");
    let Plan { work, .. } = plan;
    Bounds {
        poll: nanos(plan.told_within.unwrap_or(work.poll_interval)),
        fair_waiter_timeout: nanos(work.fair_waiter_timeout()),
        response: nanos(work.response_timeout),
        slack: SLACK,
        step: if plan.faults.contains(&Fault::MoveClock) { millis(STEP) } else { 0 },
    }
}

fn lost_updates(plan: &Plan, accounts: &[Account]) -> Vec<Violation> {
    let fenced = accounts.iter().filter(|account| plan.work.fenced && account.lost() > 0);
    fenced.map(|account| Promise::Updates.broken(format!("{account:?}"))).collect()
}

/// What is left in Redis when the workers do nothing any more, but still are there: subscriptions
/// that nobody needs, and locks that nobody holds. (Those of the killed last for a lease.)
fn held_by_nobody(plan: &Plan, site: &Site) -> Vec<String> {
    let work = &plan.work;
    let longest = work.leases.into_iter().max().unwrap_or_default();
    let lasts = if plan.faults.contains(&Fault::KillWorker) { longest } else { Duration::ZERO };
    let is_lock = |key: &String| !key.starts_with(COUNTERS) && !key.starts_with(QUEUES);
    let mut left = Vec::new();
    holds_within(IDLE + lasts, || {
        let masters = site.masters();
        let keys = masters.iter().flat_map(|master| master.keys()).filter(is_lock);
        let channels = masters.iter().flat_map(|master| channels(master));
        // On which releases are told. Listeners keep theirs for half a poll interval.
        let told = |name: &String| name.starts_with("redisson_") && work.poll_interval < IDLE;
        let channels = channels.filter(told);
        left = keys.chain(channels).map(|what| format!("idle, but there is {what}")).collect();
        left.is_empty()
    });
    left
}

/// The channels to which somebody has subscribed, sharded or not.
fn channels(server: &Server) -> impl Iterator<Item = String> {
    let sharded: Option<Vec<String>> = server.try_ask(&["PUBSUB", "SHARDCHANNELS"]);
    server.channels().into_iter().chain(sharded.unwrap_or_default())
}

/// What is left in Redis when all workers are gone and every lock was had once more.
fn leftovers(plan: &Plan, site: &Site) -> Vec<String> {
    let mut orders = Orders::new(&plan.work, 0, plan.seed, String::new());
    site.show(&mut orders);
    let mut left = sweep(&orders);
    let masters = site.masters();
    let mut stay = Vec::new();
    holds_within(Duration::from_secs(20), || {
        stay = masters.iter().flat_map(|master| what_stays(master)).collect();
        stay.is_empty()
    });
    left.append(&mut stay);
    left
}

fn what_stays(server: &Server) -> Vec<String> {
    let keys = server.keys().into_iter().filter(|key| !key.starts_with(COUNTERS));
    let keys = keys.map(|key| format!("the key {key}"));
    let channels = channels(server).filter(|name| !name.starts_with("__"));
    let channels = channels.map(|channel| format!("the channel {channel}"));
    let ours = server.clients().into_iter().filter(|client| client.name.starts_with("leasehold:"));
    keys.chain(channels).chain(ours.map(|client| format!("the client {client:?}"))).collect()
}

impl Report {
    fn of(plan: &Plan, history: &History, accounts: Vec<Account>, left: &[String]) -> Report {
        let Findings { mut violations, longest_wait } = history.findings();
        violations.extend(lost_updates(plan, &accounts));
        violations.extend(left.iter().map(|text| Promise::Leftovers.broken(text)));
        let mut kinds_of_faults = BTreeMap::new();
        for disturbance in &history.disturbances {
            *kinds_of_faults.entry(disturbance.name.clone()).or_default() += 1;
        }
        let quiet = kinds_of_faults.get("Quiet").copied().unwrap_or(0);
        let counts = Counts {
            attempts: history.attempts.len(),
            holds: history.holds(),
            hand_offs: history.hand_offs(),
            losses: history.losses(),
            faults: history.disturbances.len() - quiet,
            violations: violations.len(),
        };
        let (plan, disturbances) = (plan.clone(), history.disturbances.clone());
        let longest_wait = (longest_wait, history.bounds.wait());
        Report { plan, counts, kinds_of_faults, accounts, longest_wait, disturbances, violations }
    }

    /// Fails unless nothing was violated, and enough happened for that to mean something.
    #[track_caller]
    pub fn assert_well(&self) {
        self.assert_nothing_broken();
        let seconds = usize::try_from(self.plan.span.as_secs()).expect("a short span");
        assert!(self.counts.hand_offs >= seconds, "too little happened: the run is void\n{self}");
    }

    /// Fails if anything was violated.
    #[track_caller]
    pub fn assert_nothing_broken(&self) {
        println!("{self}");
        assert!(self.violations.is_empty(), "{self}");
    }

    /// How many updates of the store were lost, of how many.
    pub fn lost_updates(&self) -> (u64, u64) {
        let sum = |count: fn(&Account) -> u64| self.accounts.iter().map(count).sum();
        (sum(Account::lost), sum(|account| account.writes))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { attempts, holds, hand_offs, losses, faults, violations } = self;
        write!(f, "{attempts} attempts, {holds} holds, {hand_offs} hand-offs, {losses} lost, ")?;
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
        writeln!(f, "faults: {:?}", self.kinds_of_faults)?;
        for violation in self.violations.iter().take(PRINTED) {
            writeln!(f, "  {violation}")?;
        }
        for disturbance in self.disturbances.iter().filter(|_| !self.violations.is_empty()) {
            writeln!(f, "  {disturbance}")?;
        }
        Ok(())
    }
}
