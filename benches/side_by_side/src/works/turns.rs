//! One lock that processes and threads take in turns.
//!
//! A *turn* is the time in which each worker would get the lock once: the number of workers divided
//! by the pairs per second.

use std::time::Duration;

use crate::Result;
use crate::contenders::{Measured, turns};
use crate::driver::{Driver, LONGEST, Recipe};
use crate::records::{self, Record};
use crate::run::{JVMS, LONG_ROUND, Run, say};
use crate::server::{Counters, Path};
use crate::table::{Metric, Table, metric};

const METRICS: [Metric; 11] = [
    metric("pairs/s", 0),
    metric("changes of worker/s", 0),
    metric("gap p50 us", 0),
    metric("gap p99 us", 0),
    metric("p99 wait / turn", 2),
    metric("longest wait / turn", 2),
    metric("largest/smallest share", 2),
    metric("commands/pair", 1),
    metric("server CPU us/pair", 1),
    metric("client CPU us/pair", 1),
    metric("overlaps", 0),
];

/// The kinds of locks that are compared: by a race, by a queue, and by a grant in a message.
const KINDS: [&str; 5] =
    ["leasehold-drop", "leasehold-fair", "leasehold-queue", "redisson", "redisson-fair"];

const NOTE: &str = "A turn is the number of workers divided by the pairs per second. Waits leave \
                    out the first tenth of a round, in which processes start. A gap is the time \
                    from just before a release to just after the next acquisition by another \
                    worker.";

/// The largest number of Java virtual machines at once.
const MOST_JVMS: usize = 16;

/// Processes with the same number of threads each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
}

impl Shape {
    fn title(self) -> String {
        let Shape { processes, threads } = self;
        format!("One lock in turns, {processes} process(es) of {threads} thread(s), TCP")
    }
}

/// The processes of one contender.
struct Group {
    recipe: Recipe,
    drivers: Vec<Driver>,
}

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let shapes = run.sizes.turns.clone();
    let mut tables: Vec<Table> =
        shapes.iter().map(|shape| Table::new("turns", shape.title(), &METRICS)).collect();
    let kinds = run.recipes.iter().filter(|recipe| KINDS.contains(&&*recipe.name));
    let mut groups: Vec<Group> = kinds.map(Group::new).collect();
    let most = shapes.iter().map(|shape| shape.processes).max().unwrap_or(0);
    for group in &mut groups {
        for (shape, table) in shapes.iter().zip(&mut tables) {
            if shape.processes <= group.most_processes() {
                table.enter(&group.recipe.name);
            }
        }
        group.start(run, most.min(group.most_processes()))?;
    }
    for round in 0..run.sizes.rounds.div_ceil(2) {
        say(&format!("One lock in turns: round {}", round + 1));
        for (shape, table) in shapes.iter().zip(&mut tables) {
            for at in turns(groups.len(), round) {
                groups[at].turn(run, table, *shape)?;
            }
        }
    }
    for table in &mut tables {
        table.notes.push(NOTE.to_owned());
    }
    Ok(tables)
}

impl Group {
    fn new(recipe: &Recipe) -> Group {
        Group { recipe: recipe.clone(), drivers: Vec::new() }
    }

    fn most_processes(&self) -> usize {
        if JVMS.contains(&&*self.recipe.name) { MOST_JVMS } else { usize::MAX }
    }

    /// Starts processes, and warms each up. A contender that does not start has no processes.
    fn start(&mut self, run: &mut Run, size: usize) -> Result {
        say(&format!("Starting {size} processes of {}", self.recipe.name));
        for _ in 0..size {
            let ready = run.start(&self.recipe, Path::Tcp).and_then(|mut driver| {
                Run::warm_up(&mut driver, 1)?;
                Ok(driver)
            });
            match ready {
                Ok(driver) => self.drivers.push(driver),
                Err(error) => {
                    run.absent.push(format!("not run: {}: {error}", self.recipe.name));
                    self.drivers.clear();
                    return run.server.clear();
                }
            }
        }
        Ok(())
    }

    /// Measures a round. A contender that fails is left out from then on.
    fn turn(&mut self, run: &mut Run, table: &mut Table, shape: Shape) -> Result {
        if self.drivers.len() < shape.processes {
            return Ok(());
        }
        let measured = self.round(run, shape);
        if !run.record(table, &self.recipe.name, measured)? {
            self.drivers.clear();
            run.server.clear()?;
        }
        Ok(())
    }

    fn round(&mut self, run: &mut Run, shape: Shape) -> Measured {
        let time = run.sizes.round * LONG_ROUND;
        let (millis, threads) = (time.as_millis(), shape.threads);
        let command =
            format!("pairs locks=turns threads={threads} millis={millis} think_us=0 shared=1");
        let drivers = &mut self.drivers[..shape.processes];
        let (cpu, before) = (cpu_of(drivers)?, run.server.counters()?);
        for driver in &mut *drivers {
            driver.send(&command)?;
        }
        for driver in &mut *drivers {
            if driver.answer("done", time + LONGEST)?.is_none() {
                return Ok(None);
            }
        }
        let server = run.server.counters()?.since(&before);
        let client = cpu_of(drivers)?.saturating_sub(cpu);
        let mut records = Vec::new();
        for (number, driver) in (0..).zip(drivers) {
            records.extend(run.records(driver, number)?);
        }
        let nanos = u64::try_from(time.as_nanos())?;
        Ok(Some(figures(&mut records, shape.processes * threads, nanos, &server, client)))
    }
}

/// Returns the figures of one round, in the order of the metrics.
fn figures(
    records: &mut [Record],
    workers: usize,
    nanos: u64,
    server: &Counters,
    client: Duration,
) -> Vec<f64> {
    let figures = records::contended(records, workers, nanos, |record| record.worker);
    let turn = workers as f64 / figures.per_second;
    let waits = records::waits_after(records, nanos / 10);
    let in_turns = |share: f64| records::quantile(&waits, share) / 1e9 / turn;
    let us_per_pair = |time: Duration| time.as_secs_f64() / figures.pairs * 1e6;
    vec![
        figures.per_second,
        figures.changes_per_second,
        figures.gap_p50_us,
        figures.gap_p99_us,
        in_turns(0.99),
        in_turns(1.0),
        figures.unfairness,
        server.commands / figures.pairs,
        us_per_pair(server.cpu),
        us_per_pair(client),
        figures.overlaps,
    ]
}

fn cpu_of(drivers: &[Driver]) -> Result<Duration> {
    drivers.iter().map(Driver::cpu).sum()
}
