//! [`Client::force_unlock`](crate::Client::force_unlock): frees a lock of an unknown kind.
//!
//! A look finds the kind whose callers may wait, and the script of that kind frees the lock, on the
//! same connection:
//!
//! | data | script | reason |
//! | --- | --- | --- |
//! | a mode | of that side | the script does nothing if the mode has changed: look again |
//! | the queue of a fair lock | fair | notifies the first in that queue |
//! | permits in use | of semaphores | takes all of them away |
//! | a token counter, or the queue of a queue lock | queue | grants the lock to a waiter, or publishes as for a fenced lock |
//! | anything else | plain | also for named holders; waiters of a spin lock poll |
//! | no lock | plain | the script refuses the key, as each of these scripts does |
//!
//! The command must not run twice. It follows the look on its connection, as in
//! `handle/queries.rs`.

use std::sync::Arc;

use super::handle::SharedHandle;
use crate::acquire::LockContext;
use crate::engine::Engine;
use crate::error::Result;
use crate::events::Kind;
use crate::inspect::query::Inspector;
use crate::kind::rules::{self, LockRules, ReleaseReply};
use crate::kind::{Fair, Plain, Queued, Read, Write, semaphore};
use crate::transport::pool::Target;

/// Frees the lock with this name, whatever its kind; returns whether it was held.
pub(crate) fn force_unlock(engine: Arc<Engine>, name: String) -> Result<bool> {
    let handle = SharedHandle::of_any_lock(engine, name);
    handle.run(handle.response_limit(), |LockContext { engine, local }, limit| {
        let inspector = Inspector::new(engine, limit);
        let mut target = Target::prefer(local.unanswered_release());
        // Frees what a look has found, until the lock is free. The limit ends the loop.
        while let Some(found) = inspector.to_force(local.name(), target)? {
            // Listed before the lock is freed: a later holder in this process keeps its hold.
            let held = local.holds();
            let command = match found.kind {
                Kind::Semaphore => semaphore::force_release(local.name(), &found.clients),
                kind => rules_for(kind).force_unlock(local.name()),
            };
            let reply = engine.router.call(command, Target::Only(found.connection), limit)?;
            if rules::read_release(reply.value)? != ReleaseReply::NotHeld {
                for hold in &held {
                    local.lose(hold);
                }
                return Ok(true);
            }
            if found.kind == Kind::Semaphore {
                // The last permit came back meanwhile. What is left is a number.
                return Ok(false);
            }
            target = Target::Prefer(found.connection);
        }
        Ok(false)
    })
}

/// Returns the rules whose script frees a lock with such data, and wakes its waiters.
fn rules_for(kind: Kind) -> &'static dyn LockRules {
    match kind {
        Kind::Read => &Read,
        Kind::Write => &Write,
        Kind::Fair => &Fair,
        Kind::Fenced | Kind::Queued => &Queued,
        _ => &Plain,
    }
}
