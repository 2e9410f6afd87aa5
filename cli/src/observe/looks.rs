//! [`Looks`]: a thread that looks at locks again and again, and the signals that end a program.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockWatch;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Observer;
use super::event::{Happening, LockEvent};
use super::snapshot::{self, Look};
use crate::address::Server;
use crate::failure::{Failure, Result};

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(1);

/// The shortest time between two looks at a server that does not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// Batches of events that wait for the reader. A reader that is slower delays the looks.
const BACKLOG: usize = 64;

/// A report of the thread.
#[derive(Debug)]
pub(crate) enum Told {
    /// The events of one look, perhaps none.
    Events(Vec<LockEvent>),
    /// A look failed for good: permissions changed, for instance.
    Failed(Failure),
    /// A signal (INT or TERM) asks the program to end.
    Interrupted,
    /// Nothing happened within the given time.
    Nothing,
}

/// A thread that looks at locks with given names, and the signals that end the program.
///
/// After the end of the value, the thread ends at its next look.
#[derive(Debug)]
pub(crate) struct Looks(Receiver<Told>);

impl Looks {
    /// Connects, looks once, and starts the thread. The first events are the present state.
    ///
    /// From here on the signals INT and TERM do not end the program. A second signal does.
    ///
    /// # Errors
    /// The errors of the connection and of the first look.
    pub(crate) fn start(server: &Server, names: &[String], every: Duration) -> Result<Looks> {
        let (sender, receiver) = sync_channel(BACKLOG);
        let mut looker = Looker::new(server, names)?;
        let first = looker.look()?;
        forward_signals(sender.clone())?;
        thread::Builder::new().name("looks".into()).spawn(move || {
            let mut told = Ok(first);
            while sender.send(Told::from(told)).is_ok() {
                looker.pause(every);
                told = looker.look_again();
            }
        })?;
        Ok(Looks(receiver))
    }

    /// Blocks until there is something to tell, for `limit` at most.
    pub(crate) fn next(&self, limit: Duration) -> Told {
        self.0.recv_timeout(limit).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Told::Nothing,
            RecvTimeoutError::Disconnected => Told::Interrupted,
        })
    }
}

impl From<Result<Vec<LockEvent>>> for Told {
    fn from(result: Result<Vec<LockEvent>>) -> Told {
        result.map_or_else(Told::Failed, Told::Events)
    }
}

/// Starts a thread that tells of signals, and makes the second signal end the program.
fn forward_signals(sender: SyncSender<Told>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut count = 0;
        for signal in signals.forever() {
            count += 1;
            if count > 1 || sender.try_send(Told::Interrupted).is_err() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        }
    })?;
    Ok(())
}

/// Looks at locks, and tells the events between the looks.
struct Looker {
    watch: LockWatch,
    names: Vec<String>,
    observer: Observer,
    is_outage: bool,
    last: Instant,
}

impl Looker {
    /// Connects. No look yet.
    fn new(server: &Server, names: &[String]) -> Result<Looker> {
        let mut names = names.to_vec();
        names.sort();
        names.dedup();
        let watch = server.connect()?.watch_locks(&names)?;
        let observer = Observer::default();
        Ok(Looker { watch, names, observer, is_outage: false, last: Instant::now() })
    }

    /// Waits until the next look is due.
    fn pause(&self, every: Duration) {
        let pause = every.max(if self.is_outage { PAUSE } else { SHORTEST });
        thread::sleep(pause.saturating_sub(self.last.elapsed()));
    }

    fn look(&mut self) -> leasehold::Result<Vec<LockEvent>> {
        self.last = Instant::now();
        let look = Look::take(|| Ok(self.watch.look()?.into_iter().flatten().collect()))?;
        Ok(self.observer.compare(&look))
    }

    /// Looks, and tells of the beginning and the end of an outage. Other errors are failures.
    fn look_again(&mut self) -> Result<Vec<LockEvent>> {
        match self.look() {
            Ok(events) if !self.is_outage => Ok(events),
            Ok(events) => {
                self.is_outage = false;
                Ok(self.on_all_locks(Happening::Recovered, None).chain(events).collect())
            }
            Err(error) if !error.is_retryable() => Err(error.into()),
            Err(_) if self.is_outage => Ok(Vec::new()),
            Err(error) => {
                self.is_outage = true;
                let text = Failure::from(error).to_string();
                Ok(self.on_all_locks(Happening::Outage, Some(&text)).collect())
            }
        }
    }

    /// Returns one event per lock.
    fn on_all_locks(
        &self,
        event: Happening,
        text: Option<&str>,
    ) -> impl Iterator<Item = LockEvent> + use<'_> {
        let (at, text) = (snapshot::now(), text.map(str::to_owned));
        self.names.iter().map(move |name| LockEvent {
            at,
            name: name.clone(),
            event,
            text: text.clone(),
            ..LockEvent::default()
        })
    }
}
