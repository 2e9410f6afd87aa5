//! The scripts in `lua/`, the commands that call them, and what comes back.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Refusal, Result};

/// One script: its file's name, its text, and the SHA-1 by which Redis knows it.
/// `tests/scripts.rs` holds the digests against what a server computes.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    text: &'static str,
    pub(crate) digest: &'static str,
    /// By what [`ANY_JOIN`] knows it, if its calls can be joined with others.
    pub(crate) mark: Option<u8>,
    /// The same with messages to the shards of a cluster, if it sends any.
    sharded: Option<&'static Script>,
    to_shards: bool,
}

macro_rules! script {
    ($name:literal, $digest:literal) => {
        Script {
            name: $name,
            text: include_str!(concat!("../../lua/", $name, ".lua")),
            digest: $digest,
            mark: None,
            sharded: None,
            to_shards: false,
        }
    };
}

pub(crate) static PLAIN_ACQUIRE: Script =
    script!("plain_acquire", "175079c8c93e934e2954777aedb40fe34787c58c").joined_as(b'a');
pub(crate) static PLAIN_RELEASE: Script =
    script!("plain_release", "fc4ec1e01c705223e326db2917f5da7482fa0df0")
        .joined_as(b'r')
        .sharded_as(&PLAIN_RELEASE_SHARDED);
static PLAIN_RELEASE_SHARDED: Script =
    script!("plain_release", "3e449a184db30da930ea202b55bbbe1866e4a244").for_shards();
pub(crate) static PLAIN_RENEW: Script =
    script!("plain_renew", "f04d58553e3bdc38e13faff1c6e8aa250b80d069");
pub(crate) static PLAIN_FORCE: Script =
    script!("plain_force", "098bb0d0e37afac8a07c6edce80f395837cd9759")
        .sharded_as(&PLAIN_FORCE_SHARDED);
static PLAIN_FORCE_SHARDED: Script =
    script!("plain_force", "879bb7dbe0440bf8342ac2208283f216d06a5073").for_shards();

pub(crate) static FAIR_ACQUIRE: Script =
    script!("fair_acquire", "1462eb5eaf9155e21e6a11b89b95983874f746cb");
pub(crate) static FAIR_RELEASE: Script =
    script!("fair_release", "bb10a979143cfc55798d28daa0c3081dd39d11ab")
        .sharded_as(&FAIR_RELEASE_SHARDED);
static FAIR_RELEASE_SHARDED: Script =
    script!("fair_release", "f4b71f274cc02d19c2ce805e67f05e2add857c88").for_shards();
pub(crate) static FAIR_LEAVE: Script =
    script!("fair_leave", "373cf6b7581b0637e130c3b0181c33f784b76168")
        .sharded_as(&FAIR_LEAVE_SHARDED);
static FAIR_LEAVE_SHARDED: Script =
    script!("fair_leave", "874091d8a5cc98f3a8da1f58530014925b17183a").for_shards();
pub(crate) static FAIR_FORCE: Script =
    script!("fair_force", "3e86b23fc58b126a743aacd782cfc78734b68530")
        .sharded_as(&FAIR_FORCE_SHARDED);
static FAIR_FORCE_SHARDED: Script =
    script!("fair_force", "a1c269de20f69f782293a7d4cf6cdc54d9a95953").for_shards();
pub(crate) static FENCED_ACQUIRE: Script =
    script!("fenced_acquire", "aa3524bc0350ad745740b3e54258031fccabf3d9");
pub(crate) static SPIN_RELEASE: Script =
    script!("spin_release", "8aa4fd10eda49c5172c3b15c1f504f15525299f8");
pub(crate) static SPIN_FORCE: Script =
    script!("spin_force", "8036614d3c63034048e3773073d421526c9fd734");
pub(crate) static READ_ACQUIRE: Script =
    script!("read_acquire", "0469146a498f2de90a800b359595d77561a2d177");
pub(crate) static READ_RELEASE: Script =
    script!("read_release", "2544af7c79775569db4d62df1bfaf9113d446646")
        .sharded_as(&READ_RELEASE_SHARDED);
static READ_RELEASE_SHARDED: Script =
    script!("read_release", "c2caa474592390a805231f483ab98c8f1073c99d").for_shards();
pub(crate) static READ_RENEW: Script =
    script!("read_renew", "b3546e550c85c7244cb4268d7440094ca5e92c82");
pub(crate) static READ_FORCE: Script =
    script!("read_force", "6aa01a7d8fd3949aece70a651776c539545a6a17")
        .sharded_as(&READ_FORCE_SHARDED);
static READ_FORCE_SHARDED: Script =
    script!("read_force", "c418622e46bb044ccd4172cd63c66c9da5e1bd13").for_shards();
pub(crate) static READ_LEFT: Script =
    script!("read_left", "4ce4d4c6c3ef14fd08bef0174801a38dffb152c6");
pub(crate) static WRITE_ACQUIRE: Script =
    script!("write_acquire", "79e663bf135db014be1ae24be4dbb956a7aa342d");
pub(crate) static WRITE_RELEASE: Script =
    script!("write_release", "c692e884f48e572008363a93ece9ebeb95c5898b")
        .sharded_as(&WRITE_RELEASE_SHARDED);
static WRITE_RELEASE_SHARDED: Script =
    script!("write_release", "d3e8e51de74251fda862783aed3ac2334ea47fba").for_shards();
pub(crate) static WRITE_FORCE: Script =
    script!("write_force", "63d519c6cef0e37e932b5c0552a5b8a2c852bc7e")
        .sharded_as(&WRITE_FORCE_SHARDED);
static WRITE_FORCE_SHARDED: Script =
    script!("write_force", "e1cd9904a150112b932688573388ea308b115370").for_shards();
pub(crate) static WRITE_LEFT: Script =
    script!("write_left", "19e7ddcfd41cd744ffec44bfa977c9ce265fcf40");
pub(crate) static NAMED_ACQUIRE: Script =
    script!("named_acquire", "751ac6eef1e50014074e58be179d2fa2eca3912a");
pub(crate) static NAMED_RELEASE: Script =
    script!("named_release", "6909d37b92ced2c77d9f41394e191a97c2d4bcd2")
        .sharded_as(&NAMED_RELEASE_SHARDED);
static NAMED_RELEASE_SHARDED: Script =
    script!("named_release", "bdf2f59cfb98e25282d7b047607e3d8623c45f92").for_shards();
pub(crate) static NAMED_UNLOCK: Script =
    script!("named_unlock", "29a26a575365281b82d03438ace12931abc828c1")
        .sharded_as(&NAMED_UNLOCK_SHARDED);
static NAMED_UNLOCK_SHARDED: Script =
    script!("named_unlock", "eb77883857c8ebb08de975d55e493c00837a85e2").for_shards();
pub(crate) static MULTI_ACQUIRE: Script =
    script!("multi_acquire", "0dd9589547b69e579de98b78bf58efa7d0e7812a");

pub(crate) static ANY_POLL: Script =
    script!("any_poll", "8a94e41c61b5c4fd3b1eb3fa99706d8c3ca62bda");

/// Makes many calls of the scripts that have a mark, as one command: a call costs the
/// server more than what it does. The digest is that of [`Script::source`].
pub(crate) static ANY_JOIN: Script =
    script!("any_join", "8d9ffa7b63d265b1d44764beaf410daccc63cba6");
static JOINED: [&Script; 2] = [&PLAIN_ACQUIRE, &PLAIN_RELEASE];

impl Script {
    const fn joined_as(self, mark: u8) -> Script {
        Script { mark: Some(mark), ..self }
    }

    const fn sharded_as(self, sharded: &'static Script) -> Script {
        Script { sharded: Some(sharded), ..self }
    }

    const fn for_shards(self) -> Script {
        Script { to_shards: true, ..self }
    }

    /// What the server has to load.
    pub(crate) fn source(&self) -> Cow<'static, str> {
        match self.name == ANY_JOIN.name {
            true => {
                let functions: String = JOINED.into_iter().map(Script::function).collect();
                format!("local scripts = {{}}\n{functions}{}", self.text).into()
            }
            false if self.to_shards => self.text.replace(PUBLISH.0, PUBLISH.1).into(),
            false => self.text.into(),
        }
    }

    /// A function that does the same. The first line of every script gives names to its
    /// key and its arguments, in order; they are the function's parameters.
    fn function(&self) -> String {
        let (_, code) = self.text.split_once("\nlocal ").unwrap_or_default();
        let (names, code) = code.split_once(" = ").unwrap_or_default();
        let (_, body) = code.split_once('\n').unwrap_or_default();
        let mark = self.mark.unwrap_or_default();
        format!("scripts[{mark}] = function({names})\n{body}end\n")
    }
}

/// How a script sends a message, and how it sends one to a shard.
const PUBLISH: (&str, &str) = ("redis.call('publish'", "redis.call('spublish'");

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
        open_script(bytes, &ANY_JOIN, count, 1 + args);
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

/// What a server answered to one command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Int(i64),
    Text(Vec<u8>),
    Nil,
    List(Vec<Reply>),
    Push(Push),
    Refused(Refusal),
}

/// What a server says without having been asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Push {
    Message { channel: Vec<u8>, payload: Vec<u8> },
    Subscribed { channel: Vec<u8> },
    Unsubscribed { channel: Vec<u8> },
    Other,
}

impl Reply {
    pub(crate) fn into_int(self) -> Result<i64> {
        match self {
            Reply::Int(number) => Ok(number),
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn into_ints(self) -> Result<Vec<i64>> {
        match self {
            Reply::List(parts) => parts.into_iter().map(Reply::into_int).collect(),
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    /// The value of that name, in a list of names and values.
    pub(crate) fn field(&self, name: &str) -> Option<&Reply> {
        let Reply::List(parts) = self else { return None };
        parts.chunks_exact(2).find_map(|pair| match pair {
            [Reply::Text(key), value] if key == name.as_bytes() => Some(value),
            _ => None,
        })
    }

    pub(crate) fn text(&self) -> Option<&[u8]> {
        match self {
            Reply::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_refused(&self, code: &str) -> bool {
        matches!(self, Reply::Refused(refusal) if refusal.is(code))
    }
}

/// An answer of a shape that no server gives to our commands.
pub(crate) fn unexpected(reply: &Reply) -> Error {
    let shape = match reply {
        Reply::Int(_) => "a number",
        Reply::Text(_) => "a text",
        Reply::Nil => "nothing",
        Reply::List(_) => "a list",
        Reply::Push(_) => "a message",
        Reply::Refused(_) => "an error",
    };
    Error::new(ErrorKind::Server, format!("the server gave {shape} where it should not"))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_messages_of_a_script_can_go_to_shards() {
        let keys: [&[u8]; 1] = [b"k"];
        let release = || Call::script(&PLAIN_RELEASE, keys, []);
        let (classic, sharded) = (release(), release().for_shards());
        assert_eq!(sharded.bytes.len(), classic.bytes.len());
        assert_eq!(sharded.script.map(|script| script.digest), Some(PLAIN_RELEASE_SHARDED.digest));
        let text = String::from_utf8(sharded.bytes.to_vec()).expect("ASCII");
        assert!(
            text.contains(PLAIN_RELEASE_SHARDED.digest) && !text.contains(PLAIN_RELEASE.digest)
        );
        assert!(PLAIN_RELEASE_SHARDED.source().contains("'spublish'"));
        assert!(!PLAIN_RELEASE_SHARDED.source().contains("'publish'"));
        let acquire = Call::script(&PLAIN_ACQUIRE, keys, []).for_shards();
        assert_eq!(acquire.script.map(|script| script.digest), Some(PLAIN_ACQUIRE.digest));
    }

    #[test]
    fn replies_of_a_wrong_shape_are_errors_of_the_server() {
        assert_eq!(Reply::Int(3).into_int().ok(), Some(3));
        assert!(Reply::Nil.into_int().is_err_and(|e| e.is_server()));
        assert!(Reply::Int(3).into_ints().is_err_and(|e| e.is_server()));
        let list = Reply::List(vec![Reply::Int(1), Reply::Int(2)]);
        assert_eq!(list.into_ints().ok(), Some(vec![1, 2]));
    }
}
