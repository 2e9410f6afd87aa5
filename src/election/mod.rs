//! [`Election`]: one leader among many candidates, on a queue lock.
//!
//! Reading order: this file (the handle and the verbs that win an election), `leadership.rs` (the
//! guard of a term), `run.rs` (term after term), `observers.rs` (the thread of the observers of one
//! client), `observation.rs` (its looks at one election). Imports `lock` and below.
//!
//! A term is a hold of the queue lock with the name of the election (`kind/elected.rs`). Beside the
//! lock, Redis has a record with the owner field, the token and the value of the leader
//! (`command/leader.rs`). The record counts only while its owner holds the lock. So a reader sees
//! no leader between a grant and its announcement, and never one leader's value with the token of
//! another. The winner announces itself before the call returns; later the watchdog keeps the
//! record (`watchdog/leader_records.rs`).

pub(crate) mod leadership;
mod observation;
pub(crate) mod observers;
mod run;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::{HoldHandle, LockContext, REPLY_GRACE};
use crate::cancel::{CancelToken, Limit};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{Events, Kind};
use crate::inspect::info::WaitingInfo;
use crate::inspect::leader::Leader;
use crate::kind::elected::Elected;
use crate::kind::rules::ListensTo;
use crate::lock::handle::{SharedHandle, endless_wait_ended};
use crate::util::clock::{self, Patience, doubled, jittered};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::system::channel::Receiver;
use crate::watchdog::Announcement;
use leadership::Leadership;
use observation::FirstLook;
use observers::Observers;

/// The longest value of a leader, in bytes. Each observer reads the value with each look.
const LONGEST_VALUE: usize = 4096;

/// The first and the longest pause of a candidate whose term ended before its announcement.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// An election with one name: at most one of its candidates is the leader.
///
/// [`campaign`](Election::campaign) blocks until the caller is the leader, and returns the guard of
/// its *term*, a [`Leadership`]. [`run`](Election::run) works as the leader in term after term. Any
/// client of the same servers can read the [`leader`](Election::leader) and
/// [`observe`](Election::observe) its changes.
///
/// The lock of an election is a [`QueueLock`](crate::QueueLock) with the same name. So candidates
/// win in the order of their arrival and [weight](Election::with_weight), and
/// [`Leadership::resign`] makes the next candidate the leader at once, by a message. The watchdog
/// renews the lease of a term. If the process of a leader dies, the next candidate follows within
/// one [watchdog time-out](crate::Builder::watchdog_timeout) and one [poll
/// interval](crate::Builder::poll_interval). Events and statistics show a term as a hold of a queue
/// lock.
///
/// While [`Leadership::is_held`] returns true, no other term of the election is valid, under the
/// conditions of the [page on guarantees](crate::_documentation::guarantees).
/// [`Leadership::token`] grows with each term, by a key without a time to live, as that of a
/// [`FencedLock`](crate::FencedLock).
///
/// # The record of the leader
/// The leader announces its term: it writes its value and its token beside the lock, in one more
/// round trip after it has won. Readers see a leader only after this announcement; a holder of the
/// lock that has not announced itself is no leader to them. They never see the value of one term
/// with the token of another. If the announcement gets no reply, the watchdog repeats it, and the
/// term is valid meanwhile. The watchdog also repeats it after a fail-over, because the new master
/// may have the lock and not the record. The record expires by itself.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let election = client.election("scheduler").with_value("host-1:8080");
/// let term = election.campaign()?;        // blocks until this process is the leader
/// while term.is_held() {
///     // ... one step of the leader's work ...
/// #   break;
/// }
/// term.resign()?;                         // the next candidate is the leader
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors of every verb
/// - [`is_invalid_name`](crate::Error::is_invalid_name) if the name cannot be used.
/// - [`is_configuration`](crate::Error::is_configuration) if the [value](Election::with_value), the
///   [label](Election::with_label) or the [weight](Election::with_weight) is invalid, and in a
///   forked child.
/// - [`is_closed`](crate::Error::is_closed) after [`Client::close`](crate::Client::close).
/// - [`is_server`](crate::Error::is_server) if the server refuses the command.
#[derive(Clone)]
#[must_use = "an election has no candidate until campaign() or another of its verbs is called"]
pub struct Election {
    shared: SharedHandle,
    value: Arc<str>,
    observers: Arc<Observers>,
}

/// The settings.
impl Election {
    pub(crate) fn new(engine: Arc<Engine>, observers: Arc<Observers>, name: String) -> Election {
        let shared = SharedHandle::new(engine, name, Kind::Queued);
        Election { shared, value: "".into(), observers }
    }

    /// Sets the value of the leader that this handle may become. No round trip.
    ///
    /// Any text of up to 4,096 bytes, such as the address of a service. Default: empty.
    ///
    /// # Errors
    /// Does not fail itself. The verbs return [`is_configuration`](crate::Error::is_configuration)
    /// for a longer value.
    #[must_use = "the value belongs to the election that is returned"]
    pub fn with_value(mut self, value: impl Into<String>) -> Election {
        self.value = value.into().into();
        let length = self.value.len();
        self.shared.require(|_| match length {
            ..=LONGEST_VALUE => Ok(()),
            _ => {
                let text = format!("the value of a leader has at most {LONGEST_VALUE} bytes");
                Err(Error::configuration(text))
            }
        });
        self
    }

    /// Sets the weight of this handle as a candidate, from 1 to 10. No round trip.
    ///
    /// As [`with_weight`](crate::QueueLock::with_weight) of a queue lock: a candidate of weight `n`
    /// counts as arrived `n - 1` [weight steps](crate::Builder::weight_step) earlier. A larger
    /// weight never ends a term. Default: 1.
    ///
    /// # Errors
    /// Does not fail itself. The verbs return [`is_configuration`](crate::Error::is_configuration)
    /// if the weight is not from 1 to 10.
    #[must_use = "the weight belongs to the election that is returned"]
    pub fn with_weight(mut self, weight: u32) -> Election {
        self.shared.set_weight(weight);
        self
    }

    /// Sets the length of the lease of a term, which the watchdog renews. No round trip.
    ///
    /// A standby follows a dead leader after this time, and up to one [poll
    /// interval](crate::Builder::poll_interval) later. The rules of
    /// [`Lock::with_renewed_lease`](crate::Lock::with_renewed_lease) apply. The record of the
    /// leader expires two such leases after its last announcement.
    #[must_use = "the lease belongs to the election that is returned"]
    pub fn with_renewed_lease(mut self, lease: Duration) -> Election {
        self.shared.set_renewed_lease(lease);
        self
    }

    /// Sets the label of this handle in exported metrics. No round trip.
    ///
    /// As [`with_label`](crate::Lock::with_label) of a lock, with its errors.
    #[must_use = "the label belongs to the election that is returned"]
    pub fn with_label(mut self, label: impl AsRef<str>) -> Election {
        self.shared.set_label(label.as_ref());
        self
    }

    /// Sets a token by which another thread can end the campaigns of this handle. No round trip.
    ///
    /// As [`with_cancel`](crate::Lock::with_cancel) of a lock. Terms stay valid.
    /// [`run`](Election::run) has a token as its argument and ignores this one.
    #[must_use = "the token belongs to the election that is returned"]
    pub fn with_cancel(mut self, token: &CancelToken) -> Election {
        self.shared.set_cancel(token);
        self
    }

    /// Sets an event listener for the terms and campaigns of this handle. No round trip.
    ///
    /// As [`with_events`](crate::Lock::with_events) of a lock.
    #[must_use = "the listener belongs to the election that is returned"]
    pub fn with_events(mut self, listener: Arc<dyn Events>) -> Election {
        self.shared.set_listener(listener);
        self
    }

    /// Returns the name of the election, without the client's prefix.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn name(&self) -> &str {
        self.shared.name()
    }
}

/// The verbs of a candidate.
impl Election {
    /// Blocks until the caller is the leader; returns the guard of the term.
    ///
    /// Two round trips if there is no other leader or candidate: one wins the election, one
    /// announces the term. Otherwise the caller waits as in [`Lock::lock`](crate::Lock::lock) of a
    /// queue lock, without a time limit. Several campaigns of one process are several candidates.
    ///
    /// The call waits for the announcement for one
    /// [response time-out](crate::Builder::response_timeout) at most. Without a reply it returns
    /// the term anyway, and the watchdog repeats the announcement. The term is lost if the server
    /// denies the announcement, because [`force_unlock`](crate::Lock::force_unlock) has ended the
    /// term meanwhile, or if the lease of the term ends without a reply. The call then campaigns
    /// again, as a new candidate, also during an outage.
    ///
    /// # Errors
    /// - The errors of [`Lock::lock`](crate::Lock::lock) and the
    ///   [errors of every verb](Election#errors-of-every-verb).
    /// - [`is_deadlock`](crate::Error::is_deadlock) if this thread has a [`Guard`](crate::Guard) of
    ///   the lock with this name. A thread that has a term can campaign again: the call then waits
    ///   for the end of that term.
    /// - [`is_server`](crate::Error::is_server) if the server refuses the announcement for good,
    ///   such as with `NOPERM`. The call then resigns.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let term = client.election("scheduler").with_value("host-1:8080").campaign()?;
    /// println!("the leader of term {}", term.token());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn campaign(&self) -> Result<Leadership> {
        self.stand(Patience::Forever)?.ok_or_else(endless_wait_ended)
    }

    /// Becomes the leader if there is no other leader and no candidate; returns `None` otherwise.
    ///
    /// Does not wait for the end of another term. Blocks until the server answers, for one
    /// [response time-out](crate::Builder::response_timeout) per round trip at most. Two round
    /// trips; one without success.
    ///
    /// # Errors
    /// The errors of [`campaign`](Election::campaign), except
    /// [`is_deadlock`](crate::Error::is_deadlock). [`is_lost`](crate::Error::is_lost) if the server
    /// denies the term at its announcement: this says nothing about other leaders.
    pub fn try_campaign(&self) -> Result<Option<Leadership>> {
        self.stand(Patience::None)
    }

    /// Blocks until the caller is the leader; returns `None` after `timeout`.
    ///
    /// Waits as [`campaign`](Election::campaign) does. The call returns at most 100 ms after its
    /// deadline, whatever the server does. The deadline also ends the wait for the announcement of
    /// a term that the call has won; the call then returns this term.
    ///
    /// # Errors
    /// The errors of [`campaign`](Election::campaign), and those of
    /// [`Lock::try_lock_for`](crate::Lock::try_lock_for). [`is_lost`](crate::Error::is_lost) if the
    /// server denies a term after the deadline.
    pub fn try_campaign_for(&self, timeout: Duration) -> Result<Option<Leadership>> {
        self.stand(Patience::span(clock::now(), timeout))
    }

    /// Blocks until the caller is the leader; returns `None` after `deadline`.
    ///
    /// Like [`try_campaign_for`](Election::try_campaign_for), for several calls that share one
    /// deadline.
    ///
    /// # Errors
    /// The errors of [`try_campaign_for`](Election::try_campaign_for).
    pub fn try_campaign_until(&self, deadline: Instant) -> Result<Option<Leadership>> {
        self.stand(Patience::instant(clock::now(), deadline))
    }

    /// Takes the lock and announces the term; returns `None` if the patience ended.
    ///
    /// Campaigns again after a term that ended before its announcement, with pauses that grow. From
    /// then on the caller waits already, so an outage does not end its wait.
    fn stand(&self, patience: Patience) -> Result<Option<Leadership>> {
        let mut failures = 0;
        loop {
            let (outcome, is_term) = match self.shared.acquire_owned(&Elected, None, patience) {
                Ok(Some(won)) => (self.announce(won, patience).map(Some), true),
                Ok(None) => return Ok(None),
                Err(error) => (Err(error), false),
            };
            match outcome {
                Err(error)
                    if (is_term && error.is_lost() || failures > 0 && error.is_outage())
                        && !patience.is_over(clock::now()) =>
                {
                    let limit = Limit::at(patience.end()).or_cancelled(self.shared.cancel());
                    let span = doubled(FIRST_PAUSE, failures, LONGEST_PAUSE);
                    self.pause_after(&error, span, limit)?;
                    failures += 1;
                }
                outcome => return outcome,
            }
        }
    }

    /// Logs a failure, and pauses before the next campaign: at most to the limit, or until the
    /// client is closed. So a server that denies each term is not asked without end.
    fn pause_after(&self, error: &Error, span: Duration, limit: Limit<'_>) -> Result<()> {
        let LockContext { engine, .. } = &**self.shared.context()?;
        log::warn!(
            logger: LINES, target: log_target::LEASE,
            lock = self.name(), error:% = error.with_causes(), server = error.server();
            "a candidate or leader failed, and campaigns again: {}", error.with_causes()
        );
        limit.or_closed(&engine.closing).pause(jittered(span, clock::now().nanos()));
        Ok(())
    }

    /// Announces a term. Without a reply the watchdog does it.
    ///
    /// After a final error the drop of the handle resigns. Fails with `is_lost` if the server
    /// denies the term.
    fn announce(&self, handle: HoldHandle, patience: Patience) -> Result<Leadership> {
        let LockContext { engine, .. } = &**self.shared.context()?;
        let (term, value) = (handle.watched(), Arc::clone(&self.value));
        let router = Arc::clone(&engine.router);
        let lease = term.hold.renewed_lease(engine.settings.watchdog_timeout);
        let announcement = Announcement::new(term, value, lease, router);
        let announcement = Arc::new(announcement);
        let end = engine.response_limit().end().min(patience.deadline() + REPLY_GRACE);
        let limit = Limit::at(end).or_closed(&engine.closing).or_cancelled(self.shared.cancel());
        match announcement.send(&limit) {
            Err(error) if error.is_final() || limit.is_stopped() => {
                return Err(self.shared.named(error));
            }
            Ok(true) => announcement.announced(clock::now()),
            Ok(false) | Err(_) => {}
        }
        handle.check()?;
        engine.watchdog.keep_announced(&announcement);
        Ok(Leadership::new(handle, announcement))
    }
}

/// Queries, which any client can make.
impl Election {
    /// Returns the leader, or `None` if no leader is announced.
    ///
    /// Blocks until the server answers, for one response time-out at most. One round trip, and one
    /// more for the [record](crate::Builder::announce) of the leader's client. A process that died
    /// or lost its servers stays the leader until its lease on the server ends.
    ///
    /// # Errors
    /// [`is_connection`](crate::Error::is_connection), [`is_timeout`](crate::Error::is_timeout) or
    /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if the server does not answer, and the
    /// [errors of every verb](Election#errors-of-every-verb).
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// if let Some(leader) = client.election("scheduler").leader()? {
    ///     println!("{} since term {}", leader.value(), leader.token());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.shared.inspect(|inspector, name, target| {
            let mut leader = inspector.leader(name, target)?;
            if let Some(leader) = &mut leader {
                inspector.add_process(leader)?;
            }
            Ok(leader)
        })
    }

    /// Returns the candidates that wait, in the order in which they will lead.
    ///
    /// Blocks, and takes round trips, as [`waiting`](crate::Lock::waiting) of a queue lock.
    ///
    /// # Errors
    /// The errors of [`leader`](Election::leader), and those of
    /// [`Lock::waiting`](crate::Lock::waiting).
    pub fn waiting(&self) -> Result<WaitingInfo> {
        self.shared.waiting(ListensTo::Grants)
    }

    /// Returns a receiver of the present leader and of later changes.
    ///
    /// Blocks, and takes round trips, as [`leader`](Election::leader) does. The first message is
    /// the present leader, or `None` without one. Each later message is the state after a change of
    /// the leader or of its value. A receiver that is read slowly misses states in between, and
    /// gets the latest one. A change is received two round trips and some milliseconds after the
    /// server has made it, and within one [poll interval](crate::Builder::poll_interval) if the
    /// message of the server is lost. The end of a leader that has died is received at the end of
    /// its lease. During an outage nothing is received.
    ///
    /// A client that wins its first hold writes its [record](crate::Builder::announce) right after
    /// it, and so perhaps after this look. The receiver then gets the same state once more, with
    /// the facts about the process ([`Leader::holder`]).
    ///
    /// All receivers of one client share one thread, `leasehold-observer`. It looks at the server
    /// once per observed election and poll interval, and after each message of a leader. The
    /// channel has no buffer: a state passes at the moment at which the receiver takes it. So read
    /// with `recv`, `recv_timeout`, an iterator or `select!`; `try_recv` finds nothing while the
    /// thread is at work.
    ///
    /// If a receiver has got no message for 30 poll intervals (30 s at most), the thread sends it
    /// the same state again, if a caller waits at that moment. So a receiver can get equal states
    /// one after the other. By this message, or by the next change, the thread finds that a
    /// receiver is dropped; the thread ends with the last receiver. A receiver keeps the client
    /// running, as a guard does; [`Client::close`](crate::Client::close) disconnects the receiver.
    ///
    /// # Errors
    /// The errors of [`leader`](Election::leader), and
    /// [`is_configuration`](crate::Error::is_configuration) if the system cannot start the thread.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// for leader in client.election("scheduler").observe()? {
    ///     match leader {
    ///         Some(leader) => println!("the leader is {}", leader.value()),
    ///         None => println!("there is no leader"),
    ///     }
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn observe(&self) -> Result<Receiver<Option<Leader>>> {
        let context = self.shared.context()?;
        let first = self.shared.inspect(|inspector, _, _| FirstLook::new(context, inspector))?;
        let receiver = self.observers.add(context, first);
        receiver.map_err(|error| self.shared.named(error))
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt("Election", f)
    }
}
