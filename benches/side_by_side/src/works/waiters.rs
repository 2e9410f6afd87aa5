//! Ten thousand who wait, for one lock and for one each.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::driver::Driver;
use crate::lineup::{Lineup, Measured};
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::Path;
use crate::sheet::{Metric, Table, metric};

const METRICS: [Metric; 7] = [
    metric("heap bytes/waiter", 0),
    metric("resident KiB/waiter", 1),
    metric("subscriptions", 0),
    metric("client % of a core", 1),
    metric("server % of a core", 1),
    metric("drained in s", 2),
    metric("errors", 0),
];

/// Who does not drain within that is named and left out.
const LONGEST: Duration = Duration::from_secs(30);

/// They wait for so many rounds before they are let go.
const ROUNDS: u32 = 5;

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let count = run.sizes.waiters;
    let mut tables = Vec::new();
    for (shared, what) in [(1, "one lock"), (0, "a lock each")] {
        let title = format!("{count} waiters of one process on {what}, TCP");
        say(&title);
        let mut table = Table::new("waiters", title, &METRICS);
        Lineup::new(run, Path::Tcp, &NO_LIBRARIES)
            .one_by_one(run, &mut table, |run, driver| one(run, driver, count, shared))?;
        let stacks = "Resident memory has the stacks of threads in it; tasks have none. Heap: \
                      what waiting added to threads that had been started, where the driver \
                      can tell.";
        table.notes.push(stacks.to_owned());
        tables.push(table);
    }
    Ok(tables)
}

fn one(run: &mut Run, driver: &mut Driver, count: usize, shared: u8) -> Measured {
    let resident = driver.resident()?;
    let order = format!("wait locks=waited count={count} shared={shared}");
    let Some(waiting) = driver.ask(&order, "waiting")? else { return Ok(None) };
    let wait = run.sizes.round * ROUNDS;
    thread::sleep(wait / 2);
    let (before, cpu) = (run.server.counters()?, driver.cpu()?);
    thread::sleep(wait);
    let (spent, client) = (run.server.counters()?.since(&before), driver.cpu()? - cpu);
    let resident = driver.resident()?.saturating_sub(resident) as f64 / count as f64 / 1024.0;
    let subscriptions = run.server.channels()? as f64;
    driver.order("free")?;
    let Some(drained) = driver.answer("drained", LONGEST)? else { return Ok(None) };
    let of_a_core = |time: Duration| time.as_secs_f64() / wait.as_secs_f64() * 100.0;
    Ok(Some(vec![
        waiting.number("heap").map_or(f64::NAN, |bytes| bytes / count as f64),
        resident,
        subscriptions,
        of_a_core(client),
        of_a_core(spent.cpu),
        drained.number("nanos").unwrap_or(f64::NAN) / 1e9,
        drained.number("errors").unwrap_or(f64::NAN),
    ]))
}
