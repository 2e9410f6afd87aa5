//! Texts and counters.

use super::super::resp::{Bytes, Reply};
use super::super::store::{Entry, Value};
use super::keys::invalid_expiry;
use super::{Call, Command, Keys, Outcome, SYNTAX, WRONG_TYPE, integer};

pub(super) const COMMANDS: &[Command] = &[
    Command::growing("APPEND", 3, append),
    Command::growing("DECR", 2, |call| add(call, -1)),
    Command::growing("DECRBY", 3, |call| {
        let by = call.integer(2)?;
        add(call, by.checked_neg().ok_or("ERR decrement would overflow")?)
    }),
    Command::read("GET", 2, |call| Ok(Reply::bulk_or_nil(call.value(call.key())?.map(|it| &*it)))),
    Command::write("GETDEL", 2, get_and_delete),
    Command::growing("GETSET", 3, get_and_set),
    Command::growing("INCR", 2, |call| add(call, 1)),
    Command::growing("INCRBY", 3, |call| {
        let by = call.integer(2)?;
        add(call, by)
    }),
    Command::read("MGET", -2, get_many).with(Keys::All),
    Command::growing("MSET", -3, set_many).with(Keys::OfPairs),
    Command::growing("PSETEX", 4, |call| set_for(call, 1)),
    Command::growing("SET", -3, set),
    Command::growing("SETEX", 4, |call| set_for(call, 1000)),
    Command::growing("SETNX", 3, set_if_missing),
    Command::read("STRLEN", 2, |call| {
        Ok(Reply::count(call.value::<Bytes>(call.key())?.map_or(0, |text| text.len())))
    }),
];

impl Call<'_> {
    fn set_text(&mut self, key: &[u8], text: Bytes, expires: Option<i64>) {
        self.keys().set(key, Entry { value: Value::Text(text), expires });
    }
}

fn append(call: &mut Call<'_>) -> Outcome {
    let more = &call.args[2];
    let len = call.change(call.key(), |text: &mut Bytes| {
        text.extend_from_slice(more);
        text.len()
    });
    Ok(Reply::count(len?))
}

fn add(call: &mut Call<'_>, by: i64) -> Outcome {
    let old = call.value::<Bytes>(call.key())?.map_or(Ok(0), |text| integer(text))?;
    let sum = old.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
    call.change(call.key(), |text: &mut Bytes| *text = sum.to_string().into_bytes())?;
    Ok(Reply::Integer(sum))
}

fn get_and_delete(call: &mut Call<'_>) -> Outcome {
    let reply = Reply::bulk_or_nil(call.value(call.key())?.map(|it| &*it));
    let key = call.key();
    call.keys().remove(key);
    Ok(reply)
}

fn get_and_set(call: &mut Call<'_>) -> Outcome {
    let reply = Reply::bulk_or_nil(call.value(call.key())?.map(|it| &*it));
    call.set_text(call.key(), call.args[2].clone(), None);
    Ok(reply)
}

fn get_many(call: &mut Call<'_>) -> Outcome {
    let keys = call.args[1..].iter();
    let text = |key: &Bytes| Reply::bulk_or_nil(call.value(key).ok().flatten().map(|it| &*it));
    Ok(Reply::Array(keys.map(text).collect()))
}

fn set_many(call: &mut Call<'_>) -> Outcome {
    let (pairs, []) = call.args[1..].as_chunks::<2>() else {
        return Err(super::wrong_arity("mset"));
    };
    for [key, text] in pairs {
        call.set_text(key, text.clone(), None);
    }
    Ok(Reply::ok())
}

fn set_for(call: &mut Call<'_>, unit: i64) -> Outcome {
    let time = call.integer(2)?;
    let expires = expiry_of_set(call, time, unit, false)?;
    call.set_text(call.key(), call.args[3].clone(), Some(expires));
    Ok(Reply::ok())
}

/// Returns the time at which a text expires, in milliseconds since 1970.
fn expiry_of_set(call: &Call<'_>, time: i64, unit: i64, is_absolute: bool) -> Result<i64, String> {
    let base = if is_absolute { 0 } else { call.now() };
    let at = time.checked_mul(unit).and_then(|time| time.checked_add(base));
    at.filter(|_| time > 0).ok_or_else(|| invalid_expiry(&call.args[0]))
}

fn set(call: &mut Call<'_>) -> Outcome {
    let (mut nx, mut xx, mut get, mut keep) = (false, false, false, false);
    let mut time = None;
    let mut at = 3;
    while at < call.len() {
        match &*call.upper(at) {
            "NX" if !xx => nx = true,
            "XX" if !nx => xx = true,
            "GET" => get = true,
            "KEEPTTL" if time.is_none() => keep = true,
            unit @ ("EX" | "PX" | "EXAT" | "PXAT") if time.is_none() && !keep => {
                at += 1;
                let number = call.args.get(at).ok_or(SYNTAX)?;
                let milliseconds = if unit.starts_with('E') { 1000 } else { 1 };
                time = Some((number, milliseconds, unit.ends_with("AT")));
            }
            _ => return Err(SYNTAX.to_owned()),
        }
        at += 1;
    }
    let mut expires = match time {
        Some((number, unit, is_absolute)) => {
            Some(expiry_of_set(call, integer(number)?, unit, is_absolute)?)
        }
        None => None,
    };
    let key = call.key();
    let old = call.entry(key).cloned();
    let reply_of_get = match old.as_ref().map(|entry| &entry.value) {
        Some(Value::Text(text)) => Reply::Bulk(text.clone()),
        Some(_) if get => return Err(WRONG_TYPE.to_owned()),
        _ => Reply::Nil,
    };
    if (nx && old.is_some()) || (xx && old.is_none()) {
        return Ok(if get { reply_of_get } else { Reply::Nil });
    }
    if keep {
        expires = old.and_then(|entry| entry.expires);
    }
    call.set_text(key, call.args[2].clone(), expires);
    Ok(if get { reply_of_get } else { Reply::ok() })
}

fn set_if_missing(call: &mut Call<'_>) -> Outcome {
    let is_missing = call.entry(call.key()).is_none();
    if is_missing {
        call.set_text(call.key(), call.args[2].clone(), None);
    }
    Ok(Reply::Integer(is_missing.into()))
}
