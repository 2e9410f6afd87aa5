//! Names and patterns of names.

/// Returns whether the text has a sign with a meaning in patterns: `*`, `?`, `[` or `\`.
pub(crate) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '[', '\\'])
}
