//! [`Span`]: a hold or a wait, with a start and an end.

use std::collections::BTreeMap;

use crate::observe::event::LockEvent;
use crate::timeline::identity::Identity;

/// The activity of a thread with a lock during a [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Activity {
    Wait,
    Hold,
    /// A hold whose lease ended before its release.
    LostHold,
    /// No hold: the minimum of the hold before keeps the lock taken.
    Kept,
}

impl Activity {
    pub(crate) fn is_hold(self) -> bool {
        matches!(self, Activity::Hold | Activity::LostHold)
    }
}

/// A hold or a wait of one thread. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    /// The number of the lock in [`Recorded::locks`].
    pub(crate) lock: usize,
    pub(crate) activity: Activity,
    pub(crate) from: f64,
    pub(crate) until: f64,
    /// The first event is missing, or was before the window.
    pub(crate) begun_before: bool,
    /// The last event is missing.
    pub(crate) unfinished: bool,
}

/// Holds of one lock that no look saw, between two moments at which its client was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unseen {
    pub(crate) lock: usize,
    pub(crate) from: f64,
    pub(crate) until: f64,
    pub(crate) holds: u64,
}

impl Unseen {
    /// Returns the number of holds per second.
    pub(crate) fn rate(&self) -> f64 {
        self.holds as f64 / (self.until - self.from).max(f64::MIN_POSITIVE)
    }
}

/// A thread with its spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Actor {
    pub(crate) identity: Identity,
    /// The processes that share the row, one after the other: those of a job of cron.
    pub(crate) later_processes: Vec<Identity>,
    pub(crate) spans: Vec<Span>,
    /// The holds of the thread's client, also those of its other threads.
    pub(crate) unseen: Vec<Unseen>,
    /// The moments at which a holder noticed the loss of a hold that had ended before.
    pub(crate) noticed: Vec<f64>,
}

/// A moment with a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) text: String,
    pub(crate) host: Option<String>,
    /// The process that the mark is about.
    pub(crate) pid: Option<u32>,
}

/// The time that a picture shows, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    pub(crate) from: f64,
    pub(crate) until: f64,
}

impl Window {
    /// Returns the window from the first event to the last.
    pub(crate) fn around(events: &[LockEvent]) -> Window {
        let times = || events.iter().map(|event| event.at);
        let from = times().reduce(f64::min).unwrap_or_default();
        let until = times().reduce(f64::max).unwrap_or_default();
        Window { from, until }
    }

    pub(crate) fn length(&self) -> f64 {
        self.until - self.from
    }
}

/// The number of processes that wait for a lock without a queue, for a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Level {
    pub(crate) from: f64,
    pub(crate) until: f64,
    pub(crate) processes: u64,
}

/// A time without answers of the server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outage {
    pub(crate) from: f64,
    pub(crate) until: f64,
    pub(crate) text: String,
}

/// The content of all events, by thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    /// The names of the locks, in the order of their first events.
    pub(crate) locks: Vec<String>,
    pub(crate) actors: Vec<Actor>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) outages: Vec<Outage>,
    /// The levels of each lock with waiting processes, by the number of the lock.
    pub(crate) levels: BTreeMap<usize, Vec<Level>>,
    /// The number of holds that were too short for any look.
    pub(crate) unseen: u64,
}
