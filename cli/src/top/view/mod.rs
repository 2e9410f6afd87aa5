//! The screen: a header, the table or one lock in detail, and the keys at the bottom.
//!
//! Reading order: [`theme`], [`numbers`], [`columns`], [`header`], [`table`], [`detail`].
//! Draws a state, and tells it how many rows are visible. Reads no clock.

mod columns;
mod detail;
mod header;
mod numbers;
mod table;
#[cfg(test)]
mod tests;
mod theme;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::keys::{self, Mode};
use super::state::{Now, State};
use crate::views::text::printable;
pub(crate) use theme::Theme;

/// The number of columns of the keys in the help.
const KEYS_WIDTH: usize = 24;

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &mut State, now: Now, theme: Theme) {
    state.arrange();
    let head = header::lines(state, now, theme, frame.area().width.into());
    // The smallest windows have no room for more than rows.
    let (above, below) = match frame.area().height {
        0..4 => (0, 0),
        4..8 => (1, 1),
        _ => (head.len() as u16, 1),
    };
    let rows = [Constraint::Length(above), Constraint::Min(0), Constraint::Length(below)];
    let [top, middle, bottom] = Layout::vertical(rows).areas(frame.area());
    put(frame, top, head);
    match state.mode {
        Mode::Table | Mode::Filter => table::draw(frame, middle, state, now, theme),
        Mode::Follow => detail::draw(frame, middle, state, now, theme),
        Mode::Help => put(frame, middle, help(theme)),
    }
    put(frame, bottom, vec![last_line(state, theme, bottom.width.into())]);
}

/// Writes lines into an area. Lines that do not fit are left out or cut.
fn put(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>) {
    for (line, row) in lines.into_iter().zip(area.rows()) {
        frame.render_widget(line, row);
    }
}

/// Returns the keys, or the filter that is being typed.
fn last_line(state: &State, theme: Theme, width: usize) -> Line<'static> {
    let mut line = Line::default();
    if state.mode == Mode::Filter {
        let shown = printable(&state.filter).into_owned();
        line.extend([Span::styled("filter: ", theme.title()), Span::raw(shown)]);
        line.extend([Span::styled(" ", theme.selected()), Span::raw("   ")]);
    }
    for (key, meaning) in keys::shown(state.mode) {
        let spans = [Span::styled(*key, theme.strong()), Span::raw(format!(" {meaning}   "))];
        let needed: usize = spans.iter().map(Span::width).sum();
        if line.width() + needed > width + 3 {
            break;
        }
        line.extend(spans);
    }
    line
}

fn help(theme: Theme) -> Vec<Line<'static>> {
    let line = |(keys, meaning): (&'static str, &'static str)| {
        let keys = format!("  {keys:KEYS_WIDTH$}");
        Line::from_iter([Span::styled(keys, theme.strong()), Span::raw(meaning)])
    };
    let mut lines = vec![Line::default()];
    lines.extend(keys::HELP.map(line));
    lines.push(Line::default());
    lines.extend(keys::NOTES.map(|note| Line::from(format!("  {note}"))));
    lines
}

/// Returns the line with a piece at its left and a piece at its right, if both fit.
fn spread(left: Line<'static>, right: String, width: usize) -> Line<'static> {
    let used = left.width() + Span::raw(&right).width();
    match width.checked_sub(used) {
        Some(space @ 2..) => {
            let mut line = left;
            line.extend([Span::raw(" ".repeat(space)), Span::raw(right)]);
            line
        }
        _ => left,
    }
}
