//! The name of a lock, and every key and channel that belongs to it.
//!
//! All of them must hash to one slot of a cluster, by the rule that both Redis
//! and Redisson follow: what stands between the first `{` and the next `}` is
//! hashed, if it is not empty; otherwise the whole key is. Redisson writes the
//! name as it is where it has a `{`, and in braces where it has none.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The longest key that Redis takes by default (`proto-max-bulk-len`).
const LONGEST: usize = 512 * 1024 * 1024;

/// What Redisson puts before the name to make the channel of a lock.
const CHANNEL: &str = "redisson_lock__channel";

/// The name of a lock that can be used, with its key and its channel.
#[derive(Debug)]
pub(crate) struct Name {
    given: Arc<str>,
    key: Box<str>,
    channel: Box<str>,
}

impl Name {
    /// Checks `given`, which stands behind `prefix` in Redis.
    pub(crate) fn new(prefix: &str, given: Arc<str>) -> Result<Name> {
        if given.is_empty() {
            return Err(invalid("the name of a lock is empty"));
        }
        let key = [prefix, &given].concat().into_boxed_str();
        check_length(CHANNEL.len() + key.len() + ":{}".len())?;
        check_braces(&key)?;
        let channel = prefixed(CHANNEL, &key).into_boxed_str();
        Ok(Name { given, key, channel })
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
}

fn invalid(message: &'static str) -> Error {
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
    use proptest::prelude::*;

    fn name(given: &str) -> Result<Name> {
        Name::new("", given.into())
    }

    /// What Redis hashes of a key, by its documentation.
    fn hashed(key: &str) -> &str {
        let Some(open) = key.find('{') else { return key };
        match key[open + 1..].find('}') {
            None | Some(0) => key,
            Some(length) => &key[open + 1..open + 1 + length],
        }
    }

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

    proptest! {
        #[test]
        fn key_and_channel_of_an_accepted_name_share_a_slot(given in "[ab:{}é]{1,8}") {
            if let Ok(name) = name(&given) {
                prop_assert_eq!(hashed(name.key()), hashed(name.channel()));
            }
        }
    }
}
