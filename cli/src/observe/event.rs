//! [`LockEvent`]: a line of `watch --json`, and the material of `timeline`.

use serde::{Deserialize, Serialize};

/// An event of one lock.
///
/// One line of `watch --json`; unknown facts are left out. `timeline --input` reads the same lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LockEvent {
    /// The time, in seconds since 1970.
    pub(crate) at: f64,
    /// The name of the lock.
    pub(crate) name: String,
    pub(crate) event: Happening,
    /// The kind of the lock, such as `fair lock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// The holder or the waiting caller: one value per hold or wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// The label of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) thread: Option<String>,
    /// The time for which a lock was held, in seconds; with `released` and `expired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<f64>,
    /// The text of a mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
}

/// The sort of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Happening {
    /// A holder has the lock.
    Acquired,
    /// A holder no longer has the lock, before its lease ended.
    Released,
    /// The lease of a holder ended: the holder died, stopped or was cut off.
    Expired,
    /// The holder itself noticed the loss of its lock.
    Lost,
    /// A caller waits.
    Waiting,
    /// A caller no longer waits, and has not acquired the lock.
    Left,
    /// A moment with a text, for pictures: `killed`, `stopped`.
    #[default]
    Mark,
}
