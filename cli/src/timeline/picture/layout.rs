//! [`Layout`]: the places of all parts.

use crate::timeline::picture::blocks::{self, Block};
use crate::timeline::picture::scale::Scale;
use crate::timeline::picture::{head, labels, legend, marks};
use crate::timeline::rows::{Process, Row, Timeline};
use crate::timeline::spans::Unseen;

/// The width of every picture.
pub(crate) const WIDTH: f64 = 1000.0;

/// The room around a picture.
pub(crate) const MARGIN: f64 = 16.0;

/// The room between the labels and the plot.
pub(crate) const GAP: f64 = 10.0;

/// The height of the texts of the axis.
pub(crate) const AXIS: f64 = 22.0;

/// The height of the plot of an empty picture.
const EMPTY: f64 = 70.0;

/// The number of rows from which the axis also has texts above the plot.
const TALL: usize = 16;

/// A part of the height of the plot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) top: f64,
    pub(crate) height: f64,
}

impl Place {
    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub(crate) fn middle(&self) -> f64 {
        self.top + self.height / 2.0
    }
}

/// The sizes of rows, which depend on their number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The height of a row with one lane.
    pub(crate) row: f64,
    /// The height of a further lane.
    pub(crate) lane: f64,
    pub(crate) bar: f64,
    pub(crate) text: f64,
    /// The room above and below the rows of a process.
    pub(crate) padding: f64,
}

impl Sizes {
    fn of(rows: usize) -> Sizes {
        match rows {
            0..=8 => Sizes { row: 30.0, lane: 21.0, bar: 18.0, text: 13.0, padding: 4.0 },
            9..=24 => Sizes { row: 23.0, lane: 17.0, bar: 14.0, text: 12.5, padding: 3.0 },
            _ => Sizes { row: 17.0, lane: 13.0, bar: 11.0, text: 11.5, padding: 1.0 },
        }
    }
}

/// The places of all parts of a picture.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) height: f64,
    pub(crate) sizes: Sizes,
    pub(crate) scale: Scale,
    /// The left edge of the names of threads, and the room for them.
    pub(crate) threads: (f64, f64),
    /// The room for the names of processes.
    pub(crate) names: f64,
    pub(crate) legend: Vec<legend::Entry>,
    pub(crate) flags: marks::Flags,
    pub(crate) plot: Place,
    pub(crate) has_upper_axis: bool,
    /// The places of the processes, and those of all their rows.
    pub(crate) processes: Vec<Place>,
    pub(crate) rows: Vec<Place>,
    /// The places of the rows with numbers of waiting processes.
    pub(crate) levels: Vec<Place>,
    /// The shapes of all lanes of all rows.
    pub(crate) lanes: Vec<Vec<Vec<Block>>>,
    /// The unseen holds of all rows, and the most of them per second in one shape.
    pub(crate) unseen: Vec<Vec<Unseen>>,
    pub(crate) highest_rate: f64,
    /// The host, if all processes have the same.
    pub(crate) host: Option<String>,
}

impl Layout {
    pub(crate) fn of(timeline: &Timeline) -> Layout {
        let count = timeline.rows().count() + timeline.levels.len();
        let (sizes, host) = (Sizes::of(count), labels::common_host(timeline));
        let (names, thread_names) = labels::room(timeline, &sizes, host.is_some());
        let left = MARGIN + names + thread_names + GAP;
        let scale = Scale::new(timeline.window, left, WIDTH - MARGIN - left);
        let lanes = lanes(timeline, &scale);
        let has_merged = lanes.iter().flatten().flatten().any(|it| matches!(it, Block::Many(_)));
        let unseen: Vec<_> =
            timeline.rows().map(|row| blocks::merge_unseen(&row.unseen, &scale)).collect();
        let highest_rate = unseen.iter().flatten().map(Unseen::rate).fold(0.0, f64::max);
        let legend = legend::arrange(timeline, has_merged, head::HEIGHT);
        let flags = marks::arrange(timeline, &scale, legend::bottom(&legend, head::HEIGHT));
        let has_upper_axis = count >= TALL;
        let top = flags.bottom + if has_upper_axis { AXIS } else { 4.0 };
        let (processes, rows, end) = places(timeline, &sizes, top);
        let tops = (0..timeline.levels.len()).map(|it| end + sizes.padding + it as f64 * sizes.row);
        let levels: Vec<_> = tops.map(|top| Place { top, height: sizes.row }).collect();
        let bottom = levels.last().map_or(end, |last| last.bottom() + sizes.padding);
        let plot = Place { top, height: if count == 0 { EMPTY } else { bottom - top } };
        Layout {
            height: plot.bottom() + AXIS + MARGIN / 2.0,
            sizes,
            scale,
            threads: (MARGIN + names, thread_names),
            names,
            legend,
            flags,
            plot,
            has_upper_axis,
            processes,
            rows,
            levels,
            lanes,
            unseen,
            highest_rate,
            host,
        }
    }
}

/// Returns the shapes of all lanes of all rows.
fn lanes(timeline: &Timeline, scale: &Scale) -> Vec<Vec<Vec<Block>>> {
    let row = |row: &Row| row.lanes.iter().map(|spans| blocks::merge(spans, scale)).collect();
    timeline.rows().map(row).collect()
}

/// Returns the places of the processes and of their rows, and the end of the last.
fn places(timeline: &Timeline, sizes: &Sizes, top: f64) -> (Vec<Place>, Vec<Place>, f64) {
    let (mut processes, mut rows, mut y) = (Vec::new(), Vec::new(), top);
    for Process { rows: threads, .. } in &timeline.processes {
        let top = y;
        y += sizes.padding;
        for Row { lanes, .. } in threads {
            let more = lanes.len().saturating_sub(1) as f64;
            let height = sizes.row + more * sizes.lane;
            rows.push(Place { top: y, height });
            y += height;
        }
        y += sizes.padding;
        processes.push(Place { top, height: y - top });
    }
    (processes, rows, y)
}
