//! Changes of a count, each of which takes effect once; so does the deletion of a result of work.
//!
//! A request has a number. Its script changes the count and writes a *request record*, a key with
//! that number, in one step. A repeated or delayed copy finds the record and changes nothing. So
//! requests of different threads need no common order.
//!
//! | end of a request | record | count |
//! | --- | --- | --- |
//! | reply to the only copy | deleted in the background | |
//! | reply, and a copy that may run late | stays for [`REQUEST_LIFETIME`] | |
//! | refused without such a copy | none was written | unchanged |
//! | the message of the script was refused | stays for the same time | changed |
//! | no reply: a request that takes | says `undone`, for the same time | restored in the background |
//! | no reply: a request that gives | stays for the same time | changed in the background |
//! | no reply: any other request | stays for the same time | changed by its close, or never |
//!
//! A request that takes and that too few replicas acknowledge ends as one without a reply.
//!
//! A given permit cannot be taken back, because another caller may have it. So a request that gives
//! is sent again until there is a reply, and its error is not retryable.

use std::time::Duration;

use crate::acquire::LockContext;
use crate::cancel::Limit;
use crate::command::name::Name;
use crate::command::owner::{HoldId, Owner};
use crate::command::script;
use crate::count::{background, read_count};
use crate::error::{Error, Result};
use crate::kind::rules;
use crate::transport::call::{Call, ConnectionId, Digits};
use crate::transport::pool::Target;
use crate::transport::pool::request::{CallReply, Failure};
use crate::transport::reply::Reply;
use crate::util::clock::Moment;

/// How long a request without a reply is sent again.
pub(crate) const RESEND_TIME: Duration = Duration::from_secs(600);

/// How long a record stays: as long again after the last copy of a request that is sent again.
///
/// A copy stays for a shorter time in the buffers of a network, or of a server that is stopped
/// meanwhile.
pub(crate) const REQUEST_LIFETIME: Duration = Duration::from_secs(2 * RESEND_TIME.as_secs());

/// How long the round of a latch stays after the last change of its count by this library.
const ROUND_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A change of the count of a plain semaphore or a latch, of a capacity, or of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountChange {
    /// Takes permits, all or none.
    Take(u32),
    /// Takes all permits.
    Drain,
    /// Adds permits.
    Add(i64),
    /// Sets the permits of a semaphore that does not exist.
    SetPermits(u32),
    /// Counts a latch down by one.
    CountDown,
    /// Sets the count of an open latch.
    SetCount(u64),
    /// Deletes a latch.
    DeleteLatch,
    /// Sets the capacity of a semaphore with leased permits.
    Resize(u32),
    /// Deletes the result of work.
    Forget,
}

/// The end of a request that may have run, and whose caller has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settlement {
    /// The effect of the request is undone, now and later.
    Undo,
    /// The request is sent again until there is a reply.
    Complete,
    /// The request has no effect from now on, if it had none yet.
    Close,
}

impl CountChange {
    fn settlement(self) -> Settlement {
        match self {
            CountChange::Take(_) | CountChange::Drain => Settlement::Undo,
            CountChange::Add(_) | CountChange::CountDown => Settlement::Complete,
            CountChange::SetPermits(_)
            | CountChange::SetCount(_)
            | CountChange::DeleteLatch
            | CountChange::Resize(_)
            | CountChange::Forget => Settlement::Close,
        }
    }

    /// Returns whether the script has written a record, from the number in its reply.
    fn has_record(self, result: i64) -> bool {
        match self {
            CountChange::Take(_) | CountChange::SetPermits(_) | CountChange::SetCount(_) => {
                result == 1
            }
            CountChange::Drain
            | CountChange::Add(_)
            | CountChange::CountDown
            | CountChange::DeleteLatch
            | CountChange::Resize(_)
            | CountChange::Forget => true,
        }
    }

    /// Reads the number in a reply.
    fn read(self, reply: Reply) -> Result<i64> {
        match self {
            CountChange::Drain => read_count(reply),
            _ => reply.into_int(),
        }
    }

    /// Returns the call of the script that makes this change.
    pub(crate) fn call(self, name: &Name, record: &str) -> Call {
        let (key, round, record) = (name.key(), name.round_key(), record);
        let lifetime = Digits::of_millis(REQUEST_LIFETIME);
        let round_lifetime = Digits::of_millis(ROUND_LIFETIME);
        let (lifetime, round_lifetime) = (lifetime.as_bytes(), round_lifetime.as_bytes());
        let (permits, latch) = (name.permits_channel().as_bytes(), name.latch_channel().as_bytes());
        let count = [key.as_bytes(), record.as_bytes()];
        let latch_keys = [key.as_bytes(), round.as_bytes(), record.as_bytes()];
        match self {
            CountChange::Take(number) => {
                let number = Digits::new(number.into());
                Call::script(&script::COUNT_TAKE, count, [number.as_bytes(), lifetime]).replicated()
            }
            CountChange::Drain => {
                Call::script(&script::COUNT_DRAIN, count, [lifetime]).replicated()
            }
            CountChange::Add(number) => {
                let number = number.to_string();
                Call::script(&script::COUNT_ADD, count, [number.as_bytes(), lifetime, permits])
            }
            CountChange::SetPermits(number) => {
                let number = Digits::new(number.into());
                Call::script(&script::COUNT_SET, count, [number.as_bytes(), lifetime, permits])
            }
            CountChange::CountDown => {
                let args = [lifetime, latch, round_lifetime];
                Call::script(&script::LATCH_COUNT_DOWN, latch_keys, args)
            }
            CountChange::SetCount(number) => {
                let number = Digits::new(number);
                let args = [number.as_bytes(), lifetime, latch, round_lifetime];
                Call::script(&script::LATCH_SET, latch_keys, args)
            }
            CountChange::DeleteLatch => {
                Call::script(&script::LATCH_DELETE, latch_keys, [lifetime, latch])
            }
            CountChange::Resize(capacity) => {
                let (capacity, expiries) = (Digits::new(capacity.into()), name.expiries_key());
                let keys = [key, expiries, record].map(str::as_bytes);
                let args = [capacity.as_bytes(), permits, lifetime];
                Call::script(&script::SEMAPHORE_RESIZE, keys, args)
            }
            CountChange::Forget => {
                let keys = [name.result_key(), record].map(str::as_bytes);
                Call::script(&script::ONCE_FORGET, keys, [lifetime])
            }
        }
    }

    /// Returns the call that settles a request that may have run.
    fn settling_call(self, name: &Name, record: &str) -> Call {
        let lifetime = Digits::of_millis(REQUEST_LIFETIME);
        match self.settlement() {
            Settlement::Complete => self.call(name, record),
            Settlement::Close => {
                let keys = [record.as_bytes()];
                Call::script(&script::REQUEST_CLOSE, keys, [lifetime.as_bytes()])
            }
            Settlement::Undo => {
                let keys = [name.key().as_bytes(), record.as_bytes()];
                let args = [lifetime.as_bytes(), name.permits_channel().as_bytes()];
                Call::script(&script::COUNT_UNDO, keys, args)
            }
        }
    }
}

/// The reply to a request that takes permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakeReply {
    pub(crate) is_taken: bool,
    /// The permits that are free afterwards, at least 0.
    pub(crate) left: u32,
    /// The moment before the request was sent.
    pub(crate) sent: Moment,
}

impl TakeReply {
    fn read(reply: Reply, sent: Moment) -> Result<TakeReply> {
        let [taken, left] = reply.into_ints()?[..] else { return Err(rules::unexpected_list()) };
        let left = u32::try_from(left.max(0)).unwrap_or(u32::MAX);
        Ok(TakeReply { is_taken: taken == 1, left, sent })
    }
}

/// One change of a count. Its drop settles a change that may have happened without a reply.
#[derive(Debug)]
pub(crate) struct CountRequest<'a> {
    context: &'a LockContext,
    change: CountChange,
    record: String,
    /// The connection of a copy that may have run without a reply, or may run late.
    open_copy: Option<ConnectionId>,
}

impl<'a> CountRequest<'a> {
    pub(crate) fn new(context: &'a LockContext, change: CountChange) -> CountRequest<'a> {
        CountRequest { context, change, record: new_record(context), open_copy: None }
    }

    /// Makes the change, and returns the number in the reply. One round trip.
    ///
    /// Without a reply the change is settled in the background.
    pub(crate) fn run(mut self, limit: &Limit<'_>) -> Result<i64> {
        let result = self.send(limit).and_then(|reply| self.read(reply));
        result.map_err(|error| match self.open_copy {
            Some(_) if self.change.settlement() == Settlement::Complete => error.not_retryable(),
            _ => error,
        })
    }

    fn read(&mut self, reply: CallReply) -> Result<i64> {
        let connection = reply.connection;
        if let Some(error) = reply.not_replicated {
            self.open_copy = Some(connection);
            return Err(error);
        }
        let unreadable = |_: &Error| self.open_copy = Some(connection);
        let result = self.change.read(reply.value).inspect_err(unreadable)?;
        self.end(connection, self.change.has_record(result));
        Ok(result)
    }

    /// Asks for permits, and returns whether they are taken. One round trip.
    ///
    /// The call may be repeated until they are taken.
    pub(crate) fn take(&mut self, limit: &Limit<'_>) -> Result<TakeReply> {
        let reply = self.send(limit)?;
        let connection = reply.connection;
        let unreadable = |_: &Error| self.open_copy = Some(connection);
        let taken = TakeReply::read(reply.value, reply.sent).inspect_err(unreadable)?;
        if taken.is_taken
            && let Some(error) = reply.not_replicated
        {
            self.open_copy = Some(connection);
            return Err(error);
        }
        self.end(connection, taken.is_taken);
        Ok(taken)
    }

    /// Returns whether a copy may make the change after the last reply.
    pub(super) fn may_run_late(&self) -> bool {
        self.open_copy.is_some()
    }

    /// Sends the request until a reply comes from the current servers.
    ///
    /// After a topology change the record at the new server decides: count and record are
    /// replicated together.
    fn send(&mut self, limit: &Limit<'_>) -> Result<CallReply> {
        let (router, open_copy) = (&self.context.engine.router, &mut self.open_copy);
        let mut former = None;
        let outcome = router.until_current(|| {
            // A former server may have made the change.
            *open_copy = open_copy.or(former);
            let call = self.change.call(self.context.local.name(), &self.record);
            let pending = router.queue(call, Target::prefer(*open_copy));
            let (connection, outcome) = router.wait(pending, limit);
            let reply = outcome.map_err(|failure| {
                if may_have_run(&failure) {
                    open_copy.get_or_insert(connection);
                }
                failure.into_error()
            })?;
            if reply.copies.may_run_late() {
                open_copy.get_or_insert(reply.connection);
            }
            former = Some(reply.connection);
            Ok(reply)
        });
        if outcome.is_err() {
            self.open_copy = self.open_copy.or(former);
        }
        outcome.map(|(reply, _)| reply)
    }

    /// Ends a request that has written its record: deletes it, unless a copy may run late.
    ///
    /// A request without a record leaves an open copy to the drop.
    fn end(&mut self, connection: ConnectionId, has_record: bool) {
        if has_record && self.open_copy.take().is_none() {
            background::delete_record(&self.context.engine.router, &self.record, connection);
        }
    }
}

impl Drop for CountRequest<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.open_copy {
            let call = self.change.settling_call(self.context.local.name(), &self.record);
            background::settle(self.context, call, connection);
        }
    }
}

/// Returns the key of the record of a new request.
pub(super) fn new_record(context: &LockContext) -> String {
    let request = Owner::new(context.engine.id, HoldId::next(), "");
    context.local.name().request_key(&request)
}

/// Returns whether a request that failed may have changed the count, or may do so later.
///
/// A refused script has changed nothing, or all: it takes the record back if the count stays, or
/// writes it last, and a message comes at the end.
fn may_have_run(failure: &Failure) -> bool {
    failure.is_written() && !failure.is_only_copy_refused
}
