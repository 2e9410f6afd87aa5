//! The records of drivers, and the figures computed from them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::Result;

/// One pair of acquire and release. Moments are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// The number of the worker, with the number of its process in the upper half.
    pub(crate) worker: u64,
    pub(crate) asked: u64,
    pub(crate) acquired: u64,
    pub(crate) releasing: u64,
    pub(crate) released: u64,
}

/// Reads the records that a driver wrote.
pub(crate) fn read(file: &Path, process: u64) -> Result<Vec<Record>> {
    let bytes = fs::read(file)?;
    let (records, rest) = bytes.as_chunks::<40>();
    if !rest.is_empty() {
        return Err("records are cut off".into());
    }
    let record = |bytes: &[u8; 40]| {
        let (fields, _) = bytes.as_chunks::<8>();
        let [worker, asked, acquired, releasing, released] =
            [0, 1, 2, 3, 4].map(|at| u64::from_le_bytes(fields[at]));
        Record { worker: worker | process << 32, asked, acquired, releasing, released }
    };
    Ok(records.iter().map(record).collect())
}

/// Returns the value below which a share of `sorted` lies.
pub(crate) fn quantile(sorted: &[u64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).map_or(f64::NAN, |value| *value as f64)
}

/// Figures of pairs without contention.
#[derive(Debug)]
pub(crate) struct Uncontended {
    pub(crate) pairs: f64,
    pub(crate) per_second: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

pub(crate) fn uncontended(records: &[Record]) -> Uncontended {
    let begin = records.iter().map(|record| record.asked).min().unwrap_or(0);
    let end = records.iter().map(|record| record.released).max().unwrap_or(0);
    let mut times: Vec<u64> = records.iter().map(|record| record.released - record.asked).collect();
    times.sort_unstable();
    let pairs = records.len() as f64;
    Uncontended {
        pairs,
        per_second: pairs / ((end - begin) as f64 / 1e9),
        mean_us: times.iter().sum::<u64>() as f64 / pairs / 1e3,
        p50_us: quantile(&times, 0.5) / 1e3,
        p99_us: quantile(&times, 0.99) / 1e3,
    }
}

/// Figures of pairs on one lock.
#[derive(Debug)]
pub(crate) struct Contended {
    pub(crate) pairs: f64,
    pub(crate) per_second: f64,
    /// How often per second the lock passed to another owner.
    pub(crate) changes_per_second: f64,
    pub(crate) changes: f64,
    pub(crate) longest_wait_ms: f64,
    /// The largest number of pairs of a worker divided by the smallest.
    pub(crate) unfairness: f64,
    pub(crate) gap_p50_us: f64,
    pub(crate) gap_p99_us: f64,
    /// How often two owners held the lock at once.
    pub(crate) overlaps: f64,
}

/// Computes the figures of `workers` over `nanos`. Workers may have no pairs.
pub(crate) fn contended(
    records: &mut [Record],
    workers: usize,
    nanos: u64,
    owner: impl Fn(&Record) -> u64,
) -> Contended {
    records.sort_unstable_by_key(|record| record.acquired);
    let begin = records.iter().map(|record| record.asked).min().unwrap_or(0);
    let end = begin + nanos;
    let inside: Vec<&Record> = records.iter().filter(|record| record.released <= end).collect();
    let mut gaps = Vec::new();
    let mut overlaps = 0;
    for pair in inside.windows(2) {
        overlaps += usize::from(pair[1].acquired < pair[0].releasing);
        if owner(pair[0]) != owner(pair[1]) {
            gaps.push(pair[1].acquired.saturating_sub(pair[0].releasing));
        }
    }
    gaps.sort_unstable();
    let seconds = nanos as f64 / 1e9;
    let waits = records.iter().map(|record| record.acquired - record.asked);
    Contended {
        pairs: records.len() as f64,
        per_second: inside.len() as f64 / seconds,
        changes_per_second: gaps.len() as f64 / seconds,
        changes: gaps.len() as f64,
        longest_wait_ms: waits.max().unwrap_or(0) as f64 / 1e6,
        unfairness: unfairness(&inside, workers),
        gap_p50_us: quantile(&gaps, 0.5) / 1e3,
        gap_p99_us: quantile(&gaps, 0.99) / 1e3,
        overlaps: overlaps as f64,
    }
}

/// Returns the largest number of pairs that held at once.
pub(crate) fn most_at_once(records: &[Record]) -> f64 {
    let begins = records.iter().map(|record| (record.acquired, 1));
    let ends = records.iter().map(|record| (record.releasing, -1));
    let mut changes: Vec<(u64, i32)> = begins.chain(ends).collect();
    changes.sort_unstable();
    let running = changes.iter().scan(0, |held, (_, change)| {
        *held += change;
        Some(*held)
    });
    f64::from(running.max().unwrap_or(0))
}

/// Returns the sorted waits that begin `warm_up` nanoseconds after the first or later.
pub(crate) fn waits_after(records: &[Record], warm_up: u64) -> Vec<u64> {
    let begin = records.iter().map(|record| record.asked).min().unwrap_or(0) + warm_up;
    let later = records.iter().filter(|record| record.asked >= begin);
    let mut waits: Vec<u64> = later.map(|record| record.acquired - record.asked).collect();
    waits.sort_unstable();
    waits
}

fn unfairness(records: &[&Record], workers: usize) -> f64 {
    let mut shares: HashMap<u64, f64> = HashMap::new();
    for record in records {
        *shares.entry(record.worker).or_default() += 1.0;
    }
    let largest = shares.values().copied().fold(0.0, f64::max);
    let smallest = shares.values().copied().fold(f64::INFINITY, f64::min);
    if shares.len() < workers { f64::INFINITY } else { largest / smallest }
}
