//! How the model-checked tests are run; `script/model` runs them all.
//!
//! A *model* is a function that starts a few threads, which use the code under
//! test, and asserts what must be so in every schedule. The checker (the `shuttle`
//! crate) runs it again and again, and before every step on a mutex, a condition
//! variable or an atomic number of `sync.rs` it chooses the thread that goes on. If
//! no thread can go on, the model fails: so a lost wake-up is found, provided that
//! nothing in the model wakes threads for no reason. Time stands still; where it
//! matters it is an argument, and the model moves it.
//!
//! The models stand beside what they check, in files named `model.rs`. Each lists
//! faults that were put into the code for a trial and that it was seen to catch.
//!
//! * `LEASEHOLD_MODEL_ITERATIONS` is the number of schedules that each model runs
//!   through with each scheduler ([`ITERATIONS`] if not set).
//! * A failure prints its schedule, a string of digits and letters. To run just
//!   that one again, once, give it to the test that failed:
//!
//!   ```text
//!   LEASEHOLD_MODEL_REPLAY=91080a... script/model local::model::the_test -- --nocapture
//!   ```

use std::env;

/// How many schedules each scheduler chooses for a model.
const ITERATIONS: usize = 200;

/// How often the scheduler that prefers few switches between threads makes one
/// where it does not have to, less one.
const DEPTHS: [usize; 2] = [3, 5];

/// Schedules that are run twice, to see that a model can be replayed.
const REPEATED: usize = 10;

/// Runs a model through many schedules: some chosen at random, some with few
/// switches between threads.
pub(crate) fn check(model: impl Fn() + Copy + Send + Sync + 'static) {
    if replay(model) {
        return;
    }
    let iterations = iterations();
    shuttle::check_uncontrolled_nondeterminism(model, REPEATED);
    shuttle::check_random(model, iterations);
    DEPTHS.into_iter().for_each(|depth| shuttle::check_pct(model, iterations, depth));
}

/// Runs a small model through every schedule that there is.
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
