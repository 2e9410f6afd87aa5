//! A server with a client of Redisson, for tests of semaphores and latches.

#![allow(unreachable_pub, reason = "the tests use a part")]

use crate::harness::faults::NEVER;
use crate::harness::{Server, eventually, redisson};
use crate::java::{Java, Ordered};

/// An id of 16 bytes, as the library makes them, and the same id as text for Java.
const ID: &str = "leasehold-permit";
pub const ID_FOR_JAVA: &str = "6c65617365686f6c642d7065726d6974";

/// A server and a client of Redisson.
pub struct Redisson {
    pub server: Server,
    pub java: Java,
}

impl Redisson {
    pub fn start() -> Option<Redisson> {
        let server = Server::start();
        let java = Java::start(&[&server], NEVER)?;
        Some(Redisson { server, java })
    }

    /// Gives orders to the thread with the name of the semaphore or latch, each with its answer.
    ///
    /// An order is written without the name: `try permits 1`.
    #[track_caller]
    pub fn answers(&self, name: &str, orders: &[(&str, &str)]) {
        for (order, expected) in orders {
            assert_eq!(self.does(name, order), *expected, "{order}");
        }
    }

    /// Gives an order to the thread with that name; blocks until its answer.
    #[track_caller]
    pub fn does(&self, name: &str, order: &str) -> String {
        self.java.does(name, &with_name(order, name))
    }

    /// Gives an order to the thread with that name, and returns the error.
    #[track_caller]
    pub fn fails(&self, name: &str, order: &str) -> String {
        let answer = self.java.order(name, &with_name(order, name)).answer();
        answer.expect_err("Redisson throws")
    }

    /// Gives an order that waits to a thread; blocks until the thread sleeps.
    pub fn waits(&self, thread: &str, order: &str, name: &str) -> Ordered {
        let ordered = self.java.order(thread, &with_name(order, name));
        eventually("Java waits", || self.java.is_parked(thread));
        ordered
    }

    /// Returns the number of calls of scripts.
    pub fn calls(&self) -> u64 {
        self.server.calls("evalsha")
    }

    pub fn set(&self, name: &str, value: &str) {
        self.server.ask::<()>(&["SET", name, value]);
    }

    pub fn value(&self, name: &str) -> Option<i64> {
        self.server.ask(&["GET", name])
    }

    pub fn publish(&self, channel: &str, payload: &str) {
        assert_eq!(self.server.ask::<usize>(&["PUBLISH", channel, payload]), 1, "Java listens");
    }

    /// Adds a permit with our id, which never expires, to a semaphore.
    pub fn add_ours(&self, name: &str) {
        let (timeouts, never) = (format!("{{{name}}}:timeout"), redisson::NEVER.to_string());
        assert_eq!(self.server.ask::<usize>(&["ZADD", &timeouts, &never, ID]), 1);
    }
}

/// Returns the order with the name behind its kind.
pub fn with_name(order: &str, name: &str) -> String {
    let mut words: Vec<&str> = order.split(' ').collect();
    words.insert(2, name);
    words.join(" ")
}

/// Returns the channel of the kind that the order names.
pub fn channel_of(order: &str, name: &str) -> String {
    match order.split(' ').nth(1) {
        Some("latch") => latch_channel(name),
        _ => permits_channel(name),
    }
}

pub fn permits_channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

pub fn latch_channel(name: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{name}}}")
}

/// Ends the test early without Java.
macro_rules! with_java {
    ($redisson:expr) => {
        match $redisson {
            Some(redisson) => redisson,
            None => return,
        }
    };
}
pub(crate) use with_java;
