//! The grid, the bands of the processes, and the texts of the axis.

use svg::node::element::Group;

use crate::timeline::picture::elements::{rect, text, vertical};
use crate::timeline::picture::layout::{AXIS, Layout, MARGIN, WIDTH};
use crate::timeline::picture::text::width;

/// The least room between two ticks.
const GAP: f64 = 84.0;

const SIZE: f64 = 11.5;

/// The least room right of a text.
const EDGE: f64 = 4.0;

/// Draws what is behind the rows.
pub(crate) fn draw(layout: &Layout) -> Group {
    let mut group = Group::new();
    // Every other process has a ground.
    for place in layout.processes.iter().step_by(2) {
        let (x, width) = (MARGIN / 2.0, WIDTH - MARGIN);
        group = group.add(rect("band", x, place.top, width, place.height).set("rx", 3));
    }
    for (x, content) in layout.scale.ticks(GAP) {
        group = group.add(vertical("grid", x, layout.plot.top, layout.plot.bottom() + 4.0));
        let below = layout.plot.bottom() + 4.0 + SIZE * 0.8;
        let half = width(&content, SIZE) / 2.0;
        let middle = x.min(WIDTH - EDGE - half);
        let label = |y| text("muted middle", middle, y, SIZE, &content);
        group = group.add(label(below));
        if layout.has_upper_axis {
            group = group.add(label(layout.plot.top - AXIS / 2.0));
        }
    }
    group
}
