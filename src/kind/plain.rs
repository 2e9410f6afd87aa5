//! The plain lock: Redisson's `RLock`.
//!
//! The key of the lock is a hash with one field, the owner field of the hold. Its value is the
//! count of re-entries: always 1 here, because re-entries are counted in the process.

use std::time::Duration;

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::events::Kind;
use crate::kind::rules::{self, AcquireArgs, EarlyRelease, KindRules, LockRules, kind_of_lock};
use crate::transport::call::Call;
use crate::transport::script::Script;

/// The kind of [`Client::lock`](crate::Client::lock): re-entrant, Redisson's `RLock`.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

kind_of_lock!(Plain, Plain);

/// Message that Redisson publishes when a lock becomes free.
pub(crate) const UNLOCKED: &[u8] = b"0";

/// Returns the call that ends a hold and keeps the lock taken for `left`, without a holder.
///
/// `channel` is the channel of the release message; `None` for a kind without messages.
pub(super) fn release_early(
    name: &Name,
    owner: &Owner,
    left: Duration,
    channel: Option<&str>,
) -> Call {
    let (nobody, left) = (rules::nobody(owner), rules::digits_up(left));
    let announcement = channel.map(|channel| [channel.as_bytes(), UNLOCKED]);
    let args = [owner.as_bytes(), nobody.as_bytes(), left.as_bytes()].into_iter();
    let args = args.chain(announcement.into_iter().flatten());
    Call::script(&script::EARLY_RELEASE, [name.key().as_bytes()], args)
}

impl KindRules for Plain {
    fn kind(&self) -> Kind {
        Kind::Plain
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let lease = args.millis();
        let taking = [lease.as_bytes(), args.owner.as_bytes()];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::PLAIN_ACQUIRE, [args.name.key().as_bytes()], argv)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let args = [owner.as_bytes(), name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::PLAIN_RELEASE, [name.key().as_bytes()], args)
    }

    fn early_release(&self) -> Option<EarlyRelease> {
        Some(|name, owner, left| release_early(name, owner, left, Some(name.channel())))
    }

    fn may_linger(&self) -> bool {
        true
    }

    fn renewal(&self) -> &'static Script {
        &script::PLAIN_RENEW
    }
}

impl LockRules for Plain {
    fn force_unlock(&self, name: &Name) -> Call {
        let args = [name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::PLAIN_FORCE_UNLOCK, [name.key().as_bytes()], args).once()
    }
}
