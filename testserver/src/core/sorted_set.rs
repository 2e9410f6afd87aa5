//! Sorted sets.

use super::resp::Bytes;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

/// Members with scores, in the order of their scores and then of their bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SortedSet {
    scores: HashMap<Bytes, f64>,
    order: BTreeSet<Ranked>,
}

/// A member at its place.
#[derive(Clone, Debug, PartialEq)]
struct Ranked {
    /// Never NaN.
    score: f64,
    place: Place,
}

/// The place of an entry among those with its score.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    BeforeAll,
    Member(Bytes),
    AfterAll,
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let scores = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        scores.then_with(|| self.place.cmp(&other.place))
    }
}

/// One end of a range of scores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreBound {
    pub(crate) score: f64,
    /// Whether the score itself is outside.
    pub(crate) excluded: bool,
}

impl SortedSet {
    pub(crate) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Gives a member its score. Zero has no sign, as in the small sets of Redis.
    pub(crate) fn set(&mut self, member: &[u8], score: f64) {
        let score = if score == 0.0 { 0.0 } else { score };
        match self.score(member) {
            Some(old) if old == score => return,
            Some(old) => {
                self.order.remove(&Ranked::member(old, member));
            }
            None => {}
        }
        self.scores.insert(member.to_vec(), score);
        self.order.insert(Ranked::member(score, member));
    }

    /// Removes a member, and tells whether it was there.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&Ranked::member(score, member))
    }

    pub(crate) fn pop_first(&mut self) -> Option<(Bytes, f64)> {
        let first = self.order.pop_first()?;
        self.popped(first)
    }

    pub(crate) fn pop_last(&mut self) -> Option<(Bytes, f64)> {
        let last = self.order.pop_last()?;
        self.popped(last)
    }

    fn popped(&mut self, entry: Ranked) -> Option<(Bytes, f64)> {
        let Place::Member(member) = entry.place else { return None };
        self.scores.remove(&member);
        Some((member, entry.score))
    }

    /// Returns all members with their scores, in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Bytes, f64)> {
        self.order.iter().filter_map(Ranked::entry)
    }

    /// Returns the members between two scores, in order.
    pub(crate) fn between(
        &self,
        min: ScoreBound,
        max: ScoreBound,
    ) -> impl DoubleEndedIterator<Item = (&Bytes, f64)> {
        let low = Ranked {
            score: min.score,
            place: if min.excluded { Place::AfterAll } else { Place::BeforeAll },
        };
        let high = Ranked {
            score: max.score,
            place: if max.excluded { Place::BeforeAll } else { Place::AfterAll },
        };
        // A range whose start lies behind its end panics.
        let range = (low < high).then_some((Bound::Excluded(low), Bound::Excluded(high)));
        range.into_iter().flat_map(|range| self.order.range(range)).filter_map(Ranked::entry)
    }
}

impl Ranked {
    fn member(score: f64, member: &[u8]) -> Self {
        Self { score, place: Place::Member(member.to_vec()) }
    }

    fn entry(&self) -> Option<(&Bytes, f64)> {
        match &self.place {
            Place::Member(member) => Some((member, self.score)),
            Place::BeforeAll | Place::AfterAll => None,
        }
    }
}
