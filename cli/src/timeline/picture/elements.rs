//! Short forms for SVG elements.

use svg::node::element::{Line, Rectangle, Text, Title};

use crate::timeline::picture::text::clean;

/// Returns a coordinate with one decimal place.
pub(crate) fn px(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

pub(crate) fn rect(class: &str, x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    let rectangle = Rectangle::new().set("class", class).set("x", px(x)).set("y", px(y));
    rectangle.set("width", px(width)).set("height", px(height))
}

/// Returns a vertical line.
pub(crate) fn vertical(class: &str, x: f64, from: f64, until: f64) -> Line {
    let line = Line::new().set("class", class).set("x1", px(x)).set("x2", px(x));
    line.set("y1", px(from)).set("y2", px(until))
}

/// Returns a text. `y` is the middle of its line.
pub(crate) fn text(class: &str, x: f64, y: f64, size: f64, content: &str) -> Text {
    // The baseline is moved by hand: not all programs know `dominant-baseline`.
    let text = Text::new(clean(content)).set("class", class).set("font-size", size);
    text.set("x", px(x)).set("y", px(y + 0.36 * size))
}

/// Returns a tooltip.
pub(crate) fn tooltip(content: &str) -> Title {
    Title::new(clean(content))
}
