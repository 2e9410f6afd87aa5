//! A model of one channel and one waiter, who sleeps for ever if it misses the one
//! thing that it has to hear. (`acquire/model/messages.rs` has whole processes.)
//!
//! Faults that it was seen to catch: see `acquire/model/messages.rs`, which runs the same
//! channels with a listener.

use super::*;
use crate::util::model::{check, check_all};
use shuttle::thread;
use std::sync::atomic::AtomicBool;

/// A lock on a server, and whether its releases are announced to the channel. What
/// the server does is a single step, so it is made of no primitive of `sync.rs`.
struct Server {
    free: AtomicBool,
    subscribed: AtomicBool,
    channel: Arc<Channel>,
}

impl Server {
    fn new(subscription: SubscriptionState) -> Arc<Server> {
        let channel = Waiters::default().channel("model");
        channel.set_hearing(subscription);
        let subscribed = AtomicBool::new(subscription == SubscriptionState::Everything);
        Arc::new(Server { free: AtomicBool::new(false), subscribed, channel })
    }

    /// Asks until the lock is free, and sleeps in between.
    fn wait(&self) {
        let parker = Arc::default();
        let mut waiting = None;
        loop {
            let since = self.channel.messages();
            if self.free.load(Ordering::Acquire) {
                return;
            }
            let waiting = waiting.get_or_insert_with(|| self.channel.wait(&parker));
            if waiting.messages() == since {
                parker.park_until(Moment::END);
            }
        }
    }

    fn release(&self) {
        self.free.store(true, Ordering::Release);
        if self.subscribed.load(Ordering::Acquire) {
            self.channel.message();
        }
    }

    /// What the listener does; nothing is heard while it is not connected.
    fn listen(&self) {
        self.subscribe();
        self.subscribed.store(false, Ordering::Release);
        self.channel.set_hearing(SubscriptionState::Nothing);
        self.subscribe();
    }

    fn subscribe(&self) {
        self.channel.set_hearing(SubscriptionState::Asked);
        self.subscribed.store(true, Ordering::Release);
        self.channel.set_hearing(SubscriptionState::Everything);
    }
}

fn race<const N: usize>(server: &Arc<Server>, steps: [fn(&Server); N]) {
    let threads = steps.map(|step| {
        let server = Arc::clone(server);
        thread::spawn(move || step(&server))
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
    assert!(!server.channel.is_waited_for(), "nobody is left behind");
}

#[test]
fn a_message_between_a_question_and_the_sleep_is_not_missed() {
    check_all(|| {
        race(&Server::new(SubscriptionState::Everything), [Server::wait, Server::release])
    });
}

#[test]
fn a_release_that_was_not_announced_is_found_when_the_subscription_is_confirmed() {
    check(|| {
        let steps = [Server::wait, Server::release, Server::listen];
        race(&Server::new(SubscriptionState::Nothing), steps);
    });
}
