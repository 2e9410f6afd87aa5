//! The fenced lock: Redisson's `RFencedLock`.
//!
//! The format in Redis is that of the plain lock, and a counter with the last token. Each hold gets
//! a token larger than all earlier tokens. A protected resource compares the tokens of its callers,
//! and refuses a token smaller than the largest one so far. The next token is the larger of the
//! counter plus one and the server's time in microseconds, so tokens also grow after the counter
//! was lost.
//!
//! An acquire takes one token for each thread of this process to which the hold may be handed off,
//! so no two holders have the same token.

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::error::Result;
use crate::events::Kind;
use crate::kind::plain::Plain;
use crate::kind::rules::{
    self, AcquireArgs, AcquireReply, EarlyRelease, KindRules, LockRules, kind_of_lock,
};
use crate::transport::call::{Call, Digits};
use crate::transport::reply::Reply;
use crate::transport::script::Script;

/// The kind of [`Client::fenced_lock`](crate::Client::fenced_lock): its guards have fencing tokens.
#[derive(Clone, Copy, Debug)]
pub struct Fenced;

kind_of_lock!(Fenced, Fenced);

/// The hash, and the token counter.
pub(super) fn keys(name: &Name) -> [&[u8]; 2] {
    [name.key(), name.token_key()].map(str::as_bytes)
}

/// Returns the call of a script that takes a lock with a block of tokens.
pub(super) fn take<const N: usize>(
    script: &'static Script,
    keys: [&[u8]; N],
    args: &AcquireArgs<'_>,
) -> Call {
    let (lease, max_holders) = (args.millis(), Digits::new(args.max_holders.into()));
    let taking = [lease.as_bytes(), args.owner.as_bytes(), max_holders.as_bytes()];
    Call::script(script, keys, taking.into_iter().chain(args.wake_args()))
}

impl KindRules for Fenced {
    fn kind(&self) -> Kind {
        Kind::Fenced
    }

    fn has_tokens(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        take(&script::FENCED_ACQUIRE, keys(args.name), args)
    }

    /// A granted acquire returns its first token as a negative number; -1 is a refusal.
    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        match reply.into_int()? {
            negated @ ..-1 => Ok(AcquireReply::Granted(negated.unsigned_abs())),
            millis => Ok(AcquireReply::Refused { left: rules::lease_left(millis), queued: None }),
        }
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        Plain.release(name, owner)
    }

    fn early_release(&self) -> Option<EarlyRelease> {
        Plain.early_release()
    }

    fn may_linger(&self) -> bool {
        true
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}

impl LockRules for Fenced {
    fn force_unlock(&self, name: &Name) -> Call {
        Plain.force_unlock(name)
    }
}
