//! Many waiters, for one lock and for a lock each.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::contenders::{Contenders, Measured};
use crate::driver::Driver;
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::Path;
use crate::table::{Metric, Table, metric};

const METRICS: [Metric; 7] = [
    metric("heap bytes/waiter", 0),
    metric("resident KiB/waiter", 1),
    metric("subscriptions", 0),
    metric("client % of a core", 1),
    metric("server % of a core", 1),
    metric("drained in s", 2),
    metric("errors", 0),
];

/// The longest time to drain. A contender that takes longer is named and left out.
const LONGEST: Duration = Duration::from_secs(30);

/// The number of rounds that the waiters wait.
const ROUNDS: u32 = 5;

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let count = run.sizes.waiters;
    let mut tables = Vec::new();
    for (shared, what) in [(1, "one lock"), (0, "a lock each")] {
        let title = format!("{count} waiters of one process on {what}, TCP");
        say(&title);
        let mut table = Table::new("waiters", title, &METRICS);
        Contenders::new(run, Path::Tcp, &NO_LIBRARIES).one_by_one(
            run,
            &mut table,
            |run, driver| one(run, driver, count, shared),
        )?;
        let note = "Resident memory includes the stacks of threads; tasks have no stacks. Heap \
                    bytes are those that waiting adds after the threads are started, if the \
                    driver can count them.";
        table.notes.push(note.to_owned());
        tables.push(table);
    }
    Ok(tables)
}

fn one(run: &mut Run, driver: &mut Driver, count: usize, shared: u8) -> Measured {
    let resident = driver.resident()?;
    let command = format!("wait locks=waited count={count} shared={shared}");
    let Some(waiting) = driver.ask(&command, "waiting")? else { return Ok(None) };
    let wait = run.sizes.round * ROUNDS;
    thread::sleep(wait / 2);
    let (before, cpu) = (run.server.counters()?, driver.cpu()?);
    thread::sleep(wait);
    let (spent, client) = (run.server.counters()?.since(&before), driver.cpu()? - cpu);
    let resident = driver.resident()?.saturating_sub(resident) as f64 / count as f64 / 1024.0;
    let subscriptions = run.server.channels()? as f64;
    driver.send("free")?;
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
