//! A lock, and its verbs.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::{
    AcquireCall, AcquireOptions, HoldHandle, LockContext, checked_lease, not_held,
};
use crate::cancel::{Bound, CancelToken};
use crate::command::call::Call;
use crate::command::name::{self, Name};
use crate::command::owner::{self, ThreadId};
use crate::command::reply::Reply;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::kind::fair::Fair;
use crate::kind::fenced::Fenced;
use crate::kind::named::Named;
use crate::kind::plain::Plain;
use crate::kind::rules::{self, KindRules, LockKind, ReleaseReply};
use crate::kind::spin::Spin;
use crate::listener::channels::Channel;
use crate::local::hold::Hold;
use crate::lock::guard::{Guard, OwnedGuard};
use crate::pool::Target;
use crate::util::clock::{self, Patience};

/// A lock of one name, for as many threads, processes and machines as there are.
///
/// A cheap handle: making and cloning it costs no round trip, and every handle of
/// one name is the same lock. `lock()` gives a [`Guard`], which releases when it is
/// dropped; the `_owned` verbs give an [`OwnedGuard`], which can be sent to other
/// threads.
///
/// Without [`with_lease`](Lock::with_lease) the lock is renewed by the watchdog until
/// it is released, and freed within the watchdog time-out if the process dies.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let lock = client.lock("orders:42");
/// let guard = lock.lock()?;
/// // ... what must not be done twice at once ...
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors that every verb can give
/// [`is_invalid_name`](Error::is_invalid_name) for a name that cannot be used;
/// [`is_configuration`](Error::is_configuration) for a lease below 10 ms;
/// [`is_closed`](Error::is_closed) after [`Client::close`](crate::Client::close);
/// [`is_server`](Error::is_server) if the server refuses the command, with its words
/// and what to do about it.
#[must_use = "a lock is not taken until lock() or another of its verbs is called"]
pub struct Lock<P: LockKind = Plain> {
    given: Arc<str>,
    context: Result<Arc<LockContext>>,
    lease: Option<Duration>,
    cancel: Option<CancelToken>,
    /// The name of the holder, if it is to be another than the hold.
    holder: Option<Arc<str>>,
    protocol: PhantomData<P>,
}

/// A lock that is granted in the order in which it was asked for, by all who share it:
/// Redisson's fair lock.
///
/// First come, first served across threads, processes and languages. Who waits stands in a
/// queue in Redis, once per call; a waiter whose process has died is passed over after the
/// [fair wait](crate::Builder::fair_waiter_timeout). [`try_lock`](Lock::try_lock) does not queue, and
/// does not overtake those who do. Costs as much as a plain lock, and for a release one
/// message to the next alone; no passing inside the process, which would overtake others.
///
/// Where it differs from Redisson's: a waiter that gives up, is cancelled or fails leaves the
/// queue at once; a poll keeps a waiter's place however long the lock is held; nobody asks
/// without pause for a lock that is free but another's turn; unlocking a lock that is
/// gone is an error, as it is for every other kind.
pub type FairLock = Lock<Fair>;

/// A lock whose guards have a fencing token ([`Guard::token`]): Redisson's fenced lock.
///
/// A token is larger than all before it, also after the counter was deleted or lost: it is
/// then taken from the server's clock, in microseconds. The counter is a key of its own,
/// without a time to live, as Redisson's is.
///
/// Where it differs from Redisson's: nested calls have the token of their hold; a lease is
/// kept to; a lock without a time to live is never taken for acquired.
pub type FencedLock = Lock<Fenced>;

/// A lock for which callers wait by asking again and again: Redisson's spin lock.
///
/// No subscription, no message: a release costs the server less, a wait more. For very
/// many locks that are held for a very short time, or users without the right to subscribe. The
/// pauses are a setting ([`spin_back_off`](crate::Builder::spin_back_off)). Callers of one
/// process take turns, and pass the lock on as they do a plain one's; since nobody can say whether
/// others want it, they leave it alone for 2 ms after every 20 ms. Another process that waits then
/// finds it in one of about ten looks.
///
/// A plain lock of the same name excludes it, but its waiters are not told of a spin lock's
/// end: use one kind for one name.
pub type SpinLock = Lock<Spin>;

impl Lock<Plain> {
    /// Takes the lock under a name that the caller gives, instead of a hold of its own: that
    /// of a job or a transaction.
    ///
    /// `holder` is the whole owner field in Redis. Any caller that presents the same name, in any
    /// thread, process or language, enters again; each guard counts in Redis, and each release
    /// takes one off. [`unlock`](Lock::unlock) takes one off for a guard that was detached, or that
    /// another process left: two round trips, and the oldest hold goes first. Each verb costs
    /// its round trip, and a waiter asks by itself.
    ///
    /// A guard keeps its lease as any other does. If its process dies, its count stays until the
    /// key expires: at most one lease after the last renewal by any caller with this name.
    /// Another caller that presents the name can end this hold: the guard finds out at the next
    /// renewal or look, at most one renewal period later. A thread that has a guard under one name and wants the lock under another
    /// would wait for itself: [`is_deadlock`](Error::is_deadlock).
    ///
    /// An empty name, and the owner field of a hold of this library, are refused with
    /// [`is_invalid_name`](Error::is_invalid_name) by every verb. The owner field of a Redisson
    /// thread can be presented; that thread may then shorten the lease, which the guard finds out
    /// at the next look as well.
    #[must_use = "the holder belongs to the lock that is returned"]
    pub fn with_holder(mut self, holder: impl Into<String>) -> Lock {
        let holder = holder.into();
        if let Err(error) = check_holder(&holder) {
            self.context = self.context.and(Err(error));
        }
        self.holder = Some(holder.into());
        self
    }
}

impl<P: LockKind> Clone for Lock<P> {
    fn clone(&self) -> Lock<P> {
        Lock {
            given: Arc::clone(&self.given),
            context: self.context.clone(),
            lease: self.lease,
            cancel: self.cancel.clone(),
            holder: self.holder.clone(),
            protocol: PhantomData,
        }
    }
}

impl<P: LockKind> fmt::Debug for Lock<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("kind", &self.rules())
            .field("name", &self.given)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl<P: LockKind> Lock<P> {
    pub(crate) fn new(engine: Arc<Engine>, name: String) -> Lock<P> {
        let given: Arc<str> = name.into();
        let context = engine.local(&given).map(|local| Arc::new(LockContext { engine, local }));
        Lock { given, context, lease: None, cancel: None, holder: None, protocol: PhantomData }
    }

    fn rules(&self) -> &'static dyn KindRules {
        if self.holder.is_some() { &Named } else { P::rules() }
    }

    /// Gives the lock a fixed lease: it is not renewed, and over after `lease` at the
    /// latest.
    ///
    /// Milliseconds count. Less than 10 ms is an error of the verbs; more than a
    /// hundred years means a hundred years. A nested lock with a longer lease than the
    /// hold has left extends it (one round trip); one inside a hold that is renewed
    /// changes nothing; a renewed lock inside a fixed hold has the hold renewed until
    /// it ends.
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(mut self, lease: Duration) -> Lock<P> {
        self.lease = Some(lease);
        self
    }

    /// Lets `token` end the waits of this lock's verbs.
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> Lock<P> {
        self.cancel = Some(token.clone());
        self
    }

    /// Blocks until the lock is held by this thread.
    ///
    /// One round trip if it is free, none if this thread holds it already. If another
    /// holds it: waits in line with the threads of this process, then for the message
    /// of the release; should that be lost, it asks anew within the poll interval.
    ///
    /// # Errors
    /// [`is_connection`](Error::is_connection), [`is_timeout`](Error::is_timeout) or
    /// [`is_pool_timeout`](Error::is_pool_timeout) if the first question gets no answer, after
    /// one response time-out at the latest; once it was refused it waits through outages. [`is_cancelled`](Error::is_cancelled) by its token.
    /// [`is_lost`](Error::is_lost) if this thread still has a guard of a hold that was
    /// lost, or if three grants in a row arrived after their lease had ended, or one after the
    /// deadline.
    /// [`is_deadlock`](Error::is_deadlock) if this thread holds the lock as one of another kind
    /// or under another holder, and for a wait without deadline and token also if this thread
    /// took an [`OwnedGuard`] of it that still exists. (A thread that has sent such a guard
    /// elsewhere and waits for its end uses a deadline, a token or
    /// [`lock_owned`](Lock::lock_owned).)
    /// And those of [every verb](Lock#errors-that-every-verb-can-give).
    pub fn lock(&self) -> Result<Guard<P>> {
        self.attempt(Patience::Forever, false, |hold| {
            hold.ok_or_else(endless_wait_ended).map(Guard::new)
        })
    }

    /// Takes the lock if it is free, without waiting: `None` if it is not.
    ///
    /// One round trip; none if this thread holds it already, or if another thread of
    /// this process holds it or waits for it. (Fair locks, readers and named holders stand in no
    /// line of their process: they always ask.)
    ///
    /// Also `None` if this thread holds it as one of another kind or under another holder: no
    /// round trip.
    ///
    /// # Errors
    /// Those of [`lock`](Lock::lock), but for [`is_deadlock`](Error::is_deadlock).
    pub fn try_lock(&self) -> Result<Option<Guard<P>>> {
        self.attempt(Patience::None, false, guard)
    }

    /// Blocks until the lock is held by this thread, or for `timeout`: then `None`.
    ///
    /// `Duration::MAX` waits for ever. The call returns at most 100 ms after its deadline,
    /// whatever the server does: a question without an answer is undone in the background.
    ///
    /// # Errors
    /// Those of [`lock`](Lock::lock). If the time ends while nobody answers:
    /// [`is_connection`](Error::is_connection) or [`is_timeout`](Error::is_timeout), or
    /// [`is_pool_timeout`](Error::is_pool_timeout) if it could not even be asked, since
    /// nobody knows then.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<Guard<P>>> {
        self.attempt(Patience::span(clock::now(), timeout), false, guard)
    }

    /// Blocks until the lock is held by this thread, or until `deadline`: then `None`.
    ///
    /// # Errors
    /// Those of [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<Guard<P>>> {
        self.attempt(Patience::instant(clock::now(), deadline), false, guard)
    }

    /// Like [`lock`](Lock::lock), but the guard is no thread's and can be sent.
    ///
    /// # Errors
    /// Those of [`lock`](Lock::lock), and [`is_deadlock`](Error::is_deadlock) if this
    /// thread has a guard of this lock.
    pub fn lock_owned(&self) -> Result<OwnedGuard<P>> {
        self.attempt(Patience::Forever, true, |hold| {
            hold.ok_or_else(endless_wait_ended).map(OwnedGuard::new)
        })
    }

    /// Like [`try_lock`](Lock::try_lock), but the guard is no thread's and can be sent.
    ///
    /// # Errors
    /// Those of [`try_lock`](Lock::try_lock).
    pub fn try_lock_owned(&self) -> Result<Option<OwnedGuard<P>>> {
        self.attempt(Patience::None, true, owned_guard)
    }

    /// Like [`try_lock_for`](Lock::try_lock_for), but the guard is no thread's and can
    /// be sent.
    ///
    /// # Errors
    /// Those of [`lock_owned`](Lock::lock_owned) and
    /// [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<OwnedGuard<P>>> {
        self.attempt(Patience::span(clock::now(), timeout), true, owned_guard)
    }

    /// Like [`try_lock_until`](Lock::try_lock_until), but the guard is no thread's and
    /// can be sent.
    ///
    /// # Errors
    /// Those of [`lock_owned`](Lock::lock_owned) and
    /// [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_until_owned(&self, deadline: Instant) -> Result<Option<OwnedGuard<P>>> {
        self.attempt(Patience::instant(clock::now(), deadline), true, owned_guard)
    }

    /// Ends a hold whose guard was [detached](Guard::detach): one that this thread detached;
    /// else one that was owned, or left behind by a thread that has ended. Waits for
    /// the answer: one round trip, none if the thread holds it more than once.
    ///
    /// With a [named holder](Lock::with_holder) it also ends a hold that another process counted:
    /// two round trips. That command is never sent twice: without an answer it may or may not have
    /// been done.
    ///
    /// # Errors
    /// [`is_not_held`](Error::is_not_held) if there is none; and those of
    /// [`Guard::unlock`].
    pub fn unlock(&self) -> Result<()> {
        self.unlock_within(self.bound())
    }

    /// The moment at which a call that begins now returns.
    pub(crate) fn bound(&self) -> Bound {
        self.context.as_ref().map_or_else(|_| Bound::over(), |context| context.engine.bound())
    }

    /// [`Lock::unlock`], within that bound.
    pub(crate) fn unlock_within(&self, bound: Bound) -> Result<()> {
        self.end_detached(bound).map_err(|error| self.named(error))
    }

    fn end_detached(&self, bound: Bound) -> Result<()> {
        let context = self.context()?;
        let mine = |lease: &Hold| self.is_mine(lease);
        let detached = context.local.detached(mine, ThreadId::current(), clock::now());
        match (detached, &self.holder) {
            (Some((lease, counted)), _) => {
                HoldHandle::new(Arc::clone(context), lease).unlock_detached(counted, bound)
            }
            (None, Some(holder)) => {
                match self.ask_once(|name| Named::unlock(name, holder), bound)? {
                    ReleaseReply::Told(_) => Ok(()),
                    ReleaseReply::NotHeld => Err(not_held()),
                }
            }
            (None, None) => Err(not_held()),
        }
    }

    /// Sends a command that must not run twice, if the lock is held. Two round trips, one if it
    /// is free.
    fn ask_once(&self, command: impl FnOnce(&Name) -> Call, bound: Bound) -> Result<ReleaseReply> {
        let LockContext { engine, local } = &**self.context()?;
        engine.check_open()?;
        let (left, limit) = (self.rules().left(local.name()), engine.limit(bound));
        engine.ready(&limit)?;
        // That question may be sent again, over a new connection if the old one is dead.
        let left = engine.router.call(left, Target::prefer(local.background()), &limit)?;
        if remaining(left.reply)?.is_none() {
            return Ok(ReleaseReply::NotHeld);
        }
        let answer =
            engine.router.call(command(local.name()), Target::Only(left.connection), &limit)?;
        rules::freed(answer.reply)
    }

    /// Returns whether anybody holds the lock: one round trip.
    ///
    /// # Errors
    /// [`is_connection`](Error::is_connection), [`is_timeout`](Error::is_timeout),
    /// [`is_pool_timeout`](Error::is_pool_timeout), and those of [every verb](Lock#errors-that-every-verb-can-give).
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds the lock: no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many times this thread holds the lock, detached guards included: no
    /// round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn hold_count(&self) -> usize {
        let (thread, now) = (ThreadId::current(), clock::now());
        let mine = |lease: &Hold| self.is_mine(lease);
        self.context.as_ref().map_or(0, |context| context.local.count(mine, thread, now))
    }

    /// Whether that is a hold of this kind, and of this holder if it has a name.
    fn is_mine(&self, lease: &Hold) -> bool {
        let names_it = |name: &Arc<str>| lease.owner().as_bytes() == name.as_bytes();
        lease.rules().kind() == self.rules().kind() && self.holder.as_ref().is_none_or(names_it)
    }

    /// Returns what is left of the lease of whoever holds the lock, `None` if nobody
    /// does, `Duration::MAX` if it has no end: one round trip.
    ///
    /// # Errors
    /// Those of [`is_locked`](Lock::is_locked).
    pub fn remaining(&self) -> Result<Option<Duration>> {
        self.remaining_within(self.bound())
    }

    /// [`Lock::remaining`], within that bound.
    pub(crate) fn remaining_within(&self, bound: Bound) -> Result<Option<Duration>> {
        self.ask_remaining(bound).map_err(|error| self.named(error))
    }

    fn ask_remaining(&self, bound: Bound) -> Result<Option<Duration>> {
        let LockContext { engine, local } = &**self.context()?;
        engine.check_open()?;
        let (left, limit) = (self.rules().left(local.name()), engine.limit(bound));
        engine.ready(&limit)?;
        let answer = engine.router.call(left, Target::prefer(local.background()), &limit)?;
        remaining(answer.reply)
    }

    /// Frees the lock, whoever holds it, and wakes who waits: two round trips, one if
    /// nobody holds it. Whether it was held.
    ///
    /// A holder in this process loses its hold at once. Other holders, and one that got the
    /// lock at the same moment, notice at their next renewal. For repairs by hand.
    ///
    /// Of a read-write lock each side frees only what is held in its mode: while somebody writes,
    /// and reads too, only the writing side does, and ends both.
    ///
    /// The command that frees is never sent twice, since the second copy might free what
    /// somebody else got in between: without an answer it may or may not have been done.
    ///
    /// # Errors
    /// Those of [`is_locked`](Lock::is_locked).
    pub fn force_unlock(&self) -> Result<bool> {
        self.force_unlock_within(self.bound())
    }

    /// [`Lock::force_unlock`], within that bound.
    pub(crate) fn force_unlock_within(&self, bound: Bound) -> Result<bool> {
        self.force(bound).map_err(|error| self.named(error))
    }

    fn force(&self, bound: Bound) -> Result<bool> {
        let local = &self.context()?.local;
        let mut held = Vec::new();
        let force = |name: &Name| {
            // A thread that gets the lock once it is free does not lose it again.
            held = local.leases();
            self.rules().force(name)
        };
        let freed = self.ask_once(force, bound)?;
        if freed == ReleaseReply::NotHeld {
            return Ok(false);
        }
        held.iter().for_each(|lease| local.lose(lease));
        Ok(true)
    }

    /// Returns the name of the lock, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        &self.given
    }

    /// Whether this thread has the lock, and cannot get it again as this one.
    pub(crate) fn blocks_own_thread(&self, owned: bool) -> bool {
        let bars = |context: &Arc<LockContext>| {
            context.local.blocks_own_thread(self.rules(), owned, clock::now())
        };
        self.context.as_ref().is_ok_and(bars)
    }

    /// What a caller that was refused listens to, if callers share it.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        let LockContext { engine, local } = &**self.context.as_ref().ok()?;
        local.channel(self.rules().listens(), &engine.waiters).cloned()
    }

    fn context(&self) -> Result<&Arc<LockContext>> {
        self.context.as_ref().map_err(Error::clone)
    }

    /// The error with the name of the lock.
    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(&self.given))
    }

    /// Asks the servers of its client for a word.
    pub(crate) fn ping(&self) -> Result<()> {
        self.context()?.engine.ping()
    }

    /// The one way in: every verb is this with another patience and another guard.
    fn attempt<G>(
        &self,
        patience: Patience,
        owned: bool,
        guard: impl FnOnce(Option<HoldHandle>) -> Result<G>,
    ) -> Result<G> {
        let options = AcquireOptions { owned, ..AcquireOptions::new(patience) };
        self.acquire_call(&options)?.acquire().and_then(guard)
    }

    /// Returns a call on this lock; the lock's own lease and token fill what `options` leave out.
    pub(crate) fn acquire_call<'a>(
        &'a self,
        options: &AcquireOptions<'a>,
    ) -> Result<AcquireCall<'a>> {
        let lease = options.lease.or(self.lease).map(checked_lease).transpose();
        let named = |error| self.named(error);
        Ok(AcquireCall {
            context: self.context().map_err(named)?,
            rules: self.rules(),
            holder_name: self.holder.as_ref(),
            options: AcquireOptions {
                lease: lease.map_err(named)?,
                cancel: options.cancel.or(self.cancel.as_ref()),
                ..*options
            },
        })
    }
}

/// An error for a holder that nobody can be.
fn check_holder(holder: &str) -> Result<()> {
    match holder {
        "" => Err(name::invalid("the name of a holder is empty")),
        _ if owner::is_owner_field(holder) => {
            Err(name::invalid("the name of a holder is that of a hold of this library"))
        }
        _ => Ok(()),
    }
}

/// Reads what is left of a lease: `None` if nobody has one.
fn remaining(left: Reply) -> Result<Option<Duration>> {
    const FREE: i64 = -2;
    let left = left.into_int()?;
    Ok((left != FREE).then_some(rules::left(left).unwrap_or(Duration::MAX)))
}

#[allow(clippy::unnecessary_wraps, reason = "the shape that attempt() wants")]
fn guard<P: LockKind>(hold: Option<HoldHandle>) -> Result<Option<Guard<P>>> {
    Ok(hold.map(Guard::new))
}

#[allow(clippy::unnecessary_wraps, reason = "the shape that attempt() wants")]
fn owned_guard<P: LockKind>(hold: Option<HoldHandle>) -> Result<Option<OwnedGuard<P>>> {
    Ok(hold.map(OwnedGuard::new))
}

/// What a wait without end says if it ends for no reason, which it does not.
pub(crate) fn endless_wait_ended() -> Error {
    Error::new(ErrorKind::Timeout, "a wait without end has ended")
}
