//! What workers leave on the servers: what may be left, and what is.

use crate::fault::Fault;
use crate::kind::{CAPACITY, Kind};
use crate::plan::Plan;
use crate::system::holds_within;
use std::collections::BTreeMap;
use std::time::Duration;

/// The prefix of the counters of fencing tokens, which may stay in Redis.
const COUNTERS: &str = "redisson_lock_token:";

/// The prefix of fair queues. Killed waiters stay there until another caller comes.
const QUEUES: &str = "redisson_lock_";

/// The prefix of the queues of queue locks. Killed waiters stay there until another caller comes.
const WAITERS: &str = "leasehold_queue:";

/// The prefix of the clients that wait for queue locks, which stay for as long.
const CLIENTS: &str = "leasehold_alive:";

/// The prefix of the results of work, which are kept for a while.
const RESULTS: &str = "leasehold_once:";

/// The prefix of the records of leaders. That of a killed leader stays for two leases.
const LEADERS: &str = "leasehold_leader:";

/// The prefixes of the keys of semaphores. Expired permits of killed workers stay there until
/// another caller comes.
const PERMITS: &str = "semaphore-";
const EXPIRIES: &str = "{semaphore-";

/// The prefix of the slots of semaphores, which stay as the semaphores do.
const SLOTS: &str = "leasehold_slots:";

/// The prefix of plain semaphores, whose permits the check of the history counts.
const COUNTS: &str = "count-";

/// The prefix of latches, which stay closed if no thread counts down, and that of their rounds.
const LATCHES: &str = "latch-";
const ROUNDS: &str = "leasehold_round:";

/// The prefix of request records, which stay for ten minutes if a request was repeated.
const REQUESTS: &str = "leasehold_request:";

/// The prefix of the turns at read-write locks, which end a poll interval after the last question.
const TURNS: &str = "leasehold_turns:";

/// The time within which idle workers leave no lock and no subscription.
const IDLE: Duration = Duration::from_secs(8);

/// The time within which idle workers complete requests in the background, which do not reconnect
/// at once.
const COMPLETED: Duration = Duration::from_secs(25);

/// The time within which ended workers leave nothing.
const ENDED: Duration = Duration::from_secs(20);

/// A server, as a run looks at it.
pub trait Inspected {
    /// Returns the keys but those of the records of clients.
    fn keys(&self) -> Vec<String>;

    /// Returns the text at a key.
    fn text(&self, key: &str) -> Option<String>;

    /// Returns the channels with subscribers, sharded channels included.
    fn channels(&self) -> Vec<String>;

    /// Returns a text for each connection of the library.
    fn connections(&self) -> Vec<String>;
}

/// Returns the locks and subscriptions on the masters when the workers are idle but still run.
pub fn by_idle_workers<S: Inspected>(plan: &Plan, masters: impl Fn() -> Vec<S>) -> Vec<String> {
    // The locks of killed workers last for a lease.
    let longest = plan.work.leases.into_iter().max().unwrap_or_default();
    let lease = if plan.faults.contains(&Fault::KillWorker) { longest } else { Duration::ZERO };
    // Listeners keep a subscription to the channel of a lock for half a poll interval.
    let have_unsubscribed = plan.work.poll_interval < IDLE;
    let mut left = Vec::new();
    holds_within(IDLE + lease, || {
        let masters = masters();
        let keys = masters.iter().flat_map(|server| used_keys(server, &is_first_capacity));
        let keys = keys.filter(|key| !is_kept_by_idle_workers(plan, key));
        let channels = masters.iter().flat_map(Inspected::channels);
        let channels = channels.filter(|name| have_unsubscribed && name.starts_with("redisson_"));
        left = keys.chain(channels).map(|what| format!("idle, but there is {what}")).collect();
        left.is_empty()
    });
    left
}

/// Returns the count of each plain semaphore and latch.
///
/// Waits a while until all permits are free: idle workers complete requests without an answer in
/// the background. Killed workers may keep permits.
pub fn counts<S: Inspected>(masters: impl Fn() -> Vec<S>) -> BTreeMap<String, i64> {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    let is_count = |key: &String| key.starts_with(COUNTS) || key.starts_with(LATCHES);
    holds_within(COMPLETED, || {
        counts.clear();
        for server in masters() {
            for key in server.keys().into_iter().filter(is_count) {
                if let Some(count) = server.text(&key).and_then(|text| text.parse().ok()) {
                    counts.insert(key, count);
                }
            }
        }
        let full = i64::from(CAPACITY);
        counts.iter().all(|(name, count)| name.starts_with(LATCHES) || *count == full)
    });
    counts
}

/// Acquires every lock once after all workers have ended, and returns what is left on the masters.
///
/// `acquire` does so, with these locks too, and returns a text for each that it cannot acquire.
/// `may_be_capacity` tells whether a semaphore may have this capacity.
pub fn by_ended_workers<S: Inspected>(
    masters: &[S],
    may_be_capacity: impl Fn(&str, i64) -> bool,
    acquire: impl FnOnce(Vec<(Kind, String)>) -> Vec<String>,
) -> Vec<String> {
    let keys = masters.iter().flat_map(Inspected::keys);
    let mut left = acquire(keys.filter_map(|key| abandoned(&key)).collect());
    let mut on_servers = Vec::new();
    let kept = [COUNTERS, RESULTS, SLOTS, REQUESTS, LATCHES, ROUNDS, TURNS];
    holds_within(ENDED, || {
        on_servers.clear();
        for server in masters {
            let keys = used_keys(server, &may_be_capacity).into_iter();
            let keys = keys.filter(|key| !kept.iter().any(|prefix| key.starts_with(prefix)));
            on_servers.extend(keys.map(|key| format!("the key {key}")));
            // Servers and sentinels have channels of their own, whose names begin with `__`.
            let channels = server.channels().into_iter().filter(|name| !name.starts_with("__"));
            on_servers.extend(channels.map(|channel| format!("the channel {channel}")));
            let ours = server.connections().into_iter();
            on_servers.extend(ours.map(|client| format!("the client {client}")));
        }
        on_servers.is_empty()
    });
    left.append(&mut on_servers);
    left
}

/// Returns the keys of a server but those of semaphores without permits in use.
fn used_keys(server: &impl Inspected, may_be_capacity: &dyn Fn(&str, i64) -> bool) -> Vec<String> {
    let is_in_use = |key: &String| is_used(key, may_be_capacity, || server.text(key));
    server.keys().into_iter().filter(is_in_use).collect()
}

fn is_first_capacity(_: &str, capacity: i64) -> bool {
    capacity == i64::from(CAPACITY)
}

/// Whether this key may exist when the workers are idle but still run.
fn is_kept_by_idle_workers(plan: &Plan, key: &str) -> bool {
    // After the last hold has expired, nobody deletes the keys of the waiting clients. Nor is it
    // known whether all permits of a semaphore with another capacity are free.
    let expires = plan.faults != [Fault::Quiet]
        || plan.work.kept_to_the_end > 0
        || plan.work.limited > 0
        || plan.work.resized > 0;
    // A reader that has given up, or has got its lock another way, is announced for a while.
    let some = [
        COUNTERS, RESULTS, SLOTS, QUEUES, LATCHES, ROUNDS, TURNS, REQUESTS, WAITERS, CLIENTS,
        LEADERS, PERMITS, EXPIRIES,
    ];
    let kept = if expires { &some[..] } else { &some[..7] };
    kept.iter().any(|prefix| key.starts_with(prefix))
}

/// Whether this key is no semaphore, or a semaphore with permits in use. `value` reads its value.
///
/// The check of the history knows how many permits of a plain semaphore have to be free.
fn is_used(
    key: &str,
    may_be_capacity: &dyn Fn(&str, i64) -> bool,
    value: impl FnOnce() -> Option<String>,
) -> bool {
    let free = || value().and_then(|text| text.parse().ok());
    let is_full = || free().is_some_and(|free| may_be_capacity(key, free));
    !(key.starts_with(COUNTS) || (key.starts_with(PERMITS) && is_full()))
}

/// Returns the lock that another caller has to acquire before this key is gone: a queue lock that
/// clients have waited for, or a semaphore with permits in use, expired ones included.
fn abandoned(key: &str) -> Option<(Kind, String)> {
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

    let is_used = |key, free: u32| is_used(key, &is_first_capacity, move || Some(free.to_string()));
    assert!(is_used("semaphore-1", CAPACITY - 1) && is_used("plain-1", CAPACITY));
    assert!(!is_used("semaphore-1", CAPACITY) && !is_used("count-1", 0));
}
