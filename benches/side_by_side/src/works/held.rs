//! Many locks held over three periods of renewal: most renew after a third of the lease,
//! some after half of it.

use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::driver::{Driver, LONGEST};
use crate::lineup::{Lineup, Measured};
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::{Path, Server};
use crate::sheet::{Metric, Table, metric};

const METRICS: [Metric; 8] = [
    metric("lost", 0),
    metric("said lost", 0),
    metric("renewals/lock", 1),
    metric("client CPU us/lock and renewal", 2),
    metric("server CPU us/lock and renewal", 2),
    metric("client % of a core", 2),
    metric("server % of a core", 2),
    metric("least lease left %", 0),
];

/// So many keys are looked at, again and again, for what is left of their lease.
const SAMPLE: usize = 100;

/// So often.
const LOOKS: u32 = 200;

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for count in run.sizes.held.clone() {
        let (time, lease) = (time(run).as_secs_f64(), run.sizes.lease.as_secs());
        let title = format!("{count} locks held for {time} s, lease {lease} s, TCP");
        say(&title);
        let mut table = Table::new("held", title, &METRICS);
        Lineup::new(run, Path::Tcp, &NO_LIBRARIES)
            .one_by_one(run, &mut table, |run, driver| one(run, driver, count))?;
        table.notes.push(format!(
            "Renewals are counted on {SAMPLE} keys, of which the remaining lease is read {LOOKS} \
             times; what the reading costs the server is taken off. Least lease left: the \
             smallest share that was ever left of the lease on any of them: 67 % if each is \
             renewed in time after a third of it, 0 % if one ran out. Who is not named does not \
             renew by itself, or not so many."
        ));
        tables.push(table);
    }
    Ok(tables)
}

fn time(run: &Run) -> Duration {
    run.sizes.lease * 3 / 2
}

fn one(run: &mut Run, driver: &mut Driver, count: usize) -> Measured {
    let (time, lease) = (time(run), run.sizes.lease);
    driver.order(&format!("hold locks=held count={count} lease_ms={}", lease.as_millis()))?;
    if driver.answer("holding", LONGEST)?.is_none() {
        return Ok(None);
    }
    let keys = run.server.keys("held")?;
    let sample: Vec<String> =
        keys.iter().step_by((keys.len() / SAMPLE).max(1)).take(SAMPLE).cloned().collect();
    let (before, cpu, begin) = (run.server.counters()?, driver.cpu()?, Instant::now());
    let seen = watch(&mut run.server, &sample, time / LOOKS)?;
    let (spent, client) = (run.server.counters()?.since(&before), driver.cpu()? - cpu);
    let seconds = begin.elapsed().as_secs_f64();
    // All of them have one key per lock.
    let lost = count.saturating_sub(run.server.keys("held")?.len());
    let said = driver.ask("drop", "dropped")?;
    let said = said.and_then(|answer| answer.number("lost")).unwrap_or(f64::NAN);
    // Looks once more, as often, to learn what that costs.
    let before = run.server.counters()?;
    watch(&mut run.server, &sample, Duration::ZERO)?;
    let looking = run.server.counters()?.since(&before).cpu;
    let server = spent.cpu.saturating_sub(looking).as_secs_f64();
    let client = client.as_secs_f64();
    let renewals = count as f64 * seen.renewals;
    Ok(Some(vec![
        lost as f64,
        said,
        seen.renewals,
        client / renewals * 1e6,
        server / renewals * 1e6,
        client / seconds * 100.0,
        server / seconds * 100.0,
        seen.least as f64 / lease.as_millis() as f64 * 100.0,
    ]))
}

struct Seen {
    /// The fewest milliseconds that were left of any lease.
    least: i64,
    /// Of each key, on average.
    renewals: f64,
}

/// Looks `LOOKS` times at what is left of the leases: more than before means renewed.
fn watch(server: &mut Server, keys: &[String], step: Duration) -> Result<Seen> {
    let (begin, mut last) = (Instant::now(), server.remaining(keys)?);
    let (mut least, mut renewals) = (i64::MAX, 0);
    for look in 1..=LOOKS {
        thread::sleep((step * look).saturating_sub(begin.elapsed()));
        let left = server.remaining(keys)?;
        least = left.iter().copied().min().unwrap_or(0).clamp(0, least);
        renewals += left.iter().zip(&last).filter(|(now, before)| now > before).count();
        last = left;
    }
    Ok(Seen { least, renewals: renewals as f64 / keys.len() as f64 })
}
