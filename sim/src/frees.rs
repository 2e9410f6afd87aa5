//! The times in which no server has a lock that somebody waits for.
//!
//! A history does not show when a lock is free. The servers of the simulation do: each looks at the
//! awaited locks after every request. So a wait beside a free lock is seen, whoever else may have
//! held the lock by what the history shows.

use crate::deployment::Deployment;
use crate::plan::Layout;
use crate::record::{Event, Record};
use crate::system::{Nanos, now};
use leasehold_testserver::core::Core;
use simulated::net::ServerId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A call by worker and attempt.
type Call = (usize, u64);

/// A lock that somebody waits for.
#[derive(Default)]
struct Awaited {
    callers: BTreeSet<Call>,
    /// The servers that have the lock, replicas and former masters included.
    servers: BTreeSet<ServerId>,
    /// Since when no server has had the lock.
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

/// Begins a run with these servers.
///
/// With a majority lock, a server may keep the lock for an attempt that failed at the others. So
/// these locks are not watched.
pub fn watch(deployment: &Deployment, layout: Layout) {
    let deployment = (layout != Layout::Five).then(|| deployment.clone());
    FREES.set(Frees { deployment, ..Frees::default() });
}

/// Notes that a call begins to wait, or that it has ended.
pub fn note(worker: usize, record: &Record) {
    let call = (worker, record.attempt);
    match &record.event {
        Event::Asks(request) if request.max_wait > 0 && request.capacity() == 1 => {
            begin(&request.lock, call);
        }
        Event::Granted { .. } | Event::Done | Event::Refused | Event::Failed(_) => end(call),
        _ => {}
    }
}

fn begin(lock: &str, call: Call) {
    let Some(deployment) = FREES.with_borrow(|frees| frees.deployment.clone()) else { return };
    let is_new = FREES.with_borrow_mut(|frees| {
        frees.calls.insert(call, lock.to_owned());
        let awaited = frees.awaited.entry(lock.to_owned()).or_default();
        awaited.callers.insert(call) && awaited.callers.len() == 1
    });
    if is_new {
        let servers = deployment.servers();
        let has = servers.iter().filter(|it| it.has(lock)).map(|it| it.id).collect();
        FREES.with_borrow_mut(|frees| {
            let awaited = frees.awaited.get_mut(lock).expect("it has a caller");
            awaited.servers = has;
            awaited.free_since = awaited.servers.is_empty().then(now);
        });
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
        let Frees { awaited, free, .. } = frees;
        for (lock, awaited) in awaited {
            let has = core.has(0, lock.as_bytes());
            let is_changed = match has {
                true => awaited.servers.insert(server),
                false => awaited.servers.remove(&server),
            };
            if is_changed && awaited.servers.is_empty() {
                awaited.free_since = Some(now());
            } else if let Some(since) = awaited.free_since.take_if(|_| has) {
                free.entry(lock.clone()).or_default().push((since, now()));
            }
        }
    });
}

/// Ends the run. Returns the times in which each lock was free while somebody waited for it, or
/// `None` if that is not known.
pub fn all() -> Option<BTreeMap<String, Vec<(Nanos, Nanos)>>> {
    let Frees { deployment, awaited, mut free, .. } = FREES.take();
    deployment?;
    for (lock, awaited) in awaited {
        free.entry(lock).or_default().extend(awaited.free_since.map(|since| (since, now())));
    }
    Some(free)
}
