//! The state of a hold under its mutex.

use std::sync::Arc;
use std::time::Duration;

use crate::command::owner::Holder;
use crate::error::LostReason;
use crate::events::LossCall;
use crate::local::hold::{Grant, HoldSettings};
use crate::transport::call::LateCopy;
use crate::util::clock::Moment;
use crate::util::sync::Parker;
use crate::util::wheel;

#[derive(Debug)]
pub(super) struct HoldState {
    pub(super) phase: Phase,
    pub(super) deadline: Moment,
    pub(super) server: ServerSide,
    pub(super) renewed: bool,
    /// The length that the server has set last, if the lease is a renewed one since the grant.
    pub(super) renewed_length: Option<Duration>,
    pub(super) possession: Possession,
    /// The moment until which the hold may linger: [`OVER`] once the watchdog has noticed it,
    /// [`Moment::START`] if the hold may not linger, or was asked for.
    pub(super) linger_end: Moment,
    /// Whether the hold lingers: nobody has it.
    pub(super) is_idle: bool,
    /// Whether it was reported that the hold is overdue.
    pub(super) overdue_reported: bool,
    /// Whether the loss of the hold was reported.
    pub(super) loss_reported: bool,
    pub(super) told: Told,
    pub(super) granted_at: Moment,
    /// Moment of the end of the last guard, also of a hold that lingers.
    pub(super) released_at: Moment,
    pub(super) late_copy: Option<LateCopy>,
    pub(super) timer: Option<wheel::Key>,
    /// Parkers to unpark at the end of the hold.
    pub(super) watchers: Vec<Arc<Parker>>,
}

/// The end of a linger time that is over, also for a caller that has read its clock before.
pub(super) const OVER: Moment = Moment::from_nanos(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    Releasing,
    Gone,
    Lost(LostReason),
}

/// Knowledge about the hold on the server.
#[derive(Debug)]
pub(super) struct ServerSide {
    /// The server may keep the hold until this moment; [`Moment::START`] if the hold is known to be
    /// gone.
    pub(super) expiry_bound: Moment,
    /// Whether the server may keep the hold beyond the deadline, or take it anew: a reply did not
    /// come, or came too late, or a copy of the acquire command may still run.
    pub(super) may_still_be_held: bool,
}

/// The events of a hold that were emitted, and those that have to wait for the event of its
/// acquisition: its lease may end before the thread that got it goes on.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Whether the acquisition by any holder was told.
    pub(super) acquired: bool,
    /// Whether the acquisition by the present holder was told.
    pub(super) present: bool,
    pub(super) lost: bool,
    pub(super) waiting: Untold,
}

/// The events that have waited for that of the acquisition.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    /// The time for which the holder of the overdue hold has had it.
    pub(crate) overdue: Option<Duration>,
    pub(crate) lost: bool,
}

/// The present holder of a hold.
#[derive(Debug)]
pub(super) struct Possession {
    pub(super) holder: Holder,
    pub(super) settings: HoldSettings,
    /// The moment of the grant or of the last hand-off.
    pub(super) since: Moment,
    /// The fencing token of the holder; zero for a kind without tokens.
    pub(super) token: u64,
    /// The number of hand-offs since the grant.
    pub(super) handoffs: u32,
    /// The calls for a loss, in the order of their registration.
    pub(super) on_lost: Vec<LossCall>,
}

impl HoldState {
    pub(super) fn new(grant: Grant) -> HoldState {
        HoldState {
            phase: Phase::Held,
            deadline: grant.deadline,
            server: ServerSide {
                expiry_bound: grant.granted_at + grant.server_lease,
                may_still_be_held: grant.rules.outlives_its_lease()
                    || grant.late_copy.is_some()
                    || grant.lease < grant.server_lease,
            },
            renewed: grant.renewed,
            renewed_length: grant.renewed.then_some(grant.lease),
            possession: Possession {
                holder: grant.holder,
                settings: grant.settings,
                since: grant.granted_at,
                token: *grant.tokens.start(),
                handoffs: 0,
                on_lost: Vec::new(),
            },
            linger_end: grant.linger.map_or(Moment::START, |linger| grant.granted_at + linger),
            is_idle: false,
            overdue_reported: false,
            loss_reported: false,
            told: Told::default(),
            granted_at: grant.granted_at,
            released_at: Moment::START,
            late_copy: grant.late_copy,
            timer: None,
            watchers: Vec::new(),
        }
    }

    /// Returns whether the watchdog renews the lease of a valid hold.
    pub(super) fn is_renewed(&self, now: Moment) -> bool {
        self.renewed && !self.is_overdue(now)
    }

    /// Returns whether the hold has passed the limit of its holder while it was valid.
    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        self.limit().is_some_and(|limit| limit <= now.min(self.deadline))
    }

    /// Returns the moment from which the hold is overdue. A hold that lingers has no holder, and no
    /// limit.
    pub(super) fn limit(&self) -> Option<Moment> {
        let limit = self.possession.settings.max_hold().filter(|_| !self.is_idle);
        limit.map(|max_hold| self.possession.since + max_hold)
    }

    /// Returns whether another holder may have the hold: there is a token for it, and the present
    /// one has had the lock for its minimum.
    pub(super) fn may_be_passed_on(&self, now: Moment, last_token: u64) -> bool {
        (last_token == 0 || self.possession.token < last_token)
            && self.phase == Phase::Held
            && self.is_renewed(now)
            && self.possession.minimum_end() <= now
    }

    /// Returns the reason of a loss at the deadline.
    pub(super) fn expiry_reason(&self) -> LostReason {
        if self.is_overdue(Moment::END) { LostReason::HeldTooLong } else { LostReason::Expired }
    }
}

impl Possession {
    /// Returns the moment until which the lock stays taken after a release.
    pub(super) fn minimum_end(&self) -> Moment {
        self.since + self.settings.min_hold().unwrap_or_default()
    }
}

impl ServerSide {
    /// Moves the bound to `moment` if that is later.
    ///
    /// `unknown` is set if the deadline stays: the server may then keep the hold beyond it. A hold
    /// that is known to be gone stays gone.
    pub(super) fn raise_expiry_bound(&mut self, moment: Moment, unknown: bool) {
        if !self.is_known_gone() && self.expiry_bound < moment {
            self.expiry_bound = moment;
            self.may_still_be_held |= unknown;
        }
    }

    pub(super) fn set_gone(&mut self) {
        self.expiry_bound = Moment::START;
    }

    pub(super) fn is_known_gone(&self) -> bool {
        self.expiry_bound == Moment::START
    }
}
