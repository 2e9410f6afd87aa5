//! The scripts in `lua/`: their headers are parsed and held against their bodies, the
//! table in `src/command/script.rs` against the folder and a server's digests, and every
//! documented answer against a real server, a full one included.

mod bare;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Builder, CancelToken, Client, Events, Renewed};
use redis::Value;

use bare::*;
use support::{Server, eventually, pttl};

// ---------------------------------------------------------------------------------
// What stands in the files.

/// The lines that every header has, in this order, after a line that says what the
/// script does.
const TAGS: [&str; 4] = ["-- KEYS: ", "-- ARGV: ", "-- RETURNS: ", "-- Atomic: "];

/// Splits a script into the comment lines at its head, and its code without comments.
fn head_and_code(text: &str) -> (Vec<&str>, String) {
    let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
    let rest = text.lines().skip(head.len());
    let code: Vec<&str> = rest.map(|line| line.split("--").next().unwrap_or("")).collect();
    (head, code.join("\n"))
}

/// Which entries of KEYS or ARGV: single ones, and all from one on.
#[derive(Debug, Default, PartialEq)]
struct Positions {
    single: BTreeSet<usize>,
    from: Option<usize>,
}

/// Reads `1 this, 2 that, 3 and 4, for those`, `1 this, 2 .. n + 1 those`, `n these`.
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
            (Some(first), _) => drop(positions.single.insert(first)),
            (None, _) if words[0] == "n" => positions.from = Some(1),
            (None, _) => {}
        }
    }
    positions
}

/// Finds the entries of `table` (KEYS or ARGV) that code uses, in the forms that
/// scripts may use: `KEYS[1]`, `ipairs(KEYS)`, `ARGV[position + 1]` in its loop, and
/// `unpack(ARGV, first, ...)` of all that come behind those that have names.
fn used(code: &str, table: &str) -> Result<Positions, String> {
    let mut positions = Positions::default();
    for (at, _) in code.match_indices(table) {
        let rest = &code[at + table.len()..];
        if code[..at].ends_with("ipairs(") && rest.starts_with(')') {
            positions.from = Some(1);
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

/// All that is wrong with a script's text.
fn faults(text: &str) -> Vec<String> {
    let (head, code) = head_and_code(text);
    let mut faults = Vec::new();
    let mut check = |fine: bool, fault: String| {
        if !fine {
            faults.push(fault);
        }
    };
    check(head.len() == 1 + TAGS.len(), format!("{} lines of header", head.len()));
    check(head.first().is_some_and(|line| is_sentence(line)), "no sentence first".to_owned());
    for (tag, line) in TAGS.iter().zip(head.iter().skip(1)) {
        let told = line.strip_prefix(tag).is_some_and(|told| !told.trim().is_empty());
        check(told, format!("{tag:?} expected, not {line:?}"));
    }
    for table in ["KEYS", "ARGV"] {
        let list = head.iter().find_map(|line| line.strip_prefix(&format!("-- {table}: ")));
        let documented = documented(list.unwrap_or_default());
        match used(&code, table) {
            Ok(used) => check(documented == used, format!("{table}: {documented:?}, but {used:?}")),
            Err(fault) => check(false, fault),
        }
    }
    let returns =
        head.iter().find_map(|line| line.strip_prefix("-- RETURNS: ")).unwrap_or_default();
    for literal in returned_numbers(&code) {
        let told = returns.split([' ', ';']).any(|word| word == literal);
        check(told, format!("returns {literal}, which is not documented"));
    }
    faults.extend(binding_faults(&code));
    faults
}

/// A comment of one sentence: a capital first, a full stop last.
fn is_sentence(line: &str) -> bool {
    let told = line.strip_prefix("-- ").unwrap_or_default();
    told.starts_with(char::is_uppercase) && told.ends_with('.')
}

/// The numbers after `return`.
fn returned_numbers(code: &str) -> Vec<&str> {
    let returned = code.split("return ").skip(1);
    let first_words = returned.filter_map(|rest| rest.split_whitespace().next());
    first_words.filter(|word| word.parse::<i64>().is_ok()).collect()
}

/// What is wrong with the first line of code, which gives a name to every single entry
/// of KEYS and ARGV; the rest speaks of these names.
fn binding_faults(code: &str) -> Vec<String> {
    let code = code.trim_start();
    let (first, rest) = code.split_once('\n').unwrap_or((code, ""));
    let Some((names, values)) = first.strip_prefix("local ").and_then(|it| it.split_once(" = "))
    else {
        return vec![format!("the first line of code binds nothing: {first:?}")];
    };
    let (names, values): (Vec<_>, Vec<_>) =
        (names.split(", ").collect(), values.split(", ").collect());
    let mut faults = Vec::new();
    if names.len() != values.len() {
        faults.push(format!("{} names for {} values", names.len(), values.len()));
    }
    let unused = names.iter().filter(|name| !words(rest).any(|word| word == **name));
    faults.extend(unused.map(|name| format!("{name} is never used")));
    for table in ["KEYS", "ARGV"] {
        let unnamed = used(rest, table).is_ok_and(|later| !later.single.is_empty());
        if unnamed {
            faults.push(format!("{table} is indexed by number after the first line"));
        }
    }
    faults
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|sign: char| !sign.is_alphanumeric() && sign != '_')
}

#[test]
fn every_header_is_complete_and_true() {
    for Script { name, text } in scripts() {
        assert_eq!(faults(&text), Vec::<String>::new(), "lua/{name}.lua");
        let (kind, verb) = name.split_once('_').expect("<kind>_<verb>.lua");
        assert!(!kind.is_empty() && !verb.is_empty(), "lua/{name}.lua is no <kind>_<verb>.lua");
    }
}

/// The check above can fail: each of these changes to a good script is found.
#[test]
fn wrong_headers_are_found() {
    const GOOD: &str = "-- Does it.\n\
        -- KEYS: 1 lock\n\
        -- ARGV: 1 lease, 2 and 3, for those who wait: a, and b\n\
        -- RETURNS: -1 refused; else ms\n\
        -- Atomic: it must be.\n\
        local lock, lease, a, b = KEYS[1], ARGV[1], ARGV[2], ARGV[3]\n\n\
        if lease then\n  return -1\nend\nreturn redis.call('get', lock, a, b)\n";
    assert_eq!(faults(GOOD), Vec::<String>::new());
    let changes = [
        ("-- Does it.\n", ""),
        ("-- Does it.", "-- does it"),
        ("-- KEYS: 1 lock\n", ""),
        ("-- KEYS: 1 lock", "-- KEYS:"),
        ("-- KEYS: 1 lock", "-- KEYS: 1 lock, 2 channel"),
        ("-- KEYS: 1 lock", "-- KEYS: n locks"),
        ("1 lease, 2 and 3,", "1 lease, 2,"),
        ("1 lease, 2 and 3,", "1 lease, 2 and 4,"),
        ("1 lease, 2 and 3,", "1 lease, 2 .. n + 1"),
        ("-- RETURNS: -1 refused;", "-- RETURNS: -2 refused;"),
        ("-- Atomic", "-- Why"),
        ("-- Atomic", "-- And this.\n-- Atomic"),
        ("local lock, lease, a, b = ", "local lock, lease, a = "),
        ("get', lock,", "get', KEYS[1],"),
        ("get', lock,", "get', lock, KEYS[2],"),
        ("lock, a, b)", "lock, a, b, unpack(ARGV))"),
        ("lock, a, b)", "lock, a, b, ARGV[a])"),
        ("lock, a, b)", "lock, a)"),
    ];
    for (from, to) in changes {
        let changed = GOOD.replacen(from, to, 1);
        assert_ne!(changed, GOOD, "{from:?} is not there");
        assert_ne!(faults(&changed), Vec::<String>::new(), "{from:?} -> {to:?} is not found");
    }
}

// ---------------------------------------------------------------------------------
// The table in src/command/script.rs.

#[test]
fn the_table_holds_the_files_of_the_folder_and_no_others() {
    let mut listed: Vec<String> = table().into_iter().map(|(_, script, _)| script).collect();
    listed.sort();
    let files: Vec<String> = scripts().into_iter().map(|script| script.name).collect();
    assert_eq!(listed, files, "src/command/script.rs against lua/");
    for (item, script, _) in table() {
        assert_eq!(item, script.to_uppercase(), "the static of lua/{script}.lua");
    }
}

#[test]
fn the_digests_are_those_that_a_server_computes() {
    let server = Server::start();
    let right = |name: &str| server.ask::<String>(&["SCRIPT", "LOAD", &whole(name)]);
    let wrong: Vec<String> = table()
        .into_iter()
        .filter(|(_, script, digest)| *digest != right(script))
        .map(|(item, script, digest)| format!("{item}: {digest} must be {}", right(&script)))
        .collect();
    assert!(wrong.is_empty(), "in src/command/script.rs:\n{}", wrong.join("\n"));
}

#[test]
fn every_script_that_tells_of_a_release_can_tell_a_shard() {
    let server = Server::start();
    let mut sharded = Vec::new();
    for (item, script, digest) in sharded_table() {
        assert_eq!(item, format!("{}_SHARDED", script.to_uppercase()));
        let text = whole(&script).replace("redis.call('publish'", "redis.call('spublish'");
        assert_eq!(server.ask::<String>(&["SCRIPT", "LOAD", &text]), digest, "{item}");
        sharded.push(script);
    }
    // Those that acquire tell the listener only, which they do not where there are shards.
    let mut tell: Vec<_> =
        scripts().into_iter().filter(|it| it.text.contains("'publish'")).collect();
    tell.retain(|script| !script.text.contains("'publish', wake, wanted"));
    let mut tell: Vec<_> = tell.into_iter().map(|script| script.name).collect();
    tell.sort();
    sharded.sort();
    assert_eq!(sharded, tell);
}

// ---------------------------------------------------------------------------------
// What the scripts answer.

#[test]
fn acquire_answers_as_documented() {
    let answers =
        ["-2 acquired", "-1 held without a time to live", "else ms that the holder has left"];
    assert_eq!(documented_answers("plain_acquire"), answers, "each is tried below");
    let mut bare = Bare::start();

    // A free lock.
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
    bare.is_held_by(MINE);
    assert_left(&bare.server, LOCK, 30_000..=60_000);

    // One's own field again: the same answer, a longer lease, and never a shorter one.
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["600000", MINE]), -2);
    assert_left(&bare.server, LOCK, 300_000..=600_000);
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
    assert_left(&bare.server, LOCK, 300_000..=600_000);
    bare.is_held_by(MINE);

    // Held by another: what it has left, and nothing changes.
    let left = bare.call("plain_acquire", &[LOCK], &["600000", OTHER]);
    assert!((300_000..=600_000).contains(&left), "{left} ms");
    assert_left(&bare.server, LOCK, 300_000..=left);
    bare.is_held_by(MINE);

    // Held by another without a time to live.
    assert!(bare.server.ask::<bool>(&["PERSIST", LOCK]));
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["600000", OTHER]), -1);
    assert_left(&bare.server, LOCK, -1..=-1);
    bare.is_held_by(MINE);

    // One's own without a time to live gets one.
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
    assert_left(&bare.server, LOCK, 30_000..=60_000);

    // A lease that is over.
    assert!(bare.server.ask::<bool>(&["PEXPIRE", LOCK, "1"]));
    eventually("the lease is over", || !bare.server.ask::<bool>(&["EXISTS", LOCK]));
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", OTHER]), -2);
    bare.is_held_by(OTHER);

    bare.is_refused_for_a_text("plain_acquire", &["60000", MINE]);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
}

#[test]
fn acquire_publishes_what_its_caller_wants_only_if_it_is_refused() {
    let mut bare = Bare::start();
    let mut ear = Ear::on(&bare.server, "wake");
    let wanting = |owner| ["60000", owner, "wake", CHANNEL];

    bare.server.reset_stats();
    assert_eq!(bare.call("plain_acquire", &[LOCK], &wanting(MINE)), -2);
    assert_eq!(bare.call("plain_acquire", &[LOCK], &wanting(MINE)), -2);
    assert!(bare.call("plain_acquire", &[LOCK], &["60000", OTHER]) > 0);
    assert_eq!(bare.server.calls("publish"), 0, "nobody was refused and wants to wait");

    assert!(bare.call("plain_acquire", &[LOCK], &wanting(OTHER)) > 0);
    assert_eq!(bare.server.calls("publish"), 1);
    assert_eq!(ear.hear(), ("wake".to_owned(), CHANNEL.to_owned()));
}

#[test]
fn release_answers_as_documented() {
    let answers = ["-1 not held by this owner", "else how many subscribers were told"];
    assert_eq!(documented_answers("plain_release"), answers, "each is tried below");
    let mut bare = Bare::start();
    let args = [MINE, CHANNEL, "0"];

    // Free; held by another. Nobody is told.
    bare.server.reset_stats();
    assert_eq!(bare.call("plain_release", &[LOCK], &args), -1);
    assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", OTHER]), -2);
    assert_eq!(bare.call("plain_release", &[LOCK], &args), -1);
    bare.is_held_by(OTHER);
    assert_left(&bare.server, LOCK, 30_000..=60_000);
    assert_eq!(bare.server.calls("publish"), 0);
    assert_eq!(bare.call("plain_release", &[LOCK], &[OTHER, CHANNEL, "0"]), 0);

    // One's own, heard by none, by one, by two; a second release finds nothing.
    let mut ears: Vec<Ear> = Vec::new();
    for count in 0..3 {
        assert_eq!(bare.call("plain_acquire", &[LOCK], &["60000", MINE]), -2);
        assert_eq!(bare.call("plain_release", &[LOCK], &args), count);
        assert_eq!(bare.server.keys(), Vec::<String>::new(), "an empty hash is gone");
        assert_eq!(bare.call("plain_release", &[LOCK], &args), -1);
        let heard = ears.iter_mut().map(Ear::hear);
        heard.for_each(|heard| assert_eq!(heard, (CHANNEL.to_owned(), "0".to_owned())));
        ears.push(Ear::on(&bare.server, CHANNEL));
    }

    bare.is_refused_for_a_text("plain_release", &args);
}

/// Renews locks of one owner; which of them are lost, counted from 1.
#[track_caller]
fn renew(bare: &mut Bare, lease: &str, keys: &[&str]) -> Vec<usize> {
    let owners = keys.iter().map(|_| MINE);
    let args: Vec<&str> = std::iter::once(lease).chain(owners).collect();
    bare.try_call("plain_renew", keys, &args).unwrap_or_else(|error| panic!("{keys:?}: {error}"))
}

fn poll(bare: &mut Bare, keys: &[&str]) -> Vec<usize> {
    bare.try_call("poll_many", keys, &[]).unwrap_or_else(|error| panic!("{keys:?}: {error}"))
}

#[test]
fn renew_answers_as_documented_and_never_shortens() {
    let answers =
        ["the positions (from 1) of the locks that are not held by their owners any more"];
    assert_eq!(documented_answers("plain_renew"), answers, "tried below");
    const NONE: [usize; 0] = [];
    let mut bare = Bare::start();
    let keys = ["a", "b", "c", "d"];

    // All are gone.
    assert_eq!(renew(&mut bare, "60000", &keys), [1, 2, 3, 4]);
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // All are held: longer; then shorter, which changes nothing.
    keys.iter().for_each(|key| hold(&bare.server, key, MINE, "60000"));
    assert_eq!(renew(&mut bare, "600000", &keys), NONE);
    keys.iter().for_each(|key| assert_left(&bare.server, key, 300_000..=600_000));
    assert_eq!(renew(&mut bare, "60000", &keys), NONE);
    keys.iter().for_each(|key| assert_left(&bare.server, key, 300_000..=600_000));

    // One has a new owner, one is gone, one has no end: a look changes nothing, then the rest
    // is renewed.
    bare.server.ask::<()>(&["DEL", "b", "d"]);
    hold(&bare.server, "b", OTHER, "60000");
    bare.server.ask::<()>(&["PERSIST", "c"]);
    assert_eq!(renew(&mut bare, "-2", &keys), [2, 4]);
    assert_left(&bare.server, "a", 300_000..=600_000);
    assert_eq!(pttl(&bare.server, "c"), -1);
    assert_eq!(renew(&mut bare, "1200000", &keys), [2, 4]);
    assert_left(&bare.server, "a", 900_000..=1_200_000);
    assert_left(&bare.server, "b", 30_000..=60_000);
    assert_left(&bare.server, "c", 900_000..=1_200_000);
    assert_eq!(bare.server.keys(), ["a", "b", "c"]);
    assert_eq!(bare.server.ask::<BTreeMap<String, String>>(&["HGETALL", "b"]).len(), 1);
}

/// Somebody wrote a text over one lock. It is lost; that is no reason to lose those
/// that were renewed together with it.
#[test]
fn renew_goes_on_after_a_key_that_is_no_lock() {
    let mut bare = Bare::start();
    let keys = ["a", "b", "c"];
    keys.iter().for_each(|key| hold(&bare.server, key, MINE, "60000"));
    bare.server.ask::<()>(&["SET", "b", "a text"]);
    assert_eq!(renew(&mut bare, "600000", &keys), [2]);
    assert_left(&bare.server, "a", 300_000..=600_000);
    assert_left(&bare.server, "c", 300_000..=600_000);
    assert_eq!(bare.server.ask::<String>(&["GET", "b"]), "a text");
}

#[test]
fn poll_answers_as_documented() {
    let told = "the positions (from 1) of the locks that are free, or where something is wrong";
    assert_eq!(documented_answers("poll_many"), [told], "tried below");
    let mut bare = Bare::start();
    assert_eq!(poll(&mut bare, &["a", "b"]), [1, 2]);
    assert_eq!(poll(&mut bare, &[]), Vec::<usize>::new());
    hold(&bare.server, "b", OTHER, "60000");
    bare.server.ask::<()>(&["SET", "c", "no lock"]);
    assert_eq!(poll(&mut bare, &["a", "b", "c", "d"]), [1, 3, 4]);
}

#[test]
fn force_answers_as_documented() {
    let answers = ["-1 it was free", "else how many subscribers were told"];
    assert_eq!(documented_answers("plain_force_unlock"), answers, "each is tried below");
    let mut bare = Bare::start();
    let args = [CHANNEL, "0"];

    bare.server.reset_stats();
    assert_eq!(bare.call("plain_force_unlock", &[LOCK], &args), -1);
    assert_eq!(bare.server.calls("publish"), 0);

    // Held, by whomever; heard by nobody.
    hold(&bare.server, LOCK, OTHER, "60000");
    assert_eq!(bare.call("plain_force_unlock", &[LOCK], &args), 0);
    assert_eq!(bare.server.keys(), Vec::<String>::new());

    // Held without an end, and by two fields, as a foreign client may do; heard by one.
    let mut ear = Ear::on(&bare.server, CHANNEL);
    bare.server.ask::<()>(&["HSET", LOCK, MINE, "1", OTHER, "3"]);
    assert_eq!(bare.call("plain_force_unlock", &[LOCK], &args), 1);
    assert_eq!(bare.server.keys(), Vec::<String>::new());
    assert_eq!(ear.hear(), (CHANNEL.to_owned(), "0".to_owned()));

    bare.is_refused_for_a_text("plain_force_unlock", &args);
}

#[test]
fn join_answers_as_documented() {
    let mut bare = Bare::start();
    bare.server.ask::<()>(&["SET", "text", "no lock"]);
    hold(&bare.server, "held", OTHER, "60000");
    let keys = ["a", "held", "text", "a", "b", "held", "text"];
    let taking = ["60000", MINE];
    let freeing = [MINE, CHANNEL, "0"];
    let waiting = ["60000", MINE, "wake", CHANNEL];
    let args = [&taking[..], &waiting, &taking, &freeing, &taking, &freeing, &freeing].concat();
    let mut ear = Ear::on(&bare.server, "wake");
    let args = [&["a2a4a2r3a2r3r3"][..], &args].concat();
    let answers = bare.try_call::<Vec<Option<i64>>>("call_many", &keys, &args);
    let answers = answers.expect("no call that fails makes it fail");
    let left = answers[1].expect("held by another");
    assert!((1..=60_000).contains(&left), "{left}");
    let wanted = [Some(-2), Some(left), None, Some(0), Some(-2), Some(-1), None];
    assert_eq!(answers, wanted);
    assert_eq!(ear.hear(), ("wake".to_owned(), CHANNEL.to_owned()));
    assert_eq!(bare.server.keys(), ["b", "held", "text"]);
}

/// A user who may touch the keys in KEYS and no other key can run every script.
#[test]
fn scripts_touch_no_key_beside_those_in_keys() {
    let bare = Bare::start();
    let rule = ["~a", "~b", "&*", "+@all"];
    bare.server.ask::<()>(&[&["ACL", "SETUSER", "narrow", "on", ">secret"], &rule[..]].concat());
    let login = redis::cmd("AUTH").arg("narrow").arg("secret").to_owned();
    let mut connection = bare.server.connection();
    login.query::<()>(&mut connection).expect("the user exists");
    let mut narrow = Bare { server: bare.server, connection };

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

/// A client whose leases are short, though not for a slow machine, and which counts its renewals.
fn renewing(server: &Server) -> (Client, Arc<AtomicUsize>) {
    let renewals = Renewals::default();
    let count = Arc::clone(&renewals.0);
    let brief = Duration::from_millis(1500);
    let client = builder(server).watchdog_timeout(brief).events(renewals).build();
    (client.expect("the server is there"), count)
}

fn builder(server: &Server) -> Builder {
    Client::builder().single(server.url())
}

#[derive(Default)]
struct Renewals(Arc<AtomicUsize>);

impl Events for Renewals {
    fn renewed(&self, event: &Renewed) {
        self.0.fetch_add(event.holds.len(), Ordering::SeqCst);
    }
}

/// Blocks until so many more leases were renewed.
#[track_caller]
fn await_renewals(count: &AtomicUsize, more: usize) {
    let wanted = count.load(Ordering::SeqCst) + more;
    eventually("leases are renewed", || count.load(Ordering::SeqCst) >= wanted);
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

    let guard = lock.lock().expect("a server that knows no script");
    assert!(is_known(&server, "plain_acquire"));

    flush();
    await_renewals(&renewals, 2);
    assert!(is_known(&server, "plain_renew") && guard.is_held());

    flush();
    guard.extend(Duration::from_secs(60)).expect("extended after a flush");
    assert!(is_known(&server, "plain_renew"));

    flush();
    guard.unlock().expect("released after a flush");
    assert!(is_known(&server, "plain_release") && !is_known(&server, "plain_acquire"));

    drop(lock.try_lock().expect("asked after a flush").expect("the lock is free"));
    eventually("the dropped lock is free", || server.keys().is_empty());
    lock.lock().expect("the lock is free").detach();
    flush();
    assert!(lock.force_unlock().expect("forced after a flush"));
    assert!(is_known(&server, "plain_force_unlock"));
    assert_eq!(server.calls("eval"), 0, "scripts are called by their digests");
}

/// What a thread asks after it has dropped a guard goes behind the release, also where
/// that has to be sent a second time.
#[test]
fn a_release_whose_script_was_unknown_still_comes_first() {
    let server = Server::start();
    let client = builder(&server).build().expect("the server is there");
    let lock = client.lock(LOCK);
    let acquire = script("plain_acquire").text;
    let mut guard = lock.lock().expect("the lock is free");
    // The question overtakes only where both go out in one write.
    for round in 0..200 {
        server.ask::<()>(&["SCRIPT", "FLUSH"]);
        server.ask::<String>(&["SCRIPT", "LOAD", &acquire]);
        drop(guard);
        let again = lock.try_lock().expect("the server answers");
        guard = again.unwrap_or_else(|| panic!("in round {round} it was refused by its own hold"));
    }
}

/// Many threads, each with a lock of its own, and two whose attempts fail. Whatever goes
/// to the server in one command, everybody gets an answer of his own. Says how many
/// locks were taken.
fn crowd(client: &Client, fails: impl Fn() + Sync) -> usize {
    const THREADS: usize = 32;
    const PAIRS: usize = 200;
    let take = |number: usize| {
        let lock = client.lock(format!("lock:{number}"));
        for _ in 0..PAIRS {
            drop(lock.lock().expect("nobody else wants it"));
        }
    };
    let fail = || (0..PAIRS).for_each(|_| fails());
    thread::scope(|scope| {
        (0..THREADS).for_each(|number| drop(scope.spawn(move || take(number))));
        (0..2).for_each(|_| drop(scope.spawn(fail)));
    });
    THREADS * PAIRS
}

#[test]
fn calls_that_are_joined_get_their_own_answers() {
    let server = Server::start();
    let client = builder(&server).pool_size(1).build().expect("the server is there");
    server.ask::<()>(&["SET", "no lock", "but a text"]);
    let taken = crowd(&client, || {
        let error = client.lock("no lock").lock().expect_err("it is a text");
        assert!(error.is_server() && error.to_string().contains("WRONGTYPE"), "{error}");
    });
    eventually("all locks are free", || server.keys() == ["no lock"]);
    let stats = server.commandstats();
    assert_eq!(stats["hset"], taken as u64, "every lock was taken once");
    let calls = stats["evalsha"];
    assert!(calls < 2 * taken as u64, "{calls} calls for {taken} locks: none was joined");
}

/// A name that is forbidden spoils nothing for the others, also where the server refuses
/// all that was joined with it.
#[test]
fn calls_that_are_joined_with_a_forbidden_one_are_made_by_themselves() {
    let server = Server::start();
    let rule = ["ACL", "SETUSER", "narrow", "on", ">secret", "~lock:*", "&*", "+@all"];
    server.ask::<()>(&rule);
    let url = server.login_url("narrow", "secret");
    let client = Client::builder().single(url).pool_size(1).build().expect("it may log in");
    let taken = crowd(&client, || {
        let error = client.lock("forbidden").lock().expect_err("it is forbidden");
        assert!(error.is_server() && error.to_string().contains("NOPERM"), "{error}");
    });
    eventually("all locks are free", || server.keys().is_empty());
    assert_eq!(server.commandstats()["hset"], taken as u64, "every lock was taken once");
}

/// A server that does not let scripts be loaded that it does not know.
#[test]
fn where_calls_cannot_be_joined_they_are_made_by_themselves() {
    let server = Server::start();
    for name in ["plain_acquire", "plain_release"] {
        server.ask::<String>(&["SCRIPT", "LOAD", &script(name).text]);
    }
    let rule = ["ACL", "SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@all", "-script"];
    server.ask::<()>(&rule);
    let url = server.login_url("narrow", "secret");
    let client = Client::builder().single(url).pool_size(1).build().expect("it may log in");
    let taken = crowd(&client, || ());
    eventually("all locks are free", || server.keys().is_empty());
    let stats = server.commandstats();
    // Only what went unknown to be joined once was sent twice.
    let most = 2 * taken as u64 + 64;
    assert!(stats["evalsha"] <= most, "{} calls for {taken} locks", stats["evalsha"]);
}

/// What the pair costs the server, as DESIGN says: idea 4.
#[test]
fn a_pair_is_seven_commands() {
    const PAIRS: u64 = 20;
    let server = Server::start();
    let client = builder(&server).build().expect("the server is there");
    let lock = client.lock(LOCK);
    let pair = || lock.lock().and_then(leasehold::Guard::unlock).expect("locked and released");
    pair(); // loads the scripts

    server.reset_stats();
    (0..PAIRS).for_each(|_| pair());
    let mut stats = server.commandstats();
    // The harness's own. Redis before 7 counts no subcommands.
    for own in ["info", "config|resetstat", "config", "client|setname", "client"] {
        stats.remove(own);
    }
    let wanted = [
        ("evalsha", 2 * PAIRS),
        ("pttl", PAIRS),
        ("hset", PAIRS),
        ("pexpire", PAIRS),
        ("hdel", PAIRS),
        ("publish", PAIRS),
    ];
    let wanted = wanted.map(|(command, calls)| (command.to_owned(), calls));
    assert_eq!(BTreeMap::from_iter(stats), BTreeMap::from(wanted));
}

// ---------------------------------------------------------------------------------
// A full Redis.

/// What keeps or frees a lock must not call anything that a full Redis refuses.
#[test]
fn only_acquire_calls_commands_that_grow_memory() {
    let server = Server::start();
    let has = |command: &str, flag: &str| {
        let info: Vec<Vec<Value>> = server.ask(&["COMMAND", "INFO", command]);
        let flags: Vec<String> = redis::from_redis_value(info[0][2].clone()).expect("flags");
        flags.contains(&flag.to_owned())
    };
    let (grows, writes) = (|it: &str| has(it, "denyoom"), |it: &str| has(it, "write"));
    assert!(grows("hset") && !grows("hdel"), "the server tells them apart");
    for Script { name, .. } in scripts() {
        let (_, code) = head_and_code(&whole(&name));
        let called = code.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
        let called: Vec<&str> = called.collect();
        assert!(!called.is_empty(), "lua/{name}.lua calls nothing");
        // Behind a command that writes and does not grow, a full server takes any.
        let frees = |command: &&str| writes(command) && !grows(command);
        let first = called.iter().take_while(|command| !frees(command));
        let growing: Vec<&&str> = first.filter(|command| grows(command)).collect();
        // What is joined fails each for itself: an acquire keeps no release from being made.
        let may_grow = name.ends_with("_acquire") || name == "call_many";
        assert!(growing.is_empty() || may_grow, "lua/{name}.lua calls {growing:?} first");
    }
}

/// Fills the server with data far beyond its limit, so that what connections come and
/// go changes nothing, and proves it.
fn fill(server: &Server) {
    let data = "x".repeat(8 << 20);
    server.ask::<()>(&["SET", "data", &data]);
    server.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", &(server.used() - (4 << 20)).to_string()]);
    let mut connection = server.connection();
    let refused = redis::cmd("SET").arg("more").arg("data").query::<()>(&mut connection);
    assert_eq!(refused.expect_err("the server is full").code(), Some("OOM"));
}

#[test]
fn a_full_server_still_renews_extends_and_frees() {
    let server = Server::start();
    let (client, renewals) = renewing(&server);
    let [renewed, extended, dropped, forced] = ["renewed", "extended", "dropped", "forced"]
        .map(|name| client.lock(name).lock().expect("there is room yet"));
    fill(&server);
    server.ask::<()>(&["SCRIPT", "FLUSH"]);

    await_renewals(&renewals, 12);
    for guard in [&renewed, &extended, &dropped, &forced] {
        guard.check().expect("renewed on a full server");
    }
    assert_left(&server, "renewed", 1..=1500);

    extended.extend(Duration::from_secs(60)).expect("extended on a full server");
    assert_left(&server, "extended", 30_000..=60_000);
    let nested = client.lock("renewed").lock().expect("no round trip, no memory");
    nested.unlock().expect("nested");

    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    renewed.unlock().expect("released on a full server");
    extended.unlock().expect("released on a full server");
    drop(dropped);
    assert!(client.lock("forced").force_unlock().expect("forced on a full server"));
    eventually("only the data is left", || server.keys() == ["data"]);
    assert!(forced.check().expect_err("taken away").is_lost());
}

/// Ends the wait of a thread when a test fails: or its scope would wait with it.
struct Cancelling(CancelToken);

impl Drop for Cancelling {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[test]
fn a_full_server_gives_no_lock_and_says_why() {
    let server = Server::start();
    let holder = builder(&server).build().expect("the server is there");
    let client = builder(&server).build().expect("the server is there");
    let held = holder.lock("held").lock().expect("there is room yet");
    fill(&server);

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
        assert!(text.contains("make room"), "it says what to do: {text}");
    }

    // What is held is said as ever, and who waited for it is told when it is free.
    assert!(client.lock("held").try_lock().expect("a refusal takes no memory").is_none());
    assert!(client.lock("held").is_locked().expect("a look takes no memory"));
    std::thread::scope(|scope| {
        let token = Cancelling(CancelToken::new());
        let lock = client.lock("held").with_cancel(&token.0);
        let waiter = scope.spawn(move || lock.lock().map(drop));
        eventually("somebody waits", || server.numsub("redisson_lock__channel:{held}") == 1);
        held.unlock().expect("released on a full server");
        eventually("the wait ends", || waiter.is_finished());
        let error = waiter.join().expect("no panic").expect_err("a lock takes memory");
        assert!(error.is_server() && error.to_string().contains("OOM"), "{error}");
    });

    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    lock.lock().and_then(leasehold::Guard::unlock).expect("there is room again");
    eventually("only the data is left", || server.keys() == ["data"]);
}
