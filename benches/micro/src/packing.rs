//! The packing of commands.

use std::hint::black_box;

use criterion::Criterion;

use crate::private::command::script;
use crate::private::transport::call::{Call, Digits};

const KEY: &[u8] = b"orders:4711";
const OWNER: &[u8] = b"f5b1c7a2-6c0e-4f0a-9d39-0a3b8e6c1d52:17";
const CHANNEL: &[u8] = b"redisson_lock__channel:{orders:4711}";

/// The largest number of holds that one script call renews.
const BATCH: usize = 128;

/// Packs an acquire and a release as `kind/plain.rs` builds them, and a full batch of renewals.
pub fn commands(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packing");
    group.bench_function("acquire", |bencher| {
        bencher.iter(|| {
            let lease = Digits::new(black_box(30_000));
            Call::script(&script::PLAIN_ACQUIRE, [KEY], [lease.as_bytes(), OWNER])
        });
    });
    group.bench_function("release", |bencher| {
        let args: [&[u8]; 3] = [OWNER, CHANNEL, b"0"];
        bencher.iter(|| Call::script(&script::PLAIN_RELEASE, [KEY], black_box(args)));
    });
    group.bench_function(format!("renewal of {BATCH}"), |bencher| {
        let (keys, owners) = ([KEY; BATCH], [OWNER; BATCH]);
        bencher.iter(|| {
            let lease = Digits::new(black_box(30_000));
            let args = std::iter::once(lease.as_bytes()).chain(owners);
            Call::script(&script::PLAIN_RENEW, keys, args)
        });
    });
    group.finish();
}
