//! The holders of locks of any kind, as `lock_holders.lua` tells them.
//!
//! The watchdog looks at the holders of the locks that callers wait for: it ends the holds of
//! processes that are gone (`watchdog/dead_holders.rs`).

use std::sync::Arc;

use uuid::Uuid;

use crate::command::name::Name;
use crate::command::owner::{HoldId, Owner};
use crate::command::owner_field::{self, OwnerField, OwnerSuffix};
use crate::command::permit::{self, PermitId, PermitIds};
use crate::command::script;
use crate::error::Result;
use crate::events::Kind;
use crate::kind::named::Named;
use crate::kind::once::OnceWork;
use crate::kind::rules::KindRules;
use crate::kind::semaphore::Permits;
use crate::kind::{Fair, Fenced, Plain, Queued, Read, Spin, Write};
use crate::transport::call::Call;
use crate::transport::reply::Reply;

/// A hold of a client of leasehold; of a semaphore, one of its permits.
#[derive(Clone, Debug)]
pub(crate) struct FoundHold {
    pub(crate) client: Uuid,
    pub(crate) owner: Owner,
    /// The rules by which the hold is released.
    pub(crate) rules: &'static dyn KindRules,
}

/// Returns the call that tells some holders of each lock, at most 64. `true` stands for a semaphore.
pub(crate) fn look<'a>(names: impl Iterator<Item = (&'a Name, bool)> + Clone) -> Call {
    let keys = names.clone().map(|(name, _)| name.key().as_bytes());
    let permits = names.map(
        |(name, has_permits)| {
            if has_permits { name.expiries_key().as_bytes() } else { b"" }
        },
    );
    Call::script(&script::LOCK_HOLDERS, Vec::from_iter(keys), Vec::from_iter(permits))
}

/// Reads the reply to [`look`]: the holds of each lock.
pub(crate) fn read(reply: Reply) -> Result<Vec<Vec<FoundHold>>> {
    let lists = reply.into_list()?;
    Ok(lists.into_iter().map(|list| read_holds(&list.into_list().unwrap_or_default())).collect())
}

fn read_holds(list: &[Reply]) -> Vec<FoundHold> {
    let Some((mode, fields)) = list.split_first() else { return Vec::new() };
    let pairs: Vec<_> =
        fields.chunks_exact(2).filter_map(|pair| Some((pair[0].text()?, &pair[1]))).collect();
    let has_mode = matches!(mode.text(), Some(b"read" | b"write"));
    let parse = |field: &[u8]| OwnerField::parse(std::str::from_utf8(field).ok()?);
    // A named holder has a field with its count, which may have any name, and one of value 0 for
    // each hold.
    let is_hold = |value: &Reply| value.text() == Some(b"0");
    let name = pairs.iter().find(|(_, value)| !is_hold(value));
    let name: Option<Arc<str>> =
        name.and_then(|(field, _)| Some(std::str::from_utf8(field).ok()?.into()));
    let hold = |(field, value): &(&[u8], &Reply)| {
        let Some(id) = parse(field) else { return permit_hold(field) };
        let is_named = is_hold(value);
        if is_named && name.is_none() {
            return None;
        }
        let rules: &'static dyn KindRules = match id.suffix {
            OwnerSuffix::MinHold => return None,
            OwnerSuffix::Write => &Write,
            OwnerSuffix::None if is_named => &Named,
            OwnerSuffix::None if has_mode => &Read,
            OwnerSuffix::None => rules_of(HoldId::kind_of(id.number)),
        };
        let owner = Owner::numbered(id.client, id.number, rules.suffix());
        let owner = owner.named(name.clone().filter(|_| is_named));
        id.is_ours().then_some(FoundHold { client: id.client, owner, rules })
    };
    pairs.iter().filter_map(hold).collect()
}

/// Returns the hold with this permit; `None` for a field of another program.
fn permit_hold(id: &[u8]) -> Option<FoundHold> {
    let Some(PermitId::Held(client, number)) = permit::read(id) else { return None };
    owner_field::time_of(number)?;
    let owner = Owner::numbered(client, number, "");
    let ids = PermitIds::new(client, number, 1, owner.hold().into());
    Some(FoundHold { client, owner: owner.with_permits(ids), rules: &Permits })
}

/// Returns the rules of the kind that the number of a hold tells.
fn rules_of(kind: Kind) -> &'static dyn KindRules {
    match kind {
        Kind::Fair => &Fair,
        Kind::Fenced => &Fenced,
        Kind::Queued => &Queued,
        Kind::Spin => &Spin,
        Kind::Once => &OnceWork,
        _ => &Plain,
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::command::owner;

    fn texts(parts: &[&[u8]]) -> Reply {
        Reply::List(parts.iter().map(|part| Reply::Text(part.to_vec())).collect())
    }

    fn found(parts: &[&[u8]]) -> Vec<(Kind, String)> {
        let mut lists = read(Reply::List(vec![texts(parts)])).expect("a list");
        let holds = lists.pop().expect("one lock");
        holds.iter().map(|hold| (hold.rules.kind(), hold.owner.hold().to_owned())).collect()
    }

    #[test]
    fn the_number_and_the_fields_tell_the_rules_of_a_release() {
        let client = owner::client_id();
        for kind in [Kind::Plain, Kind::Fair, Kind::Fenced, Kind::Queued, Kind::Spin, Kind::Once] {
            let field = Owner::new(client, HoldId::of(kind, false), "").to_string();
            assert_eq!(found(&[b"", field.as_bytes(), b"1"]), [(kind, field)]);
        }
        let (read, write) = (format!("{client}:10"), format!("{client}:20:write"));
        let both =
            [&b"write"[..], b"mode", b"write", read.as_bytes(), b"1", write.as_bytes(), b"1"];
        assert_eq!(found(&both), [(Kind::Read, read.clone()), (Kind::Write, write)]);
        let kept = format!("{client}:10:min_hold");
        assert_eq!(found(&[b"", kept.as_bytes(), b"1"]), []);
        let java = b"6ba7b810-9dad-41d1-80b4-00c04fd430c8:94";
        assert_eq!(found(&[b"", java, b"1", b"a", b"1"]), []);
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn the_hold_of_a_named_holder_has_its_name() {
        let field = format!("{}:10", owner::client_id());
        let reply = texts(&[b"", b"nightly", b"1", field.as_bytes(), b"0"]);
        let holds = read(Reply::List(vec![reply])).expect("a list").remove(0);
        let [hold] = &holds[..] else { panic!("one hold: {holds:?}") };
        assert_eq!((hold.rules.kind(), hold.owner.hold()), (Kind::Named, &*field));
        assert_eq!(hold.owner.as_bytes(), b"nightly");
        // A name may be that of a thread of Redisson, or `mode`.
        for name in ["6ba7b810-9dad-41d1-80b4-00c04fd430c8:94", "mode"] {
            let reply = texts(&[b"1", field.as_bytes(), b"0", name.as_bytes(), b"1"]);
            let holds = read(Reply::List(vec![reply])).expect("a list").remove(0);
            let [hold] = &holds[..] else { panic!("one hold: {holds:?}") };
            assert_eq!((hold.rules.kind(), hold.owner.as_bytes()), (Kind::Named, name.as_bytes()));
        }
        assert_eq!(found(&[b"", field.as_bytes(), b"0"]), [], "its name is not in the sample");
    }

    #[test]
    fn each_permit_in_use_is_a_hold() {
        let (client, first) = (owner::client_id(), HoldId::block(2).number());
        let ids = PermitIds::new(client, first, 2, "".into());
        let ids: Vec<&[u8]> = ids.iter().flat_map(|id| [id, b"1"]).collect();
        let holds = found(&[&[&b""[..]], &ids[..]].concat());
        let owner = |number| (Kind::Semaphore, format!("{client}:{number}"));
        assert_eq!(holds, [owner(first), owner(first + 1)]);
        assert_eq!(found(&[b"", &[7; 16], b"1"]), []);
    }
}
