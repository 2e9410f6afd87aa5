//! A model of processes that want the same lock and hear of its releases.
//!
//! Each process has one thread that wants the lock and one that listens: with the
//! real sessions (`listener.rs`), channels and questions, over a server inside the
//! model. Nobody polls, so a message that is missed is a deadlock, whatever happens
//! to the listener's connection and whenever a subscription is given up.
//!
//! Faults that it was seen to catch:
//! * who begins to listen never thinks that it has missed something, whether the
//!   channel is heard already or the listener has not been told of it;
//! * news is no reason to ask, or is counted after those who wait were rung;
//! * the listener does not look who waits once it can be told of channels;
//! * a confirmed subscription, or one that is given up, is no news;
//! * a listener that goes idle does not look who has come meanwhile.

use super::visitor::{Answered, Manners, Question, Surroundings, acquire};
use crate::command::call::{Call, ConnectionId};
use crate::command::name::Name;
use crate::command::owner::{HoldId, Owner};
use crate::connection::model::Server;
use crate::connection::{Address, Timeouts};
use crate::events::EventSink;
use crate::kind::plain::Plain;
use crate::kind::rules::{AcquireArgs, AcquireReply, KindRules as _, Wake};
use crate::listener::channels::{Channel, ListenerSession, Waiters};
use crate::listener::model::listen;
use crate::listener::{Listener, ListenerSettings};
use crate::local::Local;
use crate::local::hold::{HandoffBounds, Hold};
use crate::local::table::HoldShare;
use crate::topology::route::Route;
use crate::util::clock::Moment;
use crate::util::model::check;
use shuttle::thread::{self, JoinHandle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use uuid::Uuid;

const NOW: Moment = Moment::from_nanos(1_000_000_000);

struct Process {
    server: Arc<Server>,
    local: Local,
    waiters: Arc<Waiters>,
    listener: ListenerSettings,
    /// The one that goes idle and has to be called; else one listens all the time.
    called: Option<Arc<Listener>>,
    stop: AtomicBool,
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
            shard: None,
            linger: Duration::ZERO,
            idle: if goes_idle { Duration::ZERO } else { Duration::MAX },
        };
        let waiters = Arc::<Waiters>::default();
        let called = goes_idle.then(|| Listener::in_model(&listener, &waiters));
        let name = Name::new("", "model".into()).expect("a good name");
        Arc::new(Process {
            server: Arc::clone(server),
            local: Local::new(name, EventSink::default(), HandoffBounds::default()),
            waiters,
            listener,
            called,
            stop: AtomicBool::new(false),
        })
    }

    fn visit(&self) {
        let lease = acquire(self, &Manners::default()).expect("nothing makes it leave");
        self.end(&lease.expect("it waits"));
    }

    /// At every beat the listener gives up the subscriptions that nobody uses.
    fn beat(&self) {
        let control = self.listener.control.as_bytes();
        self.server.execute(&Call::command(&[b"PUBLISH", control, b""]));
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.called.iter().for_each(|listener| drop(listener.stop()));
        self.beat();
    }

    /// Has a process that is not modelled take the lock.
    fn hold_elsewhere(&self) -> Owner {
        let owner = Owner::new(Uuid::max(), HoldId::next(), "");
        let acquire = Plain.acquire(&AcquireArgs {
            name: self.local.name(),
            owner: &owner,
            lease: Duration::from_secs(10),
            beside: None,
            patience: None,
            fair_waiter_timeout: Duration::ZERO,
            threads: 1,
            wake: None,
        });
        let verdict = Plain.read_acquire(self.server.execute(&acquire)).expect("a number");
        assert!(matches!(verdict, AcquireReply::Granted(_)), "nobody holds it");
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
        self.start(|process| match &process.called {
            Some(listener) => listener.run_in_model(),
            None => listen(&process.listener, &process.waiters, &process.stop),
        })
    }
}

impl Surroundings for Process {
    fn local(&self) -> &Local {
        &self.local
    }

    fn known_channel(&self) -> Option<&Arc<Channel>> {
        self.local.known_channel(Plain.listens_to())
    }

    fn channel(&self) -> &Arc<Channel> {
        self.local.channel(Plain.listens_to(), &self.waiters).expect("it has one")
    }

    fn session(&self) -> Option<ListenerSession> {
        self.waiters.session()
    }

    fn call_listener(&self) {
        self.called.iter().for_each(Listener::call);
    }

    fn now(&self) -> Moment {
        NOW
    }

    fn polls(&self) -> u64 {
        0
    }

    fn ask(&self, hold: HoldId, question: Question) -> Answered {
        let call = Plain.acquire(&AcquireArgs {
            name: self.local.name(),
            owner: &Owner::new(Uuid::nil(), hold, ""),
            lease: Duration::from_secs(10),
            beside: None,
            patience: None,
            fair_waiter_timeout: Duration::ZERO,
            threads: 1,
            wake: question.tells.then_some(Wake {
                control: &self.listener.control,
                channel: self.local.name().channel(),
            }),
        });
        match Plain.read_acquire(self.server.execute(&call)).expect("a number") {
            AcquireReply::Granted(_) => Answered::Granted(ConnectionId::at(0, 0)),
            AcquireReply::Refused { .. } => Answered::Refused,
        }
    }

    fn clean_up(&self, _hold: HoldId, _lane: ConnectionId) {
        unreachable!("every question gets its answer here");
    }

    fn keep(&self, _lease: &Arc<Hold>) {}

    fn end(&self, lease: &Arc<Hold>) {
        self.local.end(
            lease,
            HoldShare::Guard,
            || NOW,
            || {
                let release = Plain.release(self.local.name(), lease.owner());
                self.server.execute(&release);
                ConnectionId::at(0, 0)
            },
        );
        self.local.release_settled(lease);
    }
}

/// Runs so many processes, with two visits each, while that happens.
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

/// Has a process visit while another holds the lock, which releases it at some time, and does
/// that meanwhile.
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
fn every_release_is_heard() {
    check(|| run(2, |_| {}));
    check(|| run(3, |_| {}));
}

#[test]
fn subscriptions_that_are_given_up_are_made_again() {
    check(|| {
        run(2, |processes| {
            processes.iter().chain(processes).for_each(|process| process.beat());
        });
    });
}

#[test]
fn releases_are_heard_although_connections_break() {
    check(|| {
        run(2, |processes| {
            processes[0].server.cut("0:listener");
            processes[0].server.cut("1:listener");
            processes[0].server.cut("0:listener");
        });
    });
}

#[test]
fn a_listener_that_goes_idle_hears_of_those_who_come_meanwhile() {
    check(|| {
        let process = Process::new(&Server::start(), 0, true);
        let listener = process.start_listener();
        visit_beside_a_holder(&process, |_| {});
        // The beat ends the subscription, and the connection after it.
        (0..10).for_each(|_| visit_beside_a_holder(&process, Process::beat));
        process.stop();
        join([listener]);
    });
}
