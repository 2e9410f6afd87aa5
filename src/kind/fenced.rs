//! The fenced lock: Redisson's `RFencedLock`.
//!
//! The hash of a plain lock, and a counter beside it: the last token that was given out.
//! Each hold gets a token larger than all before it, which the protected resource can
//! compare: it refuses who comes with a smaller one than it has seen. The next token is
//! the larger of the counter plus one and the server's time in microseconds, so that it
//! grows also where the counter was lost.
//!
//! A hold that may go from thread to thread of this process takes one token for each of
//! them, with the acquire: no thread gets that of another.

use crate::command::call::{Call, Digits};
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::reply::Reply;
use crate::command::script::{self, Script};
use crate::error::Result;
use crate::events::Kind;
use crate::kind::plain::Plain;
use crate::kind::rules::{self, AcquireArgs, AcquireReply, KindRules, kind_of_lock};

/// The lock of [`Client::fenced_lock`](crate::Client::fenced_lock), whose guards have a
/// fencing token: Redisson's `RFencedLock`.
#[derive(Clone, Copy, Debug)]
pub struct Fenced;

kind_of_lock!(Fenced, Fenced);

impl KindRules for Fenced {
    fn kind(&self) -> Kind {
        Kind::Fenced
    }

    fn has_tokens(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let (lease, threads) = (args.millis(), Digits::new(args.threads.into()));
        let counter = args.name.token_key();
        let keys = [args.name.key().as_bytes(), counter.as_bytes()];
        let taking = [lease.as_bytes(), args.owner.as_bytes(), threads.as_bytes()];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::FENCED_ACQUIRE, keys, argv).lasting(args.lease)
    }

    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        match reply.into_int()? {
            minus_token @ ..-1 => Ok(AcquireReply::Granted(minus_token.unsigned_abs())),
            millis => Ok(AcquireReply::Refused { left: rules::lease_left(millis) }),
        }
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        Plain.release(name, owner)
    }

    fn force_unlock(&self, name: &Name) -> Call {
        Plain.force_unlock(name)
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}
