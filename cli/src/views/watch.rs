//! `leasehold watch`: events of locks as they happen.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::print;
use super::text;
use crate::address::Server;
use crate::args::WatchArgs;
use crate::failure::{Output, Result};
use crate::observe::event::{Happening, LockEvent};
use crate::observe::looks::{Looks, Told};

/// The time between two checks whether the output still has a reader.
const CHECK: Duration = Duration::from_millis(250);

pub(crate) fn run(server: &Server, arguments: &WatchArgs, output: Output) -> Result<ExitCode> {
    let looks = Looks::start(server, &arguments.names, arguments.every)?;
    loop {
        let has_reader = match looks.next(CHECK) {
            Told::Events(events) => print::print_while_read(&lines(&events, output)?)?,
            Told::Nothing => true,
            Told::Failed(failure) => return Err(failure),
            Told::Interrupted => false,
        };
        if !has_reader || is_closed() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Returns whether the reader of the output has ended.
fn is_closed() -> bool {
    let output = io::stdout();
    let mut polled = [PollFd::new(&output, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

/// Returns a line for each event.
fn lines(events: &[LockEvent], output: Output) -> Result<String> {
    match output {
        Output::Json => events.iter().map(print::json).collect(),
        Output::Text => Ok(events.iter().map(|event| line(event, output.has_colours())).collect()),
    }
}

/// Returns the line of an event: time, name, event, caller, further facts.
fn line(event: &LockEvent, has_colours: bool) -> String {
    let (word, colour) = word(event);
    let word = if has_colours {
        format!("\u{1b}[{colour}m{word:8}\u{1b}[0m")
    } else {
        format!("{word:8}")
    };
    let parts = [caller(event), facts(event)];
    let rest: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let start =
        format!("{}  {}  {word}", text::time_of_day(event.at), text::printable(&event.name));
    format!("{start}  {}", rest.join("  ")).trim_end().to_owned() + "\n"
}

/// Returns the word for an event, and its colour on a terminal.
pub(crate) fn word(event: &LockEvent) -> (&'static str, u8) {
    match event.event {
        Happening::Acquired if event.present => ("held", 32),
        Happening::Acquired => ("acquired", 32),
        Happening::Released => ("released", 36),
        Happening::Kept => ("kept", 36),
        Happening::Idle => ("idle", 36),
        Happening::Expired => ("expired", 31),
        Happening::Lost => ("lost", 31),
        Happening::Waiting => ("waiting", 33),
        Happening::Left => ("left", 33),
        Happening::Gone => ("gone", 33),
        Happening::Identified => ("known", 36),
        Happening::Outage => ("outage", 31),
        Happening::Recovered => ("recovered", 32),
        Happening::Mark => ("mark", 35),
    }
}

/// Returns the holder or the waiting caller, as far as it is known.
pub(crate) fn caller(event: &LockEvent) -> String {
    let program = event.program.as_deref().unwrap_or_default();
    let process = event.pid.map(|pid| format!("{program}[{pid}]"));
    let label = event.label.as_ref().map(|label| format!("({label})"));
    let thread = event.thread.clone().filter(|thread| process.is_some() && !thread.is_empty());
    let owner = event.owner.clone().filter(|_| process.is_none());
    let parts = [event.host.clone(), process, label, thread, owner];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    text::printable(&parts.join(" ")).into_owned()
}

/// Returns the further facts of an event.
pub(crate) fn facts(event: &LockEvent) -> String {
    let span = |title: &str, span: Option<f64>| Some(format!("{title} {}", text::brief(span?)));
    let missed = event.holds.filter(|holds| *holds > 1).map(|holds| holds - 1);
    let age = event.since.filter(|_| event.present).map(|since| event.at - since);
    let facts = [
        span("for", age),
        span("held", event.held),
        span("for another", event.until.map(|until| until - event.at)),
        span("waited", event.waited),
        event.handed_off.then(|| "handed off in its process".to_owned()),
        missed.map(|count| format!("{count} holds in between")),
        event.processes.map(|count| format!("waiting processes: {count}")),
        event.text.as_deref().map(|it| text::printable(it).into_owned()),
    ];
    facts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
