//! Builds and starts an engine, in this order:
//!
//! 1. Check the settings, name the client, and start the thread for events if it has a listener.
//! 2. Unless the client is built lazily: discover the nodes of a cluster, or connect to the single
//!    server, and audit the servers.
//! 3. Build listeners, watchdog and fail-over monitor. None of them connects.
//! 4. Start the threads for renewals and fail-overs.
//!
//! A step that fails ends the start with its error, and leaves no thread and no connection behind:
//! the threads of step 1 and of the pools end with the values that are dropped, and a watchdog
//! without a fail-over monitor is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Once, Weak};
use std::time::Duration;

use uuid::Uuid;

use crate::audit::{AuditPolicy, AuditScope, Auditor};
use crate::cancel::CancelToken;
use crate::command::client_record::{self, ClientRecord};
use crate::command::{details, owner};
use crate::config::Builder;
use crate::engine::deployment::Deployment;
use crate::engine::{BackgroundThreads, Engine, EngineSettings, Locals};
use crate::error::Result;
use crate::events::EventSink;
use crate::local::hold::HandoffBounds;
use crate::transport::connection::Timeouts;
use crate::transport::listener::channels::{Channels, ControlHandler};
use crate::transport::listener::listeners::Listeners;
use crate::transport::listener::{self, ListenerSettings};
use crate::transport::pool::router::Router;
use crate::transport::pool::{LongestWait, PoolServer, PoolSettings, PoolTimeouts};
use crate::transport::topology::failover::{FailoverMonitor, ServerObserver};
use crate::transport::topology::health::ServerHealths;
use crate::transport::topology::route::Route;
use crate::util::executor::Executor;
use crate::util::log_lines::LINES;
use crate::util::sync::Mutex;
use crate::util::system::{process_id, thread::JoinHandle};
use crate::util::{clock, log_target};
use crate::watchdog::{self, Announcer, Watchdog, WatchdogSettings};

/// The longest interval between heartbeats of the watchdog to the listener.
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest lease of a grant by message, unless the watchdog time-out is shorter.
const SHORTEST_GRANT_LEASE: Duration = Duration::from_secs(2);

impl Engine {
    /// Connects unless `lazily`, then starts the threads that every client has.
    pub(crate) fn start(settings: Builder, lazily: bool) -> Result<Arc<Engine>> {
        let servers = settings.check()?;
        let startup = Startup::new(settings)?;
        let timeouts = startup.timeouts.without_replicas();
        let deployment =
            Deployment::new(servers, &startup.name, timeouts, startup.settings.sharding);
        if !lazily {
            deployment.discover()?;
        }
        let router = Arc::new(deployment.router(startup.pool_settings(&deployment), lazily)?);
        let Builder { audit_policy, allow_replica, .. } = startup.settings;
        let scope = AuditScope { of_cluster: router.is_cluster(), allows_replica: allow_replica };
        let auditor = Arc::new(Auditor::new(audit_policy, scope, startup.sink.clone()));
        if !lazily {
            audit(&router, &auditor, audit_policy)?;
        }
        let channels = Arc::new(Channels::default());
        let listeners = Arc::new(startup.listeners(&deployment, &channels));
        let announcer = startup.announcer(&listeners);
        let watchdog = startup.watchdog(&router, &channels, &listeners, auditor, announcer);
        let server_observer: Weak<dyn ServerObserver> = Arc::downgrade(&watchdog) as _;
        router.set_server_observer(Weak::clone(&server_observer));
        let failover = Arc::new(FailoverMonitor::new(deployment.route.clone()));
        let handles = start_threads(&watchdog, &failover, server_observer)?;
        let engine = Arc::new(Engine {
            id: startup.id,
            deployment: Arc::new(deployment),
            router,
            channels,
            listeners,
            watchdog,
            events: startup.sink.clone(),
            executor: Arc::clone(&startup.executor),
            closing: CancelToken::new(),
            active_calls: AtomicUsize::new(0),
            has_given_up: AtomicBool::new(false),
            locals: Locals::default(),
            threads: BackgroundThreads { failover, handles: Mutex::new(handles) },
            settings: startup.into_engine_settings(),
        });
        let handler: Weak<dyn ControlHandler> = Arc::downgrade(&engine) as _;
        engine.channels.set_control_handler(handler);
        if !lazily {
            engine.watchdog.announce_first(&engine.limit(engine.response_limit()));
        }
        Ok(engine)
    }
}

/// Warns once per process if the clock stands still while the machine is suspended.
fn warn_without_boot_clock() {
    static WARNED: Once = Once::new();
    if !clock::counts_suspension() {
        WARNED.call_once(|| {
            log::warn!(
                logger: LINES, target: log_target::CLIENT,
                "the system refuses CLOCK_BOOTTIME: after a suspension of the machine, guards \
                 report held for too long"
            );
        });
    }
}

/// The settings of a client that is starting, and the names derived from them.
struct Startup {
    settings: Builder,
    id: Uuid,
    /// The record of the client at its start.
    record: ClientRecord,
    /// The name of the client's connections on the server.
    name: String,
    /// The control channel of the listener.
    control: String,
    timeouts: Timeouts,
    longest_wait: Arc<LongestWait>,
    sink: EventSink,
    executor: Arc<Executor>,
    healths: Arc<ServerHealths>,
}

impl Startup {
    fn new(mut settings: Builder) -> Result<Startup> {
        warn_without_boot_clock();
        let id = owner::client_id();
        let sink = EventSink::start(settings.events.take())?;
        let (replicas, span) = settings.min_replicas;
        let longest_wait = watchdog::longest_wait(settings.watchdog_timeout);
        let longest_wait = Arc::new(LongestWait::new(longest_wait));
        let (label, instance) = (settings.label.as_deref(), settings.instance.as_deref());
        let record = ClientRecord::of_this_process(label, instance);
        Ok(Startup {
            id,
            record,
            name: format!("leasehold:{id}"),
            control: details::wake_channel(id),
            timeouts: Timeouts {
                connect: settings.connect_timeout,
                response: settings.response_timeout,
                replicas: if replicas == 0 { Duration::ZERO } else { span },
            },
            settings,
            longest_wait,
            sink,
            executor: Arc::default(),
            healths: Arc::default(),
        })
    }

    fn pool_settings(&self, deployment: &Deployment) -> PoolSettings {
        let settings = &self.settings;
        let (queue, longest_private) = (settings.pool_timeout, Arc::clone(&self.longest_wait));
        PoolSettings {
            server: PoolServer { node: 0, is_cluster_node: false, route: deployment.route.clone() },
            process: process_id(),
            name: self.name.clone(),
            size: settings.pool_size,
            timeouts: PoolTimeouts { shared: self.timeouts, longest_private, queue },
            replicas: settings.min_replicas.0,
            // Sentinels name masters only, and the replicas of a cluster redirect.
            refuses_replica: matches!(deployment.route, Route::To(_)) && !settings.allow_replica,
            longest_repeat: settings.poll_interval,
            healths: Arc::clone(&self.healths),
        }
    }

    fn listeners(&self, deployment: &Deployment, channels: &Arc<Channels>) -> Listeners {
        let settings = ListenerSettings {
            route: deployment.route.clone(),
            node: None,
            only_control: false,
            timeouts: self.timeouts,
            name: format!("{}:listener", self.name),
            control: self.control.as_str().into(),
            healths: Arc::clone(&self.healths),
            linger: self.settings.poll_interval / 2,
            idle: listener::IDLE,
            quiet_silence: client_record::LIFETIME,
        };
        deployment.listeners(settings, Arc::clone(channels))
    }

    /// Returns what announces the client, unless that is off.
    fn announcer(&self, listeners: &Arc<Listeners>) -> Option<Arc<Announcer>> {
        let Builder { announce, release_on_death, .. } = &self.settings;
        if !announce {
            return None;
        }
        let mut record = self.record.clone();
        if *release_on_death && !record.end_with_process(None) {
            log::warn!(
                logger: LINES, target: log_target::CLIENT,
                "this system does not tell other processes of the end of this one: \
                 release_on_death has no effect"
            );
        }
        let (lease, listeners) = (self.settings.watchdog_timeout, Arc::clone(listeners));
        Some(Arc::new(Announcer::new(self.id, record, lease, listeners)))
    }

    fn watchdog(
        &self,
        router: &Arc<Router>,
        channels: &Arc<Channels>,
        listeners: &Arc<Listeners>,
        auditor: Arc<Auditor>,
        announcer: Option<Arc<Announcer>>,
    ) -> Arc<Watchdog> {
        let settings = WatchdogSettings {
            timeout: self.settings.watchdog_timeout,
            heartbeat_interval: MAX_HEARTBEAT_INTERVAL.min(self.settings.poll_interval / 2),
            poll_interval: self.settings.poll_interval,
            client: self.id,
            own_record: self.record.clone(),
            grant_lease: grant_lease(&self.settings),
            longest_wait: Arc::clone(&self.longest_wait),
            events: self.sink.clone(),
            executor: Arc::clone(&self.executor),
        };
        let (router, channels) = (Arc::clone(router), Arc::clone(channels));
        let listeners = Arc::clone(listeners);
        Arc::new(Watchdog::new(settings, router, channels, listeners, auditor, announcer))
    }

    fn into_engine_settings(self) -> EngineSettings {
        let settings = self.settings;
        // A waiter of a fair lock reports at every poll interval; a shorter time-out would remove
        // live waiters from the queue.
        let shortest = settings.poll_interval.saturating_mul(2);
        EngineSettings {
            control: self.control,
            watchdog_timeout: settings.watchdog_timeout,
            poll_interval: settings.poll_interval,
            fair_waiter_timeout: settings.fair_waiter_timeout.max(shortest),
            back_off: settings.back_off,
            weight_step: settings.weight_step,
            needs_replicas: settings.min_replicas.0 > 0,
            allows_replica: settings.allow_replica,
            announces: settings.announce,
            response_timeout: settings.response_timeout,
            reply_span: self.timeouts.response + self.timeouts.replicas,
            handoff: HandoffBounds {
                max_handoffs: settings.max_handoffs,
                max_time: settings.max_handoff_time,
                min_remaining: settings.watchdog_timeout / 2,
            },
            name_prefix: settings.name_prefix,
        }
    }
}

/// Returns the lease of a grant by message: three heartbeats, of which two may be lost.
///
/// A stopped caller that is granted a lock blocks it for this long.
fn grant_lease(settings: &Builder) -> Duration {
    let lease = settings.poll_interval.saturating_mul(3).max(SHORTEST_GRANT_LEASE);
    lease.min(settings.watchdog_timeout)
}

/// Audits the servers.
///
/// The nodes of a cluster are audited here only if a finding is an error. Otherwise the watchdog
/// audits each node after the first connection to it, so that the start does not connect to all.
fn audit(router: &Router, auditor: &Auditor, policy: AuditPolicy) -> Result<()> {
    if router.is_cluster() && matches!(policy, AuditPolicy::Report | AuditPolicy::Ignore) {
        return Ok(());
    }
    for (server, connection) in router.servers() {
        auditor.audit(server, |calls| router.call_all(calls, connection))?;
    }
    Ok(())
}

/// Starts both threads, or none.
fn start_threads(
    watchdog: &Arc<Watchdog>,
    failover: &Arc<FailoverMonitor>,
    server_observer: Weak<dyn ServerObserver>,
) -> Result<Vec<JoinHandle<()>>> {
    let mut handles = vec![watchdog.start()?];
    match failover.start(server_observer) {
        Ok(monitor) => handles.extend(monitor),
        Err(error) => {
            // The watchdog has nothing to do yet, so it ends at once.
            watchdog.stop();
            handles.into_iter().for_each(|thread| drop(thread.join()));
            return Err(error);
        }
    }
    Ok(handles)
}
