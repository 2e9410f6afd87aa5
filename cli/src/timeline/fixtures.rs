//! Events that tests make.

use crate::observe::event::{Happening, LockEvent};
use crate::timeline::rows::Timeline;
use crate::timeline::spans::Window;

/// Returns an event of the lock `a` at a time in seconds.
pub(crate) fn event(at: f64, event: Happening, owner: &str) -> LockEvent {
    LockEvent { at, event, name: "a".into(), owner: Some(owner.into()), ..LockEvent::default() }
}

/// Returns an event of a known thread.
pub(crate) fn of_thread(at: f64, happening: Happening, pid: u32, thread: &str) -> LockEvent {
    LockEvent {
        host: Some("host".into()),
        pid: Some(pid),
        program: Some("program".into()),
        thread: Some(thread.into()),
        ..event(at, happening, &format!("{pid}:{thread}"))
    }
}

/// Returns the events of a hold of a known thread.
pub(crate) fn hold(from: f64, until: f64, pid: u32, thread: &str) -> [LockEvent; 2] {
    let at = |at, happening| of_thread(at, happening, pid, thread);
    [at(from, Happening::Acquired), at(until, Happening::Released)]
}

pub(crate) fn timeline(events: &[LockEvent]) -> Timeline {
    Timeline::new(events, Window::around(events), &[])
}
