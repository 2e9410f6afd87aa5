//! Who injects faults, from a seed.

use super::checks::{ALL_SLOTS, Disturbance, Effect, Slots, Whom};
use super::crew::Crew;
use super::fault::Fault;
use super::plan::{Layout, Plan};
use super::site::{Site, whose, wipe};
use super::{Nanos, millis, now};
use crate::harness::{Connections, Direction, Flow, Proxy, Server};
use std::ops::Range;
use std::thread;
use std::time::Duration;

/// After the end of a fault a client's question may stand for a response time-out, and its next
/// connection takes as long at most.
const RECOVERY: Nanos = millis(2000);

/// How far a clock steps, in milliseconds.
pub const STEP: u64 = 3000;

/// How often connections are cut while that is the fault.
const CUTS: usize = 12;

/// How late replies come at most while connections are cut.
const SLOW: Duration = Duration::from_millis(100);

/// Kills the workers' connections, those that subscribe or the others. Not the sentinels': they
/// would take a master for dead whose connections they have to make anew.
fn kill(server: &Server, subscribers: bool) {
    let ours = server.clients().into_iter().filter(|peer| peer.name.starts_with("leasehold:"));
    for peer in ours.filter(|peer| peer.flags.contains('P') == subscribers) {
        // It may have closed since.
        server.client_kill(peer.id);
    }
}

/// Who injects them.
pub struct Nemesis<'a> {
    plan: &'a Plan,
    site: &'a Site,
    dice: fastrand::Rng,
    /// The faults that are still to come before any comes again.
    deck: Vec<Fault>,
    /// Who served locks at the last look, and when that was.
    serving: (Serving, Nanos),
    /// How often the faults were dealt.
    dealt: usize,
    pub disturbances: Vec<Disturbance>,
}

/// The ports of those that serve locks, and how often that has changed: one may have taken
/// another's place, and given it back.
type Serving = (Vec<u16>, u64);

fn serving(site: &Site) -> Serving {
    (site.masters().into_iter().map(Server::port).collect(), site.epoch())
}

/// Whether this fault alone explains what has changed: one master was replaced, once, or a slot
/// has moved.
fn explains(fault: Fault, (before, epoch): &Serving, (after, later): &Serving) -> bool {
    let gone = before.iter().filter(|port| !after.contains(port)).count();
    let explained = match fault {
        Fault::MoveSlot => before == after,
        fault => fault.is_of_masters() && gone <= 1,
    };
    explained && *later <= epoch + 1
}

/// What a fault meets, and what it may do.
struct Harm {
    whom: Whom,
    effect: Effect,
    slots: Vec<Slots>,
}

impl Harm {
    /// One that may be done to all locks.
    fn to_all(whom: Whom, effect: Effect) -> Harm {
        Harm { whom, effect, slots: vec![ALL_SLOTS] }
    }
}

impl<'a> Nemesis<'a> {
    pub fn new(plan: &'a Plan, site: &'a Site) -> Nemesis<'a> {
        let dice = fastrand::Rng::with_seed(plan.seed);
        let serving = (serving(site), now());
        let (deck, disturbances) = (Vec::new(), Vec::new());
        Nemesis { plan, site, dice, deck, serving, dealt: 0, disturbances }
    }

    /// Whether every fault has come once.
    pub fn has_dealt_all(&self) -> bool {
        self.dealt > 0 && self.deck.is_empty()
    }

    /// On a machine that is busy enough servers take each other for dead though nobody has
    /// done anything to them. What they forget then is no surprise.
    pub fn look_for_changes(&mut self, fault: Fault) {
        let (serving, now) = (serving(self.site), now());
        let (before, from) = std::mem::replace(&mut self.serving, (serving, now));
        let after = &self.serving.0;
        if before != *after && !explains(fault, &before, after) {
            let harm = Harm::to_all(Whom::All, Effect::Forgets);
            self.note("change of masters".to_owned(), [from, now], harm);
        }
    }

    fn note(&mut self, name: String, [from, over]: [Nanos; 2], harm: Harm) {
        let (to, Harm { whom, effect, slots }) = (over + RECOVERY, harm);
        self.disturbances.push(Disturbance { name, from, over, to, whom, effect, slots });
    }

    /// A while without any fault.
    pub fn rest(&mut self) {
        self.pause(self.plan.quiet.clone());
        self.look_for_changes(Fault::Quiet);
    }

    /// One fault, and often one of a client beside it, for a while, after one without any.
    pub fn strike(&mut self, crew: &mut Crew) {
        self.rest();
        let fault = self.draw();
        let beside = (!fault.is_of_clients() && self.dice.u8(0..100) < 40)
            .then(|| self.client_fault())
            .flatten();
        self.site.identify();
        let from = now();
        let begun: Vec<_> = [Some(fault), beside]
            .into_iter()
            .flatten()
            .map(|fault| (fault, self.begin(fault, crew)))
            .collect();
        self.pause(self.plan.lasting.clone());
        self.end(crew, begun.iter().any(|(fault, _)| *fault == Fault::HalfOpen));
        let over = now();
        self.look_for_changes(fault);
        for (fault, harm) in begun {
            self.note(format!("{fault:?}"), [from, over], harm);
        }
        if fault == Fault::MoveClock {
            // Tokens are ahead of the clock for so long: until then no counter must be lost.
            self.pause(STEP..STEP + 1);
        }
    }

    fn draw(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = self.plan.faults.clone();
            self.dice.shuffle(&mut self.deck);
            self.dealt += 1;
        }
        self.deck.pop().expect("a plan has faults")
    }

    fn client_fault(&mut self) -> Option<Fault> {
        let fault = self.dice.choice(Fault::CLIENTS).expect("there are some");
        self.plan.faults.contains(&fault).then_some(fault)
    }

    fn pause(&mut self, millis: Range<u64>) {
        thread::sleep(Duration::from_millis(self.dice.u64(millis)));
    }

    fn begin(&mut self, fault: Fault, crew: &mut Crew) -> Harm {
        match fault {
            Fault::Quiet => Harm::to_all(Whom::Nobody, Effect::Delays),
            Fault::KillWorker
            | Fault::StopWorker
            | Fault::CutOffWorker
            | Fault::LateRequests
            | Fault::LateReplies => {
                let worker = self.dice.usize(..crew.len());
                self.begin_at(fault, worker, crew)
            }
            Fault::CutOffSubscribers
            | Fault::KillConnections
            | Fault::KillSubscribers
            | Fault::FlushScripts => self.begin_unfelt(fault),
            Fault::HalfOpen | Fault::DelayReplies | Fault::CutReplies | Fault::CutRequests => {
                self.begin_on_the_way(fault, crew);
                Harm::to_all(Whom::All, Effect::Delays)
            }
            Fault::FullServer
            | Fault::StopServers
            | Fault::KillServers
            | Fault::EmptyServer
            | Fault::MoveClock => Harm::to_all(Whom::All, self.begin_at_servers(fault)),
            Fault::FailOver | Fault::KillMaster | Fault::StopMaster | Fault::CutOffMaster => {
                self.begin_at_a_master(fault, crew)
            }
            Fault::StopReplica | Fault::KillReplica | Fault::StopSentinel | Fault::KillSentinel => {
                self.begin_at_a_bystander(fault);
                Harm::to_all(Whom::Nobody, Effect::Delays)
            }
            Fault::MoveSlot => {
                self.move_slot();
                Harm::to_all(Whom::All, Effect::Delays)
            }
        }
    }

    /// A fault of one worker.
    fn begin_at(&self, fault: Fault, worker: usize, crew: &mut Crew) -> Harm {
        let member = crew.member(worker);
        match fault {
            Fault::KillWorker => crew.kill(worker),
            Fault::StopWorker => crew.stop(worker),
            Fault::CutOffWorker => self.site.cut_off_client(&member, |_| true),
            late => {
                let requests = late == Fault::LateRequests;
                let way = if requests { Direction::Requests } else { Direction::Replies };
                let whose = whose(member);
                self.site.fronts().for_each(|front| front.set_for(whose.clone(), way, Flow::Hold));
            }
        }
        Harm::to_all(Whom::Worker(crew.index(worker)), Effect::Delays)
    }

    /// Faults that nobody's wait is to suffer from for longer than the bounds.
    fn begin_unfelt(&mut self, fault: Fault) -> Harm {
        for server in self.site.masters() {
            match fault {
                Fault::CutOffSubscribers => server.gate().keep_apart(&Connections::Subscribers),
                // Once: what is cut off twice may be an error.
                Fault::KillConnections => kill(server, false),
                Fault::KillSubscribers => self.kill_again_and_again(server),
                _ => server.ask::<()>(&["SCRIPT", "FLUSH"]),
            }
        }
        Harm::to_all(Whom::Nobody, Effect::Delays)
    }

    fn kill_again_and_again(&mut self, server: &Server) {
        for _ in 0..CUTS {
            kill(server, true);
            self.pause(0..50);
        }
    }

    /// Faults between workers and servers; servers reach each other.
    fn begin_on_the_way(&mut self, fault: Fault, crew: &Crew) {
        let delay = Duration::from_millis(self.dice.u64(20..900));
        match fault {
            Fault::HalfOpen => {
                self.set_for_all(crew, Direction::Requests, Flow::Swallow);
                self.set_for_all(crew, Direction::Replies, Flow::Swallow);
            }
            // Not of all: one is to be told in time what another hears late.
            Fault::DelayReplies => self.each_way(crew.len().div_ceil(2), crew, |front, worker| {
                front.delay_for(worker, Direction::Replies, delay);
            }),
            _ => {
                let replies = fault == Fault::CutReplies;
                let way = if replies { Direction::Replies } else { Direction::Requests };
                // What is sent again after a cut comes so much later.
                let slow = delay.min(SLOW);
                self.each_way(crew.len(), crew, |front, worker| {
                    front.delay_for(worker, Direction::Replies, slow);
                });
                for _ in 0..CUTS {
                    // In the next reply, or in one of those that come soon.
                    let most = *self.dice.choice(&[8, 200]).expect("two");
                    let cut = Flow::CutAfter(self.dice.usize(0..most));
                    self.set_for_all(crew, way, cut);
                    self.pause(0..100);
                }
            }
        }
    }

    fn set_for_all(&self, crew: &Crew, way: Direction, flow: Flow) {
        self.each_way(crew.len(), crew, |front, worker| front.set_for(worker, way, flow));
    }

    fn each_way(&self, workers: usize, crew: &Crew, act: impl Fn(&Proxy, Connections)) {
        for front in self.site.fronts() {
            (0..workers).for_each(|worker| act(front, whose(crew.member(worker))));
        }
    }

    fn begin_at_servers(&mut self, fault: Fault) -> Effect {
        let mut servers: Vec<&Server> = self.site.servers().iter().collect();
        self.dice.shuffle(&mut servers);
        // A minority, a majority or all.
        let some = self.dice.usize(1..=servers.len());
        for server in &servers[..some] {
            match fault {
                Fault::FullServer => server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]),
                Fault::StopServers => self.site.stop(server),
                Fault::KillServers => self.site.kill(server),
                Fault::EmptyServer => {
                    self.site.kill(server);
                    wipe(server);
                }
                _ => server.set_clock(self.step()),
            }
        }
        match fault {
            Fault::EmptyServer if self.plan.layout == Layout::One => Effect::Empties,
            Fault::EmptyServer | Fault::MoveClock => Effect::Forgets,
            _ => Effect::Delays,
        }
    }

    fn step(&mut self) -> i64 {
        let step = i64::try_from(STEP).expect("a few seconds");
        if self.dice.bool() { step } else { -step }
    }

    fn begin_at_a_master(&mut self, fault: Fault, crew: &mut Crew) -> Harm {
        let masters = self.site.masters();
        let master = *self.dice.choice(&masters).expect("there is a master");
        let (replica, slots) = (self.replica_of(master), self.site.slots_of(master));
        let mut effect = Effect::Forgets;
        match fault {
            Fault::FailOver => effect = self.site.fail_over(master),
            Fault::KillMaster => self.site.kill(master),
            Fault::StopMaster => self.site.stop(master),
            _ => self.cut_off_with_a_minority(master, crew),
        }
        self.site.await_another(master, replica);
        Harm { whom: Whom::All, effect, slots }
    }

    /// The master, one sentinel and one worker on one side, all others on the other.
    fn cut_off_with_a_minority(&mut self, master: &Server, crew: &Crew) {
        let sentinel = self.site.sentinels().first();
        let minority: Vec<_> = [Some(master), sentinel].into_iter().flatten().collect();
        self.site.cut_off(&minority);
        let inside = |server: &Server| minority.iter().any(|one| one.port() == server.port());
        let chosen = self.dice.usize(..crew.len());
        for worker in 0..crew.len() {
            self.site.cut_off_client(&crew.member(worker), |server| {
                inside(server) != (worker == chosen)
            });
        }
    }

    fn replica_of(&self, master: &Server) -> &'a Server {
        match self.plan.layout {
            Layout::Cluster => self.site.cluster().replica_of(master),
            _ => self.site.replicas().first().copied().expect("there is a replica"),
        }
    }

    fn begin_at_a_bystander(&mut self, fault: Fault) {
        let sentinels = self.site.sentinels().iter().collect();
        let replicas = self.site.replicas();
        let sentinel = matches!(fault, Fault::StopSentinel | Fault::KillSentinel);
        let bystanders: Vec<_> = if sentinel { sentinels } else { replicas };
        let one = *self.dice.choice(&bystanders).expect("there are some");
        match fault {
            Fault::StopReplica | Fault::StopSentinel => self.site.stop(one),
            _ => self.site.kill(one),
        }
    }

    /// Moves the slot of a lock that is in use.
    fn move_slot(&mut self) {
        let cluster = self.site.cluster();
        let kind = *self.dice.choice(&self.plan.work.kinds).expect("there are some");
        // The first of a kind is always in use.
        let slot = cluster.slot_of(&kind.lock(0));
        let owner = cluster.owner_of_slot(slot).port();
        let masters = self.site.masters();
        let others: Vec<_> = masters.into_iter().filter(|other| other.port() != owner).collect();
        let to = *self.dice.choice(&others).expect("there are others");
        cluster.begin_migration(slot, to);
        self.pause(0..500);
        cluster.move_keys(slot, to);
        self.pause(0..500);
        cluster.end_migration(slot, to);
    }

    /// Ends all faults, and waits until all is well again.
    fn end(&self, crew: &mut Crew, half_open: bool) {
        if half_open {
            // What comes after bytes that were swallowed would be nonsense.
            self.site.fronts().for_each(Proxy::refuse);
            self.each_way(crew.len(), crew, |front, worker| front.kill(&worker));
        }
        self.site.heal();
        for server in self.site.servers() {
            if self.plan.faults.contains(&Fault::MoveClock) {
                server.set_clock(0);
            }
            if self.plan.faults.contains(&Fault::FullServer) {
                server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            }
        }
        crew.heal();
    }
}
