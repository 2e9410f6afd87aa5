//! Runs the model-checked tests; `script/model` runs them all.
//!
//! A *model* is a function that starts a few threads, which use the code under test, and asserts
//! properties that hold in every schedule. The checker (the `shuttle` crate) runs the model many
//! times. Before each step on a mutex, a condition variable or an atomic of `sync.rs` it chooses
//! the thread that continues. If no thread can continue, the model fails. A lost wake-up is found
//! this way, provided that nothing in the model wakes threads without a reason. Time stands still;
//! where it matters it is an argument, and the model moves it.
//!
//! A model is beside the code that it checks, in a file named `model.rs`. Its head lists faults
//! that were put into the code for a trial and that the model caught.
//!
//! * `LEASEHOLD_MODEL_ITERATIONS` is the number of schedules per model and scheduler
//!   ([`ITERATIONS`] if not set).
//! * A failure prints its schedule, a string of digits and letters. To run that schedule once more,
//!   give it to the test that failed:
//!
//!   ```text
//!   LEASEHOLD_MODEL_REPLAY=91080a... script/model local::model::the_test -- --nocapture
//!   ```

use std::env;

/// The number of schedules per model and scheduler.
const ITERATIONS: usize = 200;

/// The depths of the scheduler that prefers few switches. It adds one switch less than its depth.
const DEPTHS: [usize; 2] = [3, 5];

/// The number of schedules that run twice, to check that a model can be replayed.
const REPEATED: usize = 10;

/// Runs a model through many schedules: random ones, and ones with few switches.
pub(crate) fn check(model: impl Fn() + Copy + Send + Sync + 'static) {
    if replay(model) {
        return;
    }
    let iterations = iterations();
    shuttle::check_uncontrolled_nondeterminism(model, REPEATED);
    shuttle::check_random(model, iterations);
    DEPTHS.into_iter().for_each(|depth| shuttle::check_pct(model, iterations, depth));
}

/// Runs a small model through every possible schedule.
pub(crate) fn check_all(model: impl Fn() + Copy + Send + Sync + 'static) {
    if !replay(model) {
        shuttle::check_dfs(model, None);
    }
}

fn replay(model: impl Fn() + Send + Sync + 'static) -> bool {
    let schedule = env::var("LEASEHOLD_MODEL_REPLAY");
    schedule.map(|schedule| shuttle::replay(model, &schedule)).is_ok()
}

fn iterations() -> usize {
    let set = env::var("LEASEHOLD_MODEL_ITERATIONS").ok();
    set.map_or(ITERATIONS, |text| text.parse().expect("a number of schedules"))
}
