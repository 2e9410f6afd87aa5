//! Joined calls: many acquires and releases as one script call.
//!
//! A script call costs the server about as much as the commands that the script runs. So
//! eight or more acquires and releases that stand next to each other in one write become one
//! call of the script that joins them; at most 32, because the server runs nothing else meanwhile.
//! Measured with 64 threads: 15.9 instead of 19.8 us of server time per lock and unlock, and
//! 1.2 times the throughput. With 8 threads, eight calls seldom stand together.
//!
//! Rules:
//! * The reply is a list with one reply per call, an error for a call that failed. Such a call may
//!   have run in part, so it is not sent again.
//! * If the server refuses the call as a whole (one of the keys is forbidden, or keys belong
//!   to different servers), each of its requests is sent again alone, and nothing more is
//!   joined on that connection.
//! * If the server does not know the script, the requests are sent again alone, and the
//!   script is loaded before the next write.
//! * A command that must not run twice ([`Call::once`]) is never joined. Nothing is joined
//!   for a cluster node: adjacent requests seldom concern one slot.

use std::collections::VecDeque;

use crate::transport::call::Call;
use crate::transport::pool::request::Request;
use crate::transport::reply::Reply;
use crate::transport::script::Script;

/// The fewest calls that are worth joining.
const MIN_JOINED: usize = if cfg!(all(test, leasehold_model)) { 2 } else { 8 };

/// The most calls in one joined call.
const MAX_JOINED: usize = 32;

/// How a request was joined, or may be joined, with its neighbours.
#[derive(Debug)]
pub(super) struct Joining {
    /// How many requests, starting with this one, were written as one command.
    pub(super) count: usize,
    /// The request must be written by itself.
    pub(super) alone: bool,
}

impl Default for Joining {
    fn default() -> Joining {
        Joining { count: 1, alone: false }
    }
}

/// Joins the calls of one connection.
#[derive(Debug, Default)]
pub(super) struct CallJoiner {
    enabled: bool,
    /// The script that has joined calls on this connection.
    script: Option<&'static Script>,
    script_missing: bool,
}

impl CallJoiner {
    /// Sets whether calls are joined on a new connection.
    pub(super) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Packs the requests from `first` on into one command; returns how many it covers.
    pub(super) fn pack(
        &mut self,
        requests: &mut VecDeque<Request>,
        first: usize,
        bytes: &mut Vec<u8>,
    ) -> usize {
        let call = &requests[first].call;
        let by = call.joined_by().filter(|_| self.enabled);
        let count = by.map_or(1, |by| joinable(by, requests, first));
        match by {
            Some(by) if count > 1 => {
                self.script = Some(by);
                let calls = requests.range(first..first + count).map(|it| &it.call);
                Call::join(by, calls, bytes);
            }
            _ => bytes.extend_from_slice(&call.bytes),
        }
        requests[first].joining.count = count;
        count
    }

    /// Splits the reply to `count` joined calls into one reply per call.
    ///
    /// Returns `None` if no call ran: each has to be sent again.
    pub(super) fn split(&mut self, count: usize, reply: Reply) -> Option<Vec<Reply>> {
        match reply {
            Reply::List(replies) if replies.len() == count => return Some(replies),
            reply if reply.is_refused("NOSCRIPT") => self.script_missing = true,
            _ => self.enabled = false,
        }
        None
    }

    /// Returns the script that joins calls, if it has to be loaded now.
    pub(super) fn take_missing_script(&mut self) -> Option<&'static Script> {
        self.script.filter(|_| std::mem::take(&mut self.script_missing))
    }

    /// Stops joining if the server refused to load the script for it.
    pub(super) fn load_was_refused(&mut self, script: &Script) {
        self.enabled &= self.script.is_none_or(|own| own.digest() != script.digest());
    }
}

/// How many requests from `first` on fit into one call of the script `by`.
fn joinable(by: &Script, requests: &VecDeque<Request>, first: usize) -> usize {
    let fits = |request: &&Request| {
        let joined_by = request.call.joined_by();
        joined_by.is_some_and(|script| std::ptr::eq(script, by)) && !request.joining.alone
    };
    match requests.range(first..).take(MAX_JOINED).take_while(fits).count() {
        few if few < MIN_JOINED => 1,
        count => count,
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use crate::command::script;
    use crate::error::Refusal;

    fn acquires(count: usize) -> VecDeque<Request> {
        let keys: [&[u8]; 1] = [b"key"];
        let args: [&[u8]; 2] = [b"1000", b"owner"];
        let acquire = || Call::script(&script::PLAIN_ACQUIRE, keys, args);
        (0..count).map(|_| Request::awaited(acquire()).0).collect()
    }

    fn enabled() -> CallJoiner {
        CallJoiner { enabled: true, script: Some(&script::CALL_MANY), script_missing: false }
    }

    /// The numbers of requests in each command.
    fn pack_all(joiner: &mut CallJoiner, mut requests: VecDeque<Request>) -> Vec<usize> {
        let (mut counts, mut first, mut bytes) = (Vec::new(), 0, Vec::new());
        while first < requests.len() {
            let count = joiner.pack(&mut requests, first, &mut bytes);
            assert_eq!(requests[first].joining.count, count);
            counts.push(count);
            first += count;
        }
        let commands = bytes.windows(9).filter(|text| text == b"\nEVALSHA\r").count();
        assert_eq!(commands, counts.len());
        counts
    }

    #[test]
    fn eight_to_thirty_two_adjacent_calls_become_one() {
        assert_eq!(pack_all(&mut enabled(), acquires(7)), [1; 7]);
        assert_eq!(pack_all(&mut enabled(), acquires(8)), [8]);
        assert_eq!(pack_all(&mut enabled(), acquires(42)), [32, 10]);
        assert_eq!(pack_all(&mut CallJoiner::default(), acquires(8)), [1; 8]);
    }

    #[test]
    fn calls_that_run_once_or_alone_are_not_joined() {
        let mut requests = acquires(20);
        requests[8].joining.alone = true;
        let once = requests.pop_back().expect("20 requests").call.once();
        requests.push_back(Request::awaited(once).0);
        assert_eq!(pack_all(&mut enabled(), requests), [8, 1, 10, 1]);
    }

    #[test]
    fn a_failed_call_gets_its_error_and_the_others_keep_their_replies() {
        let mut joiner = enabled();
        let error = Reply::Refused(Refusal::new("WRONGTYPE", ""));
        let replies = vec![Reply::Int(1), error, Reply::Int(3)];
        assert_eq!(joiner.split(3, Reply::List(replies.clone())), Some(replies));
        assert!(joiner.enabled && joiner.take_missing_script().is_none());
    }

    #[test]
    fn a_refused_call_ends_the_joining_on_its_connection() {
        let refused = |code| Reply::Refused(Refusal::new(code, ""));
        for reply in [refused("NOPERM"), Reply::Int(1), Reply::List(vec![Reply::Int(1)])] {
            let mut joiner = enabled();
            assert_eq!(joiner.split(2, reply), None);
            assert!(!joiner.enabled && joiner.take_missing_script().is_none());
        }
        let mut joiner = enabled();
        joiner.load_was_refused(&script::PLAIN_ACQUIRE);
        assert!(joiner.enabled);
        joiner.load_was_refused(&script::CALL_MANY);
        assert!(!joiner.enabled);
    }

    #[test]
    fn an_unknown_script_is_loaded_once() {
        let mut joiner = enabled();
        let unknown = Reply::Refused(Refusal::new("NOSCRIPT", ""));
        assert_eq!(joiner.split(2, unknown), None);
        assert!(joiner.enabled);
        let script = joiner.take_missing_script().map(|script| script.digest());
        assert_eq!(script, Some(script::CALL_MANY.digest()));
        assert!(joiner.take_missing_script().is_none());
    }
}
