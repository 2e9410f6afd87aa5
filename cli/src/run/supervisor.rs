//! The loop from the start of the command to its end, and the end that `leasehold` forces.

use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitStatus};

use super::group::{Change, Group};
use super::signals::{Event, Events};
use super::terminal::JobControl;

/// The time from TERM to KILL.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The longest wait for the end of the group after KILL.
///
/// No process of the group runs any code of its own then; the kernel may still be busy with it.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The pause between two looks at a group that has to end.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The end of the command.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// The command ended by itself.
    Ended(WaitStatus),
    /// The lock was lost.
    Lost(Rest),
    /// The command ran for too long.
    TooLong(Rest),
}

/// The processes of the command after an end by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The command had ended by itself before.
    HadEnded,
    Nothing,
    /// Processes that KILL did not end: those of another user, or the kernel is busy with them.
    Survivors,
}

/// Waits for the end of the command, and forwards signals.
pub(super) struct Supervisor {
    group: Group,
    events: Events,
    jobs: JobControl,
    /// The moment at which the command has run for too long.
    limit: Option<Instant>,
}

impl Supervisor {
    pub(super) fn new(
        group: Group,
        jobs: JobControl,
        events: Events,
        limit: Option<Instant>,
    ) -> Supervisor {
        let jobs = jobs.with(group.id());
        Supervisor { group, events, jobs, limit }
    }

    /// Blocks until the command has ended; ends it after a loss of the lock and after the limit.
    pub(super) fn run(mut self) -> End {
        loop {
            match self.next(self.limit) {
                None => return End::TooLong(self.terminate()),
                Some(Event::Lost) => return End::Lost(self.terminate()),
                Some(Event::Signal(Signal::CHILD)) => match self.group.change() {
                    Some(Change::Ended(status)) => {
                        // Shells, too, restore the settings that a killed command has left behind.
                        if status.signaled() {
                            self.jobs.end_with_old_settings();
                        } else {
                            self.jobs.end();
                        }
                        return End::Ended(status);
                    }
                    Some(Change::Stopped(signal)) => self.jobs.stopped(signal, &self.group),
                    None => {}
                },
                Some(Event::Signal(signal)) => self.jobs.forward(signal, &self.group),
            }
        }
    }

    /// Returns the next event, or `None` at the limit.
    fn next(&self, limit: Option<Instant>) -> Option<Event> {
        let events = self.events.receiver();
        let Some(limit) = limit else {
            // This value has a sender itself, so the channel stays open.
            return events.recv().ok();
        };
        events.recv_timeout(limit.saturating_duration_since(Instant::now())).ok()
    }

    /// Ends all processes of the group: TERM, and KILL after 5 s. Takes the terminal back.
    fn terminate(&mut self) -> Rest {
        self.group.change();
        if self.group.has_ended() {
            self.jobs.end_with_old_settings();
            return Rest::HadEnded;
        }
        Group::adopt();
        self.group.signal(Signal::TERM);
        // A stopped process takes TERM only when it continues.
        self.group.signal(Signal::CONT);
        let mut has_ended = self.ends_within(GRACE);
        if !has_ended {
            self.group.signal(Signal::KILL);
            has_ended = self.ends_within(LAST_WAIT);
        }
        self.jobs.end_with_old_settings();
        if has_ended { Rest::Nothing } else { Rest::Survivors }
    }

    /// Returns whether the group ends within `time`. Forwards signals meanwhile.
    fn ends_within(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        loop {
            self.group.change();
            if self.group.has_ended() {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            match self.next(Some(Instant::now() + CHECK_INTERVAL)) {
                // A stop would only delay the end.
                Some(Event::Signal(Signal::CHILD | Signal::TSTP) | Event::Lost) | None => {}
                Some(Event::Signal(signal)) => self.group.signal(signal),
            }
        }
    }
}
