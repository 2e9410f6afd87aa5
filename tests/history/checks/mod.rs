//! The checks of a history against the promises of the library.
//!
//! The checks are pure: they turn a history into violations. The tests of each check give it
//! histories with and without violations.

mod answers;
mod capacities;
mod capacity;
mod claims;
mod counts;
mod latches;
mod leaders;
mod limits;
mod order;
mod overlaps;
mod questions;
mod results;
mod tokens;
mod waits;

use crate::fault::{Fault, STEP};
use crate::plan::{Plan, WEIGHT_STEP};
use crate::record::{End, Event, Record, Request, Seen, Verb, millis};
use crate::slots::slot;
use crate::system::Nanos;
use capacities::Capacities;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest pause of `run` between two campaigns that fail.
const PAUSE: Nanos = millis(5000);

/// A leader of an election, or none, as a reader or an observer sees it; or a result of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sighting {
    pub at: Nanos,
    pub leader: Option<Seen>,
}

/// Everything that is known of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub workers: Vec<Worker>,
    pub attempts: Vec<Attempt>,
    pub disturbances: Vec<Disturbance>,
    /// The stalls of the machine that servers felt.
    pub stalls: Vec<Stall>,
    pub bounds: Bounds,
    /// The count of each plain semaphore and latch after the run, if it has a key.
    pub counts: BTreeMap<String, i64>,
    /// The times in which each watched lock was free on its servers while somebody waited for it.
    pub free: BTreeMap<String, Vec<(Nanos, Nanos)>>,
}

/// A worker process. The process that replaces a killed one is another worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The length of its renewed leases.
    pub lease: Nanos,
    pub killed: Option<Nanos>,
    /// The machine whose processes see its end, if its holds end with it.
    pub mortal_at: Option<u32>,
    /// The longest linger time of its requests.
    pub linger: Nanos,
    /// The stalls of the machine that the worker noticed.
    pub stalls: Vec<Stall>,
}

/// A time in which a process did not run, or waited for its disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    pub from: Nanos,
    pub to: Nanos,
}

/// One call for a lock, and its outcome.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub worker: usize,
    pub request: Request,
    pub asked: Nanos,
    pub outcome: Outcome,
    /// The answers to a question about the leader or the result, or the messages to an observer.
    pub seen: Vec<Sighting>,
    /// The kind and the text of the error of a call that failed; empty for others.
    pub error: String,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The process was killed before the call returned, or the call still waits.
    Unknown,
    Refused(Nanos),
    Failed(Nanos),
    /// A call about a latch or a result succeeded, a question about a leader was answered, an
    /// observation has ended, or the work is done.
    Done(Nanos),
    Held(Hold),
}

/// A hold, as observed by its holder.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub token: u64,
    pub granted: Nanos,
    /// The last moment from which the lease may count: the grant, or an extension.
    pub leased: Nanos,
    /// The last check that found the hold valid.
    pub valid_to: Nanos,
    /// The check that found the hold over.
    pub lost: Option<Nanos>,
    pub ended: Option<(Nanos, End)>,
}

/// An attempt that was granted, with its hold.
type Held<'a> = (&'a Attempt, &'a Hold);

/// A time in which a fault affects workers.
#[derive(Clone, Debug)]
pub struct Disturbance {
    pub name: String,
    pub from: Nanos,
    /// The end of the fault.
    pub until: Nanos,
    /// The moment from which the affected workers must work as usual again.
    pub felt_until: Nanos,
    pub affected: Affected,
    pub effect: Effect,
    /// The slots in which the fault has this effect: all of them, except in a cluster.
    pub slots: Vec<Slots>,
}

/// Consecutive slots of a cluster.
pub type Slots = RangeInclusive<u16>;

/// The names of the disturbances by which a replica may replace a master.
const REPLACED: [&str; 5] =
    ["FailOver", "KillMaster", "StopMaster", "CutOffMaster", "change of masters"];

/// The name of the disturbance by a step of a server's clock, which ends leases and loses no data.
const CLOCK: &str = "MoveClock";

/// The name of the disturbance by a slot that moves.
const MOVED: &str = "MoveSlot";

/// The name of the disturbance by a stall of the machine.
pub const STALL: &str = "stall";

/// The slots of all keys.
pub const ALL_SLOTS: Slots = 0..=16_383;

/// The workers that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Affected {
    All,
    Worker(usize),
    /// All workers, in their calls for locks in the slots of the fault.
    CallersOfSlots,
    /// No worker: every wait must stay within its bounds.
    Nobody,
}

/// The effect of a fault, which decides the violations that it excuses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Delays only.
    Delays,
    /// Servers may lose acknowledged data, or their clocks step: a lock may have two holders
    /// until the first of them learns of its loss.
    LosesHolds,
    /// All earlier holds are lost, and each holder must learn of it.
    LosesAllHolds,
}

/// The time that operations may take, in addition to leases.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// The poll interval of all clients.
    pub poll: Nanos,
    /// The time after which the head of a fair queue that ignores a free lock is removed.
    pub fair_waiter_timeout: Nanos,
    /// The response time-out of all clients, and the time for which they wait for replicas.
    pub response: Nanos,
    /// The delay that a busy machine may add.
    pub slack: Nanos,
    /// The size of the steps of the servers' clocks.
    pub step: Nanos,
    /// The lease of a grant by message, and how long a client without a heartbeat counts as alive.
    pub grant_lease: Nanos,
    /// The interval of the heartbeats for queue locks.
    pub heartbeat: Nanos,
    /// How much earlier a waiter for a queue lock counts as arrived, per unit of weight.
    pub weight_step: Nanos,
    /// The longest pause of `run` between two campaigns that fail.
    pub pause: Nanos,
    /// The clocks of workers are fast or slow by up to this many millionths.
    pub drift: u64,
}

/// The result of all checks of a history.
#[derive(Clone, Debug)]
pub struct Findings {
    pub violations: Vec<Violation>,
    /// The longest undisturbed wait beside a free lock.
    pub longest_wait: Nanos,
}

/// A broken promise, and how it was broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub promise: Promise,
    pub text: String,
}

/// A promise of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Fencing tokens strictly increase.
    Tokens,
    /// No two valid holds overlap. Those of a semaphore never have more permits than its capacity.
    Exclusion,
    /// A guard is valid only while its servers keep a lease.
    #[allow(dead_code, reason = "only the simulation can look at the servers at a moment")]
    Lease,
    /// A holder learns of its loss in time.
    LossReport,
    /// A waiter gets a free lock in time.
    Wait,
    /// Waiters for a queue lock are granted in the order of arrival and weight.
    Order,
    /// Readers and observers of an election see its leader, and no former one.
    Leader,
    /// Later calls leave permits to the oldest waiter.
    Claim,
    /// A call returns in time, and fails only with a reason.
    Answer,
    /// A renewed hold is not lost without a reason.
    Renewal,
    /// A question whether a lock is held has the right answer.
    Question,
    /// A key has the result of its last run, and no run begins beside a result.
    Result,
    /// No hold is valid for longer than its limit and one lease.
    Limit,
    /// A lock that was released before its minimum stays taken until then.
    Minimum,
    /// Permits are taken and given back exactly once, and each count-down of a latch counts once.
    Counts,
    /// A fenced store loses no update.
    Updates,
    /// Between attempts to connect to a server there are growing pauses.
    #[allow(dead_code, reason = "only the simulation counts the attempts")]
    Pauses,
    /// Nothing is left behind.
    Leftovers,
    /// The threads and the memory of a client do not grow.
    #[allow(dead_code, reason = "only the simulation counts them")]
    Growth,
    /// The events and the statistics of a client tell what happened.
    #[allow(dead_code, reason = "only the workers of the simulation listen")]
    Told,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.text)
    }
}

impl Promise {
    pub fn violation(self, text: impl Into<String>) -> Violation {
        Violation { promise: self, text: text.into() }
    }
}

impl Bounds {
    /// Returns the bounds of a plan. `slack` is the delay that a busy machine may add.
    pub fn of(plan: &Plan, slack: Nanos) -> Bounds {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).expect("a short span");
        let Plan { work, .. } = plan;
        Bounds {
            poll: nanos(plan.woken_within.unwrap_or(work.poll_interval)),
            fair_waiter_timeout: nanos(work.fair_waiter_timeout()),
            response: nanos(work.reply_time()),
            slack,
            step: if plan.faults.contains(&Fault::MoveClock) { millis(STEP) } else { 0 },
            grant_lease: nanos(work.grant_lease()),
            heartbeat: nanos(work.poll_interval),
            weight_step: nanos(WEIGHT_STEP),
            pause: PAUSE,
            drift: 0,
        }
    }

    /// Returns how soon a span may be over on the clock of a worker.
    fn soonest(&self, span: Nanos) -> Nanos {
        span - span / 1_000_000 * self.drift
    }

    /// Returns how late a span may be over on the clock of a worker.
    fn latest(&self, span: Nanos) -> Nanos {
        span + span / 1_000_000 * (self.drift + self.drift / 50)
    }

    /// Returns the longest permitted wait beside a free lock.
    pub fn wait(&self) -> Nanos {
        self.poll + self.response + self.slack
    }
}

impl History {
    /// Adds a worker and its records.
    pub fn add(&mut self, worker: Worker, records: impl IntoIterator<Item = Record>) {
        let index = self.workers.len();
        self.workers.push(worker);
        let mut open: BTreeMap<u64, usize> = BTreeMap::new();
        for Record { attempt, at, event } in records {
            if let Event::Stalled(span) = event {
                self.workers[index].stalls.push(Stall { from: at.saturating_sub(span), to: at });
            } else if let Event::Asks(request) = event {
                let linger = &mut self.workers[index].linger;
                *linger = request.linger.map_or(0, millis).max(*linger);
                open.insert(attempt, self.attempts.len());
                self.attempts.push(Attempt::new(index, request, at, Outcome::Unknown));
            } else if let Some(position) = open.get(&attempt) {
                self.attempts[*position].apply(at, event);
            }
        }
    }

    /// Adds a disturbance for each stall of the machine of half a response time-out or more.
    ///
    /// Requests of that time fail, and connections are made anew, as after a fault.
    pub fn add_long_stalls(&mut self) {
        let response = self.bounds.response;
        let stalls = self.workers.iter().flat_map(|worker| &worker.stalls).chain(&self.stalls);
        let long = stalls.filter(|stall| stall.to - stall.from >= response / 2);
        let disturbances = long.map(|stall| Disturbance {
            name: STALL.to_owned(),
            from: stall.from,
            until: stall.to,
            felt_until: stall.to + 2 * response,
            affected: Affected::All,
            effect: Effect::Delays,
            slots: vec![ALL_SLOTS],
        });
        let disturbances: Vec<_> = disturbances.collect();
        self.disturbances.extend(disturbances);
    }

    /// Runs all checks.
    pub fn findings(&self) -> Findings {
        let (mut violations, mut longest_wait) = (Vec::new(), 0);
        for attempts in self.by_lock().values() {
            let (changes, others): (Vec<&Attempt>, Vec<&Attempt>) =
                attempts.iter().partition(|attempt| attempt.request.is_change());
            let capacities = &Capacities::of(self, attempts[0].request.capacity(), &changes);
            violations.extend(answers::check(self, attempts, capacities));
            let (questions, attempts): (Vec<&Attempt>, Vec<&Attempt>) =
                others.into_iter().partition(|attempt| attempt.request.is_question());
            let (looks, attempts): (Vec<&Attempt>, Vec<&Attempt>) =
                attempts.iter().partition(|attempt| attempt.request.is_look());
            violations.extend(results::check(self, &attempts));
            let attempts: Vec<&Attempt> =
                attempts.into_iter().filter(|attempt| !attempt.request.is_of_result()).collect();
            let attempts = &attempts;
            violations.extend(questions::check(self, attempts, &questions));
            violations.extend(leaders::check(self, attempts, &looks));
            if attempts.iter().any(|attempt| attempt.request.is_latch()) {
                let (found, wait) = latches::check(self, attempts);
                violations.extend(found);
                longest_wait = longest_wait.max(wait);
                continue;
            }
            let gaps = waits::gaps(self, attempts, capacities);
            violations.extend(tokens::check(self, attempts));
            violations.extend(overlaps::check(self, attempts));
            violations.extend(capacity::check(self, attempts, capacities));
            violations.extend(limits::check(self, attempts));
            violations.extend(waits::check(self, attempts, &gaps));
            violations.extend(order::check(self, attempts));
            violations.extend(claims::check(self, attempts, capacities));
            violations.extend(counts::check(self, attempts, &changes));
            longest_wait = gaps.iter().map(|(_, gap)| *gap).fold(longest_wait, Nanos::max);
        }
        Findings { violations, longest_wait }
    }

    /// Returns the number of holds.
    pub fn holds(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.hold().is_some()).count()
    }

    /// Returns how often a lock passed from one process to another.
    pub fn hand_offs(&self) -> usize {
        let changes = |attempts: &Vec<&Attempt>| {
            let mut holds: Vec<_> =
                attempts.iter().filter_map(|a| Some((a.hold()?.granted, a.worker))).collect();
            holds.sort_unstable();
            holds.windows(2).filter(|pair| pair[0].1 != pair[1].1).count()
        };
        self.by_lock().values().map(changes).sum()
    }

    /// Returns the number of holds that were lost before their release.
    pub fn losses(&self) -> usize {
        let lost = |attempt: &&Attempt| attempt.hold().is_some_and(|hold| hold.lost.is_some());
        self.attempts.iter().filter(lost).count()
    }

    /// Returns the stall of the machine with the greatest part between two moments, and that part.
    pub fn longest_stall(&self, from: Nanos, to: Nanos) -> Nanos {
        let stalls = self.workers.iter().flat_map(|worker| &worker.stalls).chain(&self.stalls);
        stalls.map(|s| s.to.min(to).saturating_sub(s.from.max(from))).max().unwrap_or(0)
    }

    /// Returns the number of holds of a lock that have the token of another hold.
    pub fn repeated_tokens(&self, lock: &str) -> usize {
        let attempts = self.attempts.iter().filter(|attempt| attempt.request.lock == lock);
        tokens::repeated(&tokens::fenced(attempts)).count()
    }

    /// Returns whether a semaphore may have this capacity after the run.
    pub fn may_have_capacity(&self, semaphore: &str, capacity: i64) -> bool {
        let first = Request::waiting(semaphore.to_owned(), 0).capacity();
        let changes = self.attempts.iter().filter(|it| it.request.is_change());
        let changes: Vec<_> = changes.filter(|it| it.request.lock == semaphore).collect();
        Capacities::of(self, first, &changes).may_end_with(capacity)
    }

    fn by_lock(&self) -> BTreeMap<&str, Vec<&Attempt>> {
        let mut locks: BTreeMap<&str, Vec<&Attempt>> = BTreeMap::new();
        for attempt in &self.attempts {
            locks.entry(&attempt.request.lock).or_default().push(attempt);
        }
        locks
    }

    /// Returns the length of the lease of an attempt.
    fn lease(&self, attempt: &Attempt) -> Nanos {
        let lease = attempt.request.lease.or(attempt.request.renewed).map(millis);
        lease.unwrap_or(self.workers[attempt.worker].lease)
    }

    /// Returns the length of the longest renewed leases.
    fn longest_lease(&self) -> Nanos {
        let of_handles = self.attempts.iter().filter_map(|attempt| attempt.request.renewed);
        let of_workers = self.workers.iter().map(|worker| worker.lease);
        of_workers.chain(of_handles.map(millis)).max().unwrap_or(0)
    }

    /// Returns whether servers may have lost the hold of an attempt, or their clocks stepped,
    /// before the grant of another hold at this moment.
    fn may_have_lost(&self, attempt: &Attempt, granted: Nanos) -> bool {
        // A hold that was taken over may have been lost before.
        let since = attempt.asked.saturating_sub(self.linger(attempt));
        self.may_have_lost_between(&attempt.request.lock, since, granted)
    }

    /// Returns the longest time for which the hold of an attempt may linger before or after it.
    ///
    /// Each hold lingers as the handle says that took it from the server.
    pub fn linger(&self, attempt: &Attempt) -> Nanos {
        if attempt.request.may_linger() { self.workers[attempt.worker].linger } else { 0 }
    }

    /// Returns whether servers may have lost their data of a lock, or their clocks stepped, between
    /// two moments.
    pub fn may_have_lost_between(&self, lock: &str, from: Nanos, to: Nanos) -> bool {
        let loses = |d: &&Disturbance| d.effect != Effect::Delays;
        let mut losses = self.disturbances.iter().filter(loses);
        losses.any(|d| d.covers(lock) && d.from <= to && from <= d.until)
    }

    /// Returns whether a reply at this moment may be that of a master that has been replaced.
    fn may_be_outdated(&self, lock: &str, at: Nanos) -> bool {
        let replaced = |d: &&Disturbance| REPLACED.contains(&&*d.name);
        let mut replaced = self.disturbances.iter().filter(replaced);
        replaced.any(|d| d.covers(lock) && d.from <= at && at <= d.felt_until)
    }

    /// Returns whether a lock may have been served by several servers between two moments.
    fn may_have_moved(&self, lock: &str, from: Nanos, to: Nanos) -> bool {
        let moves = |d: &&Disturbance| REPLACED.contains(&&*d.name) || d.name == MOVED;
        let mut moved = self.disturbances.iter().filter(moves);
        moved.any(|d| d.covers(lock) && d.from <= to && from <= d.felt_until)
    }

    /// Returns the number of calls that set the count of a latch, and so began a round.
    pub fn rounds(&self) -> usize {
        let sets = self.attempts.iter().filter(|attempt| attempt.request.verb == Verb::SetCount);
        sets.filter(|attempt| matches!(attempt.outcome, Outcome::Done(_))).count()
    }

    /// Returns how often a reader or an observer of an election has learned a state.
    pub fn sightings(&self) -> usize {
        self.attempts.iter().map(|attempt| attempt.seen.len()).sum()
    }

    /// Returns whether servers may have lost what they wrote about a lock between two moments. A
    /// master that is replaced may answer until the fault is no longer felt.
    fn may_have_lost_data(&self, lock: &str, from: Nanos, to: Nanos) -> bool {
        self.losses_of(lock).any(|d| d.from <= to && from <= d.felt_until)
    }

    /// Returns the faults that may have lost data of this lock.
    fn losses_of(&self, lock: &str) -> impl Iterator<Item = &Disturbance> {
        self.disturbances.iter().filter(move |d| d.loses_data() && d.covers(lock))
    }

    /// Returns the disturbances that the caller felt in this attempt between two moments.
    fn disturbances_of(
        &self,
        attempt: &Attempt,
        from: Nanos,
        to: Nanos,
    ) -> impl Iterator<Item = &Disturbance> {
        let felt =
            move |d: &&Disturbance| d.from <= to && from <= d.felt_until && d.affects(attempt);
        self.disturbances.iter().filter(felt)
    }
}

/// Returns the holds of these attempts in the order of their grants.
fn by_grant<'a>(attempts: &[&'a Attempt]) -> Vec<Held<'a>> {
    let holds = attempts.iter().filter_map(|attempt| Some((*attempt, attempt.hold()?)));
    let mut holds: Vec<Held<'a>> = holds.collect();
    holds.sort_by_key(|(_, hold)| hold.granted);
    holds
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Disturbance { name, from, until, felt_until, affected, effect, slots } = self;
        let [from, until, felt] = [from, until, felt_until].map(|at| *at as f64 / 1e9);
        write!(f, "{from:.3} to {until:.3} s, felt until {felt:.3} s: ")?;
        write!(f, "{name}, {affected:?}, {effect:?} of {slots:?}")
    }
}

impl Disturbance {
    /// Whether servers may have lost what they had acknowledged.
    fn loses_data(&self) -> bool {
        self.effect != Effect::Delays && self.name != CLOCK
    }

    /// Whether the slot of this lock is among those of the fault.
    fn covers(&self, lock: &str) -> bool {
        let slot = slot(lock);
        self.slots.iter().any(|slots| slots.contains(&slot))
    }

    fn affects(&self, attempt: &Attempt) -> bool {
        match self.affected {
            Affected::All => true,
            Affected::Worker(one) => one == attempt.worker,
            // The loss of a member is the loss of the multi-lock.
            Affected::CallersOfSlots => {
                attempt.request.verb == Verb::Join || self.covers(&attempt.request.lock)
            }
            Affected::Nobody => false,
        }
    }
}

impl Attempt {
    fn new(worker: usize, request: Request, asked: Nanos, outcome: Outcome) -> Attempt {
        Attempt { worker, request, asked, outcome, seen: Vec::new(), error: String::new() }
    }

    pub fn hold(&self) -> Option<&Hold> {
        match &self.outcome {
            Outcome::Held(hold) => Some(hold),
            Outcome::Unknown | Outcome::Refused(_) | Outcome::Failed(_) | Outcome::Done(_) => None,
        }
    }

    fn apply(&mut self, at: Nanos, event: Event) {
        match (event, &mut self.outcome) {
            (Event::Granted { token }, outcome) => {
                let (lost, ended) = (None, None);
                let hold = Hold { token, granted: at, leased: at, valid_to: at, lost, ended };
                *outcome = Outcome::Held(hold);
            }
            (Event::Done, outcome) => *outcome = Outcome::Done(at),
            (Event::Refused, outcome) => *outcome = Outcome::Refused(at),
            (Event::Failed(error), outcome) => {
                self.error = error;
                *outcome = Outcome::Failed(at);
            }
            (Event::Seen(leader), _) => self.seen.push(Sighting { at, leader }),
            (Event::Valid, Outcome::Held(hold)) => hold.valid_to = hold.valid_to.max(at),
            (Event::Extended, Outcome::Held(hold)) => hold.leased = at,
            (Event::Lost, Outcome::Held(hold)) => hold.lost = hold.lost.or(Some(at)),
            (Event::Ended(how), Outcome::Held(hold)) => hold.ended = Some((at, how)),
            // `Ends` changes nothing. The other events need a hold.
            _ => {}
        }
    }
}

impl Hold {
    /// Returns whether a check has found the hold valid.
    ///
    /// A process that was stopped between its grant and its first check may find the hold over.
    pub fn was_valid(&self) -> bool {
        self.granted < self.valid_to
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attempt { worker, request, asked, outcome, error, .. } = self;
        let after = |at: Nanos| format!("+{:.1} ms", at.saturating_sub(*asked) as f64 / 1e6);
        write!(f, "worker {worker} asks at {:.3} s for {request:?}: ", *asked as f64 / 1e9)?;
        match outcome {
            Outcome::Unknown => f.write_str("unknown"),
            Outcome::Refused(at) => write!(f, "refused {}", after(*at)),
            Outcome::Failed(at) => write!(f, "failed with {error} {}", after(*at)),
            Outcome::Done(at) => write!(f, "done {}", after(*at)),
            Outcome::Held(hold) => {
                write!(f, "token {} {}", hold.token, after(hold.granted))?;
                write!(f, ", valid to {}", after(hold.valid_to))?;
                write!(f, ", lost {:?}", hold.lost.map(after))?;
                write!(f, ", ended {:?}", hold.ended.map(|(at, how)| (after(at), how)))
            }
        }
    }
}

#[cfg(test)]
mod examples {
    use super::*;

    pub(super) fn worker(lease: Nanos, killed: Option<Nanos>) -> Worker {
        Worker { lease, killed, mortal_at: None, linger: 0, stalls: Vec::new() }
    }

    /// Returns a history of two workers with leases of one second.
    pub(super) fn history(attempts: Vec<Attempt>) -> History {
        let worker = worker(millis(1000), None);
        let bounds = Bounds {
            poll: millis(100),
            fair_waiter_timeout: millis(300),
            response: millis(50),
            slack: millis(50),
            step: 0,
            grant_lease: millis(300),
            heartbeat: millis(100),
            weight_step: millis(200),
            pause: millis(500),
            drift: 0,
        };
        let workers = vec![worker.clone(), worker];
        History { workers, attempts, bounds, ..History::default() }
    }

    /// Returns an attempt that was granted and unlocked, with all moments in milliseconds.
    pub(super) fn held(worker: usize, asked: u64, granted: u64, end: u64) -> Attempt {
        let hold = Hold {
            token: granted,
            granted: millis(granted),
            leased: millis(granted),
            valid_to: millis(end),
            lost: None,
            ended: Some((millis(end), End::Unlocked)),
        };
        asking(worker, asked, Outcome::Held(hold))
    }

    /// Returns the hold of an attempt that was granted.
    pub(super) fn hold_of(attempt: &mut Attempt) -> &mut Hold {
        match &mut attempt.outcome {
            Outcome::Held(hold) => hold,
            other => panic!("no hold: {other:?}"),
        }
    }

    /// Returns the calls as calls for permits of a semaphore without slots, each with its number of
    /// permits.
    pub(super) fn with_permits(semaphore: &str, calls: Vec<(u32, Attempt)>) -> Vec<Attempt> {
        let with = |(permits, mut call): (u32, Attempt)| {
            (call.request.lock, call.request.permits) = (semaphore.to_owned(), permits);
            if let Outcome::Held(hold) = &mut call.outcome {
                hold.token = 0;
            }
            call
        };
        calls.into_iter().map(with).collect()
    }

    /// Returns an attempt with this outcome. A refused attempt has waited for its whole `max_wait`.
    pub(super) fn asking(worker: usize, asked: u64, outcome: Outcome) -> Attempt {
        let max_wait = match outcome {
            Outcome::Refused(at) => at / millis(1) - asked,
            _ => 5000,
        };
        let request = Request::waiting("a".to_owned(), max_wait);
        Attempt::new(worker, request, millis(asked), outcome)
    }

    /// Returns a call that sets the capacity of `semaphore-0`, with its moments in milliseconds.
    pub(super) fn resize(capacity: u32, asked: u64, done: u64) -> Attempt {
        let mut resize = asking(1, asked, Outcome::Done(millis(done)));
        resize.request.lock = "semaphore-0".to_owned();
        (resize.request.verb, resize.request.permits) = (Verb::Resize, capacity);
        resize
    }

    pub(super) fn disturbance(
        from: u64,
        until: u64,
        affected: Affected,
        effect: Effect,
    ) -> Disturbance {
        let (from, until) = (millis(from), millis(until));
        Disturbance {
            name: "a fault".to_owned(),
            from,
            until,
            felt_until: until,
            affected,
            effect,
            slots: vec![ALL_SLOTS],
        }
    }

    /// Returns the promise of each violation.
    pub(super) fn violated(history: &History) -> Vec<Promise> {
        history.findings().violations.iter().map(|violation| violation.promise).collect()
    }

    #[test]
    fn a_long_stall_of_the_machine_disturbs_as_a_fault_does() {
        let late = || history(vec![held(0, 0, 0, 100), held(1, 50, 400, 500)]);
        assert_eq!(violated(&late()), [Promise::Wait]);
        let stalled = |span: u64| {
            let mut stalled = late();
            stalled.stalls.push(Stall { from: millis(150), to: millis(150 + span) });
            stalled.add_long_stalls();
            violated(&stalled)
        };
        assert_eq!(stalled(24), [Promise::Wait]);
        assert_eq!(stalled(25), [], "half of a response time-out");
    }

    #[test]
    fn records_of_a_worker_become_attempts() {
        let lines = "1 10 asks a acquire false none none none 100 none none false 1 1 none 0\n\
                     2 11 asks a acquire true 70 none none 0 none none false 1 1 none 0\n\
                     1 12 granted 5\n0 13 stalled 4\n\
                     2 13 refused\n1 14 extended\n1 14 valid\n1 15 lost\n1 16 ends\n1 17 dropped\n\
                     3 18 granted 1\n\
                     4 19 asks b acquire false none none none 7 none none true 2 1 none 0\n4 20 fai\n\
                     5 21 asks c acquire false none none none 7 none none false 1 1 none 0\n\
                     5 22 failed timeout";
        let mut history = History::default();
        let records = lines.lines().filter_map(Record::parse);
        history.add(worker(1, Some(20)), records);
        assert_eq!(history.workers[0].stalls, [Stall { from: 9, to: 13 }]);
        let hold = Hold {
            token: 5,
            granted: 12,
            leased: 14,
            valid_to: 14,
            lost: Some(15),
            ended: Some((17, End::Dropped)),
        };
        let outcomes: Vec<_> = history.attempts.iter().map(|a| &a.outcome).collect();
        let [unknown, failed] = [Outcome::Unknown, Outcome::Failed(22)];
        assert_eq!(outcomes, [&Outcome::Held(hold), &Outcome::Refused(13), &unknown, &failed]);
        let errors: Vec<_> = history.attempts.iter().map(|a| &*a.error).collect();
        assert_eq!(errors, ["", "", "", "timeout"]);
        assert_eq!((history.holds(), history.losses(), history.hand_offs()), (1, 1, 0));
    }
}
