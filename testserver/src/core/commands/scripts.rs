//! Scripts.

use super::super::resp::{Bytes, Reply};
use super::super::script::{NO_SCRIPT, Scripts};
use super::{Command, Keys, Outcome, integer, upper};

pub(super) const COMMANDS: &[Command] = &[
    Command::script("EVAL", -3, |scripts, args| {
        let (keys, rest) = split(args)?;
        let digest = scripts.load(&args[1])?;
        scripts.run(&digest, keys, rest)
    })
    .with(Keys::Counted),
    Command::script("EVALSHA", -3, |scripts, args| {
        if args[1].len() != 40 {
            return Err(NO_SCRIPT.to_owned());
        }
        let (keys, rest) = split(args)?;
        let digest = String::from_utf8_lossy(&args[1]).to_ascii_lowercase();
        scripts.run(&digest, keys, rest)
    })
    .with(Keys::Counted),
    Command::script("SCRIPT|EXISTS", -3, |scripts, args| {
        let known = |digest: &Bytes| {
            let digest = String::from_utf8_lossy(digest).to_ascii_lowercase();
            Reply::Integer(scripts.has(&digest).into())
        };
        Ok(Reply::Array(args[2..].iter().map(known).collect()))
    }),
    Command::script("SCRIPT|FLUSH", -2, flush),
    Command::script("SCRIPT|KILL", 2, |_, _| {
        Err("NOTBUSY No scripts in execution right now.".to_owned())
    }),
    Command::script("SCRIPT|LOAD", 3, |scripts, args| scripts.load(&args[2]).map(Reply::bulk)),
];

/// Splits what follows the number of keys into keys and arguments.
fn split(args: &[Bytes]) -> Result<(&[Bytes], &[Bytes]), String> {
    let count = integer(&args[2])?;
    let rest = &args[3..];
    if count > rest.len() as i64 {
        return Err("ERR Number of keys can't be greater than number of args".to_owned());
    }
    let count = usize::try_from(count);
    Ok(rest.split_at(count.map_err(|_| "ERR Number of keys can't be negative")?))
}

fn flush(scripts: &mut Scripts, args: &[Bytes]) -> Outcome {
    let fits = match args {
        [_, _] => true,
        [_, _, mode] => ["ASYNC", "SYNC"].contains(&&*upper(mode)),
        _ => false,
    };
    if !fits {
        let text = "ERR SCRIPT FLUSH only support SYNC|ASYNC option";
        return Err(text.to_owned());
    }
    scripts.flush();
    Ok(Reply::ok())
}
