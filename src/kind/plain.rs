//! The plain lock: Redisson's `RLock`.
//!
//! A hash at the lock's name with one field, the owner, whose value is the count
//! of its holds: always 1 here, since re-entry is counted in the process.

use crate::command::call::Call;
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script::{self, Script};
use crate::events::Kind;
use crate::kind::rules::{AcquireArgs, KindRules, kind_of_lock};

/// The re-entrant lock of [`Client::lock`](crate::Client::lock): Redisson's `RLock`.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

kind_of_lock!(Plain, Plain);

/// What Redisson publishes when a lock becomes free.
pub(crate) const UNLOCKED: &[u8] = b"0";

impl KindRules for Plain {
    fn kind(&self) -> Kind {
        Kind::Plain
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let lease = args.millis();
        let taking = [lease.as_bytes(), args.owner.as_bytes()];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::PLAIN_ACQUIRE, [args.name.key().as_bytes()], argv).lasting(args.lease)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let args = [owner.as_bytes(), name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::PLAIN_RELEASE, [name.key().as_bytes()], args)
    }

    fn force_unlock(&self, name: &Name) -> Call {
        let args = [name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::PLAIN_FORCE_UNLOCK, [name.key().as_bytes()], args).once()
    }

    fn renewal(&self) -> &'static Script {
        &script::PLAIN_RENEW
    }
}
