//! The title, the summary, and the description for screen readers.

use svg::Document;
use svg::node::element::{Description, Group, Title};

use crate::timeline::picture::elements::text;
use crate::timeline::picture::layout::{Layout, MARGIN, WIDTH};
use crate::timeline::picture::scale::duration;
use crate::timeline::picture::text::{clean, shorten};
use crate::timeline::picture::utc;
use crate::timeline::rows::{Row, Timeline};
use crate::timeline::spans::Activity;

/// The height of the title and the summary.
pub(crate) const HEIGHT: f64 = 58.0;

const TITLE_SIZE: f64 = 18.0;
const SIZE: f64 = 12.5;

/// The most rows that the description names.
const DESCRIBED: usize = 100;

/// Draws the title and the summary.
pub(crate) fn draw(timeline: &Timeline, layout: &Layout) -> Group {
    let room = WIDTH - 2.0 * MARGIN;
    let heading = shorten(&title(timeline), TITLE_SIZE, room);
    let line = shorten(&sub_title(timeline, layout), SIZE, room);
    Group::new().add(text("ink heading", MARGIN, MARGIN + 9.0, TITLE_SIZE, &heading)).add(text(
        "muted",
        MARGIN,
        MARGIN + 31.0,
        SIZE,
        &line,
    ))
}

/// Adds the title and the description for screen readers.
pub(crate) fn describe(document: Document, timeline: &Timeline) -> Document {
    let rows = timeline.processes.iter().flat_map(|process| {
        process.rows.iter().map(move |row| {
            let (name, thread) = (process.name(), &row.thread);
            format!("{name} {thread}: {}.", counts(row))
        })
    });
    let rows: Vec<String> = rows.take(DESCRIBED).collect();
    let description = format!("{}. {}", summary(timeline), rows.join(" "));
    document
        .add(Title::new(clean(&title(timeline))).set("id", "title"))
        .add(Description::new().set("id", "desc").add(svg::node::Text::new(clean(&description))))
}

fn title(timeline: &Timeline) -> String {
    match &timeline.locks[..] {
        [] => "Timeline of locks".to_owned(),
        [name] => format!("Timeline of the lock {name}"),
        locks => format!("Timeline of {} locks", locks.len()),
    }
}

/// Returns the numbers of processes, threads, holds and waits as a text.
pub(crate) fn summary(timeline: &Timeline) -> String {
    let lost = timeline.count(Activity::LostHold);
    let holds = timeline.count(Activity::Hold) + lost;
    let mut parts = vec![
        number(timeline.processes.len(), "process", "processes"),
        number(timeline.rows().count(), "thread", "threads"),
        number(holds, "hold", "holds"),
        number(timeline.count(Activity::Wait), "wait", "waits"),
    ];
    parts.extend((lost > 0).then(|| number(lost, "lost hold", "lost holds")));
    let unseen = timeline.unseen;
    parts.extend((unseen > 0).then(|| format!("{unseen} more holds too short to be seen")));
    parts
        .extend((timeline.left_out > 0).then(|| format!("{} threads left out", timeline.left_out)));
    parts.join(", ")
}

fn sub_title(timeline: &Timeline, layout: &Layout) -> String {
    let window = &timeline.window;
    let host = layout.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let time = match window.length() {
        0.0 => String::new(),
        length => format!(" · {} from {}", duration(length), utc::text(window.from)),
    };
    format!("{}{host}{time}", summary(timeline))
}

fn counts(row: &Row) -> String {
    let count = |activity| row.spans().filter(|span| span.activity == activity).count();
    let held = row.spans().filter(|span| span.activity != Activity::Wait);
    let held: f64 = held.map(|span| span.until - span.from).sum();
    let lost = count(Activity::LostHold);
    let holds = number(count(Activity::Hold) + lost, "hold", "holds");
    let waits = number(count(Activity::Wait), "wait", "waits");
    let lost = if lost > 0 { format!(", {lost} lost") } else { String::new() };
    format!("{holds}{lost}, {} in all, {waits}", duration(held))
}

/// Returns a number with a noun.
pub(crate) fn number(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
