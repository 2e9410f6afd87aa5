//! The gate: the line of one process in front of one lock.

use std::hint::black_box;

use criterion::Criterion;

use crate::private::queue::Gate;

/// A caller joins the end of the line, and the front leaves.
pub fn enter_and_leave(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gate: enter and leave");
    for others in [0, 64, 10_000] {
        let mut gate = Gate::default();
        for caller in 0..others {
            gate.enter(caller);
        }
        group.bench_function(format!("{others} others"), |bencher| {
            bencher.iter(|| {
                let ticket = gate.enter(others);
                black_box((ticket, gate.pop()))
            });
        });
    }
    group.finish();
}
