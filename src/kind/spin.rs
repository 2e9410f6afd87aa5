//! The spin lock: Redisson's `RSpinLock`.
//!
//! The format in Redis is that of the plain lock, without messages: no caller subscribes, and a
//! release publishes nothing. A refused caller asks again after a pause that grows. The threads of
//! one process stand in one queue, so only the head of the queue asks.

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::events::Kind;
use crate::kind::plain::{self, Plain};
use crate::kind::rules::{
    AcquireArgs, EarlyRelease, KindRules, ListensTo, LockRules, kind_of_lock,
};
use crate::transport::call::Call;
use crate::transport::script::Script;

/// The kind of [`Client::spin_lock`](crate::Client::spin_lock): polls with growing pauses.
#[derive(Clone, Copy, Debug)]
pub struct Spin;

kind_of_lock!(Spin, Spin);

impl KindRules for Spin {
    fn kind(&self) -> Kind {
        Kind::Spin
    }

    fn listens_to(&self) -> ListensTo {
        ListensTo::Nothing
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        Plain.acquire(args)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let keys = [name.key().as_bytes()];
        Call::script(&script::SPIN_RELEASE, keys, [owner.as_bytes()])
    }

    fn early_release(&self) -> Option<EarlyRelease> {
        Some(|name, owner, left| plain::release_early(name, owner, left, None))
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}

impl LockRules for Spin {
    fn force_unlock(&self, name: &Name) -> Call {
        Call::script(&script::SPIN_FORCE_UNLOCK, [name.key().as_bytes()], []).once()
    }
}
