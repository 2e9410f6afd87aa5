//! A model of one channel and one waiting caller.
//!
//! The caller sleeps forever if it misses the only message. `acquire/model/messages.rs` runs whole
//! processes with the same channels and a listener, and lists the faults that it has caught.

use super::*;
use crate::util::model::{check, check_all};
use shuttle::thread;
use std::sync::atomic::AtomicBool;

/// A lock on a server, and whether its releases reach the channel.
///
/// Each action of the server is a single step for the model checker: the flags are atomics of the
/// standard library, at which the checker switches no threads.
struct Server {
    free: AtomicBool,
    subscribed: AtomicBool,
    channel: Arc<Channel>,
}

impl Server {
    fn new(subscription: SubscriptionState) -> Arc<Server> {
        let channel = Channels::default().channel("model");
        channel.set_subscription(subscription);
        let subscribed = AtomicBool::new(subscription == SubscriptionState::Subscribed);
        Arc::new(Server { free: AtomicBool::new(false), subscribed, channel })
    }

    /// Sends attempts until the lock is free, and sleeps between them.
    fn wait(&self) {
        let parker = Arc::default();
        let mut registration = None;
        loop {
            let before = self.channel.message_count();
            if self.free.load(Ordering::Acquire) {
                return;
            }
            let registration = registration.get_or_insert_with(|| self.channel.register(&parker));
            if registration.message_count() == before {
                parker.park_until(Moment::END);
            }
        }
    }

    fn release(&self) {
        self.free.store(true, Ordering::Release);
        if self.subscribed.load(Ordering::Acquire) {
            self.channel.notify();
        }
    }

    /// The listener: subscribes, loses its connection, and subscribes again.
    fn listen(&self) {
        self.subscribe();
        self.subscribed.store(false, Ordering::Release);
        self.channel.set_subscription(SubscriptionState::Unsubscribed);
        self.subscribe();
    }

    fn subscribe(&self) {
        self.channel.set_subscription(SubscriptionState::Requested);
        self.subscribed.store(true, Ordering::Release);
        self.channel.set_subscription(SubscriptionState::Subscribed);
    }
}

fn race<const N: usize>(server: &Arc<Server>, steps: [fn(&Server); N]) {
    let threads = steps.map(|step| {
        let server = Arc::clone(server);
        thread::spawn(move || step(&server))
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
    assert!(!server.channel.has_waiting_callers(), "no caller still waits");
}

#[test]
fn a_message_between_an_attempt_and_the_sleep_is_not_missed() {
    check_all(|| {
        race(&Server::new(SubscriptionState::Subscribed), [Server::wait, Server::release])
    });
}

#[test]
fn a_release_before_the_subscription_is_found_at_its_confirmation() {
    check(|| {
        let steps = [Server::wait, Server::release, Server::listen];
        race(&Server::new(SubscriptionState::Unsubscribed), steps);
    });
}
