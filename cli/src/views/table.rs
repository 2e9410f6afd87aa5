//! Tables for people, no wider than the terminal.

use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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
}

impl Column {
    /// Returns a column of texts, that may be cut to `least` columns of the terminal.
    pub(crate) const fn text(title: &'static str, least: usize) -> Column {
        Column { title, is_number: false, least }
    }

    /// Returns a column of numbers, that is never cut.
    pub(crate) const fn number(title: &'static str) -> Column {
        Column { title, is_number: true, least: usize::MAX }
    }
}

/// Returns the width of the terminal, or `None` if the output goes elsewhere.
pub(crate) fn terminal_width() -> Option<usize> {
    let output = io::stdout();
    let told = || tcgetwinsize(&output).ok().map(|size| usize::from(size.ws_col));
    let width = || told().filter(|width| *width > 0).unwrap_or(USUAL_WIDTH);
    output.is_terminal().then(width)
}

/// Returns the lines of a table of printable cells. Columns without any content are left out.
pub(crate) fn render(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let cell = |row: &[String], number: usize| row.get(number).map_or(0, |it| it.width());
    let widest = |number| rows.iter().map(|row| cell(row, number)).max().unwrap_or(0);
    let content = columns.iter().enumerate().map(|(number, column)| (number, column, widest(number)));
    let shown: Vec<_> = content.filter(|(_, _, widest)| *widest > 0).collect();
    let least = |(_, column, widest): &(usize, &Column, usize)| {
        let full = (*widest).max(column.title.len());
        (full, column.least.max(column.title.len()).min(full))
    };
    let widths = fit(shown.iter().map(least).collect(), width);
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = shown.iter().zip(&widths);
        let cells = cells.map(|((number, it, _), width)| pad(&cell(*number), *width, it.is_number));
        let line = cells.collect::<Vec<_>>().join(GAP);
        cut(line.trim_end(), width.unwrap_or(usize::MAX)) + "\n"
    };
    let title = line(&|number| columns[number].title.to_owned());
    let rows = rows.iter().map(|row| line(&|number| row.get(number).cloned().unwrap_or_default()));
    title + &rows.collect::<String>()
}

/// Returns the widths of the columns, from their full and least widths.
///
/// The widest column that may be cut gives way first.
fn fit(mut columns: Vec<(usize, usize)>, width: Option<usize>) -> Vec<usize> {
    let gaps = GAP.len() * columns.len().saturating_sub(1);
    let mut excess = columns
        .iter()
        .map(|(full, _)| full)
        .sum::<usize>()
        .saturating_add(gaps)
        .saturating_sub(width.unwrap_or(usize::MAX));
    while excess > 0 {
        let widest = columns.iter_mut().filter(|(width, least)| width > least);
        let Some((width, _)) = widest.max_by_key(|(width, _)| *width) else { break };
        *width -= 1;
        excess -= 1;
    }
    columns.into_iter().map(|(width, _)| width).collect()
}

/// Returns the text with exactly this width.
fn pad(text: &str, width: usize, is_number: bool) -> String {
    let text = cut(text, width);
    let space = " ".repeat(width - text.width().min(width));
    if is_number { space + &text } else { text + &space }
}

/// Returns the text, cut to this width. A text that is cut ends with an ellipsis.
pub(crate) fn cut(text: &str, width: usize) -> String {
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
        Column::text("NAME", 6),
        Column::text("LABEL", 3),
        Column::text("PROGRAM", 4),
        Column::number("AGE"),
    ];

    fn rows(rows: &[[&str; 4]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    #[test]
    fn columns_are_aligned_and_empty_columns_are_left_out() {
        let rows = rows(&[["a", "", "worker", "1.2s"], ["漢字 name", "", "x", "12m"]]);
        let expected = "\
NAME       PROGRAM   AGE
a          worker   1.2s
漢字 name  x         12m
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
        let table = render(&COLUMNS, &rows, Some(35));
        assert_eq!(table.lines().nth(1), Some("a-very-long…  label  漢字漢…  1.2s"), "{table}");
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
