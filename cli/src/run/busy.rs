//! The holder of a lock that is not acquired, as a line on stderr.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use leasehold::{Client, HolderInfo};

use crate::args::CommandArgs;
use crate::failure::print_note;
use crate::views::text;

/// The time after which a wait has a line.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Prints who holds the lock once this value has existed for [`LONG_WAIT`].
pub(super) struct WaitNote {
    _ends: Sender<()>,
}

impl WaitNote {
    /// Returns `None` if nobody reads the line: stderr is no terminal, without `--verbose`.
    ///
    /// A system without room for one more thread gets no line.
    pub(super) fn start(client: &Client, args: &CommandArgs) -> Option<WaitNote> {
        if args.nonblock || !(args.verbose || io::stderr().is_terminal()) {
            return None;
        }
        let (_ends, end) = mpsc::channel();
        let (client, name) = (client.clone(), args.lock_name().to_owned());
        let tell = move || {
            let goes_on = |span| end.recv_timeout(span) == Err(RecvTimeoutError::Timeout);
            if !goes_on(LONG_WAIT) {
                return;
            }
            let holders = holders(&client, &name);
            if goes_on(Duration::ZERO) {
                print_note(&format!("leasehold: waits: {holders}"));
            }
        };
        thread::Builder::new().name("wait-note".into()).spawn(tell).ok()?;
        Some(WaitNote { _ends })
    }
}

/// Prints who holds the lock that was not acquired, with `--verbose`.
pub(super) fn tell_not_acquired(client: &Client, args: &CommandArgs) {
    if args.verbose {
        let holders = holders(client, args.lock_name());
        print_note(&format!("leasehold: not acquired: {holders}"));
    }
}

/// Returns the sentence about the holders. Two round trips, and questions to their processes.
fn holders(client: &Client, name: &str) -> String {
    let shown = text::printable(name).into_owned();
    match client.lock_info(name) {
        Ok(Some(lock)) => match lock.holders() {
            [] => format!("{shown} is kept after an early release, until the end of its minimum"),
            [one] => format!("{shown} is held by {}", described(one)),
            [first, others @ ..] => {
                format!("{shown} is held by {} and {} more", described(first), others.len())
            }
        },
        Ok(None) => format!("{shown} is free by now"),
        Err(error) => format!("the holder of {shown} is unknown: {error}"),
    }
}

/// Returns what is known of a holder: `report on host-1, pid 42, for 12s`.
fn described(holder: &HolderInfo) -> String {
    let named = holder.label().or_else(|| holder.program());
    let mut words =
        named.map_or_else(|| text::short_owner(holder), |it| text::printable(it).into());
    if let Some(host) = holder.host() {
        words += &format!(" on {}", text::printable(host));
    }
    if let Some(pid) = holder.pid() {
        words += &format!(", pid {pid}");
    }
    if let Some(age) = text::age(holder) {
        words += &format!(", for {}", text::brief(age));
    }
    if text::is_silent(holder) {
        words += &format!(", {}", text::SILENT);
    }
    words
}
