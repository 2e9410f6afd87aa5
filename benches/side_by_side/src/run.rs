//! The server, the contenders and the sizes that all works use.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::contenders::Measured;
use crate::driver::{Driver, LONGEST, Recipe};
use crate::records::{self, Record};
use crate::server::{Counters, Path, Server};
use crate::table::Table;
use crate::works::turns::Shape;

/// The warm-up of Redisson, whose virtual machine compiles code that runs often.
const WARM_UP_OF_A_JVM: Duration = Duration::from_secs(5);

/// Contenders that run on a Java virtual machine.
pub(crate) const JVMS: [&str; 4] =
    ["redisson", "redisson-fair", "redisson-permits", "redisson-semaphore"];

/// Contenders that need no server.
pub(crate) const LOCAL: [&str; 2] = ["park", "parking_lot"];

/// The bare redis crate, which does not wait, renew leases or re-enter.
pub(crate) const FLOORS: [&str; 2] = ["floor", "floor-posted"];

/// Contenders that are no lock libraries.
pub(crate) const NO_LIBRARIES: [&str; 4] = [FLOORS[0], FLOORS[1], LOCAL[0], LOCAL[1]];

/// The contenders that are semaphores, which only the work `semaphore` measures.
pub(crate) const SEMAPHORES: [&str; 7] = [
    "leasehold-semaphore",
    "leasehold-semaphore-unlock",
    "leasehold-plain-semaphore",
    "floor-semaphore",
    "redisson-permits",
    "redisson-semaphore",
    "redis-semaphore",
];

/// The length of a round on one lock in ordinary rounds, because its figures vary more.
pub(crate) const LONG_ROUND: u32 = 4;

/// The sizes of all works.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    pub(crate) round: Duration,
    /// The lease of held locks.
    pub(crate) lease: Duration,
    pub(crate) waiters: usize,
    pub(crate) handles: usize,
    /// The numbers of processes to measure.
    pub(crate) processes: Vec<usize>,
    /// The processes and threads that take a lock in turns.
    pub(crate) turns: Vec<Shape>,
    /// The numbers of held locks to measure.
    pub(crate) held: Vec<usize>,
    /// The numbers of threads of one process to measure.
    pub(crate) threads: Vec<usize>,
    pub(crate) paths: Vec<Path>,
}

pub(crate) struct Run {
    pub(crate) server: Server,
    pub(crate) recipes: Vec<Recipe>,
    pub(crate) sizes: Sizes,
    /// Lines for the contenders that were not run or measured, with the reason.
    pub(crate) absent: Vec<String>,
    /// The names and versions that the drivers reported.
    pub(crate) versions: Vec<(String, String)>,
}

/// The cost of one `pairs` command.
pub(crate) struct Spent {
    pub(crate) client: Duration,
    pub(crate) server: Counters,
    pub(crate) errors: f64,
    /// The number of open sockets at half of the time.
    pub(crate) connections: f64,
}

impl Run {
    /// Starts a contender. Returns an error with the reason if it does not run.
    pub(crate) fn start(&mut self, recipe: &Recipe, path: Path) -> Result<Driver> {
        let driver = Driver::start(recipe, self.server.url(path))?;
        let version = (driver.name.clone(), driver.version.clone());
        if !self.versions.contains(&version) {
            self.versions.push(version);
        }
        Ok(driver)
    }

    /// Adds a round of a contender to the table, or removes its row if it failed.
    ///
    /// Returns whether the contender can be measured further.
    pub(crate) fn record(
        &mut self,
        table: &mut Table,
        contender: &str,
        measured: Measured,
    ) -> Result<bool> {
        match measured {
            Ok(figures) => {
                if let Some(figures) = figures {
                    table.round(contender, &figures);
                }
                Ok(true)
            }
            Err(error) => {
                // Ends the run if the server is gone.
                self.server.version()?;
                table.leave_out(contender);
                self.note(&format!("could not be measured: {contender}: {error}"), &table.title);
                Ok(false)
            }
        }
    }

    /// Adds a line for each reason, with the titles of all tables that lack a row for it.
    fn note(&mut self, reason: &str, title: &str) {
        say(&format!("{reason}; in: {title}"));
        match self.absent.iter_mut().find(|known| known.starts_with(reason)) {
            Some(known) => known.push_str(&format!("; {title}")),
            None => self.absent.push(format!("{reason}; in: {title}")),
        }
    }

    /// Makes a contender take and release locks before it is measured.
    pub(crate) fn warm_up(driver: &mut Driver, threads: usize) -> Result {
        let millis = if JVMS.contains(&&*driver.name) { WARM_UP_OF_A_JVM.as_millis() } else { 300 };
        let command =
            format!("pairs locks=warm threads={threads} millis={millis} think_us=0 shared=0");
        match driver.ask(&command, "done")?.and_then(|answer| answer.number("pairs")) {
            Some(0.0) => Err("not one pair".into()),
            _ => Ok(()),
        }
    }

    /// Runs one round of pairs. Returns `None` if the command is unsupported.
    pub(crate) fn pairs(
        &mut self,
        driver: &mut Driver,
        command: &str,
    ) -> Result<Option<(Vec<Record>, Spent)>> {
        let (before, cpu) = (self.server.counters()?, driver.cpu()?);
        driver.send(command)?;
        // Some libraries close their connections when the workers end.
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

    /// Reads the records of the last `pairs` of a driver.
    pub(crate) fn records(&self, driver: &mut Driver, process: u64) -> Result<Vec<Record>> {
        let file = self.server.folder().join("records");
        driver.ask(&format!("write file={}", file.display()), "written")?;
        records::read(&file, process)
    }
}

/// Prints the progress to standard error.
pub(crate) fn say(what: &str) {
    eprintln!("side-by-side: {what}");
}
