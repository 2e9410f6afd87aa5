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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::aside::Aside;
use crate::error::{Error, ErrorKind, Result};
use crate::release::Hold;
use crate::request::panicked;
use crate::sync::{Mailbox, Mutex};
use crate::thread;
use crate::time::{self, Moment};

/// How long a round goes on that most have answered and that is not decided: the others'
/// answers are worth no more than another round.
const SHORT: Duration = Duration::from_millis(200);

/// The part of a lease that this may take at most.
const PART: u32 = 10;

/// How often it is looked whether a hold is still being extended.
const LOOK: Duration = Duration::from_millis(1);

/// Holds on servers, of which so many have to be valid.
#[derive(Debug)]
pub(crate) struct Majority {
    quorum: usize,
    /// It was seen not to count any more, which is final.
    lost: AtomicBool,
    members: Mutex<Members>,
}

#[derive(Debug)]
struct Members {
    holds: Vec<Arc<Hold>>,
    /// What was asked of all since they were granted, those too that come late.
    lasts: Moment,
    renewed: bool,
}

impl Majority {
    pub(crate) fn new(quorum: usize, holds: Vec<Hold>) -> Majority {
        let holds = holds.into_iter().map(Arc::new).collect();
        let members = Mutex::new(Members { holds, lasts: Moment::START, renewed: false });
        Majority { quorum, lost: AtomicBool::new(false), members }
    }

    pub(crate) fn quorum(&self) -> usize {
        self.quorum
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.remaining().is_zero() {
            true => Err(Error::lost("the leases on too many servers were lost")),
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
            self.lose();
        }
        left
    }

    /// It does not count any more.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        let rest = self.take();
        if let Some(aside) = rest.first().map(|hold| hold.aside()) {
            aside.run(move || drop(rest));
        }
    }

    /// Takes in a hold that was granted late, if the others still count. One that does not
    /// is given back: to be dropped with no lock held.
    pub(crate) fn adopt(&self, hold: Hold) -> Option<Hold> {
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
        let lease = time::now().until(lasts);
        if hold.remaining() < lease {
            let (aside, hold) = (hold.aside(), Arc::downgrade(&hold));
            // Who ends the whole does not wait for that to begin. If it fails, the hold lasts as
            // long as it was granted for.
            aside.run(move || drop(hold.upgrade().map(|hold| hold.extend(lease))));
        }
        None
    }

    pub(crate) fn watch(&self, mailbox: &Arc<Mailbox>) {
        self.all().iter().for_each(|hold| hold.lease().watch(mailbox));
    }

    fn all(&self) -> Vec<Arc<Hold>> {
        self.members.lock().holds.clone()
    }

    /// All holds, to be extended; as those will be that come late.
    pub(crate) fn all_for(&self, lease: Duration) -> Vec<Arc<Hold>> {
        let mut members = self.members.lock();
        members.lasts = members.lasts.max(time::now() + lease);
        members.holds.clone()
    }

    /// Has all holds renewed from now on, and those that come late.
    pub(crate) fn keep_renewed(&self) {
        self.members.lock().renewed = true;
        self.all().iter().for_each(|hold| hold.keep_renewed());
    }

    /// Whether any would be over before such a lease.
    pub(crate) fn needs(&self, lease: Duration) -> bool {
        self.all().iter().any(|hold| hold.needs(lease))
    }

    /// All holds, to be ended.
    pub(crate) fn take(&self) -> Vec<Arc<Hold>> {
        std::mem::take(&mut self.members.lock().holds)
    }
}

/// A hold that was taken, once nobody is extending it any more.
pub(crate) fn alone(hold: Arc<Hold>) -> Hold {
    let mut hold = hold;
    loop {
        match Arc::try_unwrap(hold) {
            Ok(hold) => return hold,
            Err(shared) => hold = shared,
        }
        Mailbox::default().sleep(time::now() + LOOK);
    }
}

/// What is left of the lease that is the quorum's last.
fn remaining(holds: &[Arc<Hold>], quorum: usize) -> Duration {
    let mut left: Vec<_> = holds.iter().map(|hold| hold.remaining()).collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    left.get(quorum - 1).copied().unwrap_or_default()
}

/// One question to all servers.
pub(crate) struct Round<T> {
    size: usize,
    quorum: usize,
    mailbox: Arc<Mailbox>,
    state: Mutex<State<T>>,
}

enum State<T> {
    Open(Answers<T>),
    /// Late answers go there, as long as they are wanted.
    Handed(Late<T>, Wanted),
    /// Nobody wants them any more.
    Closed,
}

type Late<T> = Arc<dyn Fn(T) + Send + Sync>;
type Wanted = Box<dyn Fn() -> bool + Send>;

/// What the servers have said.
struct Answers<T> {
    yes: Vec<T>,
    no: usize,
    errors: Vec<Error>,
}

impl<T> Round<T> {
    /// A round of so many servers, of which so many have to say yes. The caller's mailbox is
    /// rung at each answer.
    pub(crate) fn new(size: usize, quorum: usize, mailbox: &Arc<Mailbox>) -> Arc<Round<T>> {
        let open = State::Open(Answers { yes: Vec::new(), no: 0, errors: Vec::new() });
        Arc::new(Round { size, quorum, mailbox: Arc::clone(mailbox), state: Mutex::new(open) })
    }

    /// Whether it is of any use to ask yet.
    pub(crate) fn is_wanted(&self) -> bool {
        match &*self.state.lock() {
            State::Open(_) => true,
            State::Handed(_, wanted) => wanted(),
            State::Closed => false,
        }
    }

    /// A server has answered: with something, with no, or not at all.
    pub(crate) fn answered(&self, answer: Result<Option<T>>) {
        let mut state = self.state.lock();
        let late = match &mut *state {
            State::Open(answers) => {
                match answer {
                    Ok(Some(yes)) => answers.yes.push(yes),
                    Ok(None) => answers.no += 1,
                    Err(error) => answers.errors.push(error),
                }
                drop(state);
                return self.mailbox.ring();
            }
            State::Handed(late, _) => Some(Arc::clone(late)),
            State::Closed => None,
        };
        drop(state);
        // What nobody wants is released here, with no lock held.
        if let (Some(late), Ok(Some(yes))) = (late, answer) {
            late(yes);
        }
    }

    /// Waits until it is decided whether enough say yes: for `silence` at most, and shorter
    /// once most have answered. After a no, or an error, it is closed.
    pub(crate) fn decide(&self, lease: Duration, silence: Duration) -> Result<bool> {
        let (begun, short) = (time::now(), SHORT.min(lease / PART).min(silence));
        loop {
            if let Some(decided) = self.look(begun.until(time::now()), short, silence) {
                if !matches!(decided, Ok(true)) {
                    self.close();
                }
                return decided;
            }
            let next = if begun + short <= time::now() { silence } else { short };
            self.mailbox.sleep(begun + next);
        }
    }

    /// What it has come to after so long, if it is decided.
    fn look(&self, passed: Duration, short: Duration, silence: Duration) -> Option<Result<bool>> {
        let state = self.state.lock();
        let State::Open(answers) = &*state else { return Some(Ok(false)) };
        let (yes, no, failed) = (answers.yes.len(), answers.no, answers.errors.len());
        let silent = || Err(answers.errors.first().cloned().unwrap_or_else(silent));
        let (impossible, most) = (self.size - no - failed < self.quorum, yes + no >= self.quorum);
        if yes >= self.quorum {
            Some(Ok(true))
        } else if failed > self.size - self.quorum {
            Some(silent())
        } else if most && (impossible || passed >= short) {
            Some(Ok(false))
        } else {
            (passed >= silence).then(silent)
        }
    }

    /// Has whoever answers from now on keep it.
    pub(crate) fn close(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Closed);
        // Holds are released with no lock held.
        drop(before);
    }

    /// Has a server asked aside, and takes in its answer.
    pub(crate) fn ask(
        self: &Arc<Round<T>>,
        aside: &Arc<Aside>,
        question: impl FnOnce() -> Result<Option<T>> + Send + 'static,
    ) where
        T: Send + 'static,
    {
        let round = Arc::clone(self);
        aside.run(move || {
            let answer = thread::survive("asking one of several servers", question);
            round.answered(answer.unwrap_or_else(|| Err(panicked())));
        });
    }

    /// What was answered with yes so far.
    pub(crate) fn take(&self) -> Vec<T> {
        match &mut *self.state.lock() {
            State::Open(answers) => std::mem::take(&mut answers.yes),
            State::Handed(..) | State::Closed => Vec::new(),
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
        let handed = State::Handed(Arc::clone(&late), Box::new(wanted));
        let before = std::mem::replace(&mut *self.state.lock(), handed);
        if let State::Open(answers) = before {
            answers.yes.into_iter().for_each(|yes| late(yes));
        }
    }
}

fn silent() -> Error {
    Error::new(ErrorKind::Connection, "too few of the servers have answered in time")
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn round(answers: &[Option<bool>]) -> Arc<Round<usize>> {
        let round = Round::new(5, 3, &Arc::default());
        for (number, answer) in answers.iter().enumerate() {
            let yes = || Error::lost("any");
            round.answered(answer.map_or(Err(yes()), |yes| Ok(yes.then_some(number))));
        }
        round
    }

    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);

    #[test]
    fn most_decide_and_nobody_waits_for_the_rest() {
        assert!(round(&[YES, NO, YES, NO, YES]).decide(LONG, LONG).expect("decided"));
        assert!(round(&[None, YES, YES, None, YES]).decide(LONG, LONG).expect("decided"));
        assert!(!round(&[NO, YES, NO, NO]).decide(LONG, LONG).expect("decided"));
        assert!(!round(&[None, NO, None, YES, NO]).decide(LONG, LONG).expect("decided"));
        assert!(round(&[None, YES, None, YES, None]).decide(LONG, LONG).is_err());
    }

    #[test]
    fn a_round_of_which_most_is_known_ends_soon_and_a_silent_one_is_an_error() {
        let brief = Duration::from_millis(20);
        assert!(!round(&[YES, YES, NO]).decide(brief, LONG).expect("most have answered"));
        let silent = round(&[YES, YES]).decide(LONG, brief);
        assert!(silent.is_err_and(|error| error.is_connection()));
        // A yes is impossible, but too few have answered for a no.
        assert!(round(&[None, NO, None, YES]).decide(LONG, brief).is_err());
    }

    #[test]
    fn what_comes_late_is_handed_over_or_dropped() {
        let won = round(&[YES, YES, YES]);
        assert!(won.decide(LONG, LONG).expect("decided"));
        assert_eq!(won.take(), [0, 1, 2]);
        won.answered(Ok(Some(3)));
        let (sender, receiver) = crossbeam_channel::unbounded();
        won.hand_over(|| false, move |late| sender.send(late).expect("it is received"));
        won.answered(Ok(Some(4)));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [3, 4]);
        let closed = round(&[NO, NO, NO]);
        assert!(!closed.decide(LONG, LONG).expect("decided"));
        assert!(won.is_wanted() != round(&[YES]).is_wanted() && !closed.is_wanted());
        closed.answered(Ok(Some(3)));
        assert!(closed.take().is_empty());
    }
}
