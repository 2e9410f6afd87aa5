//! [`Block`]: the shapes of a lane. Spans that are too short to be seen are merged.

use crate::timeline::picture::scale::Scale;
use crate::timeline::spans::{Activity, Span, Unseen};

/// The width below which a span is short, and the width of a gap that can be seen.
const VISIBLE: f64 = 2.0;

/// The shape of a span, or of several short ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    One(Span),
    Many(MergedSpans),
}

/// Several short spans in a row, drawn as one shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MergedSpans {
    /// The lock, unless there are several.
    pub(crate) lock: Option<usize>,
    pub(crate) from: f64,
    pub(crate) until: f64,
    pub(crate) holds: usize,
    pub(crate) lost: usize,
    pub(crate) waits: usize,
    /// The sum of the holds, in seconds.
    pub(crate) held: f64,
}

impl Block {
    /// Returns the times from which and until which the block reaches.
    pub(crate) fn reach(&self) -> (f64, f64) {
        match self {
            Block::One(span) => (span.from, span.until),
            Block::Many(merged) => (merged.from, merged.until),
        }
    }

    fn is_lost(&self) -> bool {
        match self {
            Block::One(span) => span.activity == Activity::LostHold,
            Block::Many(merged) => merged.lost > 0,
        }
    }
}

impl MergedSpans {
    fn of(span: &Span) -> MergedSpans {
        let Span { lock, from, until, .. } = *span;
        let lock = Some(lock);
        let mut merged = MergedSpans { lock, from, until, holds: 0, lost: 0, waits: 0, held: 0.0 };
        merged.count(span);
        merged
    }

    fn add(&mut self, span: &Span) {
        self.lock = self.lock.filter(|&lock| lock == span.lock);
        self.until = self.until.max(span.until);
        self.count(span);
    }

    fn count(&mut self, span: &Span) {
        match span.activity {
            Activity::Wait => self.waits += 1,
            Activity::Hold => self.holds += 1,
            Activity::LostHold => self.lost += 1,
            Activity::Kept => {}
        }
        if span.activity.is_hold() {
            self.held += span.until - span.from;
        }
    }
}

/// Returns the blocks of the spans of a lane. Their number depends on the width, not on the spans.
pub(crate) fn merge(spans: &[Span], scale: &Scale) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for span in spans {
        match blocks.last_mut().filter(|last| accepts(last, span, scale)) {
            Some(last) => join(last, span),
            None => blocks.push(Block::One(span.clone())),
        }
    }
    blocks
}

/// Returns the unseen holds in shapes that are wide enough to be seen.
pub(crate) fn merge_unseen(unseen: &[Unseen], scale: &Scale) -> Vec<Unseen> {
    let mut merged: Vec<Unseen> = Vec::new();
    for next in unseen {
        let is_short = |last: &&mut Unseen| {
            last.lock == next.lock && scale.x(next.until) - scale.x(last.from) < 2.0 * VISIBLE
        };
        match merged.last_mut().filter(is_short) {
            Some(last) => (last.until, last.holds) = (next.until, last.holds + next.holds),
            None => merged.push(*next),
        }
    }
    merged
}

/// Returns whether the span is merged into the block before it.
fn accepts(last: &Block, span: &Span, scale: &Scale) -> bool {
    let (from, until) = last.reach();
    let width = |from, until| scale.x(until) - scale.x(from);
    let is_short = |from, until| width(from, until) < VISIBLE;
    let last_is_short = matches!(last, Block::Many(_)) || is_short(from, until);
    // A lost hold stays visible among others: a wide block takes none up.
    let same = last.is_lost() == (span.activity == Activity::LostHold);
    last_is_short
        && is_short(span.from, span.until)
        && is_short(until, span.from)
        && (same || is_short(from, until))
}

fn join(block: &mut Block, span: &Span) {
    if let Block::One(first) = block {
        *block = Block::Many(MergedSpans::of(first));
    }
    if let Block::Many(merged) = block {
        merged.add(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::spans::Window;

    /// A pixel is a second.
    fn scale() -> Scale {
        Scale::new(Window { from: 0.0, until: 1000.0 }, 0.0, 1000.0)
    }

    fn span(activity: Activity, from: f64, until: f64) -> Span {
        Span { lock: 0, activity, from, until, begun_before: false, unfinished: false }
    }

    fn holds(times: &[(f64, f64)]) -> Vec<Span> {
        times.iter().map(|&(from, until)| span(Activity::Hold, from, until)).collect()
    }

    #[test]
    fn visible_spans_stay_alone() {
        let spans = holds(&[(0.0, 5.0), (5.0, 10.0), (10.1, 10.2), (13.0, 13.1), (14.0, 20.0)]);
        let blocks = merge(&spans, &scale());
        assert_eq!(blocks, spans.into_iter().map(Block::One).collect::<Vec<_>>());
    }

    #[test]
    fn short_neighbours_are_counted_in_one_block() {
        let mut spans = holds(&[(0.0, 0.5), (1.0, 1.5)]);
        spans.push(span(Activity::Wait, 1.5, 2.5));
        spans.extend(holds(&[(2.5, 3.0), (10.0, 10.5)]));
        let blocks = merge(&spans, &scale());
        let merged = MergedSpans {
            lock: Some(0),
            from: 0.0,
            until: 3.0,
            holds: 3,
            lost: 0,
            waits: 1,
            held: 1.5,
        };
        assert_eq!(blocks, [Block::Many(merged), Block::One(spans[4].clone())]);
    }

    #[test]
    fn a_block_of_several_locks_has_none() {
        let mut spans = holds(&[(0.0, 0.5), (1.0, 1.5)]);
        spans[1].lock = 1;
        let [Block::Many(merged)] = &merge(&spans, &scale())[..] else { panic!("one block") };
        assert_eq!(merged.lock, None);
    }

    #[test]
    fn a_short_lost_hold_is_no_part_of_a_wide_block() {
        let times: Vec<(f64, f64)> =
            (0..40).map(|at| (f64::from(at), f64::from(at) + 0.5)).collect();
        let mut spans = holds(&times);
        spans[20].activity = Activity::LostHold;
        let blocks = merge(&spans, &scale());
        let lost: Vec<&Block> = blocks.iter().filter(|block| block.is_lost()).collect();
        let [lost] = lost[..] else { panic!("one lost block: {blocks:?}") };
        let (from, until) = lost.reach();
        assert!(from >= 20.0 && until < 24.0, "{lost:?}");
    }

    #[test]
    fn unseen_holds_are_few_shapes_and_all_are_counted() {
        let at = |number: u32| f64::from(number) / 100.0;
        let part = |number| Unseen { lock: 0, from: at(number), until: at(number + 1), holds: 3 };
        let merged = merge_unseen(&(0..100_000).map(part).collect::<Vec<_>>(), &scale());
        assert!(merged.len() <= 260, "{}", merged.len());
        assert_eq!(merged.iter().map(|it| it.holds).sum::<u64>(), 300_000);
        let other = Unseen { lock: 1, ..part(1) };
        assert_eq!(merge_unseen(&[part(0), other], &scale()), [part(0), other]);
    }

    #[test]
    fn a_hundred_thousand_spans_are_few_blocks() {
        let at = |number: u32| f64::from(number) / 100.0;
        let mut spans: Vec<Span> = (0..100_000)
            .map(|number| span(Activity::Hold, at(number), at(number) + 0.005))
            .collect();
        assert_eq!(merge(&spans, &scale()).len(), 1);
        for span in spans.iter_mut().step_by(2) {
            span.activity = Activity::LostHold;
        }
        assert!(merge(&spans, &scale()).len() <= 1001);
    }
}
