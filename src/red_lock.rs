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

use crate::cancel::{CancelToken, Watching};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::event::{Event, Waited};
use crate::gate::Ticket;
use crate::hold::{HoldId, Holder};
use crate::intern::Interned;
use crate::lock::{Lock, Terms};
use crate::majority::{self, Majority, Round};
use crate::multi::many_verbs;
use crate::multi_guard::{Many, MultiGuard, OwnedMultiGuard};
use crate::protocol::plain::Plain;
use crate::release::{self, Hold};
use crate::sync::Mailbox;
use crate::time::{self, Patience, doubled, jittered};
use crate::waiters::{Channel, News, Waiting};
use line::{Entry, Line, Turn};

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

impl RedLock {
    pub(crate) fn over(mut engines: Vec<Arc<Engine>>, name: String) -> RedLock {
        engines.sort_by_key(|engine| engine.id);
        engines.dedup_by_key(|engine| engine.id);
        let ids: String = engines.iter().map(|engine| format!("{} ", engine.id)).collect();
        let line = LINES.get(&format!("{} {ids}{name}", engines.len()), Line::default);
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

    /// Ends a hold whose guard was [leaked](MultiGuard::leak): one that this thread leaked; else
    /// one that was owned, or left behind by a thread that has ended.
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
    /// not, as those say that answer first: one round trip. One that has not heard of an
    /// extension yet may make it too little.
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

    /// Asks all servers; what those said that said something, if they are the most, or else
    /// nothing. One that is not needed any more when its turn comes is asked only if it `must`.
    fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&Lock<Plain>) -> Result<Option<T>> + Clone + Send + 'static,
        must: bool,
    ) -> Result<Vec<T>> {
        self.check_wanted()?;
        let round = Round::new(self.members.len(), self.quorum(), &Mailbox::mine());
        for Member { engine, lock } in self.members.iter().cloned() {
            let (needed, question) = (Arc::clone(&round), question.clone());
            let asks = move || if must || needed.is_wanted() { question(&lock) } else { Ok(None) };
            round.ask(&engine.aside, asks);
        }
        let most = round.decide(Duration::MAX, self.silence())?;
        let said = round.take();
        round.close();
        Ok(if most { said } else { Vec::new() })
    }

    fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// How long a silent majority is waited for.
    fn silence(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.engine.response_timeout);
        timeouts.max().unwrap_or_default()
    }

    fn poll_bound(&self) -> Duration {
        let bounds = self.members.iter().map(|member| member.engine.poll_bound);
        bounds.min().unwrap_or_default()
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
        self.cancel.as_ref().map_or(Ok(()), CancelToken::check)
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
                let holder = if owned { Holder::Owned } else { Holder::this_thread() };
                let granted = Asking::new(self, patience, holder, mailbox, ticket).run()?;
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
    holder: Holder,
    mailbox: Arc<Mailbox>,
    ticket: Ticket,
    /// What wakes it.
    _watching: Vec<Watching>,
    /// The channels that it listens to, once it was refused.
    listening: Vec<Waiting>,
    refusals: u32,
    /// How often it was woken and refused since it was last refused without having been woken.
    vain: u32,
    /// What it had heard before its last question.
    news: Vec<News>,
    too_late: u32,
    waited: bool,
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
        holder: Holder,
        mailbox: Arc<Mailbox>,
        ticket: Ticket,
    ) -> Asking<'a> {
        let closing = lock.members.iter().map(|member| &member.engine.closing);
        let _watching = closing.chain(&lock.cancel).map(|token| token.watch(&mailbox)).collect();
        Asking {
            lock,
            patience,
            holder,
            mailbox,
            ticket,
            _watching,
            listening: Vec::new(),
            news: Vec::new(),
            refusals: 0,
            vain: 0,
            too_late: 0,
            waited: false,
            error: None,
        }
    }

    fn run(mut self) -> Result<Option<Arc<Majority>>> {
        let started = time::now();
        let outcome = self.wait();
        if self.waited {
            let (waited, acquired) = (started.until(time::now()), matches!(outcome, Ok(Some(_))));
            let event = || Waited { name: Arc::clone(&self.lock.name), waited, acquired };
            let members = self.lock.members.iter();
            members.for_each(|member| member.engine.events.tell(|| Event::Waited(event())));
        }
        outcome
    }

    fn wait(&mut self) -> Result<Option<Arc<Majority>>> {
        loop {
            self.lock.check_wanted()?;
            let turn = self.lock.line.turn(self.ticket);
            if matches!(turn, Turn::Ask)
                && let Some(majority) = self.ask()?
            {
                return Ok(Some(majority));
            }
            self.lock.check_wanted()?;
            if self.patience.is_over(time::now()) {
                let trouble = self.error.take().or_else(|| self.lock.line.trouble());
                return trouble.map_or(Ok(None), Err);
            }
            self.waited = true;
            match turn {
                Turn::Behind => self.mailbox.sleep(self.patience.end()),
                Turn::HeldHere(majority) => self.wait_for(&majority),
                // What came before it listened it has not heard.
                Turn::Ask if self.listening.is_empty() => self.listen(),
                Turn::Ask => self.sleep(),
            }
        }
    }

    /// Waits for the end of a hold of this process, but looks at the poll bound whether the
    /// servers know of it.
    fn wait_for(&self, majority: &Majority) {
        let (now, bound) = (time::now(), self.lock.poll_bound());
        majority.watch(&self.mailbox);
        let end = (now + majority.remaining()).min(self.patience.end());
        self.mailbox.sleep(end.min(now + bound));
        if now + bound <= time::now() && matches!(self.lock.remaining(), Ok(None)) {
            majority.lose();
        }
    }

    /// Asks once. `None` if it was refused, or got no answer and goes on.
    fn ask(&mut self) -> Result<Option<Arc<Majority>>> {
        let news = self.news();
        let woken = std::mem::replace(&mut self.news, news) != self.news;
        let outcome = self.ask_all();
        let trouble = outcome.as_ref().err().filter(|error| error.is_passing()).cloned();
        self.lock.line.set_trouble(trouble.clone());
        match outcome {
            Ok(Some(majority)) => return Ok(Some(majority)),
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
    fn ask_all(&mut self) -> Result<Option<Arc<Majority>>> {
        let (lock, term) = (self.lock, self.lock.term());
        let round = Round::new(lock.members.len(), lock.quorum(), &self.mailbox);
        for Member { engine, lock: member } in lock.members.iter().cloned() {
            let (wanted, holder, lease) = (Arc::clone(&round), self.holder.clone(), lock.lease);
            // Who comes to it too late need not begin.
            let asks =
                move || if wanted.is_wanted() { take(&member, &holder, lease) } else { Ok(None) };
            round.ask(&engine.aside, asks);
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
        lock.line.granted(&majority, self.holder.clone());
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
                engine.listen_to(&channel);
            }
        }
        self.news = self.news();
    }

    fn news(&self) -> Vec<News> {
        self.listening.iter().map(Waiting::news).collect()
    }

    /// Sleeps until there is news, or for a pause that grows. One that was woken in vain hears
    /// nothing for a while, which grows too.
    fn sleep(&self) {
        let (now, seed) = (time::now(), HoldId::next().seed());
        let grown = |first: Duration, times: u32, longest: Duration| {
            jittered(doubled(first, times, longest), seed ^ now.nanos())
        };
        let end = (now + grown(FIRST_PAUSE, self.refusals, LONGEST_PAUSE)).min(self.patience.end());
        if self.vain > 0 {
            let quiet = now + grown(FIRST_QUIET, self.vain, LONGEST_QUIET);
            while time::now() < quiet.min(self.patience.end()) && self.lock.check_wanted().is_ok() {
                self.mailbox.sleep(quiet.min(self.patience.end()));
            }
        }
        if self.news() == self.news {
            self.mailbox.sleep(end);
        }
    }
}

/// Takes the lock on one server, on behalf of whoever asked for all.
fn take(lock: &Lock<Plain>, holder: &Holder, lease: Option<Duration>) -> Result<Option<Hold>> {
    let (patience, owned, cancel) = (Patience::None, holder.is_owned(), None);
    let terms = Terms { patience, owned, lease, cancel, on_behalf: Some(holder) };
    match lock.ask_on(&terms)?.acquire() {
        // What is left there of a hold that was lost with its majority goes soon.
        Err(error) if error.is_lost() => Ok(None),
        outcome => outcome,
    }
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
        if holds.len() < quorum {
            return self.check();
        }
        let round = Round::new(holds.len(), quorum, &Mailbox::mine());
        for hold in holds {
            let (act, aside) = (act.clone(), hold.aside());
            round.ask(&aside, move || act(hold).map(Some));
        }
        round.decide(Duration::MAX, self.silence).map(drop)
    }

    /// A nested guard: sees to the lease that it wants.
    fn keep(&self, lease: Option<Duration>) -> Result<()> {
        match lease {
            None => self.majority.keep_renewed(),
            Some(lease) if self.majority.needs(lease) => return self.extend(lease),
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
        self.with_all(self.majority.all_for(lease), move |hold| hold.extend(lease))?;
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
        let released = valid.and_then(|()| {
            self.with_all(self.majority.take(), |hold| majority::alone(hold).unlock())
        });
        drop(self.majority.take());
        self.line.remove(&self.majority);
        released
    }
}

impl Drop for Red {
    fn drop(&mut self) {
        if !self.ended && self.line.end(&self.majority) {
            drop(self.majority.take());
            self.line.remove(&self.majority);
        }
    }
}
