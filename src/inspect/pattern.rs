//! Patterns of lock names.

use crate::config::check_text;
use crate::error::Result;

/// Returns the pattern of keys for a pattern of names behind the client's prefix.
///
/// # Errors
/// `is_configuration` if the pattern is empty, too long or has control characters.
pub(super) fn of_keys(prefix: &str, pattern: &str) -> Result<String> {
    check_text("the pattern", pattern)?;
    Ok(escaped(prefix) + pattern)
}

/// Returns a text as a pattern that matches the text alone.
fn escaped(text: &str) -> String {
    let escape = |sign: char| {
        let is_special = matches!(sign, '*' | '?' | '[' | ']' | '\\');
        is_special.then_some('\\').into_iter().chain([sign])
    };
    text.chars().flat_map(escape).collect()
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

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
