//! Two processes with a lock each, which now and then take the lock of the other.
//!
//! A pair *meets* the other process if that process had the lock before.

use crate::Result;
use crate::contenders::{Measured, turns};
use crate::driver::{Driver, LONGEST, Recipe};
use crate::records::Record;
use crate::run::{LONG_ROUND, Run, say};
use crate::server::Path;
use crate::table::{Metric, Table, metric};

/// The name of the work, whose chart has lines.
pub(crate) const WORK: &str = "meetings";

/// The cost of a pair, and the share of pairs over which the chart draws it.
pub(crate) const COST: Metric = metric("us/pair", 2);
pub(crate) const SHARE: Metric = metric("% of pairs meet", 3);

const METRICS: [Metric; 4] = [COST, SHARE, metric("p99 us", 1), metric("commands/pair", 2)];

/// Pairs of 100,000 with the lock of the other process.
const SHARES: [u64; 8] = [0, 50, 250, 500, 1500, 5000, 15_000, 50_000];

/// The sleep after each pair, so that the processes leave the processors to the server.
const PAUSE_US: u64 = 100;

/// Leasehold with and without a linger time, and released with confirmation.
const KINDS: [&str; 3] = ["leasehold-drop", "leasehold-unlock", "leasehold-linger"];

const NOTE: &str = "A pair meets the other process if that process had the lock before. The cost \
                    is the time of the acquire and of the release, without the sleep of 100 us \
                    after each pair.";

struct Group {
    recipe: Recipe,
    drivers: Vec<Driver>,
}

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let title = |share: &u64| {
        format!("{} % of pairs with the lock of another process, TCP", *share as f64 / 1e3)
    };
    let mut tables: Vec<Table> =
        SHARES.iter().map(|share| Table::new(WORK, title(share), &METRICS)).collect();
    let recipes: Vec<Recipe> = run.recipes.clone();
    let mut groups = Vec::new();
    for recipe in recipes.into_iter().filter(|recipe| KINDS.contains(&&*recipe.name)) {
        tables.iter_mut().for_each(|table| table.enter(&recipe.name));
        let mut drivers = Vec::new();
        for _ in 0..2 {
            let mut driver = run.start(&recipe, Path::Tcp)?;
            Run::warm_up(&mut driver, 1)?;
            drivers.push(driver);
        }
        groups.push(Group { recipe, drivers });
    }
    for round in 0..run.sizes.rounds.div_ceil(2) {
        say(&format!("Meetings of two processes: round {}", round + 1));
        for (share, table) in SHARES.iter().zip(&mut tables) {
            for at in turns(groups.len(), round) {
                let Group { recipe, drivers } = &mut groups[at];
                let measured = one(run, drivers, *share);
                if !run.record(table, &recipe.name, measured)? {
                    return Err(format!("{} failed", recipe.name).into());
                }
            }
        }
    }
    for table in &mut tables {
        table.notes.push(NOTE.to_owned());
    }
    Ok(tables)
}

fn one(run: &mut Run, drivers: &mut [Driver], share: u64) -> Measured {
    let time = run.sizes.round * LONG_ROUND;
    let before = run.server.counters()?;
    for (own, driver) in drivers.iter_mut().enumerate() {
        let other = 1 - own;
        let locks = format!("own=meet:{own} other=meet:{other}");
        let millis = time.as_millis();
        driver.send(&format!("meet {locks} share={share} millis={millis} pause_us={PAUSE_US}"))?;
    }
    for driver in drivers.iter_mut() {
        if driver.answer("done", time + LONGEST)?.is_none() {
            return Ok(None);
        }
    }
    let spent = run.server.counters()?.since(&before);
    let mut records = Vec::new();
    for (process, driver) in (0..).zip(drivers) {
        records.extend(run.records(driver, process)?);
    }
    Ok(Some(figures(&mut records, spent.commands).to_vec()))
}

/// Returns the figures of one round, in the order of the metrics.
fn figures(records: &mut [Record], commands: f64) -> [f64; 4] {
    records.sort_unstable_by_key(|record| record.acquired);
    // The last process that had each of the two locks.
    let mut last = [None; 2];
    let mut meetings = 0;
    for record in &*records {
        let (process, is_other) = (record.worker >> 32, record.worker & 1);
        let lock = usize::from(process != is_other);
        meetings += usize::from(last[lock].is_some_and(|last| last != process));
        last[lock] = Some(process);
    }
    let cost =
        |record: &Record| (record.acquired - record.asked) + (record.released - record.releasing);
    let mut costs: Vec<u64> = records.iter().map(cost).collect();
    costs.sort_unstable();
    let pairs = records.len() as f64;
    [
        costs.iter().sum::<u64>() as f64 / pairs / 1e3,
        meetings as f64 / pairs * 100.0,
        crate::records::quantile(&costs, 0.99) / 1e3,
        commands / pairs,
    ]
}
