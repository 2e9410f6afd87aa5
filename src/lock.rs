//! A lock, and its verbs.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::Attempt;
use crate::cancel::CancelToken;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, OwnedGuard};
use crate::hold::{HoldId, Holder, Owner, ThreadId};
use crate::lease::Lease;
use crate::pool::At;
use crate::protocol::fair::Fair;
use crate::protocol::fenced::Fenced;
use crate::protocol::named::Named;
use crate::protocol::plain::Plain;
use crate::protocol::spin::Spin;
use crate::protocol::{self, Freed, Protocol, Rules};
use crate::release::{self, Hold, Seat};
use crate::script::{Call, Reply};
use crate::time::{self, Patience};
use crate::waiters::Channel;

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
pub struct Lock<P: Protocol = Plain> {
    given: Arc<str>,
    seat: Result<Arc<Seat>>,
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
/// [fair wait](crate::Builder::fair_wait). [`try_lock`](Lock::try_lock) does not queue, and
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
    /// `holder` is the whole owner field in Redis. Whoever presents the same, in any
    /// thread, process or language, enters again; each guard counts in Redis, and each
    /// release takes one off. [`unlock`](Lock::unlock) takes one off for a guard that was
    /// leaked, or that another process left. Each verb costs its round trip, and a waiter asks
    /// by itself.
    ///
    /// A guard looks after the lease as any other does. Another who presents the name may end
    /// what this one counted: it finds out when its lease is renewed, and not before. A thread
    /// that has a guard under one name and wants the lock under another would wait for itself:
    /// [`is_deadlock`](Error::is_deadlock).
    #[must_use = "the holder belongs to the lock that is returned"]
    pub fn with_holder(mut self, holder: impl Into<String>) -> Lock {
        self.holder = Some(holder.into().into());
        self
    }
}

/// On what terms a lock is asked for; what is not said here is the lock's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) patience: Patience,
    pub(crate) owned: bool,
    pub(crate) lease: Option<Duration>,
    pub(crate) cancel: Option<&'a CancelToken>,
    pub(crate) on_behalf: Option<&'a Holder>,
}

impl<P: Protocol> Clone for Lock<P> {
    fn clone(&self) -> Lock<P> {
        Lock {
            given: Arc::clone(&self.given),
            seat: self.seat.clone(),
            lease: self.lease,
            cancel: self.cancel.clone(),
            holder: self.holder.clone(),
            protocol: PhantomData,
        }
    }
}

impl<P: Protocol> fmt::Debug for Lock<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("kind", &self.rules())
            .field("name", &self.given)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl<P: Protocol> Lock<P> {
    pub(crate) fn new(engine: Arc<Engine>, name: String) -> Lock<P> {
        let given: Arc<str> = name.into();
        let seat = engine.local(&given).map(|local| Arc::new(Seat { engine, local }));
        Lock { given, seat, lease: None, cancel: None, holder: None, protocol: PhantomData }
    }

    fn rules(&self) -> &'static dyn Rules {
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
    /// of the release; should that be lost, it asks anew within the poll bound.
    ///
    /// # Errors
    /// [`is_connection`](Error::is_connection) or [`is_timeout`](Error::is_timeout) if
    /// the first question gets no answer; once it was refused it waits through
    /// outages. [`is_cancelled`](Error::is_cancelled) by its token.
    /// [`is_lost`](Error::is_lost) if this thread still has a guard of a hold that was
    /// lost, or if the lease was over before the answer came: three times, or once if its
    /// time was over too.
    /// [`is_deadlock`](Error::is_deadlock) if this thread holds the lock as one of
    /// another kind. And those of [every verb](Lock#errors-that-every-verb-can-give).
    pub fn lock(&self) -> Result<Guard<P>> {
        self.attempt(Patience::Forever, false, |hold| hold.ok_or_else(never).map(Guard::new))
    }

    /// Takes the lock if it is free, without waiting: `None` if it is not.
    ///
    /// One round trip; none if this thread holds it already, or if another thread of
    /// this process holds it or waits for it. (Fair locks, readers and named holders stand in no
    /// line of their process: they always ask.)
    ///
    /// # Errors
    /// Those of [`lock`](Lock::lock).
    pub fn try_lock(&self) -> Result<Option<Guard<P>>> {
        self.attempt(Patience::None, false, guard)
    }

    /// Blocks until the lock is held by this thread, or for `timeout`: then `None`.
    ///
    /// `Duration::MAX` waits for ever. If the server falls silent it may take one
    /// response time-out longer, or two and a connect time-out where a connection has to
    /// be made first.
    ///
    /// # Errors
    /// Those of [`lock`](Lock::lock). If the time ends while nobody answers:
    /// [`is_connection`](Error::is_connection), or [`is_timeout`](Error::is_timeout) if
    /// it could not even be asked, since nobody knows then.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<Guard<P>>> {
        self.attempt(Patience::span(time::now(), timeout), false, guard)
    }

    /// Blocks until the lock is held by this thread, or until `deadline`: then `None`.
    ///
    /// # Errors
    /// Those of [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<Guard<P>>> {
        self.attempt(Patience::instant(time::now(), deadline), false, guard)
    }

    /// Like [`lock`](Lock::lock), but the guard is no thread's and can be sent.
    ///
    /// # Errors
    /// Those of [`lock`](Lock::lock), and [`is_deadlock`](Error::is_deadlock) if this
    /// thread has a guard of this lock.
    pub fn lock_owned(&self) -> Result<OwnedGuard<P>> {
        self.attempt(Patience::Forever, true, |hold| hold.ok_or_else(never).map(OwnedGuard::new))
    }

    /// Like [`try_lock`](Lock::try_lock), but the guard is no thread's and can be sent.
    ///
    /// # Errors
    /// Those of [`lock`](Lock::lock).
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
        self.attempt(Patience::span(time::now(), timeout), true, owned_guard)
    }

    /// Like [`try_lock_until`](Lock::try_lock_until), but the guard is no thread's and
    /// can be sent.
    ///
    /// # Errors
    /// Those of [`lock_owned`](Lock::lock_owned) and
    /// [`try_lock_for`](Lock::try_lock_for).
    pub fn try_lock_until_owned(&self, deadline: Instant) -> Result<Option<OwnedGuard<P>>> {
        self.attempt(Patience::instant(time::now(), deadline), true, owned_guard)
    }

    /// Ends a hold whose guard was [leaked](Guard::leak): one that this thread leaked;
    /// else one that was owned, or left behind by a thread that has ended. Waits for
    /// the answer: one round trip, none if the thread holds it more than once.
    ///
    /// # Errors
    /// [`is_not_held`](Error::is_not_held) if there is none; and those of
    /// [`Guard::unlock`].
    pub fn unlock(&self) -> Result<()> {
        let seat = self.seat()?;
        let mine = |lease: &Lease| self.is_mine(lease);
        let leaked = seat.local.leaked(mine, ThreadId::current(), time::now());
        match (leaked, &self.holder) {
            (Some((lease, counted)), _) => {
                Hold::new(Arc::clone(seat), lease).unlock_leaked(counted)
            }
            (None, Some(_)) => self.take_one_off(),
            (None, None) => Err(release::not_held()),
        }
    }

    /// Takes one off the count of a named holder, whoever counted it.
    fn take_one_off(&self) -> Result<()> {
        let Seat { engine, local } = &**self.seat()?;
        let owner = Owner::new(engine.id, HoldId::next(), "").named(self.holder.clone());
        let freed = protocol::freed(self.ask(Named.release(local.name(), &owner))?)?;
        if freed == Freed::NotHeld { Err(release::not_held()) } else { Ok(()) }
    }

    /// Returns whether anybody holds the lock: one round trip.
    ///
    /// # Errors
    /// [`is_connection`](Error::is_connection), [`is_timeout`](Error::is_timeout), and
    /// those of [every verb](Lock#errors-that-every-verb-can-give).
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds the lock: no round trip.
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many times this thread holds the lock, leaked guards included: no
    /// round trip.
    pub fn hold_count(&self) -> usize {
        let (thread, now) = (ThreadId::current(), time::now());
        let mine = |lease: &Lease| self.is_mine(lease);
        self.seat.as_ref().map_or(0, |seat| seat.local.count(mine, thread, now))
    }

    /// Whether that is a hold of this kind, and of this holder if it has a name.
    fn is_mine(&self, lease: &Lease) -> bool {
        let names_it = |name: &Arc<str>| lease.owner().as_bytes() == name.as_bytes();
        lease.rules().kind() == self.rules().kind() && self.holder.as_ref().is_none_or(names_it)
    }

    /// Returns what is left of the lease of whoever holds the lock, `None` if nobody
    /// does, `Duration::MAX` if it has no end: one round trip.
    ///
    /// # Errors
    /// Those of [`is_locked`](Lock::is_locked).
    pub fn remaining(&self) -> Result<Option<Duration>> {
        let left = self.ask(self.rules().left(self.seat()?.local.name()))?;
        remaining(left)
    }

    /// Frees the lock, whoever holds it, and wakes who waits: two round trips, one if
    /// nobody holds it. Whether it was held.
    ///
    /// Whoever held it keeps running: a holder of this process finds its hold lost at
    /// once, others, and one that got it at this very moment, when they renew it. For
    /// repairs by hand.
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
        let Seat { engine, local } = &**self.seat()?;
        engine.check_open()?;
        // That question may be sent again, over a new connection if the old one is dead.
        let left = engine.fleet.call(self.rules().left(local.name()), At::near(local.owed()))?;
        if remaining(left.reply)?.is_none() {
            return Ok(false);
        }
        // A thread that gets the lock once it is free does not lose it again.
        let held = local.leases();
        let force = self.rules().force(local.name());
        let answer = engine.fleet.call(force, At::Behind(left.lane))?;
        let freed = protocol::freed(answer.reply)? != Freed::NotHeld;
        if freed {
            held.iter().for_each(|lease| local.lose(lease));
        }
        Ok(freed)
    }

    /// Returns the name of the lock, without the client's prefix.
    pub fn name(&self) -> &str {
        &self.given
    }

    /// What a caller that was refused listens to, if callers share it.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        let Seat { engine, local } = &**self.seat.as_ref().ok()?;
        local.channel(self.rules().listens(), &engine.waiters).cloned()
    }

    fn seat(&self) -> Result<&Arc<Seat>> {
        self.seat.as_ref().map_err(Error::clone)
    }

    fn ask(&self, call: Call) -> Result<Reply> {
        let Seat { engine, local } = &**self.seat()?;
        engine.check_open()?;
        engine.fleet.call(call, At::near(local.owed())).map(|answer| answer.reply)
    }

    /// The one way in: every verb is this with another patience and another guard.
    fn attempt<G>(
        &self,
        patience: Patience,
        owned: bool,
        guard: impl FnOnce(Option<Hold>) -> Result<G>,
    ) -> Result<G> {
        let terms = Terms { patience, owned, lease: None, cancel: None, on_behalf: None };
        self.ask_on(&terms)?.acquire().and_then(guard)
    }

    /// What it asks for on these terms.
    pub(crate) fn ask_on<'a>(&'a self, terms: &Terms<'a>) -> Result<Attempt<'a>> {
        Ok(Attempt {
            seat: self.seat()?,
            rules: self.rules(),
            lease: terms.lease.or(self.lease).map(release::checked_lease).transpose()?,
            owned: terms.owned,
            holder: self.holder.as_ref(),
            patience: terms.patience,
            on_behalf: terms.on_behalf,
            cancel: terms.cancel.or(self.cancel.as_ref()),
        })
    }
}

/// Reads what is left of a lease: `None` if nobody has one.
fn remaining(left: Reply) -> Result<Option<Duration>> {
    const FREE: i64 = -2;
    let left = left.into_int()?;
    Ok((left != FREE).then_some(protocol::left(left).unwrap_or(Duration::MAX)))
}

#[allow(clippy::unnecessary_wraps, reason = "the shape that attempt() wants")]
fn guard<P: Protocol>(hold: Option<Hold>) -> Result<Option<Guard<P>>> {
    Ok(hold.map(Guard::new))
}

#[allow(clippy::unnecessary_wraps, reason = "the shape that attempt() wants")]
fn owned_guard<P: Protocol>(hold: Option<Hold>) -> Result<Option<OwnedGuard<P>>> {
    Ok(hold.map(OwnedGuard::new))
}

/// What a wait without end says if it ends for no reason, which it does not.
pub(crate) fn never() -> Error {
    Error::new(ErrorKind::Timeout, "the wait for the lock ended")
}
