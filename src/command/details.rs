//! Messages between clients: questions about holds, and their answers.
//!
//! Both are arrays of strings in Redis' protocol, published as the payload of a message:
//!
//! * request (the question), on the control channel of a client: `details`, the channel for the
//!   answer, and for each hold the key of its lock and its number;
//! * answer: `details`, the id of the client, and records of seven values: a [`LiveDetails`] for
//!   each of the holds that the client still has, then a [`HoldCount`] for each of the holds whose
//!   lock the client knows. The latter consists of [`NO_HOLD`], an empty value, the number of the
//!   hold, the count, and three zeros.
//!
//! A version without counts takes one for the details of a hold that it did not ask about, and
//! skips it.
//!
//! Any program may publish here, so every value is checked.

use std::time::Duration;

use uuid::Uuid;

use crate::transport::call::Call;
use crate::transport::reply::Reply;
use crate::util::clock::millis;
use crate::util::text;

/// The greatest number of holds in one request.
pub(crate) const MAX_HOLDS: usize = 256;

/// The first string of a request and of an answer.
const SUBJECT: &[u8] = b"details";

/// The start of the name of each channel for answers.
const REPLY_CHANNEL: &str = "leasehold:reply:";

/// The number of values in each record of an answer.
const VALUES: usize = 7;

/// The number of no hold. A record that begins with it is a [`HoldCount`].
const NO_HOLD: u64 = 0;

/// Returns the control channel of a client, on which its listener receives requests.
pub(crate) fn wake_channel(client: Uuid) -> String {
    format!("leasehold:wake:{{{client}}}")
}

/// Returns a channel for answers to a client; `number` differs between its queries.
pub(crate) fn reply_channel(client: Uuid, number: u64) -> String {
    format!("{REPLY_CHANNEL}{{{client}}}:{number}")
}

/// A hold in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedHold {
    /// The key of the lock.
    pub(crate) key: String,
    pub(crate) hold: u64,
}

/// A request for details about holds of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetailsRequest {
    pub(crate) reply_to: String,
    pub(crate) holds: Vec<AskedHold>,
}

/// The answer of a running process about one of its holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveDetails {
    /// The number of the hold.
    pub(crate) hold: u64,
    /// The name of the thread that acquired the hold, if it has one.
    pub(crate) thread_name: Option<String>,
    /// The number of that thread, unique in its process.
    pub(crate) thread: u64,
    /// The number of guards and detached shares.
    pub(crate) guards: u64,
    /// The time to the deadline.
    pub(crate) remaining: Duration,
    /// The time since the present holder got the hold.
    pub(crate) held_for: Duration,
    /// The number of callers of the process that wait for the lock.
    ///
    /// Zero for a fair lock: each of its waiters has a channel of its own.
    pub(crate) waiters: u64,
}

/// The number of holds of a lock that the client has had so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldCount {
    /// The number of the hold in the request. This hold may be over.
    pub(crate) hold: u64,
    pub(crate) acquired: u64,
}

/// The answer of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetailsAnswer {
    pub(crate) client: Uuid,
    pub(crate) holds: Vec<LiveDetails>,
    pub(crate) counts: Vec<HoldCount>,
}

impl DetailsRequest {
    /// Returns the payload of the message.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut parts = vec![SUBJECT.to_vec(), self.reply_to.clone().into_bytes()];
        for AskedHold { key, hold } in &self.holds {
            parts.extend([key.clone().into_bytes(), hold.to_string().into_bytes()]);
        }
        pack(&parts)
    }

    /// Reads a payload. `None` for an invalid request, and for one about too many holds.
    pub(crate) fn read(payload: &Reply) -> Option<DetailsRequest> {
        let mut parts = texts(payload)?.into_iter();
        let reply_to = parts.next().filter(|name| name.starts_with(REPLY_CHANNEL))?.to_owned();
        let parts: Vec<_> = parts.collect();
        let holds = parts.chunks(2).map(AskedHold::read).collect::<Option<Vec<_>>>()?;
        (holds.len() <= MAX_HOLDS).then_some(DetailsRequest { reply_to, holds })
    }
}

impl AskedHold {
    fn read(parts: &[&str]) -> Option<AskedHold> {
        let [key, hold] = parts else { return None };
        Some(AskedHold { key: (*key).to_owned(), hold: hold.parse().ok()? })
    }
}

impl DetailsAnswer {
    /// Returns the payload of the message.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut parts = vec![SUBJECT.to_vec(), self.client.to_string().into_bytes()];
        let records = self.holds.iter().map(LiveDetails::values);
        let counts = self.counts.iter().map(HoldCount::values);
        parts.extend(records.chain(counts).flatten().map(String::into_bytes));
        pack(&parts)
    }

    /// Reads a payload. `None` for an invalid answer.
    pub(crate) fn read(payload: &Reply) -> Option<DetailsAnswer> {
        let mut parts = texts(payload)?.into_iter();
        let client = parts.next().and_then(|id| Uuid::try_parse(id).ok())?;
        let parts: Vec<_> = parts.collect();
        let records = parts.chunks(VALUES).map(LiveDetails::read).collect::<Option<Vec<_>>>()?;
        let (counts, holds): (Vec<_>, _) = records.into_iter().partition(|it| it.hold == NO_HOLD);
        // A count was read as the details of `NO_HOLD`.
        let count = |it: &LiveDetails| HoldCount { hold: it.thread, acquired: it.guards };
        let counts = counts.iter().map(count).collect();
        Some(DetailsAnswer { client, holds, counts })
    }
}

impl LiveDetails {
    fn values(&self) -> [String; VALUES] {
        [
            self.hold.to_string(),
            self.thread_name.clone().unwrap_or_default(),
            self.thread.to_string(),
            self.guards.to_string(),
            millis(self.remaining).to_string(),
            millis(self.held_for).to_string(),
            self.waiters.to_string(),
        ]
    }

    fn read(parts: &[&str]) -> Option<LiveDetails> {
        let [hold, name, thread, guards, remaining, held, waiters] = parts else { return None };
        let short = |text: &str| text::check(text).is_ok().then(|| text.to_owned());
        let span = |millis: &str| millis.parse().ok().map(Duration::from_millis);
        Some(LiveDetails {
            hold: hold.parse().ok()?,
            thread_name: short(name),
            thread: thread.parse().ok()?,
            guards: guards.parse().ok()?,
            remaining: span(remaining)?,
            held_for: span(held)?,
            waiters: waiters.parse().ok()?,
        })
    }
}

impl HoldCount {
    fn values(&self) -> [String; VALUES] {
        let numbers = [NO_HOLD, self.hold, self.acquired, 0, 0, 0];
        let [none, hold, acquired, a, b, c] = numbers.map(|number| number.to_string());
        [none, String::new(), hold, acquired, a, b, c]
    }
}

fn pack(parts: &[Vec<u8>]) -> Vec<u8> {
    let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
    Call::command(&parts).bytes
}

/// Returns the strings after the subject. `None` if the payload is no message about details.
fn texts(payload: &Reply) -> Option<Vec<&str>> {
    let Reply::List(parts) = payload else { return None };
    let (subject, rest) = parts.split_first()?;
    let text = |part| std::str::from_utf8(Reply::text(part)?).ok();
    let rest = rest.iter().map(text).collect::<Option<Vec<_>>>()?;
    (subject.text() == Some(SUBJECT)).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(parts: &[&str]) -> Reply {
        Reply::List(parts.iter().map(|part| Reply::Text(part.as_bytes().to_vec())).collect())
    }

    fn details() -> LiveDetails {
        LiveDetails {
            hold: 7,
            thread_name: None,
            thread: 3,
            guards: 2,
            remaining: Duration::from_millis(1500),
            held_for: Duration::ZERO,
            waiters: 4,
        }
    }

    #[test]
    fn a_request_is_an_array_of_strings() {
        let holds = vec![AskedHold { key: "k".to_owned(), hold: 9 }];
        let request = DetailsRequest { reply_to: "leasehold:reply:{x}:1".to_owned(), holds };
        let expected =
            b"*4\r\n$7\r\ndetails\r\n$21\r\nleasehold:reply:{x}:1\r\n$1\r\nk\r\n$1\r\n9\r\n";
        assert_eq!(request.pack(), expected);
        let payload = list(&["details", "leasehold:reply:{x}:1", "k", "9"]);
        assert_eq!(DetailsRequest::read(&payload), Some(request));
    }

    #[test]
    fn an_answer_is_read_as_it_was_packed() {
        let counts = vec![HoldCount { hold: 7, acquired: 9 }, HoldCount { hold: 8, acquired: 1 }];
        let answer = DetailsAnswer { client: Uuid::max(), holds: vec![details()], counts };
        let id = Uuid::max().to_string();
        let record = ["7", "", "3", "2", "1500", "0", "4"];
        let count = |hold, acquired| ["0", "", hold, acquired, "0", "0", "0"];
        let counts = [count("7", "9"), count("8", "1")].concat();
        let parts = [&["details", &*id], &record[..], &counts].concat();
        let bytes: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
        assert_eq!(answer.pack(), Call::command(&bytes).bytes);
        assert_eq!(DetailsAnswer::read(&list(&parts)), Some(answer));
        let (holds, counts) = (Vec::new(), Vec::new());
        let none = DetailsAnswer { client: Uuid::max(), holds, counts };
        assert_eq!(DetailsAnswer::read(&list(&["details", &id])), Some(none));
    }

    #[test]
    fn an_invalid_request_is_recognized() {
        let reply = "leasehold:reply:{x}:1";
        let bad: [&[&str]; 7] = [
            &[],
            &["details"],
            &["other", reply],
            &["details", "redisson_lock__channel:{a}"],
            &["details", reply, "k"],
            &["details", reply, "k", "-1"],
            &["details", reply, "k", "1", "k"],
        ];
        assert!(bad.iter().all(|parts| DetailsRequest::read(&list(parts)).is_none()));
        let not_text = Reply::List(vec![Reply::Text(SUBJECT.to_vec()), Reply::Int(1)]);
        let not_utf8 = Reply::List(vec![Reply::Text(SUBJECT.to_vec()), Reply::Text(vec![0xff])]);
        for bad in [Reply::Nil, Reply::Int(1), not_text, not_utf8] {
            assert_eq!((DetailsRequest::read(&bad), DetailsAnswer::read(&bad)), (None, None));
        }
        let many = ["k", "1"].repeat(MAX_HOLDS + 1);
        let request = |count: usize| list(&[&["details", reply], &many[..2 * count]].concat());
        assert!(DetailsRequest::read(&request(MAX_HOLDS)).is_some());
        assert!(DetailsRequest::read(&request(MAX_HOLDS + 1)).is_none());
    }

    #[test]
    fn an_invalid_answer_is_recognized_and_an_invalid_name_counts_as_none() {
        let id = Uuid::max().to_string();
        let read =
            |values: &[&str]| DetailsAnswer::read(&list(&[&["details", &*id], values].concat()));
        assert!(DetailsAnswer::read(&list(&["details", "x"])).is_none());
        assert!(read(&["7", "", "3", "2", "1500", "0"]).is_none());
        assert!(read(&["7", "", "3", "two", "1500", "0", "4"]).is_none());
        let named = read(&["7", "a\x1b[2J", "3", "2", "1500", "0", "4"]);
        assert_eq!(named.map(|answer| answer.holds), Some(vec![details()]));
    }
}
