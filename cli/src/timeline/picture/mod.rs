//! The picture: a [`Timeline`] as SVG.
//!
//! `text` cleans and shortens texts; `scale` has the time axis; `blocks` merges what is too short
//! to be seen; `layout` gives every part its place; `style` has the colours for light and dark
//! backgrounds. The other files draw one part each. `svg` is used because `plotters` can draw
//! neither patterns nor tooltips nor colours that depend on the background.

mod axis;
mod bars;
mod blocks;
mod elements;
mod head;
mod labels;
mod layout;
mod legend;
mod levels;
mod marks;
mod scale;
mod style;
mod text;

#[cfg(test)]
mod tests;

use svg::Document;
use svg::node::element::Group;

use crate::timeline::rows::Timeline;
use bars::Painter;
use elements::{px, rect};
use layout::{Layout, WIDTH};

pub(crate) use head::summary;

/// Draws the timeline. The document has an opaque background.
pub(crate) fn draw(timeline: &Timeline) -> Document {
    let layout = Layout::of(timeline);
    let height = px(layout.height);
    let document = Document::new().set("viewBox", (0, 0, WIDTH, height)).set("width", WIDTH);
    let document = document.set("height", height).set("role", "img");
    head::describe(document, timeline)
        .set("aria-labelledby", "title desc")
        .add(style::sheet())
        .add(style::patterns(timeline.locks.len()))
        .add(rect("page", 0.0, 0.0, WIDTH, height))
        .add(head::draw(timeline, &layout))
        .add(legend::draw(&layout.legend))
        .add(axis::draw(&layout))
        .add(rows(timeline, &layout))
        .add(levels::draw(timeline, &layout))
        .add(marks::draw(timeline, &layout))
}

/// Draws the labels and the shapes of all rows.
fn rows(timeline: &Timeline, layout: &Layout) -> Group {
    let mut group = Group::new();
    let painter = Painter { layout, locks: &timeline.locks };
    let mut places = layout.rows.iter().zip(&layout.lanes).zip(&layout.unseen);
    for (process, place) in timeline.processes.iter().zip(&layout.processes) {
        group = group.add(labels::process(process, place, layout));
        for (row, ((place, lanes), unseen)) in process.rows.iter().zip(places.by_ref()) {
            let label = labels::thread(row, place, layout);
            let ground = painter.unseen(Group::new().set("class", "row").add(label), unseen, place);
            group = group.add(painter.row(ground, row, place, lanes));
        }
    }
    if timeline.processes.is_empty() && timeline.levels.is_empty() {
        group = group.add(labels::nothing(layout));
    }
    group
}
