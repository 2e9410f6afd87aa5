//! A hold on most of several servers, and how one gets it.
//!
//! Each server has a hold of its own, with its own lease, which its client's watchdog
//! renews. What counts is how many of them are valid: the whole is, while those are the
//! *quorum*, more than half of all servers. So it lasts as long as the lease that is the
//! quorum's last, each reckoned from before its question was sent, less a margin.
//!
//! All servers are asked before any answer is awaited, each on a thread aside
//! (`aside.rs`), so that one that is silent holds up nobody. A *round* ends as soon as it
//! is decided. A grant that comes later belongs to the hold, if there is one, and is asked for
//! what the others were asked for meanwhile; or it is released.

use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::error::{Error, ErrorKind, LostReason, Result};
use crate::pool::context;
use crate::pool::request::panicked;
use crate::util::clock::{self, Moment};
use crate::util::executor::Executor;
use crate::util::sync::{Mutex, Parker};
use crate::util::threads;

/// How long a round goes on that most have answered and that is not decided: the others'
/// answers are worth no more than another round.
const SHORT: Duration = Duration::from_millis(200);

/// The part of a lease that this may take at most.
const PART: u32 = 10;

/// How often it is looked whether a hold is still being extended.
const LOOK: Duration = Duration::from_millis(1);

/// Holds on servers, of which so many have to be valid.
#[derive(Debug)]
pub(crate) struct Quorum {
    quorum: usize,
    /// It was seen not to count any more, which is final.
    lost: AtomicBool,
    /// The process that holds it.
    process: u32,
    members: Mutex<Members>,
}

#[derive(Debug)]
struct Members {
    holds: Vec<Arc<HoldHandle>>,
    /// Set once, by the first look that finds the majority lost.
    lost: Option<LostReason>,
    /// What was asked of all since they were granted, those too that come late.
    lasts: Moment,
    renewed: bool,
}

/// A panic leaves it in order: loggers and callbacks run with no lock held (`tests/panics.rs`).
impl RefUnwindSafe for Quorum {}

impl Quorum {
    pub(crate) fn new(quorum: usize, holds: Vec<HoldHandle>) -> Quorum {
        let holds = holds.into_iter().map(Arc::new).collect();
        let members =
            Mutex::new(Members { holds, lost: None, lasts: Moment::START, renewed: false });
        Quorum { quorum, lost: AtomicBool::new(false), process: std::process::id(), members }
    }

    /// An error in a forked child, where a thread of the parent may have left a mutex locked.
    pub(crate) fn check_process(&self) -> Result<()> {
        context::check_process(self.process)
    }

    pub(crate) fn quorum(&self) -> usize {
        self.quorum
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.remaining().is_zero() {
            true => Err(Error::lost(self.lost_reason(), "the majority was lost")),
            false => Ok(()),
        }
    }

    /// How long as many as have to be are valid. Once they are not the rest is of no use, and
    /// given back.
    pub(crate) fn remaining(&self) -> Duration {
        if self.lost.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let left = remaining(&self.members.lock().holds, self.quorum);
        if left.is_zero() {
            self.lose(LostReason::Expired);
        }
        left
    }

    /// Returns how the majority was lost; for one that was not, what its end would be.
    pub(crate) fn lost_reason(&self) -> LostReason {
        self.members.lock().lost.unwrap_or(LostReason::Expired)
    }

    /// It does not count any more.
    pub(crate) fn lose(&self, reason: LostReason) {
        let rest = self.take_lost(reason);
        self.lost.store(true, Ordering::Release);
        if let Some(executor) = rest.first().map(|hold| hold.executor()) {
            executor.run(move || drop(rest));
        }
    }

    /// Takes in a hold that was granted late, if the others still count. One that does not
    /// is given back: to be dropped with no lock held.
    pub(crate) fn adopt(&self, hold: HoldHandle) -> Option<HoldHandle> {
        let mut members = self.members.lock();
        if self.lost.load(Ordering::Acquire) || remaining(&members.holds, self.quorum).is_zero() {
            return Some(hold);
        }
        let hold = Arc::new(hold);
        members.holds.push(Arc::clone(&hold));
        let (lasts, renewed) = (members.lasts, members.renewed);
        drop(members);
        if renewed {
            hold.keep_renewed();
        }
        let lease = clock::now().until(lasts);
        if hold.remaining() < lease {
            let (executor, hold) = (hold.executor(), Arc::downgrade(&hold));
            // Who ends the whole does not wait for that to begin. If it fails, the hold lasts as
            // long as it was granted for.
            executor.run(move || drop(hold.upgrade().map(|hold| hold.extend(lease, hold.bound()))));
        }
        None
    }

    pub(crate) fn watch(&self, parker: &Arc<Parker>) {
        self.all().iter().for_each(|hold| hold.hold().watch(parker));
    }

    fn all(&self) -> Vec<Arc<HoldHandle>> {
        self.members.lock().holds.clone()
    }

    /// All holds, to be extended; as those will be that come late.
    pub(crate) fn all_for(&self, lease: Duration) -> Vec<Arc<HoldHandle>> {
        let mut members = self.members.lock();
        members.lasts = members.lasts.max(clock::now() + lease);
        members.holds.clone()
    }

    /// Has all holds renewed from now on, and those that come late.
    pub(crate) fn keep_renewed(&self) {
        self.members.lock().renewed = true;
        self.all().iter().for_each(|hold| hold.keep_renewed());
    }

    /// Whether any would be over before such a lease.
    pub(crate) fn needs(&self, lease: Duration) -> bool {
        self.all().iter().any(|hold| hold.needs_extension(lease))
    }

    /// All holds of a majority that was lost. A server that no longer has one of them is the
    /// reason then.
    fn take_lost(&self, reason: LostReason) -> Vec<Arc<HoldHandle>> {
        let mut members = self.members.lock();
        let holds = std::mem::take(&mut members.holds);
        let gone = holds.iter().any(|hold| hold.hold().lost_reason() == LostReason::Gone);
        members.lost.get_or_insert(if gone { LostReason::Gone } else { reason });
        holds
    }

    /// All holds, to be ended.
    pub(crate) fn take(&self) -> Vec<Arc<HoldHandle>> {
        std::mem::take(&mut self.members.lock().holds)
    }
}

impl Drop for Quorum {
    /// In a forked child the holds are left alone: their drop waits for mutexes that a thread of
    /// the parent may have left locked.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            std::mem::forget(std::mem::take(&mut self.members.get_mut().holds));
        }
    }
}

/// A hold that was taken, once nobody is extending it any more.
pub(crate) fn alone(hold: Arc<HoldHandle>) -> HoldHandle {
    let mut hold = hold;
    loop {
        match Arc::try_unwrap(hold) {
            Ok(hold) => return hold,
            Err(shared) => hold = shared,
        }
        Parker::default().park_until(clock::now() + LOOK);
    }
}

/// What is left of the lease that is the quorum's last.
fn remaining(holds: &[Arc<HoldHandle>], quorum: usize) -> Duration {
    let mut left: Vec<_> = holds.iter().map(|hold| hold.remaining()).collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    left.get(quorum - 1).copied().unwrap_or_default()
}

/// One question to all servers.
pub(crate) struct Ballot<T> {
    size: usize,
    quorum: usize,
    begun: Moment,
    limits: BallotLimits,
    parker: Arc<Parker>,
    state: Mutex<BallotState<T>>,
}

/// When a round ends that the answers do not decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BallotLimits {
    /// A majority has answered, but the missing answers could still make a yes: after this
    /// span the answer is no. `None`: a no needs so many servers that no majority can say yes.
    brief: Option<Duration>,
    /// The round fails after this span.
    silence: Duration,
}

impl BallotLimits {
    /// A refused acquire is repeated, so a minority of missing answers does not delay it.
    pub(crate) fn of_acquire(lease: Duration, silence: Duration) -> BallotLimits {
        BallotLimits { brief: Some(SHORT.min(lease / PART).min(silence)), silence }
    }

    /// A query reports the answer of a majority, or an error.
    pub(crate) fn of_query(silence: Duration) -> BallotLimits {
        BallotLimits { brief: None, silence }
    }
}

enum BallotState<T> {
    Open(Votes<T>),
    /// Late answers go there, as long as they are wanted.
    Handed(Late<T>, Wanted),
    /// Nobody wants them any more.
    Closed,
}

type Late<T> = Arc<dyn Fn(T) + Send + Sync>;
type Wanted = Box<dyn Fn() -> bool + Send>;

/// What the servers have said.
struct Votes<T> {
    yes: Vec<T>,
    no: usize,
    errors: Vec<Error>,
}

impl<T> Ballot<T> {
    /// A round of so many servers, of which so many have to say yes. The caller's mailbox is
    /// rung at each answer.
    pub(crate) fn new(
        size: usize,
        quorum: usize,
        limits: BallotLimits,
        parker: &Arc<Parker>,
    ) -> Arc<Ballot<T>> {
        let open = BallotState::Open(Votes { yes: Vec::new(), no: 0, errors: Vec::new() });
        let (parker, state) = (Arc::clone(parker), Mutex::new(open));
        Arc::new(Ballot { size, quorum, begun: clock::now(), limits, parker, state })
    }

    /// Whether it is of any use to ask yet.
    pub(crate) fn is_wanted(&self) -> bool {
        match &*self.state.lock() {
            BallotState::Open(_) => true,
            BallotState::Handed(_, wanted) => wanted(),
            BallotState::Closed => false,
        }
    }

    /// A server has answered: with something, with no, or not at all.
    pub(crate) fn answered(&self, answer: Result<Option<T>>) {
        let mut state = self.state.lock();
        let late = match &mut *state {
            BallotState::Open(answers) => {
                match answer {
                    Ok(Some(yes)) => answers.yes.push(yes),
                    Ok(None) => answers.no += 1,
                    Err(error) => answers.errors.push(error),
                }
                drop(state);
                return self.parker.unpark();
            }
            BallotState::Handed(late, _) => Some(Arc::clone(late)),
            BallotState::Closed => None,
        };
        drop(state);
        // What nobody wants is released here, with no lock held.
        if let (Some(late), Ok(Some(yes))) = (late, answer) {
            late(yes);
        }
    }

    /// Blocks until the round is decided. See [`decided`](Ballot::decided).
    pub(crate) fn decide(&self) -> Result<bool> {
        self.decide_while(|| Ok(()))
    }

    /// Blocks until the round is decided, or the caller does not want it any more: it rings
    /// the mailbox then.
    pub(crate) fn decide_while(&self, wanted: impl Fn() -> Result<()>) -> Result<bool> {
        loop {
            if let Some(decided) = self.decided() {
                return decided;
            }
            wanted().inspect_err(|_| self.close())?;
            self.parker.park_until(self.next_check());
        }
    }

    /// Returns whether a quorum says yes, `None` while that is open, an error if too few
    /// servers answer. Closes the round unless the answer is yes.
    pub(crate) fn decided(&self) -> Option<Result<bool>> {
        let decided = self.look(self.begun.until(clock::now()))?;
        if !matches!(decided, Ok(true)) {
            self.close();
        }
        Some(decided)
    }

    /// The moment at which time decides, if no answer does before.
    pub(crate) fn next_check(&self) -> Moment {
        let brief = self.limits.brief.map(|brief| self.begun + brief);
        let brief = brief.filter(|brief| *brief > clock::now());
        brief.unwrap_or(self.begun + self.limits.silence)
    }

    fn look(&self, passed: Duration) -> Option<Result<bool>> {
        let state = self.state.lock();
        let BallotState::Open(answers) = &*state else { return Some(Ok(false)) };
        let (yes, no, failed) = (answers.yes.len(), answers.no, answers.errors.len());
        let spare = self.size - self.quorum;
        let (answered, open) = (yes + no >= self.quorum, self.size - yes - no - failed);
        let is_brief_over = self
            .limits
            .brief
            .is_some_and(|brief| answered && (yes + open < self.quorum || passed >= brief));
        if yes >= self.quorum {
            Some(Ok(true))
        } else if no > spare || is_brief_over {
            Some(Ok(false))
        } else if failed > spare || open == 0 || passed >= self.limits.silence {
            Some(Err(answers.errors.first().cloned().unwrap_or_else(timeout)))
        } else {
            None
        }
    }

    /// Has whoever answers from now on keep it.
    pub(crate) fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), BallotState::Closed);
        // Holds are released with no lock held.
        drop(before);
    }

    /// Has a server asked aside, and takes in its answer.
    pub(crate) fn ask(
        self: &Arc<Ballot<T>>,
        executor: &Arc<Executor>,
        question: impl FnOnce() -> Result<Option<T>> + Send + 'static,
    ) where
        T: Send + 'static,
    {
        let round = Arc::clone(self);
        executor.run(move || {
            let answer = threads::survive("asking one of several servers", question);
            round.answered(answer.unwrap_or_else(|| Err(panicked())));
        });
    }

    /// What was answered with yes so far.
    pub(crate) fn take(&self) -> Vec<T> {
        match &mut *self.state.lock() {
            BallotState::Open(answers) => std::mem::take(&mut answers.yes),
            BallotState::Handed(..) | BallotState::Closed => Vec::new(),
        }
    }

    /// Hands whatever comes from now on to `late`, and what has come since it was decided.
    /// Who has not been asked yet is asked only while that is `wanted`.
    pub(crate) fn hand_over(
        &self,
        wanted: impl Fn() -> bool + Send + 'static,
        late: impl Fn(T) + Send + Sync + 'static,
    ) {
        let late: Late<T> = Arc::new(late);
        let handed = BallotState::Handed(Arc::clone(&late), Box::new(wanted));
        let before = std::mem::replace(&mut *self.state.lock(), handed);
        if let BallotState::Open(answers) = before {
            answers.yes.into_iter().for_each(|yes| late(yes));
        }
    }
}

fn timeout() -> Error {
    Error::new(ErrorKind::Timeout, "too few of the servers have answered in time")
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    const ACQUIRE: BallotLimits = BallotLimits { brief: Some(LONG), silence: LONG };
    const QUERY: BallotLimits = BallotLimits { brief: None, silence: LONG };

    fn round_of(size: usize, limits: BallotLimits, answers: &[Option<bool>]) -> Arc<Ballot<usize>> {
        let round = Ballot::new(size, size / 2 + 1, limits, &Arc::default());
        for (number, answer) in answers.iter().enumerate() {
            let yes = || Error::lost(LostReason::Gone, "any");
            round.answered(answer.map_or(Err(yes()), |yes| Ok(yes.then_some(number))));
        }
        round
    }

    fn round(answers: &[Option<bool>]) -> Arc<Ballot<usize>> {
        round_of(5, ACQUIRE, answers)
    }

    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);

    #[test]
    fn most_decide_and_nobody_waits_for_the_rest() {
        for limits in [ACQUIRE, QUERY] {
            let decide = |answers: &[_]| round_of(5, limits, answers).decide();
            assert!(decide(&[YES, NO, YES, NO, YES]).expect("decided"));
            assert!(decide(&[None, YES, YES, None, YES]).expect("decided"));
            assert!(!decide(&[NO, YES, NO, NO]).expect("decided"));
            assert!(!decide(&[None, NO, None, NO, NO]).expect("decided"));
            assert!(decide(&[None, YES, None, YES, None]).is_err());
        }
        assert!(!round(&[None, NO, None, YES, NO]).decide().expect("decided"));
    }

    #[test]
    fn a_round_of_which_most_is_known_ends_soon_and_a_silent_one_is_an_error() {
        let brief = Duration::from_millis(20);
        let soon = BallotLimits { brief: Some(brief), silence: LONG };
        let round = |answers: &[_]| round_of(5, soon, answers);
        assert!(!round(&[YES, YES, NO]).decide().expect("most have answered"));
        let silence = BallotLimits { brief: Some(brief), silence: brief };
        let round = |answers: &[_]| round_of(5, silence, answers);
        assert!(round(&[YES, YES]).decide().is_err_and(|error| error.is_timeout()));
        // A yes is impossible, but too few have answered for a no.
        assert!(round(&[None, NO, None, YES]).decide().is_err());
    }

    #[test]
    fn a_query_is_denied_only_by_so_many_that_no_majority_can_affirm_it() {
        let decided = |size, answers: &[_]| round_of(size, QUERY, answers).decided();
        assert!(decided(3, &[NO]).is_none() && decided(3, &[NO, YES]).is_none());
        assert!(decided(3, &[NO, None]).is_none() && decided(5, &[NO, NO, YES, YES]).is_none());
        assert!(matches!(decided(3, &[NO, NO]), Some(Ok(false))));
        // Two of four can never become three.
        assert!(matches!(decided(4, &[NO, NO]), Some(Ok(false))));
        // Nobody else answers, and neither side has enough.
        assert!(matches!(decided(3, &[NO, YES, None]), Some(Err(_))));
        let brief = Duration::from_millis(20);
        let hasty = BallotLimits { silence: brief, ..QUERY };
        let silent = round_of(3, hasty, &[NO, YES]).decide();
        assert!(silent.is_err_and(|error| error.is_timeout()));
    }

    #[test]
    fn what_comes_late_is_handed_over_or_dropped() {
        let won = round(&[YES, YES, YES]);
        assert!(won.decide().expect("decided"));
        assert_eq!(won.take(), [0, 1, 2]);
        won.answered(Ok(Some(3)));
        let (sender, receiver) = crossbeam_channel::unbounded();
        won.hand_over(|| false, move |late| sender.send(late).expect("it is received"));
        won.answered(Ok(Some(4)));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [3, 4]);
        let closed = round(&[NO, NO, NO]);
        assert!(!closed.decide().expect("decided"));
        assert!(won.is_wanted() != round(&[YES]).is_wanted() && !closed.is_wanted());
        closed.answered(Ok(Some(3)));
        assert!(closed.take().is_empty());
    }
}
