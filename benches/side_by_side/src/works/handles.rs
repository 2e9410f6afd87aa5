//! Idle lock handles, and the start of a client.

use crate::Result;
use crate::contenders::Contenders;
use crate::run::{NO_LIBRARIES, Run, say};
use crate::server::Path;
use crate::table::{Table, metric};

/// The number of clients started in a row.
const STARTS: u32 = 20;

pub(crate) fn measure(run: &mut Run) -> Result<Vec<Table>> {
    let count = run.sizes.handles;
    let title = format!("{count} idle lock handles; {STARTS} clients started in a row, TCP");
    say(&title);
    let metrics = [
        metric("ns/handle", 0),
        metric("heap bytes/handle", 0),
        metric("resident bytes/handle", 0),
        metric("start, one pair, close: ms", 2),
    ];
    let mut table = Table::new("handles", title, &metrics);
    let mut contenders = Contenders::new(run, Path::Tcp, &NO_LIBRARIES);
    contenders.one_by_one(run, &mut table, |_, driver| {
        let mut figures = vec![f64::NAN; 4];
        let resident = driver.resident()?;
        if let Some(made) = driver.ask(&format!("handles locks=idle count={count}"), "handles")? {
            let each = |value: f64| value / count as f64;
            figures[0] = made.number("nanos").map_or(f64::NAN, each);
            figures[1] = made.number("heap").map_or(f64::NAN, each);
            figures[2] = each(driver.resident()?.saturating_sub(resident) as f64);
            driver.ask("forget", "forgotten")?;
        }
        if let Some(started) = driver.ask(&format!("start count={STARTS}"), "started")? {
            let nanos = started.number("nanos").unwrap_or(f64::NAN);
            figures[3] = nanos / f64::from(STARTS) / 1e6;
        }
        Ok(Some(figures))
    })?;
    Ok(vec![table])
}
