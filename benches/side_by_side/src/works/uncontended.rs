//! Lock and release, with one lock per thread, back to back and with work in between.

use crate::Result;
use crate::contenders::Contenders;
use crate::records;
use crate::run::{LOCAL, Run, Spent, say};
use crate::server::Path;
use crate::table::{Metric, Table, metric};

pub(super) const METRICS: [Metric; 10] = [
    metric("pairs/s", 0),
    metric("mean us", 1),
    metric("p50 us", 1),
    metric("p99 us", 1),
    metric("commands/pair", 1),
    metric("bytes/pair", 0),
    metric("connections", 0),
    metric("client CPU s/M pairs", 1),
    metric("server CPU s/M pairs", 1),
    metric("errors", 0),
];

/// Microseconds of work between pairs. Only one thread works, because more need more cores.
const WORK: u64 = 100;

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for path in run.sizes.paths.clone() {
        let mut contenders = Contenders::new(run, path, &LOCAL);
        for threads in run.sizes.threads.clone() {
            tables.push(one(run, &mut contenders, path, threads, 0)?);
            if threads == 1 {
                tables.push(one(run, &mut contenders, path, threads, WORK)?);
            }
        }
    }
    Ok(tables)
}

fn one(
    run: &mut Run,
    contenders: &mut Contenders,
    path: Path,
    threads: usize,
    think: u64,
) -> Result<Table> {
    let work = if think > 0 { format!(", {think} us of own work between") } else { String::new() };
    let title = format!("Uncontended, {threads} thread(s), {}{work}", path.name());
    say(&title);
    let mut table = Table::new("uncontended", title, &METRICS).against("floor");
    if think > 0 {
        // The time comes first: throughput includes the work, which is not that of the library.
        table.metrics.swap(0, 1);
    }
    let millis = run.sizes.round.as_millis();
    let command =
        format!("pairs locks=own threads={threads} millis={millis} think_us={think} shared=0");
    let rounds = run.sizes.rounds;
    contenders.in_turns(run, &mut table, (rounds, threads), |run, driver| {
        let Some((records, spent)) = run.pairs(driver, &command)? else { return Ok(None) };
        let mut figures = figures(&records, &spent);
        if think > 0 {
            figures.swap(0, 1);
        }
        Ok(Some(figures.to_vec()))
    })?;
    Ok(table)
}

pub(super) fn figures(records: &[records::Record], spent: &Spent) -> [f64; 10] {
    let pairs = records::uncontended(records);
    let per_million = |seconds: f64| seconds / pairs.pairs * 1e6;
    [
        pairs.per_second,
        pairs.mean_us,
        pairs.p50_us,
        pairs.p99_us,
        spent.server.commands / pairs.pairs,
        spent.server.bytes / pairs.pairs,
        spent.connections,
        per_million(spent.client.as_secs_f64()),
        per_million(spent.server.cpu.as_secs_f64()),
        spent.errors,
    ]
}
