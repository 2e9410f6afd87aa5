//! The permissions of docs/permissions.md.

/// The text of docs/permissions.md.
pub const DOCUMENT: &str = include_str!("../../docs/permissions.md");

/// Returns the rules of the one documented `ACL SETUSER` line, without the user's name.
pub fn rules_of_a_plain_lock() -> Vec<&'static str> {
    let mut lines = DOCUMENT.lines().filter_map(|line| line.strip_prefix("ACL SETUSER "));
    let line = lines.next().expect("docs/permissions.md has that line");
    assert!(lines.next().is_none(), "docs/permissions.md has one such line");
    line.split_whitespace().skip(1).collect()
}
