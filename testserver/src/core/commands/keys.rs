//! Keys of any type: existence, expiry, search.

use super::super::glob;
use super::super::resp::{Reply, text_of};
use super::super::store::{Entry, Value};
use super::{Call, Command, Keys, Outcome, SYNTAX, integer, upper};

pub(super) const COMMANDS: &[Command] = &[
    Command::growing("COPY", -3, copy).with(Keys::FirstTwo),
    Command::keyless("DBSIZE", 1, |call| {
        let now = call.now();
        Ok(Reply::count(call.keys().count(now)))
    }),
    Command::write("DEL", -2, delete).with(Keys::All),
    Command::read("EXISTS", -2, exists).with(Keys::All),
    Command::write("EXPIRE", -3, |call| expire(call, 1000, false)),
    Command::write("EXPIREAT", -3, |call| expire(call, 1000, true)),
    Command::read("EXPIRETIME", 2, |call| Ok(expiry(call, |at, _| seconds(at)))),
    Command::write("FLUSHALL", -1, flush_all).with(Keys::None),
    Command::write("FLUSHDB", -1, flush).with(Keys::None),
    Command::keyless("KEYS", 2, keys),
    Command::write("PERSIST", 2, |call| {
        let entry = call.entry(call.key());
        Ok(Reply::Integer(entry.and_then(|entry| entry.expires.take()).is_some().into()))
    }),
    Command::write("PEXPIRE", -3, |call| expire(call, 1, false)),
    Command::write("PEXPIREAT", -3, |call| expire(call, 1, true)),
    Command::read("PEXPIRETIME", 2, |call| Ok(expiry(call, |at, _| at))),
    Command::read("PTTL", 2, |call| Ok(expiry(call, |at, now| (at - now).max(0)))),
    Command::write("RENAME", 3, rename).with(Keys::FirstTwo),
    Command::keyless("SCAN", -2, scan),
    Command::read("TTL", 2, |call| Ok(expiry(call, |at, now| seconds((at - now).max(0))))),
    Command::read("TYPE", 2, |call| {
        let value = call.entry(call.key()).map(|entry| &entry.value);
        Ok(Reply::Status(value.map_or("none", Value::type_name).to_owned()))
    }),
    Command::write("UNLINK", -2, delete).with(Keys::All),
];

fn copy(call: &mut Call<'_>) -> Outcome {
    let mut replace = false;
    for option in 3..call.len() {
        match &*call.upper(option) {
            "REPLACE" => replace = true,
            "DB" => return Err(super::refusal("COPY into another database")),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let (source, target) = (&call.args[1], &call.args[2]);
    if source == target {
        return Err("ERR source and destination objects are the same".to_owned());
    }
    let Some(entry) = call.entry(source).cloned() else { return Ok(Reply::Integer(0)) };
    if call.entry(target).is_some() && !replace {
        return Ok(Reply::Integer(0));
    }
    call.keys().set(target, entry);
    Ok(Reply::Integer(1))
}

fn delete(call: &mut Call<'_>) -> Outcome {
    let mut count = 0;
    for key in &call.args[1..] {
        if call.entry(key).is_some() {
            call.keys().remove(key);
            count += 1;
        }
    }
    Ok(Reply::Integer(count))
}

fn exists(call: &mut Call<'_>) -> Outcome {
    let keys = &call.args[1..];
    Ok(Reply::count(keys.iter().filter(|key| call.entry(key).is_some()).count()))
}

/// Sets the expiry of a key, in units of so many milliseconds, from now on or since 1970.
fn expire(call: &mut Call<'_>, unit: i64, is_absolute: bool) -> Outcome {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in &call.args[3..] {
        match &*upper(option) {
            "NX" => nx = true,
            "XX" => xx = true,
            "GT" => gt = true,
            "LT" => lt = true,
            _ => return Err(format!("ERR Unsupported option {}", text_of(option))),
        }
    }
    if nx && (xx || gt || lt) {
        let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return Err(text.to_owned());
    }
    if gt && lt {
        return Err("ERR GT and LT options at the same time are not compatible".to_owned());
    }
    let number = call.integer(2)?;
    let base = if is_absolute { 0 } else { call.now() };
    let at = number.checked_mul(unit).and_then(|time| time.checked_add(base));
    let at = at.ok_or_else(|| invalid_expiry(&call.args[0]))?;
    let now = call.now();
    let Some(entry) = call.entry(call.key()) else { return Ok(Reply::Integer(0)) };
    let old = entry.expires;
    let is_kept = (nx && old.is_some())
        || (xx && old.is_none())
        || (gt && old.is_none_or(|old| at <= old))
        || (lt && old.is_some_and(|old| at >= old));
    if is_kept {
        return Ok(Reply::Integer(0));
    }
    if at > now {
        entry.expires = Some(at);
    } else {
        let key = call.key();
        call.keys().remove(key);
    }
    Ok(Reply::Integer(1))
}

/// Returns the error for a time that is too long.
pub(super) fn invalid_expiry(command: &[u8]) -> String {
    format!("ERR invalid expire time in '{}' command", upper(command).to_ascii_lowercase())
}

/// Returns what is asked about a key's expiry, given its time and now; -1 without an expiry, -2
/// without the key.
fn expiry(call: &mut Call<'_>, ask: impl Fn(i64, i64) -> i64) -> Reply {
    let now = call.now();
    Reply::Integer(match call.entry(call.key()).map(|entry| entry.expires) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => ask(at, now),
    })
}

/// Returns milliseconds, which are not negative, as whole seconds.
fn seconds(time: i64) -> i64 {
    ((time as u64 + 500) / 1000) as i64
}

fn flush_all(call: &mut Call<'_>) -> Outcome {
    check_flush(call)?;
    call.state.clear();
    Ok(Reply::ok())
}

fn flush(call: &mut Call<'_>) -> Outcome {
    check_flush(call)?;
    let database = call.state.database;
    call.state.clear_database(database);
    Ok(Reply::ok())
}

fn check_flush(call: &Call<'_>) -> Result<(), String> {
    let fits = match call.len() {
        1 => true,
        2 => ["ASYNC", "SYNC"].contains(&&*call.upper(1)),
        _ => false,
    };
    if fits { Ok(()) } else { Err(SYNTAX.to_owned()) }
}

fn keys(call: &mut Call<'_>) -> Outcome {
    let (pattern, now) = (call.key(), call.now());
    let all = call.keys().starting_at(0, now).flat_map(|(_, keys)| keys);
    let found = all.map(|(key, _)| key.clone()).filter(|key| glob::fits(pattern, key));
    Ok(Reply::bulks(found))
}

fn rename(call: &mut Call<'_>) -> Outcome {
    let (source, target) = (&call.args[1], &call.args[2]);
    // Forgets the key if it has expired.
    call.entry(source);
    let entry = call.keys().remove(source).ok_or("ERR no such key")?;
    call.keys().set(target, entry);
    Ok(Reply::ok())
}

fn scan(call: &mut Call<'_>) -> Outcome {
    let cursor = std::str::from_utf8(&call.args[1]).ok().and_then(|text| text.parse().ok());
    let cursor: u64 = cursor.ok_or("ERR invalid cursor")?;
    let (mut pattern, mut type_name, mut count) = (None, None, 10);
    let mut at = 2;
    while at < call.len() {
        let value = call.args.get(at + 1).ok_or(SYNTAX)?;
        match &*call.upper(at) {
            "MATCH" => pattern = Some(value),
            "TYPE" => type_name = Some(upper(value).to_ascii_lowercase()),
            "COUNT" => {
                count = integer(value)?;
                if count < 1 {
                    return Err(SYNTAX.to_owned());
                }
            }
            _ => return Err(SYNTAX.to_owned()),
        }
        at += 2;
    }
    let fits = |key: &[u8], entry: &Entry| {
        pattern.is_none_or(|pattern| glob::fits(pattern, key))
            && type_name.as_ref().is_none_or(|name| name == entry.value.type_name())
    };
    let now = call.now();
    let (mut seen, mut found, mut next) = (0, Vec::new(), 0);
    for (hash, keys) in call.keys().starting_at(cursor, now) {
        if seen >= count {
            next = hash;
            break;
        }
        for (key, entry) in keys {
            seen += 1;
            if fits(key, entry) {
                found.push(Reply::bulk(key.clone()));
            }
        }
    }
    Ok(Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(found)]))
}
