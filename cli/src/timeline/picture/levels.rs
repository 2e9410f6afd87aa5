//! The numbers of waiting processes, one row per lock without a queue.

use svg::node::element::Group;

use crate::timeline::picture::elements::{rect, text, tooltip};
use crate::timeline::picture::head::number;
use crate::timeline::picture::layout::{Layout, MARGIN};
use crate::timeline::picture::scale::duration;
use crate::timeline::picture::style::colour;
use crate::timeline::picture::text::shorten;
use crate::timeline::rows::Timeline;
use crate::timeline::spans::Level;

/// The least width of a level. Shorter ones are not drawn.
const VISIBLE: f64 = 0.5;

/// Returns the text of a row.
pub(crate) fn label(timeline: &Timeline, lock: usize) -> String {
    match timeline.locks.len() {
        1 => "waiting processes".to_owned(),
        _ => format!("waiting for {}", timeline.locks[lock]),
    }
}

/// Returns the text of the highest level.
pub(crate) fn top(levels: &[Level]) -> String {
    format!("up to {}", highest(levels))
}

fn highest(levels: &[Level]) -> u64 {
    levels.iter().map(|level| level.processes).max().unwrap_or_default().max(1)
}

/// Draws the rows of all locks with waiting processes.
pub(crate) fn draw(timeline: &Timeline, layout: &Layout) -> Group {
    let mut group = Group::new();
    for ((&lock, levels), place) in timeline.levels.iter().zip(&layout.levels) {
        let size = layout.sizes.text;
        let full = label(timeline, lock);
        let short = shorten(&full, size, layout.threads.0 - MARGIN);
        let name = text("ink name", MARGIN, place.middle(), size, &short).add(tooltip(&full));
        let room = layout.threads.0 + layout.threads.1;
        let top = text("muted right", room, place.middle(), size, &top(levels));
        let mut row = Group::new().set("class", "level").add(name).add(top);
        let (most, bottom) = (highest(levels), place.middle() + layout.sizes.bar / 2.0);
        let fill = format!("url(#wait{})", colour(lock));
        for level in levels {
            let (left, right) = (layout.scale.x(level.from), layout.scale.x(level.until));
            if level.processes == 0 || right - left < VISIBLE {
                continue;
            }
            // The height of a bar is the number of processes.
            let height = layout.sizes.bar * level.processes as f64 / most as f64;
            let bar = rect("wait", left, bottom - height, right - left, height);
            let waiting = number(level.processes as usize, "process", "processes");
            let text = format!("{waiting} waited for {}", duration(level.until - level.from));
            row = row.add(bar.set("fill", fill.as_str()).add(tooltip(&text)));
        }
        group = group.add(row);
    }
    group
}
