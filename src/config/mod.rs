//! The settings of a client, with their defaults and bounds.
//!
//! [`Builder`] has one field per setting and checks them in [`Builder::check`]. `servers` has the
//! setters that say how servers are reached, and reads the URLs. `back_off` computes the pauses of
//! spin locks. The defaults in the documentation of the setters and on the page of settings are
//! tested (`tests/api/readme.rs`).

mod back_off;
mod servers;
mod text;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::audit::AuditPolicy;
use crate::error::{Error, Result};
use crate::events::Events;
use servers::ServerSettings;

pub use back_off::BackOff;
pub(crate) use servers::Servers;
pub(crate) use text::check_text;

/// The shortest lease.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(10);

/// The shortest renewed lease.
pub(crate) const SHORTEST_RENEWED_LEASE: Duration = Duration::from_millis(100);

/// The longest lease, a hundred years. Longer leases mean this one.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The longest weight step, a year: ten steps back from now are still after 1970.
const LONGEST_WEIGHT_STEP: Duration = Duration::from_secs(365 * 24 * 3600);

/// The largest pool. Threads share connections, so more are a mistake.
const MAX_POOL_SIZE: usize = 1024;

/// Settings of a [`Client`](crate::Client), made by [`Client::builder`](crate::Client::builder).
///
/// Each setter takes and returns the builder. The servers have no default: use
/// [`single`](Builder::single), [`sentinel`](Builder::sentinel) or [`cluster`](Builder::cluster).
/// Setters check nothing and connect to nothing; [`build`](Builder::build) does both, and returns
/// [`is_configuration`](Error::is_configuration) for a value out of bounds. Durations with a lower
/// bound also have an upper one: a hundred years.
///
/// ```
/// use std::time::Duration;
///
/// let client = leasehold::Client::builder()
///     .single("redis://127.0.0.1/")
///     .watchdog_timeout(Duration::from_secs(10))
///     .name_prefix("billing:")
///     .build_lazily()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder {
    servers: ServerSettings,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) pool_size: usize,
    pub(crate) pool_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) name_prefix: String,
    pub(crate) max_handoffs: u32,
    pub(crate) max_handoff_time: Duration,
    pub(crate) events: Option<Arc<dyn Events>>,
    pub(crate) min_replicas: (u32, Duration),
    pub(crate) allow_replica: bool,
    pub(crate) audit_policy: AuditPolicy,
    pub(crate) sharding: Sharding,
    pub(crate) fair_waiter_timeout: Duration,
    pub(crate) weight_step: Duration,
    pub(crate) back_off: BackOff,
    pub(crate) label: Option<String>,
    pub(crate) announce: bool,
    pub(crate) release_on_death: bool,
    pub(crate) instance: Option<String>,
}

/// The setters only set fields, and `events` is not called before a client is built.
impl UnwindSafe for Builder {}
impl RefUnwindSafe for Builder {}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            servers: ServerSettings::default(),
            watchdog_timeout: Duration::from_secs(30),
            poll_interval: Duration::from_secs(1),
            pool_size: 8,
            pool_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(3),
            name_prefix: String::new(),
            max_handoffs: 512,
            max_handoff_time: Duration::from_millis(5),
            events: None,
            min_replicas: (0, Duration::from_secs(1)),
            allow_replica: false,
            audit_policy: AuditPolicy::default(),
            sharding: Sharding::default(),
            fair_waiter_timeout: Duration::from_secs(300),
            weight_step: Duration::from_secs(1),
            back_off: BackOff::default(),
            label: None,
            announce: true,
            release_on_death: false,
            instance: None,
        }
    }
}

impl Builder {
    /// Sets how a cluster publishes release messages.
    ///
    /// Default: Auto, as in Redisson. All programs that share locks must use the same way. With
    /// [`Sharding::On`] a release message goes to one node, with [`Sharding::Off`] to every node.
    /// Either way the client has one listener (a connection and a thread, `leasehold-listener`) for
    /// each node with awaited locks, and one for [queue locks](crate::QueueLock) and the questions
    /// of other processes.
    pub fn sharding(mut self, sharding: Sharding) -> Builder {
        self.sharding = sharding;
        self
    }

    /// Sets the lease of locks that the watchdog renews.
    ///
    /// Default: 30 s, as in Redisson. At least 100 ms. The watchdog renews a lease before a
    /// third of it has passed. A shorter lease frees the locks of a dead process sooner; a longer
    /// one survives longer outages and costs fewer renewals.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Builder {
        self.watchdog_timeout = timeout;
        self
    }

    /// Sets the interval at which the client polls the locks that its calls wait for.
    ///
    /// Default: 1 s. At least 10 ms. If a release message is lost, the waiting call asks within
    /// this time. A subscription ends within this time after the last call has stopped waiting. A
    /// shorter interval finds a free lock sooner after a lost message. This setting also determines
    /// the grant leases of [queue locks](crate::QueueLock) and the
    /// [claims](crate::Semaphore#order) of semaphores.
    ///
    /// In each interval the server gets one script call per 128 awaited locks, one per 128 awaited
    /// queue locks, one per 64 awaited semaphores, and one `MGET` per 128 awaited plain semaphores
    /// or per 64 awaited latches.
    pub fn poll_interval(mut self, interval: Duration) -> Builder {
        self.poll_interval = interval;
        self
    }

    /// Sets the largest number of connections that commands share, per server.
    ///
    /// Default: 8. From 1 to 1,024. The client makes as many connections as threads call the server
    /// at the same time, up to this number. While more threads call, all of them share two
    /// connections, even if these two are slow to answer. If the server accepts no more
    /// connections, the threads share the existing ones. A larger pool is faster for more threads,
    /// and costs the server more. [Watchdog and listener](crate#terms) have connections of their
    /// own.
    pub fn pool_size(mut self, connections: usize) -> Builder {
        self.pool_size = connections;
        self
    }

    /// Sets how long a command waits for a connection while all connections are busy.
    ///
    /// Default: 3 s. No lower bound. After this time the call returns
    /// [`is_pool_timeout`](Error::is_pool_timeout). A shorter time reports an overload sooner; a
    /// longer one lets a short burst pass.
    pub fn pool_timeout(mut self, timeout: Duration) -> Builder {
        self.pool_timeout = timeout;
        self
    }

    /// Sets the longest time to connect to an address of a server.
    ///
    /// Default: 3 s. At least 1 ms. The name look-up comes before and has no time limit. If a host
    /// has several addresses, each may take this time; a TLS handshake may take it once more. A
    /// shorter time gives up on a dead server sooner.
    pub fn connect_timeout(mut self, timeout: Duration) -> Builder {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a reply may take before the connection is given up.
    ///
    /// Default: 3 s. At least 1 ms. A call without a deadline fails after this time, or asks again
    /// if it already waits for a held lock. The time to connect counts too: a call may fail before
    /// its connection is made, and the client then goes on connecting in the background. A shorter
    /// time notices a dead server sooner. The time must be longer than the slowest reply of a
    /// server under load.
    pub fn response_timeout(mut self, timeout: Duration) -> Builder {
        self.response_timeout = timeout;
        self
    }

    /// Sets a prefix for the name of every lock.
    ///
    /// Default: nothing. The prefix is part of the key in Redis, and [`Lock::name`] does not show
    /// it. In Redisson, a `NameMapper` does the same.
    ///
    /// [`Lock::name`]: crate::Lock::name
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Builder {
        self.name_prefix = prefix.into();
        self
    }

    /// Sets how often, and how long, the threads of a process hand a lock off.
    ///
    /// Default: 512 times, for 5 ms. 0 times turns hand-off off. A hand-off gives the hold, with
    /// its renewed lease, to the next waiting thread of the process, without a round trip. A hold
    /// with a fixed lease is never handed off, nor is a fair lock or a queue lock. At either bound
    /// the lock is released. Larger bounds are faster inside the process and keep other processes
    /// waiting for longer.
    ///
    /// With any setting, a process that takes a lock again and again also makes pauses, in which it
    /// leaves the lock to other processes. A pause lasts for two round trips (at least 0.5 ms, at
    /// most 20 ms). It follows a series of holds that has lasted at least as long, if another
    /// process received the last release message. Calls for permits of a semaphore make the same
    /// pauses. A call that does not wait, such as [`try_lock`](crate::Lock::try_lock), returns
    /// without the lock in such a pause. A call for permits that does not wait takes free permits
    /// even in such a pause.
    pub fn local_handoff(mut self, max_handoffs: u32, max_time: Duration) -> Builder {
        self.max_handoffs = max_handoffs;
        self.max_handoff_time = max_time;
        self
    }

    /// Sets how many replicas must acknowledge each hold and each renewal, within a time-out.
    ///
    /// Default: none, for up to 1 s. 0 replicas turns the setting off. Also applies to calls that
    /// take permits of a [`PlainSemaphore`](crate::PlainSemaphore). The time-out is at least
    /// 1 ms. The client sends `WAIT` together with the command, without another round trip, and the
    /// connection serves nothing else until the replicas have answered. This time-out adds to the
    /// [`response_timeout`](Builder::response_timeout) of a call. The setting narrows the window in
    /// which a fail-over loses a held lock, and does not close it: a replica that has not
    /// acknowledged may become the master.
    ///
    /// If too few replicas acknowledge a hold, the client releases the lock and the verb returns
    /// [`is_not_replicated`](Error::is_not_replicated). A renewal with too few acknowledgements
    /// counts as failed ([`Events::renewal_failed`]): the deadline of the lease does not move. A
    /// renewal waits for a sixth of [`watchdog_timeout`](Builder::watchdog_timeout) at most. Needs
    /// the permission `+wait`; a refusal of `WAIT` counts as too few acknowledgements.
    pub fn min_replicas(mut self, replicas: u32, timeout: Duration) -> Builder {
        self.min_replicas = (replicas, timeout);
        self
    }

    /// Sets whether a [`single`](Builder::single) server may be a replica.
    ///
    /// Default: false. A replica that accepts writes (`replica-read-only no`) grants locks that its
    /// master grants too, and loses them at its next synchronization. So the client sends no
    /// command that changes a lock, a semaphore or a latch to a server that reports the role of
    /// replica; the verb returns the error of a replica that is read-only ([`code`](Error::code)
    /// `READONLY`, retryable), and calls that already wait go on. Queries work. Set this to true
    /// only if no program takes locks at the master: an [audit](Builder::audit_policy) then has no
    /// finding for the role.
    ///
    /// The client reads the role with each new connection, and before a verb fails. If a server
    /// becomes a replica that accepts writes and keeps its connections, the client notices the new
    /// role when it opens its next connection. With Sentinel the client accepts only a master, and
    /// in a cluster the replicas redirect the client to their master.
    pub fn allow_replica(mut self, allow_replica: bool) -> Builder {
        self.allow_replica = allow_replica;
        self
    }

    /// Sets the reaction to server settings that endanger locks.
    ///
    /// Default: Report. An audit takes one round trip. The client audits each server once, and
    /// again if one topology change takes the server out of use and a later one brings it back.
    /// [`build`](Builder::build) audits a single server or the master. The watchdog audits later
    /// masters and the nodes of a cluster, after it has connected to them. An audit has a finding
    /// for a server that
    /// - evicts keys;
    /// - keeps no data on disk;
    /// - grants locks while it is cut off from its replicas;
    /// - is a replica, without [`allow_replica`](Builder::allow_replica);
    /// - is older than Redis 6.2;
    /// - has a clock that differs by more than 5 s;
    /// - is a cluster node and was given to [`single`](Builder::single) (never refused).
    ///
    /// Needs the permissions `+info +config|get +time`; a value that the client may not read causes
    /// no finding. [`AuditPolicy::Ignore`] saves the round trip. With [`AuditPolicy::Refuse`],
    /// [`build`](Builder::build) also audits the nodes of a cluster, and a finding makes it fail
    /// with [`is_configuration`](Error::is_configuration).
    pub fn audit_policy(mut self, audit_policy: AuditPolicy) -> Builder {
        self.audit_policy = audit_policy;
        self
    }

    /// Sets the event listener of this client.
    ///
    /// Default: none. Starts one more thread (`leasehold-events`), so a slow listener delays no
    /// lock. Accepts an `Arc<dyn Events>` too, which several clients can share. See [`Events`].
    pub fn events(mut self, events: impl Events + 'static) -> Builder {
        self.events = Some(Arc::new(events));
        self
    }

    /// Sets the silence after which the first waiter of a fair lock counts as dead.
    ///
    /// Default: 300 s, as in Redisson. At least 10 ms; a value below two poll intervals means two
    /// poll intervals. A waiter at the head of the queue in Redis that does not take a free lock
    /// within this time loses its place. A shorter time unblocks the queue sooner after the death
    /// of a process, and removes live processes after shorter pauses.
    ///
    /// A waiting call asks the server at every poll interval and so keeps its place. After the
    /// death of a process each of its waiting calls delays the waiters behind it by this time and
    /// one poll interval. For a call with a shorter time limit, that limit (at least two poll
    /// intervals) takes the place of this setting. It counts from the time-out of the waiter ahead,
    /// or without one from the end of the lease that the call last saw. If clients with
    /// different settings share a lock, the shortest setting applies.
    ///
    /// Keep the default if Redisson shares the lock: its clients use their own clocks, which may
    /// differ by this time.
    pub fn fair_waiter_timeout(mut self, timeout: Duration) -> Builder {
        self.fair_waiter_timeout = timeout;
        self
    }

    /// Sets how far each unit of weight moves a waiter for a queue lock forward.
    ///
    /// Default: 1 s. At most a year. Microsecond precision. A waiter of
    /// [weight](crate::Lock::with_weight) 10 comes before the waiters of weight 1 that arrived less
    /// than nine steps earlier. Zero means that weights have no effect. If clients with different
    /// settings share a lock, each caller counts with the setting of its client.
    pub fn weight_step(mut self, step: Duration) -> Builder {
        self.weight_step = step;
        self
    }

    /// Sets the pauses between two attempts of a caller that waits for a spin lock.
    ///
    /// Default: Exponential { first: 1ms, longest: 128ms }, as in Redisson. At least 50 us. Shorter
    /// pauses find a free lock sooner and cost the server more commands.
    pub fn spin_back_off(mut self, back_off: BackOff) -> Builder {
        self.back_off = back_off;
        self
    }

    /// Sets the label of this client, part of its [record](Builder::announce).
    ///
    /// Default: none. [`HolderInfo::label`](crate::HolderInfo::label) returns it. Metrics have
    /// labels of their own: [`Lock::with_label`](crate::Lock::with_label).
    /// [`build`](Builder::build) returns [`is_configuration`](Error::is_configuration) for a label
    /// that is empty, has control characters, or is longer than 256 bytes.
    pub fn label(mut self, label: impl Into<String>) -> Builder {
        self.label = Some(label.into());
        self
    }

    /// Sets whether the client tells other processes about itself and its holds.
    ///
    /// Default: true. The client writes a record: the hash `leasehold_client:{<id>}` with the
    /// fields `host`, `pid`, `program`, `label`, `version` and `start` (milliseconds since 1970);
    /// with [`release_on_death`](Builder::release_on_death) or [`instance`](Builder::instance) also
    /// `place`, `born`, `instance`, `ends` and `group`, and it lives as long as the longest lease.
    /// It does so in the background, right after its first hold, or within one second of its first
    /// wait. By this record [`Lock::holder`](crate::Lock::holder) finds the process of a holder.
    /// The record costs one small command per 10 s; acquires and releases stay as they are.
    /// [`close`](crate::Client::close), or the drop of the last handle and guard, deletes the
    /// record. After the death of the process it expires within 30 s.
    ///
    /// Every user of the servers with the permission to read the key can read the record. The
    /// fields are plain text.
    ///
    /// With the record, the client also keeps the connection of its [listener](crate#terms) open,
    /// at the cost of another small command per 10 s. It then answers questions of other processes
    /// about its holds: kind of lock, thread, number of guards, age, remaining lease and local
    /// waiters.
    ///
    /// A client without the permission to write the record works without it, and logs one warning.
    /// `docs/permissions.md` has the permissions. With `false` the client writes and answers
    /// nothing.
    pub fn announce(mut self, announce: bool) -> Builder {
        self.announce = announce;
        self
    }

    /// Sets whether the holds of this client end with its process, also if it is killed.
    ///
    /// Default: false. The locks of a process that was killed stay taken until their leases end, 30
    /// s with the defaults. With `true`, the [record](Builder::announce) of the client says how
    /// others recognize the end of its process: by its id and its time of start. A client that is
    /// refused a lock looks for the process of the holder. If it is gone, the client releases the
    /// hold. So the lock is free again within 1.2 [poll intervals](Builder::poll_interval) of the
    /// end of the process, if a client with the same kernel waits: same host name, same boot, same
    /// namespaces of process ids and of time. Clients elsewhere, and those of Redisson, wait for
    /// such a client, or for the end of the lease. The page
    /// [guarantees](crate::_documentation::guarantees) has all cases.
    ///
    /// Set it only if all work under the locks ends with the process. Children of the process, and
    /// what it has sent to a database, may outlive it, and the lock is free then. For a process
    /// that starts another program there is [`end_with_group`](crate::Client::end_with_group), and
    /// the program `leasehold run --release-on-death`. Do not set it where virtual machines are
    /// copied, or processes are saved and restored (CRIU), while they run: copies of a machine have
    /// the same boot and do not see each other's processes, and a restored process has another time
    /// of start. What a process has [detached](crate::Guard::detach) is released too, unless it has
    /// [closed](crate::Client::close) the client while the server was reachable. A
    /// [minimum](crate::Lock::with_min_hold) of a hold that has not ended before ends with the
    /// process.
    ///
    /// Cost: acquires and releases stay as they are. [`build`](Builder::build) makes one more round
    /// trip, so that the record exists before the first hold; a client that is built lazily writes
    /// it right after its first hold. Clients that wait send one more small script call per poll
    /// interval for up to 64 awaited locks, unless they have
    /// [`announce(false)`](Builder::announce): these look for no process. See
    /// [`Lock::try_lock`](crate::Lock::try_lock) for calls that do not wait.
    ///
    /// Linux only: on other systems, and without `/proc`, the log has a warning, and the leases
    /// end as without this setting. Needs [`announce`](Builder::announce):
    /// [`build`](Builder::build) returns [`is_configuration`](Error::is_configuration) without it.
    ///
    /// ```no_run
    /// let builder = leasehold::Client::builder().single("redis://127.0.0.1/");
    /// let client = builder.release_on_death(true).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn release_on_death(mut self, release: bool) -> Builder {
        self.release_on_death = release;
        self
    }

    /// Names the one process that may run under this name: a pod of a StatefulSet, a service of
    /// systemd.
    ///
    /// Default: none. A process that starts again under the same name, on any machine, does not
    /// wait for the leases of the process before. When one of its callers is refused a lock because
    /// of a hold of that process, the new client releases that hold, as with
    /// [`release_on_death`](Builder::release_on_death). The [record](Builder::announce) has the
    /// name. Of two clients, the one that was built later goes on, by the clocks of their machines:
    /// a successor whose clock is behind waits for the leases. Clients of one process may have the
    /// same name.
    ///
    /// **Two processes that run at the same time with one instance name break exclusion**: each
    /// lock of the earlier one that the later one asks for is taken away from it. It learns of that
    /// at once if it is reachable, or at its next renewal. So use this only where somebody else
    /// guarantees one process per name, also during an update and while a machine is not reachable.
    ///
    /// [`build`](Builder::build) returns [`is_configuration`](Error::is_configuration) for a name
    /// that is empty, has control characters, or is longer than 256 bytes, and without
    /// [`announce`](Builder::announce).
    ///
    /// ```no_run
    /// let builder = leasehold::Client::builder().single("redis://127.0.0.1/");
    /// let client = builder.instance("billing-0").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn instance(mut self, name: impl Into<String>) -> Builder {
        self.instance = Some(name.into());
        self
    }

    /// Checks all settings and reads the URLs. Connects to nothing.
    pub(crate) fn check(&self) -> Result<Servers> {
        self.check_durations()?;
        if self.pool_size == 0 || self.pool_size > MAX_POOL_SIZE {
            let message = format!("the pool size is not between 1 and {MAX_POOL_SIZE}");
            return Err(Error::configuration(message));
        }
        self.back_off.check()?;
        if let Some(label) = &self.label {
            check_text("the label", label)?;
        }
        if let Some(instance) = &self.instance {
            check_text("the instance name", instance)?;
        }
        if !self.announce && (self.release_on_death || self.instance.is_some()) {
            let text = "release_on_death and instance need the record that announce(false) forbids";
            return Err(Error::configuration(text));
        }
        self.servers.read()
    }

    fn check_durations(&self) -> Result<()> {
        let millis = Duration::from_millis;
        let bounds = [
            ("the watchdog time-out", self.watchdog_timeout, SHORTEST_RENEWED_LEASE),
            ("the poll interval", self.poll_interval, millis(10)),
            ("the connect time-out", self.connect_timeout, millis(1)),
            ("the response time-out", self.response_timeout, millis(1)),
            ("the fair waiter time-out", self.fair_waiter_timeout, millis(10)),
            ("the time-out for replicas", self.min_replicas.1, millis(1)),
        ];
        for (setting, value, least) in bounds {
            if value < least {
                return Err(Error::configuration(format!("{setting} is below {least:?}")));
            }
            if value > LONGEST_LEASE {
                return Err(Error::configuration(format!("{setting} is over a hundred years")));
            }
        }
        if self.weight_step > LONGEST_WEIGHT_STEP {
            return Err(Error::configuration("the weight step is over a year"));
        }
        Ok(())
    }
}

/// The way in which a cluster publishes the release of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sharding {
    /// Acts as [`On`](Sharding::On) if the servers support it (Redis 7, Valkey), else as
    /// [`Off`](Sharding::Off).
    #[default]
    Auto,
    /// Publishes to the shard that serves the slot of the lock (`SPUBLISH`).
    On,
    /// Publishes to all nodes (`PUBLISH`).
    Off,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("server", &self.servers)
            .field("watchdog_timeout", &self.watchdog_timeout)
            .field("poll_interval", &self.poll_interval)
            .field("pool_size", &self.pool_size)
            .field("pool_timeout", &self.pool_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("name_prefix", &self.name_prefix)
            .field("local_handoff", &(self.max_handoffs, self.max_handoff_time))
            .field("events", &self.events.is_some())
            .field("min_replicas", &self.min_replicas)
            .field("allow_replica", &self.allow_replica)
            .field("audit_policy", &self.audit_policy)
            .field("sharding", &self.sharding)
            .field("fair_waiter_timeout", &self.fair_waiter_timeout)
            .field("weight_step", &self.weight_step)
            .field("spin_back_off", &self.back_off)
            .field("label", &self.label)
            .field("announce", &self.announce)
            .field("release_on_death", &self.release_on_death)
            .field("instance", &self.instance)
            .finish()
    }
}
