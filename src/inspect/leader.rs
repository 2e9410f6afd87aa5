//! [`Leader`]: the leader of an election, as any client can read it.

use std::sync::Arc;

use super::holder::HolderInfo;
use super::query::{self, Inspector};
use crate::command::client_record;
use crate::command::leader::{self, LeaderRecord};
use crate::command::name::Name;
use crate::command::owner_field::{self, OwnerField};
use crate::engine::Engine;
use crate::engine::absence::Asked;
use crate::error::Result;
use crate::events::Kind;
use crate::transport::call::Call;
use crate::transport::pool::Target;
use crate::transport::reply::Reply;

/// The leader of an [`Election`](crate::Election) at the time of the query.
///
/// Returned by [`Election::leader`](crate::Election::leader) and sent by
/// [`Election::observe`](crate::Election::observe). Two values are equal if they name the same term
/// with the same value. With the feature `serde`, serialized as a structure with one field per
/// method.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leader {
    value: String,
    token: u64,
    holder: HolderInfo,
}

impl Leader {
    /// Reads the reply to a look; `None` without a leader.
    pub(crate) fn read(reply: Reply) -> Result<Option<Leader>> {
        let record = LeaderRecord::read(reply)?;
        Ok(record.map(|record| {
            let holder = HolderInfo::new(&record.owner, OwnerField::parse(&record.owner));
            let holder = holder.with_count(1).with_remaining(record.left);
            let holder = holder.with_since(owner_field::time_of(record.token));
            Leader { value: record.value, token: record.token, holder }
        }))
    }

    /// Returns whether the process of the leader is known.
    pub(crate) fn has_process(&self) -> bool {
        self.holder.record().is_some()
    }

    /// Takes the process from an earlier look at the same term.
    pub(crate) fn keep_process(&mut self, earlier: &Leader) {
        if self == earlier {
            self.holder.set_record(earlier.holder.record().cloned());
        }
    }

    /// Returns the command that reads the record of the client, unless the process is known.
    ///
    /// [`Leader::add_record`] takes its reply.
    pub(crate) fn record_query(&self) -> Option<Call> {
        let (client, _) = self.holder.hold().filter(|_| !self.has_process())?;
        Some(client_record::query(client))
    }

    pub(crate) fn add_record(&mut self, reply: Result<Reply>) -> Result<()> {
        self.holder.set_record(query::read_record(reply)?.map(Arc::new));
        Ok(())
    }

    /// Returns the value of the leader ([`Election::with_value`](crate::Election::with_value)).
    ///
    /// Bytes of another program that are not UTF-8 are replaced by U+FFFD.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the fencing token of the term, larger than that of every earlier term.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the holder of the term: its client and process, and the remaining lease.
    ///
    /// The facts that only the running process knows are `None`. The facts of the client's
    /// [record](crate::Builder::announce) are `None` without a record, and without the permission
    /// to read it.
    #[must_use = "a query changes nothing: use its answer"]
    pub fn holder(&self) -> &HolderInfo {
        &self.holder
    }
}

impl Leader {
    /// Ends the terms of this process that are not this leader's, who holds the lock.
    pub(crate) fn end_other_terms(&self, engine: &Engine, name: &Name, asked: Asked) {
        engine.lose_absent(asked, name.key(), |hold| {
            hold.rules().kind() == Kind::Queued && hold.owner().hold() != self.holder.owner()
        });
    }
}

impl PartialEq for Leader {
    fn eq(&self, other: &Leader) -> bool {
        let is_same_term = self.token == other.token && self.holder.owner() == other.holder.owner();
        is_same_term && self.value == other.value
    }
}

impl Eq for Leader {}

impl Inspector<'_> {
    /// Returns the announced leader. One round trip.
    pub(crate) fn leader(&self, name: &Name, target: Target) -> Result<Option<Leader>> {
        let asked = self.engine().asks_now();
        let leader = Leader::read(self.ask(leader::look(name), target)?)?;
        if let Some(leader) = &leader {
            leader.end_other_terms(self.engine(), name, asked);
        }
        Ok(leader)
    }

    /// Adds the record of the leader's client, if this client may read it. One round trip.
    ///
    /// The record may be on a node of a cluster that does not answer.
    pub(crate) fn add_process(&self, leader: &mut Leader) -> Result<()> {
        let Some(query) = leader.record_query() else { return Ok(()) };
        match leader.add_record(self.ask_for_record(query)) {
            Err(error) if error.code() == Some("NOPERM") || self.engine().is_partial(&error) => {
                Ok(())
            }
            outcome => outcome,
        }
    }
}
