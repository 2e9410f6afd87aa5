//! [`record`]: events become holds and waits with a start and an end.

use std::collections::HashMap;
use std::mem;

use crate::observe::event::{Happening, LockEvent};
use crate::timeline::identity::Directory;
use crate::timeline::spans::{
    Activity, Actor, Level, Mark, Outage, Recorded, Span, Unseen, Window,
};

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
        seen: HashMap::new(),
    };
    for name in locks {
        recorder.lock(name);
    }
    for event in sorted {
        recorder.add(event);
    }
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
    /// The last moment at which a look saw a hold of this lock and client, or its end.
    seen: HashMap<(usize, String), f64>,
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
            Happening::Left | Happening::Gone => self.end_wait(event),
            Happening::Released => self.end_hold(event, Activity::Hold),
            Happening::Kept => self.keep(event),
            Happening::Expired => self.end_hold(event, Activity::LostHold),
            Happening::Lost => self.lose(event),
            // The directory has read the facts of a process. A hold that lingers excludes others.
            Happening::Identified | Happening::Idle => {}
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
        let holds = event.holds.unwrap_or_default().saturating_sub(1);
        self.recorded.unseen += holds;
        let (actor, (lock, _)) = self.locate(event);
        let from = self.see(event).map(|from| from.max(self.window.from));
        let until = event.at.min(self.window.until);
        if let Some(from) = from.filter(|from| holds > 0 && *from < until) {
            self.recorded.actors[actor].unseen.push(Unseen { lock, from, until, holds });
        }
        self.end_wait(event);
        self.begin(event, Activity::Hold);
    }

    /// Notes that a look saw the client of a hold. Returns the last such moment before.
    fn see(&mut self, event: &LockEvent) -> Option<f64> {
        let client = self.directory.identity(event).client?;
        let lock = self.lock(&event.name);
        self.seen.insert((lock, client), event.at)
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
        self.see(event);
        let (actor, key) = self.locate(event);
        let from = event.held.map_or(f64::NEG_INFINITY, |held| event.at - held);
        let begun_before = from < self.window.from;
        let unseen = Open { actor, lock: key.0, activity, from, begun_before };
        let open = self.open.remove(&key).unwrap_or(unseen);
        self.end(&open, activity, event.at, false);
    }

    /// Notes the minimum of a hold that has ended, which ends by itself.
    fn keep(&mut self, event: &LockEvent) {
        let (actor, (lock, _)) = self.locate(event);
        let activity = Activity::Kept;
        let open = Open { actor, lock, activity, from: event.at, begun_before: event.present };
        let until = event.until.unwrap_or(event.at);
        self.end(&open, activity, until, until > self.window.until);
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
        if at < window.from || open.from > window.until {
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

#[cfg(test)]
mod tests {
    use Happening::{
        Acquired, Expired, Left, Lost, Outage as NoAnswer, Recovered, Released, Waiting,
    };

    use super::*;
    use crate::timeline::fixtures::{event, of_thread};

    /// Returns the spans of the events between 0 and 10 seconds as
    /// `(activity, from, until, begun_before, unfinished)`.
    fn spans(events: &[LockEvent]) -> Vec<(Activity, f64, f64, bool, bool)> {
        let recorded = record(events, Window { from: 0.0, until: 10.0 }, &[]);
        let spans = recorded.actors.iter().flat_map(|actor| &actor.spans);
        spans.map(|it| (it.activity, it.from, it.until, it.begun_before, it.unfinished)).collect()
    }

    #[test]
    fn a_wait_ends_with_the_hold_and_the_hold_with_the_release() {
        // The order of the events does not matter.
        let events =
            [event(5.0, Released, "c:1"), event(1.0, Waiting, "c:1"), event(2.0, Acquired, "c:1")];
        let expected =
            [(Activity::Wait, 1.0, 2.0, false, false), (Activity::Hold, 2.0, 5.0, false, false)];
        assert_eq!(spans(&events), expected);
    }

    #[test]
    fn a_wait_without_the_lock_ends_when_its_caller_leaves() {
        let events = [event(1.0, Waiting, "c:1"), event(4.0, Left, "c:1")];
        assert_eq!(spans(&events), [(Activity::Wait, 1.0, 4.0, false, false)]);
    }

    #[test]
    fn an_expired_hold_is_lost_and_its_holder_may_notice_later() {
        let acquired = event(1.0, Acquired, "c:1");
        let lost = (Activity::LostHold, 1.0, 3.0, false, false);
        let events = [acquired.clone(), event(3.0, Expired, "c:1"), event(4.0, Lost, "c:1")];
        assert_eq!(spans(&events), [lost]);
        let recorded = record(&events, Window { from: 0.0, until: 10.0 }, &[]);
        assert_eq!(recorded.actors[0].noticed, [4.0]);
        assert_eq!(spans(&[acquired, event(3.0, Lost, "c:1")]), [lost]);
    }

    #[test]
    fn spans_reach_over_the_ends_of_the_observation() {
        let present = LockEvent { present: true, ..event(0.0, Acquired, "c:1") };
        let events = [
            present,
            event(1.0, Released, "c:1"),
            LockEvent { held: Some(0.5), ..event(2.0, Released, "c:2") },
            event(3.0, Released, "c:3"),
            event(8.0, Acquired, "c:4"),
            event(9.0, Waiting, "c:5"),
        ];
        let expected = [
            (Activity::Hold, 0.0, 1.0, true, false),
            (Activity::Hold, 0.0, 3.0, true, false),
            (Activity::Hold, 1.5, 2.0, false, false),
            (Activity::Hold, 8.0, 10.0, false, true),
            (Activity::Wait, 9.0, 10.0, false, true),
        ];
        assert_eq!(spans(&events), expected);
    }

    #[test]
    fn a_span_outside_the_window_is_cut_or_left_out() {
        let events = [
            event(-3.0, Acquired, "c:1"),
            event(-2.0, Released, "c:1"),
            event(-1.0, Acquired, "c:2"),
            event(1.0, Released, "c:2"),
        ];
        assert_eq!(spans(&events), [(Activity::Hold, 0.0, 1.0, true, false)]);
    }

    #[test]
    fn unseen_holds_are_between_two_sights_of_their_client() {
        let more = |at, owner| LockEvent { holds: Some(8), ..event(at, Acquired, owner) };
        let events = [
            event(1.0, Acquired, "c:1"),
            event(2.0, Released, "c:1"),
            event(3.0, Acquired, "d:1"),
            more(4.0, "c:2"),
            more(12.0, "c:3"),
        ];
        let recorded = record(&events, Window { from: 0.0, until: 10.0 }, &[]);
        let of_client = |from, until| Unseen { lock: 0, from, until, holds: 7 };
        let found: Vec<_> = recorded.actors.iter().flat_map(|it| it.unseen.clone()).collect();
        assert_eq!(found, [of_client(2.0, 4.0), of_client(4.0, 10.0)]);
    }

    #[test]
    fn a_hand_off_goes_on_in_the_row_of_the_next_thread() {
        let of = |at, event, thread: &str| LockEvent {
            owner: Some("c:1".into()),
            ..of_thread(at, event, 7, thread)
        };
        let events = [
            of(1.0, Acquired, "x"),
            of(2.0, Released, "x"),
            of(2.0, Acquired, "y"),
            of(3.0, Released, "y"),
        ];
        let recorded = record(&events, Window { from: 0.0, until: 10.0 }, &[]);
        let reach = |actor: &Actor| (actor.spans[0].from, actor.spans[0].until);
        assert_eq!(recorded.actors.iter().map(reach).collect::<Vec<_>>(), [(1.0, 2.0), (2.0, 3.0)]);
    }

    #[test]
    fn the_wait_of_an_unknown_thread_is_that_of_the_later_holder() {
        let mut waiting = of_thread(1.0, Waiting, 7, "x");
        waiting.thread = None;
        let events = [waiting, of_thread(2.0, Acquired, 7, "x"), of_thread(3.0, Released, 7, "x")];
        let recorded = record(&events, Window { from: 0.0, until: 10.0 }, &[]);
        assert_eq!(recorded.actors.len(), 1);
        assert_eq!(recorded.actors[0].spans.len(), 2);
    }

    #[test]
    fn waiting_processes_are_levels_and_unseen_holds_are_counted() {
        let level = |at, event, processes| LockEvent {
            at,
            event,
            name: "a".into(),
            processes: Some(processes),
            ..LockEvent::default()
        };
        let unseen = LockEvent { holds: Some(4), ..event(1.0, Acquired, "c:1") };
        let events = [unseen, level(1.0, Waiting, 1), level(2.0, Waiting, 3), level(4.0, Left, 0)];
        let recorded = record(&events, Window { from: 0.0, until: 10.0 }, &[]);
        let levels = recorded.levels[&0].iter().map(|it| (it.from, it.until, it.processes));
        assert_eq!(levels.collect::<Vec<_>>(), [(1.0, 2.0, 1), (2.0, 4.0, 3), (4.0, 10.0, 0)]);
        assert_eq!(recorded.unseen, 3);
        assert_eq!(recorded.actors[0].unseen, [], "since when is unknown");
    }

    #[test]
    fn an_outage_of_several_locks_is_one() {
        let on = |name: &str, at, event| LockEvent {
            at,
            event,
            name: name.into(),
            ..LockEvent::default()
        };
        let events = [
            on("a", 1.0, NoAnswer),
            on("b", 1.0, NoAnswer),
            on("a", 2.0, Recovered),
            on("b", 2.0, Recovered),
            on("a", 8.0, NoAnswer),
        ];
        let recorded = record(&events, Window { from: 0.0, until: 10.0 }, &[]);
        let times = recorded.outages.iter().map(|it| (it.from, it.until));
        assert_eq!(times.collect::<Vec<_>>(), [(1.0, 2.0), (8.0, 10.0)]);
    }
}
