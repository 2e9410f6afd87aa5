//! The worker processes of a run.

use super::checks::Worker;
use super::plan::Plan;
use super::record::Record;
use super::site::Site;
use super::worker::{CLEAN, DIRTY, IDLE, Orders, STOP, WORKER};
use super::{Nanos, now};
use crate::harness::ChildProcess;
use std::collections::BTreeMap;

/// The test that plays a worker.
const ENTRY: &str = "child_entry";

/// What names the fault that a worker's own code is to have (`script/seeded`).
const SEEDED: &str = "LEASEHOLD_SEEDED";

/// The workers that run, each in a place of its own; and what those wrote down that do not.
pub struct Crew<'a> {
    plan: &'a Plan,
    site: &'a Site,
    ledger: String,
    places: Vec<Place>,
    started: usize,
    done: BTreeMap<usize, (Worker, Vec<Record>)>,
    /// What was left in those that ended by themselves.
    pub leftovers: Vec<String>,
}

/// A place, and the process that is in it.
struct Place {
    child: ChildProcess,
    /// Which of all processes it is, as they were started.
    index: usize,
    lease: Nanos,
    stopped: bool,
    killed: Option<Nanos>,
    /// What it has said that was read.
    said: Vec<String>,
}

impl<'a> Crew<'a> {
    /// Starts all workers; blocks until they begin to work.
    pub fn start(plan: &'a Plan, site: &'a Site, ledger: String) -> Crew<'a> {
        let (places, done) = (Vec::new(), BTreeMap::new());
        let mut crew = Crew { plan, site, ledger, places, started: 0, done, leftovers: Vec::new() };
        for place in 0..plan.work.workers {
            let worker = crew.begin(place);
            crew.places.push(worker);
        }
        crew.places.iter_mut().for_each(|place| place.child.expect_line("ready"));
        crew
    }

    /// How many places there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// As whom the gates know the process in a place.
    pub fn member(&self, place: usize) -> String {
        format!("worker {place}")
    }

    /// Which of all processes is in a place now.
    pub fn index(&self, place: usize) -> usize {
        self.places[place].index
    }

    /// Kills the process in a place.
    pub fn kill(&mut self, place: usize) {
        let place = &mut self.places[place];
        place.child.kill();
        place.killed = Some(now());
    }

    /// Lets it stand still.
    pub fn stop(&mut self, place: usize) {
        self.places[place].child.stop();
        self.places[place].stopped = true;
    }

    /// Lets those go on that stand still, and starts others in the place of those that were
    /// killed.
    pub fn heal(&mut self) {
        for place in 0..self.places.len() {
            if std::mem::take(&mut self.places[place].stopped) {
                self.places[place].child.resume();
            }
            if self.places[place].killed.is_some() {
                let fresh = self.begin(place);
                let mut killed = std::mem::replace(&mut self.places[place], fresh);
                let said = killed.child.said_to_the_end();
                self.file(&killed, &said);
                self.places[place].child.expect_line("ready");
            }
        }
    }

    /// Has all end what they are doing. Blocks until they do nothing any more.
    pub fn rest(&mut self) {
        self.places.iter_mut().for_each(|place| place.child.send_line(STOP));
        for place in &mut self.places {
            while place.said.last().is_none_or(|line| line != IDLE) {
                place.said.push(place.child.next_line());
            }
        }
    }

    /// Has all end that do nothing any more, and gives back what all have written down, in the
    /// order in which they were started.
    pub fn finish(&mut self) -> impl Iterator<Item = (Worker, Vec<Record>)> {
        let mut places = std::mem::take(&mut self.places);
        places.iter_mut().for_each(|place| place.child.close_input());
        for place in &mut places {
            let status = place.child.wait();
            let mut said = std::mem::take(&mut place.said);
            said.append(&mut place.child.said_to_the_end());
            self.file(place, &said);
            let last = said.last().map_or("", |line| line);
            if !status.success() || last != CLEAN {
                let what = last.strip_prefix(DIRTY).unwrap_or("a worker failed");
                self.leftovers.push(format!("worker {}: {what} ({status})", place.index));
            }
        }
        std::mem::take(&mut self.done).into_values()
    }

    fn begin(&mut self, place: usize) -> Place {
        let (plan, index) = (self.plan, self.started);
        self.started += 1;
        let mut orders = Orders::new(&plan.work, index, plan.seed, self.ledger.clone());
        self.site.show(&mut orders);
        let words = orders.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let seeded = plan.work.seeded.map(|fault| (SEEDED, fault));
        let child = ChildProcess::start_with(ENTRY, WORKER, &words, seeded.as_slice());
        self.site.members.join(&self.member(place), child.pid());
        let lease = u64::try_from(orders.lease().as_nanos()).expect("a short lease");
        Place { child, index, lease, stopped: false, killed: None, said: Vec::new() }
    }

    fn file(&mut self, place: &Place, said: &[String]) {
        let records = said.iter().filter_map(|line| Record::parse(line)).collect();
        let worker = Worker { lease: place.lease, killed: place.killed };
        self.done.insert(place.index, (worker, records));
    }
}
