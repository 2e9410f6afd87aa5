//! [`Row`]: the last sighting of one lock, and its hand-offs.

use std::time::{Duration, Instant};

use super::Now;
use crate::top::rates::{History, Rate};
use crate::top::sight::{Caller, Sight};

/// The time for which a lock without holders keeps its row.
const FREE_KEPT: Duration = Duration::from_secs(5);

/// The last sighting of one lock.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) sight: Sight,
    /// The moment of the sighting.
    pub(crate) at: Instant,
    /// The last moment at which the lock was held.
    held: Instant,
    history: History,
}

impl Row {
    pub(crate) fn new(sight: Sight, at: Instant) -> Row {
        let mut history = History::default();
        history.add(at, &sight);
        Row { sight, at, held: at, history }
    }

    /// Adds a sighting. An older one than the last, of a slow search, changes nothing.
    pub(crate) fn see(&mut self, sight: Sight, at: Instant) {
        if at < self.at {
            return;
        }
        self.history.add(at, &sight);
        if !sight.is_free() {
            self.held = at;
        }
        (self.sight, self.at) = (sight, at);
    }

    /// Returns whether the lock is free for so long that nobody expects it on the screen.
    pub(crate) fn is_forgotten(&self, at: Instant) -> bool {
        self.sight.is_free() && self.held + FREE_KEPT <= at
    }

    /// Returns the hand-offs per second.
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.history.rate()
    }

    /// Returns the age of the oldest hold.
    pub(crate) fn age(&self, now: Now) -> Option<Duration> {
        self.sight.since().map(|since| now.wall.duration_since(since).unwrap_or_default())
    }

    /// Returns the remaining lease, as far as it was not extended since the sighting.
    pub(crate) fn left(&self, now: Now) -> Option<Duration> {
        self.sight.remaining.map(|left| left.saturating_sub(self.since_sighting(now)))
    }

    /// Returns the remaining lease of one holder.
    pub(crate) fn left_of(&self, holder: &Caller, now: Now) -> Option<Duration> {
        holder.remaining.map(|left| left.saturating_sub(self.since_sighting(now)))
    }

    fn since_sighting(&self, now: Now) -> Duration {
        now.instant.saturating_duration_since(self.at)
    }
}
