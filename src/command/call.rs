//! Packed commands: calls of scripts and plain commands, as they go over the wire.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::command::script::{self, Script};

/// Makes sure that late copies are prevented, where that is possible. There is nothing
/// that could be done about their effects.
const NOT_LATE: Duration = Duration::from_millis(1);

/// One command as it goes over the wire.
pub(crate) struct Call {
    /// The packed command.
    pub(crate) bytes: Vec<u8>,
    /// The script that it calls, which the server may not know yet.
    pub(crate) script: Option<&'static Script>,
    /// How it can be joined with others, if it can be.
    part: Option<Part>,
    /// Where the name of its first key stands, if it has one.
    key: Option<Range<usize>>,
    /// How long its effect would last if it ran once more, after everything else.
    pub(crate) lasting: Duration,
    /// A second copy would do more than the first: it must not be sent again if the
    /// first may have run.
    pub(crate) once: bool,
    /// Its answer is good only if enough replicas have what it wrote, where the client was
    /// told to see to that.
    pub(crate) replicated: bool,
}

/// Where the parts of a call stand that can be joined with others: one key, few
/// arguments.
#[derive(Clone, Copy, Debug)]
struct Part {
    mark: u8,
    key: usize,
    args: usize,
    count: usize,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.script.map(|script| script.name);
        // Not the bytes: there may be a password in them.
        f.debug_struct("Call").field("script", &name).field("length", &self.bytes.len()).finish()
    }
}

impl Call {
    /// A call of `script` with its keys and arguments.
    pub(crate) fn script<'a>(
        script: &'static Script,
        keys: impl IntoIterator<Item = &'a [u8]> + Clone,
        args: impl IntoIterator<Item = &'a [u8]> + Clone,
    ) -> Call {
        let count = keys.clone().into_iter().count();
        let parts = count + args.clone().into_iter().count();
        let mut bytes = Vec::with_capacity(128 + 48 * parts);
        open_script(&mut bytes, script, count, parts - count);
        let key = bytes.len();
        let first = keys.clone().into_iter().next().map(<[u8]>::len);
        keys.into_iter().for_each(|value| part(&mut bytes, value));
        let first = first.map(|length| content(key, length));
        let rest = bytes.len();
        args.into_iter().for_each(|value| part(&mut bytes, value));
        let mark = script.mark.filter(|_| count == 1);
        let part = mark.map(|mark| Part { mark, key, args: rest, count: parts - count });
        Call { script: Some(script), part, key: first, ..Call::of(bytes) }
    }

    /// A plain command.
    pub(crate) fn command(parts: &[&[u8]]) -> Call {
        let mut bytes = Vec::with_capacity(64);
        open(&mut bytes, parts.len());
        parts.iter().for_each(|value| part(&mut bytes, value));
        Call::of(bytes)
    }

    fn of(bytes: Vec<u8>) -> Call {
        let (lasting, once, replicated) = (Duration::ZERO, false, false);
        Call { bytes, script: None, part: None, key: None, lasting, once, replicated }
    }

    /// A plain command whose first argument is a key, or the channel of a shard.
    pub(crate) fn on_key(name: &[u8], key: &[u8], rest: &[&[u8]]) -> Call {
        let call = Call::command(&[&[name, key], rest].concat());
        let before = Call::command(&[name]).bytes.len() - 1 + digits(2 + rest.len());
        Call { key: Some(content(before, key.len())), ..call }
    }

    /// Its first key, if it has one.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.bytes.get(self.key.clone()?)
    }

    /// The same, but its messages go to shards.
    pub(crate) fn for_shards(mut self) -> Call {
        if let Some(script) = self.script
            && let Some(sharded) = script.sharded
            && let Some(at) =
                self.bytes.windows(40).position(|text| text == script.digest.as_bytes())
        {
            self.bytes[at..at + 40].copy_from_slice(sharded.digest.as_bytes());
            self.script = Some(sharded);
        }
        self
    }

    /// Whether it can be joined with others.
    pub(crate) fn joins(&self) -> bool {
        self.part.is_some() && !self.once
    }

    /// Packs one command behind `bytes` that makes those calls, all of which can be joined.
    pub(crate) fn join<'a>(calls: impl Iterator<Item = &'a Call> + Clone, bytes: &mut Vec<u8>) {
        let parts = calls.filter_map(|call| call.part.as_ref().map(|part| (part, &*call.bytes)));
        let count = parts.clone().count();
        let args: usize = parts.clone().map(|(part, _)| part.count).sum();
        open_script(bytes, &script::CALL_MANY, count, 1 + args);
        parts.clone().for_each(|(part, text)| bytes.extend_from_slice(&text[part.key..part.args]));
        open_part(bytes, 2 * count);
        parts.clone().for_each(|(part, _)| bytes.extend([part.mark, b'0' + part.count as u8]));
        bytes.extend_from_slice(b"\r\n");
        parts.for_each(|(part, text)| bytes.extend_from_slice(&text[part.args..]));
    }

    /// What makes `script` known to the server.
    pub(crate) fn load(script: &Script) -> Call {
        Call::command(&[b"SCRIPT", b"LOAD", script.source().as_bytes()])
    }

    /// Says that the call takes something for so long.
    pub(crate) fn lasting(self, lease: Duration) -> Call {
        Call { lasting: lease, ..self }
    }

    /// Says that replicas have to acknowledge it, where the client was told so.
    pub(crate) fn replicated(self) -> Call {
        Call { replicated: true, ..self }
    }

    /// Says that no second copy may be sent, nor a late one run.
    pub(crate) fn once(self) -> Call {
        Call { once: true, lasting: self.lasting.max(NOT_LATE), ..self }
    }
}

fn open(bytes: &mut Vec<u8>, parts: usize) {
    bytes.push(b'*');
    bytes.extend_from_slice(Digits::new(parts as u64).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

fn open_script(bytes: &mut Vec<u8>, script: &Script, keys: usize, args: usize) {
    open(bytes, 3 + keys + args);
    part(bytes, b"EVALSHA");
    part(bytes, script.digest.as_bytes());
    part(bytes, Digits::new(keys as u64).as_bytes());
}

/// Where the content of a part stands that begins at `start` and has that length.
fn content(start: usize, length: usize) -> Range<usize> {
    let from = start + 1 + digits(length) + 2;
    from..from + length
}

fn digits(number: usize) -> usize {
    Digits::new(number as u64).as_bytes().len()
}

fn open_part(bytes: &mut Vec<u8>, length: usize) {
    bytes.push(b'$');
    bytes.extend_from_slice(Digits::new(length as u64).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

fn part(bytes: &mut Vec<u8>, value: &[u8]) {
    open_part(bytes, value.len());
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
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

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}

/// One of the lines in which commands of a client go to the server. What stands in
/// one line gets there in order; see `lane.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    /// The number of the server, where there are several.
    pub(crate) node: u32,
    pub(crate) connection: usize,
}

impl ConnectionId {
    pub(crate) const fn at(node: u32, connection: usize) -> ConnectionId {
        ConnectionId { node, connection }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::script::PLAIN_RELEASE;

    #[test]
    fn digits_are_decimal() {
        for number in [0, 7, 10, 1234567890, u64::MAX] {
            assert_eq!(Digits::new(number).as_bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_call_is_packed_as_redis_reads_it() {
        let keys: [&[u8]; 1] = [b"k"];
        let args: [&[u8]; 2] = [b"10", b""];
        let call = Call::script(&PLAIN_RELEASE, keys, args);
        let text = String::from_utf8(call.bytes.to_vec()).expect("ASCII");
        let digest = PLAIN_RELEASE.digest;
        let wanted = format!(
            "*6\r\n$7\r\nEVALSHA\r\n$40\r\n{digest}\r\n$1\r\n1\r\n$1\r\nk\r\n$2\r\n10\r\n$0\r\n\r\n"
        );
        assert_eq!(text, wanted);
        let ping = Call::command(&[b"PING"]);
        assert_eq!(*ping.bytes, *b"*1\r\n$4\r\nPING\r\n");
        assert_eq!((call.key(), ping.key()), (Some(&b"k"[..]), None));
        for key in [&b"k"[..], b"0123456789", &[b'k'; 1234]] {
            let asked = Call::on_key(b"PTTL", key, &[]);
            assert_eq!(*asked.bytes, *Call::command(&[b"PTTL", key]).bytes);
            assert_eq!(asked.key(), Some(key));
            let rest = [&b"1"[..]; 12];
            assert_eq!(Call::on_key(b"SPUBLISH", key, &rest).key(), Some(key));
        }
    }
}
