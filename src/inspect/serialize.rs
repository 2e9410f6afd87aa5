//! `serde::Serialize` for the public types: one field per method of the type.

use std::time::Duration;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::holder::HolderInfo;
use super::info::{LockInfo, WaitingInfo};
use super::leader::Leader;
use crate::audit::AuditFinding;
use crate::util::clock::{EPOCH, WallTime};

/// Implements `Serialize` for a type, with an expression for the value of each field.
macro_rules! serialize {
    ($type:ident, $it:ident { $($field:ident: $value:expr),* $(,)? }) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $it = self;
                let fields = [$(stringify!($field)),*].len();
                let mut structure = serializer.serialize_struct(stringify!($type), fields)?;
                $(structure.serialize_field(stringify!($field), &$value)?;)*
                structure.end()
            }
        }
    };
}

serialize!(
    HolderInfo,
    it {
        owner: it.owner(),
        client_id: it.client_id().map(|id| id.to_string()),
        host: it.host(),
        pid: it.pid(),
        program: it.program(),
        label: it.label(),
        version: it.version(),
        started: it.started().map(since_1970),
        instance: it.instance(),
        ends_with_process: it.ends_with_process(),
        thread: it.thread(),
        thread_number: it.thread_number(),
        since: it.since().map(since_1970),
        remaining: it.remaining().map(|span| span.as_secs_f64()),
        count: it.count(),
        is_idle: it.is_idle(),
        slots: it.slots(),
        local_waiters: it.local_waiters(),
        acquired: it.acquired(),
    }
);

serialize!(WaitingInfo, it { processes: it.processes(), queue: it.queue() });

serialize!(
    LockInfo,
    it {
        name: it.name(),
        kind: it.kind(),
        holders: it.holders(),
        former_holder: it.former_holder(),
        remaining: it.remaining().map(|span| span.as_secs_f64()),
        waiting: it.waiting(),
        token: it.token(),
        leader_value: it.leader_value(),
        in_use: it.in_use(),
        permits: it.permits(),
    }
);

serialize!(AuditFinding, it { server: &*it.server, text: &*it.text });
serialize!(Leader, it { value: it.value(), token: it.token(), holder: it.holder() });

/// Returns a time in seconds since 1970.
fn since_1970(time: WallTime) -> f64 {
    time.duration_since(EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}
