//! [`History`]: the last known state of one lock, and its comparison with the next look.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use super::event::{Happening, LockEvent};
use super::snapshot::{Caller, LockSnapshot};

/// The time after which a free lock has no waiting callers, in seconds.
///
/// Looks may see the lock free while it passes to the next waiter, which has to wake up.
const WAKE_UP: f64 = 2.0;

/// The precision of the remaining lease that a server tells, in seconds.
///
/// In the last millisecond of a lease, a look sees no holder although the known end is to come.
const PRECISION: f64 = 0.001;

/// The most clients whose counts of holds are kept.
///
/// A lock that is never free for long has new clients for ever.
const CLIENTS_KEPT: usize = 4096;

/// The times that bound the events between two looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Whether there was no look before.
    pub(super) is_first: bool,
    /// The beginning of the look before.
    pub(super) earliest: f64,
    /// The beginning of this look.
    pub(super) begun: f64,
    /// The end of this look.
    pub(super) ended: f64,
}

/// The last known state of one lock.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The number of the last look that saw the lock held.
    pub(super) last_seen: u64,
    name: String,
    kind: String,
    holds: VecDeque<Span>,
    /// The former holder whose minimum keeps the lock taken.
    former_holder: Option<Caller>,
    queue: VecDeque<Span>,
    processes: u64,
    /// The time of the first of the looks that saw the lock free, since it was held.
    free_since: Option<f64>,
    /// The number of holds that each client has had so far.
    counts: BTreeMap<String, u64>,
    /// The last token of the name, for kinds with tokens.
    token: Option<u64>,
}

/// A hold or a wait that is not over.
#[derive(Debug)]
struct Span {
    caller: Caller,
    start: f64,
    /// The end of the lease, as far as it was known at the last look.
    lease_end: Option<f64>,
}

/// The changes of the holders between two looks.
#[derive(Default)]
struct Changes<'a> {
    ended: VecDeque<Span>,
    handed_off: Vec<(Span, &'a Caller)>,
    begun: Vec<&'a Caller>,
    /// The holders whose holds linger since this look.
    idle: Vec<&'a Caller>,
    identified: Vec<LockEvent>,
}

impl Span {
    fn new(caller: &Caller, start: f64, moment: &Moment) -> Span {
        let lease_end = moment.lease_end(caller);
        Span { caller: caller.clone(), start, lease_end }
    }
}

impl Moment {
    fn lease_end(&self, caller: &Caller) -> Option<f64> {
        Some(self.begun + caller.remaining?)
    }

    /// Returns the time at which a hold began that this look sees for the first time.
    fn start_of_hold(&self, caller: &Caller) -> f64 {
        match (self.is_first, caller.since) {
            (true, since) => since.unwrap_or(self.begun).min(self.begun),
            _ => self.clamp(caller.told_since().unwrap_or(self.begun)),
        }
    }

    /// Returns the time at which a wait began that this look sees for the first time.
    fn start_of_wait(&self, caller: &Caller) -> f64 {
        let since = caller.since.unwrap_or(self.begun);
        if self.is_first { since.min(self.begun) } else { self.clamp(since) }
    }

    fn clamp(&self, time: f64) -> f64 {
        time.min(self.ended).max(self.earliest)
    }

    /// Returns the time of the event for a hold or wait that began at `start`.
    fn at(&self, start: f64) -> f64 {
        if self.is_first { self.begun } else { start }
    }
}

impl History {
    pub(super) fn new(name: &str) -> History {
        History { name: name.to_owned(), ..History::default() }
    }

    /// Returns whether somebody holds the lock or waits for it, as far as is known.
    pub(super) fn is_active(&self) -> bool {
        !self.holds.is_empty() || !self.queue.is_empty() || self.processes > 0
    }

    /// Returns the events since the last look. `None`: the lock is free.
    pub(super) fn compare(
        &mut self,
        lock: Option<&LockSnapshot>,
        moment: &Moment,
    ) -> Vec<LockEvent> {
        let holder = self.holder();
        let mut events = self.holds(lock, moment);
        let former_holder = lock.and_then(|lock| lock.former_holder.as_ref());
        events.extend(self.minimum(former_holder, moment));
        match lock {
            Some(lock) => {
                self.free_since = None;
                // Nobody else got the lock in between: one holder kept it, or no token is new.
                let is_kept = lock.is_exclusive() && holder.is_some() && holder == self.holder();
                let has_no_grant = lock.token.is_some() && lock.token == self.token;
                self.token = lock.token;
                let end = if is_kept || has_no_grant { Happening::Left } else { Happening::Gone };
                events.extend(self.waits(&lock.queue, (end, moment.begun), moment));
                events.extend(self.processes(lock.processes, moment.begun));
            }
            None => events.extend(self.waits_for_a_free_lock(moment)),
        }
        if moment.is_first {
            for event in &mut events {
                event.present = true;
            }
        }
        events
    }

    /// Returns the owner of the first hold.
    fn holder(&self) -> Option<String> {
        self.holds.front().map(|hold| hold.caller.owner.clone())
    }

    /// Returns the ends and the beginnings of holds.
    fn holds(&mut self, lock: Option<&LockSnapshot>, moment: &Moment) -> Vec<LockEvent> {
        let Changes { identified: mut events, ended, handed_off, begun, idle } =
            self.changes(lock, moment);
        // The next holder of an exclusive lock tells when the one before has lost it at the latest.
        let is_passed_on = self.holds.is_empty() && ended.len() == 1;
        let starts = begun.iter().map(|caller| moment.start_of_hold(caller));
        let limit = starts.filter(|_| is_passed_on).fold(moment.ended, f64::min);
        events.extend(ended.iter().map(|it| self.end(it, limit, moment)));
        if let Some(lock) = lock {
            self.kind.clone_from(&lock.kind);
        }
        events.extend(handed_off.into_iter().flat_map(|it| self.hand_off(&it.0, it.1, moment)));
        for caller in &begun {
            let of_client = |other: &&&Caller| other.client_id == caller.client_id;
            let siblings = begun.iter().filter(of_client).count() as u64 - 1;
            events.push(self.begin(caller, siblings, moment));
        }
        events.extend(idle.into_iter().map(|it| self.event(Happening::Idle, moment.begun, it)));
        // Too many counts: those of clients without a hold are forgotten.
        if self.counts.len() > CLIENTS_KEPT {
            let holders = self.holds.iter().filter_map(|hold| hold.caller.client_id.as_ref());
            let holders: BTreeSet<&String> = holders.collect();
            self.counts.retain(|client, _| holders.contains(client));
        }
        events
    }

    /// Returns the event for a lock that a minimum keeps taken since this look.
    fn minimum(&mut self, former: Option<&Caller>, moment: &Moment) -> Option<LockEvent> {
        let before = mem::replace(&mut self.former_holder, former.cloned());
        let former = former.filter(|it| before.is_none_or(|before| !before.is(it)))?;
        let event = self.event(Happening::Kept, moment.begun, former);
        Some(LockEvent { until: moment.lease_end(former), ..event })
    }

    /// Compares the holders with the known holds, and keeps those holds that go on.
    fn changes<'a>(&mut self, lock: Option<&'a LockSnapshot>, moment: &Moment) -> Changes<'a> {
        let mut changes = Changes { ended: mem::take(&mut self.holds), ..Changes::default() };
        let is_exclusive = lock.is_some_and(LockSnapshot::is_exclusive);
        for caller in lock.map_or(&[][..], |lock| &lock.holders) {
            let before = take_same(&mut changes.ended, caller);
            let was_idle = before.as_ref().is_some_and(|span| span.caller.is_idle);
            if caller.is_idle && !was_idle {
                changes.idle.push(caller);
            }
            match before {
                Some(span) if caller.is_handed_off(&span.caller, is_exclusive) => {
                    changes.handed_off.push((span, caller));
                }
                Some(span) => {
                    let (span, identified) = self.go_on(span, caller, moment);
                    self.holds.push_back(span);
                    changes.identified.extend(identified);
                }
                None => changes.begun.push(caller),
            }
        }
        changes
    }

    /// Updates a hold or a wait that goes on. Returns an event if its process has become known.
    fn go_on(&self, mut span: Span, caller: &Caller, moment: &Moment) -> (Span, Option<LockEvent>) {
        let was_known = span.caller.pid.is_some();
        span.caller.update(caller);
        span.lease_end = moment.lease_end(caller);
        let is_news = !was_known && span.caller.pid.is_some();
        let event = || self.event(Happening::Identified, moment.begun, caller);
        (span, is_news.then(event))
    }

    /// Returns the event for a hold that has ended, not after `limit`.
    fn end(&self, span: &Span, limit: f64, moment: &Moment) -> LockEvent {
        let (event, at) = match span.lease_end.filter(|end| *end <= limit + PRECISION) {
            Some(end) => (Happening::Expired, end.min(limit).max(moment.earliest)),
            None => (Happening::Released, limit.min(moment.begun)),
        };
        LockEvent { held: Some((at - span.start).max(0.0)), ..self.event(event, at, &span.caller) }
    }

    /// Returns the events for a hold that passed to another thread of its process.
    fn hand_off(&mut self, span: &Span, caller: &Caller, moment: &Moment) -> [LockEvent; 2] {
        let at = moment.start_of_hold(caller);
        let held = Some((at - span.start).max(0.0));
        let released = self.event(Happening::Released, at, &span.caller);
        let acquired = LockEvent { handed_off: true, ..self.begin(caller, 0, moment) };
        [LockEvent { held, handed_off: true, ..released }, acquired]
    }

    /// Notes a hold, and returns its event. `siblings`: the other new holds of its client.
    fn begin(&mut self, caller: &Caller, siblings: u64, moment: &Moment) -> LockEvent {
        let start = moment.start_of_hold(caller);
        let waiter = self.queue.iter().find(|waiter| waiter.caller.is(caller));
        let waited = waiter.map(|waiter| (start - waiter.start).max(0.0));
        let holds = self.count(caller, siblings);
        self.holds.push_back(Span::new(caller, start, moment));
        let event = self.event(Happening::Acquired, moment.at(start), caller);
        LockEvent { since: caller.since, waited, holds, ..event }
    }

    /// Returns the number of holds of the client since its last hold that a look saw.
    ///
    /// The first of several new holds of a client accounts for those that no look saw.
    fn count(&mut self, caller: &Caller, siblings: u64) -> Option<u64> {
        let (client, now) = (caller.client_id.clone()?, caller.acquired?);
        let before = self.counts.insert(client, now)?;
        Some(now.saturating_sub(before + siblings).max(1))
    }

    /// Returns the ends of all waits if the lock stays free.
    fn waits_for_a_free_lock(&mut self, moment: &Moment) -> Vec<LockEvent> {
        let since = *self.free_since.get_or_insert(moment.begun);
        if moment.begun - since < WAKE_UP {
            return Vec::new();
        }
        let left = self.waits(&[], (Happening::Gone, since), moment);
        left.into_iter().chain(self.processes(0, since)).collect()
    }

    /// Returns the events of the queue. `end` is that of the callers that are no longer in it.
    fn waits(
        &mut self,
        queue: &[Caller],
        (end, left_at): (Happening, f64),
        moment: &Moment,
    ) -> Vec<LockEvent> {
        let mut before = mem::take(&mut self.queue);
        let mut events = Vec::new();
        for caller in queue {
            let (span, event) = match take_same(&mut before, caller) {
                Some(span) => self.go_on(span, caller, moment),
                None => {
                    let start = moment.start_of_wait(caller);
                    let event = self.event(Happening::Waiting, moment.at(start), caller);
                    let event = LockEvent { since: caller.since, ..event };
                    (Span::new(caller, start, moment), Some(event))
                }
            };
            self.queue.push_back(span);
            events.extend(event);
        }
        let is_held = |waiter: &Span| self.holds.iter().any(|it| it.caller.is(&waiter.caller));
        for waiter in before.iter().filter(|waiter| !is_held(waiter)) {
            let waited = Some((left_at - waiter.start).max(0.0));
            let event = self.event(end, left_at, &waiter.caller);
            events.push(LockEvent { waited, ..event });
        }
        events
    }

    /// Returns the event for a changed number of waiting processes.
    fn processes(&mut self, processes: u64, at: f64) -> Option<LockEvent> {
        let before = mem::replace(&mut self.processes, processes);
        let event = if processes > before { Happening::Waiting } else { Happening::Left };
        let event = self.event(event, at, &Caller::default());
        (processes != before).then_some(LockEvent {
            owner: None,
            processes: Some(processes),
            ..event
        })
    }

    fn event(&self, event: Happening, at: f64, caller: &Caller) -> LockEvent {
        LockEvent {
            at,
            name: self.name.clone(),
            event,
            kind: Some(self.kind.clone()),
            owner: Some(caller.owner.clone()),
            client_id: caller.client_id.clone(),
            host: caller.host.clone(),
            pid: caller.pid,
            program: caller.program.clone(),
            label: caller.label.clone(),
            thread: caller.thread.clone(),
            thread_number: caller.thread_number,
            ..LockEvent::default()
        }
    }
}

/// Removes and returns the span of this caller.
///
/// Fast if the callers are in the order of the look before, as in a queue.
fn take_same(spans: &mut VecDeque<Span>, caller: &Caller) -> Option<Span> {
    let position = spans.iter().position(|span| span.caller.is(caller))?;
    spans.remove(position)
}
