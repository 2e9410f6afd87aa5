//! A look at the servers whenever a holder finds its guard valid: they must have a lease.
//!
//! The other checks see what holders see. A guard that is valid for too long breaks exclusion only
//! if another caller takes the lock meanwhile; this check sees it always.

use crate::checks::{History, Promise, Violation};
use crate::deployment::Deployment;
use crate::plan::Layout;
use crate::record::{Event, Record, Request};
use crate::system::{Nanos, now};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The servers of a run, and what its holders have found.
struct Looks {
    deployment: Deployment,
    /// The number of servers that must have a lease.
    needed: usize,
    /// The calls by worker and attempt, and their moments.
    calls: BTreeMap<(usize, u64), (Request, Nanos)>,
    /// The calls with a valid guard and without a lease, and the moment.
    without: Vec<((usize, u64), Nanos)>,
}

thread_local! {
    static LOOKS: RefCell<Option<Looks>> = const { RefCell::new(None) };
}

/// Begins a run with these servers.
pub fn watch(deployment: &Deployment, layout: Layout) {
    let needed = if layout == Layout::Five { 3 } else { 1 };
    let (calls, without) = (BTreeMap::new(), Vec::new());
    LOOKS.set(Some(Looks { deployment: deployment.clone(), needed, calls, without }));
}

/// Looks at the servers if a worker has just found a guard valid. No task runs in between.
pub fn note(worker: usize, record: &Record) {
    LOOKS.with_borrow_mut(|looks| {
        let Some(looks) = looks else { return };
        let call = (worker, record.attempt);
        match &record.event {
            Event::Asks(request) => {
                looks.calls.insert(call, (request.clone(), now()));
            }
            // An end that is recorded later than the last valid check names an earlier moment.
            Event::Valid if record.at + MOMENT > now() => {
                let has_lease = looks.calls.get(&call).is_none_or(|(it, _)| looks.have_lease(it));
                if !has_lease {
                    looks.without.push((call, now()));
                }
            }
            _ => {}
        }
    });
}

/// The time that a check of a guard takes at most, unless its task loses the processor.
const MOMENT: Nanos = 9_000;

impl Looks {
    /// Returns whether enough servers keep a lease of the lock of a call.
    fn have_lease(&self, request: &Request) -> bool {
        if request.is_counted() {
            return true;
        }
        // The leases of permits stand in one key, which has no expiry of its own.
        let key = if request.is_leased() {
            format!("{{{}}}:timeout", request.lock)
        } else {
            request.lock.clone()
        };
        let servers = self.deployment.servers();
        servers.iter().filter(|server| server.has(&key)).count() >= self.needed
    }
}

/// Ends the run. Returns a violation for each guard that was valid without a lease.
///
/// A server that lost its data, or whose clock stepped, excuses it: the holder learns of that with
/// its next renewal, as the check of overlaps demands.
pub fn violations(history: &History) -> Vec<Violation> {
    let Some(Looks { calls, without, .. }) = LOOKS.take() else { return Vec::new() };
    let found = without.iter().filter_map(|(call, at)| {
        let (request, asked) = calls.get(call)?;
        // A hold that was taken over may have been lost before.
        let lingers = request.may_linger();
        let since =
            if lingers { asked.saturating_sub(history.workers[call.0].linger) } else { *asked };
        let is_excused = history.may_have_lost_between(&request.lock, since, *at);
        let text = || format!("worker {} at {:.3} s: {request:?}", call.0, *at as f64 / 1e9);
        (!is_excused).then(|| Promise::Lease.violation(text()))
    });
    found.collect()
}
