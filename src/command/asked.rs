//! The message that another client wants a lock whose hold may linger.
//!
//! The acquire scripts publish it on the control channel of the holder's client, when they refuse a
//! caller: the word `asked`, the number of the hold and the key of the lock, separated by spaces.

/// The start of the message.
pub(crate) const PREFIX: &[u8] = b"asked ";

/// Returns the number of the hold and the key of its lock; `None` if the message has another form.
pub(crate) fn read(message: &[u8]) -> Option<(u64, &str)> {
    let text = std::str::from_utf8(message.strip_prefix(PREFIX)?).ok()?;
    let (number, key) = text.split_once(' ')?;
    Some((number.parse().ok()?, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_hold_and_the_key() {
        assert_eq!(read(b"asked 15 a b"), Some((15, "a b")));
        for other in [&b"asked 15"[..], b"asked a", b"asked x a", b"freed a", b"asked 1 \xff"] {
            assert_eq!(read(other), None);
        }
    }
}
