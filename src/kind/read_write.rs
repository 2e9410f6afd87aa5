//! The two sides of a read-write lock: Redisson's `RReadWriteLock`.
//!
//! One hash serves both sides. It has a field `mode` with the value `read` or `write`, and a field
//! per hold: the owner of a read hold, or the owner and `:write`. Each read hold has a key of its
//! own, which lives as long as its lease. The hash lives as long as the longest of these leases.
//!
//! Readers share the lock. Each asks the server for itself and has a hold of its own, which is
//! never handed off. A writer may also read: the read acquire names the write hold, and the read
//! hold outlives it. A reader cannot write: two readers that both want to write would wait for each
//! other.
//!
//! Differences from Redisson: the end of a write hold whose owner also reads is published to
//! waiters, and the lock then lasts as long as the leases of its readers. A read release never
//! changes the lease of a writer.

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::events::Kind;
use crate::kind::plain::{Plain, UNLOCKED};
use crate::kind::rules::{
    self, AcquireArgs, EarlyRelease, KindRules, ListensTo, LockRules, OtherHold, Pace, Queueing,
    kind_of_lock,
};
use crate::transport::call::{Call, Digits};
use crate::transport::script::Script;

/// The kind of the read side of [`Client::rw_lock`](crate::Client::rw_lock): holds share the lock.
#[derive(Clone, Copy, Debug)]
pub struct Read;

/// The kind of the write side of [`Client::rw_lock`](crate::Client::rw_lock): excludes all others.
#[derive(Clone, Copy, Debug)]
pub struct Write;

kind_of_lock!(Read, Read);
kind_of_lock!(Write, Write);

/// Suffix of the owner field of a write hold.
const WRITER: &str = ":write";

/// Message of a release after which readers may enter.
const READ_UNLOCKED: &[u8] = b"1";

/// Returns the keys of the scripts that take the lock for writing, and end that.
fn write_keys(name: &Name) -> [&[u8]; 2] {
    [name.key().as_bytes(), name.turns_key().as_bytes()]
}

/// Returns the ms for which others know that the caller waits, or nothing if it ignores turns.
fn announced(args: &AcquireArgs<'_>) -> Option<Digits> {
    args.announced.map(Digits::of_millis)
}

impl KindRules for Read {
    fn kind(&self) -> Kind {
        Kind::Read
    }

    fn queueing(&self) -> Queueing {
        Queueing::None
    }

    fn listens_to(&self) -> ListensTo {
        ListensTo::ReadWrite
    }

    fn shares_with(&self, _owner: &[u8], other: &OtherHold<'_>) -> bool {
        other.kind == Read.kind() || other.kind == Write.kind() && other.same_thread
    }

    /// Other readers, and the writer of this thread, extend the lease of the hash.
    fn outlives_its_lease(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let (lease, timeout) = (args.millis(), args.name.timeout_key(args.owner));
        let writer = args.beside.map_or(&b""[..], Owner::as_bytes);
        let turns = args.name.turns_key().as_bytes();
        let keys = [args.name.key().as_bytes(), timeout.as_bytes(), turns];
        let announced = announced(args);
        let announced = announced.as_ref().map_or(&b""[..], Digits::as_bytes);
        let taking = [lease.as_bytes(), args.owner.as_bytes(), writer, announced];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::READ_ACQUIRE, keys, argv)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let (timeout, prefix) = (name.timeout_key(owner), name.timeout_prefix());
        let keys = [name.key().as_bytes(), timeout.as_bytes()];
        let channel = name.rw_channel().as_bytes();
        let args = [owner.as_bytes(), channel, UNLOCKED, prefix.as_bytes()];
        Call::script(&script::READ_RELEASE, keys, args)
    }

    fn renewal(&self) -> &'static Script {
        &script::READ_RENEW
    }
}

impl LockRules for Read {
    fn force_unlock(&self, name: &Name) -> Call {
        let prefix = name.timeout_prefix();
        let args = [name.rw_channel().as_bytes(), UNLOCKED, prefix.as_bytes(), b"read"];
        Call::script(&script::RW_FORCE_UNLOCK, [name.key().as_bytes()], args).once()
    }

    fn ttl(&self, name: &Name) -> Call {
        Call::script(&script::READ_TTL, [name.key().as_bytes()], [])
    }
}

impl KindRules for Write {
    fn kind(&self) -> Kind {
        Kind::Write
    }

    fn listens_to(&self) -> ListensTo {
        ListensTo::ReadWrite
    }

    fn suffix(&self) -> &'static str {
        WRITER
    }

    /// Read holds of the writer extend the lease of the hash.
    fn outlives_its_lease(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let (lease, announced) = (args.millis(), announced(args));
        let announced = announced.as_ref().map_or(&b""[..], Digits::as_bytes);
        let taking = [lease.as_bytes(), args.owner.as_bytes(), announced];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::WRITE_ACQUIRE, write_keys(args.name), argv)
    }

    /// A waiting writer announces itself again with each question.
    fn pace(&self) -> Pace {
        Pace::OwnPolls
    }

    fn announces_waits(&self) -> bool {
        true
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let (channel, prefix) = (name.rw_channel().as_bytes(), name.timeout_prefix());
        let args = [owner.as_bytes(), channel, READ_UNLOCKED, prefix.as_bytes()];
        Call::script(&script::WRITE_RELEASE, write_keys(name), args)
    }

    /// The minimum ends with the write hold if the writer also reads.
    fn early_release(&self) -> Option<EarlyRelease> {
        Some(|name, owner, left| {
            let (channel, prefix) = (name.rw_channel().as_bytes(), name.timeout_prefix());
            let (nobody, left) = (rules::nobody(owner), rules::digits_up(left));
            let args = [owner.as_bytes(), channel, READ_UNLOCKED, prefix.as_bytes()];
            let args = args.into_iter().chain([nobody.as_bytes(), left.as_bytes()]);
            Call::script(&script::WRITE_RELEASE, write_keys(name), args)
        })
    }

    fn may_linger(&self) -> bool {
        true
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}

impl LockRules for Write {
    fn force_unlock(&self, name: &Name) -> Call {
        let prefix = name.timeout_prefix();
        let args = [name.rw_channel().as_bytes(), READ_UNLOCKED, prefix.as_bytes(), b"write"];
        Call::script(&script::RW_FORCE_UNLOCK, [name.key().as_bytes()], args).once()
    }

    fn ttl(&self, name: &Name) -> Call {
        Call::script(&script::WRITE_TTL, [name.key().as_bytes()], [])
    }
}
