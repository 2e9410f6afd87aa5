//! The record of a client: a hash in Redis that names the process behind a client id.
//!
//! The key is `leasehold_client:{<client uuid>}`. A field that another version or program wrote may
//! have any value; an invalid value counts as missing.
//!
//! | field | value |
//! | --- | --- |
//! | `host`, `pid`, `program`, `label`, `version` | of the process and its client |
//! | `start` | the start of the client, in milliseconds since 1970 |
//! | `place`, `born` | where the process is known by its id, and when it started ([`process`]); only with `instance` or `ends` |
//! | `instance` | the name under which one process at a time may run |
//! | `ends` | `process` if the holds of the client end with its process |
//! | `group` | process groups that have to be gone too, separated by spaces |

use std::time::Duration;

use uuid::Uuid;

use crate::command::script;
use crate::transport::call::{Call, Digits};
use crate::transport::reply::Reply;
use crate::util::clock::{self, EPOCH, WallTime};
use crate::util::system::{names, process, process_id};
use crate::util::text;

/// How long a record stays without a renewal, at least.
pub(crate) const LIFETIME: Duration = Duration::from_secs(30);

/// The start of the key of each record.
const PREFIX: &str = "leasehold_client:";

/// The field names, in the order of the values in the reply to [`query`].
const FIELDS: [&[u8]; 11] = [
    b"host",
    b"pid",
    b"program",
    b"label",
    b"version",
    b"start",
    b"place",
    b"born",
    b"instance",
    b"ends",
    b"group",
];

/// The value of `ends`.
const WITH_PROCESS: &str = "process";

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
    place: Option<String>,
    born: Option<u64>,
    instance: Option<String>,
    ends_with_process: bool,
    groups: Vec<u32>,
}

/// When the holds of a client end, unless it releases them before: what its record tells the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// With their leases.
    Leases,
    /// With this process, which the reader sees while it is in that place itself.
    Process { place: String, pid: u32, born: u64, groups: Vec<u32> },
    /// Now: the reader is a later client of the same instance.
    Succeeded,
}

impl Fate {
    /// Returns whether the holds of the client are to be ended.
    pub(crate) fn is_met(&self) -> bool {
        match self {
            Fate::Leases => false,
            // A process may be moved to another machine.
            Fate::Process { place, pid, born, groups } => {
                process::is_gone(*pid, *born)
                    && groups.iter().all(|group| process::is_group_gone(*group))
                    && process::place().as_ref() == Some(place)
            }
            Fate::Succeeded => true,
        }
    }
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

/// Returns the command that lets a client's record expire after `left`.
///
/// The reply is 0 if there is no record.
pub(crate) fn expiry(client: Uuid, left: Duration) -> Call {
    let left = Digits::of_millis(left);
    Call::on_key(b"PEXPIRE", key(client).as_bytes(), &[left.as_bytes()])
}

/// Returns the command after which others end no holds of the client.
pub(crate) fn become_immortal(client: Uuid) -> Call {
    Call::on_key(b"HDEL", key(client).as_bytes(), &[b"instance", b"ends", b"group"])
}

/// Returns the command that deletes a client's record.
pub(crate) fn deletion(client: Uuid) -> Call {
    Call::on_key(b"DEL", key(client).as_bytes(), &[])
}

impl ClientRecord {
    /// Returns the record of a client that starts now in this process.
    pub(crate) fn of_this_process(label: Option<&str>, instance: Option<&str>) -> ClientRecord {
        ClientRecord {
            host: names::host(),
            pid: Some(process_id()),
            program: names::program(),
            label: label.map(str::to_owned),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            start: u64::try_from(clock::unix_time().as_millis()).ok(),
            place: names::host().and_then(|_| process::place()),
            born: process::start(process_id()),
            instance: instance.map(str::to_owned),
            ..ClientRecord::default()
        }
    }

    /// Has the holds of the client end with this process, and with a process group if there is one.
    /// Groups that were named before go on to count.
    ///
    /// Returns false if the system does not tell other processes of the end of this one.
    pub(crate) fn end_with_process(&mut self, group: Option<u32>) -> bool {
        self.ends_with_process = self.place.is_some() && self.born.is_some();
        self.groups.retain(|group| !process::is_group_gone(*group));
        self.groups.extend(group);
        self.ends_with_process
    }

    /// Returns whether others may end the holds of the client before their leases.
    pub(crate) fn is_mortal(&self) -> bool {
        self.ends_with_process || self.instance.is_some()
    }

    /// Returns when the holds of the client with this record end, as the client with the record
    /// `own` sees it.
    ///
    /// Process ids tell nothing in another namespace, on another machine, or after a restart of the
    /// machine. Copies of a virtual machine have the same boot id, so the host counts too.
    pub(crate) fn fate(&self, own: &ClientRecord) -> Fate {
        let is_here = self.host == own.host && self.place == own.place;
        let is_own_process = is_here && (self.pid, self.born) == (own.pid, own.born);
        let is_instance = self.instance.is_some() && self.instance == own.instance;
        if is_instance && self.start < own.start && !is_own_process {
            return Fate::Succeeded;
        }
        match (&self.place, self.pid, self.born) {
            (Some(place), Some(pid), Some(born)) if self.ends_with_process && is_here => {
                Fate::Process { place: place.clone(), pid, born, groups: self.groups.clone() }
            }
            _ => Fate::Leases,
        }
    }

    /// Returns the command that writes the record for this time.
    pub(crate) fn write(&self, client: Uuid, lifetime: Duration) -> Call {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let of_process = self.is_mortal();
        let values = [
            self.host.clone(),
            number(self.pid.map(u64::from)),
            self.program.clone(),
            self.label.clone(),
            self.version.clone(),
            number(self.start),
            self.place.clone().filter(|_| of_process),
            number(self.born).filter(|_| of_process),
            self.instance.clone(),
            self.ends_with_process.then(|| WITH_PROCESS.to_owned()),
            (!self.groups.is_empty()).then(|| join(&self.groups)),
        ];
        let (key, lifetime) = (key(client), Digits::of_millis(lifetime));
        let known =
            FIELDS.iter().zip(&values).filter_map(|(name, value)| Some((*name, value.as_ref()?)));
        let fields = known.flat_map(|(name, value)| [name, value.as_bytes()]);
        let args = Vec::from_iter(std::iter::once(lifetime.as_bytes()).chain(fields));
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
            place: owned(6),
            born: text(7).and_then(|born| born.parse().ok()),
            instance: owned(8),
            ends_with_process: text(9) == Some(WITH_PROCESS),
            groups: text(10).map(split).unwrap_or_default(),
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

    pub(crate) fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }

    /// Returns whether the holds of the client end with its process.
    pub(crate) fn ends_with_process(&self) -> bool {
        self.ends_with_process
    }

    /// Returns the time at which the client started, by its own clock.
    pub(crate) fn started(&self) -> Option<WallTime> {
        EPOCH.checked_add(Duration::from_millis(self.start?))
    }
}

fn join(groups: &[u32]) -> String {
    groups.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Reads groups. A text that is no group stands for one that is never gone.
fn split(groups: &str) -> Vec<u32> {
    groups.split(' ').map(|group| group.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<const N: usize>(values: [&[u8]; N]) -> Reply {
        Reply::List(values.map(|value| Reply::Text(value.to_vec())).into())
    }

    #[test]
    fn the_commands_of_a_record_name_its_key_and_fields() {
        let (client, key) =
            (Uuid::nil(), "leasehold_client:{00000000-0000-0000-0000-000000000000}");
        let label = ClientRecord::of_this_process(Some("billing"), None);
        let renewal = expiry(client, LIFETIME);
        let expected = Call::command(&[b"PEXPIRE", key.as_bytes(), b"30000"]);
        assert_eq!(renewal.bytes, expected.bytes);
        for call in [query(client), renewal, deletion(client), label.write(client, LIFETIME)] {
            assert_eq!(call.key(), Some(key.as_bytes()));
        }
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

    /// Returns the record of a client of `instance` that started at `start`.
    fn of_instance(instance: &str, start: u64) -> ClientRecord {
        let own = ClientRecord::of_this_process(None, Some(instance));
        ClientRecord { start: Some(start), ..own }
    }

    #[test]
    fn a_later_client_of_an_instance_succeeds_the_one_before() {
        let (before, own) = (of_instance("billing-0", 1), of_instance("billing-0", 2));
        assert_eq!(before.fate(&own), Fate::Leases, "both are in this process");
        // A container that is started again often has the same host name and process id.
        let before = ClientRecord { born: Some(1), ..before };
        assert_eq!(before.fate(&own), Fate::Succeeded);
        assert_eq!(own.fate(&before), Fate::Leases, "the later client goes on");
        assert_eq!(before.fate(&of_instance("billing-1", 2)), Fate::Leases);
        assert_eq!(before.fate(&ClientRecord::of_this_process(None, None)), Fate::Leases);
        assert!(Fate::Succeeded.is_met() && !Fate::Leases.is_met());
    }

    #[test]
    fn only_a_process_that_the_reader_sees_is_taken_for_gone() {
        let own = ClientRecord::of_this_process(None, None);
        let mut other = own.clone();
        assert_eq!(other.fate(&own), Fate::Leases, "its holds do not end with it");
        assert!(!other.is_mortal() && other.end_with_process(None) && other.is_mortal());
        assert!(!other.fate(&own).is_met());
        let former = ClientRecord { born: other.born.map(|born| born - 1), ..other.clone() };
        assert!(former.fate(&own).is_met(), "this process has its id now");
        let group = rustix::process::getpgrp().as_raw_nonzero().get().unsigned_abs();
        for groups in [vec![group], vec![u32::MAX >> 2, group], split("x")] {
            let former = ClientRecord { groups, ..former.clone() };
            assert!(!former.fate(&own).is_met(), "a group lives on: {former:?}");
        }
        assert_eq!((join(&[7, 8]), split("7 8")), ("7 8".to_owned(), vec![7, 8]));
        let elsewhere = |change: fn(&mut ClientRecord)| {
            let mut record = other.clone();
            change(&mut record);
            assert_eq!(record.fate(&own), Fate::Leases, "{record:?}");
        };
        elsewhere(|it| it.host = Some("another".to_owned()));
        elsewhere(|it| it.host = None);
        elsewhere(|it| it.place = Some("another".to_owned()));
        elsewhere(|it| it.place = None);
        elsewhere(|it| it.pid = None);
        elsewhere(|it| it.born = None);
    }

    #[test]
    fn a_record_without_a_host_or_a_place_ends_with_its_lease() {
        let nowhere =
            ClientRecord { host: None, place: None, ..ClientRecord::of_this_process(None, None) };
        let mut other = nowhere.clone();
        assert!(!other.end_with_process(None));
        assert_eq!(other.fate(&nowhere), Fate::Leases);
    }

    #[test]
    fn other_replies_are_no_record() {
        let wrong_type = crate::error::Refusal::new("WRONGTYPE", "a string");
        let nils = Reply::List(vec![Reply::Nil; FIELDS.len()]);
        let others = [Reply::Nil, Reply::Int(1), Reply::Refused(wrong_type), nils];
        assert!(others.iter().all(|reply| ClientRecord::read(reply).is_none()));
        assert_eq!(ClientRecord::read(&Reply::List(Vec::new())), None);
    }

    #[test]
    fn the_record_of_this_process_names_it() {
        let record = ClientRecord::of_this_process(None, None);
        assert!(record.host().is_some() && record.program().is_some());
        assert_eq!((record.pid(), record.label()), (Some(std::process::id()), None));
        assert_eq!(record.version(), Some(env!("CARGO_PKG_VERSION")));
        assert!(record.started().is_some_and(|start| start <= clock::wall_time()));
    }
}
