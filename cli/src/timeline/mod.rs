//! `leasehold timeline`: a picture of the holds and waits of locks.
//!
//! `events` reads a file, `observation` looks at locks; both give events. `identity`, `spans`,
//! `recorder` and `rows` make a [`Timeline`] of them, without any server or clock.
//! `picture` draws it, `output` writes it.

mod events;
#[cfg(test)]
mod fixtures;
mod identity;
mod observation;
mod output;
mod picture;
mod recorder;
mod rows;
mod spans;

use std::process::ExitCode;

use crate::address::Server;
use crate::args::TimelineArgs;
use crate::failure::{Result, print_note};
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
            let (events, window) = observation::observe(server, arguments)?;
            Timeline::new(&events, window, &arguments.names)
        }
    };
    output.write(&picture::draw(&timeline))?;
    let path = arguments.output.display();
    print_note(&format!("{path}: {}", picture::summary(&timeline)));
    Ok(ExitCode::SUCCESS)
}
