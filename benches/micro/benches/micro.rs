//! All microbenchmarks.

use micro::{gates, packing, reentry, wheels};

criterion::criterion_group!(
    benches,
    wheels::insert_and_cancel,
    wheels::advance,
    gates::enter_and_leave,
    reentry::nested_pair,
    packing::commands,
);
criterion::criterion_main!(benches);
