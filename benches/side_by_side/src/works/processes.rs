//! One lock, many processes of one thread each.

use crate::Result;
use crate::contenders::Measured;
use crate::driver::{Driver, LONGEST, Recipe};
use crate::records::{self, Record};
use crate::run::{LONG_ROUND, NO_LIBRARIES, Run, SEMAPHORES, say};
use crate::server::Path;
use crate::table::{Metric, Table, metric};

const METRICS: [Metric; 9] = [
    metric("changes of process/s", 0),
    metric("pairs/s", 0),
    metric("gap p50 us", 0),
    metric("gap p99 us", 0),
    metric("attempts/change", 1),
    metric("longest wait ms", 1),
    metric("largest/smallest share", 2),
    metric("server CPU s/M pairs", 1),
    metric("overlaps", 0),
];

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let sizes = run.sizes.processes.clone();
    let title = |size| format!("One lock, {size} processes of one thread, TCP");
    let mut tables: Vec<Table> =
        sizes.iter().map(|size| Table::new("processes", title(*size), &METRICS)).collect();
    // One contender after another: sixteen processes of every contender at once are too many.
    for recipe in run.recipes.clone() {
        if [&NO_LIBRARIES[..], &SEMAPHORES].concat().contains(&&*recipe.name) {
            continue;
        }
        say(&format!("One lock, many processes: {}", recipe.name));
        let mut processes = Processes { recipe, drivers: Vec::new(), calls_per_pair: f64::NAN };
        for (size, table) in sizes.iter().zip(&mut tables) {
            processes.measure(run, table, *size)?;
        }
        run.server.clear()?;
    }
    for table in &mut tables {
        table.notes.push(
            "A gap is the time from just before a release to just after the next acquisition by \
             another process. The contenders run one after another, not in turns."
                .to_owned(),
        );
    }
    Ok(tables)
}

/// The processes of one contender.
struct Processes {
    recipe: Recipe,
    drivers: Vec<Driver>,
    /// The number of scripts and SETs of an uncontended pair. One of them is the acquire.
    calls_per_pair: f64,
}

impl Processes {
    /// Measures all rounds with this many processes.
    ///
    /// If a process fails, all are started again for the next table.
    fn measure(&mut self, run: &mut Run, table: &mut Table, size: usize) -> Result {
        table.enter(&self.recipe.name);
        for _ in 0..run.sizes.rounds.div_ceil(2) {
            let measured = self.round(run, size);
            if !run.record(table, &self.recipe.name, measured)? {
                self.drivers.clear();
                return run.server.clear();
            }
        }
        Ok(())
    }

    fn round(&mut self, run: &mut Run, size: usize) -> Measured {
        self.start_up_to(run, size)?;
        let time = run.sizes.round * LONG_ROUND;
        let millis = time.as_millis();
        let command =
            format!("pairs locks=contended threads=1 millis={millis} think_us=0 shared=1");
        let before = run.server.counters()?;
        for driver in &mut self.drivers {
            driver.send(&command)?;
        }
        for driver in &mut self.drivers {
            if driver.answer("done", time + LONGEST)?.is_none() {
                return Ok(None);
            }
        }
        let spent = run.server.counters()?.since(&before);
        let mut all: Vec<Record> = Vec::new();
        for (number, driver) in (0..).zip(&mut self.drivers) {
            all.extend(run.records(driver, number)?);
        }
        let nanos = u64::try_from(time.as_nanos())?;
        let figures = records::contended(&mut all, size, nanos, |record| record.worker >> 32);
        let attempts = spent.calls - (self.calls_per_pair - 1.0) * figures.pairs;
        Ok(Some(vec![
            figures.changes_per_second,
            figures.per_second,
            figures.gap_p50_us,
            figures.gap_p99_us,
            attempts / figures.changes,
            figures.longest_wait_ms,
            figures.unfairness,
            spent.cpu.as_secs_f64() / figures.pairs * 1e6,
            figures.overlaps,
        ]))
    }

    /// Starts processes until there are `size`, and warms each up.
    fn start_up_to(&mut self, run: &mut Run, size: usize) -> Result {
        while self.drivers.len() < size {
            let mut driver = run.start(&self.recipe, Path::Tcp)?;
            Run::warm_up(&mut driver, 1)?;
            if self.drivers.is_empty() {
                self.calls_per_pair = calls_per_pair(run, &mut driver)?;
            }
            self.drivers.push(driver);
        }
        Ok(())
    }
}

fn calls_per_pair(run: &mut Run, driver: &mut Driver) -> Result<f64> {
    let command = "pairs locks=calls threads=1 millis=300 think_us=0 shared=0";
    let Some((records, spent)) = run.pairs(driver, command)? else { return Ok(f64::NAN) };
    Ok((spent.server.calls / records.len() as f64).round())
}
