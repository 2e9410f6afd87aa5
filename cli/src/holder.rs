//! The verbs for scripts that take a lock in one command and release it in another: `acquire`,
//! `extend`, `release`. The holder is a name, and nothing renews its lease.

use std::process::ExitCode;
use std::time::Duration;

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

/// Takes the lock once more, which extends the lease, and gives this share back.
pub(crate) fn extend(server: &Server, args: &ExtendArgs) -> Result<ExitCode> {
    let lock = lock(server, &args.of)?.with_lease(args.lease);
    if shares(&lock, &args.of)? == 0 {
        return Ok(not_held(&args.of));
    }
    let Some(guard) = lock.try_lock()? else { return Ok(not_held(&args.of)) };
    // The lease may have ended between the two commands: then this share is the only one.
    let others = shares(&lock, &args.of)? > 1;
    match guard.unlock() {
        Err(error) if error.is_not_held() || error.is_lost() => return Ok(not_held(&args.of)),
        released => released?,
    }
    Ok(if others { ExitCode::SUCCESS } else { not_held(&args.of) })
}

/// Gives back one share of the holder.
pub(crate) fn release(server: &Server, args: &ReleaseArgs) -> Result<ExitCode> {
    match lock(server, &args.of)?.with_lease(SHORTEST).unlock() {
        Err(error) if error.is_not_held() || error.is_lost() => Ok(not_held(&args.of)),
        released => Ok(released.map(|()| ExitCode::SUCCESS)?),
    }
}

/// A lease that is not used.
const SHORTEST: Duration = Duration::from_secs(1);

/// Returns how often the holder has taken the lock, and not released it.
fn shares(lock: &Lock, of: &HolderArgs) -> Result<u64> {
    let holders = lock.holders()?;
    let own = holders.iter().filter(|holder| holder.owner() == of.holder);
    Ok(own.map(leasehold::HolderInfo::count).sum())
}

fn not_held(of: &HolderArgs) -> ExitCode {
    let (name, holder) = (printable(&of.name), printable(&of.holder));
    print_note(&format!("leasehold: {name} is not held by {holder}"));
    Code::Negative.into()
}
