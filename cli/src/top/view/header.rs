//! The lines above the table: servers, counts, looks, and an outage.

use ratatui::text::{Line, Span};

use super::numbers::{count, interval};
use super::spread;
use super::theme::Theme;
use crate::top::state::{Now, SearchDone, State};
use crate::views::text::{brief, printable, time_of_day};

/// Returns the lines of the header: two, or three during an outage.
pub(super) fn lines(state: &State, now: Now, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![first(state, theme, width), second(state, theme)];
    if let Some(outage) = &state.outage {
        let since = now.instant.saturating_duration_since(outage.since).as_secs_f64();
        let text = format!("no look for {}: {}", brief(since), printable(&outage.error));
        lines.push(Line::from(Span::styled(text, theme.alarm())));
    }
    lines
}

/// Returns the line with the servers and the last look.
fn first(state: &State, theme: Theme, width: usize) -> Line<'static> {
    let mut left = Line::from(Span::styled("leasehold top", theme.strong()));
    if state.paused.is_some() {
        left.push_span(Span::styled("  PAUSED", theme.notice().patch(theme.title())));
    }
    left.push_span(Span::raw(format!("  {}", printable(&state.servers))));
    let look = state.look.map_or_else(
        || "looking".to_owned(),
        |look| {
            // Milliseconds are of no use on a screen that changes once a second.
            let at = time_of_day(look.at.wall);
            let at = at.split('.').next().unwrap_or(&at);
            format!("looked at {at} in {}", interval(look.took))
        },
    );
    spread(left, look, width)
}

/// Returns the line with the counts, the intervals, and the filter.
fn second(state: &State, theme: Theme) -> Line<'static> {
    let totals = state.totals();
    let mut line = Line::from_iter([
        Span::styled(count(totals.locks, "lock", "locks"), theme.title()),
        Span::raw(format!(", {}, ", count(totals.holders, "holder", "holders"))),
        Span::raw(format!("{} waiting", totals.waiters)),
    ]);
    if !state.filter.is_empty() {
        let filter = printable(&state.filter).into_owned();
        line.push_span(Span::styled(
            format!("  filter \"{filter}\": {} shown", state.shown_count()),
            theme.notice(),
        ));
    }
    line.push_span(Span::styled(format!("  {}", intervals(state)), theme.faint()));
    line
}

/// Returns the time between two looks: at the visible rows, and at all locks.
fn intervals(state: &State) -> String {
    let every = interval(state.every);
    match state.search {
        Some(SearchDone { every: all, took }) if all > state.every + state.every / 4 => {
            let [all, took] = [all, took].map(interval);
            format!("visible rows every {every}, all locks every {all} ({took} of looks)")
        }
        _ => format!("every {every}"),
    }
}
