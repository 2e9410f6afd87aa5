//! One connection that many threads share, and the line of requests before it.
//!
//! Who brings a request and finds the lane free *leads*: has all that is queued
//! written in one write and reads the replies in order (`wire.rs`). Everyone else
//! queues and sleeps. With its own reply the leader hands the lead to one who waits: it
//! has what it came for, and the next answer may be slow.
//!
//! Requests that nobody waits for are *owed*. Whoever brings one to a lane that is
//! free, or leaves one where only such are queued, *posts* them: writes them and leaves
//! the replies unread, for the next leader or, if none comes soon, for the reaper
//! (`pool.rs`). What cannot be posted, because there is no connection or because much
//! is unread already, is led by the reaper.
//!
//! Requests of one lane reach the server in the order in which they were queued.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::conn::Timeouts;
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Failure, Link, Outcome, Request, Slot, Stage, Woken};
use crate::script::LaneId;
use crate::sync::Mutex;
use crate::time::Moment;
use crate::wire::Wire;

#[cfg(all(test, leasehold_model))]
mod model;

/// How many requests one write takes along.
const BATCH: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 128 };

/// One connection and its line.
pub(crate) struct Lane {
    id: LaneId,
    link: Arc<Link>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Request>,
    /// How many requests the leader has taken and not finished with.
    taken: usize,
    /// What the leader needs; absent while somebody leads.
    wire: Option<Box<Wire>>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lane").field(&self.id).finish()
    }
}

impl Lane {
    pub(crate) fn new(id: LaneId, link: Arc<Link>, timeouts: Timeouts) -> Lane {
        let wire = Some(Box::new(Wire::new(id, Arc::clone(&link), timeouts)));
        Lane { id, link, state: Mutex::new(State { queue: VecDeque::new(), taken: 0, wire }) }
    }

    /// Connects, if it is not connected.
    pub(crate) fn connect(&self) -> Result<()> {
        let mut lead = Lead::take(self);
        let wire = lead.as_mut().and_then(|lead| lead.wire.as_deref_mut());
        wire.map_or(Ok(()), Wire::connect)
    }

    /// Queues a request. Does no I/O: call [`Lane::wait`] or [`Lane::post`], or have it
    /// served.
    pub(crate) fn queue(&self, request: Request) {
        self.state.lock().queue.push_back(request);
    }

    /// Queues a request if nobody leads here.
    pub(crate) fn queue_if_free(&self, request: Request) -> std::result::Result<(), Request> {
        let mut state = self.state.lock();
        if state.wire.is_none() || !state.queue.is_empty() {
            return Err(request);
        }
        state.queue.push_back(request);
        Ok(())
    }

    pub(crate) fn id(&self) -> LaneId {
        self.id
    }

    /// How many requests nobody has taken yet.
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// How many requests would come before another.
    pub(crate) fn load(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.taken
    }

    /// Since when replies have been left unread, if some have and nobody leads.
    pub(crate) fn unread_since(&self) -> Option<Moment> {
        self.state.lock().wire.as_ref()?.unread_since()
    }

    /// Waits for a queued request, and leads if nobody else does. `give_up` after
    /// which it is taken back from the line, if it still stands there.
    pub(crate) fn wait(&self, slot: &Arc<Slot>, give_up: Moment) -> Outcome {
        loop {
            if let Some(lead) = Lead::take(self) {
                lead.serve(Some(slot));
            }
            match slot.sleep(give_up) {
                Woken::Done(outcome) => return outcome,
                Woken::Lead => {}
                Woken::TooLate if self.take_back(slot) => {
                    // The lead may have been offered to it in this very moment.
                    self.post();
                    return Err(Failure { error: all_busy(), written: false });
                }
                Woken::TooLate => slot.set_taken_unless_done(),
            }
        }
    }

    /// Leads until all is answered, or somebody else does.
    pub(crate) fn serve(&self) {
        if let Some(lead) = Lead::take(self) {
            lead.serve(None);
        }
    }

    /// If nobody leads, tells the next in line, or writes what is owed there, if that
    /// can be done without waiting for anything.
    pub(crate) fn post(&self) {
        drop(Lead::take(self));
    }

    fn take_back(&self, slot: &Arc<Slot>) -> bool {
        let mut state = self.state.lock();
        let mine = |r: &Request| r.slot().is_some_and(|s| Arc::ptr_eq(s, slot));
        let at = state.queue.iter().position(mine);
        at.and_then(|at| state.queue.remove(at)).is_some()
    }
}

fn all_busy() -> Error {
    Error::new(ErrorKind::Timeout, "all connections were busy for as long as it could wait")
}

/// The lead of a lane, given back when dropped.
struct Lead<'a> {
    lane: &'a Lane,
    /// Always there, but at the end of the drop.
    wire: Option<Box<Wire>>,
    /// In the middle of an exchange.
    busy: bool,
}

/// What has to be done for a lane that nobody leads any more.
enum Left {
    Nothing,
    /// What was just taken from the line is to be posted.
    Post,
    Unread,
    Deserted,
}

impl<'a> Lead<'a> {
    fn take(lane: &'a Lane) -> Option<Lead<'a>> {
        let wire = lane.state.lock().wire.take()?;
        Some(Lead { lane, wire: Some(wire), busy: false })
    }

    /// Serves the line: a caller until its own request is done, the reaper until nothing
    /// is left, or somebody else can go on, or the connection is gone.
    fn serve(mut self, own: Option<&Slot>) {
        loop {
            let lane = self.lane;
            let Some(wire) = self.wire.as_deref_mut() else { return };
            if lane.take_batch(wire) == 0 && wire.unread_since().is_none() {
                return;
            }
            self.busy = true;
            wire.exchange();
            self.busy = false;
            let relieved = match own {
                Some(slot) => slot.is_done(),
                None => !wire.is_connected() || lane.somebody_waits(),
            };
            if relieved {
                return;
            }
        }
    }

    /// Gives the lead back and looks at the line in one step: a request that is
    /// queued now finds the lead free, or is found here.
    fn leave(&mut self) -> Left {
        let mut state = self.lane.state.lock();
        state.taken = 0;
        let Some(mut wire) = self.wire.take() else { return Left::Nothing };
        if self.busy {
            wire.abandon();
        }
        let left = state.left(&wire);
        match left {
            Left::Post => {
                state.queue.drain(..).for_each(|request| wire.take(request));
                self.wire = Some(wire);
            }
            Left::Nothing | Left::Unread | Left::Deserted => state.wire = Some(wire),
        }
        left
    }

    /// Posts what was taken from the line; what cannot be posted goes back there.
    fn post(&mut self) {
        let lane = self.lane;
        let Some(mut back) = self.wire.as_deref_mut().map(Wire::post) else { return };
        if !back.is_empty() {
            let mut state = lane.state.lock();
            back.append(&mut state.queue);
            state.queue = back;
        }
    }
}

impl Drop for Lead<'_> {
    /// Also when a thread that leads unwinds: the line must not stand still.
    fn drop(&mut self) {
        loop {
            match self.leave() {
                Left::Nothing => return,
                Left::Post => self.post(),
                Left::Unread => return self.lane.link.observer.unread(self.lane.id),
                Left::Deserted => return self.lane.link.observer.deserted(self.lane.id),
            }
        }
    }
}

impl State {
    /// Who leads next is told; if nobody does, what is to be done.
    fn left(&self, wire: &Wire) -> Left {
        match self.first_waiter() {
            Some(next) => {
                next.set(Stage::Lead);
                Left::Nothing
            }
            None if self.queue.is_empty() && wire.unread_since().is_none() => Left::Nothing,
            None if self.queue.is_empty() => Left::Unread,
            None if wire.can_post(self.queue.len()) => Left::Post,
            None => Left::Deserted,
        }
    }

    fn first_waiter(&self) -> Option<&Arc<Slot>> {
        self.queue.iter().find_map(Request::slot)
    }
}

impl Lane {
    /// Moves the head of the line to the wire; how much.
    fn take_batch(&self, wire: &mut Wire) -> usize {
        let mut state = self.state.lock();
        let size = state.queue.len().min(BATCH);
        state.taken = size;
        state.queue.drain(..size).for_each(|request| wire.take(request));
        size
    }

    fn somebody_waits(&self) -> bool {
        self.state.lock().first_waiter().is_some()
    }
}
