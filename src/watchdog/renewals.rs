//! Renewals and verifications of holds, and the meaning of the replies.
//!
//! | reply | effect |
//! | --- | --- |
//! | renewed | the deadline moves forward; the next renewal is planned |
//! | not held | the hold is lost at once |
//! | none, or too few replicas | the hold stays valid to its deadline; the renewal is repeated |
//!
//! A fixed lease and an overdue hold go through the same scripts, which then verify the hold and
//! extend nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::batches::{self, BatchFailure};
use super::timers::{RENEWAL_GRAIN_DIVISOR, TICK};
use super::{LONGEST_SLEEP, RECONNECT_PAUSE, Watchdog, WatchedHold};
use crate::error::{Error, Result};
use crate::events::{Event, HandleListener, RenewalFailed, Renewed};
use crate::local::hold::{HoldStatus, TimerTask};
use crate::stats::Series;
use crate::transport::call::{Call, Digits};
use crate::transport::pool::request::CallReply;
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// The lease that makes the renewal script extend nothing: every key has more left.
const VERIFY_ONLY: &[u8] = b"-2";

/// A hold that is renewed or verified in this round.
#[derive(Debug)]
pub(super) struct DueHold {
    watched: WatchedHold,
    /// The new length of the lease; `None` if the hold is only verified.
    lease: Option<Duration>,
}

/// The renewals of a round that failed, by the number of the server.
type FailedRenewals = BTreeMap<u32, RenewalFailure>;

/// The renewals of one server that failed, and the first error.
#[derive(Debug)]
struct RenewalFailure {
    holds: Vec<WatchedHold>,
    error: Error,
}

/// The reply to one batch of renewals.
#[derive(Debug)]
struct RenewalReply {
    sent: Moment,
    /// The positions of lost members in the batch; Lua counts from 1.
    lost: Vec<i64>,
    /// Set if the other holds count as not renewed.
    not_replicated: Option<Error>,
}

impl RenewalReply {
    fn read(reply: CallReply) -> Result<RenewalReply> {
        let CallReply { value, sent, not_replicated, .. } = reply;
        Ok(RenewalReply { sent, lost: value.into_ints()?, not_replicated })
    }
}

impl Watchdog {
    /// Returns the holds that are due; ends lost holds among those whose timers have fired.
    pub(super) fn due_holds(&self, fired: Vec<WatchedHold>, now: Moment) -> Vec<DueHold> {
        let mut due = Vec::new();
        for watched in fired {
            watched.local.report_overdue(&watched.hold, now);
            match watched.hold.timer_fired(now) {
                TimerTask::Extend => due.push(self.due(watched, true)),
                TimerTask::Verify => due.push(self.due(watched, false)),
                TimerTask::Orphaned => self.watch_orphaned(watched),
                // A caller may have taken the hold over meanwhile.
                TimerTask::GiveUp if self.give_up(&watched.local, Some(watched.hold.id())) => {}
                TimerTask::GiveUp | TimerTask::Wait => {
                    self.set_timer(watched, |watched| watched.hold.renewal_due());
                }
                TimerTask::Over { newly_lost } => watched.end_lost(newly_lost, &self.router),
            }
        }
        due
    }

    fn due(&self, watched: WatchedHold, renewed: bool) -> DueHold {
        let lease = renewed.then(|| self.lease_of(&watched.hold));
        DueHold { watched, lease }
    }

    /// Lets a lease run out because the thread of its hold has ended.
    fn watch_orphaned(&self, watched: WatchedHold) {
        let name = Arc::clone(watched.local.name().given());
        let (kind, hold) = watched.hold.kind_and_number();
        self.set_renewal_timer(watched);
        log::warn!(
            logger: LINES, target: log_target::LEASE, lock = &*name, kind:?, hold;
            "the thread that held the lock {name:?} has ended: \
             its lease is not renewed any more"
        );
    }

    /// Returns all watched holds.
    pub(super) fn all_holds(&self) -> Vec<DueHold> {
        let (timers, now) = (self.timers.lock(), clock::now());
        let due = |watched: &WatchedHold| self.due(watched.clone(), watched.hold.is_renewed(now));
        timers.holds.iter().map(due).collect()
    }

    /// Returns the holds of servers that may have lost their data. Asks the servers.
    pub(super) fn holds_in_doubt(&self) -> Vec<DueHold> {
        let mut holds = self.all_holds();
        if holds.is_empty() || !self.auditor.is_on() {
            return holds;
        }
        let unchanged = self.replication_ids.unchanged_nodes(&self.router);
        let node = |due: &DueHold| self.router.node_of(due.watched.local.name().key());
        holds.retain(|due| !unchanged.contains(&node(due)));
        holds
    }

    /// Renews or verifies these holds: asks the servers and applies the replies.
    pub(super) fn renew(&self, mut due: Vec<DueHold>) {
        let group = |due: &DueHold| {
            let script = due.watched.renewal_script();
            (due.lease, script.digest(), self.slot_of(&due.watched.local))
        };
        let weight = |due: &DueHold| due.watched.hold.owner().member_count();
        let call = |batch: &[DueHold]| {
            let holds = batch.iter().map(|due| &due.watched);
            match batch.first().and_then(|due| due.lease) {
                Some(lease) => {
                    let lease = Digits::of_millis(lease);
                    renewal_call(holds, lease.as_bytes()).replicated()
                }
                None => renewal_call(holds, VERIFY_ONLY),
            }
        };
        let mut failed = FailedRenewals::new();
        batches::send_weighted(&self.router, &mut due, group, weight, call, |batch, outcome| {
            match outcome.map(RenewalReply::read) {
                Ok(Ok(reply)) => self.apply(batch, &reply, &mut failed),
                Ok(Err(error)) => self.renewal_failed(batch, error, &mut failed),
                Err(BatchFailure::Connecting) => self.repeat_soon(batch),
                Err(BatchFailure::Outdated) => {
                    self.note_possible_extensions(batch);
                    self.repeat_soon(batch);
                }
                Err(BatchFailure::Failed { error, written }) => {
                    if written {
                        self.note_possible_extensions(batch);
                    }
                    self.renewal_failed(batch, error, &mut failed);
                }
            }
        });
        failed.into_values().for_each(|failure| self.repeat(failure));
    }

    fn apply(&self, batch: &[DueHold], reply: &RenewalReply, failed: &mut FailedRenewals) {
        let now = clock::now();
        let (lost, kept) = split_lost(batch, &reply.lost);
        lost.iter().for_each(|due| due.watched.lose(&self.router));
        let (renewed, fixed): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|due| due.lease.is_some());
        fixed.iter().for_each(|due| self.watch(due.watched.clone()));
        if renewed.is_empty() {
            return;
        }
        if let Some(error) = &reply.not_replicated {
            self.note_possible_extensions(renewed.iter().copied());
            return self.renewal_failed(renewed, error.clone(), failed);
        }
        for due in &renewed {
            self.extend(&due.watched, due.lease.unwrap_or_default(), reply.sent, now);
        }
        self.report_renewed(&renewed);
    }

    /// Emits the renewal of a batch: all holds to the client's listener, and to the listener of
    /// each lock handle the holds of that handle.
    fn report_renewed(&self, renewed: &[&DueHold]) {
        let (events, at) = (&self.settings.events, clock::wall_time());
        let number = |due: &&DueHold| due.watched.hold.id().number();
        let all = || renewed.iter().map(number).collect();
        events.emit(|| Event::Renewed(Renewed { at, holds: all() }));
        let mut by_listener: Vec<(HandleListener, Vec<u64>)> = Vec::new();
        for due in renewed {
            let settings = due.watched.hold.settings();
            let Some(listener) = settings.listener() else { continue };
            match by_listener.iter_mut().find(|(other, _)| other.is_same(listener)) {
                Some((_, holds)) => holds.push(number(due)),
                None => by_listener.push((listener.clone(), vec![number(due)])),
            }
        }
        for (listener, holds) in by_listener {
            events.emit_only_to(&listener, || Event::Renewed(Renewed { at, holds }));
        }
    }

    fn extend(&self, watched: &WatchedHold, lease: Duration, sent: Moment, now: Moment) {
        let due = watched.hold.renewal_due();
        self.series(watched).renewed(due.until(sent));
        if !watched.hold.is_renewed(sent) {
            // The limit passed before the renewal was sent: the old deadline stands.
            watched.hold.note_possible_extension(now, lease);
            return self.set_renewal_timer(watched.clone());
        }
        match watched.hold.extend(sent, now, lease) {
            // The hold has to be verified, and this reply may be older than the reason.
            HoldStatus::Held if sent < due && due <= now => {
                self.set_timer(watched.clone(), |_| now);
            }
            HoldStatus::Held => self.set_renewal_timer(watched.clone()),
            HoldStatus::Over { newly_lost } => watched.end_lost(newly_lost, &self.router),
        }
    }

    /// Notes that the server may have extended these leases, although no reply says so.
    fn note_possible_extensions<'a>(&self, batch: impl IntoIterator<Item = &'a DueHold>) {
        let now = clock::now();
        for due in batch {
            if let Some(lease) = due.lease {
                due.watched.hold.note_possible_extension(now, lease);
            }
        }
    }

    /// Reports renewals without a usable reply, and collects those of holds that are still valid.
    fn renewal_failed<'a>(
        &self,
        batch: impl IntoIterator<Item = &'a DueHold>,
        error: Error,
        failed: &mut FailedRenewals,
    ) {
        let now = clock::now();
        for DueHold { watched, lease } in batch {
            if !watched.local.is_valid(&watched.hold, now) {
                watched.release_at_server(&self.router);
                continue;
            }
            if lease.is_some() {
                self.report_failed(watched, &error, now);
            }
            let node = self.router.node_of(watched.local.name().key());
            let failure = failed
                .entry(node)
                .or_insert_with(|| RenewalFailure { holds: Vec::new(), error: error.clone() });
            failure.holds.push(watched.clone());
        }
    }

    fn series(&self, watched: &WatchedHold) -> Series<'_> {
        self.settings.events.stats().series(|| watched.hold.series_key())
    }

    fn report_failed(&self, watched: &WatchedHold, error: &Error, now: Moment) {
        self.series(watched).renewal_failed();
        let name = Arc::clone(watched.local.name().given());
        let error = error.clone().with_lock_name(Arc::clone(&name));
        let remaining = watched.hold.remaining(now);
        let ((kind, hold), at) = (watched.hold.kind_and_number(), clock::wall_time());
        let failed = RenewalFailed { at, name, kind, hold, remaining, error };
        let settings = watched.hold.settings();
        self.settings.events.emit_with(settings.listener(), || Event::RenewalFailed(failed));
    }

    /// Repeats the renewals of one server together, at the end of the server's pause.
    ///
    /// The pause is at most an eighth of the least remaining lease, but not much shorter than the
    /// time for which renewals wait for each other.
    fn repeat(&self, failure: RenewalFailure) {
        let RenewalFailure { holds, error } = failure;
        let now = clock::now();
        let longest = |watched: &WatchedHold| {
            let shortest = (watched.hold.lease() / RENEWAL_GRAIN_DIVISOR).max(TICK);
            (watched.hold.remaining(now) / 8).max(shortest)
        };
        let longest = holds.iter().map(longest).fold(LONGEST_SLEEP, Duration::min);
        let Some(key) = holds.first().map(|watched| watched.local.name().key().to_owned()) else {
            return;
        };
        let at = self.router.retry_private_at(&key, &error, longest);
        holds.into_iter().for_each(|watched| self.set_timer(watched, |_| at));
    }

    /// Repeats these renewals when a connection may have been made.
    fn repeat_soon<'a>(&self, batch: impl IntoIterator<Item = &'a DueHold>) {
        let now = clock::now();
        let watched = batch.into_iter().map(|due| &due.watched);
        for watched in watched.filter(|watched| watched.local.is_valid(&watched.hold, now)) {
            let pause = (watched.hold.remaining(now) / 8).min(RECONNECT_PAUSE).max(TICK);
            self.set_timer(watched.clone(), |_| now + pause);
        }
    }
}

/// Returns the lost holds of a batch and the others, from the positions of the lost members.
///
/// A hold that has lost one of its members is lost.
fn split_lost<'a>(batch: &'a [DueHold], lost: &[i64]) -> (Vec<&'a DueHold>, Vec<&'a DueHold>) {
    let mut first = 1;
    batch.iter().partition(|due| {
        let members = i64::try_from(due.watched.hold.owner().member_count()).unwrap_or(i64::MAX);
        let own = first..first + members;
        first = own.end;
        lost.iter().any(|position| own.contains(position))
    })
}

/// Returns the call that renews these holds; all have the same renewal script.
fn renewal_call<'a>(
    holds: impl ExactSizeIterator<Item = &'a WatchedHold> + Clone,
    lease: &[u8],
) -> Call {
    let script = holds.clone().next().map(WatchedHold::renewal_script);
    let keys = holds.clone().flat_map(|watched| {
        let key = watched.hold.rules().renewal_key(watched.local.name()).as_bytes();
        std::iter::repeat_n(key, watched.hold.owner().member_count())
    });
    let members = holds.flat_map(|watched| watched.hold.owner().members());
    let args = std::iter::once(lease).chain(members);
    match script {
        Some(script) => Call::script(script, keys, args),
        None => Call::command(&[b"PING"]),
    }
}

/// Returns the call that extends one hold, for `extend` and nested guards with longer leases.
pub(crate) fn extension_call(watched: &WatchedHold, lease: Duration) -> Call {
    let lease = Digits::of_millis(lease);
    renewal_call(std::slice::from_ref(watched).iter(), lease.as_bytes()).replicated()
}

/// Returns whether the reply to [`extension_call`] says that the server has the hold.
///
/// An error if too few replicas have the extension.
pub(crate) fn is_extended(reply: CallReply) -> Result<bool> {
    let RenewalReply { lost, not_replicated, .. } = RenewalReply::read(reply)?;
    match not_replicated.filter(|_| lost.is_empty()) {
        Some(error) => Err(error),
        None => Ok(lost.is_empty()),
    }
}
