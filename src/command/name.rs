//! The name of a lock, and every key and channel that belongs to it.
//!
//! All of them must hash to one slot of a cluster, by the rule that both Redis
//! and Redisson follow: what stands between the first `{` and the next `}` is
//! hashed, if it is not empty; otherwise the whole key is. Redisson writes the
//! name as it is where it has a `{`, and in braces where it has none.

use std::sync::{Arc, OnceLock};

use crc::{CRC_16_XMODEM, Crc};

use crate::command::owner::Owner;
use crate::error::{Error, ErrorKind, Result};

/// The longest key that Redis takes by default (`proto-max-bulk-len`).
const LONGEST: usize = 512 * 1024 * 1024;

/// What Redisson puts before the name to make the channel of a lock, and of one that is
/// read and written.
const CHANNEL: &str = "redisson_lock__channel";
const RW_CHANNEL: &str = "redisson_rwlock";

/// What Redisson puts before the name of a fenced lock to make the key of its tokens, and
/// before that of a fair one to make those of its queue.
const TOKEN: &str = "redisson_lock_token";
const QUEUE: &str = "redisson_lock_queue";
const DEATHS: &str = "redisson_lock_timeout";

/// The longest of what stands around a name: a time-out key's hold and ending.
const AROUND: usize = 128;

/// The name of a lock that can be used, with its key and its channel.
#[derive(Debug)]
pub(crate) struct Name {
    given: Arc<str>,
    key: Box<str>,
    channel: Box<str>,
    /// Made when the first of them is asked for: most locks are plain.
    others: OnceLock<Box<Others>>,
}

/// What other kinds than the plain lock have beside the key.
#[derive(Debug)]
struct Others {
    rw_channel: String,
    token: String,
    queue: String,
    deaths: String,
}

impl Name {
    /// Checks `given`, which stands behind `prefix` in Redis.
    pub(crate) fn new(prefix: &str, given: Arc<str>) -> Result<Name> {
        if given.is_empty() {
            return Err(invalid("the name of a lock is empty"));
        }
        let key = [prefix, &given].concat().into_boxed_str();
        check_length(key.len() + AROUND)?;
        check_braces(&key)?;
        let channel = prefixed(CHANNEL, &key).into_boxed_str();
        Ok(Name { given, key, channel, others: OnceLock::new() })
    }

    /// The name as the user gave it, without the client's prefix.
    pub(crate) fn given(&self) -> &Arc<str> {
        &self.given
    }

    /// The key of the hash that says who holds the lock.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The channel on which a release is announced.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    fn others(&self) -> &Others {
        let make = |prefix| prefixed(prefix, &self.key);
        self.others.get_or_init(|| {
            Box::new(Others {
                rw_channel: make(RW_CHANNEL),
                token: make(TOKEN),
                queue: make(QUEUE),
                deaths: make(DEATHS),
            })
        })
    }

    /// The channel on which the end of reading and writing is announced.
    pub(crate) fn rw_channel(&self) -> &str {
        &self.others().rw_channel
    }

    /// The key of the last fencing token that was given out.
    pub(crate) fn token_key(&self) -> &str {
        &self.others().token
    }

    /// The key of the list of those who wait for a fair lock.
    pub(crate) fn queue_key(&self) -> &str {
        &self.others().queue
    }

    /// The key of the sorted set that says when each of them is taken for dead.
    pub(crate) fn timeouts_key(&self) -> &str {
        &self.others().deaths
    }

    /// What stands before an owner in the name of the channel that it alone hears.
    pub(crate) fn own_channel_prefix(&self) -> String {
        format!("{}:", self.channel)
    }

    /// The channel on which one that waits for a fair lock is told.
    pub(crate) fn own_channel(&self, owner: &Owner) -> String {
        format!("{}:{owner}", self.channel)
    }

    /// What stands before an owner in the name of a read hold's time-out key.
    pub(crate) fn timeout_prefix(&self) -> String {
        match self.key.contains('{') {
            true => format!("{}:", self.key),
            false => format!("{{{}}}:", self.key),
        }
    }

    /// The key that lives as long as the lease of that read hold.
    pub(crate) fn timeout_key(&self, owner: &Owner) -> String {
        format!("{}{owner}:rwlock_timeout:1", self.timeout_prefix())
    }
}

static CHECKSUM: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a cluster in which a key lies.
pub(crate) fn slot(key: &[u8]) -> u16 {
    CHECKSUM.checksum(hashed(key)) % SLOTS
}

/// What of a key decides on its slot.
fn hashed(key: &[u8]) -> &[u8] {
    let at = |sign: u8, from: usize| key[from..].iter().position(|byte| *byte == sign);
    let Some(open) = at(b'{', 0) else { return key };
    match at(b'}', open + 1) {
        None | Some(0) => key,
        Some(length) => &key[open + 1..open + 1 + length],
    }
}

pub(crate) fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidName, message)
}

fn check_length(length: usize) -> Result<()> {
    match length <= LONGEST {
        true => Ok(()),
        false => Err(invalid("the name of a lock is longer than the 512 MiB that Redis takes")),
    }
}

/// Refuses names whose keys and channels would lie in different slots.
fn check_braces(key: &str) -> Result<()> {
    let whole = match key.find('{') {
        None if key.contains('}') => false,
        None => true,
        Some(open) => key[open..].find('}').is_some_and(|close| close > 1),
    };
    match whole {
        true => Ok(()),
        false => Err(invalid(
            "the braces in the name of a lock must enclose a hash tag, as in \"a{b}c\", \
             or its keys would lie in different slots of a cluster",
        )),
    }
}

fn prefixed(prefix: &str, key: &str) -> String {
    match key.contains('{') {
        true => format!("{prefix}:{key}"),
        false => format!("{prefix}:{{{key}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::owner::HoldId;
    use proptest::prelude::*;

    fn name(given: &str) -> Result<Name> {
        Name::new("", given.into())
    }

    /// What Redis hashes of a key, by its documentation.
    #[test]
    fn keys_and_channels_are_redissons() {
        let plain = name("orders:42").expect("a plain name");
        assert_eq!(plain.key(), "orders:42");
        assert_eq!(plain.channel(), "redisson_lock__channel:{orders:42}");
        let tagged = name("a{b}c").expect("a name with a tag");
        assert_eq!(tagged.channel(), "redisson_lock__channel:a{b}c");
        let mapped = Name::new("app:", "x".into()).expect("a name with a prefix");
        assert_eq!((mapped.key(), &**mapped.given()), ("app:x", "x"));
        assert_eq!(mapped.channel(), "redisson_lock__channel:{app:x}");
    }

    #[test]
    fn names_that_cannot_work_are_refused() {
        for bad in ["", "a{b", "{}x", "a}b", "a{}b{c}", "}", "{"] {
            assert!(name(bad).is_err_and(|e| e.is_invalid_name()), "{bad:?}");
        }
        assert!(check_length(LONGEST).is_ok());
        assert!(check_length(LONGEST + 1).is_err());
        assert!(Name::new("{", "x}".into()).is_ok(), "the prefix is part of the key");
    }

    #[test]
    fn keys_and_channels_of_the_other_kinds_are_redissons() {
        let owner = Owner::new(uuid::Uuid::nil(), HoldId::next(), "");
        let (plain, tagged) = (name("x").expect("good"), name("a{b}c").expect("good"));
        assert_eq!(plain.rw_channel(), "redisson_rwlock:{x}");
        assert_eq!(tagged.token_key(), "redisson_lock_token:a{b}c");
        assert_eq!(plain.queue_key(), "redisson_lock_queue:{x}");
        assert_eq!(plain.timeouts_key(), "redisson_lock_timeout:{x}");
        assert_eq!(plain.own_channel(&owner), format!("redisson_lock__channel:{{x}}:{owner}"));
        assert_eq!(plain.timeout_key(&owner), format!("{{x}}:{owner}:rwlock_timeout:1"));
        assert_eq!(tagged.timeout_key(&owner), format!("a{{b}}c:{owner}:rwlock_timeout:1"));
    }

    #[test]
    fn slots_are_those_of_redis() {
        // As `CLUSTER KEYSLOT` says.
        for (key, wanted) in
            [("123456789", 12739), ("foo", 12182), ("a{foo}b", 12182), ("{}foo", 9500)]
        {
            assert_eq!(slot(key.as_bytes()), wanted, "{key}");
        }
    }

    proptest! {
        #[test]
        fn all_keys_and_channels_of_an_accepted_name_share_a_slot(given in "[ab:{}é]{1,8}") {
            if let Ok(name) = name(&given) {
                let owner = Owner::new(uuid::Uuid::nil(), HoldId::next(), "");
                let (own, timeout) = (name.own_channel(&owner), name.timeout_key(&owner));
                let [channel, rw_channel] = [name.channel(), name.rw_channel()];
                let [token, queue, deaths] = [name.token_key(), name.queue_key(), name.timeouts_key()];
                let all = [channel, rw_channel, token, queue, deaths, &own, &timeout];
                for other in all {
                    prop_assert_eq!(slot(name.key().as_bytes()), slot(other.as_bytes()));
                }
            }
        }
    }
}
