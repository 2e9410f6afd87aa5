//! The numbers of permits of a semaphore, and the holders of those in use.
//!
//! `semaphore_info.lua` describes one semaphore; `lock_info.lua` describes semaphores among locks,
//! in the same form.

use std::time::Duration;

use uuid::Uuid;

use super::holder::HolderInfo;
use super::query::Inspector;
use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::owner_field::{self, OwnerField, OwnerSuffix};
use crate::command::permit::{self, PermitId};
use crate::command::script;
use crate::engine::Engine;
use crate::engine::absence::Asked;
use crate::error::Result;
use crate::transport::call::Call;
use crate::transport::pool::Target;
use crate::transport::reply::{self, Reply};
use crate::util::system::{HashMap, HashSet};

/// The expiry of a permit of Redisson that never expires, in milliseconds.
const NEVER: f64 = 922_337_203_685_477.0;

/// The numbers of permits of a semaphore at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitCounts {
    /// The permits that are free or have expired; negative after a `resize` to fewer than in use.
    pub(crate) available: i64,
    pub(crate) in_use: u64,
    pub(crate) capacity: i64,
}

/// The permits of a semaphore at one moment, with the ids of those in use.
#[derive(Debug)]
pub(super) struct PermitsState {
    pub(super) counts: PermitCounts,
    used: Vec<UsedPermit>,
}

/// A permit in use: its id, the time to its expiry, and its slot.
#[derive(Debug)]
struct UsedPermit {
    id: Vec<u8>,
    left: Option<Duration>,
    slot: Option<u32>,
}

/// Consecutive permits of one client, which are one hold.
struct PermitRun {
    client: Uuid,
    first: u64,
    count: u64,
    left: Option<Duration>,
    slots: Vec<u32>,
}

impl Inspector<'_> {
    /// Returns the numbers of permits. One round trip.
    ///
    /// `capacity` is that of a semaphore without one.
    pub(crate) fn permit_counts(
        &self,
        name: &Name,
        capacity: Option<u32>,
        target: Target,
    ) -> Result<PermitCounts> {
        let reply = self.ask(info_call(name, capacity, b"counts"), target)?;
        Ok(PermitsState::read(reply)?.counts)
    }

    /// Returns the holders of the permits in use: one for each hold of leasehold, and one for each
    /// permit of other libraries.
    ///
    /// Two round trips, one if no permit is in use; then asks the running processes.
    pub(crate) fn permit_holders(&self, name: &Name, target: Target) -> Result<Vec<HolderInfo>> {
        let asked = self.engine().asks_now();
        let reply = self.ask(info_call(name, None, b"holders"), target)?;
        let permits = PermitsState::read(reply)?;
        permits.lose_absent(self.engine(), asked, name);
        let mut holders = permits.holders();
        self.add_facts(name, &mut holders)?;
        Ok(holders)
    }
}

impl PermitsState {
    /// Reads the description of a semaphore.
    pub(super) fn read(reply: Reply) -> Result<PermitsState> {
        let parts = reply.into_list()?;
        let part = |at: usize| parts.get(at).unwrap_or(&Reply::Nil);
        // A number beyond 64 bits becomes the nearest one.
        let number = |at: usize| number_of(part(at)).map(|number| number as i64);
        let counts = PermitCounts {
            available: number(0)?,
            in_use: u64::try_from(number(1)?).unwrap_or(0),
            capacity: number(2)?,
        };
        let now = number_of(part(4))?;
        let slots: HashMap<_, _> = pairs(part(5))
            .filter_map(|(slot, id)| Some((id.text()?, number_of(slot).ok()? as u32)))
            .collect();
        let used = pairs(part(3)).map(|(id, expiry)| {
            let expiry = number_of(expiry)?;
            let left = Some(Duration::from_millis((expiry - now).max(0.0) as u64))
                .filter(|_| expiry < NEVER);
            let id = id.clone().into_text()?;
            Ok(UsedPermit { slot: slots.get(&*id).copied(), id, left })
        });
        Ok(PermitsState { counts, used: used.collect::<Result<_>>()? })
    }

    /// Returns the holders: one for each run of consecutive permits, and one for each permit of
    /// others.
    pub(super) fn holders(&self) -> Vec<HolderInfo> {
        holders(&self.used)
    }

    /// Returns the time until all permits in use have expired; `None` if some never expire.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.used.iter().map(|permit| permit.left).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Ends the holds of this process some of whose permits are not in use.
    pub(super) fn lose_absent(&self, engine: &Engine, asked: Asked, name: &Name) {
        let ids: HashSet<&[u8]> = self.used.iter().map(|permit| &*permit.id).collect();
        engine.lose_absent(asked, name.key(), |hold| {
            hold.owner().permits().is_some_and(|own| own.iter().any(|id| !ids.contains(id)))
        });
    }
}

/// Returns the pairs of neighbours in a list; none for another reply.
fn pairs(reply: &Reply) -> impl Iterator<Item = (&Reply, &Reply)> {
    let parts = if let Reply::List(parts) = reply { &parts[..] } else { &[] };
    parts.chunks_exact(2).map(|pair| (&pair[0], &pair[1]))
}

fn info_call(name: &Name, capacity: Option<u32>, subject: &[u8]) -> Call {
    let capacity = capacity.map(|capacity| capacity.to_string()).unwrap_or_default();
    let keys = [name.key(), name.expiries_key()].map(str::as_bytes);
    let args = [capacity.as_bytes(), subject, name.slots_key().as_bytes()];
    Call::script(&script::SEMAPHORE_INFO, keys, args)
}

fn number_of(part: &Reply) -> Result<f64> {
    let text = part.text().and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| reply::unexpected(part))
}

fn holders(permits: &[UsedPermit]) -> Vec<HolderInfo> {
    let mut permits: Vec<&UsedPermit> = permits.iter().collect();
    permits.sort_by(|a, b| a.id.cmp(&b.id));
    let (mut runs, mut others): (Vec<PermitRun>, Vec<HolderInfo>) = (Vec::new(), Vec::new());
    for UsedPermit { id, left, slot } in permits {
        let (left, slots) = (*left, Vec::from_iter(*slot));
        let is_time = |number| owner_field::time_of(number).is_some();
        let (client, number) = match permit::read(id) {
            Some(PermitId::Held(client, number)) if is_time(number) => (client, number),
            Some(PermitId::Kept(_, number)) if is_time(number) => continue,
            _ => {
                // Redisson shows a permit id in this form.
                let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
                others.push(HolderInfo::new(&hex, None).with_count(1).with_remaining(left));
                continue;
            }
        };
        match runs.last_mut() {
            Some(run) if run.client == client && run.first + run.count == number => {
                run.count += 1;
                run.left = run.left.min(left);
                run.slots.extend(slots);
            }
            _ => runs.push(PermitRun { client, first: number, count: 1, left, slots }),
        }
    }
    runs.into_iter().map(PermitRun::holder).chain(others).collect()
}

impl PermitRun {
    fn holder(self) -> HolderInfo {
        let (client, number) = (self.client, self.first);
        let owner = Owner::numbered(client, number, "").to_string();
        let field = OwnerField { client, number, suffix: OwnerSuffix::None };
        let holder = HolderInfo::new(&owner, Some(field));
        holder.with_count(self.count).with_remaining(self.left).with_slots(self.slots)
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::command::owner::{self, HoldId};
    use crate::command::permit::PermitIds;

    fn permits(client: Uuid, first: u64, count: u32, left: u64) -> Vec<UsedPermit> {
        let ids = PermitIds::new(client, first, count, "".into());
        let left = Some(Duration::from_millis(left));
        ids.iter().map(|id| UsedPermit { id: id.to_vec(), left, slot: None }).collect()
    }

    #[test]
    fn a_run_of_permits_is_one_holder() {
        let (one, other) = (owner::client_id(), owner::client_id());
        let number = HoldId::block(3).number();
        let mut all = permits(one, number, 3, 70);
        all.extend(permits(one, number + 4, 1, 80));
        all.extend(permits(other, number + 3, 2, 90));
        (all[0].slot, all[2].slot) = (Some(4), Some(2));
        all.push(UsedPermit { id: vec![0xab; 16], left: None, slot: None });
        let mut found: Vec<_> = holders(&all)
            .iter()
            .map(|it| (it.client_id(), it.owner().to_owned(), it.count(), it.remaining()))
            .collect();
        found.sort_by_key(|it| (it.3, it.1.clone()));
        let ms = |ms| Some(Duration::from_millis(ms));
        let expected = [
            (None, "ab".repeat(16), 1, None),
            (Some(one), format!("{one}:{number}"), 3, ms(70)),
            (Some(one), format!("{one}:{}", number + 4), 1, ms(80)),
            (Some(other), format!("{other}:{}", number + 3), 2, ms(90)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_random_id_with_the_form_of_ours_needs_a_plausible_time() {
        let implausible = permits(owner::client_id(), 7, 1, 10);
        let found = holders(&implausible);
        assert_eq!((found.len(), found[0].client_id()), (1, None));
    }
}
