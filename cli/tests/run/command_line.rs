//! Help, completions, the man page, and the README.
