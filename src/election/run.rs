//! [`Election::run`]: leads in term after term.

use std::time::Duration;

use super::Election;
use super::leadership::Leadership;
use crate::cancel::{CancelToken, Limit};
use crate::error::Result;
use crate::util::clock::doubled;

/// The first and the longest pause after a campaign that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Election {
    /// Campaigns, and runs a closure in each term, until a token is cancelled.
    ///
    /// Blocks until `stop` is cancelled, the client is closed, or an error ends the call. `lead`
    /// runs on the calling thread. It gets the term, and should return soon after the term is over:
    /// [`Leadership::is_held`], [`check`](Leadership::check) and
    /// [`wait_lost`](Leadership::wait_lost) tell. When `lead` returns, the call resigns, unless the
    /// term was lost, and campaigns again, behind the other candidates.
    ///
    /// # Stop
    /// A cancellation of `stop` ends a wait for a term within 100 ms. The candidate then leaves the
    /// queue. In a term, a cancellation makes [`is_held`](Leadership::is_held) false, and the call
    /// resigns as soon as `lead` has returned. In both cases the call waits for the confirmation of
    /// the server before it returns, for two [response
    /// time-outs](crate::Builder::response_timeout) at most. So the process may end after this
    /// call: the next candidate does not have to wait for the end of a lease. The token of
    /// [`with_cancel`](Election::with_cancel) has no effect.
    ///
    /// A panic in `lead` resigns, as the drop of a [`Leadership`] does, and ends the call.
    ///
    /// # Errors
    /// [`is_retryable`](crate::Error::is_retryable) and [`is_lost`](crate::Error::is_lost) do not
    /// end the call: a failed campaign is logged, and the next one begins after a pause of 50 ms to
    /// 5 s. A lost term is followed by the next campaign at once. All other errors end the call:
    /// - [`is_closed`](crate::Error::is_closed) if the client is closed.
    /// - [`is_configuration`](crate::Error::is_configuration),
    ///   [`is_invalid_name`](crate::Error::is_invalid_name),
    ///   [`is_deadlock`](crate::Error::is_deadlock) as for [`campaign`](Election::campaign), or
    ///   [`is_server`](crate::Error::is_server) with an error that is not retryable, such as
    ///   `NOPERM`.
    /// - After a cancellation of `stop`, the error of [`Leadership::resign`] if the server did not
    ///   confirm the last resignation. The next candidate may then have to wait for the end of the
    ///   lease.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn one_step(token: u64) {}
    /// # let client = leasehold::Client::open("redis://127.0.0.1/")?;
    /// let stop = leasehold::CancelToken::new();   // cancelled at the end of the program
    /// client.election("scheduler").with_value("host-1:8080").run(&stop, |term| {
    ///     while !term.wait_lost(Duration::from_secs(1)) {
    ///         one_step(term.token());
    ///     }
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn run(&self, stop: &CancelToken, mut lead: impl FnMut(&Leadership)) -> Result<()> {
        let candidate = self.clone().with_cancel(stop);
        let outcome = candidate.lead_until(stop, &mut lead);
        // The wait that the token ended may have a place in the queue, or a grant, to give back.
        self.shared.context()?.engine.flush();
        outcome
    }

    /// Leads in term after term, until the token is cancelled or an error is final.
    fn lead_until(&self, stop: &CancelToken, lead: &mut dyn FnMut(&Leadership)) -> Result<()> {
        let mut failures = 0;
        loop {
            match self.lead_once(stop, lead) {
                outcome if stop.is_cancelled() => return outcome,
                Ok(()) => failures = 0,
                Err(error) if error.is_retryable() || error.is_lost() => {
                    let limit = Limit::none().or_cancelled(Some(stop));
                    let span = doubled(FIRST_PAUSE, failures, LONGEST_PAUSE);
                    self.pause_after(&error, span, limit)?;
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a term, leads, and resigns unless the term was lost.
    fn lead_once(&self, stop: &CancelToken, lead: &mut dyn FnMut(&Leadership)) -> Result<()> {
        let term = match self.campaign() {
            Err(_) if stop.is_cancelled() => return Ok(()),
            outcome => outcome?.until(stop),
        };
        lead(&term);
        match term.resign() {
            Err(error) if error.is_lost() => Ok(()),
            outcome => outcome,
        }
    }
}
