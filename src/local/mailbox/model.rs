//! A model of one mailbox: a caller in its loop, and threads that post news.
//!
//! The caller sleeps forever if news is lost or comes without a wake-up.
//!
//! Faults that were put into the code for a trial, and that the model caught:
//!
//! * News wakes the caller before it is posted.
//! * The beginning of a question takes a grant too.
//! * The request to ask replaces a grant.

use super::*;
use crate::transport::topology::route::Generation;
use crate::util::clock::Moment;
use crate::util::model::check;
use shuttle::thread;
use std::time::Duration;

fn grant(token: u64) -> WaiterGrant {
    let (lease, generation) = (Duration::from_secs(9), Generation::default());
    WaiterGrant { token, lease, sent: Moment::START, generation }
}

/// Looks, asks and sleeps until a grant comes, as the loop of a call does. Returns its token.
fn wait_for_grant(mailbox: &Mailbox) -> u64 {
    loop {
        match mailbox.take() {
            News::Granted(grant) => return grant.token,
            News::Ask => mailbox.begin_question(),
            News::None => mailbox.parker().park_until(Moment::END),
            News::HandedOff(_) => unreachable!("nobody hands a hold off"),
        }
    }
}

#[test]
fn a_grant_reaches_its_caller_beside_requests_to_ask() {
    check(|| {
        let mailbox = Mailbox::mine();
        let [asking, granting] = [(); 2].map(|()| Arc::clone(&mailbox));
        let asks = thread::spawn(move || asking.ask());
        let grants = thread::spawn(move || granting.grant(grant(5)));
        assert_eq!(wait_for_grant(&mailbox), 5);
        [asks, grants].into_iter().for_each(|it| it.join().expect("no thread of a model panics"));
    });
}

/// The reply that ends the first grant and the message of the second come at the same time.
#[test]
fn the_end_of_a_grant_ends_no_later_one() {
    check(|| {
        let mailbox = Mailbox::mine();
        mailbox.grant(grant(5));
        let [ending, granting] = [(); 2].map(|()| Arc::clone(&mailbox));
        let ends = thread::spawn(move || ending.end_grants(5));
        let grants = thread::spawn(move || granting.grant(grant(6)));
        [ends, grants].into_iter().for_each(|it| it.join().expect("no thread of a model panics"));
        assert_eq!(wait_for_grant(&mailbox), 6);
    });
}
