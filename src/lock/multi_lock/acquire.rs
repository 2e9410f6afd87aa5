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
//! A caller that a lock was refused to waits through outages. Its next round begins with the lock
//! that failed, at the end of the pause that everything at that server shares ([`health`]), so many
//! callers make few attempts.
//!
//! [`health`]: crate::transport::topology::health

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{AcquireCall, HoldHandle};
use crate::cancel::Limit;
use crate::command::owner::HoldId;
use crate::error::{Error, Result};
use crate::kind::plain::Plain;
use crate::kind::rules::KindRules as _;
use crate::lock::multi_lock::batch;
use crate::stats::CallRecord;
use crate::util::clock::{self, Patience, doubled, jittered};
use crate::util::sync::Parker;

/// The first and the longest pause of a caller after a lost round.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

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

/// The error of a round, and the position of its lock.
struct Failed {
    position: usize,
    error: Error,
}

type RoundResult<T> = std::result::Result<T, Failed>;

/// The calls for all members, and the patience of the caller for the whole.
pub(super) struct MultiAcquire<'a> {
    pub(super) calls: Vec<AcquireCall<'a>>,
    pub(super) patience: Patience,
    pub(super) record: &'a CallRecord<'a>,
}

impl MultiAcquire<'_> {
    /// Blocks until all locks are granted. `None` if the caller's patience ends first.
    pub(super) fn acquire(&self) -> Result<Option<Vec<HoldHandle>>> {
        let (mut first, mut lost, mut turns) = (None, 0, 0);
        let started = clock::now();
        loop {
            let in_turn = lost == LOST_ROUNDS;
            let round = if in_turn { self.in_turn(turns).map(Some) } else { self.round(first) };
            let refused = match round {
                Ok(Some(MultiOutcome::All(holds))) => return Ok(Some(holds)),
                Ok(None) => return Ok(None),
                Ok(Some(MultiOutcome::Refused(position))) => position,
                // After its first refusal the caller waits through outages.
                Err(Failed { position, error }) if first.is_some() && error.is_outage() => {
                    let now = clock::now();
                    if self.patience.is_over(now) {
                        return Err(error);
                    }
                    self.calls.iter().try_for_each(AcquireCall::check_not_ended)?;
                    self.record.waits(started);
                    let AcquireCall { context, options, .. } = &self.calls[position];
                    let end = context.health().retry_at(now, &error).min(self.patience.end());
                    let limit = Limit::none().or_closed(&context.engine.closing);
                    limit.or_cancelled(options.cancel).pause(now.until(end));
                    // The next round begins where this one ended: it takes no lock for nothing.
                    (first, lost) = (Some(position), lost.min(LOST_ROUNDS - 1));
                    continue;
                }
                Err(failed) => return Err(failed.error),
            };
            if self.patience.is_over(clock::now()) {
                return Ok(None);
            }
            self.record.waits(started);
            if in_turn {
                // The refused lock may be held for long: the next round waits for it alone.
                (lost, turns) = (LOST_ROUNDS - 1, turns + 1);
            } else if first.is_some() {
                pause(lost, self.patience);
                lost += 1;
            }
            first = Some(refused);
        }
    }

    /// Waits for each lock in turn, for a short time, and keeps the earlier locks meanwhile.
    fn in_turn(&self, turns: u32) -> RoundResult<MultiOutcome> {
        let wait = doubled(FIRST_WAIT, turns, LONGEST_WAIT);
        let mut holds = Vec::with_capacity(self.calls.len());
        for (position, call) in self.calls.iter().enumerate() {
            let wait = jittered(wait, HoldId::next().seed());
            let end = (clock::now() + wait).min(self.patience.end());
            let outcome = call.with_patience(Patience::Until(end)).repeated().acquire();
            match outcome.map_err(|error| Failed { position, error })? {
                Some(hold) => holds.push(hold),
                None => return Ok(MultiOutcome::Refused(position)),
            }
        }
        Ok(MultiOutcome::All(holds))
    }

    /// Waits for the lock that was refused before, and asks for the others without waiting.
    ///
    /// Returns `None` if the caller's patience ends.
    fn round(&self, first: Option<usize>) -> RoundResult<Option<MultiOutcome>> {
        let mut holds: Vec<Option<HoldHandle>> = self.calls.iter().map(|_| None).collect();
        if let Some(first) = first {
            let outcome = self.calls[first].repeated().acquire();
            holds[first] = outcome.map_err(|error| Failed { position: first, error })?;
            if holds[first].is_none() {
                return Ok(None);
            }
        }
        while let Some(next) = holds.iter().position(Option::is_none) {
            // The positions of the locks to ask for together with the one at `next`.
            let open = (next..holds.len()).filter(|at| holds[*at].is_none());
            let group: Vec<_> =
                open.filter(|at| *at == next || self.fit_one_batch(next, *at)).collect();
            let taken = self.take(&group, first.is_some());
            match taken.map_err(|error| Failed { position: next, error })? {
                MultiOutcome::Refused(position) => {
                    return Ok(Some(MultiOutcome::Refused(group[position])));
                }
                MultiOutcome::All(taken) => {
                    for (at, hold) in group.into_iter().zip(taken) {
                        holds[at] = Some(hold);
                    }
                }
            }
        }
        Ok(Some(MultiOutcome::All(holds.into_iter().flatten().collect())))
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
            && a.lease() == b.lease()
            && a.options.lease.is_some() == b.options.lease.is_some()
            && Arc::ptr_eq(&a.context.engine, &b.context.engine)
            && slot(a) == slot(b)
    }

    /// Takes the whole group, or only its first lock if the server refuses the batch.
    ///
    /// A caller that was refused before does not yield again.
    fn take(&self, group: &[usize], was_refused: bool) -> Result<MultiOutcome> {
        let mut calls: Vec<_> =
            group.iter().map(|at| self.calls[*at].with_patience(Patience::None)).collect();
        if was_refused {
            for call in &mut calls {
                (call.options.yields_by, call.options.is_repeated) = (None, true);
            }
        }
        match &calls[..] {
            [single] => take_single(single),
            [first, ..] => match batch::take(&calls) {
                // A slot is migrating.
                Err(error) if error.code() == Some("TRYAGAIN") => take_single(first),
                // The server would refuse each lock, too.
                Err(error) if was_refused && error.is_outage() => Err(error),
                // The client may not know yet that there are slots.
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

/// Pauses after a lost round, so that the callers with the locks can finish.
fn pause(lost: u32, patience: Patience) {
    let now = clock::now();
    let pause = doubled(FIRST_PAUSE, lost, LONGEST_PAUSE);
    let end = (now + jittered(pause, HoldId::next().seed() ^ now.nanos())).min(patience.end());
    let parker = Parker::mine();
    while clock::now() < end {
        parker.park_until(end);
    }
}
