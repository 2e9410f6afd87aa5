//! The lock of an election: a queue lock whose release also ends the record of the leader.
//!
//! The script of the release deletes the record of its owner and tells the observers, in the step
//! that grants the lock to the best candidate. All other rules are those of the queue lock.

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::error::Result;
use crate::events::Kind;
use crate::kind::queued::{self, Queued};
use crate::kind::rules::{AcquireArgs, AcquireReply, KindRules, ListensTo, Queueing};
use crate::transport::call::Call;
use crate::transport::reply::Reply;
use crate::transport::script::Script;

/// The rules of the lock of an election.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elected;

impl KindRules for Elected {
    fn kind(&self) -> Kind {
        Queued.kind()
    }

    fn queueing(&self) -> Queueing {
        Queued.queueing()
    }

    fn listens_to(&self) -> ListensTo {
        Queued.listens_to()
    }

    fn has_tokens(&self) -> bool {
        Queued.has_tokens()
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        Queued.acquire(args)
    }

    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        Queued.read_acquire(reply)
    }

    /// Also ends the wait of a candidate.
    fn release(&self, name: &Name, owner: &Owner) -> Call {
        let (record, channel) = (name.leader_key(), name.election_channel());
        let [hash, queue, clients, counter] = queued::keys(name);
        let keys = [hash, queue, clients, counter, record.as_bytes()];
        Call::script(&script::LEADER_RELEASE, keys, [owner.as_bytes(), channel.as_bytes()])
    }

    fn queues_in_redis(&self) -> bool {
        Queued.queues_in_redis()
    }

    fn renewal(&self) -> &'static Script {
        Queued.renewal()
    }
}
