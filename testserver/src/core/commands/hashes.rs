//! Hashes.

use super::super::resp::{Bytes, Reply};
use super::{Call, Command, Outcome, SYNTAX, upper, wrong_arity};
use indexmap::IndexMap;

type Fields = IndexMap<Bytes, Bytes>;

pub(super) const COMMANDS: &[Command] = &[
    Command::write("HDEL", -3, delete),
    Command::read("HEXISTS", 3, |call| {
        let field = &call.args[2];
        let exists = call.fields()?.is_some_and(|fields| fields.contains_key(field));
        Ok(Reply::Integer(exists.into()))
    }),
    Command::read("HGET", 3, |call| {
        let field = &call.args[2];
        Ok(Reply::bulk_or_nil(call.fields()?.and_then(|fields| fields.get(field))))
    }),
    Command::read("HGETALL", 2, |call| {
        let pair = |(field, value): (&Bytes, &Bytes)| {
            (Reply::bulk(field.clone()), Reply::bulk(value.clone()))
        };
        let pairs = call.fields()?.map(|fields| fields.iter().map(pair).collect());
        Ok(Reply::Map(pairs.unwrap_or_default()))
    }),
    Command::growing("HINCRBY", 4, add),
    Command::read("HKEYS", 2, |call| {
        Ok(Reply::bulks(call.fields()?.into_iter().flat_map(|fields| fields.keys().cloned())))
    }),
    Command::read("HLEN", 2, |call| {
        Ok(Reply::count(call.fields()?.map_or(0, |fields| fields.len())))
    }),
    Command::read("HMGET", -3, get_many),
    Command::growing("HMSET", -4, |call| set(call).map(|_| Reply::ok())),
    Command::read("HRANDFIELD", -2, random),
    Command::growing("HSET", -4, set),
    Command::growing("HSETNX", 4, set_if_missing),
    Command::read("HSTRLEN", 3, |call| {
        let field = &call.args[2];
        let value = call.fields()?.and_then(|fields| fields.get(field));
        Ok(Reply::count(value.map_or(0, Vec::len)))
    }),
    Command::read("HVALS", 2, |call| {
        Ok(Reply::bulks(call.fields()?.into_iter().flat_map(|fields| fields.values().cloned())))
    }),
];

/// The count of `HRANDFIELD` for the most fields that may repeat.
const MOST_REPEATED: i64 = -1_000_000;

/// The number of fields up to which Redis keeps their order.
const ORDERED: usize = 512;

impl Call<'_> {
    /// Returns the hash of the first argument, if the key exists.
    fn fields(&mut self) -> Result<Option<&mut Fields>, String> {
        self.value(self.key())
    }
}

fn delete(call: &mut Call<'_>) -> Outcome {
    let wanted = &call.args[2..];
    let count = call.change(call.key(), |fields: &mut Fields| {
        let remove = |field: &&Bytes| {
            if fields.len() > ORDERED {
                fields.swap_remove(*field).is_some()
            } else {
                fields.shift_remove(*field).is_some()
            }
        };
        wanted.iter().filter(remove).count()
    });
    Ok(Reply::count(count?))
}

fn add(call: &mut Call<'_>) -> Outcome {
    let by = call.integer(3)?;
    let field = &call.args[2];
    let old = match call.fields()?.and_then(|fields| fields.get(field)) {
        Some(value) => super::integer(value).map_err(|_| "ERR hash value is not an integer")?,
        None => 0,
    };
    let sum = old.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
    call.change(call.key(), |fields: &mut Fields| {
        fields.insert(field.clone(), sum.to_string().into_bytes());
    })?;
    Ok(Reply::Integer(sum))
}

fn get_many(call: &mut Call<'_>) -> Outcome {
    let wanted = &call.args[2..];
    let fields = call.fields()?;
    let value = |field| Reply::bulk_or_nil(fields.as_ref().and_then(|fields| fields.get(field)));
    Ok(Reply::Array(wanted.iter().map(value).collect()))
}

fn random(call: &mut Call<'_>) -> Outcome {
    let count = if call.len() > 2 { Some(call.integer(2)?) } else { None };
    if count == Some(i64::MIN) {
        let text = "ERR value is out of range, value must between -9223372036854775807 and \
                    9223372036854775807";
        return Err(text.to_owned());
    }
    if call.len() > 4 || (call.len() == 4 && call.upper(3) != "WITHVALUES") {
        return Err(SYNTAX.to_owned());
    }
    if count.is_some_and(|count| count < MOST_REPEATED) {
        return Err(super::refusal("so many random fields"));
    }
    let with_values = call.len() == 4;
    if with_values && count.is_some_and(|count| count.unsigned_abs() > i64::MAX as u64 / 2) {
        return Err("ERR value is out of range".to_owned());
    }
    let mut random = call.state.random.clone();
    let Some(fields) = call.fields()? else {
        return Ok(if count.is_some() { Reply::Array(Vec::new()) } else { Reply::Nil });
    };
    let len = fields.len();
    let chosen: Vec<usize> = match count {
        None => vec![random.below(len)],
        Some(count @ ..0) => (count..0).map(|_| random.below(len)).collect(),
        Some(count) if count as u64 >= len as u64 => (0..len).collect(),
        Some(count) => {
            let mut places: Vec<usize> = (0..len).collect();
            for at in 0..count as usize {
                let other = at + random.below(len - at);
                places.swap(at, other);
            }
            places.truncate(count as usize);
            places
        }
    };
    let entry = |at| fields.get_index(at).expect("the place of a field");
    let field = |at| Reply::bulk(entry(at).0.clone());
    let reply = if count.is_none() {
        field(chosen[0])
    } else if with_values {
        let pair = |at| (field(at), Reply::bulk(entry(at).1.clone()));
        Reply::Pairs(chosen.into_iter().map(pair).collect())
    } else {
        Reply::Array(chosen.into_iter().map(field).collect())
    };
    call.state.random = random;
    Ok(reply)
}

fn set(call: &mut Call<'_>) -> Outcome {
    let (pairs, []) = call.args[2..].as_chunks::<2>() else {
        return Err(wrong_arity(&upper(&call.args[0])));
    };
    let new = call.change(call.key(), |fields: &mut Fields| {
        let insert =
            |[field, value]: &&[Bytes; 2]| fields.insert(field.clone(), value.clone()).is_none();
        pairs.iter().filter(insert).count()
    });
    Ok(Reply::count(new?))
}

fn set_if_missing(call: &mut Call<'_>) -> Outcome {
    let (field, value) = (&call.args[2], &call.args[3]);
    let is_missing = call.change(call.key(), |fields: &mut Fields| {
        let is_missing = !fields.contains_key(field);
        if is_missing {
            fields.insert(field.clone(), value.clone());
        }
        is_missing
    });
    Ok(Reply::Integer(is_missing?.into()))
}
