//! The rules that distinguish one kind of lock from another.
//!
//! A kind implements [`KindRules`]: its commands and their replies, how the threads of one process
//! queue, which channel wakes them, and which holds may exist at the same time. Waiting, holding,
//! renewing and releasing are written once for all kinds, in `acquire/`, `local/` and `watchdog/`.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::error::{Error, Result};
use crate::events::Kind;
use crate::transport::call::{Call, Digits};
use crate::transport::reply::{self, Reply};
use crate::transport::script::Script;

/// A kind of [`Lock`](crate::Lock), for code that is generic over the kind.
///
/// Sealed: only the types of [`kind`](crate::kind) implement it.
pub trait LockKind: sealed::Sealed + Send + Sync + UnwindSafe + RefUnwindSafe + 'static {}

pub(crate) mod sealed {
    /// Prevents implementations of [`LockKind`](super::LockKind) in other crates.
    #[allow(unreachable_pub, reason = "a sealed trait is public and cannot be named")]
    pub trait Sealed {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "only this crate can call it")]
        fn rules() -> &'static dyn super::LockRules;
    }
}

/// Implements [`LockKind`] for `$kind` with these rules.
macro_rules! kind_of_lock {
    ($kind:ty, $rules:expr) => {
        impl crate::kind::rules::LockKind for $kind {}

        impl crate::kind::rules::sealed::Sealed for $kind {
            #[allow(private_interfaces, reason = "only this crate can call it")]
            fn rules() -> &'static dyn crate::kind::rules::LockRules {
                &$rules
            }
        }
    };
}
pub(crate) use kind_of_lock;

/// The arguments of an acquire command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireArgs<'a> {
    pub(crate) name: &'a Name,
    pub(crate) owner: &'a Owner,
    pub(crate) lease: Duration,
    /// The owner of a write hold of the same thread, under which the new hold reads.
    pub(crate) beside: Option<&'a Owner>,
    /// Time after which a silent waiter loses its place in the queue; `None` if the caller does
    /// not wait.
    pub(crate) waiter_timeout: Option<Duration>,
    /// Time for which another head of the queue may leave a free lock untaken.
    pub(crate) fair_waiter_timeout: Duration,
    /// The place that the caller takes in the queue of a queue lock; `None` if it does not wait.
    pub(crate) place: Option<PlaceArgs>,
    /// Number of threads of this process that may have the hold, one after the other.
    pub(crate) max_holders: u32,
    /// The capacity that a semaphore without one gets.
    pub(crate) capacity: Option<u32>,
    /// Whether the reply has to tell of another capacity.
    pub(crate) asks_capacity: bool,
    /// Whether each permit gets a slot.
    pub(crate) with_slots: bool,
    /// How long others know that a caller of a read-write lock waits: zero if it does not. `None`
    /// if the caller ignores the turns of others.
    pub(crate) announced: Option<Duration>,
    /// The message that has the listener subscribe; `None` if none is needed.
    pub(crate) wake: Option<Wake<'a>>,
}

/// The terms on which the server grants queue locks to the waiting callers of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantTerms {
    /// The lease of a grant by message, and the time without a heartbeat after which the client
    /// counts as gone.
    pub(crate) lease: Duration,
    /// Whether the servers are a cluster, in which a publisher cannot tell whether a client
    /// listens.
    pub(crate) is_cluster: bool,
}

/// The place of a caller in the queue of a queue lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceArgs {
    pub(crate) terms: GrantTerms,
    /// The time by which the weight of the caller moves it forward.
    pub(crate) advance: Duration,
    /// The place that the server reported before.
    pub(crate) known: Option<Place>,
}

/// A place in the queue of a queue lock, in microseconds: the arrival less the advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u64);

/// The permits that a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitRequest {
    pub(crate) count: u32,
    /// The capacity that a semaphore without one gets.
    pub(crate) capacity: Option<u32>,
    /// Whether each permit gets a number that no other has.
    pub(crate) with_slots: bool,
}

/// The message that a refusing script publishes to the listener of the caller's client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wake<'a> {
    /// The client's own channel, to which its listener is always subscribed.
    pub(crate) control: &'a str,
    /// The channel to subscribe to.
    pub(crate) channel: &'a str,
}

impl AcquireArgs<'_> {
    /// Returns the lease in milliseconds.
    pub(crate) fn millis(&self) -> Digits {
        Digits::of_millis(self.lease)
    }

    /// Returns the last arguments of every acquire script.
    pub(crate) fn wake_args(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let parts = self.wake.map(|wake| [wake.control.as_bytes(), wake.channel.as_bytes()]);
        parts.into_iter().flatten()
    }
}

/// Builds the call that ends a hold before its minimum; [`read_release`] reads its reply.
///
/// The lock stays taken for the given time, without a holder. A second copy of the call finds no
/// hold and changes nothing.
pub(crate) type EarlyRelease = fn(&Name, &Owner, Duration) -> Call;

/// Returns the minimum-hold field, which keeps a lock taken without a holder.
pub(crate) fn nobody(owner: &Owner) -> String {
    format!("{owner}:min_hold")
}

/// Returns a span as a script argument: whole milliseconds, rounded up.
pub(crate) fn digits_up(span: Duration) -> Digits {
    Digits::of_millis(span + Duration::from_nanos(999_999))
}

/// The reply of the server to an acquire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AcquireReply {
    /// Granted; the first fencing token, zero for a kind without tokens.
    Granted(u64),
    /// Another holder has the lock. `left` is the remaining lease, `None` without an expiry.
    Refused { left: Option<Duration>, queued: Option<QueuedReply> },
    /// The work is done, and there is nothing to take: the reply has its result.
    Settled(Reply),
    /// The semaphore has fewer permits than the caller needs, those in use included.
    Exceeds { capacity: i64 },
}

/// The time since which the server has had the terms of a client, in microseconds; 0 for none.
///
/// The server forgets the terms when it passes over a caller of the client. So with another time,
/// callers of the client may have lost their places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TermsSince(pub(crate) u64);

/// The server's answer to a caller that it has queued for a queue lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedReply {
    pub(crate) place: Place,
    /// At least each token handed out so far, and less than each later one.
    pub(crate) token_bound: u64,
    pub(crate) terms_since: TermsSince,
}

/// The reply of the server to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    /// Released; the number of subscribers that received the message.
    Released(u64),
    /// The owner has no hold on the server.
    NotHeld,
}

impl ReleaseReply {
    /// Returns the number of subscribers that received the message.
    pub(crate) fn subscribers(self) -> Option<u64> {
        match self {
            ReleaseReply::Released(subscribers) => Some(subscribers),
            ReleaseReply::NotHeld => None,
        }
    }
}

/// How the threads of one process wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queueing {
    /// In one queue: only its head talks to the server, and a hold may be handed off.
    InProcess,
    /// Each thread talks to the server for itself, as if it were a process of its own.
    None,
}

/// The channel that wakes a refused caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListensTo {
    /// The channel of the lock.
    Lock,
    /// The common channel of the readers and writers of a lock.
    ReadWrite,
    /// A channel for this caller alone.
    OwnChannel,
    /// The control channel of the client, whose messages grant the lock to one caller.
    Grants,
    /// The channel of a semaphore, whose messages tell how many permits are free.
    Permits,
    /// The channel of a latch.
    Latch,
    /// None: the caller polls.
    Nothing,
}

/// When a refused caller asks again without news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// After many poll intervals: the watchdog polls for the caller.
    WatchdogPolls,
    /// After the poll interval.
    OwnPolls,
    /// After a pause that grows with each refusal.
    BackOff,
    /// Never: the lock is granted by message, and the watchdog sends queue heartbeats for the call.
    Granted,
}

/// A hold that exists when another one is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherHold<'a> {
    pub(crate) kind: Kind,
    pub(crate) owner: &'a Owner,
    /// Whether both belong to the same thread.
    pub(crate) same_thread: bool,
}

/// The commands, the replies and the sharing rules of one kind of lock.
pub(crate) trait KindRules: RefUnwindSafe + Send + Sync {
    /// Returns the kind, as events name it.
    fn kind(&self) -> Kind;

    /// Returns how the threads of one process wait.
    fn queueing(&self) -> Queueing {
        Queueing::InProcess
    }

    /// Returns whether callers of a process that has the lock again and again yield to others.
    fn yields(&self) -> bool {
        !self.queues_in_redis()
    }

    /// Returns whether a thread with a hold of this kind re-enters it.
    fn re_enters(&self) -> bool {
        true
    }

    /// Returns the channel that wakes a refused caller.
    fn listens_to(&self) -> ListensTo {
        ListensTo::Lock
    }

    /// Returns when a refused caller asks again without news.
    fn pace(&self) -> Pace {
        match (self.listens_to(), self.queueing()) {
            (ListensTo::Nothing, _) => Pace::BackOff,
            (ListensTo::Grants, _) => Pace::Granted,
            (ListensTo::Permits, _) | (_, Queueing::InProcess) => Pace::WatchdogPolls,
            (_, Queueing::None) => Pace::OwnPolls,
        }
    }

    /// Returns the suffix of the owner field, after the number of the hold.
    fn suffix(&self) -> &'static str {
        ""
    }

    /// Returns whether a hold of this kind with this owner may be valid at the same time as
    /// `other`, which may be of any kind.
    fn shares_with(&self, owner: &[u8], other: &OtherHold<'_>) -> bool {
        let _ = (owner, other);
        false
    }

    /// Returns the call that takes the lock.
    fn acquire(&self, args: &AcquireArgs<'_>) -> Call;

    /// Reads the reply to [`KindRules::acquire`].
    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        read_acquire(reply)
    }

    /// Returns the number of permits that other callers may take, as the reply to an acquire says.
    ///
    /// `None` for a kind without permits.
    fn offered(&self, reply: &Reply) -> Option<u32> {
        let _ = reply;
        None
    }

    /// Returns the capacity, if the call asked for it and it is another than the call would set.
    ///
    /// `None` for a kind without permits.
    fn other_capacity(&self, reply: &Reply) -> Option<i64> {
        let _ = reply;
        None
    }

    /// Returns the slots of the permits, as the reply to an acquire says that granted them.
    ///
    /// Empty for permits without slots, and for a kind without permits.
    fn slots(&self, reply: &Reply) -> Box<[u32]> {
        let _ = reply;
        Box::default()
    }

    /// Returns the call that ends a hold; [`read_release`] reads its reply.
    fn release(&self, name: &Name, owner: &Owner) -> Call;

    /// Returns the builder of early releases. `None` for a kind that permits no minimum.
    fn early_release(&self) -> Option<EarlyRelease> {
        None
    }

    /// Returns the call that undoes an acquire with or without a reply.
    ///
    /// It ends the hold, and removes the waiter's place in the queue in Redis. `waiter_timeout` is
    /// that of the acquire.
    fn undo(&self, name: &Name, owner: &Owner, waiter_timeout: Option<Duration>) -> Call {
        let _ = waiter_timeout;
        self.release(name, owner)
    }

    /// Returns whether a refused caller that waits is announced to others, until
    /// [`KindRules::undo`] or the end of a poll interval.
    fn announces_waits(&self) -> bool {
        false
    }

    /// Returns whether a hold may outlive its lease on the server, because other holds extend
    /// the lease of the hash.
    fn outlives_its_lease(&self) -> bool {
        false
    }

    /// Returns whether holds of this kind may linger: a refused caller asks for them.
    fn may_linger(&self) -> bool {
        false
    }

    /// Returns whether holds of this kind have fencing tokens.
    fn has_tokens(&self) -> bool {
        false
    }

    /// Returns whether a refused caller has a place in a queue in Redis, which
    /// [`KindRules::undo`] has to remove.
    fn queues_in_redis(&self) -> bool {
        false
    }

    /// Returns the script that renews many holds of this kind.
    ///
    /// Keys are the [`renewal_key`](KindRules::renewal_key) of each [member](Owner::members),
    /// arguments the lease in milliseconds and the members. The reply has the positions of the lost
    /// members, counted from 1.
    fn renewal(&self) -> &'static Script;

    /// Returns the key for the renewal of a hold: the hash of the lock.
    fn renewal_key<'a>(&self, name: &'a Name) -> &'a str {
        name.key()
    }
}

/// The commands that only a kind of [`Lock`](crate::Lock) has.
pub(crate) trait LockRules: KindRules {
    /// Returns the call that frees the lock, whatever its holder. Sent at most once.
    fn force_unlock(&self, name: &Name) -> Call;

    /// Returns the call for the remaining lease; its reply has the form of `PTTL`.
    fn ttl(&self, name: &Name) -> Call {
        Call::on_key(b"PTTL", name.key().as_bytes(), &[])
    }
}

impl fmt::Debug for dyn KindRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind(), f)
    }
}

/// Reads the reply of an acquire script: -2 for granted, -1 for a holder without an expiry,
/// else the remaining lease in milliseconds.
pub(crate) fn read_acquire(reply: Reply) -> Result<AcquireReply> {
    const GRANTED: i64 = -2;
    Ok(match reply.into_int()? {
        GRANTED => AcquireReply::Granted(0),
        millis => AcquireReply::Refused { left: lease_left(millis), queued: None },
    })
}

/// Returns the error for a list of numbers that a script never returns.
pub(crate) fn unexpected_list() -> Error {
    reply::unexpected(&Reply::List(Vec::new()))
}

/// Returns a remaining lease in milliseconds as a span; `None` for a key without an expiry.
pub(crate) fn lease_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Reads the reply of a release or force-unlock script: -1 for not held, else the number of
/// subscribers that received the message.
pub(crate) fn read_release(reply: Reply) -> Result<ReleaseReply> {
    let subscribers = reply.into_int()?;
    Ok(u64::try_from(subscribers).map_or(ReleaseReply::NotHeld, ReleaseReply::Released))
}
