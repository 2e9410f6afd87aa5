//! Work that is done once: a fenced lock whose holder leaves a result.
//!
//! Beside the hash and the token counter of a fenced lock there is the result, a hash with the
//! owner of the hold that wrote it, its token, the time of the server, and the value. An acquire
//! that finds a result tells it and takes nothing. The commit writes the result and ends the hold
//! in one step, so no other caller holds the work between both. It names the owner: a repeated
//! commit finds its own result, and one that comes too late changes nothing.

use std::time::Duration;

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::error::Result;
use crate::events::Kind;
use crate::kind::fenced::{self, Fenced};
use crate::kind::plain::{Plain, UNLOCKED};
use crate::kind::rules::{self, AcquireArgs, AcquireReply, KindRules, Queueing};
use crate::transport::call::{Call, Digits};
use crate::transport::reply::Reply;
use crate::transport::script::Script;

/// The rules of work that is done once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnceWork;

/// A result, as the server keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnceResult {
    /// Milliseconds since 1970, by the clock of the server.
    pub(crate) at: u64,
    pub(crate) token: u64,
    pub(crate) value: Vec<u8>,
}

/// The reply to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitReply {
    /// The result is written: the subscribers that received the message, and the time. An earlier
    /// copy of the commit may have told their number.
    Committed {
        subscribers: Option<u64>,
        at: u64,
    },
    NotHeld,
}

/// Returns the call that writes the result of a hold and ends the hold.
pub(crate) fn commit(name: &Name, owner: &Owner, token: u64, keep: Duration, value: &[u8]) -> Call {
    let keys = [name.key(), name.result_key()].map(str::as_bytes);
    let (keep, token, channel) =
        (Digits::of_millis(keep), Digits::new(token), name.channel().as_bytes());
    let args = [owner.as_bytes(), channel, UNLOCKED, keep.as_bytes(), token.as_bytes(), value];
    Call::script(&script::ONCE_COMMIT, keys, args).replicated()
}

/// Reads the reply to [`commit`].
pub(crate) fn read_commit(reply: Reply) -> Result<CommitReply> {
    match reply {
        Reply::List(_) => match reply.into_ints()?[..] {
            [subscribers, at] => {
                let subscribers = u64::try_from(subscribers).ok();
                Ok(CommitReply::Committed { subscribers, at: at.unsigned_abs() })
            }
            _ => Err(rules::unexpected_list()),
        },
        reply => reply.into_int().map(|_| CommitReply::NotHeld),
    }
}

/// Returns the call that reads the result.
pub(crate) fn look(name: &Name) -> Call {
    Call::on_key(b"HMGET", name.result_key().as_bytes(), &[b"at", b"token", b"value"])
}

/// Reads a result; `None` if there is none.
pub(crate) fn read_result(reply: Reply) -> Result<Option<OnceResult>> {
    let parts = reply.into_list()?;
    let [at, token, value] = &parts[..] else { return Err(rules::unexpected_list()) };
    let number = |part: &Reply| std::str::from_utf8(part.text()?).ok()?.parse().ok();
    let value = value.text().map(<[u8]>::to_vec);
    Ok(number(at).zip(number(token)).zip(value).map(|((at, token), value)| OnceResult {
        at,
        token,
        value,
    }))
}

impl KindRules for OnceWork {
    fn kind(&self) -> Kind {
        Kind::Once
    }

    /// Each caller asks for itself: it may get the result, whoever else waits.
    fn queueing(&self) -> Queueing {
        Queueing::None
    }

    /// After a hold there is a result, and nobody comes back for the work.
    fn yields(&self) -> bool {
        false
    }

    fn re_enters(&self) -> bool {
        false
    }

    fn has_tokens(&self) -> bool {
        true
    }

    fn acquire(&self, args: &AcquireArgs<'_>) -> Call {
        let [lock, counter] = fenced::keys(args.name);
        let keys = [lock, counter, args.name.result_key().as_bytes()];
        fenced::take(&script::ONCE_ACQUIRE, keys, args)
    }

    fn read_acquire(&self, reply: Reply) -> Result<AcquireReply> {
        match reply {
            Reply::List(_) => Ok(AcquireReply::Settled(reply)),
            reply => Fenced.read_acquire(reply),
        }
    }

    fn release(&self, name: &Name, owner: &Owner) -> Call {
        Plain.release(name, owner)
    }

    fn renewal(&self) -> &'static Script {
        Plain.renewal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(parts: &[&[u8]]) -> Reply {
        Reply::List(parts.iter().map(|part| Reply::Text(part.to_vec())).collect())
    }

    #[test]
    fn an_acquire_is_granted_refused_or_settled() {
        let read = |reply| OnceWork.read_acquire(reply).expect("a good reply");
        assert_eq!(read(Reply::Int(-7)), AcquireReply::Granted(7));
        let left = Some(Duration::from_millis(5));
        assert_eq!(read(Reply::Int(5)), AcquireReply::Refused { left, queued: None });
        let result = texts(&[b"1", b"2", b""]);
        assert_eq!(read(result.clone()), AcquireReply::Settled(result));
    }

    #[test]
    fn a_result_has_a_time_a_token_and_any_bytes() {
        let read = |reply| read_result(reply).expect("a good reply");
        let result = OnceResult { at: 5, token: 7, value: vec![0xff, 0] };
        assert_eq!(read(texts(&[b"5", b"7", b"\xff\0"])), Some(result));
        assert_eq!(read(Reply::List(vec![Reply::Nil; 3])), None);
        assert_eq!(read(texts(&[b"x", b"7", b""])), None);
        assert!(read_result(texts(&[b"5"])).is_err() && read_result(Reply::Int(1)).is_err());
    }

    #[test]
    fn a_commit_tells_its_time() {
        let list = |numbers: &[i64]| {
            Reply::List(numbers.iter().map(|number| Reply::Int(*number)).collect())
        };
        let committed = |subscribers| CommitReply::Committed { subscribers, at: 9 };
        assert_eq!(read_commit(list(&[2, 9])), Ok(committed(Some(2))));
        assert_eq!(read_commit(list(&[-1, 9])), Ok(committed(None)));
        assert_eq!(read_commit(Reply::Int(-1)), Ok(CommitReply::NotHeld));
        assert!(read_commit(list(&[2])).is_err() && read_commit(texts(&[])).is_err());
    }
}
