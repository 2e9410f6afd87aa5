//! Lists.

use super::super::resp::{Bytes, Reply};
use super::{Call, Command, Outcome, SYNTAX, integer, range};
use std::collections::VecDeque;

type Items = VecDeque<Bytes>;

pub(super) const COMMANDS: &[Command] = &[
    Command::read("LINDEX", 3, index),
    Command::read("LLEN", 2, |call| Ok(Reply::count(call.items()?.map_or(0, |items| items.len())))),
    Command::write("LPOP", -2, |call| pop(call, Items::pop_front)),
    Command::read("LPOS", -3, position),
    Command::growing("LPUSH", -3, |call| push(call, Items::push_front)),
    Command::read("LRANGE", 4, items),
    Command::write("LREM", 4, remove),
    Command::growing("LSET", 4, set),
    Command::write("LTRIM", 4, trim),
    Command::write("RPOP", -2, |call| pop(call, Items::pop_back)),
    Command::growing("RPUSH", -3, |call| push(call, Items::push_back)),
];

impl Call<'_> {
    /// Returns the list of the first argument, if the key exists.
    fn items(&mut self) -> Result<Option<&mut Items>, String> {
        self.value(self.key())
    }
}

/// Returns the place that an index names; a negative one counts from the end.
fn place(index: i64, items: &Items) -> Option<usize> {
    let index = if index < 0 { items.len() as i64 + index } else { index };
    usize::try_from(index).ok().filter(|at| *at < items.len())
}

fn index(call: &mut Call<'_>) -> Outcome {
    let Some(_) = call.items()? else { return Ok(Reply::Nil) };
    let index = call.integer(2)?;
    let items = call.items()?;
    Ok(Reply::bulk_or_nil(items.and_then(|items| items.get(place(index, items)?))))
}

fn pop(call: &mut Call<'_>, pop: fn(&mut Items) -> Option<Bytes>) -> Outcome {
    if call.len() > 3 {
        return Err(super::wrong_arity(&call.upper(0)));
    }
    let count = call.pop_count()?;
    let Some(_) = call.items()? else {
        return Ok(if count.is_some() { Reply::NilArray } else { Reply::Nil });
    };
    let wanted = count.unwrap_or(1);
    let popped = call.change(call.key(), |items: &mut Items| {
        (0..wanted.min(items.len())).filter_map(|_| pop(items)).collect::<Vec<_>>()
    })?;
    Ok(if count.is_some() { Reply::bulks(popped) } else { Reply::bulk_or_nil(popped.first()) })
}

fn position(call: &mut Call<'_>) -> Outcome {
    let (mut rank, mut count, mut max) = (1, None, 0);
    let mut at = 3;
    while at < call.len() {
        let number = call.args.get(at + 1).ok_or(SYNTAX)?;
        let positive = |what: &str| {
            let number = integer(number).ok().filter(|number| *number >= 0);
            number.ok_or_else(|| format!("ERR {what} can't be negative"))
        };
        match &*call.upper(at) {
            "RANK" => {
                rank = integer(number)?;
                if rank == 0 {
                    return Err("ERR RANK can't be zero: use 1 to start from the first match, \
                                2 from the second ... or use negative to start from the end of \
                                the list"
                        .to_owned());
                }
            }
            "COUNT" => count = Some(positive("COUNT")?),
            "MAXLEN" => max = positive("MAXLEN")?,
            _ => return Err(SYNTAX.to_owned()),
        }
        at += 2;
    }
    let wanted = &call.args[2];
    let Some(items) = call.items()? else {
        return Ok(if count.is_some() { Reply::Array(Vec::new()) } else { Reply::Nil });
    };
    let len = items.len();
    let seen = if max == 0 { len } else { len.min(max as usize) };
    let place = |step| if rank > 0 { step } else { len - 1 - step };
    let found = (0..seen).map(place).filter(|at| items[*at] == *wanted);
    // The least number has no positive counterpart: for Redis each item is of that rank.
    let skipped = rank.checked_abs().map_or(0, |rank| rank as usize - 1);
    let mut found = found.skip(skipped).map(Reply::count);
    Ok(match count {
        None => found.next().unwrap_or(Reply::Nil),
        Some(0) => Reply::Array(found.collect()),
        Some(count) => Reply::Array(found.take(count as usize).collect()),
    })
}

fn push(call: &mut Call<'_>, push: fn(&mut Items, Bytes)) -> Outcome {
    let new = &call.args[2..];
    let len = call.change(call.key(), |items: &mut Items| {
        for item in new {
            push(items, item.clone());
        }
        items.len()
    });
    Ok(Reply::count(len?))
}

fn items(call: &mut Call<'_>) -> Outcome {
    let (start, stop) = (call.integer(2)?, call.integer(3)?);
    let Some(items) = call.items()? else { return Ok(Reply::Array(Vec::new())) };
    Ok(Reply::bulks(items.range(range(start, stop, items.len())).cloned()))
}

fn remove(call: &mut Call<'_>) -> Outcome {
    let (count, unwanted) = (call.integer(2)?, &call.args[3]);
    let removed = call.change(call.key(), |items: &mut Items| {
        let before = items.len();
        let mut left = if count == 0 { u64::MAX } else { count.unsigned_abs() };
        let mut keep = |item: &Bytes| {
            let goes = item == unwanted && left > 0;
            left -= u64::from(goes);
            !goes
        };
        if count < 0 {
            let kept: Vec<Bytes> = items.drain(..).rev().filter(&mut keep).collect();
            items.extend(kept.into_iter().rev());
        } else {
            items.retain(keep);
        }
        before - items.len()
    });
    Ok(Reply::count(removed?))
}

fn set(call: &mut Call<'_>) -> Outcome {
    if call.items()?.is_none() {
        return Err("ERR no such key".to_owned());
    }
    let (index, item) = (call.integer(2)?, &call.args[3]);
    let place = call.items()?.and_then(|items| place(index, items).map(|at| &mut items[at]));
    *place.ok_or("ERR index out of range")? = item.clone();
    Ok(Reply::ok())
}

fn trim(call: &mut Call<'_>) -> Outcome {
    let (start, stop) = (call.integer(2)?, call.integer(3)?);
    call.change(call.key(), |items: &mut Items| {
        let kept = range(start, stop, items.len());
        items.truncate(kept.end);
        items.drain(..kept.start);
    })?;
    Ok(Reply::ok())
}
