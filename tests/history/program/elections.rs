//! Elections: candidates, leaders, readers and observers.
//!
//! A candidate campaigns once, or works in `run` for a while: then each term is an attempt of its
//! own. The value of a leader is a number that belongs to one call, so a check can compare the term
//! that a reader sees with the term of that call.

use super::acquire::{Acquired, AnyGuard, Call, until_cancelled, with_span};
use super::{Arguments, Sink, Thread, error_word, value};
use crate::kind::Kind;
use crate::record::{End, Event, Record, Request, Seen, Verb, millis};
use crate::system::channel::{Receiver, RecvTimeoutError};
use crate::system::{Nanos, now, thread};
use leasehold::{Client, Election, Leader, Leadership};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Percentage of turns at an election that only read the leader, and of those that work in `run`.
const LOOKS: u8 = 40;
const RUNS: u8 = 20;

/// The number of questions of a reader, one after the other.
const QUESTIONS: Range<u32> = 1..5;

/// An observer without messages looks for the end of the work once in this many checks of a holder.
/// A brief one leaves then.
const OBSERVED: u32 = 50;

fn candidate(client: &Client, request: &Request) -> Election {
    let election = client.election(&*request.lock).with_weight(request.weight);
    let election = with_span(election, request.renewed, Election::with_renewed_lease);
    election.with_value(request.value.to_string())
}

/// Wins an election.
pub(super) fn campaign(call: Call<'_>) -> leasehold::Result<Option<Acquired>> {
    let election = candidate(&call.clients[0], call.request);
    let term = call.make(
        || election.try_campaign(),
        |span| election.try_campaign_for(span),
        |deadline| election.try_campaign_until(deadline),
        |cancel| election.clone().with_cancel(cancel).campaign(),
    )?;
    Ok(term.map(|term| {
        let token = term.token();
        (AnyGuard::Sendable(Box::new(term)), token)
    }))
}

fn seen(leader: Option<Leader>) -> Event {
    Event::Seen(
        leader.map(|leader| Seen {
            token: leader.token(),
            value: leader.value().parse().unwrap_or(0),
        }),
    )
}

impl Thread<'_> {
    /// Reads the leader of an election, or works in `run`, at some of the turns.
    pub(super) fn only_looks_or_runs(&mut self) -> bool {
        let (turn, request) = (self.rng.u8(0..100), self.request(Kind::Election, false));
        if turn < LOOKS {
            let request = Request { verb: Verb::Look, max_wait: 0, ..request };
            if self.happens(self.arguments.work.asked) {
                self.glimpse(&request);
            }
            for _ in 0..self.rng.u32(QUESTIONS) {
                self.look(&request);
            }
        } else if turn < LOOKS + RUNS {
            let max_wait = request.max_wait.max(1);
            self.run(Request { verb: Verb::Lead, max_wait, cancelled: true, ..request });
        }
        turn < LOOKS + RUNS
    }

    /// Observes an election until the first message.
    fn glimpse(&self, request: &Request) {
        let attempt = self.asks(Request { verb: Verb::Observe, ..request.clone() });
        match self.clients[0].election(&*request.lock).observe() {
            Ok(receiver) => {
                if let Ok(leader) = receiver.recv_timeout(self.arguments.work.checked * OBSERVED) {
                    self.record(attempt, now(), seen(leader));
                }
                self.record(attempt, now(), Event::Done);
            }
            Err(error) => self.record(attempt, now(), Event::Failed(error_word(&error))),
        }
    }

    fn look(&self, request: &Request) {
        let attempt = self.asks(request.clone());
        match self.clients[0].election(&*request.lock).leader() {
            Ok(leader) => {
                self.record(attempt, now(), seen(leader));
                self.record(attempt, now(), Event::Done);
            }
            Err(error) => self.record(attempt, now(), Event::Failed(error_word(&error))),
        }
    }

    /// Works in `run` until a cancellation after the longest wait of the request.
    fn run(&mut self, request: Request) {
        let value = value(Kind::Election, self.next_attempt());
        let request = Request { value, ..request };
        let election = candidate(&self.clients[0], &request);
        let mut waiting = Some(self.asks(request.clone()));
        let span = Duration::from_millis(request.max_wait);
        let end = now() + millis(request.max_wait);
        let outcome = until_cancelled(span, |stop| {
            election.run(stop, |term| {
                let attempt = waiting.take().expect("a call waits until it is stopped");
                self.lead(attempt, &request, term);
                let max_wait = end.saturating_sub(now()) / millis(1);
                if !stop.is_cancelled() {
                    waiting = Some(self.asks(Request { max_wait, ..request.clone() }));
                }
            })
        });
        if let Some(attempt) = waiting {
            let event = match outcome {
                Ok(_) => Event::Refused,
                Err(error) => Event::Failed(error_word(&error)),
            };
            self.record(attempt, now(), event);
        }
    }

    /// Works as the leader for a while. The stop of `run` is no loss.
    fn lead(&mut self, attempt: u64, request: &Request, term: &Leadership) {
        let token = term.token();
        self.record(attempt, now(), Event::Granted { token });
        let end = now() + self.span().as_nanos() as Nanos;
        let is_held = || !term.check().is_err_and(|error| error.is_lost());
        self.use_hold(attempt, (Kind::Election, request), (&is_held, token), end);
        self.record(attempt, now(), Event::Ends);
        self.record(attempt, now(), Event::Ended(End::Dropped));
    }
}

/// Observes the first election until `stop`, with a client of its own.
///
/// The thread of an observer notices the end of its receiver late, but a closed client at once.
pub(super) fn observe(
    sink: Sink<'_>,
    arguments: &Arguments,
    attempts: &AtomicU64,
    stop: &AtomicBool,
) {
    let client = arguments.clients().remove(0);
    let request = Request::waiting(Kind::Election.lock(0), 0);
    let request = Request { verb: Verb::Observe, ..request };
    while !stop.load(Ordering::SeqCst) {
        let attempt = attempts.fetch_add(1, Ordering::SeqCst);
        let record = |event| sink(&Record { attempt, at: now(), event });
        record(Event::Asks(request.clone()));
        match client.election(&*request.lock).observe() {
            Ok(receiver) => {
                let interval = arguments.work.checked * OBSERVED;
                record(observe_until(stop, interval, &receiver, record));
            }
            Err(error) => record(Event::Failed(error_word(&error))),
        }
        thread::sleep(arguments.work.checked);
    }
    client.close();
}

/// Records messages until `stop`. Returns the last event.
fn observe_until(
    stop: &AtomicBool,
    interval: Duration,
    receiver: &Receiver<Option<Leader>>,
    record: impl Fn(Event),
) -> Event {
    while !stop.load(Ordering::SeqCst) {
        match receiver.recv_timeout(interval) {
            Ok(leader) => record(seen(leader)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Event::Failed("disconnected".to_owned()),
        }
    }
    Event::Done
}
