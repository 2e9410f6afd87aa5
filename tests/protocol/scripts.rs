//! The scripts in `lua/`: their headers against their code, the table in `src/command/script.rs`
//! against the folder, the digests against a server, and every documented reply against a real
//! server, a full one included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Builder, CancelToken, Client};
use redis::Value;

use crate::harness::bare::*;
use crate::harness::faults::{BRISK, Renewals};
use crate::harness::{CancelOnDrop, Server, eventually, in_time, pttl};

// ---------------------------------------------------------------------------------
// The text of the scripts.

/// The tags that follow the first line of every header, in this order. The first line says what
/// the script does.
const TAGS: [&str; 4] = ["-- KEYS: ", "-- ARGV: ", "-- RETURNS: ", "-- Atomic: "];

/// Returns a script's code without its header and its comments.
fn code_of(text: &str) -> String {
    let lines = text.lines().skip_while(|line| line.starts_with("--"));
    let code: Vec<&str> = lines.map(|line| line.split("--").next().unwrap_or("")).collect();
    code.join("\n")
}

/// The entries of KEYS or ARGV: single positions, and all positions from one on.
#[derive(Debug, Default, PartialEq)]
struct Positions {
    single: BTreeSet<usize>,
    from: Option<usize>,
}

/// Reads `1 lease, 2 owner, 3 and 4, only for`, `1 lease, 2 .. n + 1 owners` or `n locks`.
fn documented(list: &str) -> Positions {
    let mut positions = Positions::default();
    for item in list.split(", ") {
        let words: Vec<&str> = item.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
        match (number(0), words.get(1).copied()) {
            (Some(first), Some("..")) => positions.from = Some(first),
            (Some(first), Some("and")) => {
                positions.single.extend([Some(first), number(2)].iter().flatten())
            }
            (Some(first), _) => {
                positions.single.insert(first);
            }
            (None, _) if words[0] == "n" => positions.from = Some(1),
            (None, _) => {}
        }
    }
    positions
}

/// Finds the entries of `table` (KEYS or ARGV) that the code uses.
///
/// A script may use these forms only: `KEYS[1]`, `ipairs(KEYS)`, `ARGV[position + 1]` in the loop
/// over it, `unpack(ARGV, first, ...)` for all entries after those that have names, and `#KEYS`.
fn used(code: &str, table: &str) -> Result<Positions, String> {
    let mut positions = Positions::default();
    for (at, _) in code.match_indices(table) {
        let rest = &code[at + table.len()..];
        if code[..at].ends_with("ipairs(") && rest.starts_with(')') {
            positions.from = Some(1);
            continue;
        }
        if code[..at].ends_with('#') {
            continue;
        }
        if code[..at].ends_with("unpack(") && rest.starts_with(", first, ") {
            positions.from = Some(1 + code.matches(&format!("{table}[")).count());
            continue;
        }
        let index = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let index = index.map(|(index, _)| index.trim());
        let index = index.ok_or_else(|| format!("{table} is used as a whole"))?;
        if let Ok(number) = index.parse() {
            positions.single.insert(number);
        } else if code.contains(&format!("for {}, ", index.split(" + ").next().unwrap_or(""))) {
            let offset =
                index.split_once(" + ").map_or(Ok(0), |(_, offset)| offset.parse::<usize>());
            positions.from = Some(1 + offset.map_err(|_| format!("{table}[{index}]?"))?);
        } else {
            return Err(format!("{table}[{index}]: neither a number nor from a loop"));
        }
    }
    Ok(positions)
}

/// Returns everything that is wrong with a script's text.
fn faults(text: &str) -> Vec<String> {
    let (head, code) = (header(text), code_of(text));
    let mut faults = Vec::new();
    let mut check = |fine: bool, fault: String| {
        if !fine {
            faults.push(fault);
        }
    };
    check(head.len() == 1 + TAGS.len(), format!("a header of {} entries", head.len()));
    check(head.first().is_some_and(|line| is_sentence(line)), "no sentence first".to_owned());
    for (tag, line) in TAGS.iter().zip(head.iter().skip(1)) {
        let documents = line.strip_prefix(tag).is_some_and(|text| !text.trim().is_empty());
        check(documents, format!("{tag:?} expected, not {line:?}"));
    }
    let entry = |tag: &str| head.iter().find_map(|line| line.strip_prefix(&format!("-- {tag}: ")));
    for table in ["KEYS", "ARGV"] {
        let documented = documented(entry(table).unwrap_or_default());
        match used(&code, table) {
            Ok(used) => check(documented == used, format!("{table}: {documented:?}, but {used:?}")),
            Err(fault) => check(false, fault),
        }
    }
    let returns = entry("RETURNS").unwrap_or_default();
    for literal in returned_numbers(&code) {
        let documented = returns.split([' ', ';']).any(|word| word == literal);
        check(documented, format!("returns {literal}, which is not documented"));
    }
    let long = text.lines().filter(|line| line.len() > 100);
    faults.extend(long.map(|line| format!("longer than 100 columns: {line}")));
    faults.extend(binding_faults(&code));
    faults
}

/// Returns whether a comment line begins with a capital letter and ends with a full stop.
fn is_sentence(line: &str) -> bool {
    let sentence = line.strip_prefix("-- ").unwrap_or_default();
    sentence.starts_with(char::is_uppercase) && sentence.ends_with('.')
}

/// Returns the numbers that directly follow a `return`, also as the first of a list.
fn returned_numbers(code: &str) -> Vec<&str> {
    let returned = code.split("return ").skip(1);
    let returned = returned.map(|rest| rest.trim_start_matches(['{', ' ']));
    let first_words = returned.filter_map(|rest| rest.split([' ', ',', '\n']).next());
    first_words.filter(|word| word.parse::<i64>().is_ok()).collect()
}

/// Splits off the first paragraph of the code, which names the entries of KEYS and ARGV.
///
/// Returns the names, the values and the rest of the code.
fn bindings(code: &str) -> (Vec<&str>, Vec<&str>, &str) {
    let code = code.trim_start();
    let (paragraph, rest) = code.split_once("\n\n").unwrap_or((code, ""));
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for statement in paragraph.split("local ").skip(1) {
        let (left, right) = statement.split_once('=').unwrap_or((statement, ""));
        names.extend(left.split(',').map(str::trim));
        values.extend(right.split(',').map(str::trim));
    }
    (names, values, rest)
}

/// Returns everything that is wrong with the names that a script gives to KEYS and ARGV.
fn binding_faults(code: &str) -> Vec<String> {
    let (names, values, rest) = bindings(code);
    let mut faults = Vec::new();
    if names.is_empty() {
        faults.push("the first paragraph of the code binds nothing".to_owned());
    }
    if names.len() != values.len() {
        faults.push(format!("{} names for {} values", names.len(), values.len()));
    }
    let unused = names.iter().filter(|name| !words(rest).any(|word| word == **name));
    faults.extend(unused.map(|name| format!("{name} is never used")));
    for table in ["KEYS", "ARGV"] {
        let unnamed = used(rest, table).is_ok_and(|later| !later.single.is_empty());
        if unnamed {
            faults.push(format!("{table} is indexed by number after the first paragraph"));
        }
    }
    faults
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|sign: char| !sign.is_alphanumeric() && sign != '_')
}

#[test]
fn every_header_is_complete_and_matches_the_code() {
    for Script { name, text } in scripts().into_iter().chain(COMMON_TEXTS.map(script)) {
        assert_eq!(faults(&text), Vec::<String>::new(), "lua/{name}.lua");
        let (kind, verb) = name.split_once('_').expect("<kind>_<verb>.lua or <verb>_many.lua");
        assert!(!kind.is_empty() && !verb.is_empty(), "lua/{name}.lua is no <kind>_<verb>.lua");
    }
}

/// Shows that the check above can fail: it finds each of these changes to a good script.
#[test]
fn wrong_headers_are_found() {
    const GOOD: &str = "-- Does something.\n\
        -- KEYS: 1 lock\n\
        -- ARGV: 1 lease, 2 and 3, only from a caller\n\
        --   that waits: a, and b\n\
        -- RETURNS: -1 refused; else ms\n\
        -- Atomic: always.\n\
        local lock, lease = KEYS[1], ARGV[1]\n\
        local a, b =\n  ARGV[2], ARGV[3]\n\n\
        if lease then\n  return -1\nend\nreturn redis.call('get', lock, a, b)\n";
    assert_eq!(faults(GOOD), Vec::<String>::new());
    let long = format!("-- Does something {}.", "x".repeat(100));
    let changes = [
        ("-- Does something.\n", ""),
        ("-- Does something.", "-- does something"),
        ("-- Does something.", &long),
        ("-- KEYS: 1 lock\n", ""),
        ("-- KEYS: 1 lock", "-- KEYS:"),
        ("-- KEYS: 1 lock", "-- KEYS: 1 lock, 2 channel"),
        ("-- KEYS: 1 lock", "-- KEYS: n locks"),
        ("1 lease, 2 and 3,", "1 lease, 2,"),
        ("1 lease, 2 and 3,", "1 lease, 2 and 4,"),
        ("1 lease, 2 and 3,", "1 lease, 2 .. n + 1"),
        ("--   that waits", "-- that waits"),
        ("-- RETURNS: -1 refused;", "-- RETURNS: -2 refused;"),
        ("-- Atomic", "-- Why"),
        ("-- Atomic", "-- And this.\n-- Atomic"),
        ("local lock, lease = ", "local lock = "),
        ("local a, b =", "local a ="),
        ("ARGV[3]\n\n", "ARGV[3]\n"),
        ("get', lock,", "get', KEYS[1],"),
        ("get', lock,", "get', lock, KEYS[2],"),
        ("lock, a, b)", "lock, a, b, unpack(ARGV))"),
        ("lock, a, b)", "lock, a, b, unpack(KEYS, first, 4))"),
        ("return -1", "return { -3, a }"),
        ("lock, a, b)", "lock, a, b, ARGV[a])"),
        ("lock, a, b)", "lock, a)"),
    ];
    for (from, to) in changes {
        let changed = GOOD.replacen(from, to, 1);
        assert_ne!(changed, GOOD, "{from:?} is not there");
        assert_ne!(faults(&changed), Vec::<String>::new(), "{from:?} -> {to:?} is not found");
    }
}

/// The joined script runs the code of the scripts that it replaces.
#[test]
fn call_many_repeats_the_code_of_the_scripts_that_it_runs() {
    let joined = script("call_many").text;
    for name in ["plain_acquire", "plain_release"] {
        let code = code_of(&script(name).text);
        let (names, values, body) = bindings(&code);
        // As parameters, the names have the same meaning only in this order.
        let args = (1..names.len()).map(|number| format!("ARGV[{number}]"));
        let in_order: Vec<String> = std::iter::once("KEYS[1]".to_owned()).chain(args).collect();
        assert_eq!(values, in_order, "lua/{name}.lua");
        let body: String = body.lines().map(|line| format!("  {line}\n")).collect();
        let function = format!("local function {name}({})\n{body}end\n", names.join(", "));
        assert!(joined.contains(&function), "lua/call_many.lua does not contain:\n{function}");
    }
}

// ---------------------------------------------------------------------------------
// The table in src/command/script.rs.

#[test]
fn the_table_lists_exactly_the_files_of_the_folder() {
    let mut listed: Vec<String> = table().into_iter().map(|(_, script)| script).collect();
    listed.sort();
    let files: Vec<String> = scripts().into_iter().map(|script| script.name).collect();
    assert_eq!(listed, files, "src/command/script.rs against lua/");
    for (item, script) in table() {
        assert_eq!(item, script.to_uppercase(), "the static item of lua/{script}.lua");
    }
}

#[test]
fn the_digests_are_those_that_a_server_computes() {
    let server = Server::start();
    for script in scripts() {
        let (name, source) = (&script.name, script.source());
        assert_eq!(server.ask::<String>(&["SCRIPT", "LOAD", &source]), digest(name), "{name}");
    }
}

/// The library derives the form for shards from calls that publish to `channel`. Wake channels
/// belong to clients, in no slot, and are no shard channels.
#[test]
fn every_script_that_announces_a_release_can_announce_it_to_a_shard() {
    let server = Server::start();
    let mut announce = Vec::new();
    for script in scripts() {
        let (name, source) = (&script.name, script.source());
        let rest = sharded(&source).replace("call('publish', wake, ", "");
        assert!(!rest.contains("'publish'"), "lua/{name}.lua publishes to another name");
        if sharded(&source) != source {
            let loaded = server.ask::<String>(&["SCRIPT", "LOAD", &sharded(&source)]);
            assert_eq!(loaded, sha1(&sharded(&source)), "{name}");
            announce.push(script.name);
        }
    }
    let verbs_of_locks = ["release", "force_unlock", "leave", "unlock", "commit"];
    let verbs_of_counts = ["add", "set", "undo", "count_down", "delete"];
    let frees = |name: &str| match name.split_once('_').expect("a kind and a verb") {
        ("spin", _) => false,
        ("semaphore", verb) => !["info", "renew", "early_release"].contains(&verb),
        ("count" | "latch", verb) => verbs_of_counts.contains(&verb),
        ("leader", verb) => verb != "look",
        (_, verb) => verbs_of_locks.contains(&verb),
    };
    let frees = scripts().into_iter().map(|script| script.name).filter(|name| frees(name));
    announce.retain(|name| name != "call_many");
    assert_eq!(announce, frees.collect::<Vec<String>>());
}

// ---------------------------------------------------------------------------------
// The replies of the scripts.

#[test]
fn acquire_replies_as_documented() {
    let replies =
        ["-2 acquired", "-1 held without expiry", "else the holder's remaining lease in ms"];
    documents("plain_acquire", &replies);
    let mut bare = Bare::start();

    // A free lock.
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
    bare.assert_held_by(MINE);
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);

    // The same owner again: the same reply; the lease becomes longer, never shorter.
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["600000", MINE]), -2);
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
    assert_ttl(&bare.server, LOCK, 300_000..=600_000);
    bare.assert_held_by(MINE);

    // Held by another owner: the remaining lease. Nothing changes.
    let ttl = bare.call("plain_acquire", &[LOCK], &["600000", OTHER]);
    assert!((300_000..=600_000).contains(&ttl), "{ttl} ms");
    assert_ttl(&bare.server, LOCK, 300_000..=ttl);
    bare.assert_held_by(MINE);

    // Held by another owner without expiry.
    assert!(bare.server.ask::<bool>(&["PERSIST", LOCK]));
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["600000", OTHER]), -1);
    assert_ttl(&bare.server, LOCK, -1..=-1);
    bare.assert_held_by(MINE);

    // The owner's own lock without expiry gets a lease.
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);

    // After the end of a lease.
    assert!(bare.server.ask::<bool>(&["PEXPIRE", LOCK, "1"]));
    eventually("the lease ends", || !bare.server.ask::<bool>(&["EXISTS", LOCK]));
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", OTHER]), -2);
    bare.assert_held_by(OTHER);

    bare.assert_wrong_type("plain_acquire", &["60000", MINE]);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
}

#[test]
fn acquire_publishes_the_channel_only_on_a_refusal() {
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, "wake");
    let waiting = |owner| ["60000", owner, "wake", CHANNEL];

    bare.server.reset_stats();
    assert_eq!(bare.call("plain_acquire", &[LOCK], &waiting(MINE)), -2);
    assert_eq!(bare.call("plain_acquire", &[LOCK], &waiting(MINE)), -2);
    assert!(bare.call("plain_acquire", &[LOCK], &["60000", OTHER]) > 0);
    assert_eq!(bare.server.calls("publish"), 0, "no caller that waits was refused");

    assert!(bare.call("plain_acquire", &[LOCK], &waiting(OTHER)) > 0);
    assert_eq!(bare.server.calls("publish"), 1);
    assert_eq!(listener.next_message(), ("wake".to_owned(), CHANNEL.to_owned()));
}

#[test]
fn release_replies_as_documented() {
    documents("plain_release", &["-1 not held by this owner", RECEIVED]);
    let mut bare = Bare::start();
    let args = [MINE, CHANNEL, "0"];

    // Free, then held by another owner: no message.
    bare.server.reset_stats();
    assert_eq!(bare.call("plain_release", &[LOCK], &args), -1);
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", OTHER]), -2);
    assert_eq!(bare.call("plain_release", &[LOCK], &args), -1);
    bare.assert_held_by(OTHER);
    assert_ttl(&bare.server, LOCK, 30_000..=60_000);
    assert_eq!(bare.server.calls("publish"), 0);
    assert_eq!(bare.call("plain_release", &[LOCK], &[OTHER, CHANNEL, "0"]), 0);

    // Held by the owner, with zero, one and two subscribers. A second release finds nothing.
    let mut listeners: Vec<Listener> = Vec::new();
    for count in 0..3 {
        assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
        assert_eq!(bare.call("plain_release", &[LOCK], &args), count);
        assert_eq!(bare.server.keys(), Vec::<String>::new(), "an empty hash is gone");
        assert_eq!(bare.call("plain_release", &[LOCK], &args), -1);
        for listener in &mut listeners {
            assert_eq!(listener.next_message(), (CHANNEL.to_owned(), "0".to_owned()));
        }
        listeners.push(Listener::on(&bare.server, CHANNEL));
    }

    bare.assert_wrong_type("plain_release", &args);
}

/// Renews the locks of one owner and returns the positions, from 1, of the lost ones.
#[track_caller]
fn renew(bare: &mut Bare, lease: &str, keys: &[&str]) -> Vec<usize> {
    let args = [&[lease][..], &vec![MINE; keys.len()]].concat();
    bare.reply("plain_renew", keys, &args)
}

fn poll(bare: &mut Bare, keys: &[&str]) -> Vec<usize> {
    bare.reply("poll_many", keys, &[MINE])
}

#[test]
fn renew_replies_as_documented_and_never_shortens_a_lease() {
    let lost = "the positions (from 1) of the locks that their owners no longer hold";
    documents("plain_renew", &[lost]);
    const NONE: [usize; 0] = [];
    let mut bare = Bare::start();
    let keys = ["a", "b", "c", "d"];

    // All locks are free.
    assert_eq!(renew(&mut bare, "60000", &keys), [1, 2, 3, 4]);
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // All are held. A longer lease extends them; a shorter one changes nothing.
    for key in keys {
        hold(&bare.server, key, MINE, "60000");
    }
    for lease in ["600000", "60000"] {
        assert_eq!(renew(&mut bare, lease, &keys), NONE);
        for key in keys {
            assert_ttl(&bare.server, key, 300_000..=600_000);
        }
    }

    // One lock has a new owner, one is free, one has no expiry. A check changes nothing; a renewal
    // extends the others.
    bare.server.ask::<()>(&["DEL", "b", "d"]);
    hold(&bare.server, "b", OTHER, "60000");
    bare.server.ask::<()>(&["PERSIST", "c"]);
    assert_eq!(renew(&mut bare, "-2", &keys), [2, 4]);
    assert_ttl(&bare.server, "a", 300_000..=600_000);
    assert_eq!(pttl(&bare.server, "c"), -1);
    assert_eq!(renew(&mut bare, "1200000", &keys), [2, 4]);
    assert_ttl(&bare.server, "a", 900_000..=1_200_000);
    assert_ttl(&bare.server, "b", 30_000..=60_000);
    assert_ttl(&bare.server, "c", 900_000..=1_200_000);
    assert_eq!(bare.server.keys(), ["a", "b", "c"]);
    assert_eq!(bare.server.ask::<BTreeMap<String, String>>(&["HGETALL", "b"]).len(), 1);
}

/// A string that overwrote one lock costs that lock only, and none of the others in the batch.
#[test]
fn renew_continues_after_a_key_that_is_no_lock() {
    let mut bare = Bare::start();
    let keys = ["a", "b", "c"];
    for key in keys {
        hold(&bare.server, key, MINE, "60000");
    }
    bare.server.ask::<()>(&["SET", "b", "a string"]);
    assert_eq!(renew(&mut bare, "600000", &keys), [2]);
    assert_ttl(&bare.server, "a", 300_000..=600_000);
    assert_ttl(&bare.server, "c", 300_000..=600_000);
    assert_eq!(bare.server.ask::<String>(&["GET", "b"]), "a string");
}

/// The last digit of a number of ours, from 5 to 9, says that the hold may linger.
#[test]
fn scripts_that_refuse_a_caller_ask_for_a_hold_that_may_linger() {
    const CLIENT: &str = "6ba7b810-9dad-81d1-80b4-00c04fd430c8";
    let mut bare = Bare::start();
    let mut listener = Listener::on(&bare.server, &format!("leasehold:wake:{{{CLIENT}}}"));
    let (write, beside) = (format!("{CLIENT}:15:write"), format!("{CLIENT}:20"));
    let plain = format!("{CLIENT}:17");
    let scripts: [(&str, &str, &[&str], &[&str]); 8] = [
        ("plain_acquire", &plain, &["a"], &["60000", MINE]),
        ("fenced_acquire", &plain, &["a", "token"], &["60000", MINE, "1"]),
        ("once_acquire", &plain, &["a", "token", "result"], &["60000", MINE, "1"]),
        ("write_acquire", &write, &["a", "turns"], &["60000", MINE, ""]),
        ("read_acquire", &write, &["a", "timeout", "turns"], &["60000", MINE, "", ""]),
        ("poll_many", &plain, &["b", "a"], &[MINE]),
        ("multi_acquire", &plain, &["b", "a"], &["60000", MINE, MINE]),
        ("call_many", &plain, &["a"], &["a2", "60000", MINE]),
    ];
    for (script, owner, keys, args) in scripts {
        bare.ask::<()>(&["DEL", "a"]);
        bare.ask::<()>(&["HSET", "a", owner, "1"]);
        if owner == write {
            bare.ask::<()>(&["HSET", "a", "mode", "write", &beside, "1"]);
        }
        bare.reply::<redis::Value>(script, keys, args);
        let number = owner.split(':').nth(1).expect("a number");
        assert_eq!(listener.next_message().1, format!("asked {number} a"), "{script}");
        assert_eq!(bare.ask::<i64>(&["DEL", "a"]), 1);
        let others = ["4", "1234", "16", "15x", ""].map(|number| format!("{CLIENT}:{number}"));
        let redisson = CLIENT.replace("-81d1-", "-41d1-");
        for other in others.into_iter().chain([format!("{redisson}:15"), "job-15".to_owned()]) {
            bare.ask::<()>(&["DEL", "a"]);
            bare.ask::<()>(&["HSET", "a", "mode", "write", &other, "1"]);
            silently(&mut bare, |bare| bare.reply::<redis::Value>(script, keys, args));
        }
    }
}

#[test]
fn poll_replies_as_documented() {
    let free = "the positions (from 1) of the locks that are free or cannot be read";
    documents("poll_many", &[free]);
    let mut bare = Bare::start();
    assert_eq!(poll(&mut bare, &["a", "b"]), [1, 2]);
    assert_eq!(poll(&mut bare, &[]), Vec::<usize>::new());
    hold(&bare.server, "b", OTHER, "60000");
    bare.server.ask::<()>(&["SET", "c", "no lock"]);
    assert_eq!(poll(&mut bare, &["a", "b", "c", "d"]), [1, 3, 4]);
}

#[test]
fn force_unlock_replies_as_documented() {
    documents("plain_force_unlock", &["-1 the lock was free", RECEIVED]);
    let mut bare = Bare::start();
    let args = [CHANNEL, "0"];

    bare.server.reset_stats();
    assert_eq!(bare.call("plain_force_unlock", &[LOCK], &args), -1);
    assert_eq!(bare.server.calls("publish"), 0);

    // Held by any owner, without a subscriber.
    hold(&bare.server, LOCK, OTHER, "60000");
    assert_eq!(bare.call("plain_force_unlock", &[LOCK], &args), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // Held without expiry and by two fields, as a foreign client may do, with one subscriber.
    let mut listener = Listener::on(&bare.server, CHANNEL);
    bare.server.ask::<()>(&["HSET", LOCK, MINE, "1", OTHER, "3"]);
    assert_eq!(bare.call("plain_force_unlock", &[LOCK], &args), 1);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    assert_eq!(listener.next_message(), (CHANNEL.to_owned(), "0".to_owned()));

    bare.assert_wrong_type("plain_force_unlock", &args);
}

#[test]
fn call_many_replies_as_documented() {
    let mut bare = Bare::start();
    hold(&bare.server, "held", OTHER, "60000");
    let keys = ["a", "held", "a", "b", "held"];
    let taking = ["60000", MINE];
    let freeing = [MINE, CHANNEL, "0"];
    let waiting = ["60000", MINE, "wake", CHANNEL];
    let args = [&taking[..], &waiting, &freeing, &taking, &freeing].concat();
    let mut listener = Listener::on(&bare.server, "wake");
    let args = [&["a2a4r3a2r3"][..], &args].concat();
    let replies = bare.try_call::<Vec<i64>>("call_many", &keys, &args).expect("replies");
    assert!((1..=60_000).contains(&replies[1]), "{replies:?}");
    assert_eq!(replies, [-2, replies[1], 0, -2, -1]);
    assert_eq!(listener.next_message(), ("wake".to_owned(), CHANNEL.to_owned()));
    assert_eq!(bare.server.keys(), ["b", "held"]);

    // The calls beside failed ones run. The redis crate returns the first error of the list.
    bare.server.ask::<()>(&["SET", "text", "no lock"]);
    let args = [&["a2r3r3"][..], &taking, &freeing, &freeing].concat();
    let failed = bare.try_call::<Value>("call_many", &["text", "text", "b"], &args);
    assert!(is_refused_as("WRONGTYPE", &failed.expect_err("a string is no lock")));
    assert_eq!(bare.server.keys(), ["held", "text"]);
}

/// A user that may access the keys in KEYS and no other key can run the scripts.
#[test]
fn plain_scripts_access_only_the_keys_in_keys() {
    let mut narrow = Bare::start().restricted(&["~a", "~b", "&*", "+@all"]);
    assert_eq!(narrow.call("plain_acquire", &["a"], &["60000", MINE, "wake", CHANNEL]), -2);
    assert!(narrow.call("plain_acquire", &["a"], &["60000", OTHER, "wake", CHANNEL]) > 0);
    assert_eq!(narrow.call("plain_acquire", &["b"], &["60000", MINE]), -2);
    assert_eq!(renew(&mut narrow, "600000", &["a", "b"]), [] as [usize; 0]);
    assert_eq!(narrow.call("plain_release", &["a"], &[MINE, CHANNEL, "0"]), 0);
    assert_eq!(narrow.call("plain_force_unlock", &["b"], &[CHANNEL, "0"]), 0);
    let refused = narrow.try_call::<Value>("plain_acquire", &["c"], &["60000", MINE]);
    assert_eq!(refused.expect_err("the rule does something").code(), Some("NOPERM"));
}

// ---------------------------------------------------------------------------------
// Through the library.

/// Returns a client with short leases, and the count of its renewals.
fn renewing(server: &Server) -> (Client, Renewals) {
    let renewals = Renewals::default();
    let client = builder(server).watchdog_timeout(BRISK).events(renewals.clone()).build();
    (client.expect("the server is there"), renewals)
}

fn builder(server: &Server) -> Builder {
    Client::builder().single(server.url()).announce(false)
}

/// Returns a client with one connection, of a new user with these rules.
fn restricted(server: &Server, rules: &[&str]) -> Client {
    server.ask::<()>(&[&["ACL", "SETUSER", "narrow", "on", ">secret"], rules].concat());
    let builder = Client::builder().single(server.login_url("narrow", "secret"));
    builder.pool_size(1).announce(false).build().expect("the user may log in")
}

fn is_known(server: &Server, script: &str) -> bool {
    let known: Vec<bool> = server.ask(&["SCRIPT", "EXISTS", &digest(script)]);
    known == [true]
}

#[test]
fn every_script_is_loaded_again_after_a_flush() {
    let server = Server::start();
    let (client, renewals) = renewing(&server);
    let lock = client.lock(LOCK);
    let flush = || server.ask::<()>(&["SCRIPT", "FLUSH"]);

    let guard = lock.lock().expect("the client loads the script");
    assert!(is_known(&server, "plain_acquire"));

    flush();
    renewals.await_more(2);
    assert!(is_known(&server, "plain_renew") && guard.is_held());

    flush();
    guard.extend(Duration::from_secs(60)).expect("extended after a flush");
    assert!(is_known(&server, "plain_renew"));

    flush();
    guard.unlock().expect("released after a flush");
    assert!(is_known(&server, "plain_release") && !is_known(&server, "plain_acquire"));

    drop(lock.try_lock().expect("acquired after a flush").expect("the lock is free"));
    eventually("the dropped lock is free", || server.keys().is_empty());
    lock.lock().expect("the lock is free").detach();
    flush();
    assert!(lock.force_unlock().expect("freed after a flush"));
    assert!(is_known(&server, "plain_force_unlock"));
    assert_eq!(server.calls("eval"), 0, "scripts are called by their digests");
}

/// An attempt after the drop of a guard runs after the release, also if the release has to be sent
/// a second time.
#[test]
fn a_release_whose_script_is_unknown_still_precedes_the_next_attempt() {
    let server = Server::start();
    let client = builder(&server).build().expect("the server is there");
    let lock = client.lock(LOCK);
    let acquire = script("plain_acquire").source();
    let mut guard = lock.lock().expect("the lock is free");
    // The attempt could overtake only if both are written together.
    for round in 0..200 {
        server.ask::<()>(&["SCRIPT", "FLUSH"]);
        server.ask::<String>(&["SCRIPT", "LOAD", &acquire]);
        drop(guard);
        let again = lock.try_lock().expect("the server answers");
        guard = again.unwrap_or_else(|| panic!("refused by its own hold in round {round}"));
    }
}

/// Takes and releases locks on many threads, each with its own lock, while two more threads make
/// attempts that fail. Returns the number of acquired locks.
fn take_many(client: &Client, fails: impl Fn() + Sync) -> usize {
    const THREADS: usize = 32;
    const PAIRS: usize = 200;
    let take = |number: usize| {
        let lock = client.lock(format!("lock:{number}"));
        for _ in 0..PAIRS {
            drop(lock.lock().expect("no other thread uses this lock"));
        }
    };
    let fail = || {
        for _ in 0..PAIRS {
            fails();
        }
    };
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || take(number));
        }
        for _ in 0..2 {
            scope.spawn(fail);
        }
    });
    THREADS * PAIRS
}

#[test]
fn each_joined_call_gets_its_own_reply() {
    let server = Server::start();
    let client = builder(&server).pool_size(1).build().expect("the server is there");
    server.ask::<()>(&["SET", "no lock", "but a string"]);
    let taken = take_many(&client, || {
        let error = client.lock("no lock").lock().expect_err("a string is no lock");
        assert!(error.is_server() && error.to_string().contains("WRONGTYPE"), "{error}");
    });
    eventually("all locks are free", || server.keys() == ["no lock"]);
    let stats = server.commandstats();
    assert_eq!(stats["hset"], taken as u64, "every lock was taken once");
    let calls = stats["evalsha"];
    assert!(calls < 2 * taken as u64, "{calls} calls for {taken} locks: no calls were joined");
}

/// A forbidden name fails only its own caller, although the server refuses the whole joined call.
#[test]
fn calls_that_are_joined_with_a_forbidden_one_are_repeated_alone() {
    let server = Server::start();
    let client = restricted(&server, &["~lock:*", "&*", "+@all"]);
    let taken = take_many(&client, || {
        let error = client.lock("forbidden").lock().expect_err("the user may not access this key");
        assert!(error.is_server() && error.to_string().contains("NOPERM"), "{error}");
    });
    eventually("all locks are free", || server.keys().is_empty());
    assert_eq!(server.commandstats()["hset"], taken as u64, "every lock was taken once");
}

#[test]
fn a_command_that_a_script_may_not_run_is_refused_with_the_code_of_permissions() {
    let server = Server::start();
    let client = restricted(&server, &["~*", "&*", "+@all", "-hincrby"]);
    let error = client.lock("a").with_holder("job").lock().expect_err("a forbidden command");
    assert_eq!(error.code(), Some("NOPERM"), "{error}");
    assert!(error.to_string().contains("docs/permissions.md"), "{error}");
}

/// The release of a lock fails after the end of the hold, because its message is forbidden. The
/// error says so, and the hold is not lost.
#[test]
fn a_joined_release_whose_message_is_forbidden_is_no_loss() {
    const THREADS: usize = 48;
    const PAIRS: usize = 20;
    let server = Server::start();
    let client = restricted(&server, &["~*", "&leasehold:wake:*", "+@all"]);
    let (losses, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (client, losses_so_far, refused_so_far) = (&client, &losses, &refused);
    let unlock = |number: usize| {
        let lock = client.lock(format!("lock:{number}"));
        for _ in 0..PAIRS {
            let guard = lock.lock().expect("no other thread uses this lock");
            // A release that ran before the script of another one was loaded runs again. Then its
            // first copy has released the lock, which is a success.
            let Err(error) = guard.unlock() else { continue };
            refused_so_far.fetch_add(1, Ordering::Relaxed);
            losses_so_far.fetch_add(usize::from(error.is_lost()), Ordering::Relaxed);
            assert!(
                error.is_lost() || error.to_string().contains("docs/permissions.md"),
                "{error}"
            );
        }
    };
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || unlock(number));
        }
    });
    assert_eq!(losses.into_inner(), 0, "holds of {} are lost", THREADS * PAIRS);
    let refused = refused.into_inner();
    assert!(refused > THREADS * (PAIRS - 1), "{refused} messages are refused");
    assert!(server.keys().is_empty());
    let calls = server.calls("evalsha");
    assert!(calls < 2 * (THREADS * PAIRS) as u64, "{calls} calls: no calls were joined");
}

/// A user that may not load scripts, on a server that does not know the joined script.
#[test]
fn calls_are_sent_alone_if_the_joined_script_cannot_be_loaded() {
    let server = Server::start();
    for name in ["plain_acquire", "plain_release"] {
        server.ask::<String>(&["SCRIPT", "LOAD", &script(name).source()]);
    }
    let client = restricted(&server, &["~*", "&*", "+@all", "-script"]);
    let taken = take_many(&client, || ());
    eventually("all locks are free", || server.keys().is_empty());
    let stats = server.commandstats();
    // Only the calls of the first joined attempts are sent twice.
    let most = 2 * taken as u64 + 64;
    assert!(stats["evalsha"] <= most, "{} calls for {taken} locks", stats["evalsha"]);
}

/// The cost of a lock and an unlock on the server.
#[test]
fn a_lock_and_an_unlock_take_seven_commands() {
    const PAIRS: u64 = 20;
    let server = Server::start();
    let client = builder(&server).build().expect("the server is there");
    let lock = client.lock(LOCK);
    let pair = || lock.lock().and_then(leasehold::Guard::unlock).expect("locked and released");
    pair(); // loads the scripts

    server.reset_stats();
    for _ in 0..PAIRS {
        pair();
    }
    let mut stats = server.commandstats();
    // The commands of the harness. Redis before 7 counts no subcommands.
    for own in ["info", "config|resetstat", "config", "client|setname", "client"] {
        stats.remove(own);
    }
    let expected = [
        ("evalsha", 2 * PAIRS),
        ("pttl", PAIRS),
        ("hset", PAIRS),
        ("pexpire", PAIRS),
        ("hdel", PAIRS),
        ("publish", PAIRS),
    ];
    let expected = expected.map(|(command, calls)| (command.to_owned(), calls));
    assert_eq!(BTreeMap::from_iter(stats), BTreeMap::from(expected));
}

// ---------------------------------------------------------------------------------
// A full Redis.

/// The scripts that a full Redis may refuse, beside those that take a lock.
const GROWING: [&str; 7] = [
    "call_many",
    "client_record",
    "count_drain",
    "count_set",
    "count_take",
    "latch_set",
    "semaphore_resize",
];

/// Releases and renewals must not begin with a command that a full Redis refuses.
#[test]
fn scripts_that_free_or_renew_do_not_begin_with_commands_that_grow_memory() {
    let server = Server::start();
    let has = |command: &str, flag: &str| {
        let info: Vec<Vec<Value>> = server.ask(&["COMMAND", "INFO", command]);
        let flags: Vec<String> = redis::from_redis_value(info[0][2].clone()).expect("flags");
        flags.contains(&flag.to_owned())
    };
    let (grows, writes) = (|it: &str| has(it, "denyoom"), |it: &str| has(it, "write"));
    assert!(grows("hset") && !grows("hdel"), "the server distinguishes the two");
    for script in scripts() {
        let (name, own) = (&script.name, code_of(&script.text));
        // A common text may do it all.
        let code = if own.contains("call('") { own } else { code_of(&script.source()) };
        let called = code.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
        let called: Vec<&str> = called.collect();
        assert!(!called.is_empty(), "lua/{name}.lua calls nothing");
        // After a write that does not grow memory, a full server accepts every command.
        let frees = |command: &&str| writes(command) && !grows(command);
        let first = called.iter().take_while(|command| !frees(command));
        let growing: Vec<&&str> = first.filter(|command| grows(command)).collect();
        // In a joined call an acquire that fails does not prevent a release. A client works without
        // its record.
        let may_grow = name.ends_with("_acquire") || GROWING.contains(&&**name);
        assert!(growing.is_empty() || may_grow, "lua/{name}.lua calls {growing:?} first");
    }
}

#[test]
fn a_full_server_still_renews_extends_and_frees() {
    let server = Server::start();
    let (client, renewals) = renewing(&server);
    let [renewed, extended, dropped, forced] = ["renewed", "extended", "dropped", "forced"]
        .map(|name| client.lock(name).lock().expect("there is still room"));
    let minute = Duration::from_secs(60);
    let early = client.lock("early").with_min_hold(minute).lock().expect("there is still room");
    let writing = client.rw_lock("writing").write_lock().with_min_hold(minute);
    let writing = writing.lock().expect("there is still room");
    server.refuse_memory();
    server.ask::<()>(&["SCRIPT", "FLUSH"]);

    renewals.await_more(12);
    for guard in [&renewed, &extended, &dropped, &forced] {
        guard.check().expect("renewed on a full server");
    }
    assert_ttl(&server, "renewed", 1..=1500);

    extended.extend(Duration::from_secs(60)).expect("extended on a full server");
    assert_ttl(&server, "extended", 30_000..=60_000);
    let nested = client.lock("renewed").lock().expect("re-entry takes no round trip and no memory");
    nested.unlock().expect("nested");

    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    renewed.unlock().expect("released on a full server");
    extended.unlock().expect("released on a full server");
    drop(dropped);
    early.unlock().expect("released on a full server");
    writing.unlock().expect("released on a full server");
    for name in ["early", "writing"] {
        assert_ttl(&server, name, 10_000..=60_000);
    }
    assert!(client.lock("early").force_unlock().expect("forced on a full server"));
    let writing = client.rw_lock("writing").write_lock();
    assert!(writing.force_unlock().expect("forced on a full server"));
    assert!(client.lock("forced").force_unlock().expect("forced on a full server"));
    eventually("nothing remains", || server.keys().is_empty());
    assert!(forced.check().expect_err("the lock was freed by force").is_lost());
}

#[test]
fn a_full_server_grants_no_lock_and_the_error_says_why() {
    let server = Server::start();
    let holder = builder(&server).build().expect("the server is there");
    let client = builder(&server).build().expect("the server is there");
    let held = holder.lock("held").lock().expect("there is still room");
    server.refuse_memory();

    let lock = client.lock("free");
    let refusals = [
        lock.lock().map(drop),
        lock.try_lock().map(drop),
        lock.try_lock_for(Duration::from_secs(60)).map(drop),
        lock.lock_owned().map(drop),
    ];
    for refusal in refusals {
        let error = refusal.expect_err("a lock takes memory");
        assert!(error.is_server(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("OOM") && text.contains("maxmemory"), "{text}");
        assert!(text.contains("delete data"), "the error says what to do: {text}");
    }

    // A refusal is reported as usual, and a waiter gets the lock once there is room again.
    assert!(client.lock("held").try_lock().expect("a refusal takes no memory").is_none());
    assert!(client.lock("held").is_locked().expect("a query takes no memory"));
    std::thread::scope(|scope| {
        let token = CancelOnDrop(CancelToken::new());
        let lock = client.lock("held").with_cancel(&token.0);
        let waiter = scope.spawn(move || lock.lock().map(drop));
        eventually("a caller waits", || server.numsub("redisson_lock__channel:{held}") == 1);
        let calls = server.calls("evalsha");
        held.unlock().expect("released on a full server");
        eventually("the waiter asks again", || server.calls("evalsha") >= calls + 3);
        server.grant_memory();
        in_time("the wait ends", waiter).expect("there is room again");
    });

    lock.lock().and_then(leasehold::Guard::unlock).expect("there is room again");
    eventually("nothing remains", || server.keys().is_empty());
}
