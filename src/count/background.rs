//! Requests about counts without a waiting caller.

use std::sync::Arc;

use crate::acquire::LockContext;
use crate::count::CountChange;
use crate::count::request::{RESEND_TIME, new_record};
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::request::{BackgroundTask, Request};
use crate::transport::pool::router::Router;
use crate::util::clock;
use crate::util::log_lines::LINES;
use crate::util::log_target;

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

/// Sends a call until there is a reply, and then deletes the record, unless a copy may run late.
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
    let after_close = context.engine.settings.watchdog_timeout.min(RESEND_TIME);
    let now = clock::now();
    let task = if context.engine.closing.is_cancelled() {
        // The guard of a latch may be dropped long after the close.
        BackgroundTask::new(now + after_close)
    } else {
        BackgroundTask { after_close, ..BackgroundTask::new(now + RESEND_TIME) }
    };
    let name = Arc::clone(context.local.name().given());
    // Weak: the request may outlive its client.
    let weak_router = Arc::downgrade(router);
    let task = task.then(move |outcome| match outcome {
        Ok(reply) => {
            if let Some(record) = record
                && !reply.copies.may_run_late()
                && let Some(router) = weak_router.upgrade()
            {
                delete_record(&router, &record, reply.connection);
            }
        }
        Err(error) => log::warn!(
            logger: LINES, target: log_target::LEASE,
            lock = &*name, error:% = error.with_causes(), server = error.server();
            "a request of {name:?} was never answered: nobody can tell whether it took effect: {}",
            error.with_causes()
        ),
    });
    router.send_background(Request::background(call, task), connection);
}

/// Deletes the record of a request whose only copy has run.
pub(super) fn delete_record(router: &Router, record: &str, connection: ConnectionId) {
    let delete = Call::on_key(b"DEL", record.as_bytes(), &[]);
    router.send_background(Request::background_once(delete), Some(connection));
}
