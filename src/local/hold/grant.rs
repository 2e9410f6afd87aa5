//! The grant from which a hold begins, and the deadline of a lease.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::command::owner::{HoldId, Holder, Owner};
use crate::kind::rules::KindRules;
use crate::local::hold::HoldTerms;
use crate::transport::call::LateCopy;
use crate::util::clock::Moment;

/// A grant by the server, and its holder.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) hold: HoldId,
    pub(crate) owner: Owner,
    pub(crate) rules: &'static dyn KindRules,
    pub(crate) deadline: Moment,
    /// The length of the requested lease.
    pub(crate) lease: Duration,
    /// The lease that the server may keep, which is longer after a grant by message.
    pub(crate) server_lease: Duration,
    /// Whether the watchdog renews the lease.
    pub(crate) renewed: bool,
    pub(crate) holder: Holder,
    pub(crate) terms: HoldTerms,
    /// The moment at which the reply was read.
    pub(crate) granted_at: Moment,
    /// A copy of the acquire command that may still run. The release has to follow that copy on
    /// the same connection.
    pub(crate) late_copy: Option<LateCopy>,
    /// One fencing token for each thread that may have the hold; `0..=0` for a kind without tokens.
    pub(crate) tokens: RangeInclusive<u64>,
}

/// Returns the deadline of a lease whose command was sent at `sent`.
///
/// The margin of 1 % and 2 ms allows for a server clock that runs 1 % fast, and for the
/// millisecond precision of Redis.
pub(crate) fn deadline(sent: Moment, lease: Duration) -> Moment {
    let margin = lease / 100 + Duration::from_millis(2);
    sent + lease.saturating_sub(margin)
}

#[cfg(test)]
impl Grant {
    /// Returns the grant of an owned hold with a renewed lease.
    pub(crate) fn owned(at: Moment, deadline: Moment) -> Grant {
        let hold = HoldId::next();
        Grant {
            hold,
            owner: Owner::new(uuid::Uuid::nil(), hold, ""),
            rules: &crate::kind::plain::Plain,
            deadline,
            lease: at.until(deadline),
            server_lease: at.until(deadline),
            renewed: true,
            holder: Holder::owned(),
            terms: HoldTerms::default(),
            granted_at: at,
            late_copy: None,
            tokens: 0..=0,
        }
    }
}
