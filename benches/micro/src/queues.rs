//! The queue of one process for one lock.

use std::hint::black_box;

use criterion::Criterion;

use crate::private::queue::WaitQueue;

/// Adds a caller at the end of the queue and removes the head.
pub fn enter_and_leave(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue: enter and leave");
    for others in [0, 64, 10_000] {
        let mut queue = WaitQueue::default();
        for caller in 0..others {
            queue.enter(caller);
        }
        group.bench_function(format!("{others} others"), |bencher| {
            bencher.iter(|| {
                let ticket = queue.enter(others);
                black_box((ticket, queue.pop()))
            });
        });
    }
    group.finish();
}
