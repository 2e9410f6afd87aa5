//! The ids of the permits of a semaphore, in Redis: 16 bytes each.
//!
//! An id is the *tag* of the client, which is the first half of its id, and a number. The permits
//! of a hold have consecutive numbers, of which the first is the number of the hold. The numbers of
//! two holds of a client are never consecutive, so a run of numbers is one hold. The ids of
//! Redisson are 16 random bytes.
//!
//! After an early release with a minimum, a permit stays in use without a holder: the first byte of
//! its number is then 255.

use std::sync::Arc;

use uuid::Uuid;

use crate::command::owner;

/// The length of an id.
const ID: usize = 16;

/// The length of a tag.
const TAG: usize = 8;

/// The bits of a number that are 0 in an id of leasehold: a number is a time in microseconds.
const UPPER_BITS: u64 = 0xfff << 52;

/// The ids of the permits of one hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermitIds {
    bytes: Box<[u8]>,
    claimant: Arc<str>,
}

impl PermitIds {
    /// Returns the ids of `count` permits, from this number on. `claimant` identifies the call in
    /// a claim.
    pub(crate) fn new(client: Uuid, first: u64, count: u32, claimant: Arc<str>) -> PermitIds {
        let tag = &client.as_bytes()[..TAG];
        let id = |number: u64| [tag, &number.to_be_bytes()].concat();
        let bytes = (0..u64::from(count)).flat_map(|at| id(first.wrapping_add(at))).collect();
        PermitIds { bytes, claimant }
    }

    /// Returns the ids, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.bytes.chunks_exact(ID)
    }

    /// Returns the number of permits.
    pub(crate) fn count(&self) -> u32 {
        // Made of a `u32`.
        u32::try_from(self.bytes.len() / ID).unwrap_or(u32::MAX)
    }

    /// Returns the text that identifies the call in a claim: the owner field of its first attempt.
    pub(crate) fn claimant(&self) -> &Arc<str> {
        &self.claimant
    }
}

/// The first byte of the number of a permit without a holder.
const NOBODY: u8 = 255;

/// The meaning of the id of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitId {
    /// A permit of leasehold: the id of the client, and the number.
    Held(Uuid, u64),
    /// A permit that a minimum keeps in use: the client that held it, and its number.
    Kept(Uuid, u64),
}

/// Reads an id that leasehold wrote; `None` for another id, such as one of Redisson.
///
/// A random id is taken for one of leasehold with a probability of 1 in 65,536, or 1 in 4,096 for a
/// permit without a holder. Callers also check that the number is a plausible time.
pub(crate) fn read(id: &[u8]) -> Option<PermitId> {
    let (tag, number) = id.split_at_checked(TAG)?;
    let mut number: [u8; ID - TAG] = number.try_into().ok()?;
    let is_kept = number[0] == NOBODY;
    if is_kept {
        number[0] = 0;
    }
    let number = u64::from_be_bytes(number);
    let client = owner::client_of_tag(tag.try_into().ok()?);
    let is_ours = client.as_bytes().starts_with(tag) && number & UPPER_BITS == 0;
    is_ours.then_some(if is_kept {
        PermitId::Kept(client, number)
    } else {
        PermitId::Held(client, number)
    })
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_names_its_client_and_its_number(first in 0..1_u64 << 51, count in 1..50_u32) {
            let client = owner::client_id();
            let ids = PermitIds::new(client, first, count, "claimant".into());
            prop_assert_eq!(ids.count(), count);
            prop_assert_eq!(&**ids.claimant(), "claimant");
            let read: Vec<_> = ids.iter().map(read).collect();
            let expected = (0..u64::from(count)).map(|at| Some(PermitId::Held(client, first + at)));
            prop_assert_eq!(read, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_permit_that_a_minimum_keeps_is_recognized() {
        let client = owner::client_id();
        let ids = PermitIds::new(client, 7, 1, "".into());
        let mut kept = ids.iter().next().expect("an id").to_vec();
        // As in semaphore_early_release.lua.
        kept[8] = 255;
        assert_eq!(read(&kept), Some(PermitId::Kept(client, 7)));
    }

    #[test]
    fn other_ids_are_not_read() {
        let ours = PermitIds::new(owner::client_id(), 7, 1, "".into());
        let ours = ours.iter().next().expect("an id");
        assert!(read(ours).is_some());
        assert_eq!((read(&ours[1..]), read(&[ours, &[0]].concat()), read(b"")), (None, None, None));
        let (mut version, mut number) = (ours.to_vec(), ours.to_vec());
        version[6] ^= 0xf0;
        number[8] = 1;
        assert_eq!((read(&version), read(&number)), (None, None));
    }
}
