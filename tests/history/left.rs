//! What may be left on the servers, as far as the names of keys and channels tell.

use crate::fault::Fault;
use crate::kind::{CAPACITY, Kind};
use crate::plan::Plan;
use std::time::Duration;

/// The prefix of the counters of fencing tokens, which may stay in Redis.
const COUNTERS: &str = "redisson_lock_token:";

/// The prefix of fair queues. Killed waiters stay there until another caller comes.
const QUEUES: &str = "redisson_lock_";

/// The prefix of the queues of queue locks. Killed waiters stay there until another caller comes.
const WAITERS: &str = "leasehold_queue:";

/// The prefix of the clients that wait for queue locks, which stay for as long.
const CLIENTS: &str = "leasehold_alive:";

/// The prefix of the records of leaders. That of a killed leader stays for two leases.
const LEADERS: &str = "leasehold_leader:";

/// The prefixes of the keys of semaphores. Expired permits of killed workers stay there until
/// another caller comes.
const PERMITS: &str = "semaphore-";
const EXPIRIES: &str = "{semaphore-";

/// The prefix of plain semaphores, whose permits the check of the history counts.
const COUNTS: &str = "count-";

/// The prefix of latches, which stay closed if no thread counts down, and that of their rounds.
const LATCHES: &str = "latch-";
const ROUNDS: &str = "leasehold_round:";

/// The prefix of request records, which stay for ten minutes if a request was repeated.
const REQUESTS: &str = "leasehold_request:";

/// The time within which idle workers leave no lock and no subscription.
const IDLE: Duration = Duration::from_secs(8);

/// Returns the time within which idle workers leave nothing. The locks of killed workers last for
/// a lease.
pub fn idle_time(plan: &Plan) -> Duration {
    let longest = plan.work.leases.into_iter().max().unwrap_or_default();
    IDLE + if plan.faults.contains(&Fault::KillWorker) { longest } else { Duration::ZERO }
}

/// Whether this key may exist when the workers are idle but still run.
pub fn is_kept_by_idle_workers(plan: &Plan, key: &str) -> bool {
    // After the last hold has expired, nobody deletes the keys of the waiting clients.
    let expires =
        plan.faults != [Fault::Quiet] || plan.work.kept_to_the_end > 0 || plan.work.limited > 0;
    let some =
        [COUNTERS, QUEUES, LATCHES, ROUNDS, REQUESTS, WAITERS, CLIENTS, LEADERS, PERMITS, EXPIRIES];
    let kept = if expires { &some[..] } else { &some[..4] };
    kept.iter().any(|prefix| key.starts_with(prefix))
}

/// Whether idle workers must not be subscribed to this channel.
///
/// Listeners keep a subscription to the channel of a lock for half a poll interval.
pub fn is_left_by_idle_workers(plan: &Plan, channel: &str) -> bool {
    channel.starts_with("redisson_") && plan.work.poll_interval < IDLE
}

/// Whether this key may exist after all workers have ended, and all locks were acquired once.
pub fn is_kept_by_ended_workers(key: &str) -> bool {
    [COUNTERS, REQUESTS, LATCHES, ROUNDS].iter().any(|prefix| key.starts_with(prefix))
}

/// Whether anybody may still be subscribed to this channel after all workers have ended.
pub fn is_kept_channel(channel: &str) -> bool {
    channel.starts_with("__")
}

/// Whether this key is no semaphore, or a semaphore with permits in use. `value` reads its value.
///
/// The check of the history knows how many permits of a plain semaphore have to be free.
pub fn is_used(key: &str, value: impl FnOnce() -> Option<String>) -> bool {
    let is_full = || value() == Some(CAPACITY.to_string());
    !(key.starts_with(COUNTS) || (key.starts_with(PERMITS) && is_full()))
}

/// Whether the value of this key is the count of a plain semaphore or of a latch.
pub fn is_count(key: &str) -> bool {
    key.starts_with(COUNTS) || key.starts_with(LATCHES)
}

/// Whether no permit of a plain semaphore is in use, if this is one with this count.
pub fn is_free(name: &str, count: i64) -> bool {
    name.starts_with(LATCHES) || count == i64::from(CAPACITY)
}

/// Returns the lock that another caller has to acquire before this key is gone: a queue lock that
/// clients have waited for, or a semaphore with permits in use, expired ones included.
pub fn abandoned(key: &str) -> Option<(Kind, String)> {
    if let Some(name) = key.strip_prefix(WAITERS).or(key.strip_prefix(CLIENTS)) {
        return Some((Kind::Queued, name.trim_matches(['{', '}']).to_owned()));
    }
    let name = key.starts_with(EXPIRIES).then_some(key)?;
    let name = name.strip_prefix('{')?.strip_suffix("}:timeout")?;
    Some((Kind::Semaphore, name.to_owned()))
}

#[test]
fn keys_tell_of_abandoned_locks_and_of_permits_in_use() {
    let queued = Some((Kind::Queued, "queued-7".to_owned()));
    assert_eq!(abandoned("leasehold_queue:{queued-7}"), queued);
    assert_eq!(abandoned("leasehold_alive:{queued-7}"), queued);
    let semaphore = Some((Kind::Semaphore, "semaphore-1".to_owned()));
    assert_eq!(abandoned("{semaphore-1}:timeout"), semaphore);
    assert_eq!(abandoned("semaphore-1"), None);

    let value = |free: u32| move || Some(free.to_string());
    assert!(is_used("semaphore-1", value(CAPACITY - 1)) && is_used("plain-1", value(CAPACITY)));
    assert!(!is_used("semaphore-1", value(CAPACITY)) && !is_used("count-1", value(0)));
}
