//! Sorted sets.

use super::super::number;
use super::super::resp::{Bytes, Reply};
use super::super::sorted_set::{ScoreBound, SortedSet};
use super::{Call, Command, Outcome, SYNTAX, float, range, refusal};

const NOT_A_NUMBER: &str = "ERR resulting score is not a number (NaN)";

pub(super) const COMMANDS: &[Command] = &[
    Command::growing("ZADD", -4, add),
    Command::read("ZCARD", 2, |call| {
        Ok(Reply::count(call.ranked()?.map_or(0, |members| members.len())))
    }),
    Command::read("ZCOUNT", 4, count),
    Command::growing("ZINCRBY", 4, increase),
    Command::read("ZMSCORE", -3, scores),
    Command::write("ZPOPMAX", -2, |call| pop(call, SortedSet::pop_last)),
    Command::write("ZPOPMIN", -2, |call| pop(call, SortedSet::pop_first)),
    Command::read("ZRANGE", -4, |call| select(call, Select::default())),
    Command::read("ZRANGEBYSCORE", -4, |call| {
        select(call, Select { by_score: true, is_fixed: true, ..Select::default() })
    }),
    Command::read("ZRANK", 3, |call| rank(call, false)),
    Command::write("ZREM", -3, remove),
    Command::write("ZREMRANGEBYSCORE", 4, remove_between),
    Command::read("ZREVRANGE", -4, |call| {
        select(call, Select { is_reversed: true, is_fixed: true, ..Select::default() })
    }),
    Command::read("ZREVRANGEBYSCORE", -4, |call| {
        let select_from = Select { by_score: true, is_reversed: true, is_fixed: true };
        select(call, select_from)
    }),
    Command::read("ZREVRANK", 3, |call| rank(call, true)),
    Command::read("ZSCORE", 3, |call| {
        let member = &call.args[2];
        let score = call.ranked()?.and_then(|members| members.score(member));
        Ok(score.map_or(Reply::Nil, Reply::Double))
    }),
];

impl Call<'_> {
    /// Returns the sorted set of the first argument, if the key exists.
    fn ranked(&mut self) -> Result<Option<&mut SortedSet>, String> {
        self.value(self.key())
    }
}

/// Which of the options of `ZADD` are given.
#[derive(Default)]
struct Addition {
    only_new: bool,
    only_old: bool,
    only_greater: bool,
    only_less: bool,
    increases: bool,
}

/// What an addition did to one member.
enum Added {
    New(f64),
    Changed(f64),
    Same(f64),
    Refused,
}

impl Addition {
    /// Adds one member.
    fn apply(&self, members: &mut SortedSet, member: &[u8], score: f64) -> Result<Added, String> {
        let Some(old) = members.score(member) else {
            if self.only_old {
                return Ok(Added::Refused);
            }
            members.set(member, score);
            return Ok(Added::New(score));
        };
        if self.only_new {
            return Ok(Added::Refused);
        }
        let score = if self.increases { old + score } else { score };
        if score.is_nan() {
            return Err(NOT_A_NUMBER.to_owned());
        }
        if (self.only_less && score >= old) || (self.only_greater && score <= old) {
            return Ok(Added::Refused);
        }
        members.set(member, score);
        Ok(if score == old { Added::Same(score) } else { Added::Changed(score) })
    }
}

fn add(call: &mut Call<'_>) -> Outcome {
    let (mut how, mut counts_changes, mut at) = (Addition::default(), false, 2);
    while at < call.len() {
        match &*call.upper(at) {
            "NX" => how.only_new = true,
            "XX" => how.only_old = true,
            "GT" => how.only_greater = true,
            "LT" => how.only_less = true,
            "CH" => counts_changes = true,
            "INCR" => how.increases = true,
            _ => break,
        }
        at += 1;
    }
    let (pairs, []) = call.args[at..].as_chunks::<2>() else { return Err(SYNTAX.to_owned()) };
    if pairs.is_empty() {
        return Err(SYNTAX.to_owned());
    }
    if how.only_new && how.only_old {
        let text = "ERR XX and NX options at the same time are not compatible";
        return Err(text.to_owned());
    }
    if (how.only_new && (how.only_greater || how.only_less)) || (how.only_greater && how.only_less)
    {
        let text = "ERR GT, LT, and/or NX options at the same time are not compatible";
        return Err(text.to_owned());
    }
    if how.increases && pairs.len() > 1 {
        let text = "ERR INCR option supports a single increment-element pair";
        return Err(text.to_owned());
    }
    let scored = pairs.iter().map(|[score, member]| Ok((float(score)?, member)));
    let scored: Vec<(f64, &Bytes)> = scored.collect::<Result<_, String>>()?;
    let outcome = call.change(call.key(), |members: &mut SortedSet| {
        let (mut new, mut changed, mut last) = (0, 0, Reply::Nil);
        for (score, member) in scored {
            let score = match how.apply(members, member, score)? {
                Added::New(score) => {
                    new += 1;
                    score
                }
                Added::Changed(score) => {
                    changed += 1;
                    score
                }
                Added::Same(score) => score,
                Added::Refused => continue,
            };
            last = Reply::Double(score);
        }
        Ok::<_, String>((new, changed, last))
    });
    let (new, changed, last) = outcome??;
    Ok(if how.increases {
        last
    } else {
        Reply::Integer(if counts_changes { new + changed } else { new })
    })
}

fn increase(call: &mut Call<'_>) -> Outcome {
    let (by, member) = (call.float(2)?, &call.args[3]);
    let how = Addition { increases: true, ..Addition::default() };
    let add = |members: &mut SortedSet| how.apply(members, member, by);
    match call.change(call.key(), add)?? {
        Added::New(score) | Added::Changed(score) | Added::Same(score) => Ok(Reply::Double(score)),
        Added::Refused => Ok(Reply::Nil),
    }
}

fn bound(text: &[u8]) -> Result<ScoreBound, String> {
    let (excluded, number) = match text.strip_prefix(b"(") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if number::is_hexadecimal(number) {
        return Err(refusal("hexadecimal numbers"));
    }
    let score = number::parse_bound(number).ok_or("ERR min or max is not a float")?;
    Ok(ScoreBound { score, excluded })
}

fn count(call: &mut Call<'_>) -> Outcome {
    let (min, max) = (bound(&call.args[2])?, bound(&call.args[3])?);
    let members = call.ranked()?;
    Ok(Reply::count(members.map_or(0, |members| members.between(min, max).count())))
}

fn scores(call: &mut Call<'_>) -> Outcome {
    let wanted = &call.args[2..];
    let members = call.ranked()?;
    let score = |member: &Bytes| {
        let score = members.as_ref().and_then(|members| members.score(member));
        score.map_or(Reply::Nil, Reply::Double)
    };
    Ok(Reply::Array(wanted.iter().map(score).collect()))
}

fn pop(call: &mut Call<'_>, pop: fn(&mut SortedSet) -> Option<(Bytes, f64)>) -> Outcome {
    if call.len() > 3 {
        return Err(SYNTAX.to_owned());
    }
    let count = call.pop_count()?;
    let wanted = count.unwrap_or(1);
    let popped = call.change(call.key(), |members: &mut SortedSet| {
        (0..wanted.min(members.len())).filter_map(|_| pop(members)).collect::<Vec<_>>()
    })?;
    let popped = popped.into_iter().map(|(member, score)| (Reply::bulk(member), score));
    let popped = popped.map(|(member, score)| (member, Reply::Double(score)));
    Ok(if count.is_some() {
        Reply::Pairs(popped.collect())
    } else {
        Reply::Array(popped.flat_map(|(member, score)| [member, score]).collect())
    })
}

fn rank(call: &mut Call<'_>, is_reversed: bool) -> Outcome {
    let wanted = &call.args[2];
    let Some(members) = call.ranked()? else { return Ok(Reply::Nil) };
    let rank = members.iter().position(|(member, _)| member == wanted);
    Ok(match rank {
        None => Reply::Nil,
        Some(rank) if is_reversed => Reply::count(members.len() - 1 - rank),
        Some(rank) => Reply::count(rank),
    })
}

fn remove(call: &mut Call<'_>) -> Outcome {
    let unwanted = &call.args[2..];
    let count = call.change(call.key(), |members: &mut SortedSet| {
        unwanted.iter().filter(|member| members.remove(member)).count()
    });
    Ok(Reply::count(count?))
}

fn remove_between(call: &mut Call<'_>) -> Outcome {
    let (min, max) = (bound(&call.args[2])?, bound(&call.args[3])?);
    let count = call.change(call.key(), |members: &mut SortedSet| {
        let unwanted: Vec<Bytes> = members.between(min, max).map(|(it, _)| it.clone()).collect();
        unwanted.iter().filter(|member| members.remove(member)).count()
    });
    Ok(Reply::count(count?))
}

/// How a range of members is selected.
#[derive(Clone, Copy, Default)]
struct Select {
    /// By scores instead of places.
    by_score: bool,
    is_reversed: bool,
    /// Whether the command's name has said both.
    is_fixed: bool,
}

fn select(call: &mut Call<'_>, mut by: Select) -> Outcome {
    let (mut with_scores, mut limit, mut at) = (false, None, 4);
    while at < call.len() {
        match &*call.upper(at) {
            "WITHSCORES" => with_scores = true,
            "LIMIT" if at + 2 < call.len() => {
                limit = Some((call.integer(at + 1)?, call.integer(at + 2)?));
                at += 2;
            }
            "REV" if !by.is_fixed => by.is_reversed = true,
            "BYSCORE" if !by.is_fixed => by.by_score = true,
            "BYLEX" if !by.is_fixed => return Err(refusal("BYLEX")),
            _ => return Err(SYNTAX.to_owned()),
        }
        at += 1;
    }
    if limit.is_some() && !by.by_score {
        let text = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE \
                    or BYLEX";
        return Err(text.to_owned());
    }
    let found: Vec<(Bytes, f64)> = if by.by_score {
        let (first, last) = (bound(&call.args[2]), bound(&call.args[3]));
        let (min, max) = if by.is_reversed { (last?, first?) } else { (first?, last?) };
        let Some(members) = call.ranked()? else { return Ok(Reply::Array(Vec::new())) };
        let (offset, count) = limit.unwrap_or((0, -1));
        // A negative offset skips all, a negative count takes all.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let found = members.between(min, max);
        take(found, by.is_reversed, offset, count)
    } else {
        let (start, stop) = (call.integer(2)?, call.integer(3)?);
        let Some(members) = call.ranked()? else { return Ok(Reply::Array(Vec::new())) };
        let places = range(start, stop, members.len());
        take(members.iter(), by.is_reversed, places.start, places.len())
    };
    let found = found.into_iter().map(|(member, score)| (Reply::bulk(member), score));
    Ok(if with_scores {
        Reply::Pairs(found.map(|(member, score)| (member, Reply::Double(score))).collect())
    } else {
        Reply::Array(found.map(|(member, _)| member).collect())
    })
}

fn take<'a>(
    members: impl DoubleEndedIterator<Item = (&'a Bytes, f64)>,
    is_reversed: bool,
    offset: usize,
    count: usize,
) -> Vec<(Bytes, f64)> {
    let own = |(member, score): (&Bytes, f64)| (member.clone(), score);
    if is_reversed {
        members.rev().skip(offset).take(count).map(own).collect()
    } else {
        members.skip(offset).take(count).map(own).collect()
    }
}
