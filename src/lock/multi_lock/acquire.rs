//! The acquire of several locks.
//!
//! In most rounds no caller waits for a lock while it holds another, so callers that name the
//! locks in different orders do not wait for each other:
//! 1. The caller asks for all locks without waiting, in one order (key, client, kind, holder):
//!    plain locks of one client by one script call ([`batch`]), all others one by one.
//! 2. A lock is refused: the caller releases the locks that it took and waits for the refused one.
//! 3. The refused lock is granted: the caller asks for the others as in 1, and so on.
//!
//! Callers that take the locks from each other pause between the rounds, longer each time. If other
//! callers always want the locks, these rounds would never succeed. So after two lost rounds a
//! caller joins the queue of each lock in turn, in the order of 1, and keeps the earlier locks
//! meanwhile. The orders of two callers may differ, because clients may know one server by
//! different names, and the two may then block each other. Each of these waits is short, so they do
//! not block each other for long. A caller whose wait has ended continues with 2.
//!
//! A caller that a lock was refused to waits through outages, with pauses that grow.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{AcquireCall, HoldHandle};
use crate::cancel::CancelWatch;
use crate::command::owner::HoldId;
use crate::error::{Error, Result};
use crate::kind::plain::Plain;
use crate::kind::rules::KindRules as _;
use crate::lock::multi_lock::batch;
use crate::stats::CallRecord;
use crate::util::clock::{self, Moment, Patience, doubled, jittered};
use crate::util::sync::Parker;
use crate::wait::{Question, Step, wait_for};

/// The first and the longest pause of a caller after a lost round.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The first and the longest pause of a caller after a round that an outage ended.
const FIRST_OUTAGE_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(1);

/// The number of lost rounds before a round that takes the locks in turn.
const LOST_ROUNDS: u32 = 2;

/// The first and the longest wait for each lock in such a round.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The outcome of a round or of a part of it.
#[derive(Debug)]
pub(super) enum MultiOutcome {
    /// The holds, in the order of the calls.
    All(Vec<HoldHandle>),
    /// The position of a lock that another caller holds or waits for.
    Refused(usize),
}

/// The calls for all members, and the rounds of the caller so far.
pub(super) struct MultiAcquire<'a> {
    calls: Vec<AcquireCall<'a>>,
    patience: Patience,
    record: &'a CallRecord<'a>,
    started: Moment,
    parker: Arc<Parker>,
    /// The position of the lock that was refused last.
    refused: Option<usize>,
    /// The rounds since the last one in turn that other callers ended.
    lost: u32,
    /// The rounds in turn.
    turns: u32,
    /// The rounds since the last answer that an outage ended, and the error of the last of them.
    outages: u32,
    outage: Option<Error>,
    /// The moment of the next round.
    next: Moment,
}

impl<'a> MultiAcquire<'a> {
    pub(super) fn new(
        calls: Vec<AcquireCall<'a>>,
        patience: Patience,
        record: &'a CallRecord<'a>,
    ) -> MultiAcquire<'a> {
        let (started, parker) = (clock::now(), Parker::mine());
        MultiAcquire {
            calls,
            patience,
            record,
            started,
            parker,
            refused: None,
            lost: 0,
            turns: 0,
            outages: 0,
            outage: None,
            next: started,
        }
    }

    /// Blocks until all locks are granted. `None` if the caller's patience ends first.
    pub(super) fn acquire(mut self) -> Result<Option<Vec<HoldHandle>>> {
        wait_for(&mut self)
    }

    /// Plans the next round after one that a refusal of the lock at `refused` ended.
    ///
    /// The refused lock may be held for long: the next round begins with a wait for it alone.
    fn lost_round(&mut self, refused: usize, in_turn: bool) {
        let now = clock::now();
        (self.outages, self.outage) = (0, None);
        match self.refused.replace(refused) {
            _ if in_turn => (self.lost, self.turns) = (LOST_ROUNDS - 1, self.turns + 1),
            // The callers with the locks can finish meanwhile.
            Some(_) => {
                let pause = doubled(FIRST_PAUSE, self.lost, LONGEST_PAUSE);
                self.next = now + jittered(pause, HoldId::next().seed() ^ now.nanos());
                self.lost += 1;
            }
            None => {}
        }
    }

    /// Plans the next round after one that an outage ended.
    fn interrupted(&mut self, outage: Error) {
        let pause = doubled(FIRST_OUTAGE_PAUSE, self.outages, LONGEST_OUTAGE_PAUSE);
        self.next = clock::now() + jittered(pause, HoldId::next().seed());
        (self.lost, self.outages) =
            (self.lost.min(LOST_ROUNDS - 1), self.outages.saturating_add(1));
        self.outage = Some(outage);
    }

    /// Waits for each lock in turn, for a short time, and keeps the earlier locks meanwhile.
    fn in_turn(&self) -> Result<MultiOutcome> {
        let wait = doubled(FIRST_WAIT, self.turns, LONGEST_WAIT);
        let mut holds = Vec::with_capacity(self.calls.len());
        for (position, call) in self.calls.iter().enumerate() {
            let wait = jittered(wait, HoldId::next().seed());
            let end = (clock::now() + wait).min(self.patience.end());
            match call.with_patience(Patience::Until(end)).acquire()? {
                Some(hold) => holds.push(hold),
                None => return Ok(MultiOutcome::Refused(position)),
            }
        }
        Ok(MultiOutcome::All(holds))
    }

    /// Waits for the lock that was refused before, and asks for the others without waiting.
    fn round(&self) -> Result<MultiOutcome> {
        let mut holds: Vec<Option<HoldHandle>> = self.calls.iter().map(|_| None).collect();
        if let Some(first) = self.refused {
            holds[first] = self.calls[first].acquire()?;
            if holds[first].is_none() {
                // The patience of the caller is over.
                return Ok(MultiOutcome::Refused(first));
            }
        }
        while let Some(next) = holds.iter().position(Option::is_none) {
            let group = self.group(next, &holds);
            match self.take(&group)? {
                MultiOutcome::Refused(position) => {
                    return Ok(MultiOutcome::Refused(group[position]));
                }
                MultiOutcome::All(taken) => {
                    group.into_iter().zip(taken).for_each(|(at, hold)| holds[at] = Some(hold));
                }
            }
        }
        Ok(MultiOutcome::All(holds.into_iter().flatten().collect()))
    }

    /// Returns the positions of the locks to ask for together with the one at `next`.
    fn group(&self, next: usize, holds: &[Option<HoldHandle>]) -> Vec<usize> {
        let open = (next..holds.len()).filter(|at| holds[*at].is_none());
        open.filter(|at| *at == next || self.fit_one_batch(next, *at)).collect()
    }

    /// Returns whether two members are plain locks of one client, one lease and one slot.
    fn fit_one_batch(&self, a: usize, b: usize) -> bool {
        let [a, b] = [&self.calls[a], &self.calls[b]];
        let plain = |call: &AcquireCall<'_>| call.rules.kind() == Plain.kind();
        let slot = |call: &AcquireCall<'_>| {
            call.context.engine.router.slot_of(call.context.local.name().key())
        };
        plain(a)
            && plain(b)
            && a.options.lease == b.options.lease
            && Arc::ptr_eq(&a.context.engine, &b.context.engine)
            && slot(a) == slot(b)
    }

    /// Takes the whole group, or only its first lock if the server refuses the batch.
    ///
    /// A caller that was refused before does not yield again.
    fn take(&self, group: &[usize]) -> Result<MultiOutcome> {
        let mut calls: Vec<_> =
            group.iter().map(|at| self.calls[*at].with_patience(Patience::None)).collect();
        if self.refused.is_some() {
            calls.iter_mut().for_each(|call| call.options.yields_by = None);
        }
        match &calls[..] {
            [single] => take_single(single),
            [first, ..] => match batch::take(&calls) {
                // A slot is migrating, or the client does not know yet that there are slots.
                Err(error) if error.is_server() => take_single(first),
                taken => taken,
            },
            [] => Ok(MultiOutcome::All(Vec::new())),
        }
    }
}

fn take_single(call: &AcquireCall<'_>) -> Result<MultiOutcome> {
    Ok(match call.acquire()? {
        Some(hold) => MultiOutcome::All(vec![hold]),
        None => MultiOutcome::Refused(0),
    })
}

impl Question for MultiAcquire<'_> {
    type Yes = Vec<HoldHandle>;

    fn next(&mut self, now: Moment) -> Result<Step<Vec<HoldHandle>>> {
        Ok(match self.refused {
            _ if now < self.next => Step::Sleep(self.next),
            Some(_) => Step::Ask,
            None => Step::AskAtLeastOnce,
        })
    }

    /// Does one round.
    fn ask(&mut self) -> Result<Option<Vec<HoldHandle>>> {
        let in_turn = self.lost == LOST_ROUNDS;
        let round = if in_turn { self.in_turn() } else { self.round() };
        match round {
            Ok(MultiOutcome::All(holds)) => return Ok(Some(holds)),
            Ok(MultiOutcome::Refused(position)) => self.lost_round(position, in_turn),
            // After its first refusal the caller waits through outages.
            Err(error) if self.refused.is_some() && error.is_outage() => self.interrupted(error),
            Err(error) => return Err(error),
        }
        if !self.patience.is_over(clock::now()) {
            self.record.waits(self.started);
        }
        Ok(None)
    }

    fn give_up(&mut self) -> Result<Option<Vec<HoldHandle>>> {
        self.outage.take().map_or(Ok(None), Err)
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    fn check_not_ended(&self) -> Result<()> {
        self.calls.iter().try_for_each(AcquireCall::check_not_ended)
    }

    fn watch(&mut self) -> Result<Vec<CancelWatch>> {
        Ok(self.calls.iter().flat_map(|call| call.watch(&self.parker)).collect())
    }

    fn parker(&self) -> &Arc<Parker> {
        &self.parker
    }

    fn waits(&mut self) {
        self.record.waits(self.started);
    }
}
