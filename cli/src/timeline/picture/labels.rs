//! The names of processes and threads, left of the plot.

use svg::node::element::{Group, TSpan, Text};

use crate::timeline::picture::elements::{text, tooltip};
use crate::timeline::picture::layout::{Layout, MARGIN, Place, Sizes};
use crate::timeline::picture::levels;
use crate::timeline::picture::text::{clean, shorten, width};
use crate::timeline::rows::{Process, Row, Timeline};

/// The most room for the names of processes and those of threads.
const PROCESS: f64 = 250.0;
const THREAD: f64 = 120.0;

/// The room between names.
const SPACE: f64 = 12.0;

/// The part of the room that a name may have, whatever the length of the details.
const NAME: f64 = 0.62;

/// The size of details, as a part of the size of names.
const DETAIL: f64 = 0.88;

/// Bold letters are wider.
const BOLD: f64 = 1.08;

/// Returns the host of all processes, if they have the same.
pub(crate) fn common_host(timeline: &Timeline) -> Option<String> {
    let mut hosts = timeline.processes.iter().map(|process| &process.identity.host);
    let first = hosts.next()?;
    if hosts.all(|host| host == first) { first.clone() } else { None }
}

/// Returns the room for the names of processes and for those of threads.
pub(crate) fn room(timeline: &Timeline, sizes: &Sizes, same_host: bool) -> (f64, f64) {
    let process = timeline.processes.iter().map(|process| {
        let name = width(process.name(), sizes.text) * BOLD;
        let detail = width(&detail(process, same_host), sizes.text * DETAIL);
        if process.rows.len() > 1 { name.max(detail) } else { name + SPACE / 2.0 + detail }
    });
    let thread = timeline.rows().map(|row| width(&row.thread, sizes.text));
    let levels = timeline.levels.iter();
    let names = levels.clone().map(|(&lock, _)| levels::label(timeline, lock));
    let names = names.map(|name| width(&name, sizes.text) * BOLD);
    let tops = levels.map(|(_, levels)| width(&levels::top(levels), sizes.text));
    let process = process.chain(names).fold(0.0, f64::max).min(PROCESS) + SPACE;
    (process, thread.chain(tops).fold(0.0, f64::max).min(THREAD))
}

/// Draws the name of a process. Its details stand beside it, below it if there are several rows.
pub(crate) fn process(process: &Process, place: &Place, layout: &Layout) -> Text {
    let Sizes { row, padding, text: size, .. } = layout.sizes;
    let small = size * DETAIL;
    let details = detail(process, layout.host.is_some());
    let several = process.rows.len() > 1;
    let (for_name, for_details) = rooms(process, &details, several, layout);
    let details = TSpan::new(clean(&shorten(&details, small, for_details)));
    let details = details.set("class", "muted").set("font-size", small);
    let details = if several {
        details.set("x", MARGIN).set("dy", small + 4.0)
    } else {
        details.set("dx", SPACE / 2.0)
    };
    // The name is an element of its own, so that its weight does not reach the details.
    let name = TSpan::new(clean(&shorten(process.name(), size, for_name / BOLD)));
    let label = text("ink", MARGIN, place.top + padding + row / 2.0, size, "");
    let full = format!("{} {}", process.name(), detail(process, false));
    label.add(name.set("class", "name")).add(details).add(tooltip(full.trim()))
}

/// Returns the room for the name of a process and for its details.
fn rooms(process: &Process, details: &str, several: bool, layout: &Layout) -> (f64, f64) {
    let (room, size) = (layout.names - SPACE, layout.sizes.text);
    if several {
        return (room, room);
    }
    let least = room * NAME;
    let name = (room - width(details, size * DETAIL) - SPACE / 2.0).max(least);
    let used = (width(process.name(), size) * BOLD).min(name);
    (name, room - used - SPACE / 2.0)
}

/// Draws the name of a thread.
pub(crate) fn thread(row: &Row, place: &Place, layout: &Layout) -> Group {
    let (left, room) = layout.threads;
    let (name, size) = (row.thread.as_str(), layout.sizes.text);
    let short = shorten(name, size, room);
    let label = text("ink right", left + room, place.top + layout.sizes.row / 2.0, size, &short);
    let is_short = short != name;
    Group::new().add(if is_short { label.add(tooltip(name)) } else { label })
}

/// Draws the sentence of an empty picture.
pub(crate) fn nothing(layout: &Layout) -> Text {
    let middle = layout.scale.left + layout.scale.width / 2.0;
    let sentence = "Nothing held these locks, and nothing waited for them.";
    text("ink middle", middle, layout.plot.middle(), 14.0, sentence)
}

/// Returns the host, and the process id or the number of processes.
fn detail(process: &Process, same_host: bool) -> String {
    let host = process.identity.host.clone().filter(|_| !same_host);
    let pid = match process.count() {
        1 => process.identity.pid.map(|pid| format!("pid {pid}")),
        count => Some(format!("{count} processes")),
    };
    host.into_iter().chain(pid).collect::<Vec<_>>().join(" ")
}
