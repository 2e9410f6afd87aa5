//! What must be true of a history. Pure: a history in, violations out; every check has tests
//! that show it one history that is well and some that are not.

mod answers;
mod overlaps;
mod tokens;
mod waits;

use super::Nanos;
use super::record::{End, Record, What, Wish};
use crate::harness::nodes::slot;
use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

/// All that is known of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub workers: Vec<Worker>,
    pub attempts: Vec<Attempt>,
    pub disturbances: Vec<Disturbance>,
    pub bounds: Bounds,
}

/// One process. One that is started in the place of a killed one is another.
#[derive(Clone, Debug)]
pub struct Worker {
    /// How long its leases are that are renewed.
    pub lease: Nanos,
    pub killed: Option<Nanos>,
}

/// One call for a lock, and the hold that came of it.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub worker: usize,
    pub wish: Wish,
    pub asked: Nanos,
    pub outcome: Outcome,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its process was killed before it knew, or it still waits.
    Unknown,
    Refused(Nanos),
    Failed(Nanos),
    Held(Hold),
}

/// A hold as its holder saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub token: u64,
    pub got: Nanos,
    /// The last look that found it valid.
    pub valid_to: Nanos,
    /// The look that found it over.
    pub lost: Option<Nanos>,
    pub ended: Option<(Nanos, End)>,
}

/// A time in which something was in the way.
#[derive(Clone, Debug)]
pub struct Disturbance {
    pub name: String,
    pub from: Nanos,
    /// When it was over.
    pub over: Nanos,
    /// When those whom it has met can be expected to work again.
    pub to: Nanos,
    pub whom: Whom,
    pub effect: Effect,
    /// Of which slots it has that effect; all, where there is no cluster.
    pub slots: Vec<Slots>,
}

/// Some slots of a cluster.
pub type Slots = RangeInclusive<u16>;

/// Those of all keys.
pub const ALL_SLOTS: Slots = 0..=16_383;

/// Who is disturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Whom {
    All,
    Worker(usize),
    /// Nobody that could not do without: waits are not to suffer.
    Nobody,
}

/// What is not promised because of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Nothing but time.
    Delays,
    /// Servers may forget what they have acknowledged, or their clocks are off: two may hold
    /// one lock, until the loser is told.
    Forgets,
    /// All holds of before are gone, and each holder has to be told.
    Empties,
}

/// How long things may take, beside what a lease says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// The poll interval of all clients.
    pub poll: Nanos,
    /// How long they wait for who is first in a queue and leaves a free lock alone.
    pub fair_waiter_timeout: Nanos,
    /// Their response time-out.
    pub response: Nanos,
    /// What a busy machine may add.
    pub slack: Nanos,
    /// How far servers' clocks step.
    pub step: Nanos,
}

/// What a history shows.
#[derive(Clone, Debug)]
pub struct Findings {
    /// Everything that must not have happened.
    pub violations: Vec<Violation>,
    /// The longest that anybody has waited beside a free lock with nothing in the way.
    pub longest_wait: Nanos,
}

/// Which promise was broken, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub promise: Promise,
    pub text: String,
}

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Fencing tokens strictly increase.
    Tokens,
    /// No two valid holds overlap.
    Exclusion,
    /// Who has lost a lock is told in time.
    Report,
    /// A free lock is had in time.
    Wait,
    /// Who asks is answered in time, and with a reason.
    Answer,
    /// What is renewed is not lost without a reason.
    Kept,
    /// A fenced store loses no update.
    Updates,
    /// Nothing is left behind.
    Leftovers,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.text)
    }
}

impl Promise {
    pub fn broken(self, text: impl Into<String>) -> Violation {
        Violation { promise: self, text: text.into() }
    }
}

impl Bounds {
    /// How long anybody waits beside a free lock at most.
    pub fn wait(&self) -> Nanos {
        self.poll + self.response + self.slack
    }
}

impl History {
    /// Adds what one process wrote down.
    pub fn add(&mut self, worker: Worker, records: impl IntoIterator<Item = Record>) {
        let index = self.workers.len();
        self.workers.push(worker);
        let mut open: HashMap<u64, usize> = HashMap::new();
        for Record { attempt, at, what } in records {
            if let What::Asks(wish) = what {
                open.insert(attempt, self.attempts.len());
                let outcome = Outcome::Unknown;
                self.attempts.push(Attempt { worker: index, wish, asked: at, outcome });
            } else if let Some(place) = open.get(&attempt) {
                self.attempts[*place].outcome.goes_on(at, what);
            }
        }
    }

    /// What this history shows.
    pub fn findings(&self) -> Findings {
        let (mut violations, mut longest_wait) = (Vec::new(), 0);
        for attempts in self.by_lock().values() {
            let gaps = waits::gaps(self, attempts);
            violations.extend(tokens::check(attempts));
            violations.extend(overlaps::check(self, attempts));
            violations.extend(answers::check(self, attempts));
            violations.extend(waits::check(self, attempts, &gaps));
            longest_wait = gaps.iter().map(|(_, gap)| *gap).fold(longest_wait, Nanos::max);
        }
        Findings { violations, longest_wait }
    }

    /// How often a lock was had.
    pub fn holds(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.hold().is_some()).count()
    }

    /// How often a lock went from one process to another.
    pub fn hand_offs(&self) -> usize {
        let changes = |attempts: &Vec<&Attempt>| {
            let mut holds: Vec<_> =
                attempts.iter().filter_map(|a| Some((a.hold()?.got, a.worker))).collect();
            holds.sort_unstable();
            holds.windows(2).filter(|pair| pair[0].1 != pair[1].1).count()
        };
        self.by_lock().values().map(changes).sum()
    }

    /// How many holds were lost before they were ended.
    pub fn losses(&self) -> usize {
        let lost = |attempt: &&Attempt| attempt.hold().is_some_and(|hold| hold.lost.is_some());
        self.attempts.iter().filter(lost).count()
    }

    fn by_lock(&self) -> HashMap<&str, Vec<&Attempt>> {
        let mut locks: HashMap<&str, Vec<&Attempt>> = HashMap::new();
        for attempt in &self.attempts {
            locks.entry(&attempt.wish.lock).or_default().push(attempt);
        }
        locks
    }

    /// How long the lease of an attempt is.
    fn lease(&self, attempt: &Attempt) -> Nanos {
        let fixed = attempt.wish.lease.map(super::millis);
        fixed.unwrap_or(self.workers[attempt.worker].lease)
    }

    /// What disturbed this worker between the two.
    fn disturbances_of(
        &self,
        worker: usize,
        from: Nanos,
        to: Nanos,
    ) -> impl Iterator<Item = &Disturbance> {
        let met = move |d: &&Disturbance| d.from <= to && from <= d.to && d.meets(worker);
        self.disturbances.iter().filter(met)
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Disturbance { name, from, over, to, whom, effect, slots } = self;
        let [from, over, to] = [from, over, to].map(|at| *at as f64 / 1e9);
        write!(f, "{from:.3} to {over:.3} s, felt to {to:.3} s: {name}, {whom:?}, {effect:?}")?;
        write!(f, " of {slots:?}")
    }
}

impl Disturbance {
    /// Whether it has its effect on that lock.
    fn touches(&self, lock: &str) -> bool {
        let slot = slot(lock);
        self.slots.iter().any(|slots| slots.contains(&slot))
    }

    fn meets(&self, worker: usize) -> bool {
        match self.whom {
            Whom::All => true,
            Whom::Worker(one) => one == worker,
            Whom::Nobody => false,
        }
    }
}

impl Attempt {
    pub fn hold(&self) -> Option<&Hold> {
        match &self.outcome {
            Outcome::Held(hold) => Some(hold),
            Outcome::Unknown | Outcome::Refused(_) | Outcome::Failed(_) => None,
        }
    }
}

impl Outcome {
    fn goes_on(&mut self, at: Nanos, what: What) {
        match (what, self) {
            (What::Got { token }, outcome) => {
                let hold = Hold { token, got: at, valid_to: at, lost: None, ended: None };
                *outcome = Outcome::Held(hold);
            }
            (What::Refused, outcome) => *outcome = Outcome::Refused(at),
            (What::Failed(_), outcome) => *outcome = Outcome::Failed(at),
            (What::Valid, Outcome::Held(hold)) => hold.valid_to = hold.valid_to.max(at),
            (What::Lost, Outcome::Held(hold)) => hold.lost = hold.lost.or(Some(at)),
            (What::Ended(how), Outcome::Held(hold)) => hold.ended = Some((at, how)),
            // What it says besides belongs to a hold.
            _ => {}
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attempt { worker, wish, asked, outcome } = self;
        let after = |at: Nanos| format!("+{:.1} ms", at.saturating_sub(*asked) as f64 / 1e6);
        write!(f, "worker {worker} asks at {:.3} s for {wish:?}: ", *asked as f64 / 1e9)?;
        match outcome {
            Outcome::Unknown => f.write_str("unknown"),
            Outcome::Refused(at) => write!(f, "refused {}", after(*at)),
            Outcome::Failed(at) => write!(f, "failed {}", after(*at)),
            Outcome::Held(hold) => {
                write!(f, "token {} {}", hold.token, after(hold.got))?;
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
    use crate::millis;

    /// A history of plain attempts with leases of one second, by two workers.
    pub(super) fn history(attempts: Vec<Attempt>) -> History {
        let worker = Worker { lease: millis(1000), killed: None };
        let bounds = Bounds {
            poll: millis(100),
            fair_waiter_timeout: millis(300),
            response: millis(50),
            slack: millis(50),
            step: 0,
        };
        let workers = vec![worker.clone(), worker];
        History { workers, attempts, disturbances: Vec::new(), bounds }
    }

    /// Asked at the first, held from the second to the last, and unlocked there; in
    /// milliseconds.
    pub(super) fn held(worker: usize, asked: u64, got: u64, end: u64) -> Attempt {
        let hold = Hold {
            token: got,
            got: millis(got),
            valid_to: millis(end),
            lost: None,
            ended: Some((millis(end), End::Unlocked)),
        };
        asking(worker, asked, Outcome::Held(hold))
    }

    /// One that was refused was so at the end of its patience.
    pub(super) fn asking(worker: usize, asked: u64, outcome: Outcome) -> Attempt {
        let patience = match outcome {
            Outcome::Refused(at) => at / millis(1) - asked,
            _ => 5000,
        };
        let wish = Wish { lock: "a".to_owned(), shares: false, lease: None, patience };
        Attempt { worker, wish, asked: millis(asked), outcome }
    }

    pub(super) fn disturbance(from: u64, to: u64, whom: Whom, effect: Effect) -> Disturbance {
        let name = "a fault".to_owned();
        let (from, to) = (millis(from), millis(to));
        Disturbance { name, from, over: to, to, whom, effect, slots: vec![ALL_SLOTS] }
    }

    pub(super) fn broken(history: &History) -> Vec<Promise> {
        history.findings().violations.iter().map(|violation| violation.promise).collect()
    }

    #[test]
    fn what_a_worker_wrote_becomes_attempts() {
        let lines = "1 10 asks a false renewed 100\n2 11 asks a true 70 0\n1 12 got 5\n\
                     2 13 refused\n1 14 valid\n1 15 lost\n1 16 ends\n1 17 dropped\n3 18 got 1\n\
                     4 19 asks b false renewed 7\n4 20 fai";
        let mut history = History::default();
        let records = lines.lines().filter_map(Record::parse);
        history.add(Worker { lease: 1, killed: Some(20) }, records);
        let hold = Hold {
            token: 5,
            got: 12,
            valid_to: 14,
            lost: Some(15),
            ended: Some((17, End::Dropped)),
        };
        let outcomes: Vec<_> = history.attempts.iter().map(|a| &a.outcome).collect();
        assert_eq!(outcomes, [&Outcome::Held(hold), &Outcome::Refused(13), &Outcome::Unknown]);
        assert_eq!((history.holds(), history.losses(), history.hand_offs()), (1, 1, 0));
    }
}
