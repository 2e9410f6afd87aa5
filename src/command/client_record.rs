//! The record of a client: a hash in Redis that names the process behind a client id.
//!
//! The key is `leasehold_client:{<client uuid>}`. The fields are `host`, `pid`, `program`, `label`,
//! `version` and `start` (milliseconds since 1970). A field that another version or program wrote
//! may have any value; an invalid value counts as missing.

use std::time::Duration;

use uuid::Uuid;

use crate::command::script;
use crate::transport::call::{Call, Digits};
use crate::transport::reply::Reply;
use crate::util::clock::{self, EPOCH, WallTime};
use crate::util::system::{names, process_id};
use crate::util::text;

/// How long a record stays without a renewal.
pub(crate) const LIFETIME: Duration = Duration::from_secs(30);

/// The start of the key of each record.
const PREFIX: &str = "leasehold_client:";

/// The field names, in the order of the values in the reply to [`query`].
const FIELDS: [&[u8]; 6] = [b"host", b"pid", b"program", b"label", b"version", b"start"];

/// The record of one client, as far as its values are valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientRecord {
    host: Option<String>,
    pid: Option<u32>,
    program: Option<String>,
    label: Option<String>,
    version: Option<String>,
    /// Milliseconds since 1970, by the clock of the client.
    start: Option<u64>,
}

/// Returns the key of a client's record.
pub(crate) fn key(client: Uuid) -> String {
    format!("{PREFIX}{{{client}}}")
}

/// Returns whether a key is that of a client's record.
pub(crate) fn is_key(key: &str) -> bool {
    key.starts_with(PREFIX)
}

/// Returns the command that reads a client's record.
pub(crate) fn query(client: Uuid) -> Call {
    Call::on_key(b"HMGET", key(client).as_bytes(), &FIELDS)
}

/// Returns the command that keeps a client's record for another [`LIFETIME`].
///
/// The reply is 0 if there is no record.
pub(crate) fn renewal(client: Uuid) -> Call {
    expiry(client, LIFETIME)
}

/// Returns the command that lets a client's record expire after `left`.
pub(crate) fn expiry(client: Uuid, left: Duration) -> Call {
    let left = Digits::of_millis(left);
    Call::on_key(b"PEXPIRE", key(client).as_bytes(), &[left.as_bytes()])
}

/// Returns the command that deletes a client's record.
pub(crate) fn deletion(client: Uuid) -> Call {
    Call::on_key(b"DEL", key(client).as_bytes(), &[])
}

impl ClientRecord {
    /// Returns the record of a client that starts now in this process.
    pub(crate) fn of_this_process(label: Option<&str>) -> ClientRecord {
        ClientRecord {
            host: names::host(),
            pid: Some(process_id()),
            program: names::program(),
            label: label.map(str::to_owned),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            start: u64::try_from(clock::unix_time().as_millis()).ok(),
        }
    }

    /// Returns the command that writes the record.
    pub(crate) fn write(&self, client: Uuid) -> Call {
        let (pid, start) = (number(self.pid.map(u64::from)), number(self.start));
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let [host, program] = [text(&self.host), text(&self.program)];
        let [version, label] = [text(&self.version), text(&self.label)];
        let (key, lifetime) = (key(client), Digits::of_millis(LIFETIME));
        let values =
            [&host, &pid, &program, &version, &start, &label].map(|value| value.as_bytes());
        let args = [lifetime.as_bytes()].into_iter().chain(values);
        Call::script(&script::CLIENT_RECORD, [key.as_bytes()], args)
    }

    /// Reads the reply to [`query`]. Returns `None` without a record.
    ///
    /// A refusal, as for a key that is no hash, counts as no record.
    pub(crate) fn read(reply: &Reply) -> Option<ClientRecord> {
        let Reply::List(values) = reply else { return None };
        let text = |at: usize| text::from_bytes(values.get(at)?.text()?);
        let owned = |at| text(at).map(str::to_owned);
        let record = ClientRecord {
            host: owned(0),
            pid: text(1).and_then(|pid| pid.parse().ok()),
            program: owned(2),
            label: owned(3),
            version: owned(4),
            start: text(5).and_then(|start| start.parse().ok()),
        };
        (record != ClientRecord::default()).then_some(record)
    }

    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub(crate) fn program(&self) -> Option<&str> {
        self.program.as_deref()
    }

    pub(crate) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Returns the time at which the client started, by its own clock.
    pub(crate) fn started(&self) -> Option<WallTime> {
        EPOCH.checked_add(Duration::from_millis(self.start?))
    }
}

fn number(value: Option<u64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(values: [&[u8]; 6]) -> Reply {
        Reply::List(values.map(|value| Reply::Text(value.to_vec())).into())
    }

    #[test]
    fn the_commands_of_a_record_name_its_key_and_fields() {
        let (client, key) =
            (Uuid::nil(), "leasehold_client:{00000000-0000-0000-0000-000000000000}");
        let label = ClientRecord::of_this_process(Some("billing"));
        for call in [query(client), renewal(client), deletion(client), label.write(client)] {
            assert_eq!(call.key(), Some(key.as_bytes()));
        }
        let expected = Call::command(&[b"PEXPIRE", key.as_bytes(), b"30000"]);
        assert_eq!(renewal(client).bytes, expected.bytes);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = ClientRecord::read(&texts([b"web-1", b"42", b"api", b"x", b"0.1", b"2500"]));
        let record = record.expect("a record");
        assert_eq!((record.host(), record.pid()), (Some("web-1"), Some(42)));
        assert_eq!((record.program(), record.label()), (Some("api"), Some("x")));
        assert_eq!(record.version(), Some("0.1"));
        assert_eq!(record.started(), Some(EPOCH + Duration::from_millis(2500)));
    }

    #[test]
    fn invalid_values_count_as_missing() {
        let long = [b'x'; 257];
        let all = texts([b"\xff", b"-1", b"", b"a\nb", &long, b"soon"]);
        assert_eq!(ClientRecord::read(&all), None);
        let some = ClientRecord::read(&texts([b"h", b"4294967296", b"p", b"", b"\x1b", b" 1"]));
        let expected = ClientRecord {
            host: Some("h".to_owned()),
            program: Some("p".to_owned()),
            ..ClientRecord::default()
        };
        assert_eq!(some, Some(expected));
        let mut number = ClientRecord { start: Some(u64::MAX), ..ClientRecord::default() };
        let _ = number.started();
        number.start = None;
        assert_eq!(number.started(), None);
    }

    #[test]
    fn other_replies_are_no_record() {
        let wrong_type = crate::error::Refusal::new("WRONGTYPE", "a string");
        let nils = Reply::List(vec![Reply::Nil; 6]);
        let others = [Reply::Nil, Reply::Int(1), Reply::Refused(wrong_type), nils];
        assert!(others.iter().all(|reply| ClientRecord::read(reply).is_none()));
        assert_eq!(ClientRecord::read(&Reply::List(Vec::new())), None);
    }

    #[test]
    fn the_record_of_this_process_names_it() {
        let record = ClientRecord::of_this_process(None);
        assert!(record.host().is_some() && record.program().is_some());
        assert_eq!((record.pid(), record.label()), (Some(std::process::id()), None));
        assert_eq!(record.version(), Some(env!("CARGO_PKG_VERSION")));
        assert!(record.started().is_some_and(|start| start <= clock::wall_time()));
    }
}
