//! The two sides of a read-write lock: Redisson's `RReadWriteLock`.
//!
//! One hash for both: a field `mode`, `read` or `write`, and a field per hold: the owner
//! of a reader, or the owner and `:write`. OtherHold it a key per read hold that lives as
//! long as its lease; the hash lives as long as the longest of them.
//!
//! Readers share. Each has a hold of its own, never passed on, and asks by itself. Who
//! writes may read too, by naming its write hold, and goes on reading when that ends; the
//! other way round is refused, since two readers that want to write would wait for each
//! other.
//!
//! Where this differs from Redisson: the end of a write hold under which its owner reads
//! is told to those who wait, and the lock then lasts as long as its readers' leases; a
//! read release never touches the lease of who writes.

use crate::command::call::Call;
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script::{self, Script};
use crate::events::Kind;
use crate::kind::plain::{Plain, UNLOCKED};
use crate::kind::rules::{AcquireArgs, KindRules, ListensTo, OtherHold, Queueing, kind_of_lock};

/// The reading side of [`Client::rw_lock`](crate::Client::rw_lock).
#[derive(Clone, Copy, Debug)]
pub struct Read;

/// The writing side of [`Client::rw_lock`](crate::Client::rw_lock).
#[derive(Clone, Copy, Debug)]
pub struct Write;

kind_of_lock!(Read, Read);
kind_of_lock!(Write, Write);

/// What stands behind the owner of a writer.
const WRITER: &str = ":write";

/// What is published when readers may come, many at a time.
const READ_UNLOCKED: &[u8] = b"1";

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

    /// Other readers keep it there, and its writer.
    fn outlives_its_lease(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let (lease, timeout) = (args.millis(), args.name.timeout_key(args.owner));
        let writer = args.beside.map_or(&b""[..], Owner::as_bytes);
        let keys = [args.name.key().as_bytes(), timeout.as_bytes()];
        let taking = [lease.as_bytes(), args.owner.as_bytes(), writer];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::READ_ACQUIRE, keys, argv).lasting(args.lease)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let (timeout, prefix) = (name.timeout_key(owner), name.timeout_prefix());
        let keys = [name.key().as_bytes(), timeout.as_bytes()];
        let channel = name.rw_channel().as_bytes();
        let args = [owner.as_bytes(), channel, UNLOCKED, prefix.as_bytes()];
        Call::script(&script::READ_RELEASE, keys, args)
    }

    fn force_unlock(&self, name: &Name) -> Call {
        let prefix = name.timeout_prefix();
        let args = [name.rw_channel().as_bytes(), UNLOCKED, prefix.as_bytes()];
        Call::script(&script::READ_FORCE_UNLOCK, [name.key().as_bytes()], args).once()
    }

    fn ttl(&self, name: &Name) -> Call {
        Call::script(&script::READ_TTL, [name.key().as_bytes()], [])
    }

    fn renewal(&self) -> &'static Script {
        &script::READ_RENEW
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

    /// Its own reading keeps it there.
    fn outlives_its_lease(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let lease = args.millis();
        let taking = [lease.as_bytes(), args.owner.as_bytes()];
        let argv = taking.into_iter().chain(args.wake_args());
        Call::script(&script::WRITE_ACQUIRE, [args.name.key().as_bytes()], argv).lasting(args.lease)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let (channel, prefix) = (name.rw_channel().as_bytes(), name.timeout_prefix());
        let args = [owner.as_bytes(), channel, READ_UNLOCKED, prefix.as_bytes()];
        Call::script(&script::WRITE_RELEASE, [name.key().as_bytes()], args)
    }

    fn force_unlock(&self, name: &Name) -> Call {
        let prefix = name.timeout_prefix();
        let args = [name.rw_channel().as_bytes(), READ_UNLOCKED, prefix.as_bytes()];
        Call::script(&script::WRITE_FORCE_UNLOCK, [name.key().as_bytes()], args).once()
    }

    fn ttl(&self, name: &Name) -> Call {
        Call::script(&script::WRITE_TTL, [name.key().as_bytes()], [])
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}
