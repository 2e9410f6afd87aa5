//! The plain lock: Redisson's `RLock`.
//!
//! A hash at the lock's name with one field, the owner, whose value is the count
//! of its holds: always 1 here, since re-entry is counted in the process.

use std::time::Duration;

use crate::error::Result;
use crate::hold::Owner;
use crate::name::Name;
use crate::protocol::sealed::Sealed;
use crate::protocol::{Ask, Protocol, Rules, Verdict};
use crate::script::{self, Call, Digits, Reply, Script};
use crate::time;

/// The re-entrant lock of [`Client::lock`](crate::Client::lock).
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Protocol for Plain {}

impl Sealed for Plain {
    #[allow(private_interfaces, reason = "only this crate can call it")]
    fn rules() -> &'static dyn Rules {
        &Plain
    }
}

/// What Redisson publishes when a lock becomes free.
const UNLOCKED: &[u8] = b"0";

impl Rules for Plain {
    fn kind(&self) -> &'static str {
        "lock"
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        let lease = Digits::new(time::millis(ask.lease).unsigned_abs());
        let keys = [ask.name.key().as_bytes()];
        let taking = [lease.as_bytes(), ask.owner.as_bytes()];
        let waking = ask.wake.map(|wake| [wake.as_bytes(), ask.name.channel().as_bytes()]);
        let args = taking.into_iter().chain(waking.into_iter().flatten());
        Call::script(&script::PLAIN_ACQUIRE, keys, args).lasting(ask.lease)
    }

    fn verdict(&self, reply: Reply) -> Result<Verdict> {
        const ACQUIRED: i64 = -2;
        let left = match reply.into_int()? {
            ACQUIRED => return Ok(Verdict::Granted),
            millis => u64::try_from(millis).ok().map(Duration::from_millis),
        };
        Ok(Verdict::Refused { left })
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let keys = [name.key().as_bytes()];
        let args = [owner.as_bytes(), name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::PLAIN_RELEASE, keys, args)
    }

    fn force(&self, name: &Name) -> Call {
        let keys = [name.key().as_bytes()];
        let args = [name.channel().as_bytes(), UNLOCKED];
        Call::script(&script::PLAIN_FORCE, keys, args).once()
    }

    fn renewal(&self) -> &'static Script {
        &script::PLAIN_RENEW
    }
}
