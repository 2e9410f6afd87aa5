//! Joined calls: many acquires and releases as one script call.

/// How a request is, or may be, joined with its neighbours.
#[derive(Debug)]
pub(super) struct Joining {
    /// How many requests, this one first, were written as one command.
    pub(super) count: usize,
    /// The request must be written by itself.
    pub(super) alone: bool,
}

impl Default for Joining {
    fn default() -> Joining {
        Joining { count: 1, alone: false }
    }
}
