//! The plain lock under a name that the caller gives, instead of a hold's.
//!
//! The name is the whole owner field, so any caller that presents it, in any thread or
//! process, enters again. The value of the field counts the holds. OtherHold it the hash has a
//! field with the value 0 for each hold that this library counted. A hold and its field come
//! and go in one step, and both end with the hash: a repeated acquire counts once, and a late
//! release finds no field and takes nothing off what another caller counted since. Redisson
//! ignores these fields, and deletes them with the hash.
//!
//! A renewal looks for the field of its hold, as that of a plain lock does.

use crate::command::call::Call;
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script::{self, Script};
use crate::events::Kind;
use crate::kind::plain::{Plain, UNLOCKED};
use crate::kind::rules::{AcquireArgs, KindRules, OtherHold, Queueing};

/// The rules of a plain lock with a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named;

impl Named {
    /// Takes one off the count of a holder, whoever counted it.
    pub(crate) fn unlock(name: &Name, holder: &str) -> Call {
        let args = [holder.as_bytes(), name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::NAMED_UNLOCK, [name.key().as_bytes()], args).once()
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

    /// Others who present the name keep it there.
    fn outlives_its_lease(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let lease = args.millis();
        let taking = [lease.as_bytes(), args.owner.as_bytes(), args.owner.hold().as_bytes()];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::NAMED_ACQUIRE, [args.name.key().as_bytes()], argv).lasting(args.lease)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let (holder, hold) = (owner.as_bytes(), owner.hold().as_bytes());
        let args = [holder, hold, name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::NAMED_RELEASE, [name.key().as_bytes()], args)
    }

    fn force_unlock(&self, name: &Name) -> Call {
        Plain.force_unlock(name)
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}
