//! One run from its start to its report.

use super::checks::{Bounds, Disturbance, Findings, History, Promise, STALL, Stall, Violation};
use super::deployment::Deployment;
use super::fault::Fault;
use super::nemesis::{Nemesis, STEP};
use super::plan::Plan;
use super::stalls::{self, Probe};
use super::store::{self, Account};
use super::worker::{Arguments, CAPACITY, Kind, WEIGHT_STEP, acquire_all_once};
use super::workers::Workers;
use super::{Nanos, millis};
use crate::harness::Server;
use crate::harness::wait::holds_within;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// The delay that a busy machine may add: two processors serve about thirty processes.
const SLACK: Nanos = millis(1500);

/// The prefix of the counters of fencing tokens, which may stay in Redis.
const COUNTERS: &str = "redisson_lock_token:";

/// The prefix of fair queues. Killed waiters stay there until another caller comes.
const QUEUES: &str = "redisson_lock_";

/// The prefix of the queues of queue locks. Killed waiters stay there until another caller comes.
const WAITERS: &str = "leasehold_queue:";

/// The prefix of the clients that wait for queue locks, which stay for as long.
const CLIENTS: &str = "leasehold_alive:";

/// The prefix of the records of leaders. That of a killed leader stays for two leases.
const LEADERS: &str = "leasehold_leader:";

/// The prefixes of the keys of semaphores. Expired permits of killed workers stay there until
/// another caller comes.
const PERMITS: &str = "semaphore-";
const EXPIRIES: &str = "{semaphore-";

/// The prefix of latches, which stay closed if no thread counts down, and that of their rounds.
const LATCHES: &str = "latch-";
const ROUNDS: &str = "leasehold_round:";

/// The prefix of request records, which stay for ten minutes if a request was repeated.
const REQUESTS: &str = "leasehold_request:";

/// The longest pause of `run` between two campaigns that fail.
const PAUSE: Nanos = millis(5000);

/// The time within which idle workers leave no lock and no subscription.
const IDLE: Duration = Duration::from_secs(8);

/// The time within which idle workers complete requests in the background, which do not reconnect
/// at once.
const COMPLETED: Duration = Duration::from_secs(25);

const MILLI: Nanos = millis(1);

/// The number of violations of a run that are printed.
const PRINTED: usize = 10;

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

/// Runs a plan and checks its history.
pub fn run(plan: &Plan) -> Report {
    let (deployment, store) = (Deployment::start(plan.layout), Server::start());
    let sockets = deployment.servers().iter().map(|server| server.path("redis.sock"));
    let probe = Probe::start(sockets);
    let mut workers = Workers::start(plan, &deployment, store.url());
    let mut nemesis = Nemesis::new(plan, &deployment);
    let end = Instant::now() + plan.span;
    while Instant::now() < end || !nemesis.has_injected_all() {
        nemesis.inject(&mut workers);
    }
    nemesis.rest();
    workers.stop_work();
    nemesis.record_unexplained_change(Fault::Quiet);
    let mut left = left_by_idle_workers(plan, &deployment);
    let (disturbances, counts) = (nemesis.disturbances, counts(&deployment));
    let (bounds, mut stalls) = (bounds(plan), probe.finish());
    stalls.extend(deployment.members.waits().into_iter().map(stalls::between));
    // A server that a fault stops is no stall of the machine.
    let stops = |it: &Disturbance, stall: &Stall| {
        it.name.starts_with("Stop") && it.from <= stall.to && stall.from <= it.until
    };
    stalls.retain(|stall| !disturbances.iter().any(|it| stops(it, stall)));
    let mut history = History { disturbances, stalls, bounds, counts, ..History::default() };
    workers.finish().for_each(|(worker, records)| history.add(worker, records));
    history.add_long_stalls();
    left.append(&mut workers.leftovers);
    if left.is_empty() {
        left = left_by_ended_workers(plan, &deployment);
    }
    Report::of(plan, &history, store::accounts(&store), &left)
}

fn bounds(plan: &Plan) -> Bounds {
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).expect("a short span");
    let Plan { work, .. } = plan;
    Bounds {
        poll: nanos(plan.woken_within.unwrap_or(work.poll_interval)),
        fair_waiter_timeout: nanos(work.fair_waiter_timeout()),
        response: nanos(work.response_timeout),
        slack: SLACK,
        step: if plan.faults.contains(&Fault::MoveClock) { millis(STEP) } else { 0 },
        grant_lease: nanos(work.grant_lease()),
        heartbeat: nanos(work.poll_interval),
        weight_step: nanos(WEIGHT_STEP),
        pause: PAUSE,
    }
}

fn lost_updates(plan: &Plan, accounts: &[Account]) -> Vec<Violation> {
    let fenced = accounts.iter().filter(|account| plan.work.fenced && account.lost() > 0);
    fenced.map(|account| Promise::Updates.violation(format!("{account:?}"))).collect()
}

/// Returns the locks and subscriptions in Redis when the workers are idle but still run.
///
/// The locks of killed workers last for a lease.
fn left_by_idle_workers(plan: &Plan, deployment: &Deployment) -> Vec<String> {
    let work = &plan.work;
    let longest = work.leases.into_iter().max().unwrap_or_default();
    let lease = if plan.faults.contains(&Fault::KillWorker) { longest } else { Duration::ZERO };
    // After the last hold has expired, nobody deletes the keys of the waiting clients.
    let expires = plan.faults != [Fault::Quiet] || work.kept_to_the_end > 0 || work.limited > 0;
    let some =
        [COUNTERS, QUEUES, LATCHES, ROUNDS, REQUESTS, WAITERS, CLIENTS, LEADERS, PERMITS, EXPIRIES];
    let kept = if expires { &some[..] } else { &some[..4] };
    let is_kept = |key: &String| kept.iter().any(|prefix| key.starts_with(prefix));
    let mut left = Vec::new();
    holds_within(IDLE + lease, || {
        let masters = deployment.masters();
        let keys = masters.iter().flat_map(|master| used_keys(master)).filter(|key| !is_kept(key));
        let channels = masters.iter().flat_map(|master| channels(master));
        // Listeners keep a subscription to the channel of a lock for half a poll interval.
        let is_left = |name: &String| name.starts_with("redisson_") && work.poll_interval < IDLE;
        let channels = channels.filter(is_left);
        left = keys.chain(channels).map(|what| format!("idle, but there is {what}")).collect();
        left.is_empty()
    });
    left
}

/// Returns the keys of a server but those of semaphores without permits in use.
fn used_keys(server: &Server) -> impl Iterator<Item = String> {
    let counted = format!("{}-", Kind::Count);
    let is_free = move |key: &String| {
        let all = CAPACITY.to_string();
        let is_full = || server.try_ask::<String>(&["GET", key]) == Some(all);
        // The check of the history knows how many permits of a plain semaphore have to be free.
        key.starts_with(&counted) || (key.starts_with(PERMITS) && is_full())
    };
    server.keys().into_iter().filter(move |key| !is_free(key))
}

/// Returns the count of each plain semaphore and latch.
///
/// Waits a while until all permits are free: idle workers complete requests without an answer in
/// the background. Killed workers may keep permits.
fn counts(deployment: &Deployment) -> HashMap<String, i64> {
    let mut counts = HashMap::new();
    holds_within(COMPLETED, || {
        counts = present_counts(deployment);
        let mut free = counts.iter().filter(|(name, _)| !name.starts_with(LATCHES));
        free.all(|(_, free)| *free == i64::from(CAPACITY))
    });
    counts
}

fn present_counts(deployment: &Deployment) -> HashMap<String, i64> {
    let prefix = format!("{}-", Kind::Count);
    let masters = deployment.masters();
    let of_server = |server: &&Server| {
        let is_count = |key: &String| key.starts_with(&prefix) || key.starts_with(LATCHES);
        let keys = server.keys().into_iter().filter(is_count);
        let read = |key: String| Some((server.try_ask::<i64>(&["GET", &key])?, key));
        keys.filter_map(read).map(|(free, key)| (key, free)).collect::<Vec<_>>()
    };
    masters.iter().flat_map(of_server).collect()
}

/// Returns the channels with subscribers, sharded channels included.
fn channels(server: &Server) -> impl Iterator<Item = String> {
    let sharded: Option<Vec<String>> = server.try_ask(&["PUBSUB", "SHARDCHANNELS"]);
    server.channels().into_iter().chain(sharded.unwrap_or_default())
}

/// Acquires every lock once after all workers have ended, and returns the leftovers in Redis.
fn left_by_ended_workers(plan: &Plan, deployment: &Deployment) -> Vec<String> {
    let mut arguments = Arguments::new(&plan.work, 0, plan.seed, String::new());
    deployment.add_addresses(&mut arguments);
    let masters = deployment.masters();
    let queued = masters.iter().flat_map(|master| queued_locks(master));
    let queued = queued.map(|name| (Kind::Queued, name));
    let expired = masters.iter().flat_map(|master| semaphores_in_use(master));
    let expired = expired.map(|name| (Kind::Semaphore, name));
    let mut left = acquire_all_once(&arguments, queued.chain(expired).collect());
    let mut on_servers = Vec::new();
    holds_within(Duration::from_secs(20), || {
        on_servers = masters.iter().flat_map(|master| left_on(master)).collect();
        on_servers.is_empty()
    });
    left.append(&mut on_servers);
    left
}

/// Returns the names of the queue locks with waiters, or with clients that have waited.
fn queued_locks(server: &Server) -> impl Iterator<Item = String> {
    let name = |key: String| {
        let name = key.strip_prefix(WAITERS).or(key.strip_prefix(CLIENTS))?;
        Some(name.trim_matches(['{', '}']).to_owned())
    };
    server.keys().into_iter().filter_map(name)
}

/// Returns the names of the semaphores with permits in use, expired ones included.
fn semaphores_in_use(server: &Server) -> impl Iterator<Item = String> {
    let name = |key: String| Some(key.strip_prefix('{')?.strip_suffix("}:timeout")?.to_owned());
    let is_of_run = |key: &String| key.starts_with(EXPIRIES);
    server.keys().into_iter().filter(is_of_run).filter_map(name)
}

fn left_on(server: &Server) -> Vec<String> {
    let kept = [COUNTERS, REQUESTS, LATCHES, ROUNDS];
    let keys = used_keys(server).filter(|key| !kept.iter().any(|it| key.starts_with(it)));
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
        let (plan, disturbances) = (plan.clone(), history.disturbances.clone());
        let longest_wait = (longest_wait, history.bounds.wait());
        let longest_stall = history.longest_stall(0, Nanos::MAX);
        Report {
            plan,
            counts,
            kinds_of_faults,
            accounts,
            longest_wait,
            longest_stall,
            disturbances,
            violations,
        }
    }

    /// Fails if a promise was broken, or if too little happened for a meaningful result.
    #[track_caller]
    pub fn assert_kept_and_busy(&self) {
        self.assert_kept();
        let seconds = usize::try_from(self.plan.span.as_secs()).expect("a short span");
        assert!(self.counts.hand_offs >= seconds, "too few hand-offs: the run is void\n{self}");
    }

    /// Fails if a promise was broken, or if too few rounds of latches have begun.
    #[track_caller]
    pub fn assert_kept_with_rounds(&self) {
        self.assert_kept();
        let seconds = usize::try_from(self.plan.span.as_secs()).expect("a short span");
        assert!(self.counts.rounds >= seconds, "too few rounds: the run is void\n{self}");
    }

    /// Fails if a promise was broken.
    #[track_caller]
    pub fn assert_kept(&self) {
        println!("{self}");
        assert!(self.violations.is_empty(), "{self}");
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
        for disturbance in self.disturbances.iter().filter(|_| !self.violations.is_empty()) {
            writeln!(f, "  {disturbance}")?;
        }
        Ok(())
    }
}
