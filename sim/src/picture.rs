//! A run as events of locks, of which `leasehold timeline` draws a picture.

use crate::checks::{Affected, Attempt, Disturbance, History, Outcome};
use crate::record::{End, Verb};
use crate::system::Nanos;
use serde_json::{Value, json};

/// Prints the events at this lock, or at all locks, as `leasehold watch --json` does.
pub fn print(history: &History, lock: Option<&str>) {
    let end = history.disturbances.iter().map(|it| it.felt_until).max().unwrap_or(0);
    let is_shown = |attempt: &&Attempt| {
        let verb = attempt.request.verb;
        matches!(verb, Verb::Acquire | Verb::Join | Verb::Lead)
            && lock.is_none_or(|lock| attempt.request.lock == lock)
    };
    for (number, attempt) in history.attempts.iter().filter(is_shown).enumerate() {
        for event in events(history, attempt, number, end) {
            println!("{event}");
        }
    }
    for event in history.disturbances.iter().flat_map(fault) {
        println!("{event}");
    }
}

fn seconds(at: Nanos) -> f64 {
    at as f64 / 1e9
}

/// Returns the events of one call. `end` is the end of the run, for what nobody saw end.
fn events(
    history: &History,
    attempt: &Attempt,
    number: usize,
    end: Nanos,
) -> impl Iterator<Item = Value> {
    let gone = history.workers[attempt.worker].killed.unwrap_or(end);
    let mut moments = vec![(attempt.asked, "waiting")];
    match &attempt.outcome {
        Outcome::Unknown => moments.push((gone, "left")),
        Outcome::Refused(at) | Outcome::Failed(at) | Outcome::Done(at) => {
            moments.push((*at, "left"));
        }
        Outcome::Held(hold) => {
            moments.push((hold.granted, "acquired"));
            moments.push(match (hold.lost, hold.ended) {
                (Some(at), _) | (None, Some((at, End::Lost))) => (at, "lost"),
                (None, Some((at, _))) => (at, "released"),
                (None, None) => (gone, "expired"),
            });
        }
    }
    let event = move |(at, event): (Nanos, &str)| {
        json!({
            "at": seconds(at),
            "name": attempt.request.lock,
            "event": event,
            "owner": number.to_string(),
            "pid": attempt.worker,
            "program": "worker",
        })
    };
    moments.into_iter().map(event)
}

/// Returns the events of a fault: an outage for all workers, or a mark.
fn fault(disturbance: &Disturbance) -> Vec<Value> {
    let Disturbance { name, from, until, affected, .. } = disturbance;
    let pid = if let Affected::Worker(worker) = affected { Some(worker) } else { None };
    let event = |at: Nanos, event: &str| json!({ "at": seconds(at), "name": "", "event": event, "text": name, "pid": pid });
    match affected {
        _ if name == "Quiet" => Vec::new(),
        Affected::All => vec![event(*from, "outage"), event(*until, "recovered")],
        _ => vec![event(*from, "mark")],
    }
}
