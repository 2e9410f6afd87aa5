//! Bar charts as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Result;
use crate::run::NO_LIBRARIES;
use crate::table::{Spread, Table};
use crate::works::meetings;

const OWN: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const BASE: RGBColor = RGBColor(0x77, 0x77, 0x77);
const PEER: RGBColor = RGBColor(0xc4, 0x9a, 0x6c);

const ROW: u32 = 24;
const HEADER: u32 = 40;
const NAMES: u32 = 150;
const WIDTH: u32 = 470;

/// Draws the first metric of several tables with the same contenders side by side.
pub(crate) fn bars(file: &Path, tables: &[&Table]) -> Result {
    let rows = tables.iter().map(|table| table.contenders.len()).max().unwrap_or(0);
    let size = (WIDTH * u32::try_from(tables.len())?, HEADER + ROW * u32::try_from(rows)? + 12);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (panel, table) in area.split_evenly((1, tables.len())).iter().zip(tables) {
        draw(panel, table)?;
    }
    Ok(area.present()?)
}

fn draw(panel: &DrawingArea<SVGBackend<'_>, Shift>, table: &Table) -> Result {
    let Some(lead) = table.metrics.first() else { return Ok(()) };
    let figures: Vec<(&String, Spread)> = table
        .contenders
        .iter()
        .filter_map(|name| Some((name, table.spread(name, *lead)?)))
        .collect();
    let largest = figures.iter().map(|(_, spread)| spread.high).fold(f64::MIN_POSITIVE, f64::max);
    let title = format!("{} ({})", table.title, lead.name);
    let style = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
    panel.draw(&Text::new(title, (8, 8), style(13)))?;
    let room = f64::from(WIDTH - NAMES - 80);
    for (row, (name, spread)) in (0..).zip(figures) {
        let (left, top) = (i32::try_from(NAMES)?, i32::try_from(HEADER + ROW * row)?);
        let at = |value: f64| left + (value / largest * room) as i32;
        let middle = top + 8;
        let right = style(12).pos(Pos::new(HPos::Right, VPos::Center));
        panel.draw(&Text::new(name.clone(), (left - 6, middle), right))?;
        let bar = [(left, top), (at(spread.median).max(left + 1), top + 16)];
        panel.draw(&Rectangle::new(bar, color(name).filled()))?;
        let whisker = vec![(at(spread.low), middle), (at(spread.high), middle)];
        panel.draw(&PathElement::new(whisker, BLACK.stroke_width(1)))?;
        let value = style(11).pos(Pos::new(HPos::Left, VPos::Center));
        let figure = crate::table::number(spread.median, lead.places);
        panel.draw(&Text::new(figure, (at(spread.high) + 6, middle), value))?;
    }
    Ok(())
}

fn color(contender: &str) -> RGBColor {
    match contender {
        name if NO_LIBRARIES.contains(&name) => BASE,
        name if name.starts_with("leasehold") => OWN,
        _ => PEER,
    }
}

/// The largest share of a chart with lines, and the smallest that is not 0, in percent.
const SHARES: std::ops::Range<f64> = 0.005..100.0;

/// Draws the cost of a pair over the share of pairs that meet another process: a line for each
/// contender, with a point for each table. Both axes are logarithmic.
pub(crate) fn lines(file: &Path, tables: &[&Table]) -> Result {
    let points = |name: &String| -> Vec<(f64, f64)> {
        let spreads = tables.iter().filter_map(|table| {
            Some((table.spread(name, meetings::SHARE)?, table.spread(name, meetings::COST)?))
        });
        spreads.map(|(share, cost)| (share.median.max(SHARES.start), cost.median)).collect()
    };
    let Some(names) = tables.first().map(|table| &table.contenders) else { return Ok(()) };
    let all: Vec<_> = names.iter().map(|name| (name, points(name))).collect();
    let costs = || all.iter().flat_map(|(_, points)| points.iter().map(|(_, cost)| *cost));
    let (low, high) = (costs().fold(f64::MAX, f64::min), costs().fold(f64::MIN, f64::max));
    let area = SVGBackend::new(file, (640, 380)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Cost of a pair of lock and release (us)", ("sans-serif", 14))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(SHARES.log_scale(), (low / 1.5..high * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("% of pairs whose lock another process had before (left edge: none)")
        .light_line_style(WHITE)
        .draw()?;
    let colors = [OWN, PEER, RGBColor(0x2a, 0x8f, 0x4f)];
    for ((name, points), color) in all.iter().zip(colors.into_iter().cycle()) {
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label((*name).clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).draw()?;
    Ok(area.present()?)
}
