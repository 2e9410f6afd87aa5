//! What every work has at hand: the server, the contenders, the sizes.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::driver::{Driver, LONGEST, Recipe};
use crate::lineup::Measured;
use crate::records::{self, Record};
use crate::server::{Counters, Path, Server};
use crate::sheet::Table;

/// Redisson's compiler needs that long to have seen enough.
const WARM_UP_OF_A_JVM: Duration = Duration::from_secs(5);

/// What a process can do without a server.
pub(crate) const LOCAL: [&str; 2] = ["park", "parking_lot"];

/// The bare redis crate, which does not wait, renew or re-enter.
pub(crate) const FLOORS: [&str; 2] = ["floor", "floor-posted"];

/// All of these: whoever is no lock library.
pub(crate) const NO_LIBRARIES: [&str; 4] = [FLOORS[0], FLOORS[1], LOCAL[0], LOCAL[1]];

/// A round on one lock is so many times as long as others: more of it is chance.
pub(crate) const LONG_ROUND: u32 = 4;

/// How much is done.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    pub(crate) round: Duration,
    /// Of held locks.
    pub(crate) lease: Duration,
    pub(crate) waiters: usize,
    pub(crate) handles: usize,
    /// Each of these numbers is measured.
    pub(crate) processes: Vec<usize>,
    pub(crate) held: Vec<usize>,
    /// Of one process, where many threads make sense.
    pub(crate) threads: Vec<usize>,
    pub(crate) paths: Vec<Path>,
}

pub(crate) struct Run {
    pub(crate) server: Server,
    pub(crate) recipes: Vec<Recipe>,
    pub(crate) sizes: Sizes,
    /// What could not be run or measured, and why.
    pub(crate) absent: Vec<String>,
    /// Versions as the drivers told them.
    pub(crate) versions: Vec<(String, String)>,
}

/// What one `pairs` of one contender cost.
pub(crate) struct Spent {
    pub(crate) client: Duration,
    pub(crate) server: Counters,
    pub(crate) errors: f64,
    /// Open half-way through.
    pub(crate) connections: f64,
}

impl Run {
    /// Starts a contender; `Err` says why it does not run.
    pub(crate) fn start(&mut self, recipe: &Recipe, path: Path) -> Result<Driver> {
        let driver = Driver::start(recipe, self.server.url(path))?;
        let version = (driver.name.clone(), driver.version.clone());
        if !self.versions.contains(&version) {
            self.versions.push(version);
        }
        Ok(driver)
    }

    /// Takes a contender's round into the table; one that failed is noted instead, and
    /// loses its row. Tells whether it can be measured further.
    pub(crate) fn take_in(
        &mut self,
        table: &mut Table,
        contender: &str,
        measured: Measured,
    ) -> Result<bool> {
        match measured {
            Ok(figures) => {
                figures.iter().for_each(|figures| table.round(contender, figures));
                Ok(true)
            }
            Err(error) => {
                // Without a server there is nobody to blame.
                self.server.version()?;
                table.leave_out(contender);
                self.note(&format!("could not be measured: {contender}: {error}"), &table.title);
                Ok(false)
            }
        }
    }

    /// Names each reason once, with all the tables that it spoilt.
    fn note(&mut self, why: &str, title: &str) {
        say(&format!("{why}; in: {title}"));
        match self.absent.iter_mut().find(|known| known.starts_with(why)) {
            Some(known) => known.push_str(&format!("; {title}")),
            None => self.absent.push(format!("{why}; in: {title}")),
        }
    }

    /// Has a contender do what it will be measured with.
    pub(crate) fn warm_up(driver: &mut Driver, threads: usize) -> Result {
        let millis = if driver.name == "redisson" { WARM_UP_OF_A_JVM.as_millis() } else { 300 };
        let order =
            format!("pairs locks=warm threads={threads} millis={millis} think_us=0 shared=0");
        match driver.ask(&order, "done")?.and_then(|answer| answer.number("pairs")) {
            Some(0.0) => Err("not one pair".into()),
            _ => Ok(()),
        }
    }

    /// One round of pairs of one contender; `None` if it has no such thing.
    pub(crate) fn pairs(
        &mut self,
        driver: &mut Driver,
        order: &str,
    ) -> Result<Option<(Vec<Record>, Spent)>> {
        let (before, cpu) = (self.server.counters()?, driver.cpu()?);
        driver.order(order)?;
        // Some close their connections when their workers end.
        thread::sleep(self.sizes.round / 2);
        let connections = driver.connections()? as f64;
        let longest = self.sizes.round * LONG_ROUND + LONGEST;
        let Some(answer) = driver.answer("done", longest)? else { return Ok(None) };
        let client = driver.cpu()?.saturating_sub(cpu);
        let server = self.server.counters()?.since(&before);
        let errors = answer.number("errors").unwrap_or(0.0);
        let records = self.records(driver, 0)?;
        if records.is_empty() {
            return Err(format!("not one pair, and {errors} errors").into());
        }
        Ok(Some((records, Spent { client, server, errors, connections })))
    }

    /// What a driver has stamped.
    pub(crate) fn records(&self, driver: &mut Driver, process: u64) -> Result<Vec<Record>> {
        let file = self.server.folder().join("records");
        driver.ask(&format!("write file={}", file.display()), "written")?;
        records::read(&file, process)
    }
}

/// Tells who reads along what is being done.
pub(crate) fn say(what: &str) {
    eprintln!("side-by-side: {what}");
}
