//! [`Client`], and the constructors that need its engine: [`Builder::build`] and [`RedLock::new`].
//!
//! `queries` looks at locks by name and audits servers.

mod queries;

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::audit::AuditPolicy;
use crate::config::Builder;
use crate::election::Election;
use crate::election::observers::Observers;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lock::handle::{FairLock, FencedLock, Lock, QueueLock, SpinLock};
use crate::lock::red_lock::RedLock;
use crate::lock::rw_lock::RwLock;
use crate::stats::Stats;
use crate::synchronizer::latch::CountDownLatch;
use crate::synchronizer::once::Once;
use crate::synchronizer::plain::PlainSemaphore;
use crate::synchronizer::semaphore::Semaphore;

/// Creates locks on one deployment: a server, a master with sentinels, or a cluster.
///
/// A clone is cheap and shares connections, watchdog and listener. One client per process and
/// deployment serves any number of threads. Clones, locks, guards and
/// [observers](Election::observe) keep the client running.
///
/// The drop of the last clone waits for releases that are not sent yet, for one [response
/// time-out](Builder::response_timeout) at most, and not at all after a [`close`](Client::close)
/// that has waited for them in vain. The remaining locks and guards continue to work, and their
/// leases are renewed.
///
/// A forked child cannot use the client of its parent: every call that needs the server returns
/// [`is_configuration`](Error::is_configuration). Calls that need no server still answer from the
/// copied memory: [`is_held`](Lock::is_held) reports the hold of the thread that forked, and a
/// nested acquire returns a guard of that hold. Make a new client after the fork.
///
/// ```no_run
/// let client = leasehold::Client::open("redis://127.0.0.1/")?;
/// let guard = client.lock("orders:42").lock()?;
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a client that is dropped at once ends its connections at once"]
pub struct Client {
    engine: Arc<Engine>,
    observers: Arc<Observers>,
    last_clone: Arc<LastClone>,
}

/// Shared by the clones of a client, and not by its locks and guards. Dropped with the last clone.
struct LastClone(Arc<Engine>);

impl Drop for LastClone {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl Client {
    /// Connects to one server, with default settings.
    ///
    /// [`Builder::single`] describes the URL, [`Builder::build`] states how long the call blocks.
    ///
    /// # Errors
    /// - [`is_configuration`](Error::is_configuration) if the URL cannot be used.
    /// - [`is_connection`](Error::is_connection) if the server cannot be reached, or does not speak
    ///   the Redis protocol.
    /// - [`is_timeout`](Error::is_timeout) if the server does not answer in time.
    /// - [`is_server`](Error::is_server) if the server refuses the user or the password, or does
    ///   not speak RESP3, the protocol since Redis 6.
    ///
    /// ```no_run
    /// let client = leasehold::Client::open("redis://127.0.0.1:6379/")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn open(url: impl AsRef<str>) -> Result<Client> {
        Client::builder().single(url.as_ref()).build()
    }

    /// Returns a [`Builder`] with default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn start(settings: Builder, lazily: bool) -> Result<Client> {
        let engine = Engine::start(settings, lazily)?;
        let last_clone = Arc::new(LastClone(Arc::clone(&engine)));
        Ok(Client { engine, observers: Arc::default(), last_clone })
    }

    /// Checks that the servers answer: a readiness probe.
    ///
    /// Blocks for one response time-out at most. One round trip; connects first if there is no
    /// connection. With Sentinel the client asks the master, with a cluster all nodes that serve
    /// slots, at the same time. A server that refuses the command because the user lacks the
    /// permission `+ping` counts as ready.
    ///
    /// # Errors
    /// - [`is_connection`](Error::is_connection), [`is_timeout`](Error::is_timeout) or
    ///   [`is_pool_timeout`](Error::is_pool_timeout) if a server does not answer.
    /// - [`is_server`](Error::is_server) if a server refuses, for instance while it loads its data.
    /// - [`is_closed`](Error::is_closed) after [`close`](Client::close).
    pub fn ping(&self) -> Result<()> {
        self.engine.ping()
    }

    /// Returns the re-entrant lock with this name. No round trip.
    ///
    /// The name, after the client's [prefix](Builder::name_prefix), is the key in Redis. The lock
    /// is the same as Redisson's `getLock(name)`.
    ///
    /// # Errors
    /// Does not fail itself. The verbs return [`is_invalid_name`](Error::is_invalid_name) if the
    /// name is empty or longer than 512 MiB, or has braces that are not a hash tag. (The hash tag
    /// of `"a{b}c"` is `{b}`.) [`safe_name`](crate::safe_name) makes a valid name from any text.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the lock with this name that is granted in the order of arrival. No round trip.
    ///
    /// Redisson's `getFairLock`. See [`FairLock`].
    pub fn fair_lock(&self, name: impl Into<String>) -> FairLock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the lock with this name whose guards have a fencing token. No round trip.
    ///
    /// Redisson's `getFencedLock`. See [`FencedLock`].
    pub fn fenced_lock(&self, name: impl Into<String>) -> FencedLock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the work with this name, which is done once. No round trip.
    ///
    /// Redisson has no such kind. See [`Once`].
    pub fn once(&self, name: impl Into<String>) -> Once {
        Once::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the lock with this name that is granted by arrival and weight. No round trip.
    ///
    /// A release wakes one waiter, which needs no further round trip. Redisson has no such lock.
    /// See [`QueueLock`].
    pub fn queue_lock(&self, name: impl Into<String>) -> QueueLock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the lock with this name for many readers or one writer. No round trip.
    ///
    /// Redisson's `getReadWriteLock`. See [`RwLock`].
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(&self.engine, name.into())
    }

    /// Returns the lock with this name whose waiters poll. No round trip.
    ///
    /// Redisson's `getSpinLock`. See [`SpinLock`].
    pub fn spin_lock(&self, name: impl Into<String>) -> SpinLock {
        Lock::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the semaphore with this name, whose permits have a lease. No round trip.
    ///
    /// The name, after the client's [prefix](Builder::name_prefix), is the key in Redis. The
    /// semaphore is the same as Redisson's `getPermitExpirableSemaphore(name)`. See [`Semaphore`].
    pub fn semaphore(&self, name: impl Into<String>) -> Semaphore {
        Semaphore::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the semaphore with this name whose permits have no holders. No round trip.
    ///
    /// The name, after the client's [prefix](Builder::name_prefix), is the key in Redis. The
    /// semaphore is the same as Redisson's `getSemaphore(name)`. See [`PlainSemaphore`].
    pub fn plain_semaphore(&self, name: impl Into<String>) -> PlainSemaphore {
        PlainSemaphore::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the latch with this name. No round trip.
    ///
    /// The name, after the client's [prefix](Builder::name_prefix), is the key in Redis. The latch
    /// is the same as Redisson's `getCountDownLatch(name)`. See [`CountDownLatch`].
    pub fn latch(&self, name: impl Into<String>) -> CountDownLatch {
        CountDownLatch::new(Arc::clone(&self.engine), name.into())
    }

    /// Returns the election with this name, of one leader among many candidates. No round trip.
    ///
    /// The name, after the client's [prefix](Builder::name_prefix), is the key of the queue lock
    /// that the leader holds. Redisson has no elections. See [`Election`].
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election::new(Arc::clone(&self.engine), Arc::clone(&self.observers), name.into())
    }

    /// Returns the id of this client, a random UUID.
    ///
    /// The [owner field](crate#terms) of each hold in Redis begins with this id.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn id(&self) -> Uuid {
        self.engine.id
    }

    /// Returns the statistics of this client and its clones since its start.
    ///
    /// Does not block, no round trip. Every client counts for itself, with or without an
    /// [event listener](crate#terms). [`Stats`] says what each number counts. The feature
    /// `metrics` [exports](crate::_documentation::metrics) the same numbers.
    ///
    /// ```
    /// # let client = leasehold::Client::builder().single("redis://127.0.0.1:1/").build_lazily()?;
    /// let stats = client.stats();
    /// assert_eq!((stats.acquired(), stats.held_now(), stats.waiting_now()), (0, 0, 0));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Closes the client and all its clones: ends its waits, renewals and threads.
    ///
    /// Blocks until the queued releases are sent, the threads have ended and the logger has all
    /// lines, for one response time-out at most. Waiting calls, all later attempts to acquire and
    /// later queries of the server return [`is_closed`](Error::is_closed). Guards stay valid until
    /// the end of their leases, and their drop still releases the lock. A second `close` does
    /// nothing. The thread that calls [`Events`](crate::Events) ends when the last guard and the
    /// last lock are dropped.
    ///
    /// If a server does not answer, threads go on with the releases of locks until the leases end,
    /// and with requests of plain semaphores and of latches for one
    /// [`watchdog_timeout`](Builder::watchdog_timeout) at most.
    ///
    /// ```
    /// # let client = leasehold::Client::builder().single("redis://127.0.0.1:1/").build_lazily()?;
    /// client.close();
    /// assert!(client.lock("orders:42").lock().is_err_and(|error| error.is_closed()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn close(&self) {
        self.engine.close();
    }

    /// Has the holds of this client end with its process and with a process group. Does not block.
    ///
    /// For a program that starts another one under a lock. As
    /// [`release_on_death`](Builder::release_on_death), but others release the holds of this client
    /// only when its process is gone and no process of the group `group` is left, nor of the groups
    /// of earlier calls. A zombie whose parent does not ask for its end counts as running. Call it
    /// when the group exists: until the record is written, a few milliseconds later, the locks of a
    /// killed process stay taken until their leases end. With `release_on_death(true)` they would
    /// be free then.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration) with [`announce(false)`](Builder::announce),
    /// on a system that does not tell other processes of the end of this one (any but Linux), and if
    /// the server has refused the record.
    ///
    /// ```no_run
    /// use std::os::unix::process::CommandExt;
    /// use std::process::Command;
    ///
    /// let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let guard = client.lock("report").lock()?;
    /// let mut report = Command::new("report").process_group(0).spawn().expect("a program");
    /// client.end_with_group(report.id())?;
    /// report.wait().expect("a child");
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn end_with_group(&self, group: u32) -> Result<()> {
        let text =
            "the holds of this client cannot end with its process: it needs Linux, and announce";
        let ends = self.engine.watchdog.end_with_group(group);
        if ends { Ok(()) } else { Err(Error::configuration(text)) }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clones = Arc::strong_count(&self.last_clone);
        f.debug_struct("Client").field("id", &self.id()).field("clones", &clones).finish()
    }
}

impl RedLock {
    /// Returns the lock with this name on the servers of these clients. No round trip.
    ///
    /// The servers must be independent of each other. Use an odd number of them: three or five. A
    /// client and its clones count as one server.
    ///
    /// # Errors
    /// Does not fail itself. Without a client, the verbs that need a server return
    /// [`is_configuration`](Error::is_configuration).
    pub fn new(clients: impl IntoIterator<Item = Client>, name: impl Into<String>) -> RedLock {
        let engines = clients.into_iter().map(|client| Arc::clone(&client.engine)).collect();
        RedLock::over(engines, name.into())
    }
}

impl Builder {
    /// Connects to the servers and starts the threads of the client.
    ///
    /// Each server, sentinel or node that the client asks may take
    /// - the name look-up, which has no time limit;
    /// - one [connect time-out](Builder::connect_timeout) for each address of the host, and one for
    ///   the TLS handshake;
    /// - one [response time-out](Builder::response_timeout) for the login, one for a query of the
    ///   topology, and one for the audit.
    ///
    /// # Errors
    /// The errors of [`Client::open`], and [`is_configuration`](Error::is_configuration) if a
    /// setting is out of bounds, or if the [audit](Builder::audit_policy) has a finding under
    /// [`AuditPolicy::Refuse`].
    ///
    /// ```no_run
    /// let client = leasehold::Client::builder()
    ///     .cluster(["redis://10.0.0.1:7000/", "redis://10.0.0.2:7000/"])
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build(self) -> Result<Client> {
        Client::start(self, false)
    }

    /// Starts the threads of the client; the first call connects.
    ///
    /// For a service that may start before Redis does. Does not block. Until a server can be
    /// reached, calls return [`is_connection`](Error::is_connection) or
    /// [`is_timeout`](Error::is_timeout), and each call tries again. [`Client::ping`] shows whether
    /// the servers can be reached. With a cluster, the first call that reaches a node also
    /// discovers the other nodes. The watchdog [audits](Builder::audit_policy) a server after its
    /// own first connection to the server, when it first renews a lease or polls.
    ///
    /// # Errors
    /// [`is_configuration`](Error::is_configuration) if the URL or a setting cannot be used, and
    /// with [`AuditPolicy::Refuse`], which needs a connection.
    ///
    /// ```
    /// let client = leasehold::Client::builder().single("redis://127.0.0.1:1/").build_lazily()?;
    /// assert!(client.ping().is_err_and(|error| error.is_retryable()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn build_lazily(self) -> Result<Client> {
        match self.audit_policy {
            AuditPolicy::Refuse => Err(Error::configuration(
                "a client that is built lazily cannot refuse a server: use build()",
            )),
            AuditPolicy::Ignore | AuditPolicy::Report => Client::start(self, true),
        }
    }
}
