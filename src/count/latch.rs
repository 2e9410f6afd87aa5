//! The wait for a latch to open.
//!
//! A latch is open if its count is 0 or less, or missing. A script that sets a count begins a
//! *round*, and stores a number of the round beside the count. So a caller that waits through a
//! round returns even if it looks only in a later round. Messages alone never end a wait: a late
//! message may belong to an earlier round. A round that only Redisson has set has no number.

use crate::acquire::MAX_OUTDATED_REPLIES;
use crate::command::call::Call;
use crate::command::reply::{self, Reply};
use crate::command::script;
use crate::count::wait::{self, Answer, Question};
use crate::count::{CountCall, read_count};
use crate::error::{Error, Result};
use crate::kind::rules::ListensTo;
use crate::pool::Target;
use crate::pool::request::CallReply;

/// The wait of one call for a latch.
#[derive(Default)]
struct LatchQuestion {
    /// The number of the round of the first answer, empty for a round without a number.
    first_round: Option<Vec<u8>>,
}

impl CountCall<'_> {
    /// Blocks until the latch opens. Returns `false` if the patience of the call ends first.
    pub(crate) fn wait_for_latch(&self) -> Result<bool> {
        wait::wait_for(self, LatchQuestion::default())
    }

    /// Reads count and round from the current server.
    fn look(&self) -> Result<CallReply> {
        let (router, name) = (&self.context.engine.router, self.context.local.name());
        for _ in 0..MAX_OUTDATED_REPLIES {
            let generation = router.generation();
            let keys = [name.key().as_bytes(), name.round_key().as_bytes()];
            let look = Call::script(&script::LATCH_LOOK, keys, []);
            let reply = router.call(look, Target::Any, &self.limit())?;
            if router.generation() == generation {
                return Ok(reply);
            }
        }
        Err(Error::outdated())
    }
}

impl Question for LatchQuestion {
    const LISTENS_TO: ListensTo = ListensTo::Latch;

    fn ask(&mut self, call: &CountCall<'_>) -> Result<Answer> {
        let CallReply { value, sent, .. } = call.look()?;
        let (count, round) = read_look(value)?;
        let first_round = self.first_round.get_or_insert_with(|| round.clone());
        // A round that had no number, or whose number has expired, may still be the same.
        let has_ended = !round.is_empty() && round != *first_round;
        Ok(Answer { is_met: count <= 0 || has_ended, sent })
    }
}

/// Reads a look at a latch: the count and the round.
fn read_look(reply: Reply) -> Result<(i64, Vec<u8>)> {
    let parts = reply.into_list()?;
    match <[Reply; 2]>::try_from(parts) {
        Ok([count, round]) => Ok((read_count(count)?, round.into_text()?)),
        Err(parts) => Err(reply::unexpected(&Reply::List(parts))),
    }
}
