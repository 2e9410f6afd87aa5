//! A hold on a majority of several servers.
//!
//! Each server has a hold of its own with its own lease, which its client's watchdog renews. A
//! [`QuorumHold`] is valid while a quorum of these holds is valid, more than half of all servers.
//! So its remaining lease is the shortest among the `quorum` longest remaining leases. Each lease
//! starts at the moment before its command was sent, and is shortened by a margin.
//!
//! States: valid, then lost or ended, both final. The first check that finds fewer than a quorum
//! of valid holds marks the quorum hold as lost and releases the remaining holds. A late grant is
//! adopted while the quorum hold is valid, and gets the lease and the renewal that the other holds
//! got meanwhile; afterwards a late grant is released.

use std::mem;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::acquire::HoldHandle;
use crate::error::{Error, LostReason, Result};
use crate::events::LossCall;
use crate::transport::pool::context;
use crate::util::clock::{self, Moment};
use crate::util::sync::{Mutex, Parker};
use crate::util::system::process_id;

/// The interval at which a release checks whether an extension still uses the hold.
const EXTENSION_POLL: Duration = Duration::from_millis(1);

/// The holds on several servers, of which a quorum must be valid.
#[derive(Debug)]
pub(crate) struct QuorumHold {
    quorum: usize,
    /// Whether the hold is lost: a copy of `QuorumState::lost` that needs no mutex.
    lost: AtomicBool,
    /// The process that took the holds.
    process: u32,
    state: Mutex<QuorumState>,
}

#[derive(Debug)]
struct QuorumState {
    holds: Vec<Arc<HoldHandle>>,
    /// Set once, by the first check that finds the majority lost.
    lost: Option<LostReason>,
    /// The end of the longest extension since the grant. Late grants are extended to it too.
    extended_until: Moment,
    renewed: bool,
    /// The calls for the loss of the majority, in the order of their registration.
    on_lost: Vec<LossCall>,
    /// Whether the events thread of a client counts the valid holds after a loss on its server.
    counts_losses: bool,
}

/// A panic leaves the state consistent: callbacks run without a mutex held
/// (`tests/isolated/panics.rs`).
impl RefUnwindSafe for QuorumHold {}

impl QuorumHold {
    pub(crate) fn new(quorum: usize, holds: Vec<HoldHandle>) -> QuorumHold {
        let holds = holds.into_iter().map(Arc::new).collect();
        let state = QuorumState {
            holds,
            lost: None,
            extended_until: Moment::START,
            renewed: false,
            on_lost: Vec::new(),
            counts_losses: false,
        };
        QuorumHold {
            quorum,
            lost: AtomicBool::new(false),
            process: process_id(),
            state: Mutex::new(state),
        }
    }

    /// Fails in a forked child. A thread of the parent may have left a mutex locked there.
    pub(crate) fn check_process(&self) -> Result<()> {
        context::check_process(self.process)
    }

    pub(crate) fn quorum(&self) -> usize {
        self.quorum
    }

    /// Returns whether the majority is valid. Once false, always false.
    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Fails once the majority is lost.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_valid() {
            Ok(())
        } else {
            Err(Error::lost(self.lost_reason(), "the majority was lost"))
        }
    }

    /// Returns how long a quorum of the holds stays valid. Releases the holds once that is zero.
    pub(crate) fn remaining(&self) -> Duration {
        if self.lost.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let left = remaining(&self.state.lock().holds, self.quorum);
        if left.is_zero() {
            self.lose(LostReason::Expired);
        }
        left
    }

    /// Returns the reason of the loss; `Expired` while the majority is not lost.
    pub(crate) fn lost_reason(&self) -> LostReason {
        self.state.lock().lost.unwrap_or(LostReason::Expired)
    }

    /// Marks the quorum hold as lost and releases all holds on the executor.
    pub(crate) fn lose(&self, reason: LostReason) {
        let rest = self.take_lost(reason);
        self.lost.store(true, Ordering::Release);
        if let Some(executor) = rest.first().map(|hold| hold.executor()) {
            executor.run(move || drop(rest));
        }
    }

    /// Adds a late grant while the majority is valid; returns the hold otherwise.
    ///
    /// Without late grants the loss of any server of the first majority would end the hold.
    ///
    /// The caller drops the returned hold, which releases it, without a mutex held.
    pub(crate) fn adopt(self: &Arc<Self>, hold: HoldHandle) -> Option<HoldHandle> {
        let mut state = self.state.lock();
        if self.lost.load(Ordering::Acquire) || remaining(&state.holds, self.quorum).is_zero() {
            return Some(hold);
        }
        let hold = Arc::new(hold);
        state.holds.push(Arc::clone(&hold));
        let (extended_until, renewed) = (state.extended_until, state.renewed);
        let counts_losses = state.counts_losses;
        drop(state);
        if counts_losses {
            self.count_after_loss(&hold);
        }
        if renewed {
            hold.keep_renewed();
        }
        let lease = clock::now().until(extended_until);
        if hold.remaining() < lease {
            let (executor, hold) = (hold.executor(), Arc::downgrade(&hold));
            // A weak reference, so that the end of the quorum hold does not wait for an extension
            // that has not started. If the extension fails, the hold keeps its granted lease.
            executor.run(move || {
                if let Some(hold) = hold.upgrade() {
                    drop(hold.extend(lease, hold.response_limit()));
                }
            });
        }
        None
    }

    /// Registers a call for the loss of the majority. Queues the call after an earlier loss.
    ///
    /// After the first registration, each reported loss on a server causes a count of the valid
    /// holds.
    pub(crate) fn on_lost(self: &Arc<Self>, call: LossCall) {
        let mut state = self.state.lock();
        if state.lost.is_some() {
            return call.queue();
        }
        state.on_lost.push(call);
        let counts_losses = mem::replace(&mut state.counts_losses, true);
        let holds = if counts_losses { Vec::new() } else { state.holds.clone() };
        drop(state);
        for hold in &holds {
            self.count_after_loss(hold);
        }
        // Notices a loss of the majority that happened before the registration.
        self.is_valid();
    }

    /// Checks the majority after the loss of `hold`, on an events thread.
    fn count_after_loss(self: &Arc<Self>, hold: &HoldHandle) {
        let quorum_hold = Arc::downgrade(self);
        hold.on_lost(move || {
            if let Some(quorum_hold) = quorum_hold.upgrade() {
                quorum_hold.is_valid();
            }
        });
    }

    /// Wakes `parker` at the end of any of the holds.
    ///
    /// Keeps no handle: callers that wait for the hold watch it too, and a handle that such a
    /// caller kept would delay the release by the holder.
    pub(crate) fn watch(&self, parker: &Arc<Parker>) {
        for hold in &self.state.lock().holds {
            hold.hold().watch(parker);
        }
    }

    fn all(&self) -> Vec<Arc<HoldHandle>> {
        self.state.lock().holds.clone()
    }

    /// Returns all holds for an extension, which late grants get too.
    pub(crate) fn all_to_extend(&self, lease: Duration) -> Vec<Arc<HoldHandle>> {
        let mut state = self.state.lock();
        state.extended_until = state.extended_until.max(clock::now() + lease);
        state.holds.clone()
    }

    /// Starts the renewal of all holds and of late grants.
    pub(crate) fn keep_renewed(&self) {
        self.state.lock().renewed = true;
        for hold in &self.all() {
            hold.keep_renewed();
        }
    }

    /// Returns whether any hold would end before such a lease.
    pub(crate) fn needs_extension(&self, lease: Duration) -> bool {
        self.all().iter().any(|hold| hold.needs_extension(lease))
    }

    /// Sets the reason of the loss, queues its calls and removes all holds.
    ///
    /// The reason is `Gone` if a server no longer has one of the holds, otherwise `HeldTooLong` if
    /// one of them expired after its limit.
    fn take_lost(&self, reason: LostReason) -> Vec<Arc<HoldHandle>> {
        let mut state = self.state.lock();
        let holds = mem::take(&mut state.holds);
        // A hold that is still valid has the reason of a later expiry.
        let over = holds.iter().filter(|hold| hold.remaining().is_zero());
        let has = |reason| over.clone().any(|hold| hold.hold().lost_reason() == reason);
        let stronger = [LostReason::Gone, LostReason::HeldTooLong].into_iter().find(|it| has(*it));
        state.lost.get_or_insert(match reason {
            LostReason::Expired => stronger.unwrap_or(reason),
            LostReason::Gone | LostReason::HeldTooLong => reason,
        });
        state.on_lost.drain(..).for_each(LossCall::queue);
        holds
    }

    /// Removes and returns all holds, for their release. Later losses do not count.
    pub(crate) fn take(&self) -> Vec<Arc<HoldHandle>> {
        let mut state = self.state.lock();
        state.on_lost.clear();
        mem::take(&mut state.holds)
    }
}

impl Drop for QuorumHold {
    /// Leaks the holds in a forked child: their drop waits for mutexes that a thread of the
    /// parent may have left locked.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            mem::forget(mem::take(&mut self.state.get_mut().holds));
        }
    }
}

/// Blocks until no extension uses the hold, and returns it.
pub(crate) fn unshared(mut hold: Arc<HoldHandle>) -> HoldHandle {
    loop {
        match Arc::try_unwrap(hold) {
            Ok(hold) => return hold,
            Err(shared) => hold = shared,
        }
        Parker::default().park_until(clock::now() + EXTENSION_POLL);
    }
}

/// Returns the shortest among the `quorum` longest remaining leases.
fn remaining(holds: &[Arc<HoldHandle>], quorum: usize) -> Duration {
    let mut left: Vec<_> = holds.iter().map(|hold| hold.remaining()).collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    left.get(quorum - 1).copied().unwrap_or_default()
}
