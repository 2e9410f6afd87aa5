//! The orders of the rows.

use std::cmp::Ordering;
use std::time::Instant;

use super::row::Row;
use crate::args::SortBy;

/// All orders, as the keys go through them: from the left column to the right.
const ORDERS: [SortBy; 5] =
    [SortBy::Name, SortBy::Age, SortBy::Left, SortBy::Waiters, SortBy::Handoffs];

pub(crate) fn next(sort: SortBy) -> SortBy {
    step(sort, 1)
}

pub(crate) fn previous(sort: SortBy) -> SortBy {
    step(sort, ORDERS.len() - 1)
}

fn step(sort: SortBy, step: usize) -> SortBy {
    let at = ORDERS.iter().position(|order| *order == sort).unwrap_or(0);
    ORDERS[(at + step) % ORDERS.len()]
}

/// Sorts rows that are in the order of their names. Rows with equal values keep that order.
pub(crate) fn sort(rows: &mut [(&String, &Row)], sort: SortBy, is_reversed: bool) {
    let compare = |a: &Row, b: &Row| match sort {
        SortBy::Name => Ordering::Equal,
        SortBy::Age => since(a).total_cmp(&since(b)),
        SortBy::Left => unknown_last(end(a)).cmp(&unknown_last(end(b))),
        SortBy::Waiters => b.sight.waiters().cmp(&a.sight.waiters()),
        SortBy::Handoffs => rate(b).total_cmp(&rate(a)),
    };
    rows.sort_by(|(_, a), (_, b)| compare(a, b));
    if is_reversed {
        rows.reverse();
    }
}

/// Returns the start of the oldest hold; rows without one come last.
fn since(row: &Row) -> f64 {
    row.sight.since().unwrap_or(f64::INFINITY)
}

/// Returns the end of the lease.
fn end(row: &Row) -> Option<Instant> {
    row.sight.remaining.and_then(|left| row.at.checked_add(left))
}

fn rate(row: &Row) -> f64 {
    row.rate().map_or(-1.0, |rate| rate.per_second())
}

fn unknown_last<T: Ord>(value: Option<T>) -> (bool, Option<T>) {
    (value.is_none(), value)
}
