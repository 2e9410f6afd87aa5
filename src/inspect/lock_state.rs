//! The data of one lock or semaphore on the server, as `lua/lock_info.lua` returns it.
//!
//! | field of the hash | value | meaning |
//! | --- | --- | --- |
//! | `mode` | `read`, `write` | a read-write lock |
//! | owner field | count | a holder; a reader, if the hash has a `mode` |
//! | owner field and `:write` | count | the writer |
//! | owner field of leasehold | 0 | a hold of the named holder |
//! | owner field and `:min_hold` | 1 | the minimum of a former holder; the lock has no holder |
//! | any other name | count | a named holder |

use std::time::Duration;

use super::holder::HolderInfo;
use super::permits::PermitsState;
use crate::command::name::Name;
use crate::command::owner::HoldId;
use crate::command::owner_field::{OwnerField, OwnerSuffix, time_of};
use crate::error::Result;
use crate::events::Kind;
use crate::kind::rules::lease_left;
use crate::transport::reply::Reply;

/// The side of a read-write lock to which a query is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
    Both,
}

/// The data of one lock, or of one semaphore with permits in use.
#[derive(Debug)]
pub(super) struct LockState {
    remaining: Option<Duration>,
    fields: Vec<LockField>,
    /// The text of the token counter; empty if there is none, and if it was not read.
    counter: Vec<u8>,
    /// The owner fields of callers that wait for a fair lock, in their order.
    fair_queue: Vec<String>,
    /// The owner fields of callers that wait for a queue lock, in their order.
    waiters: Vec<String>,
    /// The owner and the value of the record of an election's leader.
    leader: Option<(String, String)>,
    /// The permits of a semaphore, which has no fields.
    permits: Option<PermitsState>,
}

/// One field of the hash.
#[derive(Debug)]
struct LockField {
    text: String,
    value: Vec<u8>,
    role: FieldRole,
    /// The remaining lease of this field alone, if it is a reader.
    lease: Option<Option<Duration>>,
}

/// The meaning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldRole {
    Mode(Side),
    Holder(OwnerField),
    /// A hold of a named holder.
    NamedHold(OwnerField),
    MinHold(OwnerField),
    Other,
}

impl LockField {
    fn new(text: &[u8], value: &[u8]) -> LockField {
        let text = String::from_utf8_lossy(text).into_owned();
        let role = match (OwnerField::parse(&text), value) {
            (Some(id), _) if id.suffix == OwnerSuffix::MinHold => FieldRole::MinHold(id),
            (Some(id), b"0") if id.is_ours() => FieldRole::NamedHold(id),
            (Some(id), _) => FieldRole::Holder(id),
            (None, b"read") if text == "mode" => FieldRole::Mode(Side::Read),
            (None, b"write") if text == "mode" => FieldRole::Mode(Side::Write),
            (None, _) => FieldRole::Other,
        };
        LockField { text, value: value.to_vec(), role, lease: None }
    }

    /// Returns the value as a number, or zero if the value is no number.
    fn count(&self) -> u64 {
        std::str::from_utf8(&self.value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn id(&self) -> Option<OwnerField> {
        match self.role {
            FieldRole::Holder(id) => Some(id),
            _ => None,
        }
    }

    /// Returns the kind that the number tells, if leasehold wrote the field.
    fn told_kind(&self) -> Option<Kind> {
        match self.role {
            FieldRole::Holder(id) | FieldRole::MinHold(id) if id.is_ours() => {
                Some(HoldId::kind_of(id.number))
            }
            _ => None,
        }
    }

    fn is_writer(&self) -> bool {
        self.id().is_some_and(|id| id.suffix == OwnerSuffix::Write)
    }

    /// Returns whether the field is a holder on this side of the lock.
    fn is_holder(&self, side: Side) -> bool {
        let is_holder = matches!(self.role, FieldRole::Holder(_) | FieldRole::Other);
        let is_on_side = match side {
            Side::Both => true,
            Side::Write => self.is_writer(),
            Side::Read => !self.is_writer(),
        };
        is_holder && is_on_side
    }
}

impl LockState {
    /// Reads the description of one lock; `None` if the key is no hash.
    pub(super) fn read(reply: Reply) -> Result<Option<LockState>> {
        let mut parts = reply.into_list()?.into_iter();
        let Some(remaining) = parts.next() else { return Ok(None) };
        let mut next = || parts.next().unwrap_or(Reply::List(Vec::new()));
        let texts = next().into_texts()?;
        let mut fields: Vec<_> =
            texts.chunks_exact(2).map(|pair| LockField::new(&pair[0], &pair[1])).collect();
        let leases = next().into_ints()?;
        for (field, left) in fields.iter_mut().zip(leases) {
            const OVER: i64 = -2;
            let lease = if left == OVER { Some(Duration::ZERO) } else { lease_left(left) };
            field.lease = (!field.is_writer()).then_some(lease);
        }
        let counter = next().into_text().unwrap_or_default();
        let (fair_queue, waiters) = (read_owners(next())?, read_owners(next())?);
        let leader = <[String; 2]>::try_from(read_owners(next())?).ok();
        let permits = parts.next().map(PermitsState::read).transpose()?;
        Ok(Some(LockState {
            remaining: lease_left(remaining.into_int()?),
            fields,
            counter,
            fair_queue,
            waiters,
            leader: leader.map(|[owner, value]| (owner, value)),
            permits,
        }))
    }

    /// Returns the permits, if this is a semaphore.
    pub(super) fn permits(&self) -> Option<&PermitsState> {
        self.permits.as_ref()
    }

    /// Returns the remaining lease; that of the permit with the longest.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.permits.as_ref().map_or(self.remaining, PermitsState::remaining)
    }

    /// Returns the value of the leader, whose record counts only while its owner holds the lock.
    pub(super) fn leader_value(&self) -> Option<&str> {
        let (owner, value) = self.leader.as_ref()?;
        self.has_hold(owner).then_some(value)
    }

    /// Returns whether the hash is that of a lock, and not of another program.
    ///
    /// Every field has one of the forms above, with a count. The name of a named holder has a hold
    /// beside it. A semaphore counts as a lock.
    pub(super) fn is_lock(&self) -> bool {
        if self.permits.is_some() {
            return true;
        }
        let has = |role: fn(&LockField) -> bool| self.fields.iter().any(role);
        let has_holds = has(|it| matches!(it.role, FieldRole::NamedHold(_)));
        let has_mode = self.mode().is_some();
        let mut names = self.fields.iter().filter(|it| it.role == FieldRole::Other);
        let is_named = |it: &LockField| has_holds && !has_mode && it.count() > 0;
        let fits = names.next().is_none_or(is_named) && names.next().is_none();
        let counts = self.fields.iter().filter(|it| it.id().is_some()).all(|it| it.count() > 0);
        let has_id = has(|it| !matches!(it.role, FieldRole::Mode(_) | FieldRole::Other));
        fits && counts && has_id
    }

    /// Returns whether the hash has this field of a hold.
    pub(super) fn has_hold(&self, hold: &str) -> bool {
        self.fields.iter().any(|field| field.text == hold)
    }

    /// Returns the kind: that of the hold, which its number tells, if leasehold wrote the field.
    pub(super) fn kind(&self) -> Kind {
        match self.kind_of_keys() {
            kind @ (Kind::Read | Kind::Write | Kind::Named | Kind::Semaphore) => kind,
            kind => self.fields.iter().find_map(LockField::told_kind).unwrap_or(kind),
        }
    }

    /// Returns the kind that the fields, and the keys beside the hash, suggest.
    ///
    /// The waiting callers of that kind are those to wake. Redisson's hold of a fair lock or of a
    /// fenced lock differs from that of a plain lock by the other keys only.
    pub(super) fn kind_of_keys(&self) -> Kind {
        let is_named = self.fields.iter().any(|it| matches!(it.role, FieldRole::NamedHold(_)));
        match self.mode() {
            Some(Side::Read) => Kind::Read,
            Some(_) => Kind::Write,
            None if self.permits.is_some() => Kind::Semaphore,
            None if is_named => Kind::Named,
            None if !self.fair_queue.is_empty() => Kind::Fair,
            None if !self.waiters.is_empty() => Kind::Queued,
            None if !self.counter.is_empty() => Kind::Fenced,
            None => Kind::Plain,
        }
    }

    /// Returns the channel with the messages for waiting callers.
    pub(super) fn channel<'n>(&self, name: &'n Name) -> &'n str {
        match (&self.permits, self.mode()) {
            (Some(_), _) => name.permits_channel(),
            (None, Some(_)) => name.rw_channel(),
            (None, None) => name.channel(),
        }
    }

    /// Returns the callers in the queue that the kind has, in its order.
    pub(super) fn queue(&self) -> Vec<HolderInfo> {
        let owners = [&self.fair_queue, &self.waiters].into_iter().find(|it| !it.is_empty());
        owners.map_or_else(Vec::new, |owners| waiting_callers(owners))
    }

    /// Returns the value of the token counter, if there is one.
    pub(super) fn token(&self) -> Option<u64> {
        std::str::from_utf8(&self.counter).ok()?.parse().ok()
    }

    fn mode(&self) -> Option<Side> {
        self.fields.iter().find_map(|field| match field.role {
            FieldRole::Mode(side) => Some(side),
            _ => None,
        })
    }

    /// Returns the holders on one side, without the records of their clients.
    pub(super) fn holders(&self, side: Side) -> Vec<HolderInfo> {
        if let Some(permits) = &self.permits {
            return permits.holders();
        }
        let mut holders = self.named_holders(side);
        let name = holders.first().map(|holder| holder.owner().to_owned());
        let holds = holders.len() as u64;
        for field in self.fields.iter().filter(|field| field.is_holder(side)) {
            let has_holds = name.as_ref() == Some(&field.text);
            let unexplained = field.count().saturating_sub(if has_holds { holds } else { 0 });
            if has_holds && unexplained == 0 {
                continue;
            }
            holders.push(
                self.with_times(HolderInfo::new(&field.text, field.id()), field)
                    .with_count(unexplained),
            );
        }
        holders
    }

    /// Returns the holder that has released the lock before its minimum, which keeps it taken.
    pub(super) fn former_holder(&self) -> Option<HolderInfo> {
        self.fields.iter().find_map(|field| match field.role {
            FieldRole::MinHold(id) => {
                let owner = field.text.trim_end_matches(":min_hold");
                Some(self.with_times(HolderInfo::new(owner, Some(id)), field))
            }
            _ => None,
        })
    }

    /// Adds the times of the hold with this field.
    fn with_times(&self, holder: HolderInfo, field: &LockField) -> HolderInfo {
        let holder = match field.told_kind() {
            // The number is that of the place in the queue, and so of the beginning of a wait.
            Some(Kind::Fair) => holder.with_since(None),
            Some(Kind::Queued) => holder.with_since(self.token().and_then(time_of)),
            _ => holder,
        };
        holder.with_remaining(field.lease.unwrap_or(self.remaining))
    }

    /// Returns the holds of a named holder, each with its client.
    fn named_holders(&self, side: Side) -> Vec<HolderInfo> {
        let mut names = self.fields.iter().filter(|it| it.is_holder(side) && it.count() > 0);
        let Some(named) = names.next().filter(|_| self.mode().is_none()) else { return Vec::new() };
        let mut holders = Vec::new();
        for field in &self.fields {
            if let FieldRole::NamedHold(id) = field.role {
                let holder = HolderInfo::new(&named.text, Some(id)).with_count(1);
                holders.push(holder.with_remaining(self.remaining));
            }
        }
        holders
    }
}

/// Returns the waiting callers of a queue.
pub(super) fn waiting_callers(queue: &[String]) -> Vec<HolderInfo> {
    queue.iter().map(|owner| HolderInfo::new(owner, OwnerField::parse(owner))).collect()
}

/// Reads the owner fields of a queue.
pub(super) fn read_owners(queue: Reply) -> Result<Vec<String>> {
    let owners = queue.into_texts()?;
    Ok(owners.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
}
