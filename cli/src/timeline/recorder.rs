//! [`record`]: events become holds and waits with a start and an end.

use std::collections::HashMap;
use std::mem;

use crate::observe::event::{Happening, LockEvent};
use crate::timeline::identity::Directory;
use crate::timeline::spans::{Activity, Actor, Level, Mark, Outage, Recorded, Span, Window};

/// Returns the content of the events. Their order matters only for equal times.
///
/// `locks` are the names of the first locks; the others follow in the order of their events.
pub(crate) fn record(events: &[LockEvent], window: Window, locks: &[String]) -> Recorded {
    let mut sorted: Vec<&LockEvent> = events.iter().collect();
    sorted.sort_by(|a, b| a.at.total_cmp(&b.at));
    let mut recorder = Recorder {
        directory: Directory::of(&sorted),
        window,
        recorded: Recorded::default(),
        locks: HashMap::new(),
        actors: HashMap::new(),
        open: HashMap::new(),
    };
    locks.iter().for_each(|name| _ = recorder.lock(name));
    sorted.into_iter().for_each(|event| recorder.add(event));
    recorder.finish()
}

/// A span without an end.
struct Open {
    actor: usize,
    lock: usize,
    activity: Activity,
    from: f64,
    begun_before: bool,
}

/// A hold or wait is known by its lock and its owner.
type OpenKey = (usize, String);

/// Makes spans of events in the order of their times.
struct Recorder {
    directory: Directory,
    window: Window,
    recorded: Recorded,
    locks: HashMap<String, usize>,
    actors: HashMap<String, usize>,
    open: HashMap<OpenKey, Open>,
}

impl Recorder {
    fn add(&mut self, event: &LockEvent) {
        match event.event {
            Happening::Mark => self.mark(event),
            Happening::Outage => self.begin_outage(event),
            Happening::Recovered => self.end_outage(event.at),
            Happening::Waiting | Happening::Left if event.processes.is_some() => self.level(event),
            Happening::Waiting => self.begin(event, Activity::Wait),
            Happening::Acquired => self.acquire(event),
            Happening::Left => self.end_wait(event),
            Happening::Released => self.end_hold(event, Activity::Hold),
            Happening::Expired => self.end_hold(event, Activity::LostHold),
            Happening::Lost => self.lose(event),
            // The directory has read its facts.
            Happening::Identified => {}
        }
    }

    fn mark(&mut self, event: &LockEvent) {
        let text = event.text.clone().unwrap_or_default();
        let (at, host, pid) = (event.at, event.host.clone(), event.pid);
        self.recorded.marks.push(Mark { at, text, host, pid });
    }

    /// Begins an outage, unless one is open: each lock has an event of its own.
    fn begin_outage(&mut self, event: &LockEvent) {
        let outages = &mut self.recorded.outages;
        if outages.last().is_none_or(|outage| outage.until.is_finite()) {
            let text = event.text.clone().unwrap_or_default();
            outages.push(Outage { from: event.at, until: f64::INFINITY, text });
        }
    }

    fn end_outage(&mut self, at: f64) {
        let open = self.recorded.outages.last_mut().filter(|outage| outage.until.is_infinite());
        if let Some(outage) = open {
            outage.until = at;
        }
    }

    /// Notes a changed number of waiting processes.
    fn level(&mut self, event: &LockEvent) {
        let lock = self.lock(&event.name);
        let levels = self.recorded.levels.entry(lock).or_default();
        let from = event.at.max(self.window.from);
        if let Some(last) = levels.last_mut() {
            last.until = from;
        }
        let processes = event.processes.unwrap_or_default();
        levels.push(Level { from, until: self.window.until, processes });
    }

    fn acquire(&mut self, event: &LockEvent) {
        self.recorded.unseen += event.holds.unwrap_or_default().saturating_sub(1);
        self.end_wait(event);
        self.begin(event, Activity::Hold);
    }

    /// Begins a span, unless one of this owner is open already.
    fn begin(&mut self, event: &LockEvent, activity: Activity) {
        let (actor, key) = self.locate(event);
        let (from, begun_before) = (event.at, event.present || event.at < self.window.from);
        let open = Open { actor, lock: key.0, activity, from, begun_before };
        self.open.entry(key).or_insert(open);
    }

    fn end_wait(&mut self, event: &LockEvent) {
        let (_, key) = self.locate(event);
        if self.open.get(&key).is_some_and(|open| open.activity == Activity::Wait)
            && let Some(open) = self.open.remove(&key)
        {
            self.end(&open, Activity::Wait, event.at, false);
        }
    }

    /// Ends a hold. If its beginning is unknown, it began `held` before, or before the window.
    fn end_hold(&mut self, event: &LockEvent, activity: Activity) {
        self.end_wait(event);
        let (actor, key) = self.locate(event);
        let from = event.held.map_or(f64::NEG_INFINITY, |held| event.at - held);
        let begun_before = from < self.window.from;
        let unseen = Open { actor, lock: key.0, activity, from, begun_before };
        let open = self.open.remove(&key).unwrap_or(unseen);
        self.end(&open, activity, event.at, false);
    }

    /// The holder noticed the loss: it ends the hold, unless the hold has ended before.
    fn lose(&mut self, event: &LockEvent) {
        let (actor, key) = self.locate(event);
        if self.open.get(&key).is_some_and(|open| open.activity == Activity::Hold) {
            self.end_hold(event, Activity::LostHold);
        } else {
            self.recorded.actors[actor].noticed.push(event.at);
        }
    }

    fn end(&mut self, open: &Open, activity: Activity, at: f64, unfinished: bool) {
        let window = self.window;
        if at < window.from {
            return;
        }
        self.recorded.actors[open.actor].spans.push(Span {
            lock: open.lock,
            activity,
            from: open.from.max(window.from),
            until: at.min(window.until),
            begun_before: open.begun_before,
            unfinished,
        });
    }

    /// Ends all that is still open, at the end of the window.
    fn finish(mut self) -> Recorded {
        for open in mem::take(&mut self.open).into_values() {
            self.end(&open, open.activity, self.window.until, true);
        }
        self.end_outage(self.window.until);
        for actor in &mut self.recorded.actors {
            actor.spans.sort_by(|a, b| a.from.total_cmp(&b.from).then(a.until.total_cmp(&b.until)));
        }
        self.recorded
    }

    /// Returns the number of the event's thread, and the key of its hold or wait.
    fn locate(&mut self, event: &LockEvent) -> (usize, OpenKey) {
        let identity = self.directory.identity(event);
        let (thread, number) = (&identity.thread, identity.thread_number);
        let key = format!("{:?} {thread:?} {number:?}", identity.key());
        let owner = event.owner.clone().unwrap_or_else(|| key.clone());
        let lock = self.lock(&event.name);
        let actors = &mut self.recorded.actors;
        let actor = *self.actors.entry(key).or_insert(actors.len());
        if actor == actors.len() {
            actors.push(Actor::default());
        }
        actors[actor].identity.add(&identity);
        (actor, (lock, owner))
    }

    /// Returns the number of the lock with this name.
    fn lock(&mut self, name: &str) -> usize {
        let locks = &mut self.recorded.locks;
        let lock = *self.locks.entry(name.to_owned()).or_insert(locks.len());
        if lock == locks.len() {
            locks.push(name.to_owned());
        }
        lock
    }
}
