//! Re-entrant lock and release on a lock that the thread holds already.

use crate::Result;
use crate::run::{NO_LIBRARIES, Run, say, turns};
use crate::server::Path;
use crate::sheet::{Table, metric};

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let title = "Re-entrant lock and release, 1 thread, TCP".to_owned();
    say(&title);
    let metrics = [metric("ns/pair", 0), metric("commands/pair", 1)];
    let mut table = Table::new("nested", title, &metrics);
    let millis = run.sizes.round.as_millis() / 2;
    let order = format!("nested locks=nested threads=1 millis={millis}");
    let mut drivers = run.drivers(Path::Tcp, &NO_LIBRARIES);
    for driver in &mut drivers {
        Run::warm_up(driver, 1)?;
    }
    for round in 0..run.sizes.rounds {
        for at in turns(drivers.len(), round) {
            let before = run.server.counters()?;
            let Some(answer) = drivers[at].ask(&order, "done")? else { continue };
            let commands = run.server.counters()?.since(&before).commands;
            let pairs = answer.number("pairs").unwrap_or(f64::NAN);
            let nanos = match answer.number("nanos") {
                Some(nanos) => nanos,
                None => {
                    let records = run.records(&mut drivers[at], 0)?;
                    crate::records::uncontended(&records).mean_us * 1e3
                }
            };
            table.round(&drivers[at].name.clone(), &[nanos, commands / pairs]);
        }
    }
    let named = "Who is not named has no re-entrant locks, or did not re-enter.";
    table.notes.push(named.to_owned());
    Ok(vec![table])
}
