//! The record of this client, which the watchdog writes, renews and deletes.
//!
//! | state | next step |
//! | --- | --- |
//! | silent: no hold and no wait so far | look at the counters at the first hold, and every [`CHECK_INTERVAL`] |
//! | unwritten | write the record at the planned moment |
//! | written | renew the record after a third of its lifetime, or after a change of servers |
//! | pending | wait for the reply to a write or to a renewal |
//! | refused | none: the user may not write the record |
//!
//! The counters cost acquires nothing; the first hold wakes the watchdog. The commands are
//! background requests that are not retried: the watchdog never waits for their replies, so they
//! delay no renewal of a lease. A renewal that finds no record (a server lost its data) makes the
//! next round write it again. The thread deletes the record when it ends, so that no later renewal
//! can bring it back. If the minimum of a released hold still runs then, the record expires with
//! it: until then it names the former holder.
//!
//! A record that says when others may end the holds of the client is written when the client starts,
//! before its first hold, and lives as long as its longest lease.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use uuid::Uuid;

use super::Watchdog;
use crate::cancel::Limit;
use crate::command::client_record::{self, ClientRecord, LIFETIME};
use crate::error::{Error, Result};
use crate::transport::call::ConnectionId;
use crate::transport::listener::listeners::Listeners;
use crate::transport::pool::Target;
use crate::transport::pool::request::{BackgroundTask, CallReply, Request};
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Mutex;

/// The longest time between two looks at the counters, so that the record of a client that only
/// waits follows within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(400);

/// The time from a renewal to the next one.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(LIFETIME.as_secs() / 3);

/// The time from a failed attempt to the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(3);

/// The longest time for which the end of the watchdog waits for the reply to the deletion.
const DELETION_LIMIT: Duration = Duration::from_millis(500);

/// Announces one client to other processes.
#[derive(Debug)]
pub(crate) struct Announcer {
    client: Uuid,
    /// Whether others may end the holds of the client.
    is_mortal: AtomicBool,
    /// Milliseconds of the longest lease so far.
    longest_lease: AtomicU64,
    listeners: Arc<Listeners>,
    /// Whether the client has had no hold yet.
    has_no_hold: AtomicBool,
    /// Nanoseconds of the moment at which the last minimum of a released hold ends.
    last_minimum: AtomicU64,
    status: Mutex<RecordStatus>,
}

#[derive(Debug)]
struct RecordStatus {
    record: ClientRecord,
    /// Whether the record has changed since the pending command was sent.
    has_changed: bool,
    state: RecordState,
    /// The connection of the last command, which the deletion has to follow.
    connection: Option<ConnectionId>,
}

/// The state of the record, as the watchdog knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    Silent,
    /// The record is to be written at this moment.
    Unwritten(Moment),
    /// The record is to be renewed at this moment.
    Written(Moment),
    /// A command has no reply yet.
    Pending {
        step: RecordStep,
        /// Whether the servers may have changed since the command was sent.
        is_outdated: bool,
    },
    Refused,
}

/// A command about the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordStep {
    Write,
    Renew,
}

impl RecordState {
    /// Returns the state at `now`: an active client is not silent, and after a change of servers
    /// the next step is due at once.
    fn at(self, now: Moment, has_begun: bool, servers_may_have_changed: bool) -> RecordState {
        match self {
            RecordState::Silent if has_begun => RecordState::Unwritten(now),
            RecordState::Unwritten(_) if servers_may_have_changed => RecordState::Unwritten(now),
            RecordState::Written(_) if servers_may_have_changed => RecordState::Written(now),
            RecordState::Pending { step, is_outdated } => {
                RecordState::Pending { step, is_outdated: is_outdated || servers_may_have_changed }
            }
            state => state,
        }
    }

    /// Returns the step that is due at `now`.
    fn due(self, now: Moment) -> Option<RecordStep> {
        match self {
            RecordState::Unwritten(at) if at <= now => Some(RecordStep::Write),
            RecordState::Written(at) if at <= now => Some(RecordStep::Renew),
            _ => None,
        }
    }

    /// Returns the moment at which the watchdog has to look again.
    fn next_look(self, now: Moment) -> Moment {
        match self {
            RecordState::Silent => now + CHECK_INTERVAL,
            RecordState::Unwritten(at) | RecordState::Written(at) => at,
            RecordState::Pending { .. } | RecordState::Refused => Moment::END,
        }
    }

    /// Returns the state after the reply to a step, or after its failure.
    fn after(self, now: Moment, outcome: &Result<Reply>) -> RecordState {
        let RecordState::Pending { step, is_outdated } = self else { return self };
        let pause = if outcome.is_ok() { RENEWAL_INTERVAL } else { RETRY_INTERVAL };
        let next = if is_outdated { now } else { now + pause };
        match (step, outcome) {
            (_, Err(error)) if error.is_final() => RecordState::Refused,
            (RecordStep::Renew, Ok(Reply::Int(0))) => RecordState::Unwritten(now),
            (RecordStep::Write, Err(_)) => RecordState::Unwritten(next),
            (_, Ok(_)) | (RecordStep::Renew, Err(_)) => RecordState::Written(next),
        }
    }
}

impl Announcer {
    /// Announces this process as `client`.
    pub(crate) fn new(
        client: Uuid,
        record: ClientRecord,
        lease: Duration,
        listeners: Arc<Listeners>,
    ) -> Announcer {
        let is_mortal = AtomicBool::new(record.is_mortal());
        let (state, connection) = (RecordState::Silent, None);
        let status = RecordStatus { record, has_changed: false, state, connection };
        let (has_no_hold, last_minimum) = (AtomicBool::new(true), AtomicU64::default());
        let longest_lease = AtomicU64::new(millis(lease));
        let status = Mutex::new(status);
        Announcer { client, is_mortal, longest_lease, listeners, has_no_hold, last_minimum, status }
    }

    /// Notes the lease of a hold. Returns whether the watchdog has to renew the record, which lives
    /// as long as the longest lease if others may end the holds of the client.
    fn outlives(&self, lease: Duration) -> bool {
        let lease = millis(lease);
        if lease <= self.longest_lease.load(Ordering::Relaxed) {
            return false;
        }
        self.longest_lease.fetch_max(lease, Ordering::Relaxed);
        let renews = self.is_mortal.load(Ordering::Relaxed) && lease > millis(LIFETIME);
        if renews {
            let mut status = self.status.lock();
            status.state = status.state.at(clock::now(), false, true);
        }
        renews
    }

    /// Returns the time for which the record stays without a renewal.
    fn lifetime(&self) -> Duration {
        if !self.is_mortal.load(Ordering::Relaxed) {
            return LIFETIME;
        }
        LIFETIME.max(Duration::from_millis(self.longest_lease.load(Ordering::Relaxed)))
    }

    /// Returns whether a hold is the first of the client, which the caller has counted.
    pub(super) fn is_first_hold(&self) -> bool {
        // Most holds are not.
        self.has_no_hold.load(Ordering::Relaxed) && self.has_no_hold.swap(false, Ordering::Relaxed)
    }

    /// Applies the reply to the pending command, or its failure.
    fn settle(&self, outcome: Result<CallReply>) {
        let outcome = outcome.map(|reply| reply.value);
        let (mut status, now) = (self.status.lock(), clock::now());
        let before = status.state;
        status.state = before.after(now, &outcome);
        if mem::take(&mut status.has_changed) && status.state != RecordState::Refused {
            status.state = RecordState::Unwritten(now);
        }
        drop(status);
        match outcome {
            // Not after a renewal: the user may not have the permission to listen.
            Ok(_) if matches!(before, RecordState::Pending { step: RecordStep::Write, .. }) => {
                self.listeners.stay_connected();
            }
            Ok(_) => {}
            Err(error) if error.is_final() => {
                self.listeners.need_not_stay();
                warn_of_refusal(&error, self.is_mortal.load(Ordering::Relaxed));
            }
            Err(error) => log_debug("could not be written or renewed", &error),
        }
    }
}

impl Watchdog {
    /// Sends the due command about the client record. Returns the moment for the next call.
    ///
    /// Does not block. Quiet listeners get their heartbeats together with the renewals.
    pub(super) fn announce(&self, servers_may_have_changed: bool) -> Moment {
        let Some(announcer) = &self.announcer else { return Moment::END };
        let has_begun = self.settings.events.stats().has_begun();
        let now = clock::now();
        let mut status = announcer.status.lock();
        status.state = status.state.at(now, has_begun, servers_may_have_changed);
        let Some(step) = status.state.due(now) else { return status.state.next_look(now) };
        status.state = RecordState::Pending { step, is_outdated: false };
        let command = match step {
            RecordStep::Write => status.record.write(announcer.client, announcer.lifetime()),
            RecordStep::Renew => client_record::expiry(announcer.client, announcer.lifetime()),
        };
        // The same connection again: it is made anew after a failure. Any other one may be dead
        // too.
        let connection = status.connection;
        drop(status);
        let settled = Arc::clone(announcer);
        let task = BackgroundTask::new(Moment::START).then(move |outcome| settled.settle(outcome));
        let request = Request::background(command, task);
        let connection = self.router.send_background(request, connection);
        announcer.status.lock().connection = Some(connection);
        for heartbeat in self.channels.quiet_heartbeats() {
            self.router.send_background(Request::background_once(heartbeat), Some(connection));
        }
        Moment::END
    }

    /// Writes the record of a client whose holds others may end, before its first hold. One round
    /// trip, none for any other client.
    ///
    /// Without a reply the watchdog writes the record again.
    pub(crate) fn announce_first(&self, limit: &Limit<'_>) {
        let is_mortal = |it: &&Arc<Announcer>| it.is_mortal.load(Ordering::Relaxed);
        let Some(announcer) = self.announcer.as_ref().filter(is_mortal) else { return };
        let mut status = announcer.status.lock();
        status.state = RecordState::Pending { step: RecordStep::Write, is_outdated: false };
        let command = status.record.write(announcer.client, announcer.lifetime());
        drop(status);
        let outcome = self.router.call(command, Target::Any, limit);
        if let Ok(reply) = &outcome {
            announcer.status.lock().connection = Some(reply.connection);
        }
        announcer.settle(outcome);
    }

    /// Has the holds of the client end with this process and a process group, and the groups before.
    ///
    /// Returns false if the client has no record, or if the system does not tell of processes.
    pub(crate) fn end_with_group(&self, group: u32) -> bool {
        let Some(announcer) = &self.announcer else { return false };
        let mut status = announcer.status.lock();
        let is_refused = status.state == RecordState::Refused;
        if is_refused || !status.record.end_with_process(Some(group)) {
            return false;
        }
        announcer.is_mortal.store(true, Ordering::Relaxed);
        match status.state {
            RecordState::Written(_) => status.state = RecordState::Unwritten(clock::now()),
            RecordState::Pending { .. } => status.has_changed = true,
            RecordState::Silent | RecordState::Unwritten(_) | RecordState::Refused => {}
        }
        drop(status);
        self.parker.unpark();
        true
    }

    /// Keeps the record of the client for as long as a hold with this lease may last.
    pub(crate) fn keep_record_for(&self, lease: Duration) {
        if self.announcer.as_ref().is_some_and(|announcer| announcer.outlives(lease)) {
            self.parker.unpark();
        }
    }

    /// Has the record outlast the client until this moment, if that is in the future.
    pub(crate) fn keep_record_until(&self, end: Moment) {
        if let Some(announcer) = &self.announcer {
            announcer.last_minimum.fetch_max(end.nanos(), Ordering::Relaxed);
        }
    }

    /// Deletes the record at the end of the watchdog, behind the last command about it. While the
    /// minimum of a released hold runs, the record gets its expiry instead.
    ///
    /// Blocks for [`DELETION_LIMIT`] at most. Without that connection, the record expires.
    pub(super) fn withdraw(&self) {
        let Some(announcer) = &self.announcer else { return };
        let connection = announcer.status.lock().connection;
        let Some(connection) = connection.filter(|it| self.router.is_connected(*it)) else {
            return;
        };
        let now = clock::now();
        let last_minimum = Moment::from_nanos(announcer.last_minimum.load(Ordering::Relaxed));
        let left = now.until(last_minimum);
        let ends = if left.is_zero() {
            vec![client_record::deletion(announcer.client)]
        } else {
            // What the client leaves detached is left on purpose.
            vec![
                client_record::become_immortal(announcer.client),
                client_record::expiry(announcer.client, left),
            ]
        };
        let limit = Limit::at(now + DELETION_LIMIT);
        let queue = |end| self.router.queue(end, Target::Only(connection));
        for routed in ends.into_iter().map(queue).collect::<Vec<_>>() {
            if let (_, Err(failure)) = self.router.wait_without_retry(routed, &limit) {
                log_debug("was not deleted, so it expires", &failure.into_error());
            }
        }
    }
}

fn millis(span: Duration) -> u64 {
    clock::millis(span).unsigned_abs()
}

fn warn_of_refusal(error: &Error, is_mortal: bool) {
    let advice = match error.code() {
        Some("NOPERM") => {
            "permit ~leasehold_client:* +evalsha +script|load +hset +pexpire +del, or "
        }
        _ => "",
    };
    let effect = if is_mortal { ", and end none of its holds" } else { "" };
    log::warn!(
        logger: LINES, target: log_target::CLIENT,
        error:% = error.with_causes(), server = error.server();
        "other processes cannot see which process this client is{effect}, because its record was \
         refused; {advice}build the client with announce(false): {}", error.with_causes()
    );
}

fn log_debug(failure: &str, error: &Error) {
    log::debug!(
        logger: LINES, target: log_target::CLIENT,
        error:% = error.with_causes(), server = error.server();
        "the client record {failure}: {}", error.with_causes()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Refusal;

    #[test]
    fn a_client_is_announced_after_its_first_hold_or_wait() {
        let (now, later) = (Moment::from_nanos(1), Moment::from_nanos(9));
        let silent = RecordState::Silent;
        assert_eq!(silent.at(now, false, true), silent);
        assert_eq!(silent.next_look(now), now + CHECK_INTERVAL);
        assert_eq!(silent.at(now, true, false), RecordState::Unwritten(now));
        for state in [RecordState::Unwritten(later), RecordState::Written(later)] {
            assert_eq!((state.at(now, true, false), state.next_look(now)), (state, later));
        }
    }

    #[test]
    fn a_change_of_servers_makes_the_next_step_due() {
        let (now, later) = (Moment::from_nanos(1), Moment::from_nanos(9));
        let due = |state: RecordState| state.at(now, true, true);
        assert_eq!(due(RecordState::Written(later)), RecordState::Written(now));
        assert_eq!(due(RecordState::Unwritten(later)), RecordState::Unwritten(now));
        assert_eq!(due(RecordState::Refused), RecordState::Refused);
        assert_eq!(RecordState::Refused.next_look(now), Moment::END);
    }

    #[test]
    fn the_reply_decides_the_next_step() {
        let now = Moment::from_nanos(1);
        let (next, retry) = (now + RENEWAL_INTERVAL, now + RETRY_INTERVAL);
        let after = |step, outcome: &Result<Reply>| {
            RecordState::Pending { step, is_outdated: false }.after(now, outcome)
        };
        let (kept, gone, late) = (Ok(Reply::Int(1)), Ok(Reply::Int(0)), Err(Error::timeout()));
        let refused = Err(Error::refused(&Refusal::new("NOPERM", "no permissions")));
        assert_eq!(after(RecordStep::Write, &kept), RecordState::Written(next));
        assert_eq!(after(RecordStep::Renew, &kept), RecordState::Written(next));
        assert_eq!(after(RecordStep::Renew, &gone), RecordState::Unwritten(now));
        assert_eq!(after(RecordStep::Write, &late), RecordState::Unwritten(retry));
        assert_eq!(after(RecordStep::Renew, &late), RecordState::Written(retry));
        for step in [RecordStep::Write, RecordStep::Renew] {
            assert_eq!(after(step, &refused), RecordState::Refused);
            let pending = RecordState::Pending { step, is_outdated: false };
            assert_eq!((pending.due(now), pending.next_look(now)), (None, Moment::END));
            let outdated = pending.at(now, true, true).at(now, true, false);
            assert!(outdated.after(now, &late).due(now) == Some(step), "at once at the new server");
        }
    }
}
