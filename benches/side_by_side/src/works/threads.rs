//! One lock, many threads of one process.

use crate::Result;
use crate::lineup::Lineup;
use crate::records;
use crate::run::{FLOORS, LONG_ROUND, Run, say};
use crate::server::Path;
use crate::sheet::{Metric, Table, metric};

const METRICS: [Metric; 6] = [
    metric("pairs/s", 0),
    metric("changes of thread/s", 0),
    metric("longest wait ms", 1),
    metric("largest/smallest share", 2),
    metric("client CPU s/M pairs", 1),
    metric("overlaps", 0),
];

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let mut lineup = Lineup::new(run, Path::Tcp, &FLOORS);
    let mut tables = Vec::new();
    for threads in run.sizes.threads.clone() {
        let title = format!("One lock, {threads} thread(s) of one process, TCP");
        say(&title);
        let mut table = Table::new("threads", title, &METRICS);
        let time = run.sizes.round * LONG_ROUND;
        let order = format!(
            "pairs locks=shared threads={threads} millis={} think_us=0 shared=1",
            time.as_millis()
        );
        let nanos = u64::try_from(time.as_nanos())?;
        let rounds = run.sizes.rounds.div_ceil(2);
        lineup.in_turns(run, &mut table, (rounds, threads), |run, driver| {
            let Some((mut records, spent)) = run.pairs(driver, &order)? else { return Ok(None) };
            let said = records::contended(&mut records, threads, nanos, |record| record.worker);
            Ok(Some(vec![
                said.per_second,
                said.changes_per_second,
                said.longest_wait_ms,
                said.unfairness,
                spent.client.as_secs_f64() / said.pairs * 1e6,
                said.overlaps,
            ]))
        })?;
        table.notes.push(
            "`park` is a bare hand-off in order by park and unpark, `parking_lot` its mutex: \
             what a process can do without a server."
                .to_owned(),
        );
        tables.push(table);
    }
    Ok(tables)
}
