//! [`Fact`]: the columns of the table, their texts, and their widths in a window.

use super::numbers;
use crate::args::SortBy;
use crate::observe::snapshot::Caller;
use crate::top::sight::Sight;
use crate::top::state::{Now, Row};
use crate::views::text::{self, brief, printable, short_kind};

/// A column of the table: a fact about each lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    Lock,
    Kind,
    Age,
    Left,
    Waiters,
    Handoffs,
    Host,
    Pid,
    Program,
    Label,
    Thread,
}

/// The columns from left to right.
const ALL: [Fact; 11] = [
    Fact::Lock,
    Fact::Kind,
    Fact::Age,
    Fact::Left,
    Fact::Waiters,
    Fact::Handoffs,
    Fact::Host,
    Fact::Pid,
    Fact::Program,
    Fact::Label,
    Fact::Thread,
];

/// The columns that a narrow window leaves out, the first one first.
const DROPPED: [Fact; 10] = [
    Fact::Thread,
    Fact::Label,
    Fact::Kind,
    Fact::Host,
    Fact::Left,
    Fact::Pid,
    Fact::Handoffs,
    Fact::Waiters,
    Fact::Program,
    Fact::Age,
];

impl Fact {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Fact::Lock => "LOCK",
            Fact::Kind => "KIND",
            Fact::Age => "AGE",
            Fact::Left => "LEFT",
            Fact::Waiters => "WAIT",
            Fact::Handoffs => "HAND-OFFS",
            Fact::Host => "HOST",
            Fact::Pid => "PID",
            Fact::Program => "PROGRAM",
            Fact::Label => "LABEL",
            Fact::Thread => "THREAD",
        }
    }

    /// Returns the order of the rows by this column.
    pub(crate) fn sort(self) -> Option<SortBy> {
        match self {
            Fact::Lock => Some(SortBy::Name),
            Fact::Age => Some(SortBy::Age),
            Fact::Left => Some(SortBy::Left),
            Fact::Waiters => Some(SortBy::Waiters),
            Fact::Handoffs => Some(SortBy::Handoffs),
            _ => None,
        }
    }

    /// Returns whether the column has numbers, which end at its right side.
    pub(crate) fn is_numeric(self) -> bool {
        use Fact::{Age, Handoffs, Left, Pid, Waiters};
        matches!(self, Age | Left | Waiters | Handoffs | Pid)
    }

    /// Returns the least useful width, with the mark of the order.
    fn least(self) -> usize {
        match self {
            Fact::Lock => 11,
            Fact::Age | Fact::Left | Fact::Program => 7,
            Fact::Kind | Fact::Host | Fact::Pid | Fact::Thread => 6,
            Fact::Waiters | Fact::Label => 5,
            Fact::Handoffs => 10,
        }
    }

    /// Returns the text of a cell.
    pub(crate) fn text(self, row: &Row, now: Now) -> String {
        let sight = &row.sight;
        match self {
            Fact::Lock => printable(&sight.lock.name).into_owned(),
            Fact::Kind => short_kind(&sight.lock.kind).to_owned(),
            Fact::Age => row.age(now).map_or_else(dash, brief),
            Fact::Left if sight.is_free() => dash(),
            Fact::Left => row.left(now).map_or_else(|| "none".to_owned(), brief),
            Fact::Waiters => sight.waiters().to_string(),
            Fact::Handoffs => row.rate().and_then(numbers::handoffs).unwrap_or_else(dash),
            Fact::Host | Fact::Pid | Fact::Program | Fact::Label | Fact::Thread => self.fact(sight),
        }
    }

    /// Returns a fact about the holder.
    fn fact(self, sight: &Sight) -> String {
        let Some(holder) = sight.lock.holders.first() else {
            return match self {
                Fact::Program if sight.is_free() => "free".to_owned(),
                // The time after an early release of a lock with a minimum of its hold.
                Fact::Program => "nobody".to_owned(),
                _ => String::new(),
            };
        };
        let more = sight.lock.holders.len() - 1;
        let shown = |text: &Option<String>| {
            text.as_deref().map_or_else(dash, |text| printable(text).into_owned())
        };
        match self {
            Fact::Host => shown(&holder.host),
            Fact::Pid => holder.pid.map_or_else(dash, |pid| pid.to_string()),
            Fact::Program if more > 0 => format!("{} +{more}", program(holder)),
            Fact::Program => program(holder),
            Fact::Label => shown(&holder.label),
            _ if holder.is_idle => text::IDLE.to_owned(),
            _ => shown(&holder.thread),
        }
    }
}

/// Returns the name of the program, or as much of the owner as is known.
fn program(holder: &Caller) -> String {
    match (&holder.program, &holder.client_id) {
        (Some(program), _) => printable(program).into_owned(),
        // The first digits of a client id suffice to tell clients apart.
        (None, Some(client)) => format!("client {}", client.get(..8).unwrap_or(client)),
        (None, None) => printable(&holder.owner).into_owned(),
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// The columns of a window, from left to right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// The facts, and the widths of their columns.
    pub(crate) facts: Vec<(Fact, usize)>,
    /// The space between two columns.
    pub(crate) gap: usize,
}

/// Returns the columns of a window. `wanted` is the width of the widest text of a column.
///
/// Wide windows have more space between the columns.
pub(crate) fn layout(width: usize, wanted: impl Fn(Fact) -> usize) -> Columns {
    let mut facts: Vec<_> = ALL.iter().map(|fact| (*fact, fact.least())).collect();
    let mut dropped = DROPPED.iter();
    while needed(&facts, 1) > width {
        match dropped.next() {
            Some(next) => facts.retain(|(fact, _)| fact != next),
            None => break,
        }
    }
    widen(&mut facts, width, wanted);
    let gap = if needed(&facts, 2) <= width { 2 } else { 1 };
    Columns { facts, gap }
}

/// Gives the spare space of the window to the columns that lack most.
fn widen(facts: &mut [(Fact, usize)], width: usize, wanted: impl Fn(Fact) -> usize) {
    let mut spare = width.saturating_sub(needed(facts, 1));
    let wants: Vec<usize> = facts.iter().map(|(fact, _)| wanted(*fact)).collect();
    while spare > 0 {
        let lacks = |at: &usize| wants[*at].saturating_sub(facts[*at].1);
        let neediest = (0..facts.len()).rev().max_by_key(lacks).filter(|at| lacks(at) > 0);
        let Some(neediest) = neediest else { return };
        facts[neediest].1 += 1;
        spare -= 1;
    }
}

/// Returns the width of these columns with this space between them.
fn needed(facts: &[(Fact, usize)], gap: usize) -> usize {
    facts.iter().map(|(_, width)| width + gap).sum::<usize>().saturating_sub(gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(width: usize) -> Vec<&'static str> {
        layout(width, |_| 0).facts.into_iter().map(|(fact, _)| fact.title()).collect()
    }

    #[test]
    fn eighty_columns_show_all_facts_but_the_thread() {
        assert_eq!(names(80).len(), ALL.len() - 1);
        assert!(!names(80).contains(&"THREAD"));
        assert_eq!(names(100).len(), ALL.len());
    }

    #[test]
    fn narrow_windows_keep_the_name_of_the_lock() {
        assert_eq!(names(40), ["LOCK", "AGE", "WAIT", "PROGRAM"]);
        assert_eq!(names(5), ["LOCK"]);
    }

    #[test]
    fn the_columns_fit_into_the_window_and_share_its_rest() {
        for width in 12..200 {
            let columns = layout(width, |_| 30);
            assert!(needed(&columns.facts, columns.gap) <= width, "{columns:?} in {width}");
        }
        let columns = layout(120, |fact| if fact == Fact::Lock { 40 } else { 0 });
        assert_eq!((columns.facts[0], columns.gap), ((Fact::Lock, 40), 1));
        assert_eq!(layout(120, |_| 0).gap, 2);
        let shared = layout(110, |fact| match fact {
            Fact::Lock | Fact::Host => 60,
            _ => 0,
        });
        let width = |wanted| shared.facts.iter().find(|(fact, _)| *fact == wanted);
        let [lock, host] = [Fact::Lock, Fact::Host].map(|fact| width(fact).map_or(0, |it| it.1));
        assert!(lock > 15 && lock.abs_diff(host) <= 1, "{lock}, {host}");
    }
}
