//! The event listener of one [`Lock`] handle.

use std::sync::Arc;

use super::Lock;
use crate::events::{Events, HandleListener};
use crate::kind::rules::LockKind;

impl<K: LockKind> Lock<K> {
    /// Sets an event listener for the holds and waits of this handle. No round trip.
    ///
    /// The event listener of the client ([`Builder::events`](crate::Builder::events)) still
    /// receives all events, each before this listener. A second call replaces the listener of the
    /// first call. Clones of the handle share the listener.
    ///
    /// | event | events that this listener receives |
    /// | --- | --- |
    /// | [`acquired`](Events::acquired) | each hold that a call of this handle acquired, from the server or by a hand-off |
    /// | [`waited`](Events::waited) | each call of this handle that waited, with or without success |
    /// | [`released`](Events::released), [`lost`](Events::lost), [`overdue`](Events::overdue), [`renewal_failed`](Events::renewal_failed) | the holds of this handle |
    /// | [`renewed`](Events::renewed) | the numbers of the holds of this handle and of other handles with the same `Arc` |
    /// | [`reconnected`](Events::reconnected), [`audit`](Events::audit) | none: these go to the listener of the client only |
    ///
    /// A hold belongs to the handle that acquired it:
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the hold keeps its listener; the listener of the nested handle has no effect |
    /// | local hand-off | afterwards the hold has the listener of the receiver's handle; the former listener gets no `released` |
    /// | [owned guard](crate::OwnedGuard), fixed lease, [named holder](Lock::with_holder) | the same rules |
    /// | [`detach`](crate::Guard::detach) | the listener stays until the end of the hold |
    /// | [`MultiLock`](crate::MultiLock) | each member has the listener of its handle |
    ///
    /// If one value is the listener of the client and of the handle, it receives an event twice.
    ///
    /// The thread `leasehold-events` of the client calls the listener and finally drops it; the
    /// rules of [`Events`] apply. The first event listener, or the first
    /// [`on_lost`](crate::Guard::on_lost), of a client starts this thread. The thread ends with the
    /// last handle and guard of the client, and not with [`close`](crate::Client::close).
    ///
    /// # Errors
    /// Does not fail itself. If the system cannot start the thread, and in a forked child, the
    /// verbs return [`is_configuration`](crate::Error::is_configuration).
    ///
    /// ```no_run
    /// use leasehold::{Events, Lost};
    /// use std::sync::Arc;
    ///
    /// struct Alarm;
    ///
    /// impl Events for Alarm {
    ///     fn lost(&self, event: &Lost) {
    ///         eprintln!("the import lost its lock: {}", event.reason);
    ///     }
    /// }
    ///
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("import").with_events(Arc::new(Alarm));
    /// let guard = lock.lock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the listener belongs to the lock that is returned"]
    pub fn with_events(mut self, listener: Arc<dyn Events>) -> Lock<K> {
        self.shared.set_listener(listener);
        self
    }

    /// Returns the listener of this handle.
    pub(crate) fn listener(&self) -> Option<&HandleListener> {
        self.shared.settings().listener()
    }
}
