//! Requests about counts without a waiting caller.

use std::sync::{Arc, Weak};

use crate::acquire::LockContext;
use crate::count::CountChange;
use crate::count::request::{RESEND_TIME, new_record};
use crate::error::Result;
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::request::{BackgroundTask, CallReply, Request};
use crate::transport::pool::router::Router;
use crate::util::clock;
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// Receives the outcome of a background request.
struct BackgroundChange {
    name: Arc<str>,
    /// Weak: the request may outlive its client.
    router: Weak<Router>,
    /// The record to delete after a reply, unless another copy may run.
    record: Option<String>,
}

impl BackgroundChange {
    fn settle(&self, outcome: Result<CallReply>) {
        let name = &self.name;
        match (outcome, &self.record) {
            (Ok(reply), Some(record)) if !reply.copies.may_run_late() => {
                if let Some(router) = self.router.upgrade() {
                    delete_record(&router, record, reply.connection);
                }
            }
            (Ok(_), _) => {}
            (Err(error), _) => log::warn!(
                logger: LINES, target: log_target::LEASE,
                lock = &**name, error:% = error.with_causes(), server = error.server();
                "a request of {name:?} was never answered, so its count may be wrong: {}",
                error.with_causes()
            ),
        }
    }
}

/// Makes a change in the background: sends its request until there is a reply. Does not block.
///
/// Does nothing in a forked child.
pub(crate) fn send_in_background(context: &LockContext, change: CountChange) {
    let record = new_record(context);
    let call = change.call(context.local.name(), &record);
    send(context, call, Some(record), None);
}

/// Sends a call that settles a request, until there is a reply.
///
/// The call goes to the connection of the request if that is possible.
pub(super) fn settle(context: &LockContext, call: Call, connection: ConnectionId) {
    send(context, call, None, Some(connection));
}

fn send(
    context: &LockContext,
    call: Call,
    record: Option<String>,
    connection: Option<ConnectionId>,
) {
    let router = &context.engine.router;
    if router.check_process().is_err() {
        return;
    }
    let name = Arc::clone(context.local.name().given());
    let change = BackgroundChange { name, router: Arc::downgrade(router), record };
    let after_close = context.engine.settings.watchdog_timeout.min(RESEND_TIME);
    let now = clock::now();
    let task = if context.engine.closing.is_cancelled() {
        // The guard of a latch may be dropped long after the close.
        BackgroundTask::new(now + after_close)
    } else {
        BackgroundTask { after_close, ..BackgroundTask::new(now + RESEND_TIME) }
    };
    let task = task.then(move |outcome| change.settle(outcome));
    router.send_background(Request::background(call, task), connection);
}

/// Deletes the record of a request whose only copy has run.
pub(super) fn delete_record(router: &Router, record: &str, connection: ConnectionId) {
    let delete = Call::on_key(b"DEL", record.as_bytes(), &[]);
    router.send_background(Request::background_once(delete), Some(connection));
}
