//! Many locks held for one and a half leases.
//!
//! Most libraries renew after a third of the lease, some after half of it.

use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::contenders::{Contenders, Measured};
use crate::driver::{Driver, LONGEST};
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::{Path, Server};
use crate::table::{Metric, Table, metric};

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

/// The number of keys whose remaining lease is read.
const SAMPLE: usize = 100;

/// How often the remaining leases are read.
const READS: u32 = 200;

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for count in run.sizes.held.clone() {
        let (time, lease) = (time(run).as_secs_f64(), run.sizes.lease.as_secs());
        let title = format!("{count} locks held for {time} s, lease {lease} s, TCP");
        say(&title);
        let mut table = Table::new("held", title, &METRICS);
        Contenders::new(run, Path::Tcp, &NO_LIBRARIES).one_by_one(
            run,
            &mut table,
            |run, driver| one(run, driver, count),
        )?;
        table.notes.push(format!(
            "Renewals are counted on {SAMPLE} keys, whose remaining lease is read {READS} times; \
             the server time of these reads is subtracted. Least lease left: the smallest \
             remaining share of a lease on these keys, which is 67 % if every lease is renewed \
             after a third of its length, and 0 % if one expired. Contenders without a row do \
             not renew leases by themselves, or not this many."
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
    driver.send(&format!("hold locks=held count={count} lease_ms={}", lease.as_millis()))?;
    if driver.answer("holding", LONGEST)?.is_none() {
        return Ok(None);
    }
    let keys = run.server.keys("held")?;
    let sample: Vec<String> =
        keys.iter().step_by((keys.len() / SAMPLE).max(1)).take(SAMPLE).cloned().collect();
    let (before, cpu, begin) = (run.server.counters()?, driver.cpu()?, Instant::now());
    let observed = watch(&mut run.server, &sample, time / READS)?;
    let (spent, client) = (run.server.counters()?.since(&before), driver.cpu()? - cpu);
    let seconds = begin.elapsed().as_secs_f64();
    // Every library has one key per lock.
    let lost = count.saturating_sub(run.server.keys("held")?.len());
    let reported = driver.ask("drop", "dropped")?;
    let reported = reported.and_then(|answer| answer.number("lost")).unwrap_or(f64::NAN);
    // Reads the leases as often once more, to measure the server time of these reads.
    let before = run.server.counters()?;
    watch(&mut run.server, &sample, Duration::ZERO)?;
    let reading = run.server.counters()?.since(&before).cpu;
    let server = spent.cpu.saturating_sub(reading).as_secs_f64();
    let client = client.as_secs_f64();
    let renewals = count as f64 * observed.renewals;
    Ok(Some(vec![
        lost as f64,
        reported,
        observed.renewals,
        client / renewals * 1e6,
        server / renewals * 1e6,
        client / seconds * 100.0,
        server / seconds * 100.0,
        observed.least as f64 / lease.as_millis() as f64 * 100.0,
    ]))
}

struct Observed {
    /// The shortest remaining lease in milliseconds.
    least: i64,
    /// The average number of renewals of a key.
    renewals: f64,
}

/// Reads the remaining leases `READS` times. A longer lease than before was renewed.
fn watch(server: &mut Server, keys: &[String], step: Duration) -> Result<Observed> {
    let (begin, mut last) = (Instant::now(), server.remaining(keys)?);
    let (mut least, mut renewals) = (i64::MAX, 0);
    for read in 1..=READS {
        thread::sleep((step * read).saturating_sub(begin.elapsed()));
        let left = server.remaining(keys)?;
        least = left.iter().copied().min().unwrap_or(0).clamp(0, least);
        renewals += left.iter().zip(&last).filter(|(now, before)| now > before).count();
        last = left;
    }
    Ok(Observed { least, renewals: renewals as f64 / keys.len() as f64 })
}
