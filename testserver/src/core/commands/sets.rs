//! Sets.

use super::super::resp::{Bytes, Reply};
use super::{Call, Command, Outcome};
use std::collections::BTreeSet;

type Members = BTreeSet<Bytes>;

pub(super) const COMMANDS: &[Command] = &[
    Command::growing("SADD", -3, |call| {
        let new = &call.args[2..];
        let insert = |members: &mut Members| {
            new.iter().filter(|member| members.insert(member.to_vec())).count()
        };
        Ok(Reply::count(call.change(call.key(), insert)?))
    }),
    Command::read("SCARD", 2, |call| {
        Ok(Reply::count(call.members()?.map_or(0, |members| members.len())))
    }),
    Command::read("SISMEMBER", 3, |call| {
        let member = &call.args[2];
        let is_member = call.members()?.is_some_and(|members| members.contains(member));
        Ok(Reply::Integer(is_member.into()))
    }),
    Command::read("SMEMBERS", 2, |call| {
        let members = call.members()?.into_iter().flat_map(|members| members.iter().cloned());
        Ok(Reply::Set(members.map(Reply::bulk).collect()))
    }),
    Command::write("SREM", -3, remove),
];

impl Call<'_> {
    /// Returns the set of the first argument, if the key exists.
    fn members(&mut self) -> Result<Option<&mut Members>, String> {
        self.value(self.key())
    }
}

fn remove(call: &mut Call<'_>) -> Outcome {
    let unwanted = &call.args[2..];
    let count = call.change(call.key(), |members: &mut Members| {
        unwanted.iter().filter(|member| members.remove(*member)).count()
    });
    Ok(Reply::count(count?))
}
