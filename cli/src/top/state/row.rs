//! [`Row`]: the last sighting of one lock, and its hand-offs.

use std::mem;
use std::time::{Duration, Instant};

use super::Now;
use crate::top::rates::{Handoffs, Rate};
use crate::top::sight::Sight;

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
    history: Handoffs,
}

impl Row {
    pub(crate) fn new(sight: Sight, at: Instant) -> Row {
        let mut history = Handoffs::default();
        history.add(at, &sight);
        Row { sight, at, held: at, history }
    }

    /// Adds a sighting. An older one than the last, of a slow search, changes nothing.
    ///
    /// A look by name does not know the kind of a free lock, so the row keeps the kind.
    pub(crate) fn see(&mut self, mut sight: Sight, at: Instant) {
        if at < self.at {
            return;
        }
        if sight.is_free() {
            sight.lock.kind = mem::take(&mut self.sight.lock.kind);
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

    /// Returns the age of the oldest hold, in seconds.
    pub(crate) fn age(&self, now: Now) -> Option<f64> {
        self.sight.since().map(|since| (now.wall - since).max(0.0))
    }

    /// Returns the remaining lease in seconds, as if nothing had extended it since the sighting.
    pub(crate) fn left(&self, now: Now) -> Option<f64> {
        let remaining = self.sight.remaining?.as_secs_f64();
        Some((remaining - self.since_sighting(now)).max(0.0))
    }

    /// Returns the seconds since the sighting.
    pub(crate) fn since_sighting(&self, now: Now) -> f64 {
        now.instant.saturating_duration_since(self.at).as_secs_f64()
    }
}
