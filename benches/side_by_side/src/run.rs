//! What every work has at hand: the server, the contenders, the sizes.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::driver::{Driver, Recipe};
use crate::records::{self, Record};
use crate::server::{Counters, Path, Server};

/// Redisson's compiler needs that long to have seen enough.
const WARM_UP_OF_A_JVM: Duration = Duration::from_secs(5);

/// What a process can do without a server.
pub(crate) const LOCAL: [&str; 2] = ["park", "parking_lot"];

/// Those, and the floor, which does not wait, renew or re-enter.
pub(crate) const NO_LIBRARIES: [&str; 3] = ["floor", "park", "parking_lot"];

/// How much is done.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    pub(crate) round: Duration,
    /// The largest number of processes, of held locks, of waiters, of handles.
    pub(crate) processes: usize,
    pub(crate) held: usize,
    pub(crate) waiters: usize,
    pub(crate) handles: usize,
    /// Of one process, where many threads make sense.
    pub(crate) threads: Vec<usize>,
    pub(crate) paths: Vec<Path>,
}

pub(crate) struct Run {
    pub(crate) server: Server,
    pub(crate) recipes: Vec<Recipe>,
    pub(crate) sizes: Sizes,
    pub(crate) folder: tempfile::TempDir,
    /// What could not be run, and why.
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
    /// Starts the contenders that can be had over that path.
    pub(crate) fn drivers(&mut self, path: Path, left_out: &[&str]) -> Vec<Driver> {
        let wanted = self.recipes.iter().filter(|recipe| !left_out.contains(&&*recipe.name));
        let mut drivers = Vec::new();
        for recipe in wanted {
            match Driver::start(recipe, self.server.url(path)) {
                Ok(driver) => {
                    let version = (driver.name.clone(), driver.version.clone());
                    if !self.versions.contains(&version) {
                        self.versions.push(version);
                    }
                    drivers.push(driver);
                }
                Err(error) => {
                    let line = format!("{} over {}: {error}", recipe.name, path.name());
                    if !self.absent.contains(&line) {
                        self.absent.push(line);
                    }
                }
            }
        }
        drivers
    }

    /// Has a contender do what it will be measured with.
    pub(crate) fn warm_up(driver: &mut Driver, threads: usize) -> Result {
        let millis = if driver.name == "redisson" { WARM_UP_OF_A_JVM.as_millis() } else { 300 };
        let order =
            format!("pairs locks=warm threads={threads} millis={millis} think_us=0 shared=0");
        driver.ask(&order, "done").map(drop)
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
        let Some(answer) = driver.answer("done")? else { return Ok(None) };
        let client = driver.cpu()?.saturating_sub(cpu);
        let server = self.server.counters()?.since(&before);
        let errors = answer.number("errors").unwrap_or(0.0);
        Ok(Some((self.records(driver, 0)?, Spent { client, server, errors, connections })))
    }

    /// What a driver has stamped.
    pub(crate) fn records(&self, driver: &mut Driver, process: u64) -> Result<Vec<Record>> {
        let file = self.folder.path().join("records");
        driver.ask(&format!("write file={}", file.display()), "written")?;
        records::read(&file, process)
    }
}

/// The drivers in another order every round, so that none always follows the same one.
pub(crate) fn turns(drivers: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..drivers).map(move |at| (at + round) % drivers)
}

/// Tells who reads along what is being done.
pub(crate) fn say(what: &str) {
    eprintln!("side-by-side: {what}");
}
