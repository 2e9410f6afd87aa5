//! The columns of the table: their texts, and their widths in a window.

use crate::args::SortBy;
use crate::top::rates::Rate;
use crate::top::sight::{Caller, Sight};
use crate::top::state::{Now, Row};
use crate::top::text;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
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
const ALL: [Column; 11] = [
    Column::Lock,
    Column::Kind,
    Column::Age,
    Column::Left,
    Column::Waiters,
    Column::Handoffs,
    Column::Host,
    Column::Pid,
    Column::Program,
    Column::Label,
    Column::Thread,
];

/// The columns that a narrow window leaves out, the first one first.
const DROPPED: [Column; 10] = [
    Column::Thread,
    Column::Label,
    Column::Kind,
    Column::Host,
    Column::Left,
    Column::Pid,
    Column::Handoffs,
    Column::Waiters,
    Column::Program,
    Column::Age,
];

impl Column {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Column::Lock => "LOCK",
            Column::Kind => "KIND",
            Column::Age => "AGE",
            Column::Left => "LEFT",
            Column::Waiters => "WAIT",
            Column::Handoffs => "HAND-OFFS",
            Column::Host => "HOST",
            Column::Pid => "PID",
            Column::Program => "PROGRAM",
            Column::Label => "LABEL",
            Column::Thread => "THREAD",
        }
    }

    /// Returns the order of the rows by this column.
    pub(crate) fn sort(self) -> Option<SortBy> {
        match self {
            Column::Lock => Some(SortBy::Name),
            Column::Age => Some(SortBy::Age),
            Column::Left => Some(SortBy::Left),
            Column::Waiters => Some(SortBy::Waiters),
            Column::Handoffs => Some(SortBy::Handoffs),
            _ => None,
        }
    }

    /// Returns whether the column has numbers, which end at its right side.
    pub(crate) fn is_numeric(self) -> bool {
        use Column::{Age, Handoffs, Left, Pid, Waiters};
        matches!(self, Age | Left | Waiters | Handoffs | Pid)
    }

    /// Returns the least useful width, with the mark of the order.
    fn least(self) -> usize {
        match self {
            Column::Lock => 12,
            Column::Kind | Column::Age | Column::Left | Column::Host | Column::Pid => 6,
            Column::Program => 7,
            Column::Waiters => 5,
            Column::Handoffs => 10,
            Column::Label | Column::Thread => 6,
        }
    }

    /// Returns the text of a cell.
    pub(crate) fn text(self, row: &Row, now: Now) -> String {
        let sight = &row.sight;
        match self {
            Column::Lock => text::safe(&sight.name),
            Column::Kind => short_kind(&sight.kind).to_owned(),
            Column::Age => row.age(now).map_or_else(dash, text::duration),
            Column::Left if sight.is_free() => dash(),
            Column::Left => row.left(now).map_or_else(|| "none".to_owned(), text::duration),
            Column::Waiters => sight.waiters().to_string(),
            Column::Handoffs => row.rate().map_or_else(dash, rate),
            Column::Host | Column::Pid | Column::Program | Column::Label | Column::Thread => {
                self.fact(sight)
            }
        }
    }

    /// Returns a fact about the holder.
    fn fact(self, sight: &Sight) -> String {
        let Some(holder) = sight.holders.first() else { return self.without_holder(sight) };
        let more = sight.holders.len() - 1;
        let shown = |text: &Option<String>| text.as_deref().map_or_else(dash, text::safe);
        match self {
            Column::Host => shown(&holder.host),
            Column::Pid => holder.pid.map_or_else(dash, |pid| pid.to_string()),
            Column::Program if more > 0 => format!("{} +{more}", program(holder)),
            Column::Program => program(holder),
            Column::Label => shown(&holder.label),
            _ => shown(&holder.thread),
        }
    }

    fn without_holder(self, sight: &Sight) -> String {
        match self {
            Column::Program if sight.is_free() => "free".to_owned(),
            // The time after an early release of a lock with a minimum of its hold.
            Column::Program => "nobody".to_owned(),
            _ => String::new(),
        }
    }
}

/// Returns the name of the program, or as much of the owner as is known.
fn program(holder: &Caller) -> String {
    match (&holder.program, &holder.client) {
        (Some(program), _) => text::safe(program),
        // The first digits of a client id suffice to tell clients apart.
        (None, Some(client)) => format!("client {}", client.get(..8).unwrap_or(client)),
        (None, None) => text::safe(&holder.owner),
    }
}

fn short_kind(kind: &str) -> &str {
    match kind {
        "lock of a named holder" => "named",
        _ => kind.strip_suffix(" lock").unwrap_or(kind),
    }
}

fn rate(rate: Rate) -> String {
    let mark = if matches!(rate, Rate::AtLeast(_)) { ">" } else { "" };
    let shown = text::rate(rate.per_second());
    // A lower bound of zero says nothing.
    let is_unknown = mark == ">" && shown == "0";
    if is_unknown { dash() } else { format!("{mark}{shown}/s").replace(">>", ">").replace("><", ">") }
}

fn dash() -> String {
    "-".to_owned()
}

/// Returns the columns of a window and their widths. Columns are a space apart.
///
/// `wanted` is the width of the widest text of a column.
pub(crate) fn layout(width: usize, wanted: impl Fn(Column) -> usize) -> Vec<(Column, usize)> {
    let mut columns: Vec<_> = ALL.iter().map(|column| (*column, column.least())).collect();
    let mut dropped = DROPPED.iter();
    while needed(&columns) > width {
        match dropped.next() {
            Some(next) => columns.retain(|(column, _)| column != next),
            None => break,
        }
    }
    let mut spare = width.saturating_sub(needed(&columns));
    let wants: Vec<usize> = columns.iter().map(|(column, _)| wanted(*column)).collect();
    while spare > 0 {
        let lacks = |at: &usize| wants[*at].saturating_sub(columns[*at].1);
        let Some(neediest) = (0..columns.len()).rev().max_by_key(lacks).filter(|at| lacks(at) > 0)
        else {
            break;
        };
        columns[neediest].1 += 1;
        spare -= 1;
    }
    columns
}

fn needed(columns: &[(Column, usize)]) -> usize {
    columns.iter().map(|(_, width)| width + 1).sum::<usize>().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(width: usize) -> Vec<&'static str> {
        layout(width, |_| 0).into_iter().map(|(column, _)| column.title()).collect()
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
            assert!(needed(&columns) <= width, "{columns:?} in {width}");
        }
        let columns = layout(120, |column| if column == Column::Lock { 40 } else { 0 });
        assert_eq!(columns[0], (Column::Lock, 40));
        let shared = layout(110, |column| match column {
            Column::Lock | Column::Host => 60,
            _ => 0,
        });
        let width = |wanted| shared.iter().find(|(column, _)| *column == wanted).map(|it| it.1);
        assert_eq!(width(Column::Lock), width(Column::Host));
    }

    #[test]
    fn a_lower_bound_is_marked() {
        assert_eq!(rate(Rate::Counted(12.0)), "12/s");
        assert_eq!(rate(Rate::AtLeast(3.0)), ">3.0/s");
        assert_eq!(rate(Rate::AtLeast(0.0)), "-");
        assert_eq!(rate(Rate::Counted(0.0)), "0/s");
    }

    #[test]
    fn kinds_are_short() {
        let kinds = ["fair lock", "lock", "lock of a named holder", "queue lock"].map(short_kind);
        assert_eq!(kinds, ["fair", "lock", "named", "queue"]);
    }
}
