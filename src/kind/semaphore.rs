//! The semaphore with leased permits: Redisson's `RPermitExpirableSemaphore`.
//!
//! The key of the name is a string, the number of free permits. A sorted set has the ids of the
//! permits in use, with their expiries by the clock of the server. So the capacity is the sum of
//! both. A permit whose expiry has passed stays in use until a script *reclaims* it.
//!
//! A hold has one or more permits, which it takes and gives back together. An acquire that finds
//! the ids of its permits restores their lease, so it may be repeated. A release removes the ids
//! that it finds, so it may be repeated too.
//!
//! A *claim* is a hash with the caller that waits for permits and may reserve them, because it has
//! waited for longer than one poll interval. Other callers leave that number of permits free. Polls
//! of the watchdog set and keep claims, in the order of the arrivals of their callers.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use crate::command::details::wake_channel;
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::error::Result;
use crate::events::Kind;
use crate::kind::rules::{
    self, AcquireArgs, AcquireReply, EarlyRelease, KindRules, ListensTo, OtherHold, Queueing,
};
use crate::transport::call::{Call, Digits};
use crate::transport::reply::Reply;
use crate::transport::script::Script;
use crate::util::clock;

/// The rules of the permits of a semaphore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permits;

/// The first numbers of the replies to an acquire that are no remaining lease.
const ACQUIRED: i64 = -2;
const EXCEEDS_CAPACITY: i64 = -3;

fn keys(name: &Name) -> [&[u8]; 3] {
    [name.key(), name.expiries_key(), name.claim_key()].map(str::as_bytes)
}

/// Returns the permit ids in an owner field; none for another kind.
fn ids(owner: &Owner) -> impl Iterator<Item = &[u8]> + Clone {
    owner.permits().into_iter().flat_map(|permits| permits.iter())
}

fn claimant(owner: &Owner) -> &[u8] {
    owner.permits().map_or(b"", |permits| permits.claimant().as_bytes())
}

/// Reads the first two numbers of a reply to an acquire, and the third if it is a capacity.
fn numbers(reply: &Reply) -> Option<(i64, i64, Option<i64>)> {
    let Reply::List(parts) = reply else { return None };
    match parts[..] {
        [Reply::Int(first), Reply::Int(second)] => Some((first, second, None)),
        [Reply::Int(first), Reply::Int(second), Reply::Int(third), ..] => {
            Some((first, second, (third >= 0).then_some(third)))
        }
        _ => None,
    }
}

/// A poll of a semaphore, for the oldest caller of this process that waits for its permits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitPoll<'a> {
    pub(crate) name: &'a Name,
    pub(crate) claimant: &'a str,
    /// The number of permits that the caller needs.
    pub(crate) permits: u32,
    /// The time for which the caller has waited.
    pub(crate) waited: Duration,
    /// Whether the caller may reserve the permits.
    pub(crate) claims: bool,
}

/// The answer to a poll of one semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitPollReply {
    /// Whether the caller has to ask.
    pub(crate) must_ask: bool,
    /// The number of permits that other callers may take.
    pub(crate) others: u32,
    /// The time until the next permit expires.
    pub(crate) left: Option<Duration>,
    /// The number of permits of the semaphore, those in use included.
    pub(crate) capacity: u32,
}

/// Returns the call that polls these semaphores. A claim lasts for `lifetime` after its last poll.
pub(crate) fn poll(polls: &[PermitPoll<'_>], lifetime: Duration) -> Call {
    let lifetime = Digits::of_millis(lifetime);
    let numbers = |poll: &PermitPoll<'_>| {
        [u64::from(poll.permits), clock::millis(poll.waited).unsigned_abs()].map(Digits::new)
    };
    let numbers: Vec<[Digits; 2]> = polls.iter().map(numbers).collect();
    let all_keys = polls.iter().flat_map(|poll| keys(poll.name));
    let args = polls.iter().zip(&numbers).flat_map(|(poll, [permits, waited])| {
        let [channel, claimant] = [poll.name.permits_channel(), poll.claimant].map(str::as_bytes);
        let mode: &[u8] = if poll.claims { b"claim" } else { b"wait" };
        [channel, claimant, permits.as_bytes(), waited.as_bytes(), mode]
    });
    let args = std::iter::once(lifetime.as_bytes()).chain(args);
    Call::script(&script::SEMAPHORE_POLL, all_keys, args)
}

/// Returns the call that takes all permits in use away from their holders, and tells these clients.
///
/// [`rules::read_release`] reads its reply. The call must not run twice.
pub(crate) fn force_release(name: &Name, clients: &BTreeSet<Uuid>) -> Call {
    let keys = [name.key(), name.expiries_key()].map(str::as_bytes);
    let told: Vec<_> = clients.iter().map(|client| wake_channel(*client)).collect();
    let channels = [name.permits_channel()].into_iter().chain(told.iter().map(String::as_str));
    Call::script(&script::SEMAPHORE_FORCE_RELEASE, keys, channels.map(str::as_bytes))
}

/// Returns the call that withdraws the claim of a caller that does not wait any more.
pub(crate) fn withdraw(name: &Name, claimant: &str) -> Call {
    // No permit has an empty id.
    let argv = [name.permits_channel(), claimant, ""].map(str::as_bytes);
    Call::script(&script::SEMAPHORE_LEAVE, keys(name), argv)
}

/// Reads the reply to [`poll`]: one answer per semaphore.
pub(crate) fn read_poll(reply: Reply) -> Result<Vec<PermitPollReply>> {
    let number = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
    let numbers = reply.into_ints()?;
    let answers = numbers.chunks(4).map(|answer| match *answer {
        [must_ask, others, left, capacity] => Ok(PermitPollReply {
            must_ask: must_ask == 1,
            others: number(others),
            left: rules::lease_left(left),
            capacity: number(capacity),
        }),
        _ => Err(rules::unexpected_list()),
    });
    answers.collect()
}

impl KindRules for Permits {
    fn kind(&self) -> Kind {
        Kind::Semaphore
    }

    fn queueing(&self) -> Queueing {
        Queueing::None
    }

    fn re_enters(&self) -> bool {
        false
    }

    fn listens_to(&self) -> ListensTo {
        ListensTo::Permits
    }

    fn shares_with(&self, _owner: &[u8], other: &OtherHold<'_>) -> bool {
        other.kind == Kind::Semaphore
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let (lease, channel) = (args.millis(), args.name.permits_channel());
        let asks = if args.asks_capacity { "?" } else { "" };
        let capacity = args.capacity.map(|capacity| format!("{asks}{capacity}"));
        let capacity = capacity.unwrap_or_default();
        let waits = args.waiter_timeout.is_some();
        let claimant = if waits { claimant(args.owner) } else { b"" };
        let first = [lease.as_bytes(), capacity.as_bytes(), channel.as_bytes(), claimant];
        let argv = first.into_iter().chain(ids(args.owner));
        let slots = args.with_slots.then(|| args.name.slots_key().as_bytes());
        let keys = Vec::from_iter(keys(args.name).into_iter().chain(slots));
        Call::script(&script::SEMAPHORE_ACQUIRE, keys, argv)
    }

    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        let Some((first, second, _)) = numbers(&reply) else {
            return reply.into_ints().and_then(|_| Err(rules::unexpected_list()));
        };
        Ok(match first {
            ACQUIRED => AcquireReply::Granted(0),
            EXCEEDS_CAPACITY => AcquireReply::Exceeds { capacity: second },
            millis => AcquireReply::Refused { left: rules::lease_left(millis), queued: None },
        })
    }

    fn offered(&self, reply: &Reply) -> Option<u32> {
        let (_, others, _) = numbers(reply).filter(|(first, ..)| *first != EXCEEDS_CAPACITY)?;
        u32::try_from(others).ok()
    }

    fn other_capacity(&self, reply: &Reply) -> Option<i64> {
        numbers(reply)?.2
    }

    fn slots(&self, reply: &Reply) -> Box<[u32]> {
        let Reply::List(parts) = reply else { return Box::default() };
        let slot = |part: &Reply| match part {
            Reply::Int(slot) => u32::try_from(*slot).ok(),
            _ => None,
        };
        parts.iter().skip(3).filter_map(slot).collect()
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let [permits, expiries, _] = keys(name);
        let argv = std::iter::once(name.permits_channel().as_bytes()).chain(ids(owner));
        Call::script(&script::SEMAPHORE_RELEASE, [permits, expiries], argv)
    }

    fn early_release(&self) -> Option<EarlyRelease> {
        Some(|name, owner, left| {
            let (left, keys) = (rules::digits_up(left), [name.expiries_key().as_bytes()]);
            let argv = std::iter::once(left.as_bytes()).chain(ids(owner));
            Call::script(&script::SEMAPHORE_EARLY_RELEASE, keys, argv)
        })
    }

    /// Also withdraws the claim of the call.
    fn undo(&self, name: &Name, owner: &Owner, _waiter_timeout: Option<Duration>) -> Call {
        let first = [name.permits_channel().as_bytes(), claimant(owner)];
        let argv = first.into_iter().chain(ids(owner));
        Call::script(&script::SEMAPHORE_LEAVE, keys(name), argv)
    }

    fn renewal(&self) -> &'static Script {
        &script::SEMAPHORE_RENEW
    }

    fn renewal_key<'a>(&self, name: &'a Name) -> &'a str {
        name.expiries_key()
    }
}
