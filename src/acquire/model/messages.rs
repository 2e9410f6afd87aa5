//! A model of processes that want the same lock and are woken by messages.
//!
//! Each process has one thread that takes the lock and one listener thread, with the real sessions
//! (`listener/`), channels and retry schedules, and a server inside the model. No process polls, so
//! a missed message is a deadlock. The listener's connections may break and subscriptions may end
//! at any time.
//!
//! Faults that this model has caught:
//! * A registration never makes an attempt due, although the channel was subscribed before it, or
//!   the listener got no request for the channel.
//! * A message makes no attempt due, or is counted after the waiters are woken.
//! * The listener does not look for waiters once it accepts subscription requests.
//! * A confirmed subscription, or the end of a subscription, does not count as a message.
//! * A listener that goes idle does not look for waiters that have come in the meantime.

use super::wait_loop::{Attempt, AttemptOutcome, CallOptions, Environment, acquire};
use crate::command::name::Name;
use crate::command::owner::{HoldId, Owner};
use crate::events::EventSink;
use crate::kind::plain::Plain;
use crate::kind::rules::{AcquireArgs, AcquireReply, KindRules as _, Wake};
use crate::local::Local;
use crate::local::hold::{HandoffBounds, Hold};
use crate::local::table::HoldShare;
use crate::transport::call::{Call, ConnectionId};
use crate::transport::connection::model::Server;
use crate::transport::connection::{Address, Timeouts};
use crate::transport::listener::channels::{Channel, Channels, ListenerSession};
use crate::transport::listener::model::listen;
use crate::transport::listener::{Listener, ListenerOrders, ListenerSettings};
use crate::transport::topology::route::Route;
use crate::util::clock::Moment;
use crate::util::model::check;
use shuttle::thread::{self, JoinHandle};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uuid::Uuid;

const NOW: Moment = Moment::from_nanos(1_000_000_000);

struct Process {
    server: Arc<Server>,
    local: Local,
    channels: Arc<Channels>,
    listener: ListenerSettings,
    /// The listener that goes idle. If `None`, another listener listens all the time.
    idle_listener: Option<Arc<Listener>>,
    orders: ListenerOrders,
}

impl Process {
    fn new(server: &Arc<Server>, number: usize, goes_idle: bool) -> Arc<Process> {
        static ADDRESS: OnceLock<Address> = OnceLock::new();
        let address = ADDRESS.get_or_init(|| Address::parse("redis://model/").expect("a URL"));
        let listener = ListenerSettings {
            route: Route::To(Arc::new(address.clone())),
            timeouts: Timeouts {
                connect: Duration::MAX,
                response: Duration::MAX,
                replicas: Duration::ZERO,
            },
            name: format!("{number}:listener"),
            control: format!("{number}:control").into(),
            node: None,
            only_control: false,
            healths: Arc::default(),
            linger: Duration::ZERO,
            idle: if goes_idle { Duration::ZERO } else { Duration::MAX },
            quiet_silence: Duration::MAX,
        };
        let channels = Arc::<Channels>::default();
        let idle_listener = goes_idle.then(|| Listener::in_model(&listener, &channels));
        let name = Name::new("", "model".into()).expect("a good name");
        Arc::new(Process {
            server: Arc::clone(server),
            local: Local::new(name, EventSink::default(), HandoffBounds::default()),
            channels,
            listener,
            idle_listener,
            orders: ListenerOrders::default(),
        })
    }

    fn visit(&self) {
        let hold = acquire(self, &CallOptions::default()).expect("no call is cancelled");
        self.end(&hold.expect("the call waits"));
    }

    /// Sends a heartbeat, at which the listener ends subscriptions without waiters.
    fn send_heartbeat(&self) {
        let control = self.listener.control.as_bytes();
        self.server.execute(&Call::command(&[b"PUBLISH", control, b""]));
    }

    fn stop(&self) {
        self.orders.stop();
        self.idle_listener.iter().for_each(|listener| drop(listener.stop()));
    }

    /// Takes the lock for a process outside the model.
    fn hold_elsewhere(&self) -> Owner {
        let owner = Owner::new(Uuid::max(), HoldId::next(), "");
        let acquire = Plain.acquire(&AcquireArgs {
            name: self.local.name(),
            owner: &owner,
            lease: Duration::from_secs(10),
            beside: None,
            waiter_timeout: None,
            fair_waiter_timeout: Duration::ZERO,
            place: None,
            max_holders: 1,
            capacity: None,
            asks_capacity: false,
            with_slots: false,
            announced: None,
            wake: None,
        });
        let reply = Plain.read_acquire(self.server.execute(&acquire)).expect("a number");
        assert!(matches!(reply, AcquireReply::Granted(_)), "the lock is free");
        owner
    }

    fn release_elsewhere(&self, owner: &Owner) {
        self.server.execute(&Plain.release(self.local.name(), owner));
    }

    fn start(self: &Arc<Process>, act: impl FnOnce(&Process) + Send + 'static) -> JoinHandle<()> {
        let process = Arc::clone(self);
        thread::spawn(move || act(&process))
    }

    fn start_listener(self: &Arc<Process>) -> JoinHandle<()> {
        self.start(|process| match &process.idle_listener {
            Some(listener) => listener.run_in_model(),
            None => listen(&process.listener, &process.channels, &process.orders),
        })
    }
}

impl Environment for Process {
    fn local(&self) -> &Local {
        &self.local
    }

    fn known_channel(&self) -> Option<&Arc<Channel>> {
        self.local.known_channel(Plain.listens_to())
    }

    fn channel(&self) -> &Arc<Channel> {
        self.local.channel(Plain.listens_to(), &self.channels).expect("plain locks have a channel")
    }

    fn session(&self) -> Option<ListenerSession> {
        self.channels.session()
    }

    fn wake_listener(&self) {
        let messages = self.idle_listener.iter().filter_map(Listener::wake);
        messages.for_each(|message| drop(self.server.execute(&message)));
    }

    fn now(&self) -> Moment {
        NOW
    }

    fn polls(&self) -> u64 {
        0
    }

    fn attempt(&self, hold: HoldId, attempt: Attempt) -> AttemptOutcome {
        let call = Plain.acquire(&AcquireArgs {
            name: self.local.name(),
            owner: &Owner::new(Uuid::nil(), hold, ""),
            lease: Duration::from_secs(10),
            beside: None,
            waiter_timeout: None,
            fair_waiter_timeout: Duration::ZERO,
            place: None,
            max_holders: 1,
            capacity: None,
            asks_capacity: false,
            with_slots: false,
            announced: None,
            wake: attempt.requests_subscription.then_some(Wake {
                control: &self.listener.control,
                channel: self.local.name().channel(),
            }),
        });
        match Plain.read_acquire(self.server.execute(&call)).expect("a number") {
            AcquireReply::Granted(_) => AttemptOutcome::Granted(ConnectionId::at(0, 0)),
            AcquireReply::Refused { .. } => AttemptOutcome::Refused,
            reply => unreachable!("no reply to a plain acquire: {reply:?}"),
        }
    }

    fn clean_up(&self, _hold: HoldId, _connection: ConnectionId) {
        unreachable!("every attempt has a reply in this model");
    }

    fn keep(&self, _hold: &Arc<Hold>) {}

    fn end(&self, hold: &Arc<Hold>) {
        self.local.end(
            hold,
            HoldShare::Guard,
            || NOW,
            || {
                let release = Plain.release(self.local.name(), hold.owner());
                self.server.execute(&release);
                ConnectionId::at(0, 0)
            },
        );
        self.local.release_settled(hold);
    }
}

/// Runs `number` processes, each of which takes the lock twice, at the same time as `meanwhile`.
fn run(number: usize, meanwhile: impl FnOnce(&[Arc<Process>]) + Send + 'static) {
    let server = Server::start();
    let processes: Vec<_> =
        (0..number).map(|number| Process::new(&server, number, false)).collect();
    let visits = |process: &Process| (0..2).for_each(|_| process.visit());
    let mut visitors: Vec<_> = processes.iter().map(|process| process.start(visits)).collect();
    let listeners: Vec<_> = processes.iter().map(Process::start_listener).collect();
    let all = processes.clone();
    visitors.push(thread::spawn(move || meanwhile(&all)));
    join(visitors);
    processes.iter().for_each(|process| process.stop());
    join(listeners);
    assert!(!server.is_locked());
    processes.iter().for_each(|process| process.local.assert_at_rest());
}

/// Starts a visit while another process holds the lock, runs `meanwhile`, and ends that hold.
fn visit_beside_a_holder(process: &Arc<Process>, meanwhile: impl FnOnce(&Process)) {
    let owner = process.hold_elsewhere();
    let visitor = process.start(Process::visit);
    meanwhile(process);
    process.release_elsewhere(&owner);
    join([visitor]);
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread of a model panics"));
}

#[test]
fn every_release_wakes_a_waiter() {
    check(|| run(2, |_| {}));
    check(|| run(3, |_| {}));
}

#[test]
fn ended_subscriptions_are_made_again() {
    check(|| {
        run(2, |processes| {
            processes.iter().chain(processes).for_each(|process| process.send_heartbeat());
        });
    });
}

#[test]
fn releases_wake_waiters_although_connections_break() {
    check(|| {
        run(2, |processes| {
            processes[0].server.cut("0:listener");
            processes[0].server.cut("1:listener");
            processes[0].server.cut("0:listener");
        });
    });
}

#[test]
fn a_listener_that_goes_idle_finds_waiters_that_come_meanwhile() {
    check(|| {
        let process = Process::new(&Server::start(), 0, true);
        let listener = process.start_listener();
        visit_beside_a_holder(&process, |_| {});
        // The heartbeat ends the subscription, and then the connection.
        (0..10).for_each(|_| visit_beside_a_holder(&process, Process::send_heartbeat));
        process.stop();
        join([listener]);
    });
}

#[test]
fn a_quiet_listener_finds_waiters_that_come_meanwhile() {
    check(|| {
        let process = Process::new(&Server::start(), 0, true);
        process.idle_listener.iter().for_each(Listener::stay_connected);
        let listener = process.start_listener();
        visit_beside_a_holder(&process, |_| {});
        // The heartbeat ends the subscription; the connection then becomes quiet.
        (0..5).for_each(|_| visit_beside_a_holder(&process, Process::send_heartbeat));
        process.stop();
        join([listener]);
    });
}
