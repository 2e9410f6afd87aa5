//! The question of a call for a red lock, for the [loop](crate::wait).
//!
//! A caller joins the queue of its process. While it is behind the head it sleeps. At the head:
//! 1. A thread of this process holds the lock: the caller sleeps until that hold ends, and polls
//!    the servers ([`HoldPoll`]), since the lock may have been freed there.
//! 2. Otherwise it yields, if callers of other processes wait (`local/fairness.rs`), or asks all
//!    servers at the same time ([`Ballot`]). With a majority of grants it holds the lock. Otherwise
//!    it releases the minority of grants.
//! 3. After the first refusal it subscribes to the channels of all servers and asks again at once,
//!    since a message may have passed before. After a later refusal it sleeps until a message
//!    arrives or a growing pause ends, and asks again.
//!
//! The call fails if too few servers answer the first question. Once the lock was refused, the call
//! waits through outages until its deadline.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{AcquireOptions, HoldHandle, REPLY_GRACE};
use crate::cancel::{CancelToken, CancelWatch};
use crate::command::owner::{HoldId, Holder};
use crate::error::{Error, LostReason, Result};
use crate::events::{Event, Kind, Waited};
use crate::kind::plain::Plain;
use crate::local::YieldsTo;
use crate::local::queue::Ticket;
use crate::lock::handle::Lock;
use crate::lock::red_lock::ballot::{Ballot, BallotLimits};
use crate::lock::red_lock::local::RedTurn;
use crate::lock::red_lock::quorum::QuorumHold;
use crate::lock::red_lock::{RedLock, RedMember};
use crate::stats::CallRecord;
use crate::transport::listener::channels::{Channel, MessageCount, Registration};
use crate::util::clock::{self, Moment, Patience, doubled, jittered};
use crate::util::sync::Parker;
use crate::wait::own_guard::OwnGuardWarning;
use crate::wait::{Question, Step, wait_for};

/// The first and the longest pause before a caller that receives no message asks again.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The first and the longest span in which a refused caller ignores messages after a wake-up.
///
/// A caller also receives the messages of the releases of its own minority grants. Without this
/// span those messages would wake the caller again and again.
const FIRST_QUIET: Duration = Duration::from_millis(1);
const LONGEST_QUIET: Duration = Duration::from_millis(128);

/// The number of late grants by a majority at which a call ends with an error.
const MAX_LATE_GRANTS: u32 = 3;

/// A caller in the queue of its process. Leaves the queue when dropped.
pub(super) struct RedAcquire<'a> {
    lock: &'a RedLock,
    patience: Patience,
    started: Moment,
    holder: Holder,
    parker: Arc<Parker>,
    ticket: Ticket,
    /// Wakes the caller when the call is cancelled or a client is closed, also during a ballot.
    _watching: Vec<CancelWatch>,
    channels: RedChannels,
    retries: RedRetries,
    record: &'a CallRecord<'a>,
    /// Observes the hold of this process that the caller waits for.
    hold_poll: Option<HoldPoll>,
    own_guard: OwnGuardWarning,
}

/// The questions of one call so far.
#[derive(Default)]
struct RedRetries {
    refusals: u32,
    /// Consecutive wake-ups by a message that ended in a refusal.
    refused_wake_ups: u32,
    late_grants: u32,
    /// Why too few servers answered the last question.
    error: Option<Error>,
    /// The end of the time in which the caller ignores messages.
    quiet_until: Moment,
    /// The moment of the next question, unless a message makes it due earlier.
    next: Moment,
    /// Whether the call has asked since its patience is over.
    has_asked_last: bool,
}

impl Drop for RedAcquire<'_> {
    fn drop(&mut self) {
        self.lock.local.leave(self.ticket);
    }
}

impl<'a> RedAcquire<'a> {
    pub(super) fn new(
        lock: &'a RedLock,
        patience: Patience,
        holder: Holder,
        (parker, ticket): (Arc<Parker>, Ticket),
        record: &'a CallRecord<'a>,
    ) -> RedAcquire<'a> {
        RedAcquire {
            lock,
            patience,
            started: clock::now(),
            holder,
            ticket,
            _watching: lock.watch(&parker),
            parker,
            channels: RedChannels::default(),
            retries: RedRetries::default(),
            record,
            hold_poll: None,
            own_guard: OwnGuardWarning::default(),
        }
    }

    /// Blocks until the lock is granted. `None` if the caller's patience ends first.
    pub(super) fn run(mut self) -> Result<Option<Arc<QuorumHold>>> {
        let outcome = wait_for(&mut self);
        if let Some(waited) = self.record.waited() {
            let acquired = matches!(outcome, Ok(Some(_)));
            let (at, kind, hold) = (clock::wall_time(), Kind::Red, None);
            for RedMember { engine, lock } in &self.lock.members {
                engine.events.emit_with(lock.listener(), || {
                    let name = Arc::clone(&self.lock.name);
                    Event::Waited(Waited { at, name, kind, hold, waited, acquired })
                });
            }
        }
        outcome
    }

    /// Returns the moment until which the call yields to callers of other processes, if it does.
    ///
    /// The call yields for all servers together: the servers' own calls do not.
    fn yields_until(&self, now: Moment) -> Option<Moment> {
        if self.retries.refusals > 0 {
            return None;
        }
        let yields = YieldsTo::of(self.patience, now);
        let members = self.lock.members.iter();
        members.filter_map(|member| member.lock.yield_until(yields, now)).max()
    }

    /// Warns of a long wait for an owned guard that this thread took. Returns the next check.
    ///
    /// A call that ends now waits no more.
    fn warn_of_own_guard(&mut self, now: Moment) -> Moment {
        if self.patience.is_over(now) {
            return Moment::END;
        }
        let RedLock { name, local, .. } = self.lock;
        let (owned, deadline) = (self.holder.is_owned(), self.patience.deadline());
        let awaits = || local.has_own_guard();
        self.own_guard.check(self.started, now, deadline, owned, awaits, (name, Kind::Red))
    }

    /// Returns until when the caller sleeps while a thread of this process has this hold.
    ///
    /// Polls the servers at the poll interval, and marks the hold as lost if they report the lock
    /// free.
    fn watch_hold(&mut self, hold: &Arc<QuorumHold>, now: Moment) -> Moment {
        let lock = self.lock;
        hold.watch(&self.parker);
        let known = self.hold_poll.take().filter(|poll| Arc::ptr_eq(&poll.hold, hold));
        let poll = self.hold_poll.insert(known.unwrap_or_else(|| HoldPoll {
            hold: Arc::clone(hold),
            due: clock::now() + lock.poll_interval(),
            query: None,
        }));
        if poll.finds_free(lock) {
            hold.lose(LostReason::Gone);
            return now;
        }
        let end = now + hold.remaining();
        end.min(poll.query.as_ref().map_or(poll.due, |query| query.next_check()))
    }

    /// Plans the next question after a refusal, or after one that too few servers answered.
    ///
    /// After the first one the caller subscribes, and asks again at once: messages before the
    /// subscription were missed. Later it waits for a message or for the end of a growing pause.
    /// After wake-ups that ended in a refusal, it first ignores messages for a growing span.
    fn refused(&mut self) {
        let now = clock::now();
        if self.patience.is_over(now) {
            return;
        }
        self.record.waits(self.started);
        if self.channels.registrations.is_empty() {
            self.retries.next = now;
            return self.channels.listen(&self.lock.members, &self.parker);
        }
        let seed = HoldId::next().seed();
        let grown = |first: Duration, times: u32, longest: Duration| {
            now + jittered(doubled(first, times, longest), seed ^ now.nanos())
        };
        let retries = &mut self.retries;
        retries.next = grown(FIRST_PAUSE, retries.refusals, LONGEST_PAUSE);
        if retries.refused_wake_ups > 0 {
            retries.quiet_until = grown(FIRST_QUIET, retries.refused_wake_ups, LONGEST_QUIET);
        }
    }

    /// Asks all servers at the same time.
    fn ask_all(&mut self) -> Result<Option<Arc<QuorumHold>>> {
        let ballot = self.open_ballot();
        if !ballot.decide_while(|| self.lock.check_not_ended())? {
            return Ok(None);
        }
        let hold = Arc::new(QuorumHold::new(self.lock.quorum(), ballot.take_yes()));
        let (adopting, alive) = (Arc::downgrade(&hold), Arc::downgrade(&hold));
        let is_wanted = move || alive.strong_count() > 0;
        ballot.hand_over(is_wanted, move |late| match adopting.upgrade() {
            Some(hold) => drop(hold.adopt(late)),
            None => drop(late),
        });
        if hold.check().is_err() {
            self.retries.late_grants += 1;
            if self.retries.late_grants == MAX_LATE_GRANTS {
                let text = "a majority of the grants arrived too late";
                return Err(Error::lost(LostReason::Expired, text));
            }
            return Ok(None);
        }
        self.lock.local.granted(&hold, self.holder.clone());
        Ok(Some(hold))
    }

    fn open_ballot(&self) -> Arc<Ballot<HoldHandle>> {
        let lock = self.lock;
        let left = clock::now().until(self.patience.deadline() + REPLY_GRACE);
        let limits = BallotLimits::of_acquire(lock.term(), lock.response_timeout().min(left));
        let ballot = Ballot::new(lock.members.len(), lock.quorum(), limits, &self.parker);
        let is_repeated = self.retries.refusals > 0;
        for RedMember { engine, lock: member } in lock.members.iter().cloned() {
            let (asking, holder) = (Arc::clone(&ballot), self.holder.clone());
            let (lease, return_by, cancel) =
                (lock.lease, self.patience.deadline(), lock.cancel.clone());
            ballot.ask(&engine.executor, move || {
                if asking.is_wanted() {
                    let ends = (return_by, cancel.as_ref());
                    acquire_member(&member, &holder, lease, ends, is_repeated)
                } else {
                    Ok(None)
                }
            });
        }
        ballot
    }
}

impl Question for RedAcquire<'_> {
    type Yes = Arc<QuorumHold>;

    fn next(&mut self, now: Moment) -> Result<Step<Arc<QuorumHold>>> {
        let sleep_until = match self.lock.local.turn(self.ticket) {
            RedTurn::Behind => {
                self.retries.next = now;
                Moment::END
            }
            RedTurn::HeldHere(_) if self.patience.is_over(now) => now,
            RedTurn::HeldHere(hold) => {
                // Asks when the hold ends.
                self.retries.next = now;
                self.watch_hold(&hold, now)
            }
            RedTurn::Ask => {
                if let Some(end) = self.yields_until(now) {
                    return Ok(Step::Yield(end));
                }
                let RedRetries { quiet_until, next, has_asked_last, .. } = self.retries;
                // The end of a lease brings no message, so a call asks once more at its end.
                if self.patience.is_over(now) && !has_asked_last {
                    self.retries.has_asked_last = true;
                    return Ok(Step::AskAtLeastOnce);
                }
                if now < quiet_until {
                    quiet_until
                } else if next <= now || self.channels.has_unseen() {
                    return Ok(Step::Ask);
                } else {
                    next
                }
            }
        };
        Ok(Step::Sleep(sleep_until.min(self.warn_of_own_guard(now))))
    }

    fn ask(&mut self) -> Result<Option<Arc<QuorumHold>>> {
        let woken = self.channels.mark_seen();
        let outcome = self.ask_all();
        let failure = outcome.as_ref().err().filter(|error| error.is_outage()).cloned();
        self.lock.local.set_last_error(failure.clone());
        let retries = &mut self.retries;
        match outcome {
            Ok(Some(hold)) => return Ok(Some(hold)),
            Ok(None) => {}
            Err(error) if retries.refusals == 0 || failure.is_none() => return Err(error),
            Err(_) => {}
        }
        retries.error = failure;
        retries.refusals = retries.refusals.saturating_add(1);
        retries.refused_wake_ups =
            if woken { retries.refused_wake_ups.saturating_add(1) } else { 0 };
        self.refused();
        Ok(None)
    }

    fn give_up(&mut self) -> Result<Option<Arc<QuorumHold>>> {
        let error = self.retries.error.take().or_else(|| self.lock.local.last_error());
        error.map_or(Ok(None), Err)
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    fn check_not_ended(&self) -> Result<()> {
        self.lock.check_not_ended()
    }

    fn watch(&mut self) -> Result<Vec<CancelWatch>> {
        // They exist since the beginning, because a ballot sleeps on the same parker.
        Ok(Vec::new())
    }

    fn parker(&self) -> &Arc<Parker> {
        &self.parker
    }

    fn waits(&mut self) {
        self.record.waits(self.started);
    }
}

/// The channels of all servers. Empty until the first refusal.
#[derive(Default)]
struct RedChannels {
    registrations: Vec<Registration>,
    /// The message counts before the last question.
    seen: Vec<MessageCount>,
}

impl RedChannels {
    fn listen(&mut self, members: &[RedMember], parker: &Arc<Parker>) {
        for RedMember { engine, lock } in members {
            if let Some(channel) = lock.channel() {
                self.registrations.push(Channel::register(&channel, parker));
                engine.subscribe(&channel);
            }
        }
        self.seen = self.counts();
    }

    fn counts(&self) -> Vec<MessageCount> {
        self.registrations.iter().map(Registration::message_count).collect()
    }

    fn has_unseen(&self) -> bool {
        self.counts() != self.seen
    }

    /// Marks all messages as seen. Returns whether there were unseen ones.
    fn mark_seen(&mut self) -> bool {
        let counts = self.counts();
        std::mem::replace(&mut self.seen, counts) != self.seen
    }
}

/// Polls the servers for a hold of this process that a caller waits for.
///
/// The caller sleeps during a query, since the hold may end first.
struct HoldPoll {
    hold: Arc<QuorumHold>,
    /// The moment of the next query.
    due: Moment,
    query: Option<Arc<Ballot<Duration>>>,
}

impl HoldPoll {
    /// Returns whether the servers report the lock free. Does not block.
    fn finds_free(&mut self, lock: &RedLock) -> bool {
        let now = clock::now();
        if self.query.is_none() && self.due <= now {
            self.due = now + lock.poll_interval();
            self.query = Some(lock.query(Lock::remaining, false));
        }
        let decided = self.query.as_ref().and_then(|query| query.decided());
        if decided.is_some() {
            self.end_query();
        }
        matches!(decided, Some(Ok(false)))
    }

    fn end_query(&mut self) {
        if let Some(query) = self.query.take() {
            query.close();
        }
    }
}

impl Drop for HoldPoll {
    fn drop(&mut self) {
        self.end_query();
    }
}

/// Takes the lock on one server without waiting, for the caller of the red lock.
fn acquire_member(
    lock: &Lock<Plain>,
    holder: &Holder,
    lease: Option<Duration>,
    (return_by, cancel): (Moment, Option<&CancelToken>),
    is_repeated: bool,
) -> Result<Option<HoldHandle>> {
    let options = AcquireOptions {
        lease,
        owned: holder.is_owned(),
        on_behalf: Some(holder),
        return_by,
        cancel,
        yields_by: None,
        is_repeated,
        ..AcquireOptions::new(Patience::None)
    };
    match lock.acquire_call(&options)?.acquire() {
        // This thread has a lost hold on that server, which the executor releases soon.
        Err(error) if error.is_lost() => Ok(None),
        outcome => outcome,
    }
}
