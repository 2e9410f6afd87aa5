//! The record of an election's leader: a hash in Redis beside the lock of the election.
//!
//! The key is `leasehold_leader:{<name>}`. The fields are `owner`, `token` and `value`. The record
//! counts only while its owner field holds the lock, so a record of an earlier term does no harm.
//! The observers of an election subscribe to `leasehold_election:{<name>}`. A message there means
//! that the leader may have changed, whatever its payload is.

use std::time::Duration;

use crate::command::name::Name;
use crate::command::owner::Owner;
use crate::command::script;
use crate::error::Result;
use crate::transport::call::{Call, Digits};
use crate::transport::reply::{self, Reply};

/// The record of a leader, and the remaining lease of its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaderRecord {
    pub(crate) owner: String,
    pub(crate) token: u64,
    pub(crate) value: String,
    /// `None` without an expiry.
    pub(crate) left: Option<Duration>,
}

/// Returns the call that writes the record, if the owner holds the lock, and keeps the record for
/// `lifetime`. [`is_announced`] reads its reply.
pub(crate) fn announcement(
    name: &Name,
    owner: &Owner,
    token: u64,
    value: &str,
    lifetime: Duration,
) -> Call {
    let (record, channel) = (name.leader_key(), name.election_channel());
    let token = Digits::new(token);
    let lifetime = Digits::of_millis(lifetime);
    let keys = [name.key().as_bytes(), record.as_bytes()];
    let args = [owner.as_bytes(), token.as_bytes(), value.as_bytes(), lifetime.as_bytes()];
    let args = args.into_iter().chain([channel.as_bytes()]);
    Call::script(&script::LEADER_ANNOUNCE, keys, args)
}

/// Returns whether the record names the owner; `false` if the owner does not hold the lock.
pub(crate) fn is_announced(reply: Reply) -> Result<bool> {
    Ok(reply.into_int()? == 1)
}

/// Returns the call that reads the record; [`LeaderRecord::read`] reads its reply.
pub(crate) fn look(name: &Name) -> Call {
    let record = name.leader_key();
    Call::script(&script::LEADER_LOOK, [name.key().as_bytes(), record.as_bytes()], [])
}

impl LeaderRecord {
    /// Reads the reply to [`look`]; `None` without a leader.
    ///
    /// A record of another program may have any bytes. Bytes of a value that are not UTF-8 become
    /// replacement characters; a token that is no number becomes 0.
    pub(crate) fn read(reply: Reply) -> Result<Option<LeaderRecord>> {
        let parts = reply.into_list()?;
        if parts.is_empty() {
            return Ok(None);
        }
        let unexpected = |parts| reply::unexpected(&Reply::List(parts));
        let [owner, token, value, left] = <[Reply; 4]>::try_from(parts).map_err(unexpected)?;
        let text = |part: Reply| Ok(String::from_utf8_lossy(&part.into_text()?).into_owned());
        let left = u64::try_from(left.into_int()?).ok().map(Duration::from_millis);
        let token = text(token)?.parse().unwrap_or(0);
        Ok(Some(LeaderRecord { owner: text(owner)?, token, value: text(value)?, left }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &[u8]) -> Reply {
        Reply::Text(text.to_vec())
    }

    #[test]
    fn the_reply_to_a_look_has_four_parts_or_none() {
        assert_eq!(LeaderRecord::read(Reply::List(vec![])), Ok(None));
        let parts = vec![text(b"a:1"), text(b"7"), text(b"host"), Reply::Int(900)];
        let record = LeaderRecord::read(Reply::List(parts)).expect("a record").expect("a leader");
        assert_eq!((&*record.owner, record.token, &*record.value), ("a:1", 7, "host"));
        assert_eq!(record.left, Some(Duration::from_millis(900)));
        let odd = vec![text(b"a:1"), text(b"x"), text(b"\xff"), Reply::Int(-1)];
        let record = LeaderRecord::read(Reply::List(odd)).expect("a record").expect("a leader");
        assert_eq!((record.token, &*record.value, record.left), (0, "\u{fffd}", None));
        assert!(LeaderRecord::read(Reply::List(vec![text(b"a:1")])).is_err());
    }
}
