//! Random inputs for the parsers of what servers, programs and users write.
//!
//! A fuzz test changes known inputs at random and looks for a panic, a hang, or a broken promise.
//! It runs for `LEASEHOLD_FUZZ_SECONDS`, by default for a tenth of a second. A failure prints the
//! input, which then belongs into a test of its own.

use std::any::Any;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::util::clock;

/// The longest input.
const LONGEST: usize = 4096;

/// Bytes with a meaning in some format, and bytes that no format expects.
const SPECIAL: &[u8] = b"*$:+-_#,(!=%~>|.\r\n0123456789{}[]@/?&:\\\"'\x00\x1b\x7f\x80\xc3\xff";

/// Checks random changes of the seeds.
pub(crate) fn fuzz(seeds: &[&[u8]], check: impl Fn(&[u8])) {
    let seconds = env::var("LEASEHOLD_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = clock::now() + seconds.map_or(Duration::from_millis(100), Duration::from_secs_f64);
    let mut count = 0_u64;
    // The first inputs are the seeds themselves.
    while count < seeds.len() as u64 || clock::now() < end {
        let first = usize::try_from(count).ok().and_then(|at| seeds.get(at));
        let input = first.map_or_else(|| changed(seeds), |seed| seed.to_vec());
        if let Err(panic) = run(&check, &input) {
            eprintln!("the input of the failure: {:?}", input.escape_ascii().to_string());
            resume_unwind(panic);
        }
        count += 1;
    }
    assert!(count >= seeds.len() as u64, "each seed was checked");
}

fn run(check: &impl Fn(&[u8]), input: &[u8]) -> Result<(), Box<dyn Any + Send>> {
    let begun = clock::now();
    catch_unwind(AssertUnwindSafe(|| check(input)))?;
    // A generous bound: a parser of a short text takes microseconds.
    let took = begun.until(clock::now());
    assert!(took < Duration::from_secs(30), "slow: {:?}", input.escape_ascii());
    Ok(())
}

/// Returns a random seed with some random changes.
fn changed(seeds: &[&[u8]]) -> Vec<u8> {
    let mut input = seeds[fastrand::usize(..seeds.len())].to_vec();
    for _ in 0..=fastrand::usize(..8) {
        let at = fastrand::usize(..=input.len());
        let end = at + fastrand::usize(..=(input.len() - at).min(16));
        let byte = if fastrand::bool() { fastrand::u8(..) } else { special() };
        match fastrand::u8(..7) {
            0 if at < input.len() => input[at] = byte,
            1 => input.insert(at, byte),
            2 => drop(input.drain(at..end)),
            3 => {
                let part = input[at..end].repeat(fastrand::usize(..100));
                input.splice(at..at, part);
            }
            4 => {
                let other = seeds[fastrand::usize(..seeds.len())];
                let from = fastrand::usize(..=other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            5 => {
                let number = [0, 1, u64::MAX, 1 << 63, fastrand::u64(..)][fastrand::usize(..5)];
                input.splice(at..end, number.to_string().into_bytes());
            }
            _ => input.truncate(at),
        }
    }
    input.truncate(LONGEST);
    input
}

fn special() -> u8 {
    SPECIAL[fastrand::usize(..SPECIAL.len())]
}

#[test]
#[should_panic(expected = "the fault")]
fn a_fault_is_found() {
    loop {
        fuzz(&[b"abcdef", b"xyz"], |input| assert!(!input.starts_with(b"xyc"), "the fault"));
    }
}
