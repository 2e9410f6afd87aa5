//! `leasehold force`: takes a lock away from its holders.

use std::process::ExitCode;

use leasehold::{Client, LockInfo};
use serde::Serialize;

use super::count::Count;
use super::json::LockView;
use super::kept::Kept;
use super::{ls, print, table, text};
use crate::address::Server;
use crate::args::ForceArgs;
use crate::failure::{Code, Output, Result};

/// The line of `force --json`.
#[derive(Debug, Serialize)]
struct Forced<'a> {
    name: &'a str,
    /// Whether the lock was held.
    forced: bool,
    /// The lock just before, if it was held.
    lock: Option<LockView<'a>>,
}

pub(crate) fn run(server: &Server, arguments: &ForceArgs, output: Output) -> Result<ExitCode> {
    let client = server.connect()?;
    let name = &arguments.name;
    let before = client.lock_info(name)?;
    let (forced, count) = match client.force_unlock(name) {
        Err(error) if error.code() == Some("WRONGTYPE") => match Count::find(&client, name)? {
            Some(count) => (false, Some(count)),
            None => return Err(error.into()),
        },
        forced => (forced?, None),
    };
    let before = before.filter(|_| forced);
    let shown = match (output, &count) {
        (Output::Json, _) => {
            let lock = before.as_ref().map(LockView::of);
            print::json(&Forced { name, forced, lock })?
        }
        (Output::Text, _) if forced => ended(name, before.as_ref()),
        (Output::Text, Some(count)) => count.in_a_line() + "\n",
        (Output::Text, None) => free(&client, name)?,
    };
    print::print(&shown)?;
    Ok(if forced { ExitCode::SUCCESS } else { Code::Negative.into() })
}

/// Returns a line about a free lock. What a caller of `force` may mean is the result of work.
fn free(client: &Client, name: &str) -> Result<String> {
    let kept = Kept::find(client, name)?.map(|kept| kept.in_a_line());
    Ok(kept.unwrap_or_else(|| format!("{} is free", text::printable(name))) + "\n")
}

/// Returns a line, and the lock with its former holders as `ls` shows them.
fn ended(name: &str, lock: Option<&LockInfo>) -> String {
    let line = format!("{} is taken away from its holders\n", text::printable(name));
    let table = lock.map(|lock| ls::table(std::slice::from_ref(lock), table::terminal_width()));
    line + &table.unwrap_or_default()
}
