//! The title, the summary, and the description for screen readers.

use jiff::Timestamp;
use svg::Document;
use svg::node::element::{Description, Group, Title};

use crate::timeline::picture::elements::text;
use crate::timeline::picture::layout::{Layout, MARGIN, WIDTH};
use crate::timeline::picture::scale::duration;
use crate::timeline::picture::text::{clean, shorten};
use crate::timeline::rows::{Process, Row, Timeline};
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
    let processes = timeline.processes.iter().map(Process::count).sum();
    let threads = timeline.processes.iter().map(|it| it.later.len() + it.rows.len()).sum();
    let mut parts = vec![
        number(processes, "process", "processes"),
        number(threads, "thread", "threads"),
        number(holds, "hold", "holds"),
    ];
    // Waits for a lock without a queue are known by their number only.
    let waits = timeline.count(Activity::Wait);
    if waits > 0 || timeline.levels.is_empty() {
        parts.push(number(waits, "wait", "waits"));
    }
    if lost > 0 {
        parts.push(number(lost, "lost hold", "lost holds"));
    }
    if timeline.unseen > 0 {
        parts.push(format!("{} more holds too short to be seen", timeline.unseen));
    }
    if timeline.left_out > 0 {
        parts.push(format!("{} threads left out", timeline.left_out));
    }
    parts.join(", ")
}

fn sub_title(timeline: &Timeline, layout: &Layout) -> String {
    let window = &timeline.window;
    let host = layout.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
    let time = match window.length() {
        0.0 => String::new(),
        length => format!(" · {} from {}", duration(length), utc(window.from)),
    };
    format!("{}{host}{time}", summary(timeline))
}

/// Returns a time in seconds since 1970 as `2026-11-24 06:12:03 UTC`.
fn utc(time: f64) -> String {
    let time = Timestamp::from_second(time.floor() as i64).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn counts(row: &Row) -> String {
    let count = |activity| row.spans().filter(|span| span.activity == activity).count();
    let held = row.spans().filter(|span| span.activity.is_hold());
    let held: f64 = held.map(|span| span.until - span.from).sum();
    let lost = count(Activity::LostHold);
    let holds = number(count(Activity::Hold) + lost, "hold", "holds");
    let waits = number(count(Activity::Wait), "wait", "waits");
    let lost = if lost > 0 { format!(", {lost} lost") } else { String::new() };
    let unseen: u64 = row.unseen.iter().map(|part| part.holds).sum();
    let unseen = if unseen > 0 { format!(", {unseen} more holds unseen") } else { String::new() };
    format!("{holds}{lost}, {} in all{unseen}, {waits}", duration(held))
}

/// Returns a number with a noun.
pub(crate) fn number(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
