//! What the requests of this client have found out about each server, and the one growing pause
//! that everything which repeats attempts at a server follows.
//!
//! A server is in trouble in two ways, which have a pause each:
//!
//! | trouble | begins | ends |
//! | --- | --- | --- |
//! | silent | no connection, a connection that breaks before its first reply, a late reply | with a reply to a command |
//! | refusing | a refusal that somebody repeats the command for | [`STABLE`] after the last such refusal |
//!
//! A new connection is no proof that a server is well: a proxy answers `HELLO` for a dead server.
//! The pauses double from 20 ms to 1 s, also over several outages in a row, and start again when
//! the server was well for [`CALM`] of the last pauses. So an outage that an answer ends too early
//! is followed by a longer pause, and nothing that an answer sets off repeats itself without a
//! pause.
//!
//! Connections report silence and replies. The watchdog logs each outage once, and its end when
//! nothing has failed for [`STABLE`]: while some connections work and others cannot be made, a
//! server has one outage for the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::util::clock::{self, Moment, doubled, jittered};
use crate::util::sync::{Mutex, TIME_PASSES};

/// The first and the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The number of pauses without trouble after which the pauses start again.
const CALM: u32 = 10;

/// The time without a failure that ends an outage for the log, and a refusal; the time with one
/// connection of a listener that ends its failures.
pub(crate) const STABLE: Duration = Duration::from_secs(5);

/// Pauses between attempts that grow while the attempts fail.
#[derive(Debug, Default)]
pub(crate) struct GrowingPause {
    end: Moment,
    /// Pauses in a row.
    count: u32,
    /// The moment of the last attempt.
    last_attempt: Moment,
}

impl GrowingPause {
    /// Notes an attempt, and returns the end of the pause that it lies in or begins.
    pub(crate) fn attempted(&mut self, now: Moment) -> Moment {
        if self.last_attempt + self.calm() < now {
            self.count = 0;
        }
        self.last_attempt = now;
        self.begin(now)
    }

    /// Returns the end of the pause that `now` lies in, or that begins now.
    fn begin(&mut self, now: Moment) -> Moment {
        if self.end <= now {
            self.end = now + jittered(self.next_length(), now.nanos());
            self.count = self.count.saturating_add(1);
        }
        self.end
    }

    pub(crate) fn end(&self) -> Moment {
        self.end
    }

    fn next_length(&self) -> Duration {
        doubled(FIRST_PAUSE, self.count, LONGEST_PAUSE)
    }

    /// Returns the time without trouble after which the pauses start again.
    fn calm(&self) -> Duration {
        self.next_length() * CALM
    }
}

/// The health of all servers of a client, by the number of their node.
#[derive(Debug, Default)]
pub(crate) struct ServerHealths(Mutex<BTreeMap<u32, Arc<ServerHealth>>>);

impl ServerHealths {
    /// Stands for whichever node of a cluster a connection leads to.
    pub(crate) const ANY_NODE: u32 = u32::MAX;

    /// Returns the health of the server with that number.
    pub(crate) fn of(&self, node: u32) -> Arc<ServerHealth> {
        Arc::clone(self.0.lock().entry(node).or_default())
    }

    /// Returns the health of each server, with the number of its node.
    pub(crate) fn all(&self) -> Vec<(u32, Arc<ServerHealth>)> {
        self.0.lock().iter().map(|(node, health)| (*node, Arc::clone(health))).collect()
    }

    /// Ends all pauses, because other servers may have taken over, and forgets the servers without
    /// a pool or listener.
    pub(crate) fn end_pauses(&self) {
        self.0.lock().retain(|_, health| Arc::strong_count(health) > 1);
        for (_, health) in self.all() {
            health.end_pause();
        }
    }
}

/// The health of one server.
#[derive(Debug, Default)]
pub(crate) struct ServerHealth {
    /// Whether an outage has begun and not ended.
    is_silent: AtomicBool,
    silence: Mutex<Trouble>,
    refusal: Mutex<Trouble>,
}

/// One way in which a server is in trouble.
#[derive(Debug, Default)]
struct Trouble {
    /// When the present outage began, until the log may have its end.
    since: Option<Moment>,
    /// When the outage ended, if nothing has failed since.
    over: Option<Moment>,
    /// An answer that came too soon after the last end of an outage to end this one.
    early_answer: Option<Moment>,
    /// The error of the last failure.
    error: Option<Error>,
    last_failure: Moment,
    last_end: Moment,
    pause: GrowingPause,
    /// The code of the refusal that was reported, or the empty text of a reported silence.
    told: Option<String>,
}

/// A change that the log has to tell.
#[derive(Debug)]
pub(crate) enum HealthNews {
    /// The server is silent or refuses commands.
    Trouble(Error),
    /// The trouble is over, and lasted for this long.
    Over { error: Error, lasted: Duration },
}

impl Trouble {
    fn failed(&mut self, now: Moment, error: &Error) -> Moment {
        let is_new = self.since.is_none() || self.over.is_some();
        if is_new && self.last_end + self.pause.calm() < now {
            self.pause.count = 0;
        }
        self.since.get_or_insert(now);
        (self.over, self.early_answer) = (None, None);
        self.error = Some(error.clone());
        self.last_failure = now;
        self.pause.begin(now)
    }

    fn end(&mut self, end: Moment) {
        if self.since.is_some() && self.over.is_none() {
            self.pause.end = Moment::START;
            self.last_end = end;
            self.over = Some(end);
        }
    }

    /// Returns news about the present outage, or about its end.
    ///
    /// Outages that affect nothing are no news.
    fn news(&mut self, now: Moment, is_affected: impl FnOnce() -> bool) -> Option<HealthNews> {
        let (error, since) = (self.error.clone()?, self.since?);
        if let Some(end) = self.over {
            if now <= self.last_failure + STABLE {
                return None;
            }
            (self.since, self.over) = (None, None);
            self.told.take()?;
            return Some(HealthNews::Over { error, lasted: since.until(end) });
        }
        let code = error.code().unwrap_or_default();
        if self.told.as_deref() == Some(code) || !is_affected() {
            return None;
        }
        self.told = Some(code.to_owned());
        Some(HealthNews::Trouble(error))
    }
}

impl ServerHealth {
    /// Notes an attempt without an answer. Returns the end of the pause.
    pub(crate) fn unanswered(&self, now: Moment, error: &Error) -> Moment {
        let mut silence = self.silence.lock();
        self.is_silent.store(true, Ordering::Relaxed);
        silence.failed(now, error)
    }

    /// Notes a reply to a command. Returns whether it ends an outage.
    ///
    /// Two outages end at least a pause apart: an end makes everything that pauses go on.
    pub(crate) fn answered(&self, now: impl FnOnce() -> Moment) -> bool {
        if !self.is_silent.load(Ordering::Relaxed) {
            return false;
        }
        let (mut silence, now) = (self.silence.lock(), now());
        if TIME_PASSES && now < silence.last_end + silence.pause.next_length() {
            silence.early_answer = Some(now);
            return false;
        }
        self.is_silent.store(false, Ordering::Relaxed);
        silence.end(now);
        true
    }

    /// Returns the moment for the next attempt after one that failed with this error.
    pub(crate) fn retry_at(&self, now: Moment, error: &Error) -> Moment {
        // A silent server has refused a connection, and no command.
        if error.is_server() && !self.is_silent() {
            return self.refusal.lock().failed(now, error);
        }
        self.silence.lock().pause.attempted(now)
    }

    /// Returns the last error of a server that pauses because it was silent.
    pub(crate) fn paused_error(&self, now: Moment) -> Option<Error> {
        if !self.is_silent() {
            return None;
        }
        let silence = self.silence.lock();
        silence.error.clone().filter(|_| now < silence.pause.end)
    }

    /// Returns whether no command was answered since the last failure.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Returns the last error of the silent server.
    pub(crate) fn error(&self) -> Option<Error> {
        self.silence.lock().error.clone()
    }

    /// Ends the outage without an answer, until the next failure.
    pub(crate) fn end_pause(&self) {
        let mut silence = self.silence.lock();
        self.is_silent.store(false, Ordering::Relaxed);
        silence.end(clock::now());
        silence.pause = GrowingPause::default();
    }

    /// Returns whether there may be news.
    pub(crate) fn may_have_news(&self) -> bool {
        self.silence.lock().since.is_some() || self.refusal.lock().since.is_some()
    }

    /// Returns the news since the last call; `is_affected` tells whether an outage matters.
    pub(crate) fn news(&self, now: Moment, is_affected: impl Fn() -> bool) -> Vec<HealthNews> {
        let mut silence = self.silence.lock();
        if let Some(answer) = silence.early_answer
            && silence.last_end + silence.pause.next_length() <= now
        {
            self.is_silent.store(false, Ordering::Relaxed);
            silence.end(answer);
        }
        let silence = silence.news(now, &is_affected);
        let mut refusal = self.refusal.lock();
        if refusal.last_failure + STABLE < now {
            let last = refusal.last_failure;
            refusal.end(last);
        }
        silence.into_iter().chain(refusal.news(now, is_affected)).collect()
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::error::Refusal;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Moment = Moment::from_nanos(1_000_000_000_000);

    #[test]
    fn the_pause_grows_while_attempts_fail_and_is_one_for_all() {
        let (health, mut now, mut attempts) = (ServerHealth::default(), START, 0);
        while now < START + 26 * SECOND {
            let end = health.unanswered(now, &Error::timeout());
            assert_eq!(health.unanswered(now, &Error::timeout()), end, "the same pause");
            assert!(health.paused_error(now).is_some() && health.paused_error(end).is_none());
            assert!(now.until(end) <= LONGEST_PAUSE);
            (now, attempts) = (end, attempts + 1);
        }
        assert!((26..70).contains(&attempts), "{attempts} attempts");
        assert!(health.answered(|| now));
        let later = now + LONGEST_PAUSE * (CALM + 1);
        assert!(later.until(health.unanswered(later, &Error::timeout())) <= FIRST_PAUSE);
    }

    #[test]
    fn an_answer_ends_the_pause_but_two_ends_are_a_pause_apart() {
        let health = ServerHealth::default();
        assert!(!health.answered(|| START), "nothing has failed");
        health.unanswered(START, &Error::timeout());
        assert!(health.answered(|| START) && health.paused_error(START).is_none());
        // A command that always breaks its connection, beside others that are answered.
        let (mut now, mut ends) = (START, 0);
        while now < START + 26 * SECOND {
            health.unanswered(now, &Error::timeout());
            ends += i32::from(health.answered(|| now));
            now = now + Duration::from_millis(1);
        }
        assert!((1..70).contains(&ends), "{ends} ends of outages");
    }

    fn told(health: &ServerHealth, now: Moment, is_affected: bool) -> Vec<String> {
        let news = health.news(now, || is_affected).into_iter();
        news.map(|news| match news {
            HealthNews::Trouble(error) => error.code().unwrap_or("silent").to_owned(),
            HealthNews::Over { lasted, .. } => format!("over after {lasted:?}"),
        })
        .collect()
    }

    #[test]
    fn each_state_of_an_outage_is_told_once_and_so_is_its_end() {
        let health = ServerHealth::default();
        health.unanswered(START, &Error::timeout());
        assert!(told(&health, START, false).is_empty(), "it affects nothing");
        assert_eq!(told(&health, START, true), ["silent"]);
        health.unanswered(START + SECOND, &Error::timeout());
        assert!(told(&health, START, true).is_empty(), "it is known");
        health.answered(|| START + 2 * SECOND);
        let now = START + 3 * SECOND;
        assert!(told(&health, now, true).is_empty());
        // A connection cannot be made while others work.
        health.unanswered(now, &Error::timeout());
        assert!(told(&health, now, true).is_empty(), "it is known");
        health.answered(|| now + SECOND);
        assert!(told(&health, now + STABLE, true).is_empty());
        assert_eq!(told(&health, now + STABLE + SECOND, true), ["over after 4s"]);
        assert!(!health.may_have_news());

        let refused = |code| Error::refused(&Refusal::new(code, ""));
        let now = START + 60 * SECOND;
        health.retry_at(now, &refused("LOADING"));
        assert_eq!(told(&health, now, true), ["LOADING"]);
        health.retry_at(now + SECOND, &refused("NOREPLICAS"));
        assert_eq!(told(&health, now + SECOND, true), ["NOREPLICAS"]);
        health.retry_at(now + 2 * SECOND, &refused("NOREPLICAS"));
        assert!(told(&health, now + 2 * SECOND, true).is_empty());
        assert_eq!(told(&health, now + 3 * SECOND + STABLE, true), ["over after 2s"]);
        assert!(!health.may_have_news());
    }
}
