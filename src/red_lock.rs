//! A lock on most of several independent servers.
//!
//! Threads of one process that want it stand in a line of its own, which they share by the
//! clients and the name; the first asks all servers at once (`majority.rs`). Refused, it
//! gives back what it was granted, listens to the channels of all servers, and asks again
//! when it hears something, or after a pause that grows. Re-entry is counted in the line.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::cancel::{CancelToken, Watching};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Gate, Ticket};
use crate::hold::{HoldId, Holder, ThreadId};
use crate::intern::Interned;
use crate::lock::{Lock, Terms};
use crate::majority::{Majority, Round};
use crate::multi::many_verbs;
use crate::multi_guard::{Many, MultiGuard, OwnedMultiGuard};
use crate::protocol::plain::Plain;
use crate::release::{self, Hold};
use crate::sync::{Mailbox, Mutex};
use crate::time::{self, Patience, jittered};
use crate::waiters::{Channel, News, Waiting};

/// The first and the longest pause between two questions of a caller that hears nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// How often one call is granted leases that are over by the time it knows.
const TOO_LATE: u32 = 3;

/// The lines of this process, by the clients and the name.
static LINES: LazyLock<Interned<Line>> = LazyLock::new(Interned::default);

/// A lock that is held while most of several independent servers grant it: Redisson's
/// `RedissonRedLock`.
///
/// Each server keeps a plain lock of that name. It is held while the leases on more than half
/// of the servers are valid, each reckoned from before its question was sent, less a margin for
/// clocks that run apart. All servers are asked at the same time: one round trip of the slowest
/// of those that are needed. One that is silent or slow holds up nothing; where too many are, the
/// first question of a call is [`is_connection`](crate::Error::is_connection), after one response
/// time-out.
///
/// What it adds to one server: a server may die and come back without its data. What it does not:
/// a process that is paused after its last check can still do harm (see
/// [`FencedLock`](crate::FencedLock)), and clocks that step can overlap two holds.
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
pub struct RedLock {
    name: Arc<str>,
    members: Vec<Member>,
    line: Arc<Line>,
    lease: Option<Duration>,
    cancel: Option<CancelToken>,
}

/// The lock on one of the servers.
#[derive(Clone)]
struct Member {
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

/// Who of this process holds one of these locks, and who waits for it.
#[derive(Debug, Default)]
struct Line(Mutex<LineState>);

#[derive(Debug, Default)]
struct LineState {
    gate: Gate<Arc<Mailbox>>,
    holds: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    majority: Arc<Majority>,
    holder: Holder,
    guards: usize,
    leaked: usize,
}

/// How a caller comes to a hold.
enum Entry {
    Again(Arc<Majority>),
    InLine(Ticket),
    /// It would have to wait, and does not.
    Busy,
}

/// What a caller in line has to do.
enum Turn {
    /// Wait until the mailbox rings.
    Behind,
    /// Wait for the end of a hold of this process.
    HeldHere(Arc<Majority>),
    Ask,
}

impl Line {
    fn enter(&self, owned: bool, waits: bool, mailbox: &Arc<Mailbox>) -> Result<Entry> {
        let mut state = self.0.lock();
        state.holds.retain(|held| !held.is_left_behind());
        let thread = ThreadId::current();
        if let Some(own) = state.holds.iter_mut().find(|held| held.holder.is_thread(thread)) {
            let valid = own.majority.check().is_ok();
            match (owned, valid) {
                (false, true) => {
                    own.guards += 1;
                    return Ok(Entry::Again(Arc::clone(&own.majority)));
                }
                (false, false) => {
                    return Err(Error::lost("this thread held the lock and has lost it"));
                }
                (true, true) if waits => return Err(deadlock()),
                (true, _) => {}
            }
        }
        let free = state.gate.is_empty() && !state.is_held();
        match free || waits {
            true => Ok(Entry::InLine(state.gate.enter(Arc::clone(mailbox)))),
            false => Ok(Entry::Busy),
        }
    }

    /// What the caller with that ticket has to do.
    fn turn(&self, ticket: Ticket) -> Turn {
        let state = self.0.lock();
        match state.holds.iter().find(|held| held.majority.check().is_ok()) {
            _ if !state.gate.is_front(ticket) => Turn::Behind,
            Some(held) => Turn::HeldHere(Arc::clone(&held.majority)),
            None => Turn::Ask,
        }
    }

    fn leave(&self, ticket: Ticket) {
        let mut state = self.0.lock();
        state.gate.leave(ticket);
        state.ring_front();
    }

    fn granted(&self, majority: &Arc<Majority>, owned: bool) {
        let holder = if owned { Holder::Owned } else { Holder::this_thread() };
        let held = Held { majority: Arc::clone(majority), holder, guards: 1, leaked: 0 };
        self.0.lock().holds.push(held);
    }

    /// Ends one guard of a hold; whether it was the last.
    fn end(&self, majority: &Arc<Majority>) -> bool {
        let mut state = self.0.lock();
        let Some(held) = state.held(majority) else { return true };
        held.guards = held.guards.saturating_sub(1);
        let last = held.guards + held.leaked == 0;
        if last {
            state.holds.retain(|held| !Arc::ptr_eq(&held.majority, majority));
            state.ring_front();
        }
        last
    }

    fn leak(&self, majority: &Arc<Majority>) {
        if let Some(held) = self.0.lock().held(majority) {
            held.guards = held.guards.saturating_sub(1);
            held.leaked += 1;
        }
    }

    /// The leaked hold that this thread may end: its own, or nobody's. It has a guard again.
    fn take_leaked(&self) -> Option<Arc<Majority>> {
        let (thread, mut state) = (ThreadId::current(), self.0.lock());
        let leaked = |held: &Held| held.leaked > 0;
        let own = |held: &Held| leaked(held) && held.holder.is_thread(thread);
        let nobodys =
            |held: &Held| leaked(held) && (held.holder.is_owned() || held.holder.has_ended());
        let at = state.holds.iter().position(own);
        let at = at.or_else(|| state.holds.iter().position(nobodys))?;
        let held = &mut state.holds[at];
        held.leaked -= 1;
        held.guards += 1;
        Some(Arc::clone(&held.majority))
    }

    fn count(&self) -> usize {
        let (thread, state) = (ThreadId::current(), self.0.lock());
        let own = state.holds.iter().find(|held| held.holder.is_thread(thread));
        let valid = own.filter(|held| held.majority.check().is_ok());
        valid.map_or(0, |held| held.guards + held.leaked)
    }
}

impl LineState {
    fn held(&mut self, majority: &Arc<Majority>) -> Option<&mut Held> {
        self.holds.iter_mut().find(|held| Arc::ptr_eq(&held.majority, majority))
    }

    fn is_held(&self) -> bool {
        self.holds.iter().any(|held| held.majority.check().is_ok())
    }

    fn ring_front(&self) {
        if let Some((_, front)) = self.gate.front() {
            front.ring();
        }
    }
}

impl Held {
    /// It was lost, and there is nobody to be told.
    fn is_left_behind(&self) -> bool {
        self.guards == 0 && self.majority.check().is_err()
    }
}

fn deadlock() -> Error {
    Error::new(ErrorKind::Deadlock, "this thread holds the lock, and would wait for itself")
}

impl RedLock {
    pub(crate) fn over(mut engines: Vec<Arc<Engine>>, name: String) -> RedLock {
        engines.sort_by_key(|engine| engine.id);
        engines.dedup_by_key(|engine| engine.id);
        let ids: String = engines.iter().map(|engine| format!("{} ", engine.id)).collect();
        let line = LINES.get(&(ids + &name), Line::default);
        let member = |engine: Arc<Engine>| {
            let lock = Lock::new(Arc::clone(&engine), name.clone());
            Member { engine, lock }
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
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ends a hold whose guard was [leaked](MultiGuard::leak): one that this thread leaked, or one
    /// that was owned.
    ///
    /// # Errors
    /// [`is_not_held`](Error::is_not_held) if there is none; and those of
    /// [`MultiGuard::unlock`].
    pub fn unlock(&self) -> Result<()> {
        let majority = self.line.take_leaked().ok_or_else(release::not_held)?;
        Box::new(self.red(majority)).unlock()
    }

    /// Returns whether most of the servers say that somebody holds it: one round trip.
    ///
    /// # Errors
    /// [`is_connection`](Error::is_connection) if too few answer, and those of [`Lock::is_locked`].
    pub fn is_locked(&self) -> Result<bool> {
        Ok(self.remaining()?.is_some())
    }

    /// Returns whether this thread holds it: no round trip.
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many times this thread holds it: no round trip.
    pub fn hold_count(&self) -> usize {
        self.line.count()
    }

    /// Returns how long most of the servers will keep it for whoever holds it, `None` if most do
    /// not: one round trip.
    ///
    /// # Errors
    /// Those of [`is_locked`](RedLock::is_locked).
    pub fn remaining(&self) -> Result<Option<Duration>> {
        let mut left = self.ask_all(Lock::remaining)?;
        left.sort_unstable_by(|a, b| b.cmp(a));
        Ok(left.get(self.quorum() - 1).copied())
    }

    /// Frees it on all servers, whoever holds it; whether it was held on most. See
    /// [`Lock::force_unlock`].
    ///
    /// # Errors
    /// Those of [`is_locked`](RedLock::is_locked); some servers may then have freed it.
    pub fn force_unlock(&self) -> Result<bool> {
        let freed = self.ask_all(|lock| Ok(lock.force_unlock()?.then_some(())))?;
        Ok(freed.len() >= self.quorum())
    }

    /// Asks all servers; what those said that said something, if they are the most, or else
    /// nothing.
    fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&Lock<Plain>) -> Result<Option<T>> + Clone + Send + 'static,
    ) -> Result<Vec<T>> {
        self.check_wanted()?;
        let round = Round::new(self.members.len(), self.quorum(), &Mailbox::mine());
        for Member { engine, lock } in self.members.iter().cloned() {
            let (round, question) = (Arc::clone(&round), question.clone());
            engine.aside.run(move || round.answered(question(&lock)));
        }
        match round.decide(Duration::MAX, self.silence())? {
            true => Ok(round.take()),
            false => Ok(Vec::new()),
        }
    }

    fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// How long a silent majority is waited for.
    fn silence(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.engine.response_timeout);
        timeouts.max().unwrap_or_default()
    }

    fn term(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.engine.watchdog_timeout);
        self.lease.or(timeouts.min()).unwrap_or_default()
    }

    fn red(&self, majority: Arc<Majority>) -> Red {
        Red { line: Arc::clone(&self.line), majority, silence: self.silence(), ended: false }
    }

    fn check_wanted(&self) -> Result<()> {
        if self.members.is_empty() {
            return Err(Error::configuration("a lock on no server"));
        }
        self.members.iter().try_for_each(|member| member.engine.check_open())?;
        match self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            true => Err(Error::new(ErrorKind::Cancelled, "the wait for the lock was cancelled")),
            false => Ok(()),
        }
    }

    fn acquire(&self, patience: Patience, owned: bool) -> Result<Option<Box<dyn Many>>> {
        self.check_wanted()?;
        self.lease.map(release::checked_lease).transpose()?;
        let mailbox = Mailbox::mine();
        match self.line.enter(owned, patience != Patience::None, &mailbox)? {
            Entry::Again(majority) => {
                let red = self.red(majority);
                red.keep(self.lease)?;
                Ok(Some(Box::new(red)))
            }
            Entry::Busy => Ok(None),
            Entry::InLine(ticket) => {
                let granted = Asking::new(self, patience, owned, mailbox, ticket).run()?;
                Ok(granted.map(|majority| Box::new(self.red(majority)) as Box<dyn Many>))
            }
        }
    }
}

many_verbs!(RedLock);

/// A caller in line.
struct Asking<'a> {
    lock: &'a RedLock,
    patience: Patience,
    owned: bool,
    mailbox: Arc<Mailbox>,
    ticket: Ticket,
    /// What wakes it.
    _watching: Vec<Watching>,
    /// The channels that it listens to, once it was refused.
    listening: Vec<Waiting>,
    refusals: u32,
    too_late: u32,
    /// Why the last question got no answer.
    error: Option<Error>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.lock.line.leave(self.ticket);
    }
}

impl<'a> Asking<'a> {
    fn new(
        lock: &'a RedLock,
        patience: Patience,
        owned: bool,
        mailbox: Arc<Mailbox>,
        ticket: Ticket,
    ) -> Asking<'a> {
        let closing = lock.members.iter().map(|member| &member.engine.closing);
        let _watching = closing.chain(&lock.cancel).map(|token| token.watch(&mailbox)).collect();
        let listening = Vec::new();
        let (refusals, too_late, error) = (0, 0, None);
        Asking {
            lock,
            patience,
            owned,
            mailbox,
            ticket,
            _watching,
            listening,
            refusals,
            too_late,
            error,
        }
    }

    fn run(mut self) -> Result<Option<Arc<Majority>>> {
        loop {
            self.lock.check_wanted()?;
            let turn = self.lock.line.turn(self.ticket);
            let (news, asks) = (self.news(), matches!(turn, Turn::Ask));
            if asks && let Some(majority) = self.ask()? {
                return Ok(Some(majority));
            }
            if self.patience.is_over(time::now()) {
                return self.error.take().map_or(Ok(None), Err);
            }
            match turn {
                Turn::Behind => self.mailbox.sleep(self.patience.end()),
                Turn::HeldHere(majority) => {
                    majority.watch(&self.mailbox);
                    let end = time::now() + majority.remaining();
                    self.mailbox.sleep(end.min(self.patience.end()));
                }
                // What came before it listened it has not heard.
                Turn::Ask if self.listening.is_empty() => self.listen(),
                Turn::Ask => self.sleep(&news),
            }
        }
    }

    /// Asks once. `None` if it was refused, or got no answer and goes on.
    fn ask(&mut self) -> Result<Option<Arc<Majority>>> {
        let outcome = self.ask_all();
        self.error = None;
        match outcome {
            Ok(Some(majority)) => return Ok(Some(majority)),
            Ok(None) => {}
            Err(error) if self.refusals > 0 && error.is_passing() => self.error = Some(error),
            Err(error) => return Err(error),
        }
        self.refusals = self.refusals.saturating_add(1);
        Ok(None)
    }

    /// Asks all servers at once.
    fn ask_all(&mut self) -> Result<Option<Arc<Majority>>> {
        let (lock, term) = (self.lock, self.lock.term());
        let round = Round::new(lock.members.len(), lock.quorum(), &self.mailbox);
        for Member { engine, lock: member } in lock.members.iter().cloned() {
            let (round, lease) = (Arc::clone(&round), lock.lease);
            engine.aside.run(move || {
                // Who comes to it too late need not begin.
                if round.is_wanted() {
                    round.answered(take(&member, lease));
                }
            });
        }
        if !round.decide(term, lock.silence())? {
            return Ok(None);
        }
        let majority = Arc::new(Majority::new(lock.quorum(), round.take()));
        let (weak, alive) = (Arc::downgrade(&majority), Arc::downgrade(&majority));
        let wanted = move || alive.strong_count() > 0;
        round.hand_over(wanted, move |late| match weak.upgrade() {
            Some(majority) => drop(majority.adopt(late)),
            None => drop(late),
        });
        if majority.check().is_err() {
            return self.granted_too_late();
        }
        lock.line.granted(&majority, self.owned);
        Ok(Some(majority))
    }

    fn granted_too_late(&mut self) -> Result<Option<Arc<Majority>>> {
        self.too_late += 1;
        match self.too_late == TOO_LATE {
            true => Err(Error::lost("the leases were over before enough servers had answered")),
            false => Ok(None),
        }
    }

    /// Registers with the channels of all servers.
    fn listen(&mut self) {
        for Member { engine, lock } in &self.lock.members {
            if let Some(channel) = lock.channel() {
                self.listening.push(Channel::wait(&channel, &self.mailbox));
                engine.listener.call();
            }
        }
    }

    fn news(&self) -> Vec<News> {
        self.listening.iter().map(Waiting::news).collect()
    }

    /// Sleeps until there is news, or for a pause that grows.
    fn sleep(&self, news: &[News]) {
        let now = time::now();
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.refusals));
        let pause = jittered(pause.min(LONGEST_PAUSE), HoldId::next().seed() ^ now.nanos());
        if self.news() == news {
            self.mailbox.sleep((now + pause).min(self.patience.end()));
        }
    }
}

fn take(lock: &Lock<Plain>, lease: Option<Duration>) -> Result<Option<Hold>> {
    let terms = Terms { patience: Patience::None, owned: true, lease, cancel: None };
    lock.ask_on(&terms)?.acquire()
}

/// A guard's share of a hold on most of the servers.
struct Red {
    line: Arc<Line>,
    majority: Arc<Majority>,
    silence: Duration,
    ended: bool,
}

impl Red {
    /// Has something done with all holds at the same time; whether it was with enough of them.
    fn with_all(
        &self,
        holds: Vec<Arc<Hold>>,
        act: impl Fn(Arc<Hold>) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let quorum = self.majority.quorum();
        let round = Round::new(holds.len().max(quorum), quorum, &Mailbox::mine());
        for hold in holds {
            let (round, act, aside) = (Arc::clone(&round), act.clone(), hold.aside());
            aside.run(move || round.answered(act(hold).map(Some)));
        }
        round.decide(Duration::MAX, self.silence).map(drop)
    }

    /// A nested guard: sees to the lease that it wants.
    fn keep(&self, lease: Option<Duration>) -> Result<()> {
        let holds = self.majority.all();
        match lease {
            None => holds.iter().for_each(|hold| hold.keep_renewed()),
            Some(lease) if holds.iter().any(|hold| hold.needs(lease)) => return self.extend(lease),
            Some(_) => {}
        }
        Ok(())
    }
}

impl Many for Red {
    fn check(&self) -> Result<()> {
        self.majority.check()
    }

    fn remaining(&self) -> Duration {
        self.majority.remaining()
    }

    fn watch(&self, mailbox: &Arc<Mailbox>) {
        self.majority.watch(mailbox);
    }

    fn extend(&self, lease: Duration) -> Result<()> {
        let lease = release::checked_lease(lease)?;
        self.check()?;
        self.with_all(self.majority.all(), move |hold| hold.extend(lease))?;
        self.check()
    }

    fn leak(mut self: Box<Self>) {
        self.ended = true;
        self.line.leak(&self.majority);
    }

    fn unlock(mut self: Box<Self>) -> Result<()> {
        self.ended = true;
        let valid = self.check();
        if !self.line.end(&self.majority) {
            return valid;
        }
        let released = self.with_all(self.majority.take(), |hold| {
            // One that is being extended is released when that is through.
            Arc::into_inner(hold).map_or(Ok(()), Hold::unlock)
        });
        valid.and(released)
    }
}

impl Drop for Red {
    fn drop(&mut self) {
        if !self.ended && self.line.end(&self.majority) {
            drop(self.majority.take());
        }
    }
}
