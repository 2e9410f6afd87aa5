//! Patterns of lock names.

use crate::config::check_text;
use crate::error::{Error, Result};

/// Returns the pattern of keys for a pattern of names behind the client's prefix.
///
/// # Errors
/// `is_configuration` if the pattern is empty, too long or has control characters, or a `[` without
/// its `]`.
pub(super) fn of_keys(prefix: &str, pattern: &str) -> Result<String> {
    check_text("the pattern", pattern)?;
    if is_unfinished(pattern) {
        let text = "the pattern has a [ without a ]; a \\ before a sign takes its meaning away";
        return Err(Error::configuration(text));
    }
    Ok(escaped(prefix) + pattern)
}

/// Returns whether a class of the pattern has no end. The server would end it at the last sign.
fn is_unfinished(pattern: &str) -> bool {
    let (mut is_escaped, mut in_class) = (false, false);
    for sign in pattern.chars() {
        match sign {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            _ => {}
        }
    }
    in_class
}

/// Returns a text as a pattern that matches the text alone.
fn escaped(text: &str) -> String {
    let escape = |sign: char| {
        let is_special = matches!(sign, '*' | '?' | '[' | ']' | '\\');
        is_special.then_some('\\').into_iter().chain([sign])
    };
    text.chars().flat_map(escape).collect()
}

/// Returns whether the pattern matches the whole text, as the server decides it.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.as_bytes(), text.as_bytes());
    // The last star: the pattern behind it, and the text that this pattern has to match.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            star = Some((rest, text));
            pattern = rest;
            continue;
        }
        let step = text.split_first().and_then(|(byte, text)| Some((step(pattern, *byte)?, text)));
        match (step, star) {
            (Some((rest, rest_of_text)), _) => (pattern, text) = (rest, rest_of_text),
            _ if pattern.is_empty() && text.is_empty() => return true,
            // The star takes one byte more.
            (None, Some((rest, [_, shorter @ ..]))) => {
                star = Some((rest, shorter));
                (pattern, text) = (rest, shorter);
            }
            (None, _) => return false,
        }
    }
}

/// Returns the pattern behind its first sign, if this sign matches the byte.
fn step(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (is_match, rest) = match pattern {
        [] => return None,
        [b'?', rest @ ..] => (true, rest),
        [b'[', class @ ..] => read_class(class, byte),
        [b'\\', escaped, rest @ ..] => (*escaped == byte, rest),
        [sign, rest @ ..] => (*sign == byte, rest),
    };
    is_match.then_some(rest)
}

/// Returns whether a class of characters has the byte, and the pattern behind the class.
fn read_class(class: &[u8], byte: u8) -> (bool, &[u8]) {
    let (is_negated, mut rest) = match class.strip_prefix(b"^") {
        Some(rest) => (true, rest),
        None => (false, class),
    };
    let mut is_member = false;
    loop {
        rest = match *rest {
            [b'\\', member, ref rest @ ..] => {
                is_member |= member == byte;
                rest
            }
            [b']', ref rest @ ..] => break (is_member != is_negated, rest),
            [] => break (is_member != is_negated, rest),
            [first, b'-', last, ref rest @ ..] => {
                is_member |= (first.min(last)..=first.max(last)).contains(&byte);
                rest
            }
            [member, ref rest @ ..] => {
                is_member |= member == byte;
                rest
            }
        };
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_as_in_redis() {
        for (pattern, matching, others) in [
            ("*", &["", "a", "a:b"][..], &[][..]),
            ("a*c", &["ac", "abc", "abcc"], &["a", "abcd", "bc"]),
            ("*a*b", &["ab", "aab", "xaxbb"], &["ba", "a", "abx"]),
            ("a?c", &["abc"], &["ac", "abbc"]),
            ("a[bc]", &["ab", "ac"], &["ad", "a", "abc"]),
            ("a[^b-d]", &["aa", "ae"], &["ab", "ac", "ad"]),
            ("a[d-b]", &["ab", "ac"], &["aa"]),
            (r"a\*", &["a*"], &["ab", r"a\*"]),
            (r"a[\]x]b", &["a]b", "axb"], &[r"a\b"]),
            ("a[b", &["ab"], &["a[b", "a"]),
            ("", &[], &["a"]),
        ] {
            for text in matching {
                assert!(matches(pattern, text), "{pattern:?} {text:?}");
            }
            for text in others {
                assert!(!matches(pattern, text), "{pattern:?} {text:?}");
            }
        }
        assert!(!matches(&"*a".repeat(100), &"a".repeat(99)));
        assert!(matches(&"*a".repeat(100), &"a".repeat(10_000)));
    }

    #[test]
    fn the_prefix_of_a_client_is_no_pattern() {
        assert_eq!(of_keys("", "orders:*").ok().as_deref(), Some("orders:*"));
        let keys = of_keys(r"a*b?[c]\d:", r"x\[1\]*").expect("a good pattern");
        assert_eq!(keys, r"a\*b\?\[c\]\\d:x\[1\]*");
    }

    #[test]
    fn an_invalid_pattern_is_a_configuration_error() {
        let long = "x".repeat(257);
        for bad in ["", "a\nb", "\u{7f}", &long] {
            assert!(of_keys("", bad).is_err_and(|error| error.is_configuration()), "{bad:?}");
        }
        assert!(of_keys("", &"x".repeat(256)).is_ok());
    }
}
