//! Tests of the timer wheel. The last one compares it with a plain map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const TICK: u64 = 1_000;
const TURN: u64 = TICK * SLOTS as u64;
/// Not a multiple of a tick, and some turns after the clock's own start.
const START: u64 = 10 * TURN + 137;

fn wheel<T>() -> Wheel<T> {
    Wheel::new(Duration::from_nanos(TICK), at(0))
}

/// The moment `nanos` after the wheel's start.
fn at(nanos: u64) -> Moment {
    Moment::from_nanos(START + nanos)
}

fn advance<T: Ord>(wheel: &mut Wheel<T>, now: Moment) -> Vec<T> {
    let mut fired = Vec::new();
    wheel.advance(now, &mut fired);
    fired.sort();
    fired
}

#[test]
fn an_item_fires_at_its_moment_and_not_a_nanosecond_before() {
    let mut wheel = wheel();
    wheel.insert(at(TICK + 500), 'a');
    assert!(advance(&mut wheel, at(TICK + 499)).is_empty());
    assert_eq!(advance(&mut wheel, at(TICK + 500)), ['a']);
    assert!(advance(&mut wheel, at(TICK + 500)).is_empty());
    assert!(wheel.is_empty());
}

#[test]
fn fired_items_are_appended() {
    let mut wheel = wheel();
    wheel.insert(at(1), 'b');
    let mut fired = vec!['a'];
    wheel.advance(at(1), &mut fired);
    assert_eq!(fired, ['a', 'b']);
}

#[test]
fn an_item_of_a_later_turn_stays_in_its_slot() {
    let mut wheel = wheel();
    wheel.insert(at(3 * TURN + 7), 'z');
    wheel.insert(at(7), 'a');
    assert_eq!(advance(&mut wheel, at(2 * TURN + 7)), ['a']);
    assert_eq!(wheel.next_due(), Some(at(3 * TURN + 7)));
    assert!(advance(&mut wheel, at(3 * TURN + 6)).is_empty());
    assert_eq!(advance(&mut wheel, at(3 * TURN + 7)), ['z']);
}

#[test]
fn a_past_item_fires_at_the_next_call() {
    let mut wheel = wheel();
    advance(&mut wheel, at(100 * TICK));
    wheel.insert(at(5 * TICK), 'a');
    wheel.insert(Moment::START, 'b');
    assert_eq!(wheel.next_due(), Some(Moment::START));
    assert_eq!(advance(&mut wheel, at(100 * TICK)), ['a', 'b']);
}

#[test]
fn a_clock_that_goes_back_fires_no_item_early() {
    let mut wheel = wheel();
    advance(&mut wheel, at(100 * TICK));
    wheel.insert(at(50 * TICK), 'a');
    wheel.insert(at(60 * TICK), 'b');
    assert!(advance(&mut wheel, at(40 * TICK)).is_empty());
    assert_eq!(advance(&mut wheel, at(55 * TICK)), ['a']);
    assert_eq!(wheel.next_due(), Some(at(60 * TICK)));
    assert_eq!(advance(&mut wheel, at(60 * TICK)), ['b']);
}

#[test]
fn the_longest_jump_costs_one_turn() {
    let mut wheel = Wheel::new(Duration::ZERO, Moment::START);
    wheel.insert(Moment::END, 'z');
    wheel.insert(at(0), 'a');
    let almost = Moment::END.before(Duration::from_nanos(1));
    assert_eq!(advance(&mut wheel, almost), ['a']);
    assert_eq!(wheel.reached, almost.nanos());
    assert_eq!(wheel.next_due(), Some(Moment::END));
    assert_eq!(advance(&mut wheel, Moment::END), ['z']);
}

#[test]
fn an_endless_tick_puts_all_items_into_one_slot() {
    let mut wheel = Wheel::new(Duration::MAX, at(0));
    wheel.insert(at(1), 'a');
    wheel.insert(at(2), 'b');
    assert_eq!(advance(&mut wheel, at(1)), ['a']);
    assert_eq!(advance(&mut wheel, Moment::END), ['b']);
}

#[test]
fn a_key_fits_no_item_after_its_own() {
    let mut wheel = wheel();
    let cancelled = wheel.insert(at(1), 'a');
    assert_eq!(wheel.cancel(cancelled), Some('a'));
    assert_eq!(wheel.cancel(cancelled), None);
    let fires = wheel.insert(at(1), 'b');
    assert_eq!(fires.index, cancelled.index);
    assert_eq!(wheel.cancel(cancelled), None);
    assert_eq!(advance(&mut wheel, at(1)), ['b']);
    assert_eq!(wheel.cancel(fires), None);
}

#[test]
fn entries_are_used_again() {
    let mut wheel = wheel();
    for round in 0..1_000 {
        let first = wheel.insert(at(round * TICK), 'a');
        wheel.insert(at(round * TICK + 1), 'b');
        assert_eq!(wheel.cancel(first), Some('a'));
        assert_eq!(advance(&mut wheel, at(round * TICK + 1)), ['b']);
    }
    assert_eq!(wheel.entries.len(), 2);
}

#[test]
fn a_slot_emptied_by_cancelling_has_no_due_time() {
    let mut wheel = wheel();
    assert_eq!(wheel.next_due(), None);
    let early = wheel.insert(at(TICK), 'a');
    wheel.insert(at(9 * TICK), 'b');
    assert_eq!(wheel.next_due(), Some(at(TICK)));
    wheel.cancel(early);
    assert_eq!(wheel.next_due(), Some(at(9 * TICK)));
}

#[test]
fn a_cancelled_item_costs_at_most_one_round() {
    let mut wheel = wheel();
    let early = wheel.insert(at(TICK), 'a');
    wheel.insert(at(TURN + TICK), 'b');
    wheel.cancel(early);
    assert_eq!(wheel.next_due(), Some(at(TICK)));
    assert!(advance(&mut wheel, at(TICK)).is_empty());
    assert_eq!(wheel.next_due(), Some(at(TURN + TICK)));
}

#[test]
fn debug_output_is_short() {
    let mut wheel = wheel();
    wheel.insert(Moment::from_nanos(START), "secret");
    let text = format!("{wheel:?}");
    assert!(text.starts_with("Wheel { len: 1, next_due: Some("), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// One call on the wheel. Spans are nanoseconds from the present, negative for the past.
#[derive(Clone, Debug)]
enum Step {
    Insert(i64),
    /// At the due time of the item before.
    InsertEqual,
    CancelLive(Index),
    /// With any earlier key; most fit no item any more.
    CancelAny(Index),
    Advance(i64),
    AdvanceToNextDue,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => span().prop_map(Step::Insert),
        2 => Just(Step::InsertEqual),
        3 => any::<Index>().prop_map(Step::CancelLive),
        2 => any::<Index>().prop_map(Step::CancelAny),
        4 => span().prop_map(Step::Advance),
        2 => Just(Step::AdvanceToNextDue),
    ];
    proptest::collection::vec(step, 1..200)
}

/// Near, at a tick's border, within a turn, around whole turns, far in the future, past.
fn span() -> impl Strategy<Value = i64> {
    let (tick, turn) = (TICK as i64, TURN as i64);
    prop_oneof![
        2 => Just(0),
        6 => 0..4 * tick,
        3 => (0..SLOTS as i64).prop_map(move |ticks| ticks * tick),
        3 => 0..turn,
        3 => (1..4i64, -2 * tick..2 * tick).prop_map(move |(turns, off)| turns * turn + off),
        1 => 0..1_000_000 * turn,
        2 => -3 * tick..0,
        2 => -2 * turn..0,
    ]
}

/// A wheel and a plain map with the same items, which are numbers.
struct Pair {
    wheel: Wheel<usize>,
    now: Moment,
    last_due: Moment,
    keys: Vec<Key>,
    live: BTreeMap<usize, Moment>,
    cancelled: bool,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            wheel: wheel(),
            now: at(0),
            last_due: at(0),
            keys: Vec::new(),
            live: BTreeMap::new(),
            cancelled: false,
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert(span) => self.insert(self.moment_after(span)),
            Step::InsertEqual => self.insert(self.last_due),
            Step::CancelLive(index) => self.cancel_live(index),
            Step::CancelAny(index) => self.cancel_any(index),
            Step::Advance(span) => self.advance(self.moment_after(span)),
            Step::AdvanceToNextDue => self.advance_to_next_due(),
        }
        self.check();
    }

    fn moment_after(&self, span: i64) -> Moment {
        Moment::from_nanos(self.now.nanos().saturating_add_signed(span))
    }

    fn insert(&mut self, due: Moment) {
        let number = self.keys.len();
        self.keys.push(self.wheel.insert(due, number));
        self.live.insert(number, due);
        self.last_due = due;
    }

    fn cancel_live(&mut self, index: Index) {
        let live: Vec<_> = self.live.keys().copied().collect();
        if !live.is_empty() {
            self.cancel(*index.get(&live));
        }
    }

    fn cancel_any(&mut self, index: Index) {
        if !self.keys.is_empty() {
            self.cancel(index.index(self.keys.len()));
        }
    }

    /// Cancels twice; the second call must return nothing.
    fn cancel(&mut self, number: usize) {
        let expected = self.live.remove(&number).map(|_| number);
        assert_eq!(self.wheel.cancel(self.keys[number]), expected);
        assert_eq!(self.wheel.cancel(self.keys[number]), None);
        self.cancelled |= expected.is_some();
    }

    fn advance(&mut self, now: Moment) {
        self.now = now;
        let is_due = |number: &usize| self.live[number] <= now;
        let due: Vec<_> = self.live.keys().copied().filter(is_due).collect();
        self.live.retain(|_, due| *due > now);
        assert_eq!(advance(&mut self.wheel, now), due);
        assert!(self.wheel.next_due().is_none_or(|next| next > now));
    }

    fn advance_to_next_due(&mut self) {
        if let Some(next) = self.wheel.next_due() {
            self.advance(next);
        }
    }

    fn check(&self) {
        assert_eq!(self.wheel.len(), self.live.len());
        assert_eq!(self.wheel.is_empty(), self.live.is_empty());
        let mut items: Vec<_> = self.wheel.iter().copied().collect();
        items.sort();
        assert!(items.iter().eq(self.live.keys()));
        self.check_next_due();
    }

    fn check_next_due(&self) {
        let next = self.wheel.next_due();
        let earliest = self.live.values().min().copied();
        assert_eq!(next.is_some(), earliest.is_some());
        assert!(next <= earliest);
        assert!(self.cancelled || next == earliest);
    }

    /// Advances from one due time to the next, which fires all in at most one round per insert.
    fn run_out(&mut self) {
        for _ in 0..self.keys.len() {
            self.advance_to_next_due();
        }
        assert!(self.wheel.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_wheel_behaves_like_a_plain_map(steps in steps()) {
        let mut pair = Pair::new();
        for step in steps {
            pair.apply(step);
        }
        pair.run_out();
    }
}
