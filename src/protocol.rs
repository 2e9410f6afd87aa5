//! What distinguishes one kind of lock from another.
//!
//! A kind is a set of [`Rules`]: how its commands are built and its answers read.
//! Everything that waits, holds, renews and releases is written once, for all.

pub(crate) mod plain;

use std::fmt;
use std::time::Duration;

use crate::error::Result;
use crate::hold::Owner;
use crate::name::Name;
use crate::script::{Call, Reply, Script};

/// The kind of a [`Lock`](crate::Lock). Sealed: the kinds are those of this crate.
pub trait Protocol: sealed::Sealed + Send + Sync + 'static {}

pub(crate) mod sealed {
    /// Keeps [`Protocol`](super::Protocol) from being implemented elsewhere.
    #[allow(unreachable_pub, reason = "a sealed trait is public and cannot be named")]
    pub trait Sealed {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "only this crate can call it")]
        fn rules() -> &'static dyn super::Rules;
    }
}

/// What an attempt asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) name: &'a Name,
    pub(crate) owner: &'a Owner,
    pub(crate) lease: Duration,
    /// The channel by which the listener can be told to subscribe, from a caller
    /// that will wait.
    pub(crate) wake: Option<&'a str>,
}

/// What the server says to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    /// Another holds it; `left` of its lease, or `None` if it has no end.
    Refused {
        left: Option<Duration>,
    },
}

/// What the server says to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// Released, and so many subscribers were told.
    Told(u64),
    NotHeld,
}

/// How one kind of lock is spoken of with the server.
pub(crate) trait Rules: Send + Sync {
    /// The kind, as it stands in messages.
    fn kind(&self) -> &'static str;

    fn acquire(&self, ask: &Ask<'_>) -> Call;

    fn verdict(&self, reply: Reply) -> Result<Verdict>;

    fn release(&self, name: &Name, owner: &Owner) -> Call;

    /// Frees the lock whoever holds it.
    fn force(&self, name: &Name) -> Call;

    /// The script that renews many holds of this kind: keys are the locks' hashes,
    /// arguments the lease and the owners; it answers with the positions that are
    /// lost.
    fn renewal(&self) -> &'static Script;
}

impl fmt::Debug for dyn Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

/// Reads the answer of every release and force script: -1, or how many were told.
pub(crate) fn freed(reply: Reply) -> Result<Freed> {
    let told = reply.into_int()?;
    Ok(u64::try_from(told).map_or(Freed::NotHeld, Freed::Told))
}
