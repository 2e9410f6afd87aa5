//! The settings of a handle for its holds and waits: event listener, limit, minimum,
//! length of renewed leases, linger time, label, weight.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::events::{HandleListener, Kind};
use crate::stats::{Label, SeriesKey};

/// The settings of a handle for its holds. A clone is cheap.
///
/// Runs no code of the program when dropped: the listener is dropped on the events thread.
#[derive(Clone, Default)]
pub(crate) struct HoldSettings(Option<Arc<Values>>);

#[derive(Clone, Default)]
struct Values {
    listener: Option<HandleListener>,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    /// The length of renewed leases; `None` is that of the client.
    renewed_lease: Option<Duration>,
    /// The time for which a hold may linger, counted from its grant.
    linger: Option<Duration>,
    /// Whether readers ignore waiting writers.
    prefers_readers: bool,
    label: Option<Label>,
    /// The weight of a waiter for a queue lock; `None` is 1.
    weight: Option<u32>,
}

impl HoldSettings {
    /// Returns the same settings with this listener.
    pub(crate) fn with_listener(&self, listener: HandleListener) -> HoldSettings {
        self.changed(|values| values.listener = Some(listener))
    }

    /// Returns the same settings with a limit for renewals.
    pub(crate) fn with_max_hold(&self, max_hold: Duration) -> HoldSettings {
        self.changed(|values| values.max_hold = Some(max_hold))
    }

    /// Returns the same settings with a minimum for the time in which the lock stays taken.
    ///
    /// Zero is no minimum.
    pub(crate) fn with_min_hold(&self, min_hold: Duration) -> HoldSettings {
        self.changed(|values| values.min_hold = Some(min_hold).filter(|it| !it.is_zero()))
    }

    /// Returns the same settings with this length of renewed leases.
    pub(crate) fn with_renewed_lease(&self, lease: Duration) -> HoldSettings {
        self.changed(|values| values.renewed_lease = Some(lease))
    }

    /// Returns the same settings with this linger time. Zero is none.
    pub(crate) fn with_linger(&self, linger: Duration) -> HoldSettings {
        self.changed(|values| values.linger = Some(linger).filter(|it| !it.is_zero()))
    }

    /// Returns the same settings for a caller that ignores the turns at a read-write lock.
    pub(crate) fn with_reader_preference(&self) -> HoldSettings {
        self.changed(|values| values.prefers_readers = true)
    }

    /// Returns the same settings with this weight of a waiting caller.
    pub(crate) fn with_weight(&self, weight: u32) -> HoldSettings {
        self.changed(|values| values.weight = Some(weight))
    }

    /// Returns the same settings with this label.
    pub(crate) fn with_label(&self, label: Label) -> HoldSettings {
        self.changed(|values| values.label = Some(label))
    }

    fn changed(&self, change: impl FnOnce(&mut Values)) -> HoldSettings {
        let mut values = self.0.as_deref().cloned().unwrap_or_default();
        change(&mut values);
        HoldSettings(Some(Arc::new(values)))
    }

    pub(crate) fn listener(&self) -> Option<&HandleListener> {
        self.0.as_ref()?.listener.as_ref()
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.0.as_ref()?.max_hold
    }

    pub(crate) fn min_hold(&self) -> Option<Duration> {
        self.0.as_ref()?.min_hold
    }

    pub(crate) fn renewed_lease(&self) -> Option<Duration> {
        self.0.as_ref()?.renewed_lease
    }

    pub(crate) fn linger(&self) -> Option<Duration> {
        self.0.as_ref()?.linger
    }

    pub(crate) fn prefers_readers(&self) -> bool {
        self.0.as_ref().is_some_and(|values| values.prefers_readers)
    }

    pub(crate) fn weight(&self) -> u32 {
        self.0.as_ref().and_then(|values| values.weight).unwrap_or(1)
    }

    pub(crate) fn label(&self) -> Option<&Label> {
        self.0.as_ref()?.label.as_ref()
    }

    /// Returns the key of the statistics for a lock of this kind.
    pub(crate) fn series_key(&self, kind: Kind) -> SeriesKey {
        (kind.short_name(), self.label().cloned())
    }
}

/// Only the events thread calls the listener, and that thread catches its panics.
impl UnwindSafe for HoldSettings {}
impl RefUnwindSafe for HoldSettings {}

impl fmt::Debug for HoldSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldSettings")
            .field("listener", &self.listener().is_some())
            .field("max_hold", &self.max_hold())
            .field("min_hold", &self.min_hold())
            .field("renewed_lease", &self.renewed_lease())
            .field("linger", &self.linger())
            .field("prefers_readers", &self.prefers_readers())
            .field("label", &self.label())
            .field("weight", &self.weight())
            .finish()
    }
}
