//! The queue lock: granted by arrival and weight, in a message to one waiter.
//!
//! Redis has the hash of a plain lock, the counter of a fenced lock, and two keys for the waiting
//! callers: the queue, and the terms of their clients. Each waiting call has its own entry, also
//! the calls of one process.
//!
//! The script that frees the lock grants it to the best waiter: it writes the waiter's owner field
//! with a short *grant lease*, and publishes the grant on the control channel of the waiter's
//! client. The listener finds the thread, which has the hold without a round trip
//! (`local/waiters.rs` computes the deadline of the hold). The first renewal extends the lease.
//!
//! Once per poll interval a *queue heartbeat* of the watchdog keeps the places of all waiters of
//! the client (`watchdog/queue_heartbeats.rs`). It also repeats a grant whose message was lost, and
//! grants a lock that became free without a release. A client without a queue heartbeat for one
//! grant lease counts as gone, and the next grant passes over its waiters. If the client lives
//! after all, its waiters ask again, and name the places that they had.
//!
//! `docs/mechanisms.md` has the protocol, and `queued/model` checks the protocol.

use std::time::Duration;

use uuid::Uuid;

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Kind;
use crate::kind::plain::{self, Plain, UNLOCKED};
use crate::kind::rules::{
    self, AcquireArgs, AcquireReply, EarlyRelease, GrantTerms, KindRules, ListensTo, LockRules,
    Place, PlaceArgs, QueuedReply, Queueing, TermsSince, kind_of_lock,
};
use crate::transport::call::{Call, Digits};
use crate::transport::reply::Reply;
use crate::transport::script::Script;

#[cfg(all(test, leasehold_model))]
mod model;

/// The kind of [`Client::queue_lock`](crate::Client::queue_lock): by arrival and weight.
#[derive(Clone, Copy, Debug)]
pub struct Queued;

kind_of_lock!(Queued, Queued);

/// The answer to a queue heartbeat for one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeartbeatReply {
    pub(crate) terms_since: TermsSince,
    /// The time to the end of the holder's lease; zero for a free lock, `None` without an expiry.
    pub(crate) left: Option<Duration>,
    /// The hold, if this client has the lock.
    pub(crate) own_hold: Option<OwnHold>,
    /// At least each token handed out so far, and less than each later one; 0 if unknown.
    pub(crate) token_bound: u64,
}

/// A hold of this client, as the server reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnHold {
    /// The number of the hold.
    pub(crate) hold: u64,
    pub(crate) token: u64,
}

pub(super) fn keys(name: &Name) -> [&[u8]; 4] {
    [name.key(), name.waiters_key(), name.clients_key(), name.token_key()].map(str::as_bytes)
}

impl GrantTerms {
    fn mode(&self) -> &'static [u8] {
        if self.is_cluster { b"cluster" } else { b"single" }
    }
}

/// Returns the queue heartbeat of a client for these locks, which have one slot.
pub(crate) fn heartbeat<'a>(
    names: impl Iterator<Item = &'a Name>,
    client: Uuid,
    terms: GrantTerms,
) -> Call {
    let names: Vec<_> = names.collect();
    let keys = names.iter().flat_map(|name| keys(name));
    let (client, lease) = (client.to_string(), Digits::of_millis(terms.lease));
    let args = [client.as_bytes(), lease.as_bytes(), terms.mode()];
    Call::script(&script::QUEUE_HEARTBEAT, Vec::from_iter(keys), args)
}

/// Reads the reply to [`heartbeat`]: one answer per lock.
pub(crate) fn read_heartbeat(reply: Reply) -> Result<Vec<HeartbeatReply>> {
    const FREE: i64 = -2;
    let numbers = reply.into_ints()?;
    let answers = numbers.chunks(5).map(|answer| {
        let &[since, left, hold, token, token_bound] = answer else { return Err(unreadable()) };
        let own_hold = OwnHold { hold: hold.unsigned_abs(), token: token.unsigned_abs() };
        Ok(HeartbeatReply {
            terms_since: TermsSince(since.unsigned_abs()),
            left: if left == FREE { Some(Duration::ZERO) } else { rules::lease_left(left) },
            own_hold: (hold != 0).then_some(own_hold),
            token_bound: token_bound.unsigned_abs(),
        })
    });
    answers.collect()
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Server, "a script of the queue lock returned another form of reply")
}

/// Returns the arguments of an acquire script for a caller that waits.
fn place_args(args: &PlaceArgs) -> [Vec<u8>; 4] {
    let micros = |span: Duration| span.as_micros().to_string().into_bytes();
    let lease = Digits::of_millis(args.terms.lease).as_bytes().to_vec();
    let known = args.known.map_or(String::new(), |Place(place)| place.to_string());
    [lease, args.terms.mode().to_vec(), micros(args.advance), known.into_bytes()]
}

impl KindRules for Queued {
    fn kind(&self) -> Kind {
        Kind::Queued
    }

    fn queueing(&self) -> Queueing {
        Queueing::None
    }

    fn listens_to(&self) -> ListensTo {
        ListensTo::Grants
    }

    fn has_tokens(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let (lease, place) = (args.millis(), args.place.as_ref().map(place_args));
        let place = place.iter().flatten().map(Vec::as_slice);
        let argv = [lease.as_bytes(), args.owner.as_bytes()].into_iter().chain(place);
        Call::script(&script::QUEUE_ACQUIRE, keys(args.name), argv)
    }

    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        const ACQUIRED: i64 = -2;
        let numbers = reply.into_ints()?;
        let &[left, token, place, since] = &numbers[..] else { return Err(unreadable()) };
        let token = token.unsigned_abs();
        if left == ACQUIRED {
            return Ok(AcquireReply::Granted(token));
        }
        let queued = QueuedReply {
            place: Place(place.unsigned_abs()),
            token_bound: token,
            terms_since: TermsSince(since.unsigned_abs()),
        };
        let queued = (place != 0).then_some(queued);
        Ok(AcquireReply::Refused { left: rules::lease_left(left), queued })
    }

    /// Also ends a wait: the script removes the caller from the queue.
    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let args = [owner.as_bytes(), name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::QUEUE_RELEASE, keys(name), args)
    }

    fn early_release(&self) -> Option<EarlyRelease> {
        // A queue heartbeat grants the lock after the minimum.
        Some(|name, owner, left| plain::release_early(name, owner, left, None))
    }

    fn queues_in_redis(&self) -> bool {
        true
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}

impl LockRules for Queued {
    fn force_unlock(&self, name: &Name) -> Call {
        let args = [name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::QUEUE_FORCE_UNLOCK, keys(name), args).once()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(numbers: &[i64]) -> Reply {
        Reply::List(numbers.iter().map(|number| Reply::Int(*number)).collect())
    }

    #[test]
    fn the_reply_to_an_acquire_tells_the_token_or_the_place() {
        let granted = Queued.read_acquire(list(&[-2, 7, 0, 0]));
        assert_eq!(granted, Ok(AcquireReply::Granted(7)));
        let refused = |numbers: &[i64]| Queued.read_acquire(list(numbers));
        let left = Some(Duration::from_millis(900));
        assert_eq!(refused(&[900, 7, 0, 0]), Ok(AcquireReply::Refused { left, queued: None }));
        let queued = QueuedReply { place: Place(5), token_bound: 7, terms_since: TermsSince(1) };
        let reply = AcquireReply::Refused { left: None, queued: Some(queued) };
        assert_eq!(refused(&[-1, 7, 5, 1]), Ok(reply));
        assert!(refused(&[900, 7]).is_err_and(|error| error.is_server()));
    }

    #[test]
    fn the_reply_to_a_heartbeat_has_five_numbers_per_lock() {
        let replies = read_heartbeat(list(&[1, -2, 0, 0, 9, 0, 400, 17, 8, 8]));
        let [first, second] = replies.expect("two locks")[..] else { panic!("two locks") };
        assert_eq!(
            (first.terms_since, first.left, first.own_hold),
            (TermsSince(1), Some(Duration::ZERO), None)
        );
        assert_eq!(second.own_hold, Some(OwnHold { hold: 17, token: 8 }));
        assert_eq!((second.left, second.token_bound), (Some(Duration::from_millis(400)), 8));
        assert!(read_heartbeat(list(&[1, -2, 0])).is_err());
    }
}
