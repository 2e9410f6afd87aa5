//! The name of a lock, with all keys and channels that belong to it.
//!
//! All keys and channels of a lock hash to one slot of a cluster. Redis hashes the text between
//! the first `{` and the next `}`, its *hash tag*, or the whole key if that text is empty or
//! missing. The formats are Redisson's: a name with a `{` is used as it is, any other name is put
//! in braces behind a prefix. Names whose keys would get different slots are refused by all that
//! locks, so that a lock still works when its server becomes a cluster. Redisson takes such names:
//! queries about any lock, and its forced release, accept them.

use std::borrow::Cow;
use std::sync::Arc;

use crate::command::owner::Owner;
use crate::error::{Error, ErrorKind, Result};
use crate::util::system::OnceLock;

/// The longest key that Redis accepts by default (`proto-max-bulk-len`), in bytes.
const MAX_KEY: usize = 512 * 1024 * 1024;

/// Redisson's prefixes of the channel of a lock, and of a read-write lock.
const CHANNEL: &str = "redisson_lock__channel";
const RW_CHANNEL: &str = "redisson_rwlock";

/// Redisson's prefixes of the token key of a fenced lock, and of the two queue keys of a fair lock.
const TOKEN: &str = "redisson_lock_token";
const QUEUE: &str = "redisson_lock_queue";
const TIMEOUTS: &str = "redisson_lock_timeout";

/// The prefixes of the two further keys of a queue lock.
const WAITERS: &str = "leasehold_queue";
const CLIENTS: &str = "leasehold_alive";

/// The prefix of the turns at a read-write lock.
const TURNS: &str = "leasehold_turns";

/// The prefix of the result of work that is done once.
const RESULT: &str = "leasehold_once";

/// The prefixes of the record of an election's leader, and of the channel of its observers.
const LEADER: &str = "leasehold_leader";
const ELECTION_CHANNEL: &str = "leasehold_election";

/// Redisson's prefixes of the channel of a semaphore, and of a latch.
const PERMITS_CHANNEL: &str = "redisson_sc";
const LATCH_CHANNEL: &str = "redisson_countdownlatch__channel__";

/// Redisson's suffix of the key of a semaphore's expiries.
const EXPIRIES: &str = ":timeout";

/// The prefixes of the further keys of semaphores and latches.
const CLAIM: &str = "leasehold_claim";
const SLOTS: &str = "leasehold_slots";
const REQUEST: &str = "leasehold_request";
const ROUND: &str = "leasehold_round";

/// Room for the longest prefix and suffix of a name: those of a read hold's time-out key.
const MAX_AFFIXES: usize = 128;

/// A valid lock name, with its keys and channels.
#[derive(Debug)]
pub(crate) struct Name {
    given: Arc<str>,
    key: Box<str>,
    channel: Box<str>,
    /// The keys of other kinds than the plain lock, made at the first use: most locks are plain.
    derived: OnceLock<Box<DerivedKeys>>,
    /// The keys of semaphores and latches, made at the first use.
    synchronizer: OnceLock<Box<SynchronizerKeys>>,
}

/// The additional keys and channels of all kinds but the plain lock.
#[derive(Debug)]
struct DerivedKeys {
    rw_channel: String,
    token: String,
    queue: String,
    timeouts: String,
    waiters: String,
    clients: String,
    turns: String,
    result: String,
}

/// The additional keys and channels of semaphores and latches.
#[derive(Debug)]
struct SynchronizerKeys {
    permits_channel: String,
    expiries: String,
    claim: String,
    slots: String,
    latch_channel: String,
    round: String,
}

impl Name {
    /// Returns the name `given` with the client's `prefix`.
    ///
    /// # Errors
    ///
    /// `is_invalid_name` if the name is empty or too long, or has braces that are no hash tag.
    pub(crate) fn new(prefix: &str, given: Arc<str>) -> Result<Name> {
        let name = Name::of_any_lock(prefix, given)?;
        check_braces(&name.key)?;
        Ok(name)
    }

    /// Returns the name of any lock in Redis, for looks and repairs: its braces may be no hash tag,
    /// since Redisson takes such names.
    ///
    /// # Errors
    ///
    /// `is_invalid_name` if the name is empty or too long.
    pub(crate) fn of_any_lock(prefix: &str, given: Arc<str>) -> Result<Name> {
        if given.is_empty() {
            return Err(invalid("the lock name is empty"));
        }
        let key = [prefix, &given].concat().into_boxed_str();
        check_length(key.len() + MAX_AFFIXES)?;
        let channel = prefixed(CHANNEL, &key).into_boxed_str();
        let (derived, synchronizer) = (OnceLock::new(), OnceLock::new());
        Ok(Name { given, key, channel, derived, synchronizer })
    }

    /// Returns the name as the caller gave it, without the client's prefix.
    pub(crate) fn given(&self) -> &Arc<str> {
        &self.given
    }

    /// Returns the key of the lock's hash, which contains the owner fields.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the channel on which a release is announced.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    fn derived(&self) -> &DerivedKeys {
        let make = |prefix| prefixed(prefix, &self.key);
        self.derived.get_or_init(|| {
            Box::new(DerivedKeys {
                rw_channel: make(RW_CHANNEL),
                token: make(TOKEN),
                queue: make(QUEUE),
                timeouts: make(TIMEOUTS),
                waiters: make(WAITERS),
                clients: make(CLIENTS),
                turns: make(TURNS),
                result: make(RESULT),
            })
        })
    }

    /// Returns the channel on which the releases of a read-write lock are announced.
    pub(crate) fn rw_channel(&self) -> &str {
        &self.derived().rw_channel
    }

    /// Returns the key of the turns of the callers that wait for a read-write lock.
    pub(crate) fn turns_key(&self) -> &str {
        &self.derived().turns
    }

    /// Returns the key of the result of work that is done once, a hash.
    pub(crate) fn result_key(&self) -> &str {
        &self.derived().result
    }

    /// Returns the key of the last fencing token that was handed out.
    pub(crate) fn token_key(&self) -> &str {
        &self.derived().token
    }

    /// Returns the key of a fair lock's queue, a list of owner fields.
    pub(crate) fn queue_key(&self) -> &str {
        &self.derived().queue
    }

    /// Returns the key of the waiters' timeouts, a sorted set of owner fields.
    pub(crate) fn timeouts_key(&self) -> &str {
        &self.derived().timeouts
    }

    /// Returns the key of a queue lock's queue, a sorted set of owner fields.
    pub(crate) fn waiters_key(&self) -> &str {
        &self.derived().waiters
    }

    /// Returns the key of the clients with waiters for a queue lock, a hash.
    pub(crate) fn clients_key(&self) -> &str {
        &self.derived().clients
    }

    fn synchronizer(&self) -> &SynchronizerKeys {
        let make = |prefix| prefixed(prefix, &self.key);
        self.synchronizer.get_or_init(|| {
            Box::new(SynchronizerKeys {
                permits_channel: make(PERMITS_CHANNEL),
                expiries: format!("{}{EXPIRIES}", self.tagged()),
                claim: make(CLAIM),
                slots: make(SLOTS),
                // Redisson puts braces around a name that has a hash tag too.
                latch_channel: format!("{LATCH_CHANNEL}{{{}}}", self.key),
                round: make(ROUND),
            })
        })
    }

    /// Returns the channel on which the free permits of a semaphore are announced.
    pub(crate) fn permits_channel(&self) -> &str {
        &self.synchronizer().permits_channel
    }

    /// Returns the key of the expiries of the permits in use, a sorted set of permit ids.
    pub(crate) fn expiries_key(&self) -> &str {
        &self.synchronizer().expiries
    }

    /// Returns the keys of the semaphores with this key of expiries; none for other keys.
    ///
    /// The semaphores `a` and `{a}` have the same.
    pub(crate) fn keys_of_expiries(key: &str) -> impl Iterator<Item = &str> {
        let tagged = key.strip_suffix(EXPIRIES).filter(|key| key.contains('{'));
        let untagged = tagged.and_then(|it| it.strip_prefix('{')?.strip_suffix('}'));
        untagged.filter(|key| !key.contains('{')).into_iter().chain(tagged)
    }

    /// Returns the channels on which waiting callers of locks and semaphores may listen.
    pub(crate) fn channels_of_waiters(&self) -> [&str; 3] {
        [self.channel(), self.rw_channel(), self.permits_channel()]
    }

    /// Returns the key of the claim of the oldest waiting caller of a semaphore, a hash.
    pub(crate) fn claim_key(&self) -> &str {
        &self.synchronizer().claim
    }

    /// Returns the key of the slots of the permits of a semaphore, a hash.
    pub(crate) fn slots_key(&self) -> &str {
        &self.synchronizer().slots
    }

    /// Returns the channel on which a latch announces that it is open.
    ///
    /// The channel of a name with a hash tag is in another slot than the name.
    pub(crate) fn latch_channel(&self) -> &str {
        &self.synchronizer().latch_channel
    }

    /// Returns the key of the present round of a latch.
    pub(crate) fn round_key(&self) -> &str {
        &self.synchronizer().round
    }

    /// Returns the key of the record of a request that changes a count or a capacity.
    pub(crate) fn request_key(&self, request: &Owner) -> String {
        format!("{}:{request}", prefixed(REQUEST, &self.key))
    }

    /// Returns the key of the record of an election's leader, a hash.
    pub(crate) fn leader_key(&self) -> String {
        prefixed(LEADER, &self.key)
    }

    /// Returns the channel on which changes of an election's leader are announced.
    pub(crate) fn election_channel(&self) -> String {
        prefixed(ELECTION_CHANNEL, &self.key)
    }

    /// Returns the prefix of the waiters' own channels; an owner field follows it.
    pub(crate) fn own_channel_prefix(&self) -> String {
        format!("{}:", self.channel)
    }

    /// Returns the channel on which this waiter for a fair lock is notified.
    pub(crate) fn own_channel(&self, owner: &Owner) -> String {
        format!("{}:{owner}", self.channel)
    }

    /// Returns the key with a hash tag: the part that all keys and channels of the lock share.
    pub(crate) fn tagged(&self) -> Cow<'_, str> {
        if self.key.contains('{') {
            Cow::Borrowed(&self.key)
        } else {
            Cow::Owned(format!("{{{}}}", self.key))
        }
    }

    /// Returns the prefix of the read holds' time-out keys; an owner field follows it.
    pub(crate) fn timeout_prefix(&self) -> String {
        format!("{}:", self.tagged())
    }

    /// Returns the time-out key of a read hold, which expires with its lease.
    pub(crate) fn timeout_key(&self, owner: &Owner) -> String {
        format!("{}{owner}:rwlock_timeout:1", self.timeout_prefix())
    }
}

/// Makes a part of a lock name from any text, such as the input of a user.
///
/// Different texts make different parts. The signs `{`, `}` and `%`, and control characters become
/// `%` and two hexadecimal digits for each byte; an empty text becomes `%`. All other texts stay as
/// they are. The result is no longer than three times the text: a name of up to 512 MiB is valid,
/// but each request carries it, so limit the text as well.
///
/// ```
/// use leasehold::safe_name;
///
/// assert_eq!(safe_name("carol"), "carol");
/// assert_eq!(format!("user:{}", safe_name("{admin")), "user:%7Badmin");
/// ```
#[must_use = "the text is not changed in place"]
pub fn safe_name(text: &str) -> Cow<'_, str> {
    let is_safe = |sign: char| !matches!(sign, '{' | '}' | '%') && !sign.is_control();
    if text.is_empty() {
        return Cow::Borrowed("%");
    }
    if text.chars().all(is_safe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for sign in text.chars() {
        if is_safe(sign) {
            safe.push(sign);
        } else {
            let mut bytes = [0; 4];
            let codes = sign.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02X}"));
            safe.extend(codes);
        }
    }
    Cow::Owned(safe)
}

pub(crate) fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidName, message)
}

fn check_length(length: usize) -> Result<()> {
    if length <= MAX_KEY {
        Ok(())
    } else {
        Err(invalid("the lock name is longer than 512 MiB, the limit of Redis"))
    }
}

/// Refuses a name whose keys and channels would get different slots.
fn check_braces(key: &str) -> Result<()> {
    let is_valid = match key.find('{') {
        None if key.contains('}') => false,
        None => true,
        Some(open) => key[open..].find('}').is_some_and(|close| close > 1),
    };
    if is_valid {
        Ok(())
    } else {
        Err(invalid(
            "the braces in a lock name must enclose a hash tag, as in \"a{b}c\": otherwise its \
             keys would be in different slots of a cluster",
        ))
    }
}

fn prefixed(prefix: &str, key: &str) -> String {
    if key.contains('{') { format!("{prefix}:{key}") } else { format!("{prefix}:{{{key}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::owner::HoldId;
    use crate::transport::slots::slot;
    use proptest::prelude::*;

    fn name(given: &str) -> Result<Name> {
        Name::new("", given.into())
    }

    #[test]
    fn the_key_and_channel_of_a_plain_lock_have_redissons_format() {
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
    fn any_text_makes_a_safe_name() {
        for (text, safe) in
            [("", "%"), ("%", "%25"), ("a b/ü", "a b/ü"), ("{}\n\u{85}", "%7B%7D%0A%C2%85")]
        {
            assert_eq!(safe_name(text), safe);
        }
    }

    proptest! {
        #[test]
        fn safe_names_are_valid_and_different(text in ".{0,12}", other in ".{0,12}") {
            prop_assert!(name(&safe_name(&text)).is_ok());
            prop_assert_eq!(safe_name(&text) == safe_name(&other), text == other);
            let mut decoded = Vec::new();
            for (part, rest) in safe_name(&text).split('%').enumerate() {
                let (code, plain) = rest.split_at(if part == 0 { 0 } else { rest.len().min(2) });
                decoded.extend(u8::from_str_radix(code, 16));
                decoded.extend(plain.bytes());
            }
            prop_assert_eq!(decoded, text.into_bytes());
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for bad in ["", "a{b", "{}x", "a}b", "a{}b{c}", "}", "{"] {
            assert!(name(bad).is_err_and(|e| e.is_invalid_name()), "{bad:?}");
        }
        assert!(check_length(MAX_KEY).is_ok());
        assert!(check_length(MAX_KEY + 1).is_err());
        assert!(Name::new("{", "x}".into()).is_ok(), "the prefix is a part of the key");
    }

    #[test]
    fn the_keys_and_channels_of_other_kinds_have_redissons_format() {
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
    fn the_keys_and_channels_of_semaphores_and_latches_have_redissons_format() {
        let request = Owner::new(uuid::Uuid::nil(), HoldId::next(), "");
        let (plain, tagged) = (name("x").expect("good"), name("a{b}c").expect("good"));
        assert_eq!(plain.permits_channel(), "redisson_sc:{x}");
        assert_eq!(tagged.permits_channel(), "redisson_sc:a{b}c");
        assert_eq!(plain.expiries_key(), "{x}:timeout");
        assert_eq!(tagged.expiries_key(), "a{b}c:timeout");
        for name in [&plain, &tagged, &Name::new("", "{a}{b}".into()).expect("good")] {
            assert!(Name::keys_of_expiries(name.expiries_key()).any(|key| key == name.key()));
        }
        for other in ["x", "{x}", "x:timeout"] {
            assert_eq!(Name::keys_of_expiries(other).next(), None, "{other}");
        }
        assert_eq!(Name::keys_of_expiries("{x}:timeout").collect::<Vec<_>>(), ["x", "{x}"]);
        assert_eq!(plain.claim_key(), "leasehold_claim:{x}");
        assert_eq!(plain.slots_key(), "leasehold_slots:{x}");
        assert_eq!(plain.result_key(), "leasehold_once:{x}");
        assert_eq!(plain.leader_key(), "leasehold_leader:{x}");
        assert_eq!(tagged.election_channel(), "leasehold_election:a{b}c");
        assert_eq!(plain.latch_channel(), "redisson_countdownlatch__channel__{x}");
        assert_eq!(tagged.latch_channel(), "redisson_countdownlatch__channel__{a{b}c}");
        assert_eq!(tagged.round_key(), "leasehold_round:a{b}c");
        assert_eq!(plain.request_key(&request), format!("leasehold_request:{{x}}:{request}"));
    }

    proptest! {
        #[test]
        fn all_keys_and_channels_of_an_accepted_name_share_a_slot(given in "[ab:{}é]{1,8}") {
            if let Ok(name) = name(&given) {
                let owner = Owner::new(uuid::Uuid::nil(), HoldId::next(), "");
                let (own, timeout) = (name.own_channel(&owner), name.timeout_key(&owner));
                let [channel, rw_channel] = [name.channel(), name.rw_channel()];
                let [token, queue] = [name.token_key(), name.queue_key()];
                let timeouts = name.timeouts_key();
                let [permits, expiries] = [name.permits_channel(), name.expiries_key()];
                let [claim, round] = [name.claim_key(), name.round_key()];
                let [slots, result] = [name.slots_key(), name.result_key()];
                let request = name.request_key(&owner);
                let [leader, election] = [name.leader_key(), name.election_channel()];
                let of_locks = [channel, rw_channel, token, queue, timeouts, &own, &timeout];
                let of_others =
                    [permits, expiries, claim, slots, result, round, &request, &leader, &election];
                for derived in of_locks.into_iter().chain(of_others) {
                    prop_assert_eq!(slot(name.key().as_bytes()), slot(derived.as_bytes()));
                }
            }
        }
    }
}
