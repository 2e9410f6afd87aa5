//! [`LockEvent`]: a line of `watch --json`, and the material of `timeline`.

use serde::{Deserialize, Serialize};

/// An event of one lock.
///
/// One line of `watch --json`; unknown facts are left out. `timeline --input` reads the same lines.
/// Times are seconds since 1970, durations are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LockEvent {
    /// The best known time of the event: between the look before it and the look that saw it.
    pub(crate) at: f64,
    /// The name of the lock.
    pub(crate) name: String,
    pub(crate) event: Happening,
    /// Whether the first look saw this: the hold or the wait began earlier, at `since`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) present: bool,
    /// The kind of the lock, such as `fair lock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// The holder or the waiting caller: one value per wait and the hold after it.
    ///
    /// A hand-off within a process keeps the value, and changes `thread`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// The id of the client: one value per process, as a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<String>,
    /// The label of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// The name of the thread; unknown for a caller in a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) thread: Option<String>,
    /// The number of the thread, unique in its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) thread_number: Option<u64>,
    /// The beginning of the hold or wait; with `acquired` and `waiting`.
    ///
    /// Without an answer of the process this is the time of its call, by the clock of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<f64>,
    /// The length of the hold; with `released` and `expired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<f64>,
    /// The length of the wait in the queue; with `left`, `gone`, and `acquired` after a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waited: Option<f64>,
    /// Whether the hold passed from thread to thread of one process, without the server.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) handed_off: bool,
    /// The number of holds that the client got since the look that saw its last one; with
    /// `acquired`. More than 1: the others were too short for any look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<u64>,
    /// The number of waiting processes, for kinds without a queue; with `waiting` and `left`.
    ///
    /// Such an event has no owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) processes: Option<u64>,
    /// The end of the minimum; with `kept`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<f64>,
    /// The text of a mark, or the error of an outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
}

/// The sort of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Happening {
    /// A holder has the lock.
    Acquired,
    /// A holder no longer has the lock, and its lease had not ended: a release, or force.
    Released,
    /// A holder released the lock before its minimum, which keeps the lock taken without a holder.
    Kept,
    /// The last guard of a hold ended, and the hold lingers for the next caller of its process.
    Idle,
    /// The lease of a holder ended: the holder died, stopped, was cut off, or had no renewal.
    Expired,
    /// The holder itself noticed the loss of its lock. Looks at a server never see this.
    Lost,
    /// A caller waits in the queue, or (without an owner) more processes wait than before.
    Waiting,
    /// A caller left the queue without the lock, or (without an owner) fewer processes wait.
    Left,
    /// A caller no longer waits: it left the queue, or had the lock for less than the time between
    /// two looks.
    Gone,
    /// The process of a holder or a waiting caller has become known: host, pid, program, label.
    ///
    /// A client writes its record up to a second after its first hold; `client_id` joins the
    /// events before that.
    Identified,
    /// The server does not answer: events are unknown from here to `recovered`.
    Outage,
    /// The server answers again.
    Recovered,
    /// A moment with a text, for pictures: `killed`, `stopped`.
    #[default]
    Mark,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
