//! A screen as an SVG picture: an opaque dark panel, so that it is readable on any background.

use std::fmt::Write;

use vt100::{Cell, Color, Screen};

/// The size of a character, in pixels.
const WIDTH: f32 = 8.4;
const HEIGHT: u16 = 19;

/// The space around the screen.
const MARGIN: u16 = 14;

const PANEL: &str = "#10151c";
const PLAIN: &str = "#d6dde6";
const FAINT: &str = "#97a3b2";

/// The style of a cell, as far as the program uses it.
#[derive(Clone, Copy, PartialEq)]
struct Look {
    colour: &'static str,
    is_bold: bool,
    is_underlined: bool,
    is_reversed: bool,
}

/// A part of a row in one style.
struct Run {
    column: u16,
    columns: u16,
    text: String,
    look: Look,
}

/// Returns the picture of a screen. `title` is for readers who do not see it.
pub(crate) fn picture(screen: &Screen, title: &str) -> String {
    let (rows, columns) = (screen.size().0.get(), screen.size().1.get());
    let (width, height) = (x(columns).ceil() as u16 + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"title\">\n\
         <title id=\"title\">{}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{PANEL}\"/>\n\
         <g transform=\"translate({MARGIN} {MARGIN})\" font-size=\"14\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         style=\"white-space:pre\">\n",
        escaped(title)
    );
    for row in 0..rows {
        let runs = runs(screen, row, columns);
        draw_selection(&mut svg, row, &runs);
        runs.iter().for_each(|run| draw(&mut svg, row, run));
    }
    svg + "</g>\n</svg>\n"
}

/// Draws the background of the selected cells of a row.
fn draw_selection(svg: &mut String, row: u16, runs: &[Run]) {
    let mut selected = runs.iter().filter(|run| run.look.is_reversed);
    let Some(first) = selected.next() else { return };
    let last = selected.next_back().unwrap_or(first);
    let (x, end) = (x(first.column), x(last.column + last.columns));
    let (y, width) = (row * HEIGHT, end - x);
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{PLAIN}\"/>"
    );
}

fn draw(svg: &mut String, row: u16, run: &Run) {
    if run.text.trim().is_empty() {
        return;
    }
    let look = run.look;
    let colour = if look.is_reversed { PANEL } else { look.colour };
    let bold = if look.is_bold { " font-weight=\"bold\"" } else { "" };
    let line = if look.is_underlined { " text-decoration=\"underline\"" } else { "" };
    // The length keeps the columns in line, whatever font a reader has.
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{}\" textLength=\"{:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
         fill=\"{colour}\"{bold}{line}>{}</text>",
        x(run.column),
        row * HEIGHT + 14,
        x(run.columns),
        escaped(&run.text)
    );
}

fn x(column: u16) -> f32 {
    f32::from(column) * WIDTH
}

/// Returns the parts of a row, without empty cells around plain texts.
fn runs(screen: &Screen, row: u16, columns: u16) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for column in 0..columns {
        let Some(cell) = screen.cell(row, column).filter(|cell| !cell.is_wide_continuation())
        else {
            continue;
        };
        let (look, columns) = (look(cell), if cell.is_wide() { 2 } else { 1 });
        let text = if cell.has_contents() { cell.contents() } else { " " };
        match runs.last_mut().filter(|run| run.look == look && !ends(&run.text, text)) {
            Some(run) => {
                run.text.push_str(text);
                run.columns += columns;
            }
            None => runs.push(Run { column, columns, text: text.to_owned(), look }),
        }
    }
    runs
}

/// Returns whether a part ends here: at each change between spaces and words.
///
/// So a word begins in its column, also if the font of the reader has other widths.
fn ends(text: &str, next: &str) -> bool {
    text.ends_with(' ') != next.ends_with(' ')
}

fn look(cell: &Cell) -> Look {
    let colour = match cell.fgcolor() {
        Color::Idx(1 | 9) => "#ff8a80",
        Color::Idx(3 | 11) => "#f0c75e",
        Color::Idx(6 | 14) => "#5fd7e0",
        _ if cell.dim() => FAINT,
        _ => PLAIN,
    };
    Look {
        colour,
        is_bold: cell.bold(),
        is_underlined: cell.underline(),
        is_reversed: cell.inverse(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[test]
fn a_picture_has_the_texts_of_the_screen() {
    let size = |number| std::num::NonZeroU16::new(number).expect("a size");
    let mut parser = vt100::Parser::new(size(2), size(20), 0);
    parser.process(b"\x1b[1;36ma<b\x1b[0m  plain\r\n\x1b[7mselected\x1b[0m");
    let svg = picture(parser.screen(), "a & b");
    for part in ["a &amp; b", "font-weight=\"bold\">a&lt;b<", ">plain<", ">selected<"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    let selected = format!("fill=\"{PANEL}\">selected");
    assert!(svg.contains(&selected) && svg.ends_with("</svg>\n"), "{svg}");
}
