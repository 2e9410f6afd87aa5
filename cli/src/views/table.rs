//! Tables for people, no wider than the terminal.

use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::text::UNKNOWN;

/// The width of a terminal that does not tell its own.
const USUAL_WIDTH: usize = 80;

/// The space between two columns.
const GAP: &str = "  ";

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    title: &'static str,
    is_number: bool,
    /// The width to which a narrow terminal may cut the column.
    least: usize,
    /// The column with the lowest rank is the first that a narrow terminal leaves out.
    rank: u8,
}

impl Column {
    /// Returns a column of texts, that may be cut to the width `least`.
    pub(crate) const fn text(title: &'static str, least: usize, rank: u8) -> Column {
        Column { title, is_number: false, least, rank }
    }

    /// Returns a column of numbers, that is never cut.
    pub(crate) const fn number(title: &'static str, rank: u8) -> Column {
        Column { title, is_number: true, least: usize::MAX, rank }
    }
}

/// Returns the width of the terminal, or `None` if the output goes elsewhere.
pub(crate) fn terminal_width() -> Option<usize> {
    let output = io::stdout();
    let told = || tcgetwinsize(&output).ok().map(|size| usize::from(size.ws_col));
    let width = || told().filter(|width| *width > 0).unwrap_or(USUAL_WIDTH);
    output.is_terminal().then(width)
}

/// Returns the lines of a table of printable cells.
///
/// Columns without any content are left out. In the other columns an empty cell is a dash.
pub(crate) fn render(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let width = width.unwrap_or(usize::MAX);
    let shown = fit(layout(columns, rows), width);
    let cell = |row: &[String], at: usize| match row.get(at).map_or("", String::as_str) {
        "" => UNKNOWN.to_owned(),
        text => text.to_owned(),
    };
    let title = line(&shown, width, |place| columns[place.number].title.to_owned());
    let rows = rows.iter().map(|row| line(&shown, width, |place| cell(row, place.number)));
    title + &rows.collect::<String>()
}

/// A column that is shown.
#[derive(Clone, Copy, Debug)]
struct Place {
    column: Column,
    number: usize,
    width: usize,
    least: usize,
}

/// Returns the columns with content, each with its full width.
fn layout(columns: &[Column], rows: &[Vec<String>]) -> Vec<Place> {
    let cell = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |it| it.width());
    let place = |(number, column): (usize, &Column)| {
        let widest = rows.iter().map(|row| cell(row, number)).max().filter(|widest| *widest > 0)?;
        let width = widest.max(column.title.len());
        let least = column.least.max(column.title.len()).min(width);
        Some(Place { column: *column, number, width, least })
    };
    columns.iter().enumerate().filter_map(place).collect()
}

/// Returns the columns of a table that is no wider than `width`, if that is possible.
///
/// The column with the lowest rank is left out first, until the least widths fit. Then the widest
/// column that may be cut gives way first.
fn fit(mut places: Vec<Place>, width: usize) -> Vec<Place> {
    while total(&places, |place| place.least) > width && places.len() > 1 {
        let lowest = places.iter().map(|place| place.column.rank).min();
        let last = places.iter().rposition(|place| Some(place.column.rank) == lowest);
        places.remove(last.unwrap_or_default());
    }
    for _ in width..total(&places, |place| place.width) {
        let widest = places.iter_mut().filter(|place| place.width > place.least);
        let Some(place) = widest.max_by_key(|place| place.width) else { break };
        place.width -= 1;
    }
    places
}

/// Returns the width of the table for these widths of its columns.
fn total(places: &[Place], width: impl Fn(&Place) -> usize) -> usize {
    let gaps = GAP.len() * places.len().saturating_sub(1);
    places.iter().map(width).sum::<usize>() + gaps
}

fn line(places: &[Place], width: usize, cell: impl Fn(&Place) -> String) -> String {
    let cells = places.iter().map(|it| pad(&cell(it), it.width, it.column.is_number));
    cut(cells.collect::<Vec<_>>().join(GAP).trim_end(), width) + "\n"
}

/// Returns the text with exactly this width, a number at the right.
pub(crate) fn pad(text: &str, width: usize, is_number: bool) -> String {
    let text = cut(text, width);
    let space = " ".repeat(width - text.width().min(width));
    if is_number { space + &text } else { text + &space }
}

/// Returns the text, cut to this width. A text that is cut ends with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |sign: &char| {
        let rest = left.checked_sub(sign.width().unwrap_or(0));
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    let start: String = text.chars().take_while(fits).collect();
    if width == 0 { start } else { start + "…" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("NAME", 6, 9),
        Column::text("LABEL", 3, 1),
        Column::text("PROGRAM", 4, 2),
        Column::number("AGE", 3),
    ];

    fn rows(rows: &[[&str; 4]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    #[test]
    fn columns_are_aligned_and_empty_columns_are_left_out() {
        let rows = rows(&[["a", "", "worker", "1.2s"], ["漢字 name", "", "", "12m"]]);
        let expected = "\
NAME       PROGRAM   AGE
a          worker   1.2s
漢字 name  -         12m
";
        assert_eq!(render(&COLUMNS, &rows, None), expected);
        assert_eq!(render(&COLUMNS, &[], None), "\n");
    }

    #[test]
    fn a_table_is_no_wider_than_the_terminal() {
        let name = "a-very-long-name-of-a-lock";
        let rows = rows(&[[name, "label", "漢字漢字漢字", "1.2s"], ["b", "", "", "-"]]);
        for width in 1..60 {
            let table = render(&COLUMNS, &rows, Some(width));
            assert!(table.lines().all(|line| line.width() <= width), "{width}:\n{table}");
        }
        let first = |width| {
            let table = render(&COLUMNS, &rows, Some(width));
            table.lines().nth(1).map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(first(40), "a-very-long-…  label  漢字漢字漢字  1.2s");
        assert_eq!(first(35), "a-very-lo…  label  漢字漢字…   1.2s");
        assert_eq!(first(26), "a-very-l…  漢字漢字…  1.2s", "the label is left out");
        assert_eq!(first(15), "a-very-l…  1.2s");
        assert!(render(&COLUMNS, &rows, Some(100)).contains(name));
    }

    #[test]
    fn a_cut_text_ends_with_an_ellipsis() {
        let cuts = [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("漢字", 3, "漢…"), ("漢字", 2, "…")];
        for (text, width, expected) in cuts {
            assert_eq!(cut(text, width), expected);
        }
        assert_eq!(cut("abc", 0), "");
    }
}
