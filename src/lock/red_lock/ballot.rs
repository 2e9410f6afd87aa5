//! One question to several servers at the same time.
//!
//! Every server is asked on a thread of its client's executor, so a silent server delays no
//! other. The ballot ends as soon as the votes or the time decide it, in one of three ways:
//!
//! - Yes: a quorum votes yes.
//! - No: so many servers vote no that no quorum can vote yes. Also, for an acquire: a quorum
//!   has voted yes or no, and either no quorum can vote yes or the `majority_wait` is over.
//! - Error: so many servers fail that no quorum can vote yes, or all servers have voted, or
//!   the `timeout` is over.
//!
//! A late yes goes to the receiver of [`hand_over`](Ballot::hand_over) or, once the ballot is
//! closed, is dropped on the executor's thread: a hold is then released.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::transport::pool::request::panicked;
use crate::util::clock::{self, Moment};
use crate::util::executor::Executor;
use crate::util::sync::{Mutex, Parker};
use crate::util::threads;

/// The longest wait for the missing votes on an acquire on which a majority has voted.
///
/// After this time a new ballot is as good as a longer wait.
const LONGEST_MAJORITY_WAIT: Duration = Duration::from_millis(200);

/// This wait is also at most the lease divided by this number.
const LEASE_PARTS: u32 = 10;

/// One question to several servers.
pub(crate) struct Ballot<T> {
    size: usize,
    quorum: usize,
    started: Moment,
    limits: BallotLimits,
    parker: Arc<Parker>,
    state: Mutex<BallotState<T>>,
}

/// The times after which a ballot ends although the votes do not decide it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BallotLimits {
    /// The span after which the votes of a majority suffice for a no, although the missing
    /// votes could still make a yes. `None`: the ballot waits for votes that exclude a yes.
    majority_wait: Option<Duration>,
    /// The ballot ends with an error after this span.
    timeout: Duration,
}

impl BallotLimits {
    /// Returns the limits of an acquire. Its caller asks again after a refusal, so a minority
    /// of missing votes does not delay the refusal.
    pub(crate) fn of_acquire(lease: Duration, timeout: Duration) -> BallotLimits {
        let majority_wait = LONGEST_MAJORITY_WAIT.min(lease / LEASE_PARTS).min(timeout);
        BallotLimits { majority_wait: Some(majority_wait), timeout }
    }

    /// Returns the limits of a query. A query reports the vote of a majority or an error.
    pub(crate) fn of_query(timeout: Duration) -> BallotLimits {
        BallotLimits { majority_wait: None, timeout }
    }
}

enum BallotState<T> {
    Open(Votes<T>),
    /// Late votes go to the receiver. New questions start while they are still wanted.
    HandedOver(Receiver<T>, IsWanted),
    /// Late votes are dropped.
    Closed,
}

type Receiver<T> = Arc<dyn Fn(T) + Send + Sync>;
type IsWanted = Box<dyn Fn() -> bool + Send>;

/// The votes so far.
struct Votes<T> {
    yes: Vec<T>,
    no: usize,
    errors: Vec<Error>,
}

impl<T> Ballot<T> {
    /// Opens a ballot of `size` servers, of which `quorum` must vote yes. Every vote wakes
    /// `parker`.
    pub(crate) fn new(
        size: usize,
        quorum: usize,
        limits: BallotLimits,
        parker: &Arc<Parker>,
    ) -> Arc<Ballot<T>> {
        let open = BallotState::Open(Votes { yes: Vec::new(), no: 0, errors: Vec::new() });
        let (parker, state) = (Arc::clone(parker), Mutex::new(open));
        Arc::new(Ballot { size, quorum, started: clock::now(), limits, parker, state })
    }

    /// Returns whether another vote is of use.
    pub(crate) fn is_wanted(&self) -> bool {
        match &*self.state.lock() {
            BallotState::Open(_) => true,
            BallotState::HandedOver(_, is_wanted) => is_wanted(),
            BallotState::Closed => false,
        }
    }

    /// Takes the vote of one server: yes with a value, no, or an error.
    pub(crate) fn vote(&self, vote: Result<Option<T>>) {
        let mut state = self.state.lock();
        let receiver = match &mut *state {
            BallotState::Open(votes) => {
                match vote {
                    Ok(Some(yes)) => votes.yes.push(yes),
                    Ok(None) => votes.no += 1,
                    Err(error) => votes.errors.push(error),
                }
                drop(state);
                return self.parker.unpark();
            }
            BallotState::HandedOver(receiver, _) => Some(Arc::clone(receiver)),
            BallotState::Closed => None,
        };
        drop(state);
        // The receiver, and the drop of an unwanted hold, run without the mutex.
        if let (Some(receiver), Ok(Some(yes))) = (receiver, vote) {
            receiver(yes);
        }
    }

    /// Blocks until the ballot is decided. See [`decided`](Ballot::decided).
    pub(crate) fn decide(&self) -> Result<bool> {
        self.decide_while(|| Ok(()))
    }

    /// Blocks until the ballot is decided, or until `check` fails.
    ///
    /// The parker must be woken whenever the result of `check` changes.
    pub(crate) fn decide_while(&self, check: impl Fn() -> Result<()>) -> Result<bool> {
        loop {
            if let Some(decided) = self.decided() {
                return decided;
            }
            check().inspect_err(|_| self.close())?;
            self.parker.park_until(self.next_check());
        }
    }

    /// Returns whether a quorum votes yes, `None` while undecided. Does not block.
    ///
    /// Closes the ballot unless the outcome is yes.
    ///
    /// # Errors
    /// The first error of a server, or a time-out, if too few servers vote.
    pub(crate) fn decided(&self) -> Option<Result<bool>> {
        let decided = self.tally(self.started.until(clock::now()))?;
        if !matches!(decided, Ok(true)) {
            self.close();
        }
        Some(decided)
    }

    /// Returns the next moment at which time alone may decide.
    pub(crate) fn next_check(&self) -> Moment {
        let majority = self.limits.majority_wait.map(|wait| self.started + wait);
        let majority = majority.filter(|end| *end > clock::now());
        majority.unwrap_or(self.started + self.limits.timeout)
    }

    fn tally(&self, passed: Duration) -> Option<Result<bool>> {
        let state = self.state.lock();
        let BallotState::Open(votes) = &*state else { return Some(Ok(false)) };
        let (yes, no, failed) = (votes.yes.len(), votes.no, votes.errors.len());
        let spare = self.size - self.quorum;
        let (majority_voted, open) = (yes + no >= self.quorum, self.size - yes - no - failed);
        let is_majority_wait_over = self
            .limits
            .majority_wait
            .is_some_and(|wait| majority_voted && (yes + open < self.quorum || passed >= wait));
        if yes >= self.quorum {
            Some(Ok(true))
        } else if no > spare || is_majority_wait_over {
            Some(Ok(false))
        } else if failed > spare || open == 0 || passed >= self.limits.timeout {
            let text = "too few of the servers have answered in time";
            let error = votes.errors.first().cloned();
            Some(Err(error.unwrap_or_else(|| Error::new(ErrorKind::Timeout, text))))
        } else {
            None
        }
    }

    /// Drops the votes so far and all later ones.
    pub(crate) fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), BallotState::Closed);
        // Holds are released without the mutex.
        drop(before);
    }

    /// Asks one server on a thread of the executor.
    pub(crate) fn ask(
        self: &Arc<Ballot<T>>,
        executor: &Arc<Executor>,
        question: impl FnOnce() -> Result<Option<T>> + Send + 'static,
    ) where
        T: Send + 'static,
    {
        let ballot = Arc::clone(self);
        executor.run(move || {
            let vote = threads::catch_panic("asking one of several servers", question);
            ballot.vote(vote.unwrap_or_else(|| Err(panicked())));
        });
    }

    /// Removes and returns the yes votes so far.
    pub(crate) fn take_yes(&self) -> Vec<T> {
        match &mut *self.state.lock() {
            BallotState::Open(votes) => std::mem::take(&mut votes.yes),
            BallotState::HandedOver(..) | BallotState::Closed => Vec::new(),
        }
    }

    /// Passes every remaining and every later yes to `receiver`.
    ///
    /// A question that has not started yet starts only while `is_wanted` returns true.
    pub(crate) fn hand_over(
        &self,
        is_wanted: impl Fn() -> bool + Send + 'static,
        receiver: impl Fn(T) + Send + Sync + 'static,
    ) {
        let receiver: Receiver<T> = Arc::new(receiver);
        let handed_over = BallotState::HandedOver(Arc::clone(&receiver), Box::new(is_wanted));
        let before = std::mem::replace(&mut *self.state.lock(), handed_over);
        if let BallotState::Open(votes) = before {
            for yes in votes.yes {
                receiver(yes);
            }
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::error::LostReason;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    const ACQUIRE: BallotLimits = BallotLimits { majority_wait: Some(LONG), timeout: LONG };
    const QUERY: BallotLimits = BallotLimits { majority_wait: None, timeout: LONG };

    fn ballot_of(size: usize, limits: BallotLimits, votes: &[Option<bool>]) -> Arc<Ballot<usize>> {
        let ballot = Ballot::new(size, size / 2 + 1, limits, &Arc::default());
        for (number, vote) in votes.iter().enumerate() {
            let error = || Error::lost(LostReason::Gone, "any");
            ballot.vote(vote.map_or(Err(error()), |yes| Ok(yes.then_some(number))));
        }
        ballot
    }

    fn ballot(votes: &[Option<bool>]) -> Arc<Ballot<usize>> {
        ballot_of(5, ACQUIRE, votes)
    }

    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);

    #[test]
    fn a_majority_decides_without_the_missing_votes() {
        for limits in [ACQUIRE, QUERY] {
            let decide = |votes: &[_]| ballot_of(5, limits, votes).decide();
            assert!(decide(&[YES, NO, YES, NO, YES]).expect("decided"));
            assert!(decide(&[None, YES, YES, None, YES]).expect("decided"));
            assert!(!decide(&[NO, YES, NO, NO]).expect("decided"));
            assert!(!decide(&[None, NO, None, NO, NO]).expect("decided"));
            assert!(decide(&[None, YES, None, YES, None]).is_err());
        }
        assert!(!ballot(&[None, NO, None, YES, NO]).decide().expect("decided"));
    }

    #[test]
    fn the_majority_wait_ends_with_no_and_the_timeout_with_an_error() {
        let limits = BallotLimits { majority_wait: Some(SHORT), timeout: LONG };
        let ballot = |votes: &[_]| ballot_of(5, limits, votes);
        assert!(!ballot(&[YES, YES, NO]).decide().expect("a majority has voted"));
        let limits = BallotLimits { majority_wait: Some(SHORT), timeout: SHORT };
        let ballot = |votes: &[_]| ballot_of(5, limits, votes);
        assert!(ballot(&[YES, YES]).decide().is_err_and(|error| error.is_timeout()));
        // A yes is impossible, but too few servers have voted for a no.
        assert!(ballot(&[None, NO, None, YES]).decide().is_err());
    }

    #[test]
    fn a_query_returns_no_only_if_no_majority_can_say_yes() {
        let decided = |size, votes: &[_]| ballot_of(size, QUERY, votes).decided();
        assert!(decided(3, &[NO]).is_none() && decided(3, &[NO, YES]).is_none());
        assert!(decided(3, &[NO, None]).is_none() && decided(5, &[NO, NO, YES, YES]).is_none());
        assert!(matches!(decided(3, &[NO, NO]), Some(Ok(false))));
        // Two of four can never become three.
        assert!(matches!(decided(4, &[NO, NO]), Some(Ok(false))));
        // All have voted, and neither side has enough.
        assert!(matches!(decided(3, &[NO, YES, None]), Some(Err(_))));
        let limits = BallotLimits { timeout: SHORT, ..QUERY };
        let silent = ballot_of(3, limits, &[NO, YES]).decide();
        assert!(silent.is_err_and(|error| error.is_timeout()));
    }

    #[test]
    fn a_late_yes_is_handed_over_or_dropped() {
        let won = ballot(&[YES, YES, YES]);
        assert!(won.decide().expect("decided"));
        assert_eq!(won.take_yes(), [0, 1, 2]);
        won.vote(Ok(Some(3)));
        let (sender, receiver) = crossbeam_channel::unbounded();
        won.hand_over(|| false, move |late| sender.send(late).expect("it is received"));
        won.vote(Ok(Some(4)));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [3, 4]);
        let closed = ballot(&[NO, NO, NO]);
        assert!(!closed.decide().expect("decided"));
        assert!(won.is_wanted() != ballot(&[YES]).is_wanted() && !closed.is_wanted());
        closed.vote(Ok(Some(3)));
        assert!(closed.take_yes().is_empty());
    }
}
