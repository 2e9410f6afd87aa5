//! Colours and patterns.
//!
//! The colours stay different for colour-blind eyes, and differ from both pages by 3:1, texts by
//! 4.5:1. The dark ones are in a media query; programs that ignore it show the light picture.

use std::fmt::Write;

use svg::node::element::{Definitions, Path, Pattern, Rectangle, Style};

/// The number of colours for locks. Further locks use them again.
pub(crate) const COLOURS: usize = 6;

/// The colours of a page.
struct Palette {
    page: &'static str,
    band: &'static str,
    grid: &'static str,
    ink: &'static str,
    muted: &'static str,
    lost: &'static str,
    /// Each lock's colour and that of texts on it.
    locks: [(&'static str, &'static str); COLOURS],
}

const LIGHT: Palette = Palette {
    page: "#ffffff",
    band: "#f3f5f8",
    grid: "#d5dae1",
    ink: "#1f2328",
    muted: "#57606a",
    lost: "#b02a08",
    locks: [
        ("#00528f", "#ffffff"),
        ("#b58209", "#0d1117"),
        ("#1f9970", "#0d1117"),
        ("#d94fc4", "#0d1117"),
        ("#4326c9", "#ffffff"),
        ("#30363c", "#ffffff"),
    ],
};

const DARK: Palette = Palette {
    page: "#0d1117",
    band: "#161c25",
    grid: "#313843",
    ink: "#e6edf3",
    muted: "#9aa4af",
    lost: "#e0622f",
    locks: [
        ("#4a9cf0", "#0d1117"),
        ("#e3b341", "#0d1117"),
        ("#3ddcab", "#0d1117"),
        ("#f9c6f5", "#0d1117"),
        ("#8a6cff", "#0d1117"),
        ("#8b949e", "#0d1117"),
    ],
};

/// The rules that do not depend on the page.
const COMMON: &str = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Ubuntu,\
    'DejaVu Sans',Arial,sans-serif}.name,.heading{font-weight:600}.right{text-anchor:end}\
    .middle{text-anchor:middle}.mark{stroke-width:1;stroke-dasharray:4 3}\
    .marked{stroke-width:2}.cross{fill:none;stroke-linecap:round}.halo{stroke-width:5.5}\
    .cross-ink{stroke-width:2.2}.lost-edge{stroke-width:1.2}.notice{stroke-width:1.6}";

/// Returns the style sheet.
pub(crate) fn sheet() -> Style {
    Style::new(format!(
        "{COMMON}{}@media (prefers-color-scheme:dark){{{}}}",
        rules(&LIGHT),
        rules(&DARK)
    ))
}

fn rules(palette: &Palette) -> String {
    let Palette { page, band, grid, ink, muted, lost, .. } = palette;
    let mut rules = format!(
        ".page,.notice{{fill:{page}}}.band{{fill:{band}}}.grid{{stroke:{grid}}}.ink,.flag{{fill:{ink}}}\
        .muted{{fill:{muted}}}.on-flag{{fill:{page}}}.mark,.marked{{stroke:{ink}}}\
        .lost{{fill:{lost}}}.lost-edge,.lost-line,.cross-ink,.notice{{stroke:{lost}}}.halo{{stroke:{page}}}\
        .mixed{{fill:{ink}}}.outage-line{{stroke:{muted}}}.mixed-line{{stroke:{ink}}}"
    );
    for (number, (colour, on)) in palette.locks.iter().enumerate() {
        // A write to a string cannot fail.
        let _ = write!(
            rules,
            ".lock{number}{{fill:{colour}}}.line{number}{{stroke:{colour}}}.on{number}{{fill:{on}}}"
        );
    }
    rules
}

/// Returns the number of a lock's colour.
pub(crate) fn colour(lock: usize) -> usize {
    lock % COLOURS
}

/// Returns the patterns of waits, merged spans, lost holds and outages.
///
/// Waits and merged spans have a pattern per colour. Merged spans of several locks have one more.
pub(crate) fn patterns(locks: usize) -> Definitions {
    let mut definitions = Definitions::new().add(lost());
    for number in 0..locks.min(COLOURS) {
        let (fill, line) = (format!("lock{number}"), format!("line{number}"));
        definitions = definitions
            .add(wait(&format!("wait{number}"), &fill, &line))
            .add(merged(&format!("merged{number}"), &fill));
    }
    definitions
        .add(wait("waitmixed", "mixed", "mixed-line"))
        .add(merged("mergedmixed", "mixed"))
        .add(outage())
}

/// Returns rising lines on a faint ground.
fn wait(id: &str, fill: &str, line: &str) -> Pattern {
    let lines = Path::new().set("class", line).set("stroke-width", 1.1);
    tile(id, 5, 5).add(ground(fill, 5, 5, 0.16)).add(lines.set("d", "M-1 1L1 -1M0 5L5 0M4 6L6 4"))
}

/// Returns upright stripes.
fn merged(id: &str, fill: &str) -> Pattern {
    let stripe = Rectangle::new().set("class", fill).set("width", 1.6).set("height", 8);
    tile(id, 3, 8).add(ground(fill, 3, 8, 0.3)).add(stripe)
}

/// Returns crossing lines.
fn outage() -> Pattern {
    let lines = Path::new().set("class", "outage-line").set("stroke-width", 0.8);
    tile("outage", 8, 8).add(lines.set("d", "M0 0L8 8M8 0L0 8"))
}

/// Returns falling, thick lines on a ground.
fn lost() -> Pattern {
    let lines = Path::new().set("class", "lost-line").set("stroke-width", 3);
    tile("lost", 8, 8)
        .add(ground("lost", 8, 8, 0.3))
        .add(lines.set("d", "M-2 6L2 10M-2 -2L10 10M6 -2L10 2"))
}

fn tile(id: &str, width: u32, height: u32) -> Pattern {
    let pattern = Pattern::new().set("id", id).set("patternUnits", "userSpaceOnUse");
    pattern.set("width", width).set("height", height)
}

fn ground(fill: &str, width: u32, height: u32, opacity: f64) -> Rectangle {
    let ground = Rectangle::new().set("class", fill).set("fill-opacity", opacity);
    ground.set("width", width).set("height", height)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the luminance of a colour such as `#1f2328`.
    fn luminance(colour: &str) -> f64 {
        let part = |place: usize| {
            let value = u8::from_str_radix(&colour[place..place + 2], 16).expect("two digits");
            let value = f64::from(value) / 255.0;
            if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn texts_and_shapes_differ_from_their_grounds() {
        for Palette { page, band, ink, muted, lost, locks, .. } in [LIGHT, DARK] {
            for (text, ground) in [(ink, page), (ink, band), (muted, page), (muted, band)] {
                assert!(contrast(text, ground) >= 4.5, "{text} on {ground}");
            }
            for (colour, on) in locks.into_iter().chain([(lost, page)]) {
                assert!(contrast(colour, on) >= 4.5, "{on} on {colour}");
                assert!(contrast(colour, band) >= 3.0, "{colour} on {band}");
                assert!(contrast(colour, page) >= 3.0, "{colour} on {page}");
            }
        }
    }
}
