//! The times in which no server has a lock that somebody waits for.
//!
//! A history does not show when a lock is free. The servers of the simulation do: each looks at the
//! awaited locks after every request. So a wait beside a free lock is seen, whoever else may have
//! held the lock by what the history shows.
//!
//! Not watched: majority locks, which a server may keep for an attempt that failed at the others;
//! fair locks, which a live waiter that does not answer may leave free for a while; semaphores.

use crate::deployment::Deployment;
use crate::plan::Layout;
use crate::record::{Event, Record, Request, millis};
use crate::system::{Nanos, now};
use leasehold_testserver::core::Core;
use simulated::net::ServerId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The time in milliseconds that stands for a key that does not expire.
const LONG: u64 = 1_000_000_000;

/// A call by worker and attempt.
type Call = (usize, u64);

/// A lock that somebody waits for.
#[derive(Default)]
struct Awaited {
    callers: BTreeSet<Call>,
    /// The moment at which the lock expires on each server that has it, replicas included.
    expiries: BTreeMap<ServerId, Nanos>,
    /// The last moment at which a serving server had the lock.
    kept_until: Nanos,
    /// Since when no serving server has had the lock.
    free_since: Option<Nanos>,
}

/// The awaited locks, and the times in which locks were free.
#[derive(Default)]
struct Frees {
    deployment: Option<Deployment>,
    awaited: BTreeMap<String, Awaited>,
    calls: BTreeMap<Call, String>,
    free: BTreeMap<String, Vec<(Nanos, Nanos)>>,
}

thread_local! {
    static FREES: RefCell<Frees> = RefCell::default();
}

/// Whether the waits of a call are bounded by what the servers show.
fn is_watched(request: &Request) -> bool {
    request.capacity() == 1 && !request.is_latch() && !request.is_fair()
}

/// Begins a run with these servers.
pub fn watch(deployment: &Deployment, layout: Layout) {
    let deployment = (layout != Layout::Five).then(|| deployment.clone());
    FREES.set(Frees { deployment, ..Frees::default() });
}

/// Notes that a call begins to wait, or that it has ended.
pub fn note(worker: usize, record: &Record) {
    let call = (worker, record.attempt);
    match &record.event {
        Event::Asks(request) if request.max_wait > 0 && is_watched(request) => {
            begin(&request.lock, call);
        }
        Event::Granted { .. } | Event::Done | Event::Refused | Event::Failed(_) => end(call),
        _ => {}
    }
}

/// Notes that a worker has been killed.
pub fn note_killed(worker: usize) {
    let calls = FREES.with_borrow(|frees| {
        frees.calls.keys().copied().filter(|call| call.0 == worker).collect::<Vec<Call>>()
    });
    for call in calls {
        end(call);
    }
}

fn begin(lock: &str, call: Call) {
    let Some(deployment) = FREES.with_borrow(|frees| frees.deployment.clone()) else { return };
    let is_new = FREES.with_borrow_mut(|frees| {
        frees.calls.insert(call, lock.to_owned());
        let unknown = || Awaited { kept_until: now(), ..Awaited::default() };
        let awaited = frees.awaited.entry(lock.to_owned()).or_insert_with(unknown);
        awaited.callers.insert(call);
        awaited.callers.len() == 1
    });
    if is_new {
        for server in deployment.servers() {
            // Each server looks.
            server.with_core(|_| ());
        }
    }
}

fn end(call: Call) {
    FREES.with_borrow_mut(|frees| {
        let Some(lock) = frees.calls.remove(&call) else { return };
        let awaited = frees.awaited.get_mut(&lock).expect("it has a caller");
        awaited.callers.remove(&call);
        if awaited.callers.is_empty() {
            let since = frees.awaited.remove(&lock).and_then(|awaited| awaited.free_since);
            frees.free.entry(lock).or_default().extend(since.map(|since| (since, now())));
        }
    });
}

/// Looks at the awaited locks of a server that has just done something.
pub fn look(server: ServerId, core: &mut Core) {
    FREES.with_borrow_mut(|frees| {
        let Frees { deployment: Some(deployment), awaited, free, .. } = frees else { return };
        if awaited.is_empty() {
            return;
        }
        let serving = deployment.serving();
        for (lock, awaited) in awaited {
            match core.remaining(0, lock.as_bytes()) {
                Some(left) => {
                    let left = u64::try_from(left).unwrap_or(0).min(LONG);
                    awaited.expiries.insert(server, now() + millis(left));
                }
                None => {
                    awaited.expiries.remove(&server);
                }
            }
            let kept = serving.iter().filter_map(|it| awaited.expiries.get(&it.id)).max();
            if let Some(expiry) = kept {
                awaited.kept_until = *expiry;
                if let Some(since) = awaited.free_since.take() {
                    free.entry(lock.clone()).or_default().push((since, now()));
                }
            } else if awaited.free_since.is_none() {
                // Nobody may have asked the server since the lock expired.
                awaited.free_since = Some(awaited.kept_until.min(now()));
            }
        }
    });
}

/// Ends the run. Returns the times in which each lock was free while somebody waited for it.
pub fn all() -> BTreeMap<String, Vec<(Nanos, Nanos)>> {
    let Frees { awaited, mut free, .. } = FREES.take();
    for (lock, awaited) in awaited {
        free.entry(lock).or_default().extend(awaited.free_since.map(|since| (since, now())));
    }
    free
}
