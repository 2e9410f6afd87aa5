//! The settings of a client, their defaults and their bounds.

mod servers;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Certificates, Login};
use crate::error::{Error, Result};
use crate::events::Events;
use crate::topology::audit::AuditPolicy;
use crate::util::clock::{doubled, jittered};
use servers::ServerUrls;

pub(crate) use servers::Servers;

/// The shortest lease.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(10);

/// The longest lease: what is longer means this. A hundred years.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// More connections than that are a mistake: threads share them.
const MOST_CONNECTIONS: usize = 1024;

/// Settings of a [`Client`](crate::Client), made by [`Client::builder`](crate::Client::builder).
///
/// Every setter takes the builder and gives it back; where the server is must be
/// said, all else has a default. Nothing is checked and nothing connects before
/// [`build`](Builder::build).
///
/// ```no_run
/// use std::time::Duration;
///
/// let client = leasehold::Client::builder()
///     .single("redis://127.0.0.1/")
///     .watchdog_timeout(Duration::from_secs(10))
///     .name_prefix("billing:")
///     .build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder {
    pub(crate) place: Option<ServerUrls>,
    login: Option<Login>,
    certificates: Certificates,
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
    pub(crate) audit_policy: AuditPolicy,
    pub(crate) sharding: Sharding,
    pub(crate) fair_waiter_timeout: Duration,
    pub(crate) back_off: BackOff,
}

/// Its methods set fields, and nothing of it is run before a client is built.
impl UnwindSafe for Builder {}
impl RefUnwindSafe for Builder {}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            place: None,
            login: None,
            certificates: Certificates::default(),
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
            audit_policy: AuditPolicy::default(),
            sharding: Sharding::default(),
            fair_waiter_timeout: Duration::from_secs(300),
            back_off: BackOff::default(),
        }
    }
}

impl Builder {
    /// Sets the one server to use, by its URL. No default.
    ///
    /// `redis://[user][:password]@host[:port][/database]`, the same with `rediss://`
    /// for TLS (feature `tls`), or
    /// `redis+unix:///path/to/socket[?db=database&user=user&pass=password]`. User and
    /// password are percent-encoded. Redis 6.2 or newer, or Valkey.
    pub fn single(mut self, url: impl Into<String>) -> Builder {
        self.place = Some(ServerUrls::Single(url.into()));
        self
    }

    /// Sets the servers to use by the name of their master and the URLs of the sentinels that
    /// look after it. No default.
    ///
    /// The URLs are those of [`single`](Builder::single); a user and a password in them are
    /// the sentinels', for the servers there is [`login`](Builder::login). The database of
    /// the first URL is the master's; with `rediss://` there the servers have TLS, too.
    ///
    /// Whenever a connection is made the sentinels are asked for the master, one after the
    /// other until one names a server that says itself that it is. A silent sentinel costs an
    /// eighth of the connect and the response time-out, or all of both if no other sentinel
    /// knows a master. One more thread (`leasehold-scout`) asks one sentinel each second for
    /// fail-overs, over connections that it keeps. After one, connections to the old master are
    /// used no more, every lease is renewed on the new one or found lost, and who waits asks
    /// there. (A listener that the old master leaves without a word notices after 3 s; who waits
    /// is polled for meanwhile.)
    pub fn sentinel(
        mut self,
        master: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> Builder {
        let urls = urls.into_iter().map(Into::into).collect();
        self.place = Some(ServerUrls::Sentinel { master: master.into(), urls });
        self
    }

    /// Sets the servers to use by the URLs of some nodes of a Redis Cluster. No default.
    ///
    /// The URLs are those of [`single`](Builder::single); the other nodes are learnt of, and
    /// spoken to as the user, and with TLS, of the node that named them. One that answers is
    /// enough to begin with. [`pool_size`](Builder::pool_size) connections are made to each node
    /// that serves locks, when they are needed.
    ///
    /// All that belongs to a lock lies in one slot. One more thread (`leasehold-scout`) asks
    /// every 5 s, and when something points to it, who serves which; when that has changed every
    /// lease is renewed, or found lost, and who waits asks again. A command for which it is too
    /// early (`TRYAGAIN`, `CLUSTERDOWN`) is sent again for a response time-out.
    pub fn cluster(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Builder {
        self.place = Some(ServerUrls::Cluster { urls: urls.into_iter().map(Into::into).collect() });
        self
    }

    /// Sets how releases are told in a cluster, which must be the same for all who use its
    /// locks. Default: Auto, Redisson's.
    ///
    /// With [`Sharding::On`] a message goes to the node of the lock's slot only, and there is a
    /// connection, and a thread (`leasehold-listener`), for each node with locks that are waited
    /// for.
    pub fn sharding(mut self, sharding: Sharding) -> Builder {
        self.sharding = sharding;
        self
    }

    /// Sets as whom the servers are spoken to. Default: the user and the password in the
    /// URL; with Sentinel, nobody.
    ///
    /// The user of a server that has only a password (`requirepass`) is `default`.
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Builder {
        self.login = Some(Login { user: Some(user.into()), password: Some(password.into()) });
        self
    }

    /// Sets the only authorities to trust where a URL says `rediss://`: certificates in PEM.
    /// Default: those of the system.
    ///
    /// Holds for every server and every sentinel. Needs the feature `tls`.
    pub fn tls_authority(mut self, pem: impl Into<Vec<u8>>) -> Builder {
        self.certificates.authority = Some(pem.into());
        self
    }

    /// Sets the certificate that is shown to servers that ask for one, and its key, both in
    /// PEM. Default: none.
    ///
    /// Holds for every server and every sentinel. Needs the feature `tls`.
    pub fn tls_identity(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Builder {
        self.certificates.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the lease of locks that are renewed until they are released. Default:
    /// 30 s, Redisson's.
    ///
    /// It is renewed when two thirds of it are left, and is how long a lock outlives
    /// the process that held it. At least 100 ms.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Builder {
        self.watchdog_timeout = timeout;
        self
    }

    /// Sets how often the client looks at each lock that a caller waits for. If the message of
    /// a release is lost, the caller asks within this time. Default: 1 s. At least 10 ms.
    ///
    /// All locks that threads of the client wait for are looked at this often, 128 per
    /// script call.
    ///
    /// Subscriptions end at most this long after the last caller stopped waiting.
    pub fn poll_interval(mut self, interval: Duration) -> Builder {
        self.poll_interval = interval;
        self
    }

    /// The old name of [`poll_interval`](Builder::poll_interval).
    #[deprecated(note = "renamed to `poll_interval`")]
    pub fn poll_bound(self, interval: Duration) -> Builder {
        self.poll_interval(interval)
    }

    /// Sets how many connections commands share. Default: 8. At least 1.
    ///
    /// They are made when they are needed: as many as there are threads that want to
    /// speak with the server at the same time. While there are more such threads than
    /// connections they share two, also if these two are slow to answer; where the server
    /// takes no more connections, those that stand.
    /// The watchdog and the listener have one more each. From 1 to 1,024.
    pub fn pool_size(mut self, connections: usize) -> Builder {
        self.pool_size = connections;
        self
    }

    /// Sets how long a command stands in line if all connections are busy. Default:
    /// 3 s. Then it fails with [`Error::is_pool_timeout`].
    pub fn pool_timeout(mut self, timeout: Duration) -> Builder {
        self.pool_timeout = timeout;
        self
    }

    /// Sets how long making a connection may take, name look-up excepted. Default:
    /// 3 s. At least 1 ms.
    pub fn connect_timeout(mut self, timeout: Duration) -> Builder {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long an answer may take before the connection is given up. Default:
    /// 3 s. At least 1 ms.
    ///
    /// Every call without a deadline of its own returns, or asks again, after this time: also
    /// where a connection has to be made first, which then goes on in the background.
    pub fn response_timeout(mut self, timeout: Duration) -> Builder {
        self.response_timeout = timeout;
        self
    }

    /// Sets what is put before the name of every lock. Default: nothing.
    ///
    /// It becomes part of the key in Redis; [`Lock::name`](crate::Lock::name) does
    /// not show it. (In Redisson a `NameMapper` does this.)
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Builder {
        self.name_prefix = prefix.into();
        self
    }

    /// Sets how often, and for how long at most, a lock goes from thread to thread
    /// of this process before others get a chance at it. Default: 512 times, for 5 ms;
    /// 0 times turns it off.
    ///
    /// A release passes the lock and its lease to the thread that waits first,
    /// without a round trip. At either bound, whatever other processes do, the lock is
    /// really released. Only leases that the watchdog renews are passed. With or without
    /// it, a process that takes a lock again and again for two round trips (0.5 to 20 ms)
    /// then lets others go first for as long, if they listen for its release.
    pub fn local_handoff(mut self, max_handoffs: u32, max_time: Duration) -> Builder {
        self.max_handoffs = max_handoffs;
        self.max_handoff_time = max_time;
        self
    }

    /// Sets how many replicas have to acknowledge that a lock was taken, or its lease
    /// prolonged, and how long that may take. Default: none, for up to 1 s; 0 replicas
    /// turns it off.
    ///
    /// `WAIT` is sent in the same write, so it costs no round trip of its own, but the time
    /// until the replicas have it; meanwhile its connection does nothing else. An acquire that
    /// too few acknowledge is released, and fails with
    /// [`Error::is_not_replicated`]; a renewal that too few acknowledge does not count
    /// ([`Events::renewal_failed`]): the lease is valid until it ends as it would have. A
    /// renewal waits for a sixth of [`watchdog_timeout`](Builder::watchdog_timeout) at most.
    ///
    /// This makes the window smaller in which a fail-over loses a lock that somebody holds, but
    /// does not close it: a replica that has not acknowledged it may become the master. Needs the
    /// right to call `WAIT`. At least 1 ms.
    pub fn min_replicas(mut self, replicas: u32, timeout: Duration) -> Builder {
        self.min_replicas = (replicas, timeout);
        self
    }

    /// Sets what is done about a server that is set up in a way that endangers locks.
    /// Default: Report.
    ///
    /// Looked at, in one round trip when a client has connected to a server for the first
    /// time: whether it removes keys when it is full, keeps nothing on disk, grants locks
    /// when it is cut off from its replicas, is older than 6.2, or has a clock that is 5 s off
    /// from ours. A server in cluster mode to which [`single`](Builder::single) leads is reported
    /// too, and never refused. That takes the right to `INFO`, `CONFIG GET` and `TIME`; what may not be
    /// read counts as good.
    pub fn audit_policy(mut self, audit_policy: AuditPolicy) -> Builder {
        self.audit_policy = audit_policy;
        self
    }

    /// Sets who is told of what happens to the locks. Default: nobody.
    ///
    /// Starts one more thread; see [`Events`]. An `Arc<dyn Events>` is accepted too, and several
    /// clients can share it.
    pub fn events(mut self, events: impl Events + 'static) -> Builder {
        self.events = Some(Arc::new(events));
        self
    }

    /// Sets after how long without a word from it a caller that is first in the queue of a
    /// fair lock, and leaves the free lock alone, is taken for dead. Default: 300 s, Redisson's.
    ///
    /// A waiter asks at every poll interval. After a process dies, those behind it wait this long,
    /// plus a poll interval, for each of its queued threads. For a thread with a shorter time-out
    /// they wait that time-out, once the lease that it saw has run out. Of clients that share a
    /// lock the shortest fair wait counts; beside Redisson it is best left at Redisson's, whose
    /// clocks may be off by as much. Never less than two poll intervals; at least 10 ms.
    pub fn fair_waiter_timeout(mut self, span: Duration) -> Builder {
        self.fair_waiter_timeout = span;
        self
    }

    /// Sets how long a caller that spins pauses between two questions. Default:
    /// Exponential { first: 1ms, longest: 128ms }, Redisson's.
    pub fn spin_back_off(mut self, back_off: BackOff) -> Builder {
        self.back_off = back_off;
        self
    }

    /// Checks what can be checked without a server.
    pub(crate) fn check(&self) -> Result<Servers> {
        let millis = Duration::from_millis;
        let limits = [
            ("the watchdog time-out", self.watchdog_timeout, millis(100)),
            ("the poll interval", self.poll_interval, millis(10)),
            ("the connect time-out", self.connect_timeout, millis(1)),
            ("the response time-out", self.response_timeout, millis(1)),
            ("the fair wait", self.fair_waiter_timeout, millis(10)),
            ("the time for replicas", self.min_replicas.1, millis(1)),
        ];
        for (what, given, least) in limits {
            if given < least {
                return Err(Error::configuration(format!("{what} is below {least:?}")));
            }
            if given > LONGEST_LEASE {
                return Err(Error::configuration(format!("{what} is over a hundred years")));
            }
        }
        if self.pool_size == 0 || self.pool_size > MOST_CONNECTIONS {
            let message = format!("the pool size is not between 1 and {MOST_CONNECTIONS}");
            return Err(Error::configuration(message));
        }
        self.back_off.check()?;
        let place = self.place.as_ref();
        let place = place.ok_or_else(|| Error::configuration("no server is named"))?;
        place.read(self.login.as_ref())?.secured(&self.certificates)
    }
}

/// How the release of a lock is told in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sharding {
    /// As [`On`](Sharding::On) if the servers can do that (Redis 7, Valkey), and else as
    /// [`Off`](Sharding::Off).
    #[default]
    Auto,
    /// To the node that serves the lock's slot (`SPUBLISH`).
    On,
    /// To all nodes (`PUBLISH`).
    Off,
}

/// How long a caller that [spins](crate::Client::spin_lock) pauses before it asks again.
/// Every pause is jittered: between half of what is said here and all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackOff {
    /// Twice as long after each refusal.
    Exponential {
        /// The pause after the first refusal. At least 50 us.
        first: Duration,
        /// No pause is longer.
        longest: Duration,
    },
    /// Always the same. At least 50 us.
    Constant(Duration),
}

impl Default for BackOff {
    fn default() -> BackOff {
        let millis = Duration::from_millis;
        BackOff::Exponential { first: millis(1), longest: millis(128) }
    }
}

impl BackOff {
    const LEAST: Duration = Duration::from_micros(50);

    /// The pause after so many refusals before the last.
    pub(crate) fn pause(self, refusals: u32, seed: u64) -> Duration {
        let pause = match self {
            BackOff::Exponential { first, longest } => doubled(first, refusals, longest),
            BackOff::Constant(pause) => pause,
        };
        jittered(pause, seed)
    }

    fn check(self) -> Result<()> {
        let (BackOff::Exponential { first, .. } | BackOff::Constant(first)) = self;
        let longest = if let BackOff::Exponential { longest, .. } = self { longest } else { first };
        match first < BackOff::LEAST || longest < first || longest > LONGEST_LEASE {
            true => {
                Err(Error::configuration("the back-off is below 50 us, or ends before it begins"))
            }
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("server", &self.place)
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
            .field("audit_policy", &self.audit_policy)
            .field("sharding", &self.sharding)
            .field("fair_waiter_timeout", &self.fair_waiter_timeout)
            .field("spin_back_off", &self.back_off)
            .finish()
    }
}
