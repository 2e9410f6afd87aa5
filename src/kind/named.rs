//! The plain lock of a named holder: the caller gives the owner field.
//!
//! The owner field is the holder name alone. A caller with the same name, in any thread or process,
//! enters again; the value of the field counts the holds. In addition the hash has a field with the
//! value 0 for each hold of this library. A hold and its field begin and end in one step, and both
//! end with the hash. So a repeated acquire counts once, and a late release finds no field and
//! leaves the count of other callers unchanged. Redisson ignores these fields, and deletes them
//! with the hash.
//!
//! A renewal checks the field of its hold, as for a plain lock.

use std::time::Duration;

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::events::Kind;
use crate::kind::plain::{Plain, UNLOCKED};
use crate::kind::rules::{AcquireArgs, KindRules, LockRules, OtherHold, Queueing};
use crate::transport::call::{Call, Digits};
use crate::transport::script::Script;

/// The rules of a plain lock with a named holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named;

impl Named {
    /// Returns the call that ends the oldest hold of this holder, of any client. Sent at most once.
    pub(crate) fn unlock(name: &Name, holder: &str) -> Call {
        let args = [holder.as_bytes(), name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::NAMED_UNLOCK, [name.key().as_bytes()], args).once()
    }

    /// Returns the call that extends the lease of this holder's holds, of any client.
    pub(crate) fn extension(name: &Name, holder: &str, lease: Duration) -> Call {
        let lease = Digits::of_millis(lease);
        let args = [lease.as_bytes(), holder.as_bytes()];
        Call::script(Plain.renewal(), [name.key().as_bytes()], args).replicated()
    }
}

impl KindRules for Named {
    fn kind(&self) -> Kind {
        Kind::Named
    }

    fn queueing(&self) -> Queueing {
        Queueing::None
    }

    fn re_enters(&self) -> bool {
        false
    }

    fn shares_with(&self, owner: &[u8], other: &OtherHold<'_>) -> bool {
        other.kind == Named.kind() && other.owner.as_bytes() == owner
    }

    /// Other callers with the same holder name extend the lease of the hash.
    fn outlives_its_lease(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let lease = args.millis();
        let taking = [lease.as_bytes(), args.owner.as_bytes(), args.owner.hold().as_bytes()];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::NAMED_ACQUIRE, [args.name.key().as_bytes()], argv)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let (holder, hold) = (owner.as_bytes(), owner.hold().as_bytes());
        let args = [holder, hold, name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::NAMED_RELEASE, [name.key().as_bytes()], args)
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}

impl LockRules for Named {
    fn force_unlock(&self, name: &Name) -> Call {
        Plain.force_unlock(name)
    }
}
