//! The bounds of short texts, such as labels and the fields of client records, and texts of servers
//! that terminals may show.

use std::borrow::Cow;

/// The greatest length of a short text, in bytes.
pub(crate) const MAX_LENGTH: usize = 256;

/// A reason why a text is no short text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextFault {
    Empty,
    HasControlCharacters,
    TooLong,
}

/// Checks that a text is not empty, has no control characters, and has at most 256 bytes.
pub(crate) fn check(text: &str) -> Result<(), TextFault> {
    match text {
        "" => Err(TextFault::Empty),
        _ if text.len() > MAX_LENGTH => Err(TextFault::TooLong),
        _ if text.chars().any(char::is_control) => Err(TextFault::HasControlCharacters),
        _ => Ok(()),
    }
}

/// Returns the text with escapes in the place of control characters, which a terminal obeys.
pub(crate) fn without_controls(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for sign in text.chars() {
        if sign.is_control() { shown.extend(sign.escape_debug()) } else { shown.push(sign) }
    }
    Cow::Owned(shown)
}

/// Returns the short text that these bytes are, if they are one.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| check(text).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_escapes() {
        assert!(matches!(without_controls("a \\ \"é\""), Cow::Borrowed("a \\ \"é\"")));
        assert_eq!(without_controls("a\u{1b}[2J\r\u{9b}b"), r"a\u{1b}[2J\r\u{9b}b");
    }

    #[test]
    fn a_short_text_is_printable_and_has_up_to_256_bytes() {
        let long = "é".repeat(128);
        for good in ["a", " ", "é{}*", &long] {
            assert_eq!((check(good), from_bytes(good.as_bytes())), (Ok(()), Some(good)));
        }
        assert_eq!(check(""), Err(TextFault::Empty));
        assert_eq!(check(&(long + "x")), Err(TextFault::TooLong));
        for bad in ["a\nb", "\0", "\u{7f}", "\u{85}"] {
            assert_eq!(check(bad), Err(TextFault::HasControlCharacters), "{bad:?}");
        }
        assert_eq!(from_bytes(b"\xff"), None);
    }
}
