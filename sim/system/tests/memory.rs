//! The memory of processes, with the allocator that counts it.

use simulated::memory::{self, Counting};
use simulated::world::{self, Settings};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BYTES: usize = 100_000;

#[test]
fn a_block_belongs_to_the_process_of_its_making_until_it_is_freed() {
    let settings =
        Settings { seed: 1, preempted: 0, is_traced: true, longest: Duration::from_secs(60) };
    let outcome = world::run(settings, || {
        let [one, other] = [0, 0].map(world::start_process);
        let has = |process| memory::bytes_of(process) / BYTES;
        let make = |count: usize| {
            move || {
                let blocks: Vec<Vec<u8>> = (0..count).map(|_| vec![1; BYTES]).collect();
                let text = "x".repeat(BYTES);
                world::note(|| text.clone());
                memory::of_nobody(|| std::mem::forget(text.clone()));
                blocks
            }
        };
        let blocks = world::spawn_in(one, "one", make(3)).join().expect("no panic");
        assert_eq!([has(one), has(other)], [3, 0]);
        let mut more = world::spawn_in(other, "other", make(2)).join().expect("no panic");
        assert_eq!([has(one), has(other)], [3, 2]);
        // The test itself frees and lengthens blocks of others.
        drop(blocks);
        more[0].resize(3 * BYTES, 1);
        assert_eq!([has(one), has(other)], [0, 4]);
        std::mem::forget(more);
    });
    assert_eq!(outcome.stuck, None);

    // Blocks of a former run do not count.
    let seen = Rc::new(Cell::new(usize::MAX));
    let place = Rc::clone(&seen);
    let _ = world::run(settings, move || {
        let process = world::start_process(0);
        place.set(memory::bytes_of(process));
    });
    assert_eq!(seen.get(), 0);
}
