//! The message that a release by force has ended the holds of a lock.
//!
//! The scripts, and a client that releases a hold of a process that is gone, publish it on the
//! control channels of the holders' clients: the word `freed` and the key of the lock, separated by
//! a space. It is only a hint: each client asks the server.

/// The start of the message.
pub(crate) const PREFIX: &[u8] = b"freed ";

/// Returns the message for a hold of the lock with this key.
pub(crate) fn message(key: &str) -> Vec<u8> {
    [PREFIX, key.as_bytes()].concat()
}

/// Returns the key of the lock; `None` if the message has another form.
pub(crate) fn key(message: &[u8]) -> Option<&str> {
    std::str::from_utf8(message.strip_prefix(PREFIX)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_key() {
        assert_eq!(key(&message("a b")), Some("a b"));
        for other in [&b"freed"[..], b"granted 1", b"freed \xff"] {
            assert_eq!(key(other), None);
        }
    }
}
