//! The legend: the colours of the locks, and the shapes that the picture has.

use svg::node::element::Group;

use crate::timeline::picture::bars::{cross, diamond};
use crate::timeline::picture::elements::{rect, text, tooltip};
use crate::timeline::picture::layout::{MARGIN, WIDTH};
use crate::timeline::picture::style::colour;
use crate::timeline::picture::text::{shorten, width};
use crate::timeline::rows::{Row, Timeline};
use crate::timeline::spans::Activity;

const SIZE: f64 = 12.0;
const LINE: f64 = 20.0;

/// The size of a sample, and the room after it.
const SAMPLE: f64 = 22.0;
const HEIGHT: f64 = 11.0;
const AFTER: f64 = 6.0;

/// The room between two entries, and the most room of a name.
const SPACE: f64 = 18.0;
const NAME: f64 = 220.0;

/// The most locks with an entry.
const MOST: usize = 24;

/// The sample of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    Lock(usize),
    Hold,
    Wait,
    LostHold,
    MergedSpans,
    Unseen,
    Kept,
    Notice,
    None,
}

/// A sample and its text.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    sample: Sample,
    text: String,
    full: String,
    x: f64,
    y: f64,
}

impl Entry {
    fn new(sample: Sample, full: &str, room: f64) -> Entry {
        let text = shorten(full, SIZE, room);
        Entry { sample, text, full: full.to_owned(), x: 0.0, y: 0.0 }
    }

    fn width(&self) -> f64 {
        let sample = if self.sample == Sample::None { 0.0 } else { SAMPLE + AFTER };
        sample + width(&self.text, SIZE)
    }
}

/// Returns the entries in lines from `top` on. `has_merged`: there are merged spans.
pub(crate) fn arrange(timeline: &Timeline, has_merged: bool, top: f64) -> Vec<Entry> {
    let mut y = top + LINE / 2.0;
    let locks = in_lines(locks(timeline), &mut y);
    if !locks.is_empty() {
        y += LINE;
    }
    let shapes = in_lines(shapes(timeline, has_merged), &mut y);
    locks.into_iter().chain(shapes).collect()
}

/// Returns the end of the legend.
pub(crate) fn bottom(entries: &[Entry], top: f64) -> f64 {
    entries.last().map_or(top, |last| last.y + LINE / 2.0 + 6.0)
}

/// Gives each entry its place. `y` is the middle of the first line, and of the last one afterwards.
fn in_lines(mut entries: Vec<Entry>, y: &mut f64) -> Vec<Entry> {
    let mut x = MARGIN;
    for entry in &mut entries {
        if x > MARGIN && x + entry.width() > WIDTH - MARGIN {
            (x, *y) = (MARGIN, *y + LINE);
        }
        (entry.x, entry.y) = (x, *y);
        x += entry.width() + SPACE;
    }
    entries
}

/// Returns the entries of the locks, if there are several.
fn locks(timeline: &Timeline) -> Vec<Entry> {
    let names = &timeline.locks;
    if names.len() < 2 {
        return Vec::new();
    }
    let entries = names.iter().take(MOST).enumerate();
    let mut entries: Vec<_> =
        entries.map(|(it, name)| Entry::new(Sample::Lock(it), name, NAME)).collect();
    if let Some(more) = names.len().checked_sub(MOST).filter(|&more| more > 0) {
        entries.push(Entry::new(Sample::None, &format!("and {more} more"), NAME));
    }
    entries
}

/// Returns the entries of the shapes that the picture has.
fn shapes(timeline: &Timeline, has_merged: bool) -> Vec<Entry> {
    let has = |activity| timeline.count(activity) > 0;
    let waits = has(Activity::Wait) || !timeline.levels.is_empty();
    let noticed = timeline.rows().any(|Row { noticed, .. }| !noticed.is_empty());
    let unseen = timeline.rows().any(|Row { unseen, .. }| !unseen.is_empty());
    let entries = [
        (has(Activity::Hold), Sample::Hold, "holds the lock"),
        (has(Activity::Kept), Sample::Kept, "minimum of a hold that has ended"),
        (waits, Sample::Wait, "waits"),
        (has(Activity::LostHold), Sample::LostHold, "hold lost at the cross: its lease ended"),
        (noticed, Sample::Notice, "holder noticed the loss"),
        (has_merged, Sample::MergedSpans, "many short holds and waits"),
        (unseen, Sample::Unseen, "holds between two looks: the higher, the more per second"),
    ];
    let present = entries.into_iter().filter(|(is_present, ..)| *is_present);
    present.map(|(_, sample, text)| Entry::new(sample, text, WIDTH)).collect()
}

/// Draws the legend.
pub(crate) fn draw(entries: &[Entry]) -> Group {
    let several = entries.iter().any(|entry| matches!(entry.sample, Sample::Lock(_)));
    entries.iter().fold(Group::new(), |group, entry| {
        let group = sample(group, entry, several);
        let x = entry.x + entry.width() - width(&entry.text, SIZE);
        let label = text("ink", x, entry.y, SIZE, &entry.text);
        let is_short = entry.text != entry.full;
        group.add(if is_short { label.add(tooltip(&entry.full)) } else { label })
    })
}

/// Draws a sample, in a colour of no lock if there are several locks.
fn sample(group: Group, entry: &Entry, several: bool) -> Group {
    let (x, y) = (entry.x, entry.y);
    let (fill, number) = if several { ("mixed", "mixed") } else { ("lock0", "0") };
    let pattern = |name: &str| format!("url(#{name}{number})");
    let bar = |class: &str, height: f64| rect(class, x, y - height / 2.0, SAMPLE, height);
    match entry.sample {
        Sample::Lock(lock) => group.add(bar(&format!("lock{}", colour(lock)), HEIGHT).set("rx", 2)),
        Sample::Hold => group.add(bar(fill, HEIGHT).set("rx", 2)),
        Sample::Wait => group.add(bar("wait", HEIGHT / 2.0).set("fill", pattern("wait"))),
        Sample::MergedSpans => group.add(bar("merged", HEIGHT).set("fill", pattern("merged"))),
        Sample::Unseen => group.add(bar("unseen", HEIGHT / 2.0).set("fill", pattern("merged"))),
        Sample::Kept => group.add(bar(fill, HEIGHT * 0.2)),
        Sample::Notice => group.add(diamond(x + SAMPLE / 2.0, y)),
        Sample::LostHold => {
            let bar = bar("lost-edge", HEIGHT).set("width", SAMPLE - 5.0);
            cross(group.add(bar.set("fill", "url(#lost)")), x + SAMPLE - 5.0, y)
        }
        Sample::None => group,
    }
}
