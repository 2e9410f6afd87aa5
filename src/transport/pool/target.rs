//! Where a command is to be sent.

use crate::transport::call::ConnectionId;

/// The connection on which a command is to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Any,
    /// The named connection, or another one if it cannot be connected.
    Prefer(ConnectionId),
    /// The named connection and no other, behind everything that is queued there.
    Only(ConnectionId),
}

impl Target {
    /// Prefers that connection, if there is one.
    pub(crate) fn prefer(connection: Option<ConnectionId>) -> Target {
        connection.map_or(Target::Any, Target::Prefer)
    }

    /// Requires that connection, if there is one.
    pub(crate) fn only(connection: Option<ConnectionId>) -> Target {
        connection.map_or(Target::Any, Target::Only)
    }

    /// Returns the named connection, if there is one.
    pub(crate) fn connection(self) -> Option<ConnectionId> {
        match self {
            Target::Any => None,
            Target::Prefer(connection) | Target::Only(connection) => Some(connection),
        }
    }

    /// Returns the connection of the same number at another node.
    pub(crate) fn on(self, node: u32) -> Target {
        match self {
            Target::Any => Target::Any,
            Target::Prefer(connection) => Target::Prefer(ConnectionId { node, ..connection }),
            Target::Only(connection) => Target::Only(ConnectionId { node, ..connection }),
        }
    }
}
