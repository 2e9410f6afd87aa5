//! The fair lock: Redisson's `RFairLock`.
//!
//! Redis has the hash of a plain lock, a list with the queue, and a sorted set with the time at
//! which each waiter is given up. The order is global: every call of a verb has its own entry, also
//! for threads of one process. Each waiter listens to a channel of its own, where only it is told
//! that the lock is free.
//!
//! A waiter asks again at the poll interval. The first question after half of the waiter timeout
//! moves its time forward, so a live waiter keeps its place for as long as the lock is held. A
//! caller that gives up removes its entry, and passes on a message that it may have received. A
//! dead waiter at the head of the queue blocks a free lock for at most the fair waiter timeout. It
//! counts from the moment at which another waiter finds the lock free, and does not depend on the
//! lease that the dead waiter waited for.
//!
//! All times are the server's; Redisson sends times of its own clock. Further differences: a
//! release of a lost lock is an error; a waiter behind others is not told to ask at once; the time
//! of the head of the queue is cut short when the lock is free; the list and the set expire.

use std::time::Duration;

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::events::Kind;
use crate::kind::plain::{Plain, UNLOCKED};
use crate::kind::rules::{
    self, AcquireArgs, EarlyRelease, KindRules, ListensTo, LockRules, Queueing, kind_of_lock,
};
use crate::transport::call::{Call, Digits};
use crate::transport::script::Script;

/// The kind of [`Client::fair_lock`](crate::Client::fair_lock): first come, first served.
#[derive(Clone, Copy, Debug)]
pub struct Fair;

kind_of_lock!(Fair, Fair);

/// The hash, the queue, and the times at which waiters are given up.
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
        ListensTo::OwnChannel
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let waiter_timeout = args.waiter_timeout.unwrap_or_default();
        let (lease, timeout) = (args.millis(), Digits::of_millis(waiter_timeout));
        let head_timeout = Digits::of_millis(args.fair_waiter_timeout);
        let taking =
            [lease.as_bytes(), args.owner.as_bytes(), timeout.as_bytes(), head_timeout.as_bytes()];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::FAIR_ACQUIRE, keys(args.name), argv)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let channel = name.own_channel_prefix();
        let args = [owner.as_bytes(), channel.as_bytes(), UNLOCKED];
        Call::script(&script::FAIR_RELEASE, keys(name), args)
    }

    fn early_release(&self) -> Option<EarlyRelease> {
        Some(|name, owner, left| {
            let channel = name.own_channel_prefix();
            let (nobody, left) = (rules::nobody(owner), rules::digits_up(left));
            let args = [owner.as_bytes(), channel.as_bytes(), UNLOCKED];
            let args = args.into_iter().chain([nobody.as_bytes(), left.as_bytes()]);
            Call::script(&script::FAIR_RELEASE, keys(name), args)
        })
    }

    fn undo(&self, name: &Name, owner: &Owner, waiter_timeout: Option<Duration>) -> Call {
        let channel = name.own_channel_prefix();
        let timeout = Digits::of_millis(waiter_timeout.unwrap_or_default());
        let args = [owner.as_bytes(), channel.as_bytes(), UNLOCKED, timeout.as_bytes()];
        Call::script(&script::FAIR_LEAVE, keys(name), args)
    }

    fn queues_in_redis(&self) -> bool {
        true
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}

impl LockRules for Fair {
    fn force_unlock(&self, name: &Name) -> Call {
        let channel = name.own_channel_prefix();
        Call::script(&script::FAIR_FORCE_UNLOCK, keys(name), [channel.as_bytes(), UNLOCKED]).once()
    }
}
