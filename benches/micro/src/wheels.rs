//! The timer wheel, whose timers are mostly cancelled.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion};

use crate::private::util::clock::Moment;
use crate::private::util::wheel::Wheel;

/// The tick of the watchdog.
const TICK: Duration = Duration::from_millis(5);

/// The time until a renewal in milliseconds: a third of a lease of 30 s.
const PERIOD: u64 = 10_000;

/// The number of other timers in the wheel.
const SIZES: [u64; 3] = [0, 1_000, 100_000];

/// Returns moments within the period that are not in order.
fn due(number: u64) -> Moment {
    Moment::START + Duration::from_millis(number.wrapping_mul(7_919) % PERIOD)
}

fn filled(count: u64) -> Wheel<u64> {
    let mut wheel = Wheel::new(TICK, Moment::START);
    for number in 0..count {
        wheel.insert(due(number), number);
    }
    wheel
}

/// Inserts and cancels a timer, as for a hold that ends before its renewal.
pub fn insert_and_cancel(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel: insert and cancel");
    for size in SIZES {
        let (mut wheel, mut number) = (filled(size), 0);
        group.bench_function(format!("{size} others"), |bencher| {
            bencher.iter(|| {
                number += 1;
                let key = wheel.insert(due(number), number);
                black_box(wheel.cancel(key))
            });
        });
    }
    group.finish();
}

/// Advances the wheel by a period, in which all timers fire.
pub fn advance(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel: advance by a period");
    for size in SIZES {
        group.bench_function(format!("{size} due"), |bencher| {
            let period = |mut wheel: Wheel<u64>| {
                let mut fired = Vec::new();
                for millis in (0..=PERIOD).step_by(5) {
                    wheel.advance(Moment::START + Duration::from_millis(millis), &mut fired);
                }
                assert_eq!(fired.len() as u64, size, "everything fires within the period");
                (wheel, fired)
            };
            bencher.iter_batched(|| filled(size), period, BatchSize::LargeInput);
        });
    }
    group.finish();
}
