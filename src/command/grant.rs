//! The message by which a server grants a queue lock to a waiting caller.
//!
//! The scripts publish it on the control channel of the caller's client: the word `granted`, the
//! number of the hold, its fencing token, the grant lease in milliseconds, and the key of the lock,
//! separated by spaces.

use std::time::Duration;

/// The start of the message.
pub(crate) const PREFIX: &[u8] = b"granted ";

/// A grant of a queue lock to a waiting caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantMessage<'a> {
    /// The number of the hold.
    pub(crate) hold: u64,
    pub(crate) token: u64,
    /// The lease that the server has set.
    pub(crate) lease: Duration,
    /// The key of the lock.
    pub(crate) key: &'a str,
}

impl<'a> GrantMessage<'a> {
    /// Reads a message; `None` if it has another form.
    pub(crate) fn read(message: &'a [u8]) -> Option<GrantMessage<'a>> {
        let text = std::str::from_utf8(message.strip_prefix(PREFIX)?).ok()?;
        let mut parts = text.splitn(4, ' ');
        let mut number = || parts.next()?.parse().ok();
        let (hold, token, lease) = (number()?, number()?, Duration::from_millis(number()?));
        Some(GrantMessage { hold, token, lease, key: parts.next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_names_hold_token_lease_and_key() {
        let lease = Duration::from_secs(3);
        let grant = GrantMessage { hold: 17, token: 42, lease, key: "a b" };
        assert_eq!(GrantMessage::read(b"granted 17 42 3000 a b"), Some(grant));
    }

    #[test]
    fn other_messages_are_no_grants() {
        for other in ["", "granted", "granted 1 2 3", "granted 1 2 x a", "granted -1 2 3 a", "c"] {
            assert_eq!(GrantMessage::read(other.as_bytes()), None, "{other}");
        }
        assert_eq!(GrantMessage::read(b"granted 1 2 3 \xff"), None);
    }
}
