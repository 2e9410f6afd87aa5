//! The fair lock: Redisson's `RFairLock`.
//!
//! The hash of a plain lock, a list of those who wait, and a sorted set that says when
//! each of them is taken for dead. The order is global: threads of one process stand in
//! the list by themselves, one entry per call of a verb. Each hears a channel of its own,
//! on which it alone is told that the lock is free.
//!
//! Who waits asks again at the poll interval, and by that moves its own death on before half
//! of its time is used up: however long the lock is held, its place is kept. Who leaves
//! without the lock takes its entry along and passes on the message that it may have had.
//! The dead leave a free lock alone: from when another finds that they wait for no longer
//! than the fair wait, whatever the lease was when they came.
//!
//! Times are the server's; Redisson sends its own clock's. Where this differs from it
//! besides: a release of a lock that is gone is an error, who waits behind others is not
//! told to ask at once, the time of who is first is cut short beside a free lock, and the list
//! and the set have an end.

use std::time::Duration;

use crate::command::call::Call;
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script::{self, Script};
use crate::events::Kind;
use crate::kind::plain::{Plain, UNLOCKED};
use crate::kind::rules::{self, AcquireArgs, KindRules, ListensTo, Queueing, kind_of_lock};

/// The lock of [`Client::fair_lock`](crate::Client::fair_lock): Redisson's fair lock.
#[derive(Clone, Copy, Debug)]
pub struct Fair;

kind_of_lock!(Fair, Fair);

fn keys(name: &Name) -> [&[u8]; 3] {
    [name.key().as_bytes(), name.queue_key().as_bytes(), name.timeouts_key().as_bytes()]
}

impl KindRules for Fair {
    fn kind(&self) -> Kind {
        Kind::Fair
    }

    fn queueing(&self) -> Queueing {
        Queueing::None
    }

    fn listens_to(&self) -> ListensTo {
        ListensTo::Itself
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let patience = rules::digits(args.patience.unwrap_or_default());
        let (lease, fair_waiter_timeout) = (args.millis(), rules::digits(args.fair_waiter_timeout));
        let taking = [
            lease.as_bytes(),
            args.owner.as_bytes(),
            patience.as_bytes(),
            fair_waiter_timeout.as_bytes(),
        ];
        let argv = taking.into_iter().chain(args.wake_args());
        let lasting = args.lease.max(args.patience.unwrap_or_default());
        Call::script(&script::FAIR_ACQUIRE, keys(args.name), argv).lasting(lasting)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let channel = name.own_channel_prefix();
        let args = [owner.as_bytes(), channel.as_bytes(), UNLOCKED];
        Call::script(&script::FAIR_RELEASE, keys(name), args)
    }

    fn undo(&self, name: &Name, owner: &Owner, patience: Option<Duration>) -> Call {
        let channel = name.own_channel_prefix();
        let patience = rules::digits(patience.unwrap_or_default());
        let args = [owner.as_bytes(), channel.as_bytes(), UNLOCKED, patience.as_bytes()];
        Call::script(&script::FAIR_LEAVE, keys(name), args)
    }

    fn queues_in_redis(&self) -> bool {
        true
    }

    fn force_unlock(&self, name: &Name) -> Call {
        let channel = name.own_channel_prefix();
        Call::script(&script::FAIR_FORCE_UNLOCK, keys(name), [channel.as_bytes(), UNLOCKED]).once()
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}
