//! One lock, many threads of one process.

use crate::Result;
use crate::contenders::Contenders;
use crate::records;
use crate::run::{FLOORS, LONG_ROUND, Run, say};
use crate::server::Path;
use crate::table::{Metric, Table, metric};

const METRICS: [Metric; 6] = [
    metric("pairs/s", 0),
    metric("changes of thread/s", 0),
    metric("longest wait ms", 1),
    metric("largest/smallest share", 2),
    metric("client CPU s/M pairs", 1),
    metric("overlaps", 0),
];

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let mut contenders = Contenders::new(run, Path::Tcp, &FLOORS);
    let mut tables = Vec::new();
    for threads in run.sizes.threads.clone() {
        let title = format!("One lock, {threads} thread(s) of one process, TCP");
        say(&title);
        let mut table = Table::new("threads", title, &METRICS);
        let time = run.sizes.round * LONG_ROUND;
        let command = format!(
            "pairs locks=shared threads={threads} millis={} think_us=0 shared=1",
            time.as_millis()
        );
        let nanos = u64::try_from(time.as_nanos())?;
        let rounds = run.sizes.rounds.div_ceil(2);
        contenders.in_turns(run, &mut table, (rounds, threads), |run, driver| {
            let Some((mut records, spent)) = run.pairs(driver, &command)? else { return Ok(None) };
            let figures = records::contended(&mut records, threads, nanos, |record| record.worker);
            Ok(Some(vec![
                figures.per_second,
                figures.changes_per_second,
                figures.longest_wait_ms,
                figures.unfairness,
                spent.client.as_secs_f64() / figures.pairs * 1e6,
                figures.overlaps,
            ]))
        })?;
        table.notes.push(
            "`park` is a bare first-in, first-out hand-off by park and unpark, `parking_lot` the \
             mutex of that crate. Both work without a server."
                .to_owned(),
        );
        tables.push(table);
    }
    Ok(tables)
}
