//! The verbs for scripts that take a lock in one command and release it in another: `acquire`,
//! `extend`, `release`. The holder is a name, and nothing renews its lease.

use std::process::ExitCode;

use leasehold::Lock;

use crate::address::Server;
use crate::args::{AcquireArgs, ExtendArgs, HolderArgs, ReleaseArgs};
use crate::failure::{Code, Result, print_note};
use crate::views::text::printable;

fn lock(server: &Server, of: &HolderArgs) -> Result<Lock> {
    Ok(server.connect()?.lock(&of.name).with_holder(&of.holder))
}

/// Takes the lock, and leaves it to the holder.
pub(crate) fn acquire(server: &Server, args: &AcquireArgs) -> Result<ExitCode> {
    let lock = lock(server, &args.of)?.with_lease(args.lease);
    let guard = match (args.nonblock, args.wait) {
        (true, _) => lock.try_lock()?,
        (false, Some(wait)) => lock.try_lock_for(wait)?,
        (false, None) => Some(lock.lock()?),
    };
    let Some(guard) = guard else { return Ok(Code::Negative.into()) };
    guard.detach();
    Ok(ExitCode::SUCCESS)
}

/// Extends the lease, in one command: a script that is killed meanwhile leaves no share behind.
pub(crate) fn extend(server: &Server, args: &ExtendArgs) -> Result<ExitCode> {
    ended(lock(server, &args.of)?.extend(args.lease), &args.of)
}

/// Gives back one share of the holder.
pub(crate) fn release(server: &Server, args: &ReleaseArgs) -> Result<ExitCode> {
    ended(lock(server, &args.of)?.unlock(), &args.of)
}

/// Returns the exit code for the outcome of a verb that only a holder may call.
fn ended(outcome: leasehold::Result<()>, of: &HolderArgs) -> Result<ExitCode> {
    match outcome {
        Err(error) if error.is_not_held() || error.is_lost() => Ok(not_held(of)),
        outcome => Ok(outcome.map(|()| ExitCode::SUCCESS)?),
    }
}

fn not_held(of: &HolderArgs) -> ExitCode {
    let (name, holder) = (printable(&of.name), printable(&of.holder));
    print_note(&format!("leasehold: {name} is not held by {holder}"));
    Code::Negative.into()
}
