//! The plain lock under a name that the caller gives, instead of a hold's.
//!
//! The name is the whole owner field, so whoever presents it, in whatever thread or
//! process, enters again; the count of its holds is the field's value. A count cannot be
//! sent twice, so each hold has a number all the same: a key beside the lock remembers what
//! became of it. A copy of an acquire or of a release that comes late, or again, finds it
//! there.

use std::time::Duration;

use crate::hold::Owner;
use crate::name::Name;
use crate::protocol::plain::{Plain, UNLOCKED};
use crate::protocol::{self, Ask, Beside, Line, Rules};
use crate::script::{self, Call, Script};

/// The rules of a plain lock with a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named;

/// How long it is remembered what became of a request: longer than a copy of it can be
/// late.
const MEMORY: Duration = Duration::from_secs(600);

impl Named {
    fn end(name: &Name, owner: &Owner, unknown_counts: bool) -> Call {
        let (request, memory) = (name.request_key(owner), protocol::digits(MEMORY));
        let keys = [name.key().as_bytes(), request.as_bytes()];
        let (channel, unknown) = (name.channel().as_bytes(), [b'0' + u8::from(unknown_counts)]);
        let args = [owner.as_bytes(), channel, UNLOCKED, memory.as_bytes(), &unknown];
        Call::script(&script::NAMED_RELEASE, keys, args)
    }
}

impl Rules for Named {
    fn kind(&self) -> &'static str {
        "lock of a named holder"
    }

    fn line(&self) -> Line {
        Line::None
    }

    fn re_enters(&self) -> bool {
        false
    }

    fn shares_with(&self, owner: &[u8], other: &Beside<'_>) -> bool {
        other.kind == Named.kind() && other.owner.as_bytes() == owner
    }

    /// Others who present the name keep it there.
    fn outlives_its_lease(&self) -> bool {
        true
    }

    fn acquire(&self, ask: &Ask<'_>) -> Call {
        let (lease, memory) = (ask.millis(), protocol::digits(MEMORY));
        let request = ask.name.request_key(ask.owner);
        let keys = [ask.name.key().as_bytes(), request.as_bytes()];
        let taking = [lease.as_bytes(), ask.owner.as_bytes(), memory.as_bytes()];
        let args = taking.into_iter().chain(ask.waking());
        Call::script(&script::NAMED_ACQUIRE, keys, args).lasting(ask.lease)
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        Named::end(name, owner, true)
    }

    fn undo(&self, name: &Name, owner: &Owner, _patience: Option<Duration>) -> Call {
        Named::end(name, owner, false)
    }

    fn force(&self, name: &Name) -> Call {
        Plain.force(name)
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}
