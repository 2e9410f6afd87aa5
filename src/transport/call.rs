//! Packed commands, as they are written to a connection.
//!
//! A [`Call`] is one command in Redis' protocol, with the facts that decide how the pool may send
//! it: whether a second copy is harmless, how long a late copy would have an effect, and whether it
//! can be *joined*: calls of some scripts with one key that are written together become one call of
//! a script that runs them all. The packed bytes stay as they are, and the positions of the parts
//! that a joined call copies are kept beside them.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::transport::script::{JoinedBy, Script};
use crate::util::clock::{self, Moment};

/// The packed name and the packed length of the digest, which precede the digest of a script call.
const EVALSHA: &[u8] = b"$7\r\nEVALSHA\r\n$40\r\n";

/// The length of a digest.
const DIGEST: usize = 40;

/// A packed command.
pub(crate) struct Call {
    pub(crate) bytes: Vec<u8>,
    /// The script that the command calls. The server may not know it yet.
    pub(crate) script: Option<&'static Script>,
    /// The part that a joined call copies, if this call can be joined.
    joinable: Option<Joinable>,
    /// The position of the first key, if the command has a key.
    key: Option<Range<usize>>,
    /// Whether a second copy would do more than the first. Such a command is not sent again if the
    /// first copy may have run.
    pub(crate) once: bool,
    /// Whether replicas have to acknowledge the write, if the client is configured to wait for
    /// them.
    pub(crate) replicated: bool,
}

/// The parts of a packed script call that a joined call copies.
#[derive(Clone, Copy, Debug)]
struct Joinable {
    joining: JoinedBy,
    /// The start of the packed key, which ends where the arguments start.
    key: usize,
    /// The start of the packed arguments, which end with the call.
    args: usize,
    arg_count: usize,
}

impl fmt::Debug for Call {
    /// Leaves out the bytes, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.script.map(|script| script.name);
        f.debug_struct("Call").field("script", &name).field("length", &self.bytes.len()).finish()
    }
}

impl Call {
    /// Returns a call of `script` with its keys and arguments.
    pub(crate) fn script<'a>(
        script: &'static Script,
        keys: impl IntoIterator<Item = &'a [u8]> + Clone,
        args: impl IntoIterator<Item = &'a [u8]> + Clone,
    ) -> Call {
        let key_count = keys.clone().into_iter().count();
        let arg_count = args.clone().into_iter().count();
        let mut bytes = Vec::with_capacity(128 + 48 * (key_count + arg_count));
        begin_script(&mut bytes, script, key_count, arg_count);
        let keys_at = bytes.len();
        let first_length = keys.clone().into_iter().next().map(<[u8]>::len);
        for key in keys {
            push_part(&mut bytes, key);
        }
        let args_at = bytes.len();
        for arg in args {
            push_part(&mut bytes, arg);
        }
        let joining = script.joining.filter(|_| key_count == 1);
        Call {
            script: Some(script),
            joinable: joining.map(|joining| Joinable {
                joining,
                key: keys_at,
                args: args_at,
                arg_count,
            }),
            key: first_length.map(|length| content(keys_at, length)),
            ..Call::new(bytes)
        }
    }

    /// Returns a plain command without a key.
    pub(crate) fn command(parts: &[&[u8]]) -> Call {
        let mut bytes = Vec::with_capacity(64);
        begin(&mut bytes, parts.len());
        for part in parts {
            push_part(&mut bytes, part);
        }
        Call::new(bytes)
    }

    /// Returns a plain command whose first argument is a key, or the channel of a shard.
    pub(crate) fn on_key(name: &[u8], key: &[u8], rest: &[&[u8]]) -> Call {
        Call::on_part(&[name], key, rest)
    }

    /// Returns a subcommand of `PUBSUB` about channels, for the node of the first one.
    pub(crate) fn about_channels(verb: &[u8], first: &[u8], rest: &[&[u8]]) -> Call {
        Call::on_part(&[b"PUBSUB", verb], first, rest)
    }

    /// Returns a plain command of some words, whose first argument names the node.
    fn on_part(words: &[&[u8]], key: &[u8], rest: &[&[u8]]) -> Call {
        let call = Call::command(&[words, &[key], rest].concat());
        // The head of the packed words alone has a count of one digit. This head may have more.
        let count = words.len() + 1 + rest.len();
        let key_at = Call::command(words).bytes.len() - 1 + digit_count(count);
        Call { key: Some(content(key_at, key.len())), ..call }
    }

    /// Returns the `SCRIPT LOAD` of a script.
    pub(crate) fn load(script: &Script) -> Call {
        Call::command(&[b"SCRIPT", b"LOAD", script.source().as_bytes()])
    }

    fn new(bytes: Vec<u8>) -> Call {
        let (once, replicated) = (false, false);
        Call { bytes, script: None, joinable: None, key: None, once, replicated }
    }

    /// Returns the first key, if the command has a key.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.bytes.get(self.key.clone()?)
    }

    /// Returns whether the command calls a script that changes keys or sends messages.
    pub(crate) fn runs_writing_script(&self) -> bool {
        self.script.is_some_and(|script| !script.only_reads)
    }

    /// Has the script publish its release message to the shards of a cluster.
    ///
    /// A script without a release message stays as it is; the sharded form cannot be joined.
    pub(crate) fn for_shards(mut self) -> Call {
        if let Some(sharded) = self.script.and_then(Script::sharded) {
            let count_ends = self.bytes.iter().position(|byte| *byte == b'\n');
            let digest = count_ends.map_or(0, |end| end + 1) + EVALSHA.len();
            self.bytes[digest..digest + DIGEST].copy_from_slice(sharded.digest().as_bytes());
            self.script = Some(sharded);
            self.joinable = None;
        }
        self
    }

    /// Requires acknowledgements of replicas, if the client is configured to wait for them.
    pub(crate) fn replicated(self) -> Call {
        Call { replicated: true, ..self }
    }

    /// Forbids a second copy.
    pub(crate) fn once(self) -> Call {
        Call { once: true, ..self }
    }

    /// Returns the script that joins this call with others, if it can be joined.
    pub(crate) fn joined_by(&self) -> Option<&'static Script> {
        self.joinable.filter(|_| !self.once).map(|it| it.joining.by)
    }

    /// Appends a call of the script `by` to `bytes`, which joins `calls`.
    pub(crate) fn join<'a>(
        by: &Script,
        calls: impl Iterator<Item = &'a Call> + Clone,
        bytes: &mut Vec<u8>,
    ) {
        let parts = calls.filter_map(|call| call.joinable.as_ref().map(|it| (it, &*call.bytes)));
        let call_count = parts.clone().count();
        let arg_count: usize = parts.clone().map(|(it, _)| it.arg_count).sum();
        begin_script(bytes, by, call_count, 1 + arg_count);
        for (it, call) in parts.clone() {
            bytes.extend_from_slice(&call[it.key..it.args]);
        }
        begin_part(bytes, 2 * call_count);
        for (it, _) in parts.clone() {
            bytes.extend([it.joining.code, b'0' + it.arg_count as u8]);
        }
        bytes.extend_from_slice(b"\r\n");
        for (it, call) in parts {
            bytes.extend_from_slice(&call[it.args..]);
        }
    }
}

/// Appends the head of a command with `part_count` parts, its name included.
fn begin(bytes: &mut Vec<u8>, part_count: usize) {
    bytes.push(b'*');
    bytes.extend_from_slice(Digits::new(part_count as u64).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

/// Appends a script call up to its keys.
fn begin_script(bytes: &mut Vec<u8>, script: &Script, key_count: usize, arg_count: usize) {
    begin(bytes, 3 + key_count + arg_count);
    bytes.extend_from_slice(EVALSHA);
    bytes.extend_from_slice(script.digest().as_bytes());
    bytes.extend_from_slice(b"\r\n");
    push_part(bytes, Digits::new(key_count as u64).as_bytes());
}

/// Appends the head of a part with a content of `length` bytes.
fn begin_part(bytes: &mut Vec<u8>, length: usize) {
    bytes.push(b'$');
    bytes.extend_from_slice(Digits::new(length as u64).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

fn push_part(bytes: &mut Vec<u8>, value: &[u8]) {
    begin_part(bytes, value.len());
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

/// Returns the position of the content of a part that starts at `start`.
fn content(start: usize, length: usize) -> Range<usize> {
    let from = start + b"$".len() + digit_count(length) + b"\r\n".len();
    from..from + length
}

fn digit_count(number: usize) -> usize {
    Digits::new(number as u64).as_bytes().len()
}

/// A number in decimal, without an allocation.
#[derive(Debug)]
pub(crate) struct Digits {
    text: [u8; 20],
    start: usize,
}

impl Digits {
    pub(crate) fn new(mut number: u64) -> Digits {
        let mut digits = Digits { text: [b'0'; 20], start: 20 };
        for (place, digit) in digits.text.iter_mut().enumerate().rev() {
            *digit = b'0' + (number % 10) as u8;
            digits.start = place;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        digits
    }

    /// Returns a span as an argument of a command: whole milliseconds, rounded down.
    pub(crate) fn of_millis(span: Duration) -> Digits {
        Digits::new(clock::millis(span).unsigned_abs())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}

/// Identifies one shared connection of a client.
///
/// Commands that are written to the same connection reach the server in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    /// The number of the node, zero outside a cluster.
    pub(crate) node: u32,
    pub(crate) connection: usize,
}

impl ConnectionId {
    pub(crate) const fn at(node: u32, connection: usize) -> ConnectionId {
        ConnectionId { node, connection }
    }
}

/// A copy of a command that may run after later commands, if its connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LateCopy {
    /// The connection of the copy. On an unbroken connection, later commands run after the copy.
    pub(crate) connection: ConnectionId,
    /// The copy was written at this moment or later.
    pub(crate) since: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::script::{CALL_MANY, PLAIN_ACQUIRE, PLAIN_RELEASE};

    const KEYS: [&[u8]; 1] = [b"k"];

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).expect("ASCII")
    }

    #[test]
    fn digits_are_decimal() {
        for number in [0, 7, 10, 1234567890, u64::MAX] {
            assert_eq!(Digits::new(number).as_bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_call_is_packed_in_the_protocol_of_redis() {
        let args: [&[u8]; 2] = [b"10", b""];
        let call = Call::script(&PLAIN_RELEASE, KEYS, args);
        let digest = PLAIN_RELEASE.digest();
        let expected = format!(
            "*6\r\n$7\r\nEVALSHA\r\n$40\r\n{digest}\r\n$1\r\n1\r\n$1\r\nk\r\n$2\r\n10\r\n$0\r\n\r\n"
        );
        assert_eq!(text(&call.bytes), expected);
        let ping = Call::command(&[b"PING"]);
        assert_eq!(*ping.bytes, *b"*1\r\n$4\r\nPING\r\n");
        assert_eq!((call.key(), ping.key()), (Some(&b"k"[..]), None));
    }

    #[test]
    fn a_command_on_a_key_knows_its_key() {
        for key in [&b"k"[..], b"0123456789", &[b'k'; 1234]] {
            let call = Call::on_key(b"PTTL", key, &[]);
            assert_eq!(*call.bytes, *Call::command(&[b"PTTL", key]).bytes);
            assert_eq!(call.key(), Some(key));
            let rest = [&b"1"[..]; 12];
            assert_eq!(Call::on_key(b"SPUBLISH", key, &rest).key(), Some(key));
            let call = Call::about_channels(b"NUMSUB", key, &rest);
            let parts: Vec<&[u8]> =
                [&b"PUBSUB"[..], b"NUMSUB", key].into_iter().chain(rest).collect();
            assert_eq!(*call.bytes, *Call::command(&parts).bytes);
            assert_eq!(call.key(), Some(key));
        }
    }

    #[test]
    fn a_release_can_be_announced_to_shards() {
        let args: [&[u8]; 9] = [b"1"; 9];
        // The count of parts has one digit, then two.
        for args in [&args[..3], &args] {
            let release = || Call::script(&PLAIN_RELEASE, KEYS, args.iter().copied());
            let (plain, sharded) = (release(), release().for_shards());
            let form = PLAIN_RELEASE.sharded().expect("it announces a release");
            let expected = text(&plain.bytes).replace(PLAIN_RELEASE.digest(), form.digest());
            assert_eq!(text(&sharded.bytes), expected);
            assert_eq!(sharded.script.map(Script::digest), Some(form.digest()));
            assert!(plain.joined_by().is_some() && sharded.joined_by().is_none());
        }
        let acquire = Call::script(&PLAIN_ACQUIRE, KEYS, []).for_shards();
        assert_eq!(acquire.script.map(Script::digest), Some(PLAIN_ACQUIRE.digest()));
        assert!(Call::command(&[b"PING"]).for_shards().script.is_none());
    }

    #[test]
    fn joined_calls_keep_their_keys_and_arguments_in_order() {
        let other: [&[u8]; 1] = [b"kk"];
        let (two, three): ([&[u8]; 2], [&[u8]; 3]) = ([b"10", b"me"], [b"me", b"c", b"0"]);
        let calls =
            [Call::script(&PLAIN_ACQUIRE, KEYS, two), Call::script(&PLAIN_RELEASE, other, three)];
        assert!(calls.iter().all(|call| call.joined_by().is_some()));
        assert!(
            Call::script(&PLAIN_ACQUIRE, KEYS, two).once().joined_by().is_none(),
            "joined calls may be sent again"
        );
        let mut bytes = b"before".to_vec();
        Call::join(&CALL_MANY, calls.iter(), &mut bytes);
        let args: [&[u8]; 6] = [b"a2r3", b"10", b"me", b"me", b"c", b"0"];
        let expected = Call::script(&CALL_MANY, [KEYS[0], other[0]], args);
        assert_eq!(text(&bytes), format!("before{}", text(&expected.bytes)));
    }
}
