//! Calls the scripts in `lua/` directly on a server, without the library.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use redis::{Connection, FromRedisValue, RedisError, RedisResult, Value};

use super::{Server, pttl};

/// The files whose text precedes that of other scripts: of each script that grants a queue lock,
/// of each of a fair lock, of each that refuses a caller for a hold that may linger, of each that
/// must know whether a hash is a lock, of each that knows the turns at a read-write lock, and of
/// each that describes a semaphore. They are no scripts themselves.
pub const COMMON_TEXTS: [&str; 7] = [
    "queue_grant",
    "fair_queue",
    "ask_holder",
    "fenced_take",
    "lock_form",
    "rw_turn",
    "permit_counts",
];

/// The scripts that refuse a caller for a hold that may linger.
const ASKING: [&str; 8] = [
    "plain_acquire",
    "call_many",
    "fenced_acquire",
    "once_acquire",
    "read_acquire",
    "write_acquire",
    "multi_acquire",
    "poll_many",
];

/// The scripts that must know whether a hash is a lock, besides those that free one by force.
const CHECKING: [&str; 6] = [
    "named_acquire",
    "named_release",
    "named_unlock",
    "read_acquire",
    "read_release",
    "write_release",
];

/// A file of `lua/`.
pub struct Script {
    pub name: String,
    pub text: String,
}

impl Script {
    /// Returns the text that a server receives.
    pub fn source(&self) -> String {
        let grants = self.name.starts_with("queue_") || self.name == "leader_release";
        let checks = self.name.ends_with("_force_unlock") || CHECKING.contains(&&*self.name);
        let describes = ["semaphore_info", "lock_info"].contains(&&*self.name);
        let turns = ["read_acquire", "write_acquire", "write_release"].contains(&&*self.name);
        let asks = ASKING.contains(&&*self.name);
        let fenced = ["fenced_acquire", "once_acquire"].contains(&&*self.name);
        let has = [grants, self.name.starts_with("fair_"), asks, fenced, checks, turns, describes];
        let common = COMMON_TEXTS.into_iter().zip(has).filter(|(_, has)| *has);
        let common: String = common.map(|(text, _)| script(text).text).collect();
        common + &self.text
    }
}

/// The folder of the library.
const LEASEHOLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn folder() -> PathBuf {
    Path::new(LEASEHOLD).join("lua")
}

/// Returns the scripts that a server can run, by name.
pub fn scripts() -> Vec<Script> {
    let entries = fs::read_dir(folder()).expect("there is a folder lua/");
    let mut scripts: Vec<_> = entries
        .map(|entry| entry.expect("the folder can be listed").file_name())
        .map(|file| {
            let file = file.to_string_lossy();
            script(file.strip_suffix(".lua").unwrap_or_else(|| panic!("lua/{file}?")))
        })
        .filter(|script| !is_common(&script.name))
        .collect();
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!scripts.is_empty(), "lua/ is empty");
    scripts
}

fn is_common(name: &str) -> bool {
    COMMON_TEXTS.contains(&name)
}

pub fn script(name: &str) -> Script {
    let path = folder().join(format!("{name}.lua"));
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("lua/{name}.lua: {error}"));
    Script { name: name.to_owned(), text }
}

/// Returns the lines of a script's header. A line that begins with three spaces continues the line
/// before it, and is joined to that line.
pub fn header(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().take_while(|line| line.starts_with("--")) {
        match (line.strip_prefix("--   "), lines.last_mut()) {
            (Some(more), Some(last)) => last.extend([" ", more]),
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

/// Returns the static items of the library's script table, with the names of their scripts.
pub fn table() -> Vec<(String, String)> {
    let path = Path::new(LEASEHOLD).join("src/command/script.rs");
    let source = fs::read_to_string(path).expect("src/command/script.rs is there");
    let statics = source.split("pub(crate) static ").skip(1);
    let entry = |text: &str| {
        let (item, rest) = text.split_once(": Script =")?;
        let (_, arguments) = rest.split_once("script!(")?;
        let (arguments, _) = arguments.split_once(");")?;
        let mut names = arguments.split('"').skip(1).step_by(2).filter(|it| !is_common(it));
        Some((item.to_owned(), names.next()?.to_owned()))
    };
    let entries: Vec<(String, String)> = statics.filter_map(entry).collect();
    assert!(!entries.is_empty(), "no script! in src/command/script.rs");
    entries
}

/// Returns the digest by which the library calls a script.
pub fn digest(name: &str) -> String {
    sha1(&script(name).source())
}

/// Returns the name of the script that has this digest.
pub fn name_of(digest: &str) -> String {
    static NAMES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
        scripts().into_iter().map(|script| (sha1(&script.source()), script.name)).collect()
    });
    NAMES.get(digest).unwrap_or_else(|| panic!("no script has the digest {digest}")).clone()
}

pub fn sha1(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

/// Loads all scripts, so that no call is refused because its script is unknown.
pub fn load_scripts(server: &Server) {
    for script in scripts() {
        server.ask::<()>(&["SCRIPT", "LOAD", &script.source()]);
    }
}

/// Returns the form of a script that publishes to a sharded channel.
pub fn sharded(text: &str) -> String {
    text.replace("redis.call('publish', channel", "redis.call('spublish', channel")
}

pub const LOCK: &str = "the-lock";
pub const CHANNEL: &str = "redisson_lock__channel:{the-lock}";
pub const MINE: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1";
pub const OTHER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:2";

/// A server with all scripts, and a connection on which a test calls them.
pub struct Bare {
    pub server: Server,
    pub connection: Connection,
}

impl Bare {
    pub fn start() -> Bare {
        Bare::on(Server::start())
    }

    /// Loads all scripts on a server.
    pub fn on(server: Server) -> Bare {
        load_scripts(&server);
        let connection = server.connection();
        Bare { server, connection }
    }

    /// Makes all further calls as a new user with these rules.
    pub fn restricted(self, rules: &[&str]) -> Bare {
        self.server.ask::<()>(&[&["ACL", "SETUSER", "narrow", "on", ">secret"], rules].concat());
        let connection = self.server.connection_as("narrow", "secret");
        Bare { server: self.server, connection }
    }

    /// Runs one command on the connection of the script calls.
    pub fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let reply = redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection);
        reply.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_call<T: FromRedisValue>(
        &mut self,
        script: &str,
        keys: &[&str],
        args: &[&str],
    ) -> RedisResult<T> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(digest(script)).arg(keys.len()).arg(keys).arg(args);
        command.query(&mut self.connection)
    }

    #[track_caller]
    pub fn call(&mut self, script: &str, keys: &[&str], args: &[&str]) -> i64 {
        self.reply(script, keys, args)
    }

    /// Calls a script whose reply is no single number.
    #[track_caller]
    pub fn reply<T: FromRedisValue>(&mut self, script: &str, keys: &[&str], args: &[&str]) -> T {
        let reply = self.try_call(script, keys, args);
        reply.unwrap_or_else(|error| panic!("{script} {keys:?} {args:?}: {error}"))
    }

    /// Asserts that a script refuses a string key with WRONGTYPE and leaves the key unchanged.
    #[track_caller]
    pub fn assert_wrong_type(&mut self, script: &str, args: &[&str]) {
        self.assert_wrong_type_of(script, &[LOCK], args);
    }

    /// Asserts the same of a script with these keys, the first of which is the lock.
    #[track_caller]
    pub fn assert_wrong_type_of(&mut self, script: &str, keys: &[&str], args: &[&str]) {
        self.server.ask::<()>(&["SET", LOCK, "a string", "PX", "60000"]);
        let error = self.try_call::<Value>(script, keys, args).expect_err("a string is no lock");
        assert!(is_refused_as("WRONGTYPE", &error), "{script}: {error}");
        assert_eq!(self.server.ask::<String>(&["GET", LOCK]), "a string");
        assert_ttl(&self.server, LOCK, 30_000..=60_000);
        self.server.ask::<()>(&["DEL", LOCK]);
    }

    /// Asserts that this owner alone holds the lock, with a count of 1.
    #[track_caller]
    pub fn assert_held_by(&self, owner: &str) {
        let fields: BTreeMap<String, String> = self.server.ask(&["HGETALL", LOCK]);
        assert_eq!(fields, BTreeMap::from([(owner.to_owned(), "1".to_owned())]));
    }
}

/// Values of a string key that are no integers, although Lua or a person may read some as numbers.
pub const NO_INTEGERS: [&str; 7] = ["", "a text", "2.5", "1e3", "0x10", "+3", "3 "];

/// Returns whether a script was refused with this code.
///
/// Redis before 7 puts the script's error into a longer sentence, with the code in the middle.
pub fn is_refused_as(code: &str, error: &RedisError) -> bool {
    let wrapped = error.detail().filter(|detail| detail.starts_with("Error running script"));
    let wrapped = wrapped.and_then(|detail| detail.rsplit_once("@user_script:"));
    let wrapped = wrapped.and_then(|(_, place)| place.split_once(": "));
    let refusal = wrapped.map(|(_, refusal)| refusal.trim_start_matches('-'));
    error.code() == Some(code) || refusal.is_some_and(|refusal| refusal.starts_with(code))
}

#[track_caller]
pub fn assert_ttl(server: &Server, key: &str, range: std::ops::RangeInclusive<i64>) {
    let ttl = pttl(server, key);
    assert!(range.contains(&ttl), "{ttl} ms remain, not {range:?}");
}

/// The reply of a script that publishes, as the headers document it.
pub const RECEIVED: &str = "else the number of subscribers that received the message";

/// Returns the replies that a header documents, one by one.
pub fn documented_replies(name: &str) -> Vec<String> {
    let header = header(&script(name).text);
    let replies = header.iter().find_map(|line| line.strip_prefix("-- RETURNS: "));
    let replies = replies.unwrap_or_else(|| panic!("lua/{name}.lua documents no replies"));
    replies.split("; ").map(str::to_owned).collect()
}

/// Asserts that these are the replies that the header of a script documents.
#[track_caller]
pub fn documents(script: &str, replies: &[&str]) {
    assert_eq!(documented_replies(script), replies, "each is tried below");
}

/// Asserts that a step publishes nothing.
#[track_caller]
pub fn silently<T>(bare: &mut Bare, step: impl FnOnce(&mut Bare) -> T) -> T {
    let before = bare.server.calls("publish");
    let outcome = step(bare);
    assert_eq!(bare.server.calls("publish"), before, "a message");
    outcome
}

/// A connection that is subscribed to one channel.
pub struct Listener(Connection);

impl Listener {
    pub fn on(server: &Server, channel: &str) -> Listener {
        let mut connection = server.connection();
        let reply = redis::cmd("SUBSCRIBE").arg(channel).query::<Value>(&mut connection);
        reply.expect("the subscription is confirmed");
        Listener(connection)
    }

    /// Returns the channel and the payload of the next message. Blocks until a message arrives.
    pub fn next_message(&mut self) -> (String, String) {
        let message = self.0.recv_response().expect("a message arrives");
        let (kind, channel, payload): (String, String, String) =
            redis::from_redis_value(message).expect("a message has three parts");
        assert_eq!(kind, "message");
        (channel, payload)
    }
}

/// Returns the time of a server, in us since 1970.
pub fn micros(server: &Server) -> i64 {
    let (seconds, micros): (i64, i64) = server.ask(&["TIME"]);
    seconds * 1_000_000 + micros
}

/// Returns the texts as keys or arguments of a call.
pub fn texts(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

pub fn hold(server: &Server, key: &str, owner: &str, lease: &str) {
    server.ask::<()>(&["HSET", key, owner, "1"]);
    server.ask::<()>(&["PEXPIRE", key, lease]);
}
