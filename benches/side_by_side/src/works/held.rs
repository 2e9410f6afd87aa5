//! Many locks held over three periods of renewal.

use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::driver::Driver;
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::Path;
use crate::sheet::{Metric, Table, metric};

const METRICS: [Metric; 7] = [
    metric("lost", 0),
    metric("said lost", 0),
    metric("client CPU us/lock and renewal", 2),
    metric("server CPU us/lock and renewal", 2),
    metric("client % of a core", 2),
    metric("server % of a core", 2),
    metric("least lease left %", 0),
];

/// The libraries renew three times in it, as Redisson does by default.
const LEASE: Duration = Duration::from_secs(30);

/// So many keys are looked at, again and again, for what is left of their lease.
const SAMPLE: usize = 100;

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    let most = run.sizes.held;
    for count in [1_000, 10_000, 100_000].into_iter().filter(|count| *count <= most) {
        let seconds = LEASE.as_secs();
        let title = format!("{count} locks held over three renewals, lease {seconds} s, TCP");
        say(&title);
        let mut table = Table::new("held", title, &METRICS);
        for mut driver in run.drivers(Path::Tcp, &NO_LIBRARIES) {
            if let Some(figures) = one(run, &mut driver, count)? {
                table.round(&driver.name, &figures);
            }
            run.server.clear()?;
        }
        table.notes.push(
            "Least lease left: the smallest share of the lease that was left on any of \
             100 keys, looked at every 50 ms; renewed in time at a third, it is 67 %. Who \
             is not named does not renew by itself, or not so many."
                .to_owned(),
        );
        tables.push(table);
    }
    Ok(tables)
}

fn one(run: &mut Run, driver: &mut Driver, count: usize) -> Result<Option<[f64; 7]>> {
    let order = format!("hold locks=held count={count} lease_ms={}", LEASE.as_millis());
    if driver.ask(&order, "holding")?.is_none() {
        return Ok(None);
    }
    say(&format!("  {}", driver.name));
    let keys = run.server.keys("held")?;
    let sample: Vec<String> =
        keys.iter().step_by((keys.len() / SAMPLE).max(1)).take(SAMPLE).cloned().collect();
    let (before, cpu, begin) = (run.server.counters()?, driver.cpu()?, Instant::now());
    let mut least = i64::MAX;
    while begin.elapsed() < LEASE {
        let left = run.server.remaining(&sample)?;
        least = left.into_iter().min().unwrap_or(0).min(least);
        thread::sleep(Duration::from_millis(50));
    }
    let (spent, client) = (run.server.counters()?.since(&before), driver.cpu()? - cpu);
    // All of them have one key per lock.
    let lost = count.saturating_sub(run.server.keys("held")?.len());
    let said = driver.ask("drop", "dropped")?;
    let said = said.and_then(|answer| answer.number("lost")).unwrap_or(f64::NAN);
    let renewals = count as f64 * 3.0;
    let of_a_core = |time: Duration| time.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
    Ok(Some([
        lost as f64,
        said,
        client.as_secs_f64() / renewals * 1e6,
        spent.cpu.as_secs_f64() / renewals * 1e6,
        of_a_core(client),
        of_a_core(spent.cpu),
        least as f64 / LEASE.as_millis() as f64 * 100.0,
    ]))
}
