//! The fields of a lock's hash that leasehold and Redisson write.

use uuid::Uuid;

use crate::util::clock::{self, EPOCH, WallTime};
use std::time::Duration;

/// The length of a hyphenated UUID.
const UUID_LENGTH: usize = 36;

/// The smallest number that counts as a time, a day in 2001.
const FIRST_TIME: u64 = 1_000_000_000_000_000;

/// The longest time by which a number may be in the future and still count as a time.
const LATEST: Duration = Duration::from_secs(24 * 3600);

/// A field of the form `<client id>:<number>`, with or without a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerField {
    pub(crate) client: Uuid,
    /// The number of a hold of leasehold, or of a thread of Redisson.
    pub(crate) number: u64,
    pub(crate) suffix: OwnerSuffix,
}

/// The end of an owner field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerSuffix {
    None,
    /// `:write`: a hold of the write side.
    Write,
    /// `:min_hold`, also behind `:write`: keeps the lock for the rest of a minimum hold, without a
    /// holder.
    MinHold,
}

impl OwnerField {
    /// Reads a field; `None` if it has another form.
    pub(crate) fn parse(field: &str) -> Option<OwnerField> {
        let (id, rest) = field.split_at_checked(UUID_LENGTH)?;
        let client = Uuid::try_parse(id).ok()?;
        let rest = rest.strip_prefix(':')?;
        let (number, suffix) = match rest.split_once(':') {
            None => (rest, OwnerSuffix::None),
            Some((number, "write")) => (number, OwnerSuffix::Write),
            Some((number, "min_hold" | "write:min_hold")) => (number, OwnerSuffix::MinHold),
            Some(_) => return None,
        };
        let is_number = number.bytes().all(|digit| digit.is_ascii_digit());
        let number = number.parse().ok().filter(|_| is_number)?;
        Some(OwnerField { client, number, suffix })
    }

    /// Returns whether leasehold wrote the field. Its client ids are UUIDs of version 8.
    pub(crate) fn is_ours(&self) -> bool {
        self.client.get_version_num() == 8
    }
}

/// Returns the time that a hold number or a token states, or `None` if it is no plausible time.
pub(crate) fn time_of(number: u64) -> Option<WallTime> {
    let time = Duration::from_micros(number);
    let is_plausible = number >= FIRST_TIME && time <= clock::unix_time() + LATEST;
    is_plausible.then(|| EPOCH + time)
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::command::owner::{self, HoldId, Owner};

    #[test]
    fn owner_fields_of_leasehold_and_redisson_are_read() {
        let client = owner::client_id();
        let hold = HoldId::next();
        for (suffix, expected) in [("", OwnerSuffix::None), (":write", OwnerSuffix::Write)] {
            let field = Owner::new(client, hold, suffix).to_string();
            let read = OwnerField::parse(&field).expect("an owner field");
            let number = hold.number();
            assert_eq!(read, OwnerField { client, number, suffix: expected });
            assert!(read.is_ours());
        }
        let java = OwnerField::parse("6ba7b810-9dad-41d1-80b4-00c04fd430c8:94").expect("a field");
        assert!(java.number == 94 && !java.is_ours());
        for suffix in [":min_hold", ":write:min_hold"] {
            let kept = OwnerField::parse(&format!("{client}:7{suffix}")).expect("a field");
            assert_eq!((kept.number, kept.suffix), (7, OwnerSuffix::MinHold));
        }
    }

    #[test]
    fn other_fields_are_no_owner_fields() {
        let id = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";
        for number in ["", "x", "+5", "-5", "5:", "5:read", "18446744073709551616", "5:write:1"] {
            assert_eq!(OwnerField::parse(&format!("{id}:{number}")), None, "{number}");
        }
        for field in ["", "mode", id, "é6ba7b810-9dad-41d1-80b4-00c04fd430c8:1"] {
            assert_eq!(OwnerField::parse(field), None, "{field}");
        }
    }

    #[test]
    fn only_a_plausible_hold_number_is_a_time() {
        let micros = |span: Duration| u64::try_from(span.as_micros()).expect("a time of our age");
        let now = micros(clock::unix_time());
        assert_eq!(time_of(now), Some(EPOCH + Duration::from_micros(now)));
        assert!(time_of(now + micros(LATEST) / 2).is_some());
        for number in [0, 94, FIRST_TIME - 1, now + 2 * micros(LATEST), u64::MAX] {
            assert_eq!(time_of(number), None, "{number}");
        }
    }
}
