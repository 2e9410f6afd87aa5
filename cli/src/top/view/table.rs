//! The table: a row per lock.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::columns::{self, Columns, Fact};
use super::put;
use super::theme::Theme;
use crate::top::state::{Now, Row, State};
use crate::views::table::pad;
use crate::views::text::printable;

/// Draws the titles and the visible rows.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &mut State, now: Now, theme: Theme) {
    let has_titles = area.height > 1;
    state.scroll(area.height.saturating_sub(has_titles.into()).into());
    let now = state.shown_moment(now);
    let rows: Vec<&Row> = state.visible().iter().filter_map(|name| state.row(name)).collect();
    let wanted = |fact: Fact| {
        let texts = rows.iter().map(|row| Span::raw(fact.text(row, now)).width());
        texts.max().unwrap_or(0)
    };
    let columns = columns::layout(area.width.into(), wanted);
    let mut lines = Vec::with_capacity(rows.len() + 1);
    if has_titles {
        lines.push(titles(&columns, state, theme));
    }
    let selected = state.selected();
    lines.extend(rows.iter().map(|row| line(&columns, row, now, selected, theme)));
    if rows.is_empty() {
        lines.push(Line::from(Span::styled(emptiness(state), theme.faint())));
    }
    put(frame, area, lines);
}

fn titles(columns: &Columns, state: &State, theme: Theme) -> Line<'static> {
    let title = |(fact, width): &(Fact, usize)| {
        let is_sorted = fact.sort() == Some(state.sort);
        let mark = match (is_sorted, state.is_reversed) {
            (false, _) => "",
            (true, false) => "▼",
            (true, true) => "▲",
        };
        let text = pad(&format!("{}{mark}", fact.title()), *width, fact.is_numeric());
        Span::styled(text, if is_sorted { theme.sorted() } else { theme.title() })
    };
    joined(columns.facts.iter().map(title), columns.gap, Style::new())
}

fn line(
    columns: &Columns,
    row: &Row,
    now: Now,
    selected: Option<&str>,
    theme: Theme,
) -> Line<'static> {
    let style = |fact: Fact| match fact {
        Fact::Waiters if row.sight.waiters() > 0 => theme.notice(),
        Fact::Kind | Fact::Thread => theme.faint(),
        _ => Style::new(),
    };
    let span = |(fact, width): &(Fact, usize)| {
        let text = pad(&fact.text(row, now), *width, fact.is_numeric());
        Span::styled(text, style(*fact))
    };
    let whole = if selected == Some(row.sight.lock.name.as_str()) {
        theme.selected()
    } else if row.sight.is_free() {
        theme.faint()
    } else {
        Style::new()
    };
    joined(columns.facts.iter().map(span), columns.gap, whole)
}

/// Returns the cells of a row, in one style across the window.
fn joined(cells: impl Iterator<Item = Span<'static>>, gap: usize, style: Style) -> Line<'static> {
    let spaced = cells.flat_map(|cell| [cell, Span::raw(" ".repeat(gap))]);
    Line::from_iter(spaced).style(style)
}

/// Returns the reason for a table without rows.
fn emptiness(state: &State) -> String {
    match (&*state.filter, state.look) {
        (_, None) => String::new(),
        ("", _) => "no lock is held".to_owned(),
        (filter, _) => format!("no lock matches \"{}\"", printable(filter)),
    }
}
