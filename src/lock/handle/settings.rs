//! The settings of a [`Lock`].

use std::sync::Arc;
use std::time::Duration;

use super::{Lock, QueueLock};
use crate::cancel::CancelToken;
use crate::command::name;
use crate::command::owner;
use crate::events::{Events, Kind};
use crate::kind::named::Named;
use crate::kind::plain::Plain;
use crate::kind::queued::Queued;
use crate::kind::rules::LockKind;

impl<K: LockKind> Lock<K> {
    /// Sets a fixed lease, which the watchdog does not renew. No round trip.
    ///
    /// The hold ends after `lease` at the latest, unless it is extended. Millisecond precision. The
    /// verbs return [`is_configuration`](crate::Error::is_configuration) below 10 ms. More than a
    /// hundred years means a hundred years.
    ///
    /// A nested call may ask for another lease than the hold of its thread has:
    ///
    /// | hold | nested call | effect on the hold |
    /// | --- | --- | --- |
    /// | renewed | fixed | none |
    /// | fixed | fixed | extended if the new lease ends later, in one round trip |
    /// | fixed | renewed | renewed from now on, until its last guard ends |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("report").with_lease(Duration::from_secs(55));
    /// # let _ = lock.try_lock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(mut self, lease: Duration) -> Lock<K> {
        self.shared.set_lease(lease);
        self
    }

    /// Sets the length of the lease that the watchdog renews. No round trip.
    ///
    /// Default: [`watchdog_timeout`](crate::Builder::watchdog_timeout). A shorter lease frees the
    /// lock of a dead process sooner; a longer one survives longer outages. The watchdog renews the
    /// lease before a third of it has passed. Millisecond precision; the verbs return
    /// [`is_configuration`](crate::Error::is_configuration) below 100 ms, and more than a hundred
    /// years means a hundred years. Of this setting and [`with_lease`](Lock::with_lease) the one
    /// that is set later counts.
    ///
    /// The watchdog of a client waits for a reply for a sixth of the shortest lease at most, from
    /// the first such handle on until the client is closed. So a very short lease makes it give up
    /// earlier for all leases of the client.
    ///
    /// | case | length of the lease |
    /// | --- | --- |
    /// | re-entry | that of the hold |
    /// | hand-off to another thread | from the next renewal on that of the receiver's handle |
    /// | grant of a queue lock by message | at first three [poll intervals](crate::Builder::poll_interval), or the shortest renewed lease of the client |
    /// | [`extend`](crate::Guard::extend) | the longer one counts |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("leader").with_renewed_lease(Duration::from_secs(5));
    /// # let _ = lock.try_lock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_renewed_lease(mut self, lease: Duration) -> Lock<K> {
        self.shared.set_renewed_lease(lease);
        self
    }

    /// Ignores the turns of others at a read-write lock.
    pub(crate) fn with_reader_preference(mut self) -> Lock<K> {
        self.shared.set_reader_preference();
        self
    }

    /// Sets the label of this handle in exported metrics. No round trip.
    ///
    /// With the feature `metrics`, the numbers of [`Client::stats`](crate::Client::stats) are
    /// exported for each kind and label. A label names a task of the program, such as `orders`. The
    /// client and the recorder keep every label and its metrics as long as they live, so use few
    /// labels, and never the name of a lock. Without the feature the label only appears in the
    /// `Debug` form. [`Builder::label`](crate::Builder::label) is another label, that of the
    /// client.
    ///
    /// A hold has the label of the handle that acquired it, after a hand-off the label of the
    /// receiver's handle. Nested guards do not change the label.
    /// [Exported metrics](crate::_documentation::metrics) has the details.
    ///
    /// # Errors
    /// Does not fail itself. The verbs return [`is_configuration`](crate::Error::is_configuration)
    /// if the label is empty, is longer than 256 bytes, or has control characters.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("orders:42").with_label("orders");
    /// # let _ = lock.try_lock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the label belongs to the lock that is returned"]
    pub fn with_label(mut self, label: impl AsRef<str>) -> Lock<K> {
        self.shared.set_label(label.as_ref());
        self
    }

    /// Sets a token by which another thread can end the waits of this handle. No round trip.
    ///
    /// Once the token is cancelled, every verb that acquires returns
    /// [`is_cancelled`](crate::Error::is_cancelled), whether it waits or not. Guards stay valid.
    ///
    /// ```
    /// # let client = leasehold::Client::builder().single("redis://127.0.0.1:1/").build_lazily()?;
    /// let stop = leasehold::CancelToken::new();
    /// let lock = client.lock("orders:42").with_cancel(&stop);
    /// stop.cancel();                      // from any thread
    /// assert!(lock.lock().is_err_and(|error| error.is_cancelled()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> Lock<K> {
        self.shared.set_cancel(token);
        self
    }

    /// Sets the limit after which a hold is overdue and no longer renewed. No round trip.
    ///
    /// Without a limit, a thread that hangs keeps its lock for as long as its process lives. When
    /// `max_hold` has passed since the grant, the watchdog emits
    /// [`Events::overdue`](crate::Events::overdue) and stops the renewals. The hold stays valid
    /// until its lease ends, within one [watchdog time-out](crate::Builder::watchdog_timeout) after
    /// the limit. It is then lost with the reason [`HeldTooLong`](crate::LostReason::HeldTooLong),
    /// before the server frees the lock. Before its loss an overdue hold is released like any other
    /// hold.
    ///
    /// The timer of the watchdog has steps of 5 ms. The verbs return
    /// [`is_configuration`](crate::Error::is_configuration) below 10 ms. More than a hundred years
    /// means a hundred years.
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the hold keeps its limit, also if the nested call makes a fixed lease a renewed one; the limit of the nested handle has no effect |
    /// | local hand-off | each holder has the limit of its own handle, counted from the hand-off; an overdue hold is not handed off |
    /// | fixed lease | the lease stays; if it is longer than the limit, `overdue` is emitted, and a loss has the reason `HeldTooLong` |
    /// | [`extend`](crate::Guard::extend) | extends the lease, also after the limit; after the limit the watchdog does not renew the extended lease |
    /// | [`detach`](crate::Guard::detach) | the same limit |
    /// | [owned guard](crate::OwnedGuard) | the same limit |
    /// | [`MultiLock`](crate::MultiLock) | each member has the limit of its handle; the guard is lost with the first member |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("import").with_max_hold(Duration::from_secs(600));
    /// let guard = lock.lock()?;
    /// // ... work that takes a minute ...
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the limit belongs to the lock that is returned"]
    pub fn with_max_hold(mut self, max_hold: Duration) -> Lock<K> {
        self.shared.set_max_hold(max_hold);
        self
    }

    /// Sets the minimum time for which the lock stays taken. No round trip.
    ///
    /// An early release, before `min_hold` has passed since the grant, ends the hold but does not
    /// free the lock: it stays taken, without a holder, until `min_hold` has passed
    /// (`lockAtLeastFor` of ShedLock). Until then every caller is refused, callers of Redisson and
    /// the former holder included. Waiting callers get the lock afterwards.
    /// [`is_locked`](Lock::is_locked) and [`remaining`](Lock::remaining) report the lock as taken,
    /// and [`force_unlock`](Lock::force_unlock) frees it.
    ///
    /// An early release makes as many round trips as any release. The rest of the minimum is
    /// rounded up to milliseconds, and passes by the clock of the server. Zero means no minimum.
    /// More than a hundred years means a hundred years.
    ///
    /// Only a release keeps the minimum. The lock is free when its lease ends if the hold is lost,
    /// if its process dies, or if no release reaches the server before that.
    ///
    /// If an outage delays a release, the lock stays taken longer by the time of the delay, at most
    /// by one lease. No release waits for replicas, so a fail-over can lose the minimum.
    ///
    /// Plain, fair, fenced, queue, spin and write locks permit a minimum. The verbs return
    /// [`is_configuration`](crate::Error::is_configuration) for readers, for
    /// [named holders](Lock::with_holder) and for members of a [`MultiLock`](crate::MultiLock). A
    /// [`RedLock`](crate::RedLock) has no such setting.
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the hold keeps its minimum, counted from the grant; the minimum of the nested handle has no effect |
    /// | local hand-off | there is none before the minimum: the hold is released instead; after a hand-off, the minimum of the receiver's handle counts from the hand-off |
    /// | fixed lease | if the lease ends before the minimum, the hold is lost and the lock is free |
    /// | [`extend`](crate::Guard::extend) | no effect on the minimum |
    /// | [`detach`](crate::Guard::detach) | [`unlock`](Lock::unlock) keeps the minimum; a detached hold that is not unlocked ends with its lease |
    /// | [owned guard](crate::OwnedGuard) | the same minimum |
    /// | [`with_max_hold`](Lock::with_max_hold) | an overdue hold that is released before it is lost keeps its minimum |
    /// | write lock, if its thread also reads | the release of the write hold ends the minimum, and others may read |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn report() {}
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// // Once per minute, on any number of machines.
    /// let lock = client.lock("report").with_min_hold(Duration::from_secs(50));
    /// if let Some(_guard) = lock.try_lock()? {
    ///     report();
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the minimum belongs to the lock that is returned"]
    pub fn with_min_hold(mut self, min_hold: Duration) -> Lock<K> {
        self.shared.set_min_hold(min_hold);
        self
    }

    /// Keeps a hold after its last guard, for the next caller of this client. No round trip.
    ///
    /// For a lock that one process takes again and again while nobody else wants it: a tenant, a
    /// partition, a customer. After the last guard the hold *lingers*: it stays held, and the next
    /// caller of this client takes it over without a command. Everybody else finds the lock held.
    /// Zero, the default, is off.
    ///
    /// A hold lingers until `linger` has passed since its grant, however often it is taken over. The
    /// watchdog then releases it; a guard that exists at that moment releases it at its end. So a
    /// busy lock costs one acquire and one release per linger time, and others wait for it as
    /// follows:
    ///
    /// | who wants the lock | gets it |
    /// | --- | --- |
    /// | a caller of another client of leasehold | at once, or at the end of the present guard and of the hand-offs that [`local_handoff`](crate::Builder::local_handoff) permits: its refusal asks for the hold. If the message is lost, within a [poll interval](crate::Builder::poll_interval), or as the next row |
    /// | a caller of Redisson, and of another kind of lock with this name | at most one linger time later, or at the end of a guard that lasts longer |
    /// | a caller of this client that cannot take it over (a read lock, a fixed lease) | at once, or at the end of the present guard |
    ///
    /// A refused [`try_lock`](Lock::try_lock) asks too, so the next attempt may find the lock free.
    /// After a hold that was asked for before it was of use, the client lets no hold of this lock
    /// linger for 4 linger times. So locks that processes take in turn cost as much as without
    /// lingering.
    ///
    /// While a hold lingers, [`is_locked`](Lock::is_locked) reports the lock as taken,
    /// [`HolderInfo::is_idle`](crate::HolderInfo::is_idle) tells others that nobody uses it, and a
    /// loss is no event. If the process dies, the lock stays taken until its lease ends, as if it
    /// were in use: a short [`with_renewed_lease`](Lock::with_renewed_lease) limits that.
    /// [`Client::close`](crate::Client::close) and the drop of the last clone of the client release
    /// all holds that linger. [`Stats::lingered`](crate::Stats::lingered) counts the take-overs.
    ///
    /// Plain, fenced and write locks may linger, with renewed leases; a handle with a fixed lease
    /// takes the lock as without this setting. The verbs return
    /// [`is_configuration`](crate::Error::is_configuration) for other kinds, for
    /// [named holders](Lock::with_holder), and if `linger` is more than half of the lease.
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the hold keeps its linger time |
    /// | take-over, local hand-off | afterwards the hold has the settings of the new holder's handle; its linger time stays that of the grant. The bounds of [`local_handoff`](crate::Builder::local_handoff) count from that time on |
    /// | [owned guard](crate::OwnedGuard), [`detach`](crate::Guard::detach), member of a [`MultiLock`](crate::MultiLock) | the same rules |
    /// | [`with_max_hold`](Lock::with_max_hold) | each holder has its limit from the take-over on; a hold that lingers has none |
    /// | [`with_min_hold`](Lock::with_min_hold) | no lingering before the minimum: the hold is released early, and keeps the minimum |
    /// | fencing tokens | each holder has a greater one. A grant has 128: after as many holders the hold is released and taken anew. If a server lost the hold and this client does not know yet, a caller takes it over with a smaller token than that of the next holder, and the resource refuses it |
    /// | events | [`idle`](Events::idle) at the end of each last guard, [`acquired`](Events::acquired) for each take-over, [`released`](Events::released) once, when the hold is released |
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn handle(_: u64) {}
    /// # let (client, requests) = (leasehold::Client::open("redis://127.0.0.1/")?, 0..9);
    /// let tenant = client.lock("tenant:7").with_linger(Duration::from_millis(500));
    /// for request in requests {
    ///     let _guard = tenant.lock()?;    // mostly without a round trip
    ///     handle(request);
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the linger time belongs to the lock that is returned"]
    pub fn with_linger(mut self, linger: Duration) -> Lock<K> {
        self.shared.set_linger(linger);
        self
    }

    /// Sets an event listener for the holds and waits of this handle. No round trip.
    ///
    /// The event listener of the client ([`Builder::events`](crate::Builder::events)) still
    /// receives all events, each before this listener. A second call replaces the listener of the
    /// first call. Clones of the handle share the listener.
    ///
    /// | event | events that this listener receives |
    /// | --- | --- |
    /// | [`acquired`](Events::acquired) | each hold that a call of this handle acquired, from the server, by a hand-off or by a take-over |
    /// | [`waited`](Events::waited) | each call of this handle that waited, with or without success |
    /// | [`idle`](Events::idle), [`released`](Events::released), [`lost`](Events::lost), [`overdue`](Events::overdue), [`renewal_failed`](Events::renewal_failed) | the holds of this handle |
    /// | [`renewed`](Events::renewed) | the numbers of the holds of this handle and of other handles with the same `Arc` |
    /// | [`reconnected`](Events::reconnected), [`audit`](Events::audit) | none: these go to the listener of the client only |
    ///
    /// A hold belongs to the handle that acquired it:
    ///
    /// | case | rule |
    /// | --- | --- |
    /// | nested guard | the hold keeps its listener; the listener of the nested handle has no effect |
    /// | local hand-off, take-over of a hold that lingers | afterwards the hold has the listener of the receiver's handle; the former listener gets no `released` |
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
}

impl Lock<Plain> {
    /// Sets the name of the holder, such as the id of a job. No round trip.
    ///
    /// The name is the whole [owner field](crate#terms) in Redis. The holder is then the name and
    /// not a thread: every caller with the same name can take the lock while another one has it, in
    /// any thread, process or language. Redis counts the guards of the name: each guard adds one
    /// and each release subtracts one, in one round trip each. The lock is free at zero. Waiting
    /// callers do not queue in their process; each of them asks the server.
    /// [`unlock`](Lock::unlock) releases a detached hold of this process. If there is none, it
    /// subtracts one count of any process: the oldest.
    ///
    /// Each guard has a renewed or fixed lease, as with a thread. If the process of a guard dies,
    /// the count of the guard stays until the key expires: at most one lease after the last renewal
    /// by any caller with this name.
    ///
    /// Another caller with this name can release the hold of this guard. If the name is the owner
    /// field of a Redisson thread, that thread can shorten the lease. The guard reports the loss
    /// after the next renewal or check by the watchdog, at most a third of the
    /// [watchdog time-out](crate::Builder::watchdog_timeout) later.
    ///
    /// # Errors
    /// Does not fail itself. The verbs return [`is_invalid_name`](crate::Error::is_invalid_name) if
    /// the name is empty, or is the owner field of a hold of this library. A verb that waits
    /// returns [`is_deadlock`](crate::Error::is_deadlock) if this thread has a guard of the lock
    /// under another name.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let lock = client.lock("orders:42").with_holder("job-17");
    /// let guard = lock.lock()?;           // in any process that works on job 17
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the holder belongs to the lock that is returned"]
    pub fn with_holder(mut self, holder: impl Into<String>) -> Lock {
        let holder = holder.into();
        self.shared.require(|_| match holder.as_str() {
            "" => Err(name::invalid("the name of the holder is empty")),
            _ if owner::is_owner_field(&holder) => {
                Err(name::invalid("the name of the holder is the owner field of a leasehold hold"))
            }
            _ => Ok(()),
        });
        self.shared.set_kind(Kind::Named);
        self.rules = &Named;
        self.holder = Some(holder.into());
        self
    }
}

impl Lock<Queued> {
    /// Sets the weight of this handle's waiting calls, from 1 to 10. No round trip.
    ///
    /// Default: 1. A waiter of weight `n` counts as arrived `n - 1`
    /// [weight steps](crate::Builder::weight_step) earlier. The weight of a call does not change
    /// while it waits, and has no effect on a call that does not wait.
    ///
    /// # Errors
    /// Does not fail itself. The verbs return [`is_configuration`](crate::Error::is_configuration)
    /// if the weight is not from 1 to 10.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let urgent = client.queue_lock("reports").with_weight(10);
    /// # let _ = urgent.try_lock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use = "the weight belongs to the lock that is returned"]
    pub fn with_weight(mut self, weight: u32) -> QueueLock {
        self.shared.set_weight(weight);
        self
    }
}
