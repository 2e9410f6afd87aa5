//! What distinguishes one kind of lock from another.
//!
//! A kind is a set of [`KindRules`]: how its commands are built and its answers read, how the
//! threads of one process stand before it, and how they learn that it is free. Everything
//! that waits, holds, renews and releases is written once, for all.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use crate::command::call::{Call, Digits};
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::reply::Reply;
use crate::command::script::Script;
use crate::error::Result;
use crate::events::Kind;
use crate::util::clock;

/// The kind of a [`Lock`](crate::Lock). Sealed: the kinds are those of this crate.
pub trait LockKind: sealed::Sealed + Send + Sync + UnwindSafe + RefUnwindSafe + 'static {}

pub(crate) mod sealed {
    /// Keeps [`LockKind`](super::LockKind) from being implemented elsewhere.
    #[allow(unreachable_pub, reason = "a sealed trait is public and cannot be named")]
    pub trait Sealed {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "only this crate can call it")]
        fn rules() -> &'static dyn super::KindRules;
    }
}

/// Makes a type without values the kind of lock that `$rules` describes.
macro_rules! kind_of_lock {
    ($kind:ty, $rules:expr) => {
        impl crate::kind::rules::LockKind for $kind {}

        impl crate::kind::rules::sealed::Sealed for $kind {
            #[allow(private_interfaces, reason = "only this crate can call it")]
            fn rules() -> &'static dyn crate::kind::rules::KindRules {
                &$rules
            }
        }
    };
}
pub(crate) use kind_of_lock;

/// What an attempt asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireArgs<'a> {
    pub(crate) name: &'a Name,
    pub(crate) owner: &'a Owner,
    pub(crate) lease: Duration,
    /// The hold beside which it is to stand.
    pub(crate) beside: Option<&'a Owner>,
    /// From a caller that will wait: after how long without a word from it others need
    /// not wait for it any more.
    pub(crate) patience: Option<Duration>,
    /// For how long another that is first in a queue may leave a free lock alone.
    pub(crate) fair_waiter_timeout: Duration,
    /// To how many threads of this process the hold may go, one after the other.
    pub(crate) threads: u32,
    /// From a caller that will wait, how the listener can be told to subscribe.
    pub(crate) wake: Option<Wake<'a>>,
}

/// What a script that refuses publishes on behalf of its caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wake<'a> {
    /// The client's own channel.
    pub(crate) control: &'a str,
    /// The channel that the caller wants to hear.
    pub(crate) channel: &'a str,
}

impl AcquireArgs<'_> {
    /// The lease in milliseconds.
    pub(crate) fn millis(&self) -> Digits {
        digits(self.lease)
    }

    /// The last arguments of every script that acquires.
    pub(crate) fn wake_args(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let parts = self.wake.map(|wake| [wake.control.as_bytes(), wake.channel.as_bytes()]);
        parts.into_iter().flatten()
    }
}

/// A span in the milliseconds that scripts count in.
pub(crate) fn digits(span: Duration) -> Digits {
    Digits::new(clock::millis(span).unsigned_abs())
}

/// What the server says to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    /// The first of its tokens, zero if the kind has none.
    Granted(u64),
    /// Another holds it; `left` of its lease, or `None` if it has no end.
    Refused { left: Option<Duration> },
}

/// What the server says to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    /// Released, and so many subscribers were told.
    Told(u64),
    NotHeld,
}

/// How the threads of one process stand before a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queueing {
    /// At a gate: only the first in line speaks with the server, and a hold may pass from
    /// thread to thread.
    InProcess,
    /// Each by itself, as if they were of different processes.
    None,
}

/// What a caller that was refused listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListensTo {
    /// The channel of the lock.
    Lock,
    /// The channel that the readers and writers of a lock share.
    ReadWrite,
    /// A channel of its own.
    Itself,
    /// Nothing: it asks again and again.
    Nothing,
}

/// A hold beside which another is to be, or that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherHold<'a> {
    pub(crate) kind: Kind,
    pub(crate) owner: &'a Owner,
    /// They are of the same thread.
    pub(crate) same_thread: bool,
}

/// How one kind of lock is spoken of with the server.
pub(crate) trait KindRules: Send + Sync {
    /// Returns the kind.
    fn kind(&self) -> Kind;

    fn queueing(&self) -> Queueing {
        Queueing::InProcess
    }

    /// Whether a thread that has a hold of this kind gets the same again.
    fn re_enters(&self) -> bool {
        true
    }

    fn listens_to(&self) -> ListensTo {
        ListensTo::Lock
    }

    /// What stands behind the number of a hold in its owner field.
    fn suffix(&self) -> &'static str {
        ""
    }

    /// Whether a hold of this kind may be valid beside that other one, of any kind.
    fn shares_with(&self, owner: &[u8], other: &OtherHold<'_>) -> bool {
        let _ = (owner, other);
        false
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call;

    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        read_acquire(reply)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call;

    /// Has whatever a question took, or left behind, undone, whether it has been answered
    /// or not; `patience` as in the question.
    fn undo(&self, name: &Name, owner: &Owner, patience: Option<Duration>) -> Call {
        let _ = patience;
        self.release(name, owner)
    }

    /// Whether what a hold has taken may stay when its lease is over, kept there by others.
    fn outlives_its_lease(&self) -> bool {
        false
    }

    /// Whether its holds have fencing tokens.
    fn has_tokens(&self) -> bool {
        false
    }

    /// Whether a caller that was refused has left something behind that must be undone.
    fn queues_in_redis(&self) -> bool {
        false
    }

    /// Frees the lock whoever holds it.
    fn force_unlock(&self, name: &Name) -> Call;

    /// Asks what is left of the lease: answered as by `PTTL`.
    fn ttl(&self, name: &Name) -> Call {
        Call::on_key(b"PTTL", name.key().as_bytes(), &[])
    }

    /// The script that renews many holds of this kind: keys are the locks' hashes,
    /// arguments the lease and the owners; it answers with the positions that are
    /// lost.
    fn renewal(&self) -> &'static Script;
}

impl fmt::Debug for dyn KindRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind(), f)
    }
}

/// Reads the answer of a script that acquires: -2 acquired, -1 held without an end, else
/// the milliseconds that are left.
pub(crate) fn read_acquire(reply: Reply) -> Result<AcquireReply> {
    const ACQUIRED: i64 = -2;
    let left = match reply.into_int()? {
        ACQUIRED => return Ok(AcquireReply::Granted(0)),
        millis => lease_left(millis),
    };
    Ok(AcquireReply::Refused { left })
}

/// The milliseconds that a script counts, `None` if there is no end.
pub(crate) fn lease_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Reads the answer of every release and force script: -1, or how many were told.
pub(crate) fn read_release(reply: Reply) -> Result<ReleaseReply> {
    let told = reply.into_int()?;
    Ok(u64::try_from(told).map_or(ReleaseReply::NotHeld, ReleaseReply::Told))
}
