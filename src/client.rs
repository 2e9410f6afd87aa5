//! The door: a client and its locks.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::config::Builder;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lock::handle::{FairLock, FencedLock, Lock, SpinLock};
use crate::lock::red_lock::RedLock;
use crate::lock::rw_lock::RwLock;
use crate::topology::audit::AuditPolicy;

/// A connection to the server that keeps the locks, and where locks are made.
///
/// A cheap clone of one shared thing: connections, the watchdog and the listener.
/// One per process and server is enough for any number of threads. Its clones, its
/// locks and its guards keep it alive. When the last clone is dropped, it waits for
/// releases that are still owed, one response time-out at most; locks and guards that
/// live on go on working, and are renewed.
///
/// Not for use in a forked child: with a client that was made before the fork, every call
/// that needs the server is an error there. `is_held()` and re-entry report the parent's
/// thread.
#[derive(Clone)]
#[must_use = "a client that is dropped at once ends its connections at once"]
pub struct Client {
    engine: Arc<Engine>,
    door: Arc<LastHandle>,
}

/// Shared by the clones of a client, but not by what it made.
struct LastHandle(Arc<Engine>);

impl Drop for LastHandle {
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
    /// reached or does not speak the protocol; [`is_timeout`](crate::Error::is_timeout) if it
    /// does not answer in time; [`is_server`](crate::Error::is_server) if it
    /// refuses the user, the password or the protocol.
    pub fn open(url: impl AsRef<str>) -> Result<Client> {
        Client::builder().single(url.as_ref()).build()
    }

    /// Returns a builder for a client with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn start(settings: Builder, lazily: bool) -> Result<Client> {
        let engine = Engine::start(settings, lazily)?;
        let door = Arc::new(LastHandle(Arc::clone(&engine)));
        Ok(Client { engine, door })
    }

    /// Does nothing while the servers answer: a readiness probe. One round trip.
    ///
    /// Connects if there is no connection. With Sentinel the master is asked, with a cluster all
    /// nodes that serve slots, at the same time. A server that refuses the command for want of a
    /// right (`+ping`) has answered.
    ///
    /// # Errors
    /// [`is_connection`](crate::Error::is_connection),
    /// [`is_timeout`](crate::Error::is_timeout) or
    /// [`is_pool_timeout`](crate::Error::is_pool_timeout) if a server does not answer;
    /// [`is_server`](crate::Error::is_server) if it refuses, for instance while it loads its data;
    /// [`is_closed`](crate::Error::is_closed) after [`close`](Client::close).
    pub fn ping(&self) -> Result<()> {
        self.engine.ping()
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
    #[must_use = "a query changes nothing: use its answer"]
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
        Client::start(self, false)
    }

    /// Starts the client's threads without a connection: the first call connects. For a service
    /// that may start before Redis does.
    ///
    /// Speaks with no server. Until one can be reached every call fails as any call without an
    /// answer does, with [`is_connection`](crate::Error::is_connection) or
    /// [`is_timeout`](crate::Error::is_timeout), and the next call tries again.
    /// [`Client::ping`] says whether it would succeed. With a cluster the first call that reaches
    /// a node also learns of the others. The look at how the servers are set up
    /// ([`audit`](Builder::audit_policy)) comes when leases are first renewed.
    ///
    /// # Errors
    /// [`is_configuration`](crate::Error::is_configuration) for a URL or settings that cannot be
    /// used, and for [`AuditPolicy::Refuse`](crate::AuditPolicy::Refuse), which needs a server.
    ///
    /// ```
    /// let client = leasehold::Client::builder().single("redis://127.0.0.1:1/").build_lazily()?;
    /// assert!(client.ping().is_err_and(|error| error.is_retryable()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build_lazily(self) -> Result<Client> {
        match self.audit_policy {
            AuditPolicy::Refuse => Err(Error::configuration(
                "a client that is built lazily cannot refuse a server: it has seen none",
            )),
            AuditPolicy::Ignore | AuditPolicy::Report => Client::start(self, true),
        }
    }
}
