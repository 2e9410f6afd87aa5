//! A lock on most of several independent servers.
//!
//! Threads of one process that want it stand in a line of its own, which they share by the
//! clients and the name; the first asks all servers at once (`majority.rs`). Refused, it
//! gives back what it was granted, listens to the channels of all servers, and asks again
//! when it hears something, or after a pause that grows. Re-entry is counted in the line.

mod line;

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::acquire::{ANSWER_GRACE, AcquireOptions, HoldHandle, checked_lease, not_held};
use crate::cancel::{CancelToken, CancelWatch};
use crate::command::owner::{HoldId, Holder};
use crate::engine::Engine;
use crate::error::{Error, LostReason, Result};
use crate::events::{Event, Kind, Waited};
use crate::kind::plain::Plain;
use crate::listener::channels::{Channel, MessageCount, Waiting};
use crate::local::queue::Ticket;
use crate::lock::handle::Lock;
use crate::lock::multi_guard::{GuardSet, MultiGuard, OwnedMultiGuard};
use crate::lock::multi_lock::many_verbs;
use crate::lock::quorum::{self, Ballot, BallotLimits, Quorum};
use crate::util::clock::{self, Moment, Patience, doubled, jittered};
use crate::util::interner::Interned;
use crate::util::sync::Parker;
use line::{RedEntry, RedQueue, RedRequest, RedTurn};

/// The first and the longest pause between two questions of a caller that hears nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// For how long a caller that was woken and refused hears nothing, at first and at most: what
/// it is given by few servers it gives back, and hears that itself.
const FIRST_QUIET: Duration = Duration::from_millis(1);
const LONGEST_QUIET: Duration = Duration::from_millis(128);

/// How often one call is granted leases that are over by the time it knows.
const TOO_LATE: u32 = 3;

/// The lines of this process, by the clients and the name.
static LINES: LazyLock<Interned<RedQueue>> = LazyLock::new(Interned::default);

/// A lock that is held while most of several independent servers grant it: Redisson's
/// `RedissonRedLock`.
///
/// Each server keeps a plain lock of that name. It is held while the leases on more than half
/// of the servers are valid, each reckoned from before its question was sent, less a margin for
/// clocks that run apart. All servers are asked at the same time: one round trip of the slowest
/// of those that are needed. One that is silent or slow holds up nothing; where too many are, the
/// first question of a call is [`is_timeout`](crate::Error::is_timeout), after one response
/// time-out, or [`is_connection`](crate::Error::is_connection).
///
/// What it adds to one server: any minority may be gone, and the lock is held and can be taken. What
/// it does not: a server that comes back *without its data* may give to another what it had given
/// before, while another server is gone; keep it away for one lease, or let it write every change to
/// its disk (`appendfsync always`). Clocks that step can overlap two holds. A process that is paused after its last
/// check can still do harm (see [`FencedLock`](crate::FencedLock)).
///
/// A thread that holds the plain lock of that name on one of the servers takes that along, as it
/// would by a nested call. Events are those of each client: `acquired` and `released` for what its server
/// granted and got back, also in vain; `waited` once for the whole.
///
/// Clients are told apart by their identity: a clone of one counts once.
///
/// ```no_run
/// use leasehold::{Client, RedLock};
///
/// let servers = ["redis://10.0.0.1/", "redis://10.0.0.2/", "redis://10.0.0.3/"];
/// let clients: Result<Vec<_>, _> = servers.iter().map(Client::open).collect();
/// let lock = RedLock::new(clients?, "orders:42");
/// let guard = lock.lock()?;
/// guard.check()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a lock is not taken until lock() or another of its verbs is called"]
pub struct RedLock {
    name: Arc<str>,
    members: Vec<RedMember>,
    line: Arc<RedQueue>,
    lease: Option<Duration>,
    cancel: Option<CancelToken>,
}

/// The lock on one of the servers.
#[derive(Clone)]
struct RedMember {
    engine: Arc<Engine>,
    lock: Lock<Plain>,
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.members.len();
        f.debug_struct("RedLock")
            .field("name", &self.name)
            .field("servers", &servers)
            .finish_non_exhaustive()
    }
}

impl RedLock {
    pub(crate) fn over(mut engines: Vec<Arc<Engine>>, name: String) -> RedLock {
        engines.sort_by_key(|engine| engine.id);
        engines.dedup_by_key(|engine| engine.id);
        let ids: String = engines.iter().map(|engine| format!("{} ", engine.id)).collect();
        let line = LINES.get(&format!("{} {ids}{name}", engines.len()), RedQueue::default);
        let member = |engine: Arc<Engine>| {
            let lock = Lock::new(Arc::clone(&engine), name.clone());
            RedMember { engine, lock }
        };
        let members = engines.into_iter().map(member).collect();
        RedLock { name: name.into(), members, line, lease: None, cancel: None }
    }

    /// Gives it a fixed lease on every server; see [`Lock::with_lease`].
    #[must_use = "the lease belongs to the lock that is returned"]
    pub fn with_lease(mut self, lease: Duration) -> RedLock {
        self.lease = Some(lease);
        self
    }

    /// Lets `token` end the waits of this lock's verbs.
    #[must_use = "the token belongs to the lock that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> RedLock {
        self.cancel = Some(token.clone());
        self
    }

    /// Returns the name of the lock, without the clients' prefixes.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends a hold whose guard was [detached](MultiGuard::detach): one that this thread detached; else
    /// one that was owned, or left behind by a thread that has ended.
    ///
    /// # Errors
    /// [`is_not_held`](Error::is_not_held) if there is none; and those of
    /// [`MultiGuard::unlock`].
    pub fn unlock(&self) -> Result<()> {
        self.check_process().map_err(|error| self.named(error))?;
        let quorum_hold = self.line.take_detached().ok_or_else(|| self.named(not_held()))?;
        Box::new(self.red(quorum_hold)).unlock()
    }

    /// Does nothing while most of the servers answer: a readiness probe, as
    /// [`Client::ping`](crate::Client::ping). One round trip to all at the same time.
    ///
    /// # Errors
    /// Those of [`Client::ping`](crate::Client::ping), if too few servers answer.
    pub fn ping(&self) -> Result<()> {
        self.ask_all(|lock| lock.ping().map(Some), false).map(drop)
    }

    /// Returns whether most of the servers say that somebody holds it: one round trip.
    ///
    /// # Errors
    /// [`is_timeout`](Error::is_timeout) or [`is_connection`](Error::is_connection) if too few
    /// servers answer to tell, within one response time-out; and those of [`Lock::is_locked`].
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds it: no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many times this thread holds it: no round trip.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn hold_count(&self) -> usize {
        self.line.count()
    }

    /// Returns the remaining lease on a majority of servers, `None` if so many report the lock
    /// free that no majority can hold it: one round trip. May understate a lease that is being
    /// extended.
    ///
    /// # Errors
    /// Those of [`is_locked`](RedLock::is_locked).
    pub fn remaining(&self) -> Result<Option<Duration>> {
        let mut left = self.ask_all(Lock::remaining, false)?;
        left.sort_unstable_by(|a, b| b.cmp(a));
        Ok(left.get(self.quorum() - 1).copied())
    }

    /// Frees it on all servers, whoever holds it; whether it was held on most. Returns when most
    /// have answered. See [`Lock::force_unlock`].
    ///
    /// # Errors
    /// Those of [`is_locked`](RedLock::is_locked); some servers may then have freed it.
    pub fn force_unlock(&self) -> Result<bool> {
        let freed = self.ask_all(|lock| Ok(lock.force_unlock()?.then_some(())), true)?;
        Ok(freed.len() >= self.quorum())
    }

    /// Asks all servers. Returns the positive answers of a majority, or nothing if a majority
    /// cannot be positive any more. One that is not needed any more when its turn comes is asked only if it `must`.
    fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&Lock<Plain>) -> Result<Option<T>> + Clone + Send + 'static,
        must: bool,
    ) -> Result<Vec<T>> {
        self.check_wanted().map_err(|error| self.named(error))?;
        let round = self.query(question, must);
        let most = round.decide().map_err(|error| self.named(error))?;
        let said = round.take();
        round.close();
        Ok(if most { said } else { Vec::new() })
    }

    /// Begins a query of all servers.
    fn query<T: Send + 'static>(
        &self,
        question: impl Fn(&Lock<Plain>) -> Result<Option<T>> + Clone + Send + 'static,
        must: bool,
    ) -> Arc<Ballot<T>> {
        let limits = BallotLimits::of_query(self.silence());
        let round = Ballot::new(self.members.len(), self.quorum(), limits, &Parker::mine());
        for RedMember { engine, lock } in self.members.iter().cloned() {
            let (needed, question) = (Arc::clone(&round), question.clone());
            let asks = move || if must || needed.is_wanted() { question(&lock) } else { Ok(None) };
            round.ask(&engine.executor, asks);
        }
        round
    }

    fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// How long a silent majority is waited for.
    fn silence(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.engine.settings.response_timeout);
        timeouts.max().unwrap_or_default()
    }

    fn poll_interval(&self) -> Duration {
        let bounds = self.members.iter().map(|member| member.engine.settings.poll_interval);
        bounds.min().unwrap_or_default()
    }

    fn term(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.engine.settings.watchdog_timeout);
        self.lease.or(timeouts.min()).unwrap_or_default()
    }

    fn red(&self, quorum_hold: Arc<Quorum>) -> Red {
        let (name, line, silence) = (self.name.clone(), Arc::clone(&self.line), self.silence());
        Red { name, line, quorum_hold, silence, ended: false }
    }

    fn check_wanted(&self) -> Result<()> {
        if self.members.is_empty() {
            return Err(Error::configuration("a lock on no server"));
        }
        self.members.iter().try_for_each(|member| member.engine.check_open())?;
        self.check_process()?;
        self.cancel.as_ref().map_or(Ok(()), CancelToken::check)
    }

    /// An error in a forked child.
    fn check_process(&self) -> Result<()> {
        self.members.iter().try_for_each(|member| member.engine.router.check_process())
    }

    /// The error with the name of the lock.
    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(&self.name))
    }

    /// Has the mailbox rung when a call is cancelled, or a client is closed.
    fn watch(&self, parker: &Arc<Parker>) -> Vec<CancelWatch> {
        let closing = self.members.iter().map(|member| &member.engine.closing);
        closing.chain(&self.cancel).map(|token| token.watch(parker)).collect()
    }

    fn acquire(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn GuardSet>>> {
        self.take_most(patience, owned).map_err(|error| self.named(error))
    }

    /// An error if this thread holds the plain locks of so many servers otherwise that it would
    /// wait for itself.
    fn check_own_way(&self, owned: bool) -> Result<()> {
        let barred =
            self.members.iter().filter(|member| member.lock.blocks_own_thread(owned)).count();
        let held_here = self.line.count() > 0;
        match !held_here && barred > self.members.len() - self.quorum() {
            true => Err(line::deadlock()),
            false => Ok(()),
        }
    }

    fn take_most(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn GuardSet>>> {
        self.check_wanted()?;
        self.lease.map(checked_lease).transpose()?;
        if patience != Patience::None {
            self.check_own_way(owned)?;
        }
        let parker = Parker::mine();
        let waits = patience != Patience::None;
        let endless = patience == Patience::Forever && self.cancel.is_none();
        match self.line.enter(RedRequest { owned, waits, endless }, &parker)? {
            RedEntry::Again(quorum_hold) => {
                let red = self.red(quorum_hold);
                red.keep(self, patience)?;
                Ok(Some(Box::new(red)))
            }
            RedEntry::Busy => Ok(None),
            RedEntry::InLine(ticket) => {
                let holder = if owned { Holder::owned() } else { Holder::this_thread() };
                let granted = RedAcquire::new(self, patience, holder, parker, ticket).run()?;
                Ok(granted.map(|quorum_hold| Box::new(self.red(quorum_hold)) as Box<dyn GuardSet>))
            }
        }
    }
}

many_verbs!(RedLock);

/// A caller in line.
struct RedAcquire<'a> {
    lock: &'a RedLock,
    patience: Patience,
    holder: Holder,
    parker: Arc<Parker>,
    ticket: Ticket,
    /// What wakes it.
    _watching: Vec<CancelWatch>,
    /// The channels that it listens to, once it was refused.
    listening: Vec<Waiting>,
    refusals: u32,
    /// How often it was woken and refused since it was last refused without having been woken.
    vain: u32,
    /// What it had heard before its last question.
    messages: Vec<MessageCount>,
    too_late: u32,
    waited: bool,
    /// The hold of this process that it waits for.
    beside: Option<LocalHold>,
    /// Why the last question got no answer.
    error: Option<Error>,
}

impl Drop for RedAcquire<'_> {
    fn drop(&mut self) {
        self.lock.line.leave(self.ticket);
    }
}

impl<'a> RedAcquire<'a> {
    fn new(
        lock: &'a RedLock,
        patience: Patience,
        holder: Holder,
        parker: Arc<Parker>,
        ticket: Ticket,
    ) -> RedAcquire<'a> {
        let _watching = lock.watch(&parker);
        RedAcquire {
            lock,
            patience,
            holder,
            parker,
            ticket,
            _watching,
            listening: Vec::new(),
            messages: Vec::new(),
            refusals: 0,
            vain: 0,
            too_late: 0,
            waited: false,
            beside: None,
            error: None,
        }
    }

    fn run(mut self) -> Result<Option<Arc<Quorum>>> {
        let started = clock::now();
        let outcome = self.wait();
        if self.waited {
            let (waited, acquired) = (started.until(clock::now()), matches!(outcome, Ok(Some(_))));
            let (at, kind, hold) = (clock::wall_time(), Kind::Red, None);
            let name = || Arc::clone(&self.lock.name);
            let event = || Waited { at, name: name(), kind, hold, waited, acquired };
            let members = self.lock.members.iter();
            members.for_each(|member| member.engine.events.emit(|| Event::Waited(event())));
        }
        outcome
    }

    fn wait(&mut self) -> Result<Option<Arc<Quorum>>> {
        loop {
            self.lock.check_wanted()?;
            let turn = self.lock.line.turn(self.ticket);
            if matches!(turn, RedTurn::Ask)
                && let Some(quorum_hold) = self.ask()?
            {
                return Ok(Some(quorum_hold));
            }
            self.lock.check_wanted()?;
            if self.patience.is_over(clock::now()) {
                let trouble = self.error.take().or_else(|| self.lock.line.trouble());
                return trouble.map_or(Ok(None), Err);
            }
            self.waited = true;
            match turn {
                RedTurn::Behind => self.parker.park_until(self.patience.end()),
                RedTurn::HeldHere(quorum_hold) => self.wait_for(&quorum_hold),
                // What came before it listened it has not heard.
                RedTurn::Ask if self.listening.is_empty() => self.listen(),
                RedTurn::Ask => self.sleep(),
            }
        }
    }

    /// Waits for the end of a hold of this process. Queries the servers at each poll interval, and
    /// declares the hold lost if they report the lock free.
    fn wait_for(&mut self, quorum_hold: &Arc<Quorum>) {
        let lock = self.lock;
        quorum_hold.watch(&self.parker);
        let known = self.beside.take().filter(|beside| beside.is_beside(quorum_hold));
        let beside = self.beside.insert(known.unwrap_or_else(|| LocalHold::new(lock, quorum_hold)));
        if beside.is_taken_away(lock) {
            return quorum_hold.lose(LostReason::Gone);
        }
        let end = (clock::now() + quorum_hold.remaining()).min(self.patience.end());
        self.parker.park_until(end.min(beside.next_check()));
    }

    /// Asks once. `None` if it was refused, or got no answer and goes on.
    fn ask(&mut self) -> Result<Option<Arc<Quorum>>> {
        let messages = self.messages();
        let woken = std::mem::replace(&mut self.messages, messages) != self.messages;
        let outcome = self.ask_all();
        let trouble = outcome.as_ref().err().filter(|error| error.is_transient()).cloned();
        self.lock.line.set_last_error(trouble.clone());
        match outcome {
            Ok(Some(quorum_hold)) => return Ok(Some(quorum_hold)),
            Ok(None) => {}
            Err(error) if self.refusals == 0 || trouble.is_none() => return Err(error),
            Err(_) => {}
        }
        self.error = trouble;
        self.refusals = self.refusals.saturating_add(1);
        self.vain = if woken { self.vain.saturating_add(1) } else { 0 };
        Ok(None)
    }

    /// Asks all servers at once.
    fn ask_all(&mut self) -> Result<Option<Arc<Quorum>>> {
        let (lock, term) = (self.lock, self.lock.term());
        let left = clock::now().until(self.patience.deadline() + ANSWER_GRACE);
        let limits = BallotLimits::of_acquire(term, lock.silence().min(left));
        let round = Ballot::new(lock.members.len(), lock.quorum(), limits, &self.parker);
        for RedMember { engine, lock: member } in lock.members.iter().cloned() {
            let (wanted, holder) = (Arc::clone(&round), self.holder.clone());
            let (lease, by, cancel) = (lock.lease, self.patience.deadline(), lock.cancel.clone());
            round.ask(&engine.executor, move || match wanted.is_wanted() {
                true => take(&member, &holder, lease, (by, cancel.as_ref())),
                // Who comes to it too late need not begin.
                false => Ok(None),
            });
        }
        if !round.decide_while(|| lock.check_wanted())? {
            return Ok(None);
        }
        let quorum_hold = Arc::new(Quorum::new(lock.quorum(), round.take()));
        let (weak, alive) = (Arc::downgrade(&quorum_hold), Arc::downgrade(&quorum_hold));
        let wanted = move || alive.strong_count() > 0;
        round.hand_over(wanted, move |late| match weak.upgrade() {
            Some(quorum_hold) => drop(quorum_hold.adopt(late)),
            None => drop(late),
        });
        if quorum_hold.check().is_err() {
            return self.granted_too_late();
        }
        lock.line.granted(&quorum_hold, self.holder.clone());
        Ok(Some(quorum_hold))
    }

    fn granted_too_late(&mut self) -> Result<Option<Arc<Quorum>>> {
        self.too_late += 1;
        match self.too_late == TOO_LATE {
            true => {
                Err(Error::lost(LostReason::Expired, "a majority of the grants arrived too late"))
            }
            false => Ok(None),
        }
    }

    /// Registers with the channels of all servers.
    fn listen(&mut self) {
        for RedMember { engine, lock } in &self.lock.members {
            if let Some(channel) = lock.channel() {
                self.listening.push(Channel::wait(&channel, &self.parker));
                engine.subscribe(&channel);
            }
        }
        self.messages = self.messages();
    }

    fn messages(&self) -> Vec<MessageCount> {
        self.listening.iter().map(Waiting::messages).collect()
    }

    /// Sleeps until there is news, or for a pause that grows. One that was woken in vain hears
    /// nothing for a while, which grows too.
    fn sleep(&self) {
        let (now, seed) = (clock::now(), HoldId::next().seed());
        let grown = |first: Duration, times: u32, longest: Duration| {
            jittered(doubled(first, times, longest), seed ^ now.nanos())
        };
        let end = (now + grown(FIRST_PAUSE, self.refusals, LONGEST_PAUSE)).min(self.patience.end());
        if self.vain > 0 {
            let quiet = now + grown(FIRST_QUIET, self.vain, LONGEST_QUIET);
            while clock::now() < quiet.min(self.patience.end()) && self.lock.check_wanted().is_ok()
            {
                self.parker.park_until(quiet.min(self.patience.end()));
            }
        }
        if self.messages() == self.messages {
            self.parker.park_until(end);
        }
    }
}

/// What a waiter knows of a hold of its own process.
struct LocalHold {
    quorum_hold: Arc<Quorum>,
    /// When the servers are queried next.
    due: Moment,
    /// A query under way. The waiter sleeps meanwhile, since the hold may end first.
    query: Option<Arc<Ballot<Duration>>>,
}

impl LocalHold {
    fn new(lock: &RedLock, quorum_hold: &Arc<Quorum>) -> LocalHold {
        let due = clock::now() + lock.poll_interval();
        LocalHold { quorum_hold: Arc::clone(quorum_hold), due, query: None }
    }

    fn is_beside(&self, quorum_hold: &Arc<Quorum>) -> bool {
        Arc::ptr_eq(&self.quorum_hold, quorum_hold)
    }

    /// Returns whether the servers report the lock free. Does not block.
    fn is_taken_away(&mut self, lock: &RedLock) -> bool {
        let now = clock::now();
        if self.query.is_none() && self.due <= now {
            self.due = now + lock.poll_interval();
            self.query = Some(lock.query(Lock::remaining, false));
        }
        let decided = self.query.as_ref().and_then(|query| query.decided());
        if decided.is_some() {
            self.end_query();
        }
        matches!(decided, Some(Ok(false)))
    }

    fn end_query(&mut self) {
        if let Some(query) = self.query.take() {
            query.close();
        }
    }

    fn next_check(&self) -> Moment {
        self.query.as_ref().map_or(self.due, |query| query.next_check())
    }
}

impl Drop for LocalHold {
    fn drop(&mut self) {
        self.end_query();
    }
}

/// Takes the lock on one server, on behalf of whoever asked for all.
fn take(
    lock: &Lock<Plain>,
    holder: &Holder,
    lease: Option<Duration>,
    (return_by, cancel): (Moment, Option<&CancelToken>),
) -> Result<Option<HoldHandle>> {
    let options = AcquireOptions {
        lease,
        owned: holder.is_owned(),
        on_behalf: Some(holder),
        return_by,
        cancel,
        ..AcquireOptions::new(Patience::None)
    };
    match lock.acquire_call(&options)?.acquire() {
        // What is left there of a hold that was lost with its majority goes soon.
        Err(error) if error.is_lost() => Ok(None),
        outcome => outcome,
    }
}

/// A guard's share of a hold on most of the servers.
struct Red {
    name: Arc<str>,
    line: Arc<RedQueue>,
    quorum_hold: Arc<Quorum>,
    silence: Duration,
    ended: bool,
}

impl Red {
    /// Has something done with all holds at the same time, until `end` and while it is
    /// `wanted`; whether it was with enough of them.
    fn with_all(
        &self,
        holds: Vec<Arc<HoldHandle>>,
        (end, wanted): (Moment, impl Fn() -> Result<()>),
        act: impl Fn(Arc<HoldHandle>) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let quorum = self.quorum_hold.quorum();
        if holds.len() < quorum {
            return self.check();
        }
        let limits = BallotLimits::of_query(self.silence.min(clock::now().until(end)));
        let round = Ballot::new(holds.len(), quorum, limits, &Parker::mine());
        for hold in holds {
            let (act, executor) = (act.clone(), hold.executor());
            round.ask(&executor, move || act(hold).map(Some));
        }
        round.decide_while(wanted).map(drop).map_err(|error| self.named(error))
    }

    fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(&self.name))
    }

    /// A nested guard: sees to the lease that it wants.
    fn keep(&self, lock: &RedLock, patience: Patience) -> Result<()> {
        let end = patience.deadline() + ANSWER_GRACE;
        match lock.lease {
            None => self.quorum_hold.keep_renewed(),
            Some(lease) if self.quorum_hold.needs(lease) => {
                let parker = Parker::mine();
                let _watching = lock.watch(&parker);
                return self.extend_while(lease, (end, || lock.check_wanted()));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

impl Red {
    fn extend_while(
        &self,
        lease: Duration,
        until: (Moment, impl Fn() -> Result<()>),
    ) -> Result<()> {
        let lease = checked_lease(lease).map_err(|error| self.named(error))?;
        self.quorum_hold.check_process().map_err(|error| self.named(error))?;
        self.check()?;
        let extend = move |hold: Arc<HoldHandle>| hold.extend(lease, hold.bound());
        self.with_all(self.quorum_hold.all_for(lease), until, extend)?;
        self.check()
    }
}

impl GuardSet for Red {
    fn check(&self) -> Result<()> {
        self.quorum_hold.check().map_err(|error| self.named(error))
    }

    fn remaining(&self) -> Duration {
        self.quorum_hold.remaining()
    }

    fn watch(&self, parker: &Arc<Parker>) {
        self.quorum_hold.watch(parker);
    }

    fn extend(&self, lease: Duration) -> Result<()> {
        self.extend_while(lease, (Moment::END, || Ok(())))
    }

    fn detach(mut self: Box<Self>) {
        self.ended = true;
        self.line.detach(&self.quorum_hold);
    }

    fn unlock(mut self: Box<Self>) -> Result<()> {
        self.ended = true;
        self.quorum_hold.check_process().map_err(|error| self.named(error))?;
        let valid = self.check();
        if !self.line.end(&self.quorum_hold) {
            return valid;
        }
        let released = valid.and_then(|()| {
            let unlock = |hold| quorum::alone(hold).unlock();
            self.with_all(self.quorum_hold.take(), (Moment::END, || Ok(())), unlock)
        });
        drop(self.quorum_hold.take());
        self.line.remove(&self.quorum_hold);
        released
    }
}

impl Drop for Red {
    fn drop(&mut self) {
        let ends = !self.ended && self.quorum_hold.check_process().is_ok();
        if ends && self.line.end(&self.quorum_hold) {
            drop(self.quorum_hold.take());
            self.line.remove(&self.quorum_hold);
        }
    }
}
