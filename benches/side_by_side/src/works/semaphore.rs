//! One permit of a semaphore with four, on a semaphore per thread and on one for all threads.

use crate::Result;
use crate::contenders::Contenders;
use crate::records;
use crate::run::{LONG_ROUND, Run, say};
use crate::server::Path;
use crate::table::{Metric, Table, metric};

use super::uncontended;

const SHARED: [Metric; 7] = [
    metric("pairs/s", 0),
    metric("longest wait ms", 1),
    metric("largest/smallest share", 2),
    metric("commands/pair", 1),
    metric("client CPU s/M pairs", 1),
    metric("server CPU s/M pairs", 1),
    metric("most at once", 0),
];

/// The contender that does not wait.
const FLOOR: &str = "floor-semaphore";

/// The threads that share a semaphore, twice the number of its permits.
const THREADS: usize = 8;

const NOTE: &str = "Each semaphore has four permits. `floor-semaphore` is the bare redis crate with \
                    two scripts in the same format, which neither reclaim permits nor wait.";

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let mut contenders = Contenders::semaphores(run, Path::Tcp, &[]);
    let mut tables = Vec::new();
    for threads in run.sizes.threads.clone() {
        tables.push(own(run, &mut contenders, threads)?);
    }
    drop(contenders);
    tables.push(shared(run)?);
    Ok(tables)
}

fn own(run: &mut Run, contenders: &mut Contenders, threads: usize) -> Result<Table> {
    let title = format!("A semaphore per thread, {threads} thread(s), TCP");
    say(&title);
    let mut table = Table::new("semaphore", title, &uncontended::METRICS).against(FLOOR);
    let millis = run.sizes.round.as_millis();
    let command = format!("pairs locks=own threads={threads} millis={millis} think_us=0 shared=0");
    let rounds = run.sizes.rounds;
    contenders.in_turns(run, &mut table, (rounds, threads), |run, driver| {
        let Some((records, spent)) = run.pairs(driver, &command)? else { return Ok(None) };
        Ok(Some(uncontended::figures(&records, &spent).to_vec()))
    })?;
    table.notes.push(NOTE.to_owned());
    Ok(table)
}

fn shared(run: &mut Run) -> Result<Table> {
    let title = format!("One semaphore with 4 permits, {THREADS} threads of one process, TCP");
    say(&title);
    let mut table = Table::new("semaphore", title, &SHARED);
    let time = run.sizes.round * LONG_ROUND;
    let millis = time.as_millis();
    let command =
        format!("pairs locks=shared threads={THREADS} millis={millis} think_us=0 shared=1");
    let (nanos, rounds) = (u64::try_from(time.as_nanos())?, run.sizes.rounds.div_ceil(2));
    let mut contenders = Contenders::semaphores(run, Path::Tcp, &[FLOOR]);
    contenders.in_turns(run, &mut table, (rounds, THREADS), |run, driver| {
        let Some((mut records, spent)) = run.pairs(driver, &command)? else { return Ok(None) };
        let figures = records::contended(&mut records, THREADS, nanos, |record| record.worker);
        let per_million = |seconds: f64| seconds / figures.pairs * 1e6;
        Ok(Some(vec![
            figures.per_second,
            figures.longest_wait_ms,
            figures.unfairness,
            spent.server.commands / figures.pairs,
            per_million(spent.client.as_secs_f64()),
            per_million(spent.server.cpu.as_secs_f64()),
            records::most_at_once(&records),
        ]))
    })?;
    Ok(table)
}
