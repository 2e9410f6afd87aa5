//! One lock in detail: its holders, its queue, and its recent events.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::numbers::{self, count};
use super::theme::Theme;
use super::{put, spread};
use crate::observe::event::{Happening, LockEvent};
use crate::observe::snapshot::Caller;
use crate::top::sight::Sight;
use crate::top::state::{Now, Row, State};
use crate::views::text::{IDLE, brief, printable, time_of_day};
use crate::views::watch;

/// Draws the followed lock: its holders and its queue above, its events below.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &mut State, now: Now, theme: Theme) {
    let now = state.shown_moment(now);
    let Some(name) = state.followed().map(str::to_owned) else { return };
    let row = state.row(&name);
    let head = [Line::default(), title(&name, row, theme, area.width.into())];
    let callers = row.map_or_else(Vec::new, |row| callers(row, now, theme));
    let events: Vec<_> = state.events.iter().rev().map(|event| event_line(event, theme)).collect();
    let [top, middle, below] = areas(area, callers.len());
    put(frame, top, head.into());
    let first = state.scroll_lines(callers.len(), middle.height.into());
    put(frame, middle, callers.into_iter().skip(first).collect());
    let heading = Line::from(Span::styled("EVENTS, the latest first", theme.title()));
    put(frame, below, [Line::default(), heading].into_iter().chain(events).collect());
}

/// Divides the area: the title, the callers in half of the rest at most, the events.
fn areas(area: Rect, callers: usize) -> [Rect; 3] {
    let rest = area.height.saturating_sub(2);
    let callers = u16::try_from(callers).unwrap_or(u16::MAX).min(rest.div_ceil(2));
    let rows = [Constraint::Length(2), Constraint::Length(callers), Constraint::Min(0)];
    Layout::vertical(rows).areas(area)
}

fn title(name: &str, row: Option<&Row>, theme: Theme, width: usize) -> Line<'static> {
    let left = Line::from(Span::styled(printable(name).into_owned(), theme.strong()));
    let Some(row) = row else { return left };
    let mut facts = vec![row.sight.lock.kind.clone()];
    facts.extend(row.rate().and_then(numbers::handoffs).map(|rate| format!("{rate} hand-offs")));
    facts.extend(row.sight.token.map(|token| format!("token {token}")));
    spread(left, facts.join("  "), width)
}

/// Returns the lines with the holders and the waiting callers.
fn callers(row: &Row, now: Now, theme: Theme) -> Vec<Line<'static>> {
    let sight = &row.sight;
    let heading = |text: String| Line::from(Span::styled(text, theme.title()));
    let mut lines = vec![Line::default()];
    lines.push(heading(holders_heading(sight)));
    lines.extend(sight.lock.holders.iter().map(|holder| holder_line(row, holder, now)));
    lines.push(Line::default());
    lines.push(heading(waiters_heading(sight)));
    for (place, waiter) in (1..).zip(&sight.lock.queue) {
        let waits = waiter.since.map(|since| format!("  waits for {}", brief(now.wall - since)));
        let waits = waits.unwrap_or_default();
        lines.push(Line::from(format!("{place:4}  {}{waits}", person(waiter))));
    }
    lines
}

fn holders_heading(sight: &Sight) -> String {
    match sight.lock.holders.len() as u64 {
        0 if sight.is_free() => "FREE".to_owned(),
        // The time after an early release of a lock with a minimum of its hold.
        0 => "HELD BY NOBODY, until its minimum hold ends".to_owned(),
        holders => format!("HELD by {}", count(holders, "holder", "holders")),
    }
}

fn waiters_heading(sight: &Sight) -> String {
    let lock = &sight.lock;
    if !lock.queue.is_empty() {
        return format!("QUEUE of {}", count(lock.queue.len() as u64, "caller", "callers"));
    }
    let processes = count(lock.processes, "process", "processes");
    match sight.local_waiters {
        0 => format!("WAITING: {processes}"),
        local => format!(
            "WAITING: {processes}, and {} in the process of the holder",
            count(local, "caller", "callers")
        ),
    }
}

fn holder_line(row: &Row, holder: &Caller, now: Now) -> Line<'static> {
    let mut facts = vec![person(holder)];
    facts.extend(holder.is_idle.then(|| IDLE.to_owned()));
    facts.extend(holder.since.map(|since| format!("held for {}", brief(now.wall - since))));
    let left = holder.remaining.map(|left| left - row.since_sighting(now));
    facts.extend(left.map(|left| format!("lease left {}", brief(left))));
    facts.push(printable(&holder.owner).into_owned());
    Line::from(format!("  {}", facts.join("  ")))
}

/// Returns the known facts about a process and its thread, as events show them.
fn person(caller: &Caller) -> String {
    watch::caller(&LockEvent {
        host: caller.host.clone(),
        pid: caller.pid,
        program: caller.program.clone(),
        label: caller.label.clone(),
        thread: caller.thread.clone(),
        owner: Some(caller.owner.clone()),
        ..LockEvent::default()
    })
}

fn event_line(event: &LockEvent, theme: Theme) -> Line<'static> {
    let style = match event.event {
        Happening::Acquired => theme.strong(),
        Happening::Waiting => theme.notice(),
        Happening::Expired | Happening::Lost | Happening::Outage => theme.alarm(),
        Happening::Released
        | Happening::Kept
        | Happening::Idle
        | Happening::Left
        | Happening::Gone
        | Happening::Identified => theme.faint(),
        Happening::Recovered | Happening::Mark => theme.title(),
    };
    let word = format!("{:8}", watch::word(event).0);
    Line::from_iter([
        Span::raw(format!("  {}  ", time_of_day(event.at))),
        Span::styled(word, style),
        Span::raw(format!("  {}  {}", watch::caller(event), watch::facts(event))),
    ])
}
