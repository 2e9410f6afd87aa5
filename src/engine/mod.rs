//! What the handles of one client share, and the order in which it starts and stops.

mod deployment;

use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Receiver;
use uuid::Uuid;

use crate::cancel::{Bound, CancelToken, Limit};
use crate::command::call::Call;
use crate::command::name::Name;
use crate::command::owner;
use crate::config::{BackOff, Builder};
use crate::connection::Timeouts;
use crate::engine::deployment::Deployment;
use crate::error::{Error, Result};
use crate::events::{Event, Events, Sink};
use crate::listener::channels::{Channel, Waiters};
use crate::listener::shards::Listeners;
use crate::listener::{self, ListenerSettings};
use crate::local::Local;
use crate::local::hold::HandoffBounds;
use crate::pool::PoolSettings;
use crate::pool::request::{BackgroundTask, Request};
use crate::pool::router::Router;
use crate::topology::audit::{AuditPolicy, Auditor};
use crate::topology::failover::FailoverMonitor;
use crate::topology::failover::OnReconnect;
use crate::util::clock::{self, Moment};
use crate::util::executor::Executor;
use crate::util::interner::{Interned, Recent};
use crate::util::sync::{Mutex, Parker};
use crate::util::threads;
use crate::watchdog::{self, Watchdog, WatchdogSettings};

/// The watchdog's heartbeat for the listener comes at least this often.
const SLOWEST_BEAT: Duration = Duration::from_secs(1);

/// How often a thread that is waited for is looked at.
const JOIN_STEP: Duration = Duration::from_millis(1);

/// One client.
pub(crate) struct Engine {
    pub(crate) id: Uuid,
    deployment: Arc<Deployment>,
    pub(crate) router: Arc<Router>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) listeners: Listeners,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) events: Sink,
    /// Calls that may leave something behind.
    calls: AtomicUsize,
    /// Cancelled when the client is closed.
    pub(crate) closing: CancelToken,
    pub(crate) executor: Arc<Executor>,
    pub(crate) control: String,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) poll_interval: Duration,
    /// How long a fair lock's queue waits for a caller that says nothing.
    pub(crate) fair_waiter_timeout: Duration,
    pub(crate) back_off: BackOff,
    pub(crate) response_timeout: Duration,
    /// How long a call waits for its answer, with the acknowledgement of replicas.
    pub(crate) answer_span: Duration,
    name_prefix: String,
    pub(crate) bounds: HandoffBounds,
    locals: Interned<Local>,
    /// So that what a process knows of a lock outlives handles made for one call.
    recent: Recent<Local>,
    failover: Arc<FailoverMonitor>,
    /// The watchdog's and the scout's.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A panic leaves it in order: loggers and callbacks run with no lock held (`tests/panics.rs`).
impl RefUnwindSafe for Engine {}

impl Engine {
    /// Starts the threads that a client has from the start. Connects before, unless `lazily`.
    pub(crate) fn start(settings: Builder, lazily: bool) -> Result<Arc<Engine>> {
        let servers = settings.check()?;
        let id = owner::client_id();
        let name = format!("leasehold:{id}");
        let control = format!("leasehold:wake:{{{id}}}");
        let timeouts = timeouts(&settings);
        let bounds = HandoffBounds {
            passes: settings.max_handoffs,
            time: settings.max_handoff_time,
            least_left: settings.watchdog_timeout / 2,
        };
        let (events, told) = sink(settings.events.is_some());
        let deployment =
            Deployment::new(servers, &name, timeouts.without_replicas(), settings.sharding);
        if !lazily {
            deployment.meet()?;
        }
        let pool = PoolSettings {
            node: 0,
            is_node: false,
            process: std::process::id(),
            route: deployment.route.clone(),
            timeouts,
            private: watchdog::timeouts(timeouts, settings.watchdog_timeout),
            replicas: settings.min_replicas.0,
            name: name.clone(),
            size: settings.pool_size,
            wait: settings.pool_timeout,
            repeat: settings.poll_interval,
            events: events.clone(),
        };
        let router = Arc::new(deployment.router(pool, lazily)?);
        let auditor =
            Arc::new(Auditor::new(settings.audit_policy, router.is_cluster(), events.clone()));
        if !lazily {
            audit(&router, &auditor, settings.audit_policy)?;
        }
        let waiters = Arc::new(Waiters::default());
        let beat = SLOWEST_BEAT.min(settings.poll_interval / 2);
        let listeners = deployment.listeners(
            ListenerSettings {
                route: deployment.route.clone(),
                shard: None,
                timeouts,
                name: format!("{name}:listener"),
                control: control.as_str().into(),
                linger: settings.poll_interval / 2,
                idle: listener::IDLE,
            },
            Arc::clone(&waiters),
        );
        let watchdog = Arc::new(Watchdog::new(
            WatchdogSettings {
                timeout: settings.watchdog_timeout,
                beat,
                poll_interval: settings.poll_interval,
                events: events.clone(),
            },
            Arc::clone(&router),
            Arc::clone(&waiters),
            auditor,
        ));
        let weak: Weak<Watchdog> = Arc::downgrade(&watchdog);
        router.set_on_reconnect(weak.clone() as Weak<dyn OnReconnect>);
        let failover = Arc::new(FailoverMonitor::new(deployment.route.clone()));
        if let (Some(events), Some(told)) = (settings.events, told) {
            start_events(events, told)?;
        }
        let mut threads = vec![watchdog.start()?];
        threads.extend(failover.start(weak)?);
        Ok(Arc::new(Engine {
            id,
            deployment: Arc::new(deployment),
            router,
            waiters,
            listeners,
            watchdog,
            events,
            calls: AtomicUsize::new(0),
            closing: CancelToken::new(),
            executor: Arc::default(),
            control,
            watchdog_timeout: settings.watchdog_timeout,
            poll_interval: settings.poll_interval,
            // Who waits gives a word at every poll interval.
            fair_waiter_timeout: settings
                .fair_waiter_timeout
                .max(settings.poll_interval.saturating_mul(2)),
            back_off: settings.back_off,
            response_timeout: settings.response_timeout,
            answer_span: timeouts.response + timeouts.replicas,
            bounds,
            name_prefix: settings.name_prefix,
            locals: Interned::default(),
            recent: Recent::default(),
            failover,
            threads: Mutex::new(threads),
        }))
    }

    /// What this process knows of the lock of that name.
    pub(crate) fn local(&self, given: &Arc<str>) -> Result<Arc<Local>> {
        let name = Name::new(&self.name_prefix, Arc::clone(given))?;
        let key = name.key().to_owned();
        let local = self.locals.get(&key, || Local::new(name, self.events.clone(), self.bounds));
        self.recent.keep(&local);
        Ok(local)
    }

    /// Has a listener hear the channel, on which a caller has registered that was refused and
    /// has told the listener, if a script could.
    pub(crate) fn request_subscription(&self, channel: &Channel) {
        self.send(self.listeners.call(channel));
    }

    /// Has a listener subscribe to a channel that somebody waits on.
    pub(crate) fn subscribe(&self, channel: &Channel) {
        self.send(self.listeners.tell(channel));
        self.request_subscription(channel);
    }

    /// Sends what nobody waits for, once.
    fn send(&self, calls: impl IntoIterator<Item = Call>) {
        for call in calls {
            let background = Request::background(call, BackgroundTask::new(None, Moment::START));
            self.router.dispatch(self.router.submit(background, None));
        }
    }

    /// Counts a call until it is dropped: [`Engine::close`] waits for what it leaves behind.
    pub(crate) fn begin_call(&self) -> UnderWay<'_> {
        self.calls.fetch_add(1, Ordering::AcqRel);
        UnderWay(&self.calls)
    }

    /// Waits until the calls have returned that the close has ended.
    fn wait_for_calls(&self, end: Moment) {
        while self.calls.load(Ordering::Acquire) > 0 && clock::now() < end {
            Parker::default().park_until(clock::now() + JOIN_STEP);
        }
    }

    /// When a call returns that begins now and has no deadline of its own.
    pub(crate) fn bound(&self) -> Bound {
        Bound::new(clock::now() + self.answer_span, &self.closing)
    }

    /// The limit of a call with that bound.
    pub(crate) fn limit(&self, bound: Bound) -> Limit<'_> {
        Limit::of(bound, &self.closing)
    }

    /// An error once the client is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closing.is_cancelled() {
            true => Err(Error::closed()),
            false => Ok(()),
        }
    }

    /// Blocks until commands can be sent, if the client was built lazily: until the nodes of a
    /// cluster are known.
    pub(crate) fn ready(&self, limit: &Limit<'_>) -> Result<()> {
        if self.deployment.is_met() {
            return Ok(());
        }
        self.router.check_process()?;
        self.deployment.ready(limit)
    }

    /// Asks the servers for a word.
    pub(crate) fn ping(&self) -> Result<()> {
        self.check_open()?;
        let limit = self.limit(self.bound());
        self.ready(&limit)?;
        self.router.ping(&limit)
    }

    /// Waits until what is owed is sent, at most for one response time-out. A forked child
    /// sends nothing.
    pub(crate) fn flush(&self) {
        if self.router.check_process().is_err() {
            return;
        }
        self.router.wait_until_settled(clock::now() + self.response_timeout);
    }

    /// Ends waits and renewals, sends what is owed, and ends the threads. In a forked child
    /// there is nothing to send and no thread to end.
    pub(crate) fn close(&self) {
        self.closing.cancel();
        if self.router.check_process().is_err() {
            return;
        }
        let threads = self.stop();
        let end = clock::now() + self.response_timeout;
        self.wait_for_calls(end);
        self.router.wait_until_settled(end);
        let reapers = self.router.finish();
        let end = clock::now() + self.response_timeout;
        threads.into_iter().chain(reapers).for_each(|thread| join(thread, end));
    }

    /// Tells the threads to end.
    fn stop(&self) -> Vec<JoinHandle<()>> {
        let executors = self.executor.close();
        self.watchdog.stop();
        let listeners = self.listeners.stop();
        // So that they look.
        self.send(self.waiters.beats());
        self.failover.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        executors.into_iter().chain(listeners).chain(threads).collect()
    }
}

/// A call that may leave something behind.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Engine {
    /// Never waits: it may run where the last guard is dropped. In a forked child a thread of
    /// the parent may have left a mutex locked.
    fn drop(&mut self) {
        if self.router.check_process().is_err() {
            return;
        }
        self.closing.cancel();
        self.stop();
    }
}

fn timeouts(settings: &Builder) -> Timeouts {
    let (replicas, span) = settings.min_replicas;
    Timeouts {
        connect: settings.connect_timeout,
        response: settings.response_timeout,
        replicas: if replicas == 0 { Duration::ZERO } else { span },
    }
}

/// Looks how the servers are set up. The watchdog looks at those of a cluster when there are
/// connections to them, unless a finding is to be an error.
fn audit(router: &Router, auditor: &Auditor, audit_policy: AuditPolicy) -> Result<()> {
    match (router, audit_policy) {
        (Router::Nodes(_), AuditPolicy::Report | AuditPolicy::Ignore) => Ok(()),
        _ => router.servers().into_iter().try_for_each(|(server, connection)| {
            auditor.look(server, |schedule| router.call_all(schedule, connection))
        }),
    }
}

/// Joins a thread, unless it is this one or takes too long.
fn join(thread: JoinHandle<()>, end: Moment) {
    if thread.thread().id() == std::thread::current().id() {
        return;
    }
    while !thread.is_finished() && clock::now() < end {
        std::thread::park_timeout(JOIN_STEP);
    }
    if !thread.is_finished() {
        return log::warn!("a thread of a closed client is still busy, and left to itself");
    }
    if thread.join().is_err() {
        log::error!("a thread of the client has panicked");
    }
}

fn sink(wanted: bool) -> (Sink, Option<Receiver<Event>>) {
    match wanted {
        true => {
            let (sink, told) = Sink::new();
            (sink, Some(told))
        }
        false => (Sink::default(), None),
    }
}

/// Starts the thread that calls `events`; it ends with the last handle of the client.
fn start_events(events: Arc<dyn Events>, told: Receiver<Event>) -> Result<()> {
    let tell = move || {
        for event in told {
            threads::survive(format_args!("telling of {event:?}"), || event.tell(&*events));
        }
    };
    threads::start("leasehold-events", tell).map(drop).map_err(|error| {
        Error::configuration(format!("the events thread cannot be started: {error}"))
    })
}
