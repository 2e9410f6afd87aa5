//! All microbenchmarks.

use micro::{packing, queues, reentry, wheels};

criterion::criterion_group!(
    benches,
    wheels::insert_and_cancel,
    wheels::advance,
    queues::enter_and_leave,
    reentry::nested_pair,
    packing::commands,
);
criterion::criterion_main!(benches);
