//! `leasehold ls`: the held locks whose names match a pattern.
//!
//! If nodes of a cluster do not answer, the locks of the others are listed.

use std::process::ExitCode;

use leasehold::{HolderInfo, LockInfo};

use super::json::LockView;
use super::print;
use super::table::{self, Column};
use super::text::{self, UNKNOWN};
use crate::address::Server;
use crate::args::LsArgs;
use crate::failure::{Failure, Output, Result};

/// The columns, a row for each holder.
const COLUMNS: [Column; 10] = [
    Column::text("NAME", 16, 9),
    Column::text("KIND", 6, 7),
    Column::text("HOLDER", 8, 2),
    Column::text("HOST", 6, 4),
    Column::number("PID", 5),
    Column::text("PROGRAM", 7, 3),
    Column::text("LABEL", 5, 1),
    Column::number("AGE", 8),
    Column::number("LEFT", 8),
    Column::number("WAIT", 6),
];

pub(crate) fn run(server: &Server, arguments: &LsArgs, output: Output) -> Result<ExitCode> {
    let (mut locks, mut failures) = (Vec::new(), Vec::new());
    for found in server.connect()?.locks(&arguments.pattern)? {
        match found {
            Ok(lock) => locks.push(lock),
            Err(error) => failures.push(Failure::from(error)),
        }
    }
    locks.sort_by(|a, b| a.name().cmp(b.name()));
    match output {
        // The list would look complete, although perhaps no server has answered.
        _ if locks.is_empty() && !failures.is_empty() => {}
        Output::Json => print::print(&print::json_array(locks.iter().map(LockView::of))?)?,
        Output::Text if locks.is_empty() => {}
        Output::Text => print::print(&table(&locks, table::terminal_width()))?,
    }
    let codes: Vec<_> = failures.iter().map(Failure::report).collect();
    Ok(codes.into_iter().next().unwrap_or(ExitCode::SUCCESS))
}

/// Returns the table of these locks.
pub(super) fn table(locks: &[LockInfo], width: Option<usize>) -> String {
    let rows: Vec<_> = locks.iter().flat_map(rows).collect();
    table::render(&COLUMNS, &rows, width)
}

/// Returns a row for each holder, and for a lock without one a row that names the former holder.
fn rows(lock: &LockInfo) -> Vec<Vec<String>> {
    let holders: Vec<_> = lock.holders().iter().map(Some).collect();
    let holders = if holders.is_empty() { vec![lock.former_holder()] } else { holders };
    holders.into_iter().map(|holder| row(lock, holder)).collect()
}

fn row(lock: &LockInfo, holder: Option<&HolderInfo>) -> Vec<String> {
    let text = |text: Option<&str>| text.map(|text| text::printable(text).into_owned());
    let span = |seconds: Option<f64>| Some(seconds.map_or(UNKNOWN.to_owned(), text::brief));
    let left = holder.map_or(lock.remaining(), HolderInfo::remaining);
    let cells = [
        text(Some(lock.name())),
        text(Some(text::short_kind(lock.kind()))),
        Some(holder.map_or(UNKNOWN.to_owned(), |it| who(lock, it))),
        holder.and_then(|it| text(it.host())),
        holder.and_then(|it| it.pid().map(|pid| pid.to_string())),
        holder.and_then(|it| text(it.program())),
        holder.and_then(|it| text(it.label())),
        span(holder.and_then(text::age)),
        span(left.map(|left| left.as_secs_f64())),
        Some(waiters(lock)),
    ];
    cells.into_iter().map(Option::unwrap_or_default).collect()
}

/// Returns the name of a holder within its process, unless it has released the lock early, its
/// process is silent, or nobody has the hold.
fn who(lock: &LockInfo, holder: &HolderInfo) -> String {
    match lock.former_holder() {
        Some(_) => text::ENDED.to_owned(),
        None if text::is_silent(holder) => text::SILENT.to_owned(),
        None if holder.is_idle() => text::IDLE.to_owned(),
        None => text::short_owner(holder),
    }
}

/// Returns the number of waiting callers, or of waiting processes if the callers are unknown.
fn waiters(lock: &LockInfo) -> String {
    match lock.waiting().queue().len() as u64 {
        0 => lock.waiting().processes().to_string(),
        callers => callers.to_string(),
    }
}
