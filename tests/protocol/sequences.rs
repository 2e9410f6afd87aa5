//! Random sequences of steps, on a server that all sequences of a test share.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Tries this number of sequences. `attempt` panics or fails on a difference.
pub(crate) fn try_sequences<T, S: Strategy>(
    subject: T,
    cases: u32,
    sequences: S,
    attempt: impl Fn(&mut T, S::Value) -> Result<(), TestCaseError>,
) {
    let subject = RefCell::new(subject);
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    let outcome = runner.run(&sequences, |steps| attempt(&mut subject.borrow_mut(), steps));
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
