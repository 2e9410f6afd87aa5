//! The record of this client, which the watchdog writes, renews and deletes.
//!
//! | state | next step |
//! | --- | --- |
//! | silent: no hold and no wait so far | look at the counters every [`CHECK_INTERVAL`] |
//! | unwritten | write the record at the planned moment |
//! | written | renew the record after a third of its lifetime, or after a change of servers |
//! | refused | none: the user may not write the record |
//!
//! The counters cost acquires nothing. A renewal that finds no record (a server lost its data)
//! writes it again in the same round. The thread deletes the record when it ends, so that no later
//! renewal can bring it back. Everything here comes after renewals and polls in a round.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::batches::{self, BatchFailure};
use super::{RECONNECT_PAUSE, Watchdog};
use crate::command::client_record::{self, ClientRecord, LIFETIME};
use crate::error::Error;
use crate::listener::shards::Listeners;
use crate::stats::StatsRecorder;
use crate::util::clock::{self, Moment};
use crate::util::sync::Mutex;
use crate::util::{log_target, threads};

/// The longest time between two looks at the counters: the record follows within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(400);

/// The time from a renewal, or from a failed attempt, to the next renewal.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(LIFETIME.as_secs() / 3);

/// Announces one client to other processes.
#[derive(Debug)]
pub(crate) struct Announcer {
    client: Uuid,
    record: ClientRecord,
    listeners: Arc<Listeners>,
    state: Mutex<RecordState>,
}

/// The state of the record, as the watchdog knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    Silent,
    /// The record is to be written at this moment.
    Unwritten(Moment),
    /// The record is to be renewed at this moment.
    Written(Moment),
    Refused,
}

impl RecordState {
    /// Returns the state at `now`: an active client is not silent, and after a change of servers
    /// the next step is due at once.
    fn at(self, now: Moment, has_begun: bool, servers_may_have_changed: bool) -> RecordState {
        match self {
            RecordState::Silent if has_begun => RecordState::Unwritten(now),
            RecordState::Unwritten(_) if servers_may_have_changed => RecordState::Unwritten(now),
            RecordState::Written(_) if servers_may_have_changed => RecordState::Written(now),
            state => state,
        }
    }

    /// Returns the moment at which the watchdog has to look again.
    fn next_look(self, now: Moment) -> Moment {
        match self {
            RecordState::Silent => now + CHECK_INTERVAL,
            RecordState::Unwritten(at) | RecordState::Written(at) => at,
            RecordState::Refused => Moment::END,
        }
    }
}

impl Announcer {
    /// Announces this process as `client`.
    pub(crate) fn new(client: Uuid, label: Option<&str>, listeners: Arc<Listeners>) -> Announcer {
        let record = ClientRecord::of_this_process(label);
        Announcer { client, record, listeners, state: Mutex::new(RecordState::Silent) }
    }

    /// Returns the state at `now`, and stores it.
    fn state_at(&self, now: Moment, stats: &StatsRecorder, changed: bool) -> RecordState {
        let mut state = self.state.lock();
        *state = state.at(now, stats.has_begun(), changed);
        *state
    }

    /// Returns the state after a failed attempt. `retry` makes it from the moment of the next one.
    fn after_failure(
        &self,
        failure: BatchFailure,
        retry: impl FnOnce(Moment) -> RecordState,
    ) -> RecordState {
        let soon = matches!(failure, BatchFailure::Connecting | BatchFailure::Outdated);
        let pause = if soon { RECONNECT_PAUSE } else { RENEWAL_INTERVAL };
        let error = failure.into_error();
        if error.is_final() {
            self.listeners.need_not_stay();
            warn_of_refusal(&error);
            return RecordState::Refused;
        }
        log_debug("could not be written or renewed", &error);
        retry(clock::now() + pause)
    }
}

impl Watchdog {
    /// Writes or renews the client record if that is due. Returns when to call this again.
    pub(super) fn announce(&self, servers_may_have_changed: bool) -> Moment {
        let Some(announcer) = &self.announcer else { return Moment::END };
        let (now, stats) = (clock::now(), self.settings.events.stats());
        let state = match announcer.state_at(now, stats, servers_may_have_changed) {
            RecordState::Unwritten(at) if at <= now => self.write_record(announcer),
            RecordState::Written(at) if at <= now => self.renew_record(announcer),
            state => state,
        };
        *announcer.state.lock() = state;
        state.next_look(now)
    }

    fn write_record(&self, announcer: &Announcer) -> RecordState {
        let write = announcer.record.write(announcer.client);
        match batches::send_one(&self.router, write) {
            Ok(_) => {
                announcer.listeners.stay_connected();
                RecordState::Written(clock::now() + RENEWAL_INTERVAL)
            }
            Err(failure) => announcer.after_failure(failure, RecordState::Unwritten),
        }
    }

    /// Renews the record and sends the heartbeats of quiet listeners, in one write.
    fn renew_record(&self, announcer: &Announcer) -> RecordState {
        let heartbeats = self.queue_all(self.channels.quiet_heartbeats());
        let renewed = batches::send_one(&self.router, client_record::renewal(announcer.client));
        self.wait_for_heartbeats(heartbeats);
        match renewed.map(|reply| reply.value.into_int()) {
            Ok(Ok(0)) => self.write_record(announcer),
            Ok(Ok(_)) => RecordState::Written(clock::now() + RENEWAL_INTERVAL),
            Ok(Err(error)) => {
                announcer.after_failure(BatchFailure::failed(error), RecordState::Written)
            }
            Err(failure) => announcer.after_failure(failure, RecordState::Written),
        }
    }

    /// Deletes the record at the end of the watchdog, if it was written and the server can be
    /// reached.
    pub(super) fn withdraw(&self) {
        let Some(announcer) = &self.announcer else { return };
        let state = *announcer.state.lock();
        if !matches!(state, RecordState::Written(_)) {
            return;
        }
        let deletion = client_record::deletion(announcer.client);
        if !self.router.is_private_connected(&deletion) {
            return;
        }
        if let Err(failure) = batches::send_one(&self.router, deletion) {
            let error = failure.into_error();
            log_debug("was not deleted, so it expires", &error);
        }
    }
}

fn warn_of_refusal(error: &Error) {
    threads::log_without_panic(|| {
        log::warn!(
            target: log_target::CLIENT, error:%, server = error.server();
            "other processes cannot see which process this client is, because its record was \
             refused; permit ~leasehold_client:* +evalsha +script|load +hset +pexpire +del, or \
             build the client with announce(false): {error}"
        );
    });
}

fn log_debug(failure: &str, error: &Error) {
    threads::log_without_panic(|| {
        log::debug!(
            target: log_target::CLIENT, error:%, server = error.server();
            "the client record {failure}: {error}"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
