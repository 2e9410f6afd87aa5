//! Commands in a terminal.
