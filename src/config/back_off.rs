//! The pauses of a caller that spins.

use std::time::Duration;

use super::LONGEST_LEASE;
use crate::error::{Error, Result};
use crate::util::clock::{doubled, jittered};

/// The pauses of a caller that waits for a [spin lock](crate::Client::spin_lock).
///
/// Each pause has a random length, between half of the given length and all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackOff {
    /// Doubles the pause after each refusal.
    Exponential {
        /// The pause after the first refusal. At least 50 us.
        first: Duration,
        /// The longest pause. At least `first`.
        longest: Duration,
    },
    /// Pauses for the same time after each refusal. At least 50 us.
    Constant(Duration),
}

impl Default for BackOff {
    fn default() -> BackOff {
        let millis = Duration::from_millis;
        BackOff::Exponential { first: millis(1), longest: millis(128) }
    }
}

impl BackOff {
    const LEAST: Duration = Duration::from_micros(50);

    /// Returns the pause after a refusal that followed `refusals` others.
    pub(crate) fn pause(self, refusals: u32, seed: u64) -> Duration {
        let pause = match self {
            BackOff::Exponential { first, longest } => doubled(first, refusals, longest),
            BackOff::Constant(pause) => pause,
        };
        jittered(pause, seed)
    }

    pub(super) fn check(self) -> Result<()> {
        let (first, longest) = match self {
            BackOff::Exponential { first, longest } => (first, longest),
            BackOff::Constant(pause) => (pause, pause),
        };
        if first < BackOff::LEAST {
            return Err(Error::configuration("the spin back-off is below 50 us"));
        }
        if longest < first {
            let message = "the longest pause of the spin back-off is shorter than the first";
            return Err(Error::configuration(message));
        }
        if longest > LONGEST_LEASE {
            return Err(Error::configuration("the spin back-off is over a hundred years"));
        }
        Ok(())
    }
}
