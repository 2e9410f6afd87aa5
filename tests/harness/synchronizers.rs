//! Semaphores and latches for tests that treat them alike: taken, awaited, and free again.

use super::{Server, eventually, join};
use leasehold::{Client, Error, Events, Result, Waited};
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

/// A kind of semaphore or latch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Synchronizer {
    Semaphore,
    PlainSemaphore,
    Latch,
}

use Synchronizer::{Latch, PlainSemaphore, Semaphore};

pub const SYNCHRONIZERS: [Synchronizer; 3] = [Semaphore, PlainSemaphore, Latch];

/// A thread that waits for a semaphore or a latch.
#[derive(Debug)]
pub struct SynchronizerWaiter(JoinHandle<Result<()>>);

impl SynchronizerWaiter {
    pub fn still_waits(&self) {
        assert!(!self.0.is_finished(), "the wait has ended");
    }

    /// Blocks until the wait ends.
    pub fn ends(self) {
        join(self.0).expect("a reply");
    }

    /// Blocks until the wait ends, and returns its error.
    pub fn fails(self) -> Error {
        join(self.0).expect_err("the wait ends with an error")
    }
}

impl Synchronizer {
    /// Returns the channel of a name without braces.
    pub fn channel(self, name: &str) -> String {
        match self {
            Semaphore | PlainSemaphore => format!("redisson_sc:{{{name}}}"),
            Latch => format!("redisson_countdownlatch__channel__{{{name}}}"),
        }
    }

    /// Makes callers wait: leaves no permit free, or sets a count. The permit of a semaphore is one
    /// of Redisson that never expires.
    pub fn occupy(self, server: &Server, name: &str) {
        match self {
            Semaphore => {
                server.ask::<()>(&["SET", name, "0"]);
                let never = super::redisson::NEVER.to_string();
                server.ask::<()>(&["ZADD", &format!("{{{name}}}:timeout"), &never, "java"]);
            }
            PlainSemaphore => server.ask::<()>(&["SET", name, "0"]),
            Latch => server.ask::<()>(&["SET", name, "1"]),
        }
    }

    /// Ends what `occupy` began, without a message.
    pub fn free_silently(self, server: &Server, name: &str) {
        match self {
            Semaphore => {
                // In one step: a semaphore without permits ends the wait with an error.
                let free = "redis.call('del', KEYS[2]) redis.call('incr', KEYS[1])";
                let expiries = format!("{{{name}}}:timeout");
                server.ask::<()>(&["EVAL", free, "2", name, &expiries]);
            }
            PlainSemaphore => server.ask::<()>(&["INCR", name]),
            Latch => server.ask::<()>(&["DEL", name]),
        }
    }

    /// Ends what `occupy` began, and tells it on the channel.
    pub fn free(self, server: &Server, name: &str) {
        self.free_silently(server, name);
        let payload = if self == Latch { "0" } else { "1" };
        server.ask::<()>(&["PUBLISH", &self.channel(name), payload]);
    }

    /// Waits in a thread, and gives a permit back at once.
    pub fn wait(self, client: &Client, name: &str) -> SynchronizerWaiter {
        let (client, name) = (client.clone(), name.to_owned());
        let wait = move || match self {
            Semaphore => client.semaphore(name).acquire()?.release(),
            PlainSemaphore => {
                let semaphore = client.plain_semaphore(name);
                semaphore.acquire(1)?;
                semaphore.release(1)
            }
            Latch => client.latch(name).wait(),
        };
        SynchronizerWaiter(thread::spawn(wait))
    }

    /// Waits in a thread; blocks until the thread is subscribed.
    pub fn wait_subscribed(
        self,
        server: &Server,
        client: &Client,
        name: &str,
    ) -> SynchronizerWaiter {
        let waiter = self.wait(client, name);
        let channel = self.channel(name);
        eventually("the waiter is subscribed", || server.numsub(&channel) > 0);
        waiter
    }
}

/// Receives the waits of a handle.
#[derive(Debug, Default)]
pub struct WaitLog(Mutex<Vec<Waited>>);

impl Events for WaitLog {
    fn waited(&self, event: &Waited) {
        self.0.lock().expect("no panic").push(event.clone());
    }
}

impl WaitLog {
    /// Blocks until a wait is reported, and returns it. Asserts that there is no other.
    #[track_caller]
    pub fn only(&self) -> Waited {
        let seen = || self.0.lock().expect("no panic").clone();
        eventually("the wait is reported", || !seen().is_empty());
        assert_eq!(seen().len(), 1, "{:?}", seen());
        seen().remove(0)
    }
}
