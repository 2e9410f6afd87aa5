//! [`Lock`], the handle of one lock: its type and its kinds.
//!
//! `shared` has the parts that semaphores and latches have too; `settings` has the `with_` methods;
//! `verbs` acquires; `queries` asks about a lock, and releases holds that have no guard. A handle
//! keeps no state of an acquisition: each verb builds an [`AcquireCall`] and runs it.

mod queries;
mod settings;
mod shared;
mod verbs;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{AcquireCall, AcquireOptions, LockContext};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::HandleListener;
use crate::kind::fair::Fair;
use crate::kind::fenced::Fenced;
use crate::kind::plain::Plain;
use crate::kind::queued::Queued;
use crate::kind::rules::{LockKind, LockRules};
use crate::kind::spin::Spin;
use crate::local::YieldsTo;
use crate::stats::Label;
use crate::transport::listener::channels::Channel;
use crate::util::clock::{self, Moment};

pub(crate) use shared::{SharedHandle, endless_wait_ended};

/// A distributed lock with one name.
///
/// A handle is made and cloned without a round trip. All handles with one name are the same lock,
/// in all threads and processes and on all machines. [`lock`](Lock::lock) and the `try_` verbs
/// return a [`Guard`](crate::Guard), which belongs to the calling thread and releases the lock when
/// it is dropped. The `_owned` verbs return an [`OwnedGuard`](crate::OwnedGuard), which can be sent
/// to another thread.
///
/// The watchdog renews the lease until the lock is released. If the process dies, the lock is free
/// within one [watchdog time-out](crate::Builder::watchdog_timeout). A lock made by
/// [`with_lease`](Lock::with_lease) has a fixed lease instead. The
/// [crate documentation](crate#terms) explains the terms.
///
/// The type parameter is the [kind](crate::kind) of the lock.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let lock = client.lock("orders:42");
/// let guard = lock.lock()?;
/// // ... at most one caller at a time is here ...
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors of every verb
/// - [`is_invalid_name`](crate::Error::is_invalid_name) if the name cannot be used.
/// - [`is_configuration`](crate::Error::is_configuration) if the lease or the
///   [limit of holds](Lock::with_max_hold) is below 10 ms, if the handle has a
///   [minimum](Lock::with_min_hold) and its kind permits none, if the
///   [label](Lock::with_label) or the [weight](Lock::with_weight) is invalid, and in a forked
///   child.
/// - [`is_closed`](crate::Error::is_closed) after [`Client::close`](crate::Client::close).
/// - [`is_server`](crate::Error::is_server) if the server refuses the command. The text has the
///   server's words and advice.
#[must_use = "a lock is not taken until lock() or another of its verbs is called"]
pub struct Lock<K: LockKind = Plain> {
    shared: SharedHandle,
    rules: &'static dyn LockRules,
    /// The name set by [`Lock::with_holder`].
    holder: Option<Arc<str>>,
    kind: PhantomData<K>,
}

/// A lock granted in the order of arrival: Redisson's fair lock.
///
/// The order holds across threads, processes and languages. Each waiting call has one entry in a
/// queue in Redis. A waiter whose process has died loses its place after the
/// [fair waiter time-out](crate::Builder::fair_waiter_timeout). [`try_lock`](Lock::try_lock)
/// neither enters the queue nor overtakes it. An acquire takes as many round trips as with a plain
/// lock. A release publishes one message, to the next waiter only. A process does not
/// [hand off](crate::Builder::local_handoff) a fair lock between its threads, because a hand-off
/// would overtake other processes.
///
/// Differences from Redisson:
/// - A waiter that gives up, is cancelled or fails leaves the queue at once.
/// - Polls keep the place of a waiter in the queue for as long as the lock is held.
/// - While a lock is free, the waiters behind the head of the queue do not ask again and again.
/// - The release of a lost lock is an error, as with every other kind.
pub type FairLock = Lock<Fair>;

/// A lock whose guards carry a fencing token: Redisson's fenced lock.
///
/// [`Guard::token`](crate::Guard::token) is larger than all earlier tokens of the lock. Redis keeps
/// the last token in a key of its own without a time to live, as with Redisson: a name that was
/// used once leaves about 100 bytes (`docs/mechanisms.md` says how to remove them). If that key was
/// deleted or lost, the next token is the server's clock in microseconds, so tokens still grow.
///
/// Differences from Redisson:
/// - Nested guards have the token of the outer guard.
/// - A fixed lease is respected.
/// - If the key of the lock has no time to live, another caller counts as the holder. Redisson
///   counts the lock as acquired.
pub type FencedLock = Lock<Fenced>;

/// A lock whose waiters poll, without a subscription: Redisson's spin lock.
///
/// The release of a spin lock publishes no message, so a release costs the server less and a wait
/// costs it more. Spin locks suit very many locks with very short holds, and users without the
/// right to subscribe. [`spin_back_off`](crate::Builder::spin_back_off) sets the pauses between
/// attempts.
///
/// The threads of one process queue, and hand the lock off, as with a plain lock. A process cannot
/// learn whether other processes want the lock. So a process that takes the lock again and again
/// leaves the lock free for 2 ms after every 20 ms. Each attempt of another process has about a
/// 10 % chance to fall into that time.
///
/// A plain lock and a spin lock with the same name exclude each other, but the release of the spin
/// lock does not wake the waiters of the plain lock. Use one kind for one name.
pub type SpinLock = Lock<Spin>;

/// A lock granted by arrival and weight, in a message to one waiter.
///
/// A release grants the lock to the best waiter, in any process, and tells only that waiter. The
/// waiter then has the lock without a further round trip, and the other waiters sleep on. So a
/// release costs the same for one and for 10,000 waiters. Prefer this kind if many callers compete
/// for one lock. Guards have tokens, as those of a [`FencedLock`].
///
/// # Order
/// A waiter comes before all waiters of the same weight that arrived later. [`with_weight`] moves a
/// waiter forward by one [`weight_step`] per unit above 1. So a waiter of weight 1 is overtaken
/// only by waiters that arrive less than nine steps later: no waiter starves. Only the clock of the
/// server counts. If that clock is set back by a time `d`, later callers may overtake waiters that
/// arrived in the last `d`. [`try_lock`](Lock::try_lock) does not enter the queue, and never takes
/// a free lock that a waiter of a living client waits for. A process does not [hand off] a queue
/// lock between its threads.
///
/// # Leases
/// A grant by message has a *grant lease* of three [poll intervals], at least 2 s and at most one
/// [watchdog time-out]. The first renewal, after a third of the grant lease, extends it to the
/// watchdog time-out. So a process that dies or stops right after a grant delays the other waiters
/// by one grant lease. A call with a [fixed lease](Lock::with_lease), or with
/// [acknowledgements of replicas](crate::Builder::min_replicas), makes one more round trip after a
/// grant by message.
///
/// # Lost messages and dead waiters
/// At least once per poll interval and three times per grant lease, the watchdog sends one *queue
/// heartbeat* for all waiters of a lock in the process. The heartbeat repeats a grant whose message
/// was lost. It also grants a lock that became free without a release of a queue lock, for instance
/// after the death of its holder. A client without a queue heartbeat for one grant lease counts as
/// gone: the next grant passes over its waiters. Except in a cluster, the waiters of a client that
/// does not listen are passed over at once. If that client lives, its waiters ask again and get
/// their places back, but not a lock that was granted meanwhile. After a restart of the server
/// without its data, the first waiter that asks takes the free lock, whatever its place.
///
/// # Tokens
/// [`Guard::token`](crate::Guard::token) grows as that of a [`FencedLock`], by the same key without
/// a time to live.
///
/// # Other kinds with the same name
/// Redisson has no such lock. A queue lock excludes the plain and fenced locks with its name, of
/// this library and of Redisson, and shares its tokens with the fenced lock. Releases of these
/// locks are noticed within one poll interval. While callers wait for the queue lock, a release of
/// the queue lock goes to them and not to waiters of other kinds, which may starve. Use one kind
/// for one name.
///
/// [`with_weight`]: Lock::with_weight
/// [`weight_step`]: crate::Builder::weight_step
/// [hand off]: crate::Builder::local_handoff
/// [poll intervals]: crate::Builder::poll_interval
/// [watchdog time-out]: crate::Builder::watchdog_timeout
pub type QueueLock = Lock<Queued>;

impl<K: LockKind> Clone for Lock<K> {
    fn clone(&self) -> Lock<K> {
        let Lock { shared, rules, holder, kind } = self;
        Lock { shared: shared.clone(), rules: *rules, holder: holder.clone(), kind: *kind }
    }
}

impl<K: LockKind> fmt::Debug for Lock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt("Lock", f)
    }
}

impl<K: LockKind> Lock<K> {
    pub(crate) fn new(engine: Arc<Engine>, name: String) -> Lock<K> {
        let rules = K::rules();
        let shared = SharedHandle::new(engine, name, rules.kind());
        Lock { shared, rules, holder: None, kind: PhantomData }
    }

    /// Returns the same lock without its kind in its type, for a collection of locks.
    pub(crate) fn untyped(self) -> Lock {
        let Lock { shared, rules, holder, .. } = self;
        Lock { shared, rules, holder, kind: PhantomData }
    }

    /// Returns the name of the lock, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Returns the client of the lock.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>> {
        Ok(&self.shared.context()?.engine)
    }

    /// Returns the label of this handle.
    pub(crate) fn label(&self) -> Option<&Label> {
        self.shared.settings().label()
    }

    /// Returns the listener of this handle.
    pub(crate) fn listener(&self) -> Option<&HandleListener> {
        self.shared.settings().listener()
    }

    /// Returns the call for this lock. The handle's settings replace absent options.
    pub(crate) fn acquire_call<'a>(
        &'a self,
        options: &AcquireOptions<'a>,
    ) -> Result<AcquireCall<'a>> {
        self.check_limits()?;
        self.shared.acquire_call(self.rules, self.holder.as_ref(), options)
    }

    /// Returns the length of renewed leases, if it is not that of the client.
    pub(crate) fn renewed_lease(&self) -> Option<Duration> {
        self.shared.settings().renewed_lease()
    }

    /// Fails if the limit is too short, if the linger time is too long, or if the kind does not
    /// permit a minimum or a linger time.
    pub(crate) fn check_limits(&self) -> Result<()> {
        self.shared.check_max_hold()?;
        self.shared.check_linger()?;
        let (settings, rules) = (self.shared.settings(), self.rules);
        let text = if settings.min_hold().is_some() && rules.early_release().is_none() {
            format!("a {} cannot have a minimum hold", self.shared.kind())
        } else if settings.linger().is_some() && !rules.may_linger() {
            format!("a {} cannot linger", self.shared.kind())
        } else {
            return Ok(());
        };
        Err(self.shared.named(Error::configuration(text)))
    }

    /// Returns whether this thread holds the lock in a way that excludes this handle.
    pub(crate) fn blocks_own_thread(&self, owned: bool) -> bool {
        self.shared
            .context()
            .is_ok_and(|context| context.local.blocks_own_thread(self.rules, owned, clock::now()))
    }

    /// Returns the moment until which a caller has to yield, if it has to.
    pub(crate) fn yield_until(&self, yields: YieldsTo, now: Moment) -> Option<Moment> {
        self.shared.context().ok()?.local.yield_until(yields, now)
    }

    /// Returns the channel that the waiters of this kind share; `None` if they share none.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        let LockContext { engine, local } = &**self.shared.context().ok()?;
        local.channel(self.rules.listens_to(), &engine.channels).cloned()
    }

    /// Asks the servers of the lock's client for a reply. One round trip.
    pub(crate) fn ping(&self) -> Result<()> {
        self.shared.context()?.engine.ping()
    }
}
