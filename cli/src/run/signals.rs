//! Signals: forwarded to the command while it runs, an end or a pause of the wait before that.
//!
//! | signal | before the command runs | while it runs |
//! | --- | --- | --- |
//! | HUP TERM | leaves the queue, exits with 128 + number | forwarded, with a CONT |
//! | INT QUIT | the same | forwarded |
//! | ALRM VTALRM PROF | the same: a timer that another program set | forwarded |
//! | TSTP | stops `leasehold`, which keeps its place | forwarded; `leasehold` stops with it |
//! | CONT | continues `leasehold` | forwarded |
//! | USR1 USR2 WINCH IO PWR | nothing: there is no command to tell | forwarded |
//! | CHLD | nothing | the command has ended, stopped or continued |
//! | PIPE | nothing, as in every Rust program | nothing: the system tells the writer itself |
//! | TTIN TTOU STOP | stop `leasehold` alone | stop `leasehold` alone |
//! | others, such as KILL, ABRT, XCPU, SEGV, real-time signals | end `leasehold` | end `leasehold`; the command gets TERM |
//!
//! A signal that was ignored when `leasehold` started (nohup, background jobs of scripts) stays
//! ignored, also by the command.
//!
//! A thread reads the signals. The mutex of the phase orders them: a signal comes before the start
//! of the command, and ends or stops `leasehold`, or after it, and goes to the command. While `once`
//! commits a result, the command has ended, and signals have the effect that they had before it.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use std::{fs, io, process};

use leasehold::CancelToken;
use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::process::Signal;
use signal_hook::iterator;

use super::outcome::SIGNALLED;
use super::terminal;
use crate::failure::Result;

/// The effect of a signal before the command runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Ends,
    Stops,
    Nothing,
}

/// The signals that `leasehold` receives, with their effect before the command runs.
const RECEIVED: &[(Signal, Effect)] = &[
    (Signal::HUP, Effect::Ends),
    (Signal::INT, Effect::Ends),
    (Signal::QUIT, Effect::Ends),
    (Signal::TERM, Effect::Ends),
    (Signal::ALARM, Effect::Ends),
    (Signal::VTALARM, Effect::Ends),
    (Signal::PROF, Effect::Ends),
    (Signal::TSTP, Effect::Stops),
    (Signal::CONT, Effect::Nothing),
    (Signal::USR1, Effect::Nothing),
    (Signal::USR2, Effect::Nothing),
    (Signal::WINCH, Effect::Nothing),
    (Signal::IO, Effect::Nothing),
    #[cfg(any(target_os = "linux", target_os = "android"))]
    (Signal::POWER, Effect::Nothing),
    (Signal::CHILD, Effect::Nothing),
];

/// The longest time from a signal that ends the wait to the end of the program. A server that does
/// not answer would delay it by the time-outs of several requests.
const LAST_REQUESTS: Duration = Duration::from_millis(900);

/// A signal, or the loss of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Signal(Signal),
    Lost,
}

/// The signals before the command runs.
pub(super) struct Signals {
    cancel: CancelToken,
    phase: Arc<Mutex<Phase>>,
}

/// Has signals end the program again when the command has ended.
pub(super) struct Recall(Arc<Mutex<Phase>>);

/// The signals while the command runs, and the loss of the lock.
pub(super) struct Events {
    events: Receiver<Event>,
    sender: Sender<Event>,
}

/// Reports the loss of the lock when it is dropped.
struct LossReporter(Sender<Event>);

impl Drop for LossReporter {
    fn drop(&mut self) {
        // The receiver is dropped when the command has ended.
        let _ = self.0.send(Event::Lost);
    }
}

enum Phase {
    /// The first signal that ended the wait.
    Waiting {
        ended_by: Option<Signal>,
    },
    Running(Sender<Event>),
}

impl Signals {
    /// Receives signals from now on.
    pub(super) fn catch() -> Result<Signals> {
        let (cancel, phase) = (CancelToken::new(), Phase::Waiting { ended_by: None });
        let signals = Signals { cancel, phase: Arc::new(Mutex::new(phase)) };
        let ignored = ignored();
        let received = RECEIVED.iter().map(|(signal, _)| *signal);
        let caught = received.filter(|signal| *signal == Signal::CHILD || !ignored.has(*signal));
        let mut caught = iterator::Signals::new(caught.map(Signal::as_raw))?;
        let (cancel, phase) = (signals.cancel.clone(), Arc::clone(&signals.phase));
        thread::Builder::new().name("leasehold-signals".to_owned()).spawn(move || {
            receive_ends_of_children();
            for signal in caught.forever() {
                receive(signal, &phase, &cancel);
            }
        })?;
        Ok(signals)
    }

    /// Returns the token that such a signal cancels.
    pub(super) fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    /// Returns the signal that ended the wait.
    pub(super) fn ended_by(&self) -> Option<Signal> {
        match &*lock(&self.phase) {
            Phase::Waiting { ended_by } => *ended_by,
            Phase::Running(_) => None,
        }
    }

    /// Returns the value that has signals end the program again.
    pub(super) fn recall(&self) -> Recall {
        Recall(Arc::clone(&self.phase))
    }

    /// Ends the wait: later signals are for the command. An error is a signal that came before.
    pub(super) fn begin(self) -> std::result::Result<Events, Signal> {
        let mut phase = lock(&self.phase);
        if let Phase::Waiting { ended_by: Some(signal) } = *phase {
            return Err(signal);
        }
        let (sender, events) = mpsc::channel();
        *phase = Phase::Running(sender.clone());
        Ok(Events { events, sender })
    }
}

impl Recall {
    /// Has later signals end the program, as before the command: it waits for a server again.
    pub(super) fn now(self) {
        *lock(&self.0) = Phase::Waiting { ended_by: None };
    }
}

impl Events {
    /// Returns a closure that reports the loss of the lock when it is called, or dropped before.
    ///
    /// The library would drop it without a thread for events, which the client has: it has a
    /// listener.
    pub(super) fn loss_reporter(&self) -> impl FnOnce() + Send + 'static {
        let reporter = LossReporter(self.sender.clone());
        move || drop(reporter)
    }

    pub(super) fn receiver(&self) -> &Receiver<Event> {
        &self.events
    }
}

/// Lets this thread take CHLD also if `leasehold` was started with this signal blocked.
///
/// The end of the command would remain unnoticed. The command inherits the mask of another thread.
fn receive_ends_of_children() {
    let mut mask = SigSet::empty();
    mask.add(Blocked::SIGCHLD);
    // It fails only for a wrong mask.
    let _ = mask.thread_unblock();
}

fn receive(signal: i32, phase: &Mutex<Phase>, cancel: &CancelToken) {
    let Some((signal, effect)) = RECEIVED.iter().find(|(it, _)| it.as_raw() == signal) else {
        return;
    };
    // Held while `leasehold` is stopped, so that the command does not start meanwhile.
    match (&mut *lock(phase), effect) {
        (Phase::Running(sender), _) => {
            // The receiver is dropped when the command has ended.
            let _ = sender.send(Event::Signal(*signal));
        }
        (Phase::Waiting { ended_by: ended_by @ None }, Effect::Ends) => {
            *ended_by = Some(*signal);
            cancel.cancel();
            end_soon(*signal);
        }
        (Phase::Waiting { .. }, Effect::Ends) => {}
        (Phase::Waiting { .. }, Effect::Stops) => terminal::stop_this_process(),
        (Phase::Waiting { .. }, Effect::Nothing) => {}
    }
}

/// Ends the program after the time for its last requests, if it has not ended by then.
///
/// A system without room for one more thread gets the usual time-outs.
fn end_soon(signal: Signal) {
    let end = move || {
        thread::sleep(LAST_REQUESTS);
        process::exit(SIGNALLED + signal.as_raw());
    };
    // A unit test must not end.
    if !cfg!(test) {
        let _ = thread::Builder::new().name("end".to_owned()).spawn(end);
    }
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A set of signals, as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mask(u64);

impl Mask {
    fn has(self, signal: Signal) -> bool {
        u32::try_from(signal.as_raw() - 1)
            .is_ok_and(|bit| self.0.checked_shr(bit).unwrap_or(0) & 1 == 1)
    }
}

/// Returns whether this process ignores a signal.
pub(crate) fn is_ignored(signal: i32) -> bool {
    Signal::from_named_raw(signal).is_some_and(|signal| ignored().has(signal))
}

/// Returns the signals that this process ignores; none on systems without `/proc`.
fn ignored() -> Mask {
    let status: io::Result<String> = fs::read_to_string("/proc/self/status");
    status.map(|status| ignored_in(&status)).unwrap_or_default()
}

fn ignored_in(status: &str) -> Mask {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    Mask(mask.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ignored_signals_are_read_from_the_status() {
        let ignored = ignored_in("Name:\tx\nSigBlk:\t00ff\nSigIgn:\t0000000000001001\n");
        assert!(ignored.has(Signal::HUP) && ignored.has(Signal::PIPE));
        assert!(!ignored.has(Signal::INT) && !ignored.has(Signal::CHILD));
        assert_eq!(ignored_in("Name:\tx\n"), Mask(0));
    }

    fn waiting() -> Mutex<Phase> {
        Mutex::new(Phase::Waiting { ended_by: None })
    }

    fn signals(phase: Mutex<Phase>, cancel: &CancelToken) -> Signals {
        Signals { cancel: cancel.clone(), phase: Arc::new(phase) }
    }

    #[test]
    fn the_first_signal_before_the_start_ends_the_wait() {
        let (phase, cancel) = (waiting(), CancelToken::new());
        for signal in [Signal::USR1, Signal::CHILD, Signal::CONT] {
            receive(signal.as_raw(), &phase, &cancel);
        }
        assert!(!cancel.is_cancelled());
        receive(Signal::TERM.as_raw(), &phase, &cancel);
        receive(Signal::INT.as_raw(), &phase, &cancel);
        assert!(cancel.is_cancelled());
        let signals = signals(phase, &cancel);
        assert_eq!(signals.ended_by(), Some(Signal::TERM));
        assert_eq!(signals.begin().err(), Some(Signal::TERM));
    }

    #[test]
    fn later_signals_and_the_loss_are_events() {
        let cancel = CancelToken::new();
        let signals = signals(waiting(), &cancel);
        let phase = Arc::clone(&signals.phase);
        let events = signals.begin().expect("no signal came");
        receive(Signal::TERM.as_raw(), &phase, &cancel);
        events.loss_reporter()();
        drop(events.loss_reporter());
        let received: Vec<Event> = events.receiver().try_iter().collect();
        assert_eq!(received, [Event::Signal(Signal::TERM), Event::Lost, Event::Lost]);
        assert!(!cancel.is_cancelled());
    }
}
