//! A model of the permit queue of one process, and of a server that counts permits.
//!
//! A caller sleeps forever if an offer of enough permits is lost. Most callers wait until they have
//! their permits; some leave before. The messages of the server may be late.
//!
//! Faults that were put into the code for a trial, and that the model caught:
//!
//! * An offer ends at the first caller whose request does not fit.
//! * A caller that leaves with a wake-up, or before the reply to its question, keeps the wake-up.
//! * A caller joins after its first question.
//! * A question ends all wake-ups since its beginning.
//! * The reply to a refused caller offers nothing to the others.
//! * A message wakes nobody if no request fits.

use super::*;
use crate::local::permits::PermitCallers;
use crate::transport::listener::channels::Channels;
use crate::util::model::check;
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::thread::{self, JoinHandle};

/// A semaphore on a server, and the callers of this process.
///
/// Each action of the server is one change of an atomic, before which the checker may switch the
/// thread.
struct Semaphore {
    free: AtomicU32,
    callers: Arc<PermitCallers>,
}

/// The end of a caller that does not wait for its permits.
#[derive(Clone, Copy)]
enum Leaves {
    /// After a refusal, with a wake-up or without one.
    Refused,
    /// Before the reply to its question, which has not reached the server.
    Asking,
}

impl Semaphore {
    fn new() -> Arc<Semaphore> {
        let callers = PermitCallers::on(Channels::default().channel("model"));
        Arc::new(Semaphore { free: AtomicU32::new(0), callers })
    }

    /// Takes permits, all or none. Returns whether they are taken, and the number of free permits.
    fn take(&self, permits: u32) -> (bool, u32) {
        let take = |free: u32| free.checked_sub(permits);
        match self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
            Ok(before) => (true, before - permits),
            Err(free) => (false, free),
        }
    }

    /// Asks for permits until they are taken, as the loop of a call does.
    fn acquire(&self, permits: u32) {
        let mailbox = Mailbox::mine();
        let place = self.callers.join(waiter(permits, &mailbox));
        loop {
            place.begin_question();
            let (is_taken, left) = self.take(permits);
            place.end_question();
            if is_taken {
                drop(place);
                return self.callers.offer(left);
            }
            self.callers.offer(left);
            while !mailbox.must_ask() {
                mailbox.parker().park_until(Moment::END);
            }
        }
    }

    /// Joins the callers, and leaves without permits.
    fn leave(&self, permits: u32, leaves: Leaves) {
        let place = self.callers.join(waiter(permits, &Mailbox::mine()));
        place.begin_question();
        if let Leaves::Refused = leaves {
            let (is_taken, left) = self.take(permits);
            place.end_question();
            if is_taken {
                self.give(permits);
            }
            self.callers.offer(left);
        }
    }

    /// Gives permits back. The message tells how many are free.
    fn give(&self, permits: u32) {
        let free = self.free.fetch_add(permits, Ordering::AcqRel) + permits;
        self.callers.channel().message(free.to_string().as_bytes());
    }

    /// Gives permits back as Redisson does at times: the message tells how many those are.
    fn give_as_redisson(&self, permits: u32) {
        self.free.fetch_add(permits, Ordering::AcqRel);
        self.callers.channel().message(permits.to_string().as_bytes());
    }
}

fn waiter(permits: u32, mailbox: &Arc<Mailbox>) -> PermitWaiter {
    PermitWaiter { permits, since: Moment::START, mailbox: Arc::clone(mailbox), claimant: None }
}

fn start(
    semaphore: &Arc<Semaphore>,
    step: impl FnOnce(&Semaphore) + Send + 'static,
) -> JoinHandle<()> {
    let semaphore = Arc::clone(semaphore);
    thread::spawn(move || step(&semaphore))
}

fn join_all(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
}

fn assert_nobody_waits(semaphore: &Semaphore) {
    assert!(!semaphore.callers.await_permits(), "a caller still waits");
}

#[test]
fn callers_for_one_permit_do_not_sleep_behind_a_caller_for_many() {
    check(|| {
        let semaphore = Semaphore::new();
        let large = start(&semaphore, |it| it.acquire(3));
        let small = [(); 2].map(|()| start(&semaphore, |it| it.acquire(1)));
        let given = [(); 2].map(|()| start(&semaphore, |it| it.give(1)));
        // The permits suffice for the small requests only.
        join_all(small);
        join_all(given);
        semaphore.give(3);
        join_all([large]);
        assert_nobody_waits(&semaphore);
    });
}

#[test]
fn one_message_wakes_all_callers_that_fit() {
    check(|| {
        let semaphore = Semaphore::new();
        let callers = [2, 1, 1].map(|permits| start(&semaphore, move |it| it.acquire(permits)));
        semaphore.give(4);
        join_all(callers);
        assert_nobody_waits(&semaphore);
    });
}

#[test]
fn a_caller_that_leaves_keeps_no_other_caller_asleep() {
    check(|| leave_beside_a_waiting_caller(Leaves::Refused));
}

#[test]
fn a_caller_that_leaves_before_its_reply_keeps_no_other_caller_asleep() {
    check(|| leave_beside_a_waiting_caller(Leaves::Asking));
}

fn leave_beside_a_waiting_caller(how: Leaves) {
    let semaphore = Semaphore::new();
    let leaving = start(&semaphore, move |it| it.leave(1, how));
    let waiting = start(&semaphore, |it| it.acquire(1));
    semaphore.give(1);
    join_all([leaving, waiting]);
    assert_nobody_waits(&semaphore);
}

/// Another process takes a permit without a message, so the request for three is refused.
#[test]
fn a_refused_caller_leaves_the_other_permits_to_a_caller_that_fits() {
    check(|| {
        let semaphore = Semaphore::new();
        let [large, small] = [3, 2].map(|permits| start(&semaphore, move |it| it.acquire(permits)));
        let server = Arc::clone(&semaphore);
        let other = thread::spawn(move || server.take(1).0);
        semaphore.give(3);
        let is_taken = other.join().expect("no thread of a model panics");
        if is_taken {
            // Two permits are left.
            join_all([small]);
            semaphore.give(3);
            join_all([large]);
        } else {
            semaphore.give(3);
            join_all([large, small]);
        }
        assert_nobody_waits(&semaphore);
    });
}

#[test]
fn messages_of_redisson_about_too_few_permits_wake_a_caller_for_many() {
    check(|| {
        let semaphore = Semaphore::new();
        let large = start(&semaphore, |it| it.acquire(2));
        let given = [(); 2].map(|()| start(&semaphore, |it| it.give_as_redisson(1)));
        join_all(given);
        join_all([large]);
        assert_nobody_waits(&semaphore);
    });
}
