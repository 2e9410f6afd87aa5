//! Marks as lines with flags, and times without answers of the server.

use svg::node::element::Group;

use crate::timeline::picture::elements::{rect, text, tooltip, vertical};
use crate::timeline::picture::layout::{Layout, MARGIN, WIDTH};
use crate::timeline::picture::scale::{Scale, duration};
use crate::timeline::picture::text::{shorten, width};
use crate::timeline::rows::Timeline;

const SIZE: f64 = 12.0;

/// The height of a flag, and of a line of flags.
const HEIGHT: f64 = 18.0;
const LINE: f64 = 21.0;

/// The room beside the text of a flag, and its most room.
const PADDING: f64 = 6.0;
const ROOM: f64 = 260.0;

/// The most lines of flags. Further marks have a line without a flag.
const MOST: usize = 5;

/// The distance below which marks share a flag.
const NEAR: f64 = 3.0;

/// A text at the upper end of a line.
#[derive(Clone, Debug, PartialEq)]
struct Flag {
    x: f64,
    left: f64,
    width: f64,
    text: String,
    full: String,
    /// The number of its line, the lowest first. `None`: no line has room.
    line: Option<usize>,
}

/// All flags, and the end of their lines.
#[derive(Debug)]
pub(crate) struct Flags {
    flags: Vec<Flag>,
    pub(crate) bottom: f64,
}

impl Flag {
    fn new(x: f64, texts: &[String]) -> Flag {
        let first = texts.first().map_or("", String::as_str);
        let full = texts.join("; ");
        let text = match texts.len() {
            0 | 1 => shorten(first, SIZE, ROOM),
            more => format!("{} (+{})", shorten(first, SIZE, ROOM), more - 1),
        };
        let width = width(&text, SIZE) + 2.0 * PADDING;
        // A flag at the right edge stands left of its line.
        let left = if x + width > WIDTH - MARGIN / 2.0 { x - width } else { x };
        Flag { x, left, width, text, full, line: None }
    }
}

/// Returns the flags of all marks, in lines from `top` on.
pub(crate) fn arrange(timeline: &Timeline, scale: &Scale, top: f64) -> Flags {
    let mut flags: Vec<Flag> = flags(timeline, scale);
    let mut ends: Vec<f64> = Vec::new();
    for flag in flags.iter_mut().filter(|flag| !flag.text.is_empty()) {
        flag.line = ends.iter().position(|&end| end + 4.0 <= flag.left);
        if flag.line.is_none() && ends.len() < MOST {
            flag.line = Some(ends.len());
            ends.push(0.0);
        }
        if let Some(line) = flag.line {
            ends[line] = flag.left + flag.width;
        }
    }
    Flags { flags, bottom: top + LINE * ends.len() as f64 }
}

/// Returns a flag for each mark and outage. Marks that are near each other share one.
fn flags(timeline: &Timeline, scale: &Scale) -> Vec<Flag> {
    let marks = timeline.marks.iter().map(|mark| (mark.at, mark.text.clone()));
    let outages = timeline.outages.iter().map(|it| (it.from, "no answer".to_owned()));
    let mut texts: Vec<(f64, String)> = marks.chain(outages).collect();
    texts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let texts: Vec<_> = texts.into_iter().map(|(at, text)| (scale.x(at), text)).collect();
    let groups = texts.chunk_by(|a, b| b.0 - a.0 < NEAR);
    let flag = |group: &[(f64, String)]| {
        let texts: Vec<String> = group.iter().map(|(_, text)| text.clone()).collect();
        Flag::new(group[0].0, &texts)
    };
    groups.map(flag).collect()
}

/// Draws the marks and the outages.
pub(crate) fn draw(timeline: &Timeline, layout: &Layout) -> Group {
    let mut group = outages(timeline, layout);
    let &Flags { ref flags, bottom } = &layout.flags;
    for flag in flags {
        let top = flag.line.map_or(bottom, |line| bottom - LINE * (line + 1) as f64);
        let line = vertical("mark", flag.x, top, layout.plot.bottom());
        group = group.add(line.add(tooltip(&flag.full)));
    }
    // A flag covers the lines of others.
    for flag in flags {
        let Some(line) = flag.line else { continue };
        let top = bottom - LINE * (line + 1) as f64;
        let ground = rect("flag", flag.left, top, flag.width, HEIGHT).set("rx", 2);
        let label = text("on-flag", flag.left + PADDING, top + HEIGHT / 2.0, SIZE, &flag.text);
        group = group.add(ground).add(label.add(tooltip(&flag.full)));
    }
    // A thick line crosses the rows of the process that a mark is about.
    for mark in &timeline.marks {
        for (process, place) in timeline.processes.iter().zip(&layout.processes) {
            if process.is_marked_by(mark) {
                let x = layout.scale.x(mark.at);
                group = group.add(vertical("marked", x, place.top + 1.0, place.bottom() - 1.0));
            }
        }
    }
    group
}

/// Draws the times without answers.
fn outages(timeline: &Timeline, layout: &Layout) -> Group {
    timeline.outages.iter().fold(Group::new(), |group, outage| {
        let (left, right) = (layout.scale.x(outage.from), layout.scale.x(outage.until));
        let plot = &layout.plot;
        let shape = rect("outage", left, plot.top, (right - left).max(1.0), plot.height);
        let time = duration(outage.until - outage.from);
        let text = format!("The server did not answer for {time}: {}", outage.text);
        group.add(shape.set("fill", "url(#outage)").add(tooltip(&text)))
    })
}
