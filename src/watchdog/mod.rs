//! The thread that renews leases, notices lost holds, and polls for waiting callers.
//!
//! Every hold has a timer ([`timers`]). The timer of a renewed lease fires before a third of the
//! lease has passed: a jitter spreads the renewals of locks that were taken together. The timer of
//! a fixed lease fires after the same period, or at the deadline; the server is then asked whether
//! it has the hold. To take and drop a lock costs one insertion and one
//! removal of a timer, and no system call.
//!
//! Before each round the thread starts the threads of the client for which the system had no room.
//!
//! A round of the thread:
//! 1. After a topology change, closes connections to former servers, forgets these servers, and
//!    makes all waiting callers try again. All leases are then due.
//! 2. Sends the due renewals ([`renewals`]) in batches ([`batches`]) over a connection of its own.
//!    All batches are written before any reply is read, with one time-out, and connections are
//!    made in the background: no node waits for another.
//! 3. After a reconnection of this client (its listeners excepted) or a topology change, renews or
//!    verifies all holds of servers that may have lost their data: servers that do not report the
//!    same replication id as before ([`replication_ids`]).
//! 4. Polls for waiting callers ([`polls`]), sends queue heartbeats for the callers that wait for
//!    queue locks ([`queue_heartbeats`]), releases the holds of processes that are gone
//!    ([`dead_holders`]), audits new servers (`audit.rs`), and
//!    logs outages ([`health_report`]).
//! 5. Writes or renews the record of the client in the background ([`client_record`]).
//! 6. Announces the leaders of elections again, if that is due ([`leader_records`]).
//! 7. Sends a heartbeat to each connected listener that callers need, on the client's own channel,
//!    at most a second after the last one. Heartbeats prove that messages arrive. A listener that
//!    no caller needs gets its heartbeat in step 5, with each renewal.

mod batches;
mod client_record;
mod dead_holders;
mod health_report;
mod leader_records;
mod polls;
mod queue_heartbeats;
mod renewals;
mod replication_ids;
mod timers;
mod watched_hold;

pub(crate) use client_record::Announcer;
pub(crate) use leader_records::Announcement;
pub(crate) use renewals::{extension_call, is_extended};
pub(crate) use watched_hold::{WatchedHold, cleaned_up};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::audit::Auditor;
use crate::cancel::Limit;
use crate::command::client_record::ClientRecord;
use crate::error::{Error, Result};
use crate::events::{Event, EventSink, Reconnected};
use crate::local::Local;
use crate::transport::listener::channels::Channels;
use crate::transport::listener::listeners::Listeners;
use crate::transport::pool::LongestWait;
use crate::transport::pool::request::Failure;
use crate::transport::pool::router::Router;
use crate::transport::topology::failover::ServerObserver;
use crate::transport::topology::health::GrowingPause;
use crate::transport::topology::route::Generation;
use crate::util::clock::{self, Moment};
use crate::util::executor::Executor;
use crate::util::log_lines::{self, LINES};
use crate::util::log_target;
use crate::util::sync::{Mutex, Parker};
use crate::util::system::thread::JoinHandle;
use crate::util::threads;
use dead_holders::Fates;
use leader_records::Announcements;
use replication_ids::ReplicationIds;
use timers::Timers;

/// The longest sleep, which bounds the delay of renewals after the machine was suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The pause while a connection is made, or after a topology change.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// The divisor of the poll interval that gives the span in which polls go out together.
///
/// Polls are planned so early that the head of the queue can try again within the poll interval.
const POLL_GRAIN_DIVISOR: u32 = 8;

/// The divisor of a lease that gives the longest wait for a reply, and the longest sleep.
const WAIT_DIVISOR: u32 = 6;

/// The settings of a watchdog.
#[derive(Debug)]
pub(crate) struct WatchdogSettings {
    /// The length of renewed leases.
    pub(crate) timeout: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) poll_interval: Duration,
    /// The id of the client.
    pub(crate) client: Uuid,
    /// The record of the client at its start, to compare those of others with.
    pub(crate) own_record: ClientRecord,
    /// The longest lease of a grant by message.
    pub(crate) grant_lease: Duration,
    /// The longest wait for a reply.
    pub(crate) longest_wait: Arc<LongestWait>,
    pub(crate) events: EventSink,
    pub(crate) executor: Arc<Executor>,
}

/// The watchdog of one client.
pub(crate) struct Watchdog {
    settings: WatchdogSettings,
    router: Arc<Router>,
    channels: Arc<Channels>,
    listeners: Arc<Listeners>,
    auditor: Arc<Auditor>,
    /// Announces the client; `None` with `announce(false)`.
    announcer: Option<Arc<Announcer>>,
    announcements: Announcements,
    timers: Mutex<Timers>,
    parker: Parker,
    /// Whether the next round renews or verifies all holds.
    renew_all: AtomicBool,
    /// Whether a reconnection or a topology change was reported since the last round that dealt
    /// with it.
    server_may_have_changed: AtomicBool,
    /// The pause between such rounds: the commands of a round may need new connections.
    doubts: Mutex<GrowingPause>,
    replication_ids: ReplicationIds,
    /// What the records of other clients say about the end of their holds.
    fates: Fates,
    /// The generation of the last round.
    generation: Mutex<Generation>,
    stop: AtomicBool,
}

/// Returns the longest wait for a reply, a part of the shortest renewed lease: the watchdog renews
/// nothing while it waits.
pub(crate) fn longest_wait(lease: Duration) -> Duration {
    lease / WAIT_DIVISOR
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = self.timers.lock().holds.len();
        f.debug_struct("Watchdog").field("holds", &holds).finish_non_exhaustive()
    }
}

impl ServerObserver for Watchdog {
    fn reconnected(&self, address: &Arc<str>) {
        self.settings.events.stats().reconnected();
        let (at, server) = (clock::wall_time(), Arc::clone(address));
        self.settings.events.emit(|| Event::Reconnected(Reconnected { at, server }));
        self.server_may_have_changed();
    }

    fn server_may_have_changed(&self) {
        self.server_may_have_changed.store(true, Ordering::Release);
        self.parker.unpark();
    }
}

impl Watchdog {
    pub(crate) fn new(
        settings: WatchdogSettings,
        router: Arc<Router>,
        channels: Arc<Channels>,
        listeners: Arc<Listeners>,
        auditor: Arc<Auditor>,
        announcer: Option<Arc<Announcer>>,
    ) -> Watchdog {
        Watchdog {
            settings,
            router,
            channels,
            listeners,
            auditor,
            announcer,
            announcements: Announcements::default(),
            timers: Mutex::new(Timers::new(clock::now())),
            parker: Parker::default(),
            renew_all: AtomicBool::new(false),
            server_may_have_changed: AtomicBool::new(false),
            doubts: Mutex::default(),
            replication_ids: ReplicationIds::default(),
            fates: Fates::default(),
            generation: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// Starts the thread; the caller joins it after [`Watchdog::stop`].
    pub(crate) fn start(self: &Arc<Watchdog>) -> Result<JoinHandle<()>> {
        let watchdog = Arc::clone(self);
        threads::start("leasehold-watchdog", move || watchdog.run()).map_err(|error| {
            Error::configuration("the watchdog thread cannot be started").with_source(error)
        })
    }

    /// Makes the thread end after its present round. Does not block.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.parker.unpark();
    }

    /// Prepares for leases of this length: shortens the waits for replies and the leases of grants
    /// by message, if they are too long.
    pub(crate) fn expect_lease(&self, lease: Duration) {
        self.settings.longest_wait.shorten(longest_wait(lease));
    }

    /// Returns the lease of a grant by message: at most the shortest renewed lease of the client.
    pub(super) fn grant_lease(&self) -> Duration {
        self.settings.grant_lease.min(self.settings.longest_wait.get() * WAIT_DIVISOR)
    }

    /// Watches a hold whose acquire command was sent in `generation`.
    ///
    /// A topology change since then has renewed only the holds that were watched already, so all
    /// holds are renewed once more.
    pub(crate) fn watch_granted(&self, watched: WatchedHold, generation: Generation) {
        self.keep_record_for(watched.hold.lease());
        self.watch(watched);
        if self.router.generation() != generation {
            self.renew_all.store(true, Ordering::Release);
            self.parker.unpark();
        }
        if self.announcer.as_ref().is_some_and(|announcer| announcer.is_first_hold()) {
            self.parker.unpark();
        }
    }

    fn run(&self) {
        let mut next_heartbeat = Moment::START;
        while !self.stop.load(Ordering::Acquire) {
            // Starts threads that are needed, and for which the system had no room.
            log_lines::start_missing_writer();
            self.router.start_missing_reapers();
            self.settings.executor.start_missing_worker();
            let round = || self.round(&mut next_heartbeat);
            let next_round = threads::catch_panic("renewing leases", round);
            self.parker.park_until(next_round.unwrap_or_else(|| {
                // The round that panicked may have done any part of its work.
                self.renew_all.store(true, Ordering::Release);
                clock::now() + threads::PANIC_PAUSE
            }));
        }
        threads::catch_panic("deleting the client record", || self.withdraw());
    }

    /// Does all that is due; returns the moment of the next round.
    fn round(&self, next_heartbeat: &mut Moment) -> Moment {
        let now = clock::now();
        let (holds, polled) = self.timers.lock().advance(now);
        self.follow_topology();
        let mut due = self.due_holds(holds, now);
        let servers_may_have_changed = self.takes_doubt(now);
        let renew_all = self.renew_all.swap(false, Ordering::AcqRel);
        if renew_all {
            due.extend(self.all_holds());
        }
        self.renew(due);
        if servers_may_have_changed && !renew_all {
            self.renew(self.holds_in_doubt());
        }
        let has_changed = servers_may_have_changed || renew_all;
        if has_changed {
            self.restore_places();
        }
        self.poll_locks(polled);
        self.poll_early(now);
        let done = self.timers.lock().take_fired();
        drop(done);
        self.audit();
        self.report_health();
        let next_look = self.announce(has_changed).min(self.announce_leaders(has_changed));
        if !self.channels.needs_heartbeats() {
            return self.plan_round(next_look);
        }
        if *next_heartbeat <= now {
            *next_heartbeat = now + self.settings.heartbeat_interval;
            self.send_heartbeats();
        }
        self.plan_round(next_look.min(*next_heartbeat))
    }

    /// Plans the next round for the earliest timer, at the latest for `at`.
    fn plan_round(&self, at: Moment) -> Moment {
        let longest = LONGEST_SLEEP.min(self.settings.longest_wait.get());
        let mut latest = at.min(clock::now() + longest);
        if self.server_may_have_changed.load(Ordering::Acquire) {
            latest = latest.min(self.doubts.lock().end());
        }
        self.timers.lock().plan_round(latest)
    }

    /// Returns whether this round has to look for servers without their data.
    ///
    /// A look may need new connections, which are reported and call for the next look.
    fn takes_doubt(&self, now: Moment) -> bool {
        let mut pause = self.doubts.lock();
        let takes =
            pause.end() <= now && self.server_may_have_changed.swap(false, Ordering::AcqRel);
        if takes {
            pause.attempted(now);
        }
        takes
    }

    /// After a topology change, leaves and forgets the former servers, and wakes all waiting
    /// callers.
    fn follow_topology(&self) {
        let generation = self.router.generation();
        let before = std::mem::replace(&mut *self.generation.lock(), generation);
        if before != generation {
            self.renew_all.store(true, Ordering::Release);
            self.router.leave_old_servers();
            self.listeners.leave_old_nodes();
            let servers = self.router.used_servers();
            self.auditor.retain(&servers);
            self.replication_ids.retain(&servers);
            self.router.end_pauses();
            self.channels.wake_all();
        }
        self.router.drop_former_pools();
    }

    /// Audits the servers that are connected for the first time.
    fn audit(&self) {
        for (server, connection) in self.router.connected_servers() {
            let ask = |calls| self.router.call_all(calls, connection);
            // The auditor reports its findings; it is too late to refuse the server.
            let _ = self.auditor.audit(server, ask);
        }
    }

    fn send_heartbeats(&self) {
        let heartbeats = self.channels.heartbeats().into_iter();
        let pending: Vec<_> = heartbeats.flat_map(|beat| self.router.queue_private(beat)).collect();
        for heartbeat in pending {
            let (_, outcome) = self.router.wait_without_retry(heartbeat, &Limit::none());
            if let Err(Failure { error, .. }) = outcome {
                log::debug!(
                    logger: LINES, target: log_target::CONNECTION,
                    error:% = error.with_causes(), server = error.server();
                    "a listener's heartbeat could not be sent: {}", error.with_causes()
                );
            }
        }
    }

    /// Returns the slot of a lock; one script call takes keys of one slot.
    fn slot_of(&self, local: &Local) -> u16 {
        self.router.slot_of(local.name().key())
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::audit::{AuditPolicy, AuditScope};
    use crate::command::name::Name;
    use crate::command::owner::Owner;
    use crate::events::Kind;
    use crate::kind::plain::Plain;
    use crate::kind::rules::{AcquireArgs, KindRules, ListensTo};
    use crate::local::hold::{self, Grant, Hold};
    use crate::transport::call::Call;
    use crate::transport::connection::{Address, Timeouts};
    use crate::transport::listener::ListenerSettings;
    use crate::transport::pool::{PoolServer, PoolSettings, PoolTimeouts};
    use crate::transport::script::Script;
    use crate::transport::topology::cluster::Cluster;
    use crate::transport::topology::route::Route;

    const SECOND: Duration = Duration::from_secs(1);

    /// A kind whose first renewal panics.
    struct Panics(AtomicBool);

    impl KindRules for Panics {
        fn kind(&self) -> Kind {
            Plain.kind()
        }

        fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
            Plain.acquire(args)
        }

        fn release(&self, name: &Name, owner: &Owner) -> Call {
            Plain.release(name, owner)
        }

        fn renewal(&self) -> &'static Script {
            assert!(self.0.swap(true, Ordering::Relaxed), "this is expected");
            Plain.renewal()
        }
    }

    static PANICS: Panics = Panics(AtomicBool::new(false));

    const TIMEOUTS: Timeouts =
        Timeouts { connect: SECOND, response: SECOND, replicas: Duration::ZERO };

    /// Returns a cluster without a reachable node.
    fn cluster() -> Arc<Cluster> {
        let seeds = vec![Address::parse("redis://127.0.0.1:1/").expect("a good URL")];
        Arc::new(Cluster::new(seeds, "test".to_owned(), TIMEOUTS))
    }

    fn unreachable_cluster() -> Router {
        let (cluster, timeouts) = (cluster(), TIMEOUTS);
        let settings = PoolSettings {
            server: PoolServer {
                node: 0,
                is_cluster_node: true,
                route: Route::Node(Arc::clone(&cluster)),
            },
            process: std::process::id(),
            name: "test".to_owned(),
            size: 1,
            timeouts: PoolTimeouts {
                shared: timeouts,
                longest_private: Arc::new(LongestWait::new(SECOND)),
                queue: SECOND,
            },
            replicas: 0,
            refuses_replica: false,
            longest_repeat: SECOND,
            healths: Arc::default(),
        };
        Router::cluster(cluster, settings, Arc::default())
    }

    fn watchdog() -> Watchdog {
        let settings = WatchdogSettings {
            timeout: 30 * SECOND,
            heartbeat_interval: SECOND,
            poll_interval: SECOND,
            client: Uuid::nil(),
            own_record: ClientRecord::default(),
            grant_lease: SECOND,
            longest_wait: Arc::new(LongestWait::new(SECOND)),
            events: EventSink::default(),
            executor: Arc::default(),
        };
        let scope = AuditScope { of_cluster: true, allows_replica: false };
        let auditor = Auditor::new(AuditPolicy::Ignore, scope, EventSink::default());
        let (router, auditor) = (Arc::new(unreachable_cluster()), Arc::new(auditor));
        let (channels, route) = (Arc::<Channels>::default(), Route::Node(cluster()));
        let listeners = Arc::new(Listeners::new(
            ListenerSettings {
                route,
                node: None,
                only_control: false,
                timeouts: TIMEOUTS,
                name: "test".to_owned(),
                control: "test".into(),
                healths: Arc::default(),
                linger: SECOND,
                idle: SECOND,
                quiet_silence: SECOND,
            },
            Arc::clone(&channels),
            None,
        ));
        Watchdog::new(settings, router, channels, listeners, auditor, None)
    }

    fn local() -> Arc<Local> {
        let name = Name::new("", "a".into()).expect("a good name");
        Arc::new(Local::new(name, EventSink::default(), Default::default()))
    }

    /// A thread sets the timer of a fixed lease while another makes the hold renewed.
    #[test]
    fn a_fixed_lease_does_not_delay_the_timer_of_a_hold_that_becomes_renewed() {
        let local = local();
        for round in 0..5_000 {
            let (watchdog, now) = (watchdog(), clock::now());
            let grant = Grant { renewed: false, ..Grant::owned(now, now + 10 * SECOND) };
            let hold = Arc::new(Hold::new(grant));
            let watched = WatchedHold { local: Arc::clone(&local), hold: Arc::clone(&hold) };
            let started = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    started.store(true, Ordering::Relaxed);
                    watchdog.watch(watched.clone());
                });
                while !started.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                // A little later in each round.
                (0..round % 200).for_each(|_| std::hint::spin_loop());
                hold.keep_renewed();
                watchdog.unwatch(&hold);
                watchdog.watch(watched.clone());
            });
            let (soon, _) = watchdog.timers.lock().advance(now + 5 * SECOND);
            assert_eq!(soon.len(), 1, "round {round}: the renewal comes after the lease");
        }
    }

    #[test]
    fn a_round_that_panics_loses_no_hold() {
        let (watchdog, now, local) = (watchdog(), clock::now(), local());
        // Only a third of a lease is left, so both renewals are due at once.
        let watch = |rules: &'static dyn KindRules| {
            let lease = 30 * SECOND;
            let grant = Grant { rules, lease, ..Grant::owned(now, now + 10 * SECOND) };
            let hold = Arc::new(Hold::new(grant));
            watchdog.watch(WatchedHold { local: Arc::clone(&local), hold });
        };
        watch(&PANICS);
        watch(&Plain);
        let round = || watchdog.round(&mut Moment::START.clone());
        assert_eq!(threads::catch_panic("testing", round), None);
        let holds = || watchdog.timers.lock().holds.len();
        assert_eq!(holds(), 0, "their timers have fired");
        threads::catch_panic("testing", round).expect("only the first round panics");
        assert_eq!(holds(), 2);
    }

    /// Until the next check is answered, a holder does not learn of a loss.
    #[test]
    fn the_next_check_of_a_hold_is_due_before_a_third_of_the_lease_has_passed() {
        let (watchdog, local, lease) = (watchdog(), local(), 30 * SECOND);
        for number in 0..2_000 {
            let now = clock::now();
            let grant = Grant { lease, ..Grant::owned(now, hold::deadline(now, lease)) };
            let fixed = Grant { renewed: number % 2 == 0, ..grant };
            let hold = Arc::new(Hold::new(fixed));
            let at = watchdog.renewal_time(&WatchedHold { local: Arc::clone(&local), hold });
            let after = now.until(at);
            assert!(after > lease / 5, "many holds would be renewed without need: {after:?}");
            // The rest is for the resolution of the timers and for a round trip.
            assert!(after + lease / 120 + timers::TICK <= lease / 3, "{after:?}");
        }
    }

    #[test]
    fn a_round_that_panics_after_its_polls_leaves_one_timer_per_lock() {
        let (watchdog, now, local) = (watchdog(), clock::now(), local());
        let channel = local.channel(ListensTo::Latch, &watchdog.channels).expect("a channel");
        let _waiting = channel.register(&Parker::mine());
        watchdog.plan_poll(Arc::clone(&local));
        for seconds in [2, 4] {
            let (_, polled) = watchdog.timers.lock().advance(now + seconds * SECOND);
            assert_eq!(polled.len(), 1, "after {seconds} s");
            // The round ends here, without a call of `take_fired`.
            watchdog.poll_locks(polled);
        }
    }

    #[test]
    fn a_lock_whose_polls_end_is_not_repeated_after_a_panic() {
        let (watchdog, now, local) = (watchdog(), clock::now(), local());
        watchdog.plan_poll(Arc::clone(&local));
        let (_, polled) = watchdog.timers.lock().advance(now + 2 * SECOND);
        watchdog.keep_polled(polled);
        let (_, polled) = watchdog.timers.lock().advance(now + 4 * SECOND);
        assert_eq!(polled.len(), 0, "a caller that waits again has planned the poll");
    }
}
