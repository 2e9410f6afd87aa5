//! Looks at locks for some time.

use std::time::{Duration, Instant};

use crate::address::Server;
use crate::args::TimelineArgs;
use crate::failure::Result;
use crate::observe::event::LockEvent;
use crate::observe::looks::{Looks, Told};
use crate::observe::snapshot::now;
use crate::timeline::spans::Window;

/// Returns the events of the locks, and the time of the observation.
///
/// Blocks for the given time; an interrupt ends it early.
pub(crate) fn observe(
    server: &Server,
    arguments: &TimelineArgs,
) -> Result<(Vec<LockEvent>, Window)> {
    let looks = Looks::start(server, &arguments.names, arguments.every)?;
    let from = now();
    let mut events = Vec::new();
    let end = Instant::now().checked_add(arguments.length);
    while let Some(more) = next(&looks, end)? {
        events.extend(more);
    }
    Ok((events, Window { from, until: now() }))
}

/// Returns the next events; `None` after the end and after an interrupt.
fn next(looks: &Looks, end: Option<Instant>) -> Result<Option<Vec<LockEvent>>> {
    let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
    match looks.next(left) {
        _ if left.is_zero() => Ok(None),
        Told::Events(events) => Ok(Some(events)),
        Told::Failed(failure) => Err(failure),
        Told::Interrupted | Told::Nothing => Ok(None),
    }
}
