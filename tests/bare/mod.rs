//! The scripts in `lua/`, called by themselves on a bare server.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use redis::{Connection, FromRedisValue, RedisError, RedisResult, Value};

use crate::support::Server;

/// One file of `lua/`.
pub struct Script {
    pub name: String,
    pub text: String,
}

pub fn scripts() -> Vec<Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let entries = fs::read_dir(folder).expect("there is a folder lua/");
    let mut scripts: Vec<_> = entries
        .map(|entry| entry.expect("the folder can be listed").path())
        .map(|path| {
            let name = path.file_name().expect("a file has a name").to_string_lossy();
            let name = name.strip_suffix(".lua").unwrap_or_else(|| panic!("lua/{name}?"));
            let text = fs::read_to_string(&path).expect("a script is text");
            Script { name: name.to_owned(), text }
        })
        .collect();
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!scripts.is_empty(), "lua/ is empty");
    scripts
}

pub fn script(name: &str) -> Script {
    let found = scripts().into_iter().find(|script| script.name == name);
    found.unwrap_or_else(|| panic!("there is no lua/{name}.lua"))
}

/// What one tag of a header says.
pub fn tagged<'a>(text: &'a str, tag: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(&format!("-- {tag}: ")));
    found.unwrap_or_else(|| panic!("no {tag} in {text}"))
}

/// Static item, script, digest.
pub fn table() -> Vec<(String, String, String)> {
    all_statics().into_iter().filter(|(item, ..)| !item.ends_with(SHARDED)).collect()
}

/// The same for the forms of scripts whose messages go to the shards of a cluster.
pub fn sharded_table() -> Vec<(String, String, String)> {
    all_statics().into_iter().filter(|(item, ..)| item.ends_with(SHARDED)).collect()
}

const SHARDED: &str = "_SHARDED";

fn all_statics() -> Vec<(String, String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command/script.rs");
    let source = fs::read_to_string(path).expect("src/command/script.rs is there");
    let mut entries = Vec::new();
    for (at, _) in source.match_indices("script!(") {
        let before = source[..at].rsplit_once("static ").expect("script! makes a static").1;
        let item = before.split(':').next().unwrap_or_default().trim().to_owned();
        let inside = source[at..].split(')').next().unwrap_or_default();
        let mut quoted = inside.split('"').skip(1).step_by(2).map(str::to_owned);
        let mut next = || quoted.next().unwrap_or_else(|| panic!("two strings in {inside}"));
        entries.push((item, next(), next()));
    }
    assert!(!entries.is_empty(), "no script! in src/command/script.rs");
    entries
}

/// The digest by which the library calls a script.
pub fn digest(name: &str) -> String {
    let found = table().into_iter().find(|(_, script, _)| script == name);
    found.unwrap_or_else(|| panic!("{name} is not in src/command/script.rs")).2
}

/// What is loaded: before the text of `call_many` stand the scripts that it calls.
pub fn whole(name: &str) -> String {
    let text = script(name).text;
    match name {
        "call_many" => format!("local scripts = {{}}\n{}{text}", functions()),
        _ => text,
    }
}

pub fn functions() -> String {
    let function = |(mark, name): (char, &str)| {
        let text = script(name).text;
        let (_, code) = text.split_once("\nlocal ").expect("a line that gives names");
        let (binding, body) = code.split_once('\n').expect("more lines");
        let (names, values) = binding.split_once(" = ").expect("a line that gives names");
        // As parameters, the names mean the same only in this order.
        let in_order = (1..).map(|number| format!("ARGV[{number}]"));
        let in_order: Vec<String> = ["KEYS[1]".to_owned()]
            .into_iter()
            .chain(in_order)
            .take(names.split(", ").count())
            .collect();
        assert_eq!(values, in_order.join(", "), "lua/{name}.lua");
        format!("scripts[{}] = function({names})\n{body}end\n", u32::from(mark))
    };
    [('a', "plain_acquire"), ('r', "plain_release")].into_iter().map(function).collect()
}

pub const LOCK: &str = "the-lock";
pub const CHANNEL: &str = "redisson_lock__channel:{the-lock}";
pub const MINE: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1";
pub const OTHER: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:2";

/// A server that knows the scripts, and a connection on which they are called by the
/// digests of `src/command/script.rs`.
pub struct Bare {
    pub server: Server,
    pub connection: Connection,
}

impl Bare {
    pub fn start() -> Bare {
        let server = Server::start();
        for Script { name, .. } in scripts() {
            server.ask::<String>(&["SCRIPT", "LOAD", &whole(&name)]);
        }
        let connection = server.connection();
        Bare { server, connection }
    }

    /// Runs one command on the connection of the scripts.
    pub fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let answer = redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection);
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
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
        let answer = self.try_call(script, keys, args);
        answer.unwrap_or_else(|error| panic!("{script} {keys:?} {args:?}: {error}"))
    }

    /// The call is refused with WRONGTYPE, and the key stays as it was.
    #[track_caller]
    pub fn is_refused_for_a_text(&mut self, script: &str, args: &[&str]) {
        self.server.ask::<()>(&["SET", LOCK, "a text", "PX", "60000"]);
        let error = self.try_call::<Value>(script, &[LOCK], args).expect_err("a text is no lock");
        assert!(is_refused_as("WRONGTYPE", &error), "{script}: {error}");
        assert_eq!(self.server.ask::<String>(&["GET", LOCK]), "a text");
        assert_left(&self.server, LOCK, 30_000..=60_000);
        self.server.ask::<()>(&["DEL", LOCK]);
    }

    /// The lock is held, by this owner and once.
    #[track_caller]
    pub fn is_held_by(&self, owner: &str) {
        let fields: BTreeMap<String, String> = self.server.ask(&["HGETALL", LOCK]);
        assert_eq!(fields, BTreeMap::from([(owner.to_owned(), "1".to_owned())]));
    }
}

/// Whether a script was refused with this code. Redis before 7 wraps what a script met in
/// words of its own, with the code in the middle.
pub fn is_refused_as(code: &str, error: &RedisError) -> bool {
    let met = error.detail().filter(|detail| detail.starts_with("Error running script"));
    let wrapped = met.and_then(|detail| detail.rsplit_once("@user_script:"));
    let wrapped = wrapped.and_then(|(_, met)| met.split_once(": "));
    error.code() == Some(code) || wrapped.is_some_and(|(_, met)| met.starts_with(code))
}

pub fn left(server: &Server, key: &str) -> i64 {
    server.ask(&["PTTL", key])
}

#[track_caller]
pub fn assert_left(server: &Server, key: &str, range: std::ops::RangeInclusive<i64>) {
    let left = left(server, key);
    assert!(range.contains(&left), "{left} ms left, not {range:?}");
}

/// The answers that a header documents, one by one.
pub fn documented_answers(name: &str) -> Vec<String> {
    tagged(&script(name).text, "RETURNS").split("; ").map(str::to_owned).collect()
}

/// A connection that hears one channel.
pub struct Ear(Connection);

impl Ear {
    pub fn on(server: &Server, channel: &str) -> Ear {
        let mut connection = server.connection();
        let answer = redis::cmd("SUBSCRIBE").arg(channel).query::<Value>(&mut connection);
        answer.expect("the channel is confirmed");
        Ear(connection)
    }

    /// The next message, as its channel and its payload. Blocks until there is one.
    pub fn hear(&mut self) -> (String, String) {
        let message = self.0.recv_response().expect("a message comes");
        let (kind, channel, payload): (String, String, String) =
            redis::from_redis_value(message).expect("a message has three parts");
        assert_eq!(kind, "message");
        (channel, payload)
    }
}

pub fn hold(server: &Server, key: &str, owner: &str, lease: &str) {
    server.ask::<()>(&["HSET", key, owner, "1"]);
    server.ask::<()>(&["PEXPIRE", key, lease]);
}
