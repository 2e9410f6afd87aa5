//! Several locks as one: all of them, or none.
//!
//! Nobody waits for one lock while it holds another, so two callers that name the same
//! locks in different order do not wait for each other for ever:
//! 1. All are asked for without waiting, in one order (client, key): plain locks of one
//!    client by one script call (`together.rs`), others one by one.
//! 2. One is refused: those that were taken are released, and that one is waited for.
//! 3. It is granted: the others are asked for as in 1, and so on.
//!
//! Callers that take from each other what each has waited for pause, longer each time. One
//! that has lost twice stands in line for each in turn, in the order of 1, and holds those
//! before it meanwhile: once, and for a short while each, so that nobody waits for ever
//! whatever others do. Else it would never get several that are always wanted.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::{AcquireCall, AcquireOptions, HoldHandle};
use crate::cancel::{Bound, CancelToken};
use crate::command::owner::HoldId;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Kind;
use crate::kind::plain::Plain;
use crate::kind::rules::{KindRules as _, LockKind};
use crate::lock::batch::{self, BatchOutcome};
use crate::lock::handle::Lock;
use crate::lock::multi_guard::{AllHolds, GuardSet, MultiGuard, OwnedMultiGuard};
use crate::util::clock::{self, Patience, doubled, jittered};
use crate::util::sync::Parker;

/// The first and the longest pause of a caller whose locks were taken by others meanwhile.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// After so many lost rounds a caller holds some while it waits for others, in one round, and
/// how long it does at first and at most.
const LOSSES: u32 = 2;
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A lock of whatever kind, as a member of several.
#[derive(Clone, Debug)]
#[must_use = "a member does nothing until it is given to a MultiLock"]
pub struct AnyLock(Arc<dyn MultiMember>);

impl<P: LockKind> From<Lock<P>> for AnyLock {
    fn from(lock: Lock<P>) -> AnyLock {
        AnyLock(Arc::new(lock))
    }
}

/// What a lock of any kind has to be able to do as one of several.
pub(crate) trait MultiMember: fmt::Debug + Send + Sync + RefUnwindSafe {
    fn acquire_call<'a>(&'a self, options: &AcquireOptions<'a>) -> Result<AcquireCall<'a>>;
    fn count(&self) -> usize;
    fn name(&self) -> &str;
    /// The moment at which a call that begins now returns.
    fn bound(&self) -> Bound;
    // These return within the bound.
    fn unlock(&self, bound: Bound) -> Result<()>;
    fn left(&self, bound: Bound) -> Result<Option<Duration>>;
    fn force(&self, bound: Bound) -> Result<bool>;
}

impl<P: LockKind> MultiMember for Lock<P> {
    fn acquire_call<'a>(&'a self, options: &AcquireOptions<'a>) -> Result<AcquireCall<'a>> {
        self.acquire_call(options)
    }
    fn count(&self) -> usize {
        self.hold_count()
    }
    fn bound(&self) -> Bound {
        self.bound()
    }
    fn unlock(&self, bound: Bound) -> Result<()> {
        self.unlock_within(bound)
    }
    fn left(&self, bound: Bound) -> Result<Option<Duration>> {
        self.remaining_within(bound)
    }
    fn force(&self, bound: Bound) -> Result<bool> {
        self.force_unlock_within(bound)
    }
    fn name(&self) -> &str {
        self.name()
    }
}

/// Several locks that are held all at once or not at all: Redisson's `RedissonMultiLock`.
///
/// Its members may be of any kind and of any clients. Nobody holds some of them while it
/// waits for another, so callers may name them in any order. Plain locks of one client are
/// taken in one round trip. It has no key of its own: its members exclude, one by one, all
/// others who want them.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// use leasehold::MultiLock;
///
/// let transfer = MultiLock::new([client.lock("account:1"), client.lock("account:2")]);
/// let guard = transfer.lock()?;       // both
/// // ...
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a lock is not taken until lock() or another of its verbs is called"]
pub struct MultiLock {
    members: Vec<AnyLock>,
    lease: Option<Duration>,
    cancel: Option<CancelToken>,
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MultiLock { members, lease, .. } = self;
        f.debug_struct("MultiLock")
            .field("members", members)
            .field("lease", lease)
            .finish_non_exhaustive()
    }
}

/// What one round brought.
enum MultiAttempt {
    All(Vec<HoldHandle>),
    Refused(usize),
    /// The caller's patience ended.
    Over,
}

impl MultiLock {
    /// Makes one of these locks. One that is named twice counts once. A lock's own lease and
    /// token are kept, unless this one is given others.
    pub fn new(members: impl IntoIterator<Item = impl Into<AnyLock>>) -> MultiLock {
        let members = members.into_iter().map(Into::into).collect();
        MultiLock { members, lease: None, cancel: None }
    }

    /// Gives all members this fixed lease; see [`Lock::with_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(mut self, lease: Duration) -> MultiLock {
        self.lease = Some(lease);
        self
    }

    /// Lets `token` end the waits of this lock's verbs.
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> MultiLock {
        self.cancel = Some(token.clone());
        self
    }

    /// Ends a hold whose guard was [detached](MultiGuard::detach): [`Lock::unlock`] of all members.
    ///
    /// # Errors
    /// The first of those of [`Lock::unlock`]; the other members are unlocked all the same.
    pub fn unlock(&self) -> Result<()> {
        let bound = self.bound();
        let members = self.distinct().map_err(|error| self.named(error))?;
        let ended: Vec<_> = members.iter().map(|member| member.0.unlock(bound)).collect();
        ended.into_iter().collect()
    }

    /// Returns whether anybody holds any of the members: a round trip each.
    ///
    /// # Errors
    /// Those of [`Lock::is_locked`].
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds all members: no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many times this thread holds all members: no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn hold_count(&self) -> usize {
        self.members.iter().map(|member| member.0.count()).min().unwrap_or_default()
    }

    /// Returns what is left of the longest lease that anybody has on a member, `None` if all
    /// are free: a round trip each.
    ///
    /// # Errors
    /// Those of [`Lock::remaining`].
    pub fn remaining(&self) -> Result<Option<Duration>> {
        let bound = self.bound();
        let left: Result<Vec<_>> = self.members.iter().map(|member| member.0.left(bound)).collect();
        Ok(left?.into_iter().max().flatten())
    }

    /// Frees all members, whoever holds them; whether any was held. See
    /// [`Lock::force_unlock`].
    ///
    /// # Errors
    /// Those of [`Lock::force_unlock`]; some members may then have been freed.
    pub fn force_unlock(&self) -> Result<bool> {
        let bound = self.bound();
        let freed: Result<Vec<_>> =
            self.members.iter().map(|member| member.0.force(bound)).collect();
        Ok(freed?.contains(&true))
    }

    /// The moment at which a call that begins now and has no deadline of its own returns.
    fn bound(&self) -> Bound {
        let all = self.members.iter().map(|member| member.0.bound());
        all.reduce(Bound::and).unwrap_or_else(Bound::over)
    }

    /// The members, each once, in the order in which all callers ask for them.
    fn distinct(&self) -> Result<Vec<&AnyLock>> {
        let options = AcquireOptions::new(Patience::None);
        let mut placed = Vec::with_capacity(self.members.len());
        for member in &self.members {
            placed.push((place(&member.0.acquire_call(&options)?), member));
        }
        if placed.is_empty() {
            return Err(Error::configuration("a lock of no members"));
        }
        placed.sort_by(|(a, _), (b, _)| a.cmp(b));
        placed.dedup_by(|(a, _), (b, _)| a == b);
        let at_odds = |(a, b): (&LockOrder, &LockOrder)| (a.key == b.key) && (a.client == b.client);
        let mut places = placed.iter().map(|(place, _)| place);
        if placed.len() > 1 && places.clone().zip(places.by_ref().skip(1)).any(at_odds) {
            let message = "two of the locks are one key, and would wait for each other";
            return Err(Error::new(ErrorKind::Deadlock, message));
        }
        Ok(placed.into_iter().map(|(_, member)| member).collect())
    }

    /// The error with the names of all members, unless it names one.
    fn named(&self, error: Error) -> Error {
        let names: Vec<_> = self.members.iter().map(|member| member.0.name()).collect();
        if names.is_empty() { error } else { error.with_lock_name(names.join(", ")) }
    }

    fn acquire(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn GuardSet>>> {
        self.take_all(patience, owned).map_err(|error| self.named(error))
    }

    fn take_all(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn GuardSet>>> {
        let members = self.distinct()?;
        let options = AcquireOptions {
            lease: self.lease,
            owned,
            cancel: self.cancel.as_ref(),
            // A call that waits for ever fails with the first question that gets no answer.
            return_by: match patience {
                Patience::None => self.bound().end(),
                _ => patience.deadline(),
            },
            ..AcquireOptions::new(patience)
        };
        let all: Result<Vec<_>> =
            members.iter().map(|member| member.0.acquire_call(&options)).collect();
        let all = MultiAcquire { all: all?, patience };
        Ok(all.acquire()?.map(|holds| Box::new(AllHolds(holds)) as Box<dyn GuardSet>))
    }
}

/// By what a lock is told from others, and stands before them.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LockOrder {
    key: String,
    client: uuid::Uuid,
    kind: Kind,
    holder: Option<Arc<str>>,
}

fn place(attempt: &AcquireCall<'_>) -> LockOrder {
    let (engine, name) = (&attempt.context.engine, attempt.context.local.name());
    let (kind, holder) = (attempt.rules.kind(), attempt.holder_name.cloned());
    LockOrder { key: name.key().to_owned(), client: engine.id, kind, holder }
}

/// What is asked for, as with the caller's patience.
struct MultiAcquire<'a> {
    all: Vec<AcquireCall<'a>>,
    patience: Patience,
}

impl MultiAcquire<'_> {
    fn acquire(&self) -> Result<Option<Vec<HoldHandle>>> {
        let (mut first, mut lost, mut turns) = (None, 0, 0);
        loop {
            let in_turn = lost == LOSSES;
            let round = if in_turn { self.in_turn(turns) } else { self.round(first) };
            let (refused, trouble) = match (round, first) {
                (Ok(MultiAttempt::All(holds)), _) => return Ok(Some(holds)),
                (Ok(MultiAttempt::Over), _) => return Ok(None),
                (Ok(MultiAttempt::Refused(position)), _) => (position, None),
                // It was refused before, and waits through outages.
                (Err(error), Some(first)) if error.is_transient() => (first, Some(error)),
                (Err(error), _) => return Err(error),
            };
            if self.patience.is_over(clock::now()) {
                return trouble.map_or(Ok(None), Err);
            }
            match first {
                // Whoever has that one may keep it for long: it is waited for with empty hands.
                _ if in_turn => (lost, turns) = (LOSSES - 1, turns + 1),
                Some(_) => {
                    pause(lost, self.patience);
                    lost += 1;
                }
                None => {}
            }
            first = Some(refused);
        }
    }

    /// Stands in line for one after the other, for a short while each.
    fn in_turn(&self, turns: u32) -> Result<MultiAttempt> {
        let wait = doubled(FIRST_WAIT, turns, LONGEST_WAIT);
        let mut holds = Vec::with_capacity(self.all.len());
        for (position, attempt) in self.all.iter().enumerate() {
            let wait = jittered(wait, HoldId::next().seed());
            let end = (clock::now() + wait).min(self.patience.end());
            match attempt.with_patience(Patience::Until(end)).acquire()? {
                Some(hold) => holds.push(hold),
                None => return Ok(MultiAttempt::Refused(position)),
            }
        }
        Ok(MultiAttempt::All(holds))
    }

    /// Waits for one, if it was refused before, and asks for the others.
    fn round(&self, first: Option<usize>) -> Result<MultiAttempt> {
        let mut holds: Vec<Option<HoldHandle>> = self.all.iter().map(|_| None).collect();
        if let Some(first) = first {
            holds[first] = self.all[first].acquire()?;
            if holds[first].is_none() {
                return Ok(MultiAttempt::Over);
            }
        }
        while let Some(next) = holds.iter().position(Option::is_none) {
            let group = self.group(next, &holds);
            match self.take(&group)? {
                BatchOutcome::Refused(position) => {
                    return Ok(MultiAttempt::Refused(group[position]));
                }
                BatchOutcome::All(taken) => {
                    group.into_iter().zip(taken).for_each(|(at, hold)| holds[at] = Some(hold));
                }
            }
        }
        Ok(MultiAttempt::All(holds.into_iter().flatten().collect()))
    }

    /// Those that are asked for together with that one.
    fn group(&self, next: usize, holds: &[Option<HoldHandle>]) -> Vec<usize> {
        let open = (next..holds.len()).filter(|at| holds[*at].is_none());
        open.filter(|at| *at == next || self.go_together(next, *at)).collect()
    }

    fn go_together(&self, a: usize, b: usize) -> bool {
        let [a, b] = [&self.all[a], &self.all[b]];
        let plain = |attempt: &AcquireCall<'_>| attempt.rules.kind() == Plain.kind();
        let same = |a: &Arc<Engine>, b: &Arc<Engine>| Arc::ptr_eq(a, b);
        let slot = |attempt: &AcquireCall<'_>| {
            attempt.context.engine.router.slot_of(attempt.context.local.name().key())
        };
        plain(a)
            && plain(b)
            && a.options.lease == b.options.lease
            && same(&a.context.engine, &b.context.engine)
            && slot(a) == slot(b)
    }

    /// Takes all of them, or the first.
    fn take(&self, group: &[usize]) -> Result<BatchOutcome> {
        let at_once = |at: &usize| self.all[*at].with_patience(Patience::None);
        let attempts: Vec<_> = group.iter().map(at_once).collect();
        match &attempts[..] {
            [single] => take_alone(single),
            [first, ..] => match batch::take(&attempts) {
                // Their slot may be on the move, or there are slots and nobody knew.
                Err(error) if error.is_server() => take_alone(first),
                taken => taken,
            },
            [] => Ok(BatchOutcome::All(Vec::new())),
        }
    }
}

fn take_alone(attempt: &AcquireCall<'_>) -> Result<BatchOutcome> {
    Ok(match attempt.acquire()? {
        Some(hold) => BatchOutcome::All(vec![hold]),
        None => BatchOutcome::Refused(0),
    })
}

/// Lets others finish who take what this caller has waited for.
fn pause(lost: u32, patience: Patience) {
    let now = clock::now();
    let pause = doubled(FIRST_PAUSE, lost, LONGEST_PAUSE);
    let end = now + jittered(pause, HoldId::next().seed() ^ now.nanos());
    let parker = Parker::mine();
    while clock::now() < end.min(patience.end()) {
        parker.park_until(end.min(patience.end()));
    }
}

/// The verbs of a lock whose `acquire` gives several holds as one.
macro_rules! many_verbs {
    ($lock:ident) => {
        impl $lock {
            /// Blocks until this thread holds it: see [`Lock::lock`](crate::Lock::lock).
            ///
            /// # Errors
            /// Those of [`Lock::lock`](crate::Lock::lock).
            pub fn lock(&self) -> Result<MultiGuard> {
                self.acquire(Patience::Forever, false)?
                    .map(MultiGuard::new)
                    .ok_or_else($crate::lock::handle::endless_wait_ended)
            }

            /// Takes it if that is possible without waiting: `None` if it is not.
            ///
            /// # Errors
            /// Those of [`Lock::lock`](crate::Lock::lock).
            pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
                Ok(self.acquire(Patience::None, false)?.map(MultiGuard::new))
            }

            /// Blocks until this thread holds it, or for `timeout`: then `None`.
            /// `Duration::MAX` waits for ever.
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<MultiGuard>> {
                let patience = Patience::span(clock::now(), timeout);
                Ok(self.acquire(patience, false)?.map(MultiGuard::new))
            }

            /// Blocks until this thread holds it, or until `deadline`: then `None`.
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>> {
                let patience = Patience::instant(clock::now(), deadline);
                Ok(self.acquire(patience, false)?.map(MultiGuard::new))
            }

            /// Like `lock`, but the guard is no thread's and can be sent.
            ///
            /// # Errors
            /// Those of [`Lock::lock_owned`](crate::Lock::lock_owned).
            pub fn lock_owned(&self) -> Result<OwnedMultiGuard> {
                self.acquire(Patience::Forever, true)?
                    .map(OwnedMultiGuard::new)
                    .ok_or_else($crate::lock::handle::endless_wait_ended)
            }

            /// Like `try_lock`, but the guard is no thread's and can be sent.
            ///
            /// # Errors
            /// Those of [`Lock::lock`](crate::Lock::lock).
            pub fn try_lock_owned(&self) -> Result<Option<OwnedMultiGuard>> {
                Ok(self.acquire(Patience::None, true)?.map(OwnedMultiGuard::new))
            }

            /// Like `try_lock_for`, but the guard is no thread's and can be sent.
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for_owned`](crate::Lock::try_lock_for_owned).
            pub fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<OwnedMultiGuard>> {
                let patience = Patience::span(clock::now(), timeout);
                Ok(self.acquire(patience, true)?.map(OwnedMultiGuard::new))
            }

            /// Like `try_lock_until`, but the guard is no thread's and can be sent.
            ///
            /// # Errors
            /// Those of [`Lock::try_lock_for_owned`](crate::Lock::try_lock_for_owned).
            pub fn try_lock_until_owned(
                &self,
                deadline: Instant,
            ) -> Result<Option<OwnedMultiGuard>> {
                let patience = Patience::instant(clock::now(), deadline);
                Ok(self.acquire(patience, true)?.map(OwnedMultiGuard::new))
            }
        }
    };
}
pub(crate) use many_verbs;

many_verbs!(MultiLock);
