//! The door: a client and its locks.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::config::Builder;
use crate::engine::Engine;
use crate::error::Result;
use crate::lock::{FairLock, FencedLock, Lock, SpinLock};
use crate::red_lock::RedLock;
use crate::rw_lock::RwLock;

/// A connection to the server that keeps the locks, and where locks are made.
///
/// A cheap clone of one shared thing: connections, the watchdog and the listener.
/// One per process and server is enough for any number of threads. Its clones, its
/// locks and its guards keep it alive. When the last clone is dropped, it waits for
/// releases that are still owed, one response time-out at most; locks and guards that
/// live on go on working, and are renewed.
///
/// Not for use in a forked child: with a client that was made before the fork, all that
/// would speak with the server is an error there. A guard's looks at itself, and
/// re-entry, are those of the parent's thread.
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
    door: Arc<Door>,
}

/// Shared by the clones of a client, but not by what it made.
struct Door(Arc<Engine>);

impl Drop for Door {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl Client {
    /// Connects to one server, with default settings.
    ///
    /// Blocks for one connect and one response time-out at most. For the forms of
    /// the URL see [`Builder::single`].
    ///
    /// # Errors
    /// [`is_configuration`](crate::Error::is_configuration) for a URL that cannot be
    /// used; [`is_connection`](crate::Error::is_connection) if the server cannot be
    /// reached or gives no proper answer; [`is_server`](crate::Error::is_server) if it
    /// refuses the user, the password or the protocol.
    pub fn open(url: impl AsRef<str>) -> Result<Client> {
        Client::builder().single(url.as_ref()).build()
    }

    /// Returns a builder for a client with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the re-entrant lock of that name: no round trip.
    ///
    /// The name is the key in Redis, behind the client's
    /// [prefix](Builder::name_prefix), and shared with Redisson's `getLock(name)`. It
    /// must not be empty; braces in it must be a hash tag, as in `"a{b}c"`.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the lock of that name that is granted in the order in which it was asked
    /// for, by threads, processes and languages: no round trip. Redisson's `getFairLock`.
    pub fn fair_lock(&self, name: impl Into<String>) -> FairLock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the lock of that name whose guards have a [fencing token](crate::Guard::token): no
    /// round trip. Redisson's `getFencedLock`.
    pub fn fenced_lock(&self, name: impl Into<String>) -> FencedLock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the lock of that name that many may hold for reading, or one for writing: no
    /// round trip. Redisson's `getReadWriteLock`.
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(&self.engine, name.into())
    }

    /// Returns the lock of that name for which callers wait by asking again and again: no
    /// round trip. Redisson's `getSpinLock`.
    pub fn spin_lock(&self, name: impl Into<String>) -> SpinLock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the identity of this client, which stands before the colon in the
    /// owner fields of its holds.
    pub fn id(&self) -> Uuid {
        self.engine.id
    }

    /// Ends all waits through this client and its clones, ends renewals, sends the
    /// releases that are owed, and ends the client's threads.
    ///
    /// Blocks until that is done, two response time-outs at most. Callers that wait
    /// get [`is_closed`](crate::Error::is_closed), and so does every later attempt.
    /// Guards stay valid to the end of their leases; dropping them still releases.
    /// Closing again does nothing. The thread of [`Events`](crate::Events) ends when
    /// the last guard and lock are dropped.
    pub fn close(&self) {
        self.engine.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clones = Arc::strong_count(&self.door);
        f.debug_struct("Client").field("id", &self.id()).field("clones", &clones).finish()
    }
}

impl RedLock {
    /// Makes the lock of that name on the servers of these clients, which are independent of
    /// each other: no round trip. An odd number of them, three or five, is best.
    pub fn new(clients: impl IntoIterator<Item = Client>, name: impl Into<String>) -> RedLock {
        let engines = clients.into_iter().map(|client| Arc::clone(&client.engine)).collect();
        RedLock::over(engines, name.into())
    }
}

impl Builder {
    /// Connects, and starts the client's threads.
    ///
    /// # Errors
    /// Those of [`Client::open`], and
    /// [`is_configuration`](crate::Error::is_configuration) for settings out of
    /// bounds.
    pub fn build(self) -> Result<Client> {
        let engine = Engine::start(self)?;
        let door = Arc::new(Door(Arc::clone(&engine)));
        Ok(Client { engine, door })
    }
}
