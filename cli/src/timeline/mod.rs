//! `leasehold timeline`: a picture of the holds and waits of locks.
//!
//! `events` reads a file, [`observe`] looks at locks; both give events. `identity`, `spans`,
//! `recorder` and `rows` make a [`Timeline`] of them, without any server or clock.
//! `picture` draws it, `output` writes it.

mod events;
#[cfg(test)]
mod fixtures;
mod identity;
mod output;
mod picture;
mod recorder;
mod rows;
mod spans;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::address::Server;
use crate::args::TimelineArgs;
use crate::failure::{Result, print_note};
use crate::observe::event::LockEvent;
use crate::observe::looks::{Looks, Told};
use crate::observe::snapshot::now;
use crate::views::pattern;
use output::OutputFile;
use rows::Timeline;
use spans::Window;

/// Draws the events of a file, or observes the locks first. Blocks for the time of observation.
///
/// Prints one line with the numbers of holds and waits to the standard error.
pub(crate) fn run(server: &Server, arguments: &TimelineArgs) -> Result<ExitCode> {
    let output = OutputFile::open(&arguments.output)?;
    let timeline = match &arguments.input {
        Some(path) => {
            let events = events::read(path)?;
            Timeline::new(&events, Window::around(&events), &[])
        }
        None => {
            let (events, window) = observe(server, arguments)?;
            let mut names = arguments.names.clone();
            names.retain(|name| !pattern::is_pattern(name));
            Timeline::new(&events, window, &names)
        }
    };
    output.write(&picture::draw(&timeline))?;
    let path = arguments.output.display();
    print_note(&format!("{path}: {}", picture::summary(&timeline)));
    Ok(ExitCode::SUCCESS)
}

/// Returns the events of the locks, and the time of the observation.
///
/// Blocks for the given time; an interrupt ends it early.
fn observe(server: &Server, arguments: &TimelineArgs) -> Result<(Vec<LockEvent>, Window)> {
    let looks = Looks::start(server, &arguments.names, arguments.every)?;
    let from = now();
    let mut events = Vec::new();
    let end = Instant::now().checked_add(arguments.length);
    loop {
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        match looks.next(left) {
            _ if left.is_zero() => break,
            Told::Events(more) => events.extend(more),
            Told::Failed(failure) => return Err(failure),
            Told::Interrupted | Told::Nothing => break,
        }
    }
    Ok((events, Window { from, until: now() }))
}
