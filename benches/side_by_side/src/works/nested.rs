//! Re-entrant lock and release of a lock that the thread already holds.

use crate::Result;
use crate::contenders::Contenders;
use crate::records;
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::Path;
use crate::table::{Table, metric};

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let title = "Re-entrant lock and release, 1 thread, TCP".to_owned();
    say(&title);
    let metrics = [metric("ns/pair", 0), metric("commands/pair", 1)];
    let mut table = Table::new("nested", title, &metrics);
    let millis = run.sizes.round.as_millis() / 2;
    let command = format!("nested locks=nested threads=1 millis={millis}");
    let mut contenders = Contenders::new(run, Path::Tcp, &NO_LIBRARIES);
    let rounds = run.sizes.rounds;
    contenders.in_turns(run, &mut table, (rounds, 1), |run, driver| {
        let before = run.server.counters()?;
        let Some(answer) = driver.ask(&command, "done")? else { return Ok(None) };
        let commands = run.server.counters()?.since(&before).commands;
        let pairs = answer.number("pairs").unwrap_or(f64::NAN);
        let nanos = match answer.number("nanos") {
            Some(nanos) => nanos,
            None => records::uncontended(&run.records(driver, 0)?).mean_us * 1e3,
        };
        Ok(Some(vec![nanos, commands / pairs]))
    })?;
    let note = "Contenders without a row have no re-entrant locks, or did not re-enter.";
    table.notes.push(note.to_owned());
    Ok(vec![table])
}
