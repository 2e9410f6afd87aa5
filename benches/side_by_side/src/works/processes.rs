//! One lock, processes of one thread each.

use crate::Result;
use crate::driver::{Driver, Recipe};
use crate::records::{self, Record};
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::Path;
use crate::sheet::{Metric, Table, metric};

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

const SIZES: [usize; 4] = [2, 4, 8, 16];

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let sizes: Vec<usize> = SIZES.into_iter().filter(|size| *size <= run.sizes.processes).collect();
    let title = |size| format!("One lock, {size} processes of one thread, TCP");
    let mut tables: Vec<Table> =
        sizes.iter().map(|size| Table::new("processes", title(*size), &METRICS)).collect();
    let recipes: Vec<Recipe> =
        run.recipes.iter().filter(|r| !NO_LIBRARIES.contains(&&*r.name)).cloned().collect();
    // One contender after another: sixteen processes of each at once would be too many.
    for recipe in recipes {
        say(&format!("One lock, many processes: {}", recipe.name));
        let Some(mut crowd) = crowd(run, &recipe, sizes.iter().copied().max().unwrap_or(0)) else {
            continue;
        };
        let calls = calls_per_pair(run, &mut crowd[0])?;
        for (size, table) in sizes.iter().zip(&mut tables) {
            for _ in 0..run.sizes.rounds.div_ceil(2) {
                let figures = one(run, &mut crowd[..*size], calls)?;
                table.round(&recipe.name, &figures);
            }
        }
        run.server.clear()?;
    }
    for table in &mut tables {
        table.notes.push(
            "A gap runs from the moment before a release to the moment after the next \
             acquisition by another process. Contenders one after another, not in turns."
                .to_owned(),
        );
    }
    Ok(tables)
}

/// That many processes, if they can be had; warm.
fn crowd(run: &mut Run, recipe: &Recipe, size: usize) -> Option<Vec<Driver>> {
    let url = run.server.url(Path::Tcp).to_owned();
    let start = || -> Result<Vec<Driver>> {
        let mut drivers = Vec::new();
        for _ in 0..size {
            drivers.push(Driver::start(recipe, &url)?);
        }
        drivers.iter_mut().try_for_each(|driver| Run::warm_up(driver, 1))?;
        Ok(drivers)
    };
    match start() {
        Ok(drivers) => Some(drivers),
        Err(error) => {
            say(&format!("{}: {error}", recipe.name));
            None
        }
    }
}

/// How many scripts and SETs a pair takes that nobody disturbs: all but one of them
/// are its release.
fn calls_per_pair(run: &mut Run, driver: &mut Driver) -> Result<f64> {
    let order = "pairs locks=calls threads=1 millis=300 think_us=0 shared=0";
    let Some((records, spent)) = run.pairs(driver, order)? else { return Ok(f64::NAN) };
    Ok((spent.server.calls / records.len() as f64).round())
}

fn one(run: &mut Run, crowd: &mut [Driver], calls_per_pair: f64) -> Result<[f64; 9]> {
    let time = run.sizes.round * 3;
    let order =
        format!("pairs locks=contended threads=1 millis={} think_us=0 shared=1", time.as_millis());
    let before = run.server.counters()?;
    crowd.iter_mut().try_for_each(|driver| driver.order(&order))?;
    for driver in crowd.iter_mut() {
        driver.answer("done")?;
    }
    let spent = run.server.counters()?.since(&before);
    let mut all: Vec<Record> = Vec::new();
    for (number, driver) in (0..).zip(crowd.iter_mut()) {
        all.extend(run.records(driver, number)?);
    }
    let nanos = u64::try_from(time.as_nanos())?;
    let said = records::contended(&mut all, crowd.len(), nanos, |record| record.worker >> 32);
    let attempts = spent.calls - (calls_per_pair - 1.0) * said.pairs;
    Ok([
        said.changes_per_second,
        said.per_second,
        said.gap_p50_us,
        said.gap_p99_us,
        attempts / said.changes,
        said.longest_wait_ms,
        said.unfairness,
        spent.cpu.as_secs_f64() / said.pairs * 1e6,
        said.overlaps,
    ])
}
