//! Bar charts as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Result;
use crate::run::NO_LIBRARIES;
use crate::table::{Spread, Table};

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
