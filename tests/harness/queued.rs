//! Callers that wait for queue locks, and questions about their queues.

use super::bare;
pub use super::bare::load_scripts;
pub use super::details::wake_channel;
use super::faults::patient;
use super::wait::BOUND;
use super::{Server, eventually};
use crossbeam_channel::{Receiver, Sender, unbounded};
use leasehold::{Builder, Client, Error, QueueLock, Result};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A short poll interval: a lost message costs at most this time.
pub const POLL: Duration = Duration::from_millis(100);

/// The grant lease of a client with this poll interval.
pub const GRANT_LEASE: Duration = Duration::from_secs(2);

/// Returns the settings of `patient` with a short poll interval.
pub fn polling(url: impl Into<String>) -> Builder {
    patient(url).poll_interval(POLL)
}

pub fn queue_key(name: &str) -> String {
    format!("leasehold_queue:{{{name}}}")
}

pub fn clients_key(name: &str) -> String {
    format!("leasehold_alive:{{{name}}}")
}

pub fn token_key(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// Returns the owner fields of the waiting calls, the best first.
pub fn queue(server: &Server, name: &str) -> Vec<String> {
    server.ask(&["ZRANGE", &queue_key(name), "0", "-1"])
}

/// Returns the owner fields and the places of the waiting calls, the best first.
pub fn places(server: &Server, name: &str) -> Vec<(String, String)> {
    server.ask(&["ZRANGE", &queue_key(name), "0", "-1", "WITHSCORES"])
}

/// Returns the number of waiting calls; 0 if the server does not run.
pub fn queue_length(server: &Server, name: &str) -> usize {
    server.try_ask(&["ZCARD", &queue_key(name)]).unwrap_or(0)
}

pub fn is_listening(server: &Server, client: &Client) -> bool {
    server.numsub(&wake_channel(client.id())) == 1
}

/// Publishes a message on the control channel of a client; blocks until its listener has read it.
///
/// The name of a channel is a request to subscribe to it.
#[track_caller]
pub fn hear(server: &Server, client: &Client, message: &str) {
    let control = wake_channel(client.id());
    for message in [message, "behind it"] {
        assert_eq!(server.ask::<usize>(&["PUBLISH", &control, message]), 1, "nobody listens");
    }
    eventually("the message is read", || server.numsub("behind it") > 0);
}

/// Returns the token that was handed out last.
pub fn last_token(server: &Server, name: &str) -> u64 {
    server.ask(&["GET", &token_key(name)])
}

/// Queues a call for the lock `a` with a number that belongs to no call of the client. Returns its
/// owner field. The grant lease lasts for minutes.
pub fn queue_ended_call(server: &Server, client: &Client) -> String {
    let acquire = bare::digest("queue_acquire");
    let keys = ["a".to_owned(), queue_key("a"), clients_key("a"), token_key("a")];
    let owner = format!("{}:{}", client.id(), 1);
    let mut words = vec!["EVALSHA", &acquire, "4"];
    words.extend(keys.iter().map(String::as_str));
    words.extend(["120000", &owner, "120000", "single", "0", ""]);
    let reply: Vec<i64> = server.ask(&words);
    assert!(reply[2] > 0, "the call is not queued: {reply:?}");
    owner
}

/// Blocks until the server has no keys but token counters.
#[track_caller]
pub fn only_tokens_are_left(server: &Server) {
    eventually("only token counters are left", || {
        server.keys().iter().all(|key| key.starts_with("redisson_lock_token:"))
    });
}

/// A thread that waits for a queue lock, and holds the lock until `releases`.
#[derive(Debug)]
pub struct QueueWaiter {
    got: Receiver<u64>,
    release: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl QueueWaiter {
    /// Starts a waiter; blocks until the queue has one caller more, and all its clients listen.
    ///
    /// A client that does not listen yet is passed over.
    #[track_caller]
    pub fn queued(server: &Server, lock: &QueueLock) -> QueueWaiter {
        let waiter = QueueWaiter::placed(server, lock);
        let listens = |owner: &String| server.numsub(&wake_channel(&owner[..36])) == 1;
        eventually("the clients listen", || queue(server, lock.name()).iter().all(listens));
        waiter
    }

    /// Starts a waiter; blocks until the queue has one caller more.
    #[track_caller]
    pub fn placed(server: &Server, lock: &QueueLock) -> QueueWaiter {
        let before = queue_length(server, lock.name());
        let waiter = QueueWaiter::spawn(lock);
        eventually("the waiter is in the queue", || queue_length(server, lock.name()) > before);
        waiter
    }

    /// Starts a waiter without blocking.
    pub fn spawn(lock: &QueueLock) -> QueueWaiter {
        let lock = lock.clone();
        let (granted, got) = unbounded();
        let (release, released) = unbounded();
        let thread = thread::spawn(move || {
            let guard = lock.lock()?;
            granted.send(guard.token()).expect("the test runs");
            released.recv().expect("the test calls releases");
            guard.unlock()
        });
        QueueWaiter { got, release, thread }
    }

    /// Asserts that the waiter does not have the lock.
    #[track_caller]
    pub fn still_waits(&self) {
        assert!(self.got.is_empty() && !self.thread.is_finished(), "two hold the lock");
    }

    /// Blocks until the waiter has the lock, and returns its token.
    #[track_caller]
    pub fn gets_it(&self) -> u64 {
        self.got.recv_timeout(BOUND).expect("the waiter gets the lock")
    }

    /// Makes the waiter release the lock, and joins its thread.
    #[track_caller]
    pub fn releases(self) {
        self.release.send(()).expect("the waiter holds the lock");
        self.outcome().expect("the lock is held until its release");
    }

    /// Blocks until the call ends without the lock, and returns its error.
    #[track_caller]
    pub fn fails(self) -> Error {
        self.outcome().expect_err("the call ends without the lock")
    }

    #[track_caller]
    fn outcome(self) -> Result<()> {
        eventually("the thread ends", || self.thread.is_finished());
        self.thread.join().expect("no panic")
    }
}

/// Asserts that the waiters get the lock one after the other, with growing tokens.
#[track_caller]
pub fn get_it_in_order(waiters: impl IntoIterator<Item = QueueWaiter>) {
    let mut waiters = waiters.into_iter().collect::<Vec<_>>().into_iter();
    let mut last_token = 0;
    while let Some(waiter) = waiters.next() {
        let token = waiter.gets_it();
        assert!(token > last_token, "token {token} after {last_token}");
        last_token = token;
        for behind in waiters.as_slice() {
            behind.still_waits();
        }
        waiter.releases();
    }
}
