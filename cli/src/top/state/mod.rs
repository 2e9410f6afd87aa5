//! [`State`]: the rows of `top`, their order, and the answers to keys. Pure: no clock, no I/O.

mod order;
mod row;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::keys::{Action, Mode, Motion};
use super::report::{Finding, Report};
use super::sight::Sight;
use crate::args::SortBy;
use crate::observe::event::LockEvent;
pub(crate) use row::Row;

/// The number of events of the followed lock that are kept.
const EVENTS_KEPT: usize = 500;

/// The present, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    /// Seconds since 1970.
    pub(crate) wall: f64,
}

/// Everything that the screen shows.
#[derive(Debug)]
pub(crate) struct State {
    /// The addresses of the servers, without passwords.
    pub(crate) servers: String,
    /// The time between two looks at the visible rows that the user wants.
    pub(crate) every: Duration,
    rows: BTreeMap<String, Row>,
    /// The names of the rows that the filter lets pass, in their order.
    shown: Vec<String>,
    is_arranged: bool,
    pub(crate) sort: SortBy,
    pub(crate) is_reversed: bool,
    pub(crate) filter: String,
    pub(crate) mode: Mode,
    selected: Option<String>,
    /// The first row on the screen.
    first: usize,
    /// The number of rows on the screen.
    height: usize,
    followed: Option<String>,
    /// The first line of the holders and the queue of the followed lock on the screen.
    first_line: usize,
    pub(crate) events: VecDeque<LockEvent>,
    pub(crate) paused: Option<Now>,
    pub(crate) look: Option<LookDone>,
    pub(crate) search: Option<SearchDone>,
    pub(crate) outage: Option<Outage>,
}

/// The last look of any sort that had an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookDone {
    pub(crate) at: Now,
    pub(crate) took: Duration,
}

/// The last search for all locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchDone {
    /// The time that the looks of the search took, without the pauses.
    pub(crate) took: Duration,
    /// The time from one search to the next.
    pub(crate) every: Duration,
}

/// The failure of all looks, or of those at some servers, since a moment.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) since: Instant,
    pub(crate) error: String,
}

/// Numbers for the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) locks: u64,
    pub(crate) holders: u64,
    pub(crate) waiters: u64,
}

impl State {
    pub(crate) fn new(servers: String, every: Duration, sort: SortBy) -> State {
        State {
            servers,
            every,
            rows: BTreeMap::new(),
            shown: Vec::new(),
            is_arranged: true,
            sort,
            is_reversed: false,
            filter: String::new(),
            mode: Mode::Table,
            selected: None,
            first: 0,
            height: 0,
            followed: None,
            first_line: 0,
            events: VecDeque::new(),
            paused: None,
            look: None,
            search: None,
            outage: None,
        }
    }

    /// Applies the outcome of a look. While paused, nothing changes.
    pub(crate) fn apply(&mut self, report: Report, now: Now) {
        if self.paused.is_some() {
            return;
        }
        match report {
            Report::Found(finding) => self.found(finding, now),
            Report::Searched { begun, took, every } => {
                self.free_unseen_since(begun, now);
                self.search = Some(SearchDone { took, every });
            }
            Report::Happened(events) => self.add_events(events),
            Report::Failed(error) => self.set_outage(Some(error), now),
        }
    }

    fn found(&mut self, finding: Finding, now: Now) {
        let at = finding.at;
        for sight in finding.sights {
            self.see(sight, at);
        }
        self.look = Some(LookDone { at: now, took: finding.took });
        self.set_outage(finding.missing, now);
        self.forget_free(at);
    }

    fn set_outage(&mut self, error: Option<String>, now: Now) {
        let since = self.outage.as_ref().map_or(now.instant, |outage| outage.since);
        self.outage = error.map(|error| Outage { since, error });
    }

    fn see(&mut self, sight: Sight, at: Instant) {
        self.is_arranged = false;
        match self.rows.get_mut(&sight.lock.name) {
            Some(row) => row.see(sight, at),
            // A look by name finds free locks too. One that was never held has no row.
            None if sight.is_free() => {}
            None => drop(self.rows.insert(sight.lock.name.clone(), Row::new(sight, at))),
        }
    }

    /// A search returns each lock that is held meanwhile, so the other locks are free.
    fn free_unseen_since(&mut self, begun: Instant, now: Now) {
        for (name, row) in self.rows.iter_mut().filter(|(_, row)| row.at < begun) {
            row.see(Sight::free(name), now.instant);
        }
        self.is_arranged = false;
        self.forget_free(now.instant);
    }

    /// Contended locks are free for moments. So a row stays for a while.
    fn forget_free(&mut self, at: Instant) {
        let followed = self.followed.as_ref();
        let before = self.rows.len();
        self.rows.retain(|name, row| !row.is_forgotten(at) || Some(name) == followed);
        self.is_arranged &= self.rows.len() == before;
    }

    fn add_events(&mut self, events: Vec<LockEvent>) {
        let followed = self.followed.clone();
        self.events
            .extend(events.into_iter().filter(|event| Some(&event.name) == followed.as_ref()));
        let surplus = self.events.len().saturating_sub(EVENTS_KEPT);
        self.events.drain(..surplus);
    }

    /// Performs what a key asks for, as far as it concerns the state.
    pub(crate) fn perform(&mut self, action: Action, now: Now) {
        match action {
            Action::Move(motion) if self.mode == Mode::Follow => {
                self.first_line = motion.from(self.first_line, self.height, usize::MAX);
            }
            Action::Move(motion) => self.move_selection(motion),
            Action::Follow => self.follow(),
            Action::Back => self.back(),
            Action::EditFilter => self.mode = Mode::Filter,
            Action::Type(sign) => self.filter.push(sign),
            Action::Erase => drop(self.filter.pop()),
            Action::Accept => self.mode = Mode::Table,
            Action::SortBy(sort) => self.sort = sort,
            Action::SortNext => self.sort = order::next(self.sort),
            Action::SortPrevious => self.sort = order::previous(self.sort),
            Action::Reverse => self.is_reversed ^= true,
            Action::Pause => self.paused = self.paused.is_none().then_some(now),
            Action::Help => self.mode = Mode::Help,
            Action::Quit | Action::Suspend | Action::Redraw => {}
        }
        self.is_arranged = false;
    }

    /// Leaves the help or the followed lock; else drops the filter.
    fn back(&mut self) {
        match self.mode {
            Mode::Table | Mode::Filter => self.filter.clear(),
            Mode::Follow => self.followed = None,
            Mode::Help => {}
        }
        self.mode = if self.followed.is_some() { Mode::Follow } else { Mode::Table };
    }

    fn follow(&mut self) {
        if let Some(name) = self.selected.clone() {
            self.events.clear();
            self.first_line = 0;
            self.followed = Some(name);
            self.mode = Mode::Follow;
        }
    }

    fn move_selection(&mut self, motion: Motion) {
        self.arrange();
        let at = self.selected_index().unwrap_or(0);
        let to = motion.from(at, self.height, self.shown.len());
        self.selected = self.shown.get(to).cloned();
    }

    /// Returns the first of `count` lines that is visible in `height` lines.
    pub(crate) fn scroll_lines(&mut self, count: usize, height: usize) -> usize {
        self.height = height;
        self.first_line = self.first_line.min(count.saturating_sub(height));
        self.first_line
    }

    /// Puts the rows in order if something has changed, and keeps the selection.
    pub(crate) fn arrange(&mut self) {
        if self.is_arranged {
            return;
        }
        let at = self.selected_index().unwrap_or(0);
        let filter = self.filter.to_lowercase();
        let passes = |(_, row): &(&String, &Row)| filter.is_empty() || row.sight.matches(&filter);
        let mut shown: Vec<_> = self.rows.iter().filter(passes).collect();
        order::sort(&mut shown, self.sort, self.is_reversed);
        self.shown = shown.into_iter().map(|(name, _)| name.clone()).collect();
        if self.selected_index().is_none() {
            let nearest = self.shown.get(at).or(self.shown.last());
            self.selected = nearest.cloned();
        }
        self.is_arranged = true;
    }

    /// Makes the selected row visible in `height` rows, and returns the visible rows.
    pub(crate) fn scroll(&mut self, height: usize) -> Range<usize> {
        self.arrange();
        self.height = height;
        let height = height.max(1);
        let at = self.selected_index().unwrap_or(0);
        let most = self.shown.len().saturating_sub(height);
        self.first = self.first.clamp((at + 1).saturating_sub(height), at).min(most);
        self.first..(self.first + self.height).min(self.shown.len())
    }

    /// Returns the names of the rows on the screen.
    pub(crate) fn visible(&self) -> &[String] {
        let end = (self.first + self.height).min(self.shown.len());
        self.shown.get(self.first..end).unwrap_or_default()
    }

    /// Returns the number of rows that the filter lets pass.
    pub(crate) fn shown_count(&self) -> usize {
        self.shown.len()
    }

    pub(crate) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.get(name)
    }

    pub(crate) fn selected(&self) -> Option<&str> {
        self.selected.as_deref()
    }

    pub(crate) fn followed(&self) -> Option<&str> {
        self.followed.as_deref()
    }

    pub(crate) fn totals(&self) -> Totals {
        let held = self.rows.values().filter(|row| !row.sight.is_free());
        held.fold(Totals::default(), |sum, row| Totals {
            locks: sum.locks + 1,
            holders: sum.holders + row.sight.lock.holders.len() as u64,
            waiters: sum.waiters + row.sight.waiters(),
        })
    }

    /// Returns the moment that ages and remaining leases refer to: the pause, else the present.
    pub(crate) fn shown_moment(&self, now: Now) -> Now {
        self.paused.unwrap_or(now)
    }

    fn selected_index(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.shown.iter().position(|name| name == selected)
    }
}
