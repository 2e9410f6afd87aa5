//! [`Looks`]: a thread that looks at locks again and again, and the signals that end a program.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::LockWatch;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Observer;
use super::event::{Happening, LockEvent};
use super::snapshot::{self, Look, States};
use crate::address::Server;
use crate::failure::{Failure, Result};

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(1);

/// The shortest time between two looks while a server does not answer.
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
        let first = looker.first_look()?;
        forward_signals(sender.clone())?;
        thread::Builder::new().name("looks".into()).spawn(move || {
            let mut told = Told::Events(first);
            while sender.send(told).is_ok() {
                looker.pause(every);
                told = looker.look_again().map_or_else(Told::Failed, Told::Events);
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
    /// The locks whose server does not answer.
    outages: BTreeSet<String>,
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
        Ok(Looker { watch, names, observer, outages: BTreeSet::new(), last: Instant::now() })
    }

    /// Waits until the next look is due.
    fn pause(&self, every: Duration) {
        let pause = every.max(if self.outages.is_empty() { SHORTEST } else { PAUSE });
        thread::sleep(pause.saturating_sub(self.last.elapsed()));
    }

    /// Looks for the first time. Fails if no server answers.
    fn first_look(&mut self) -> Result<Vec<LockEvent>> {
        let (look, states) = self.look()?;
        let error = states.iter().find_map(|state| state.as_ref().err());
        if let Some(error) = error.filter(|_| look.unknown.len() == self.names.len()) {
            return Err(error.clone().into());
        }
        Ok(self.events(&look, &states))
    }

    /// Looks, and tells of the beginning and the end of outages. Other errors are failures.
    fn look_again(&mut self) -> Result<Vec<LockEvent>> {
        let (look, states) = match self.look() {
            Err(error) if error.is_retryable() => {
                let unknown = self.names.iter().cloned().collect();
                let states = self.names.iter().map(|_| Err(error.clone())).collect();
                (Look { unknown, ..Look::default() }, states)
            }
            looked => looked?,
        };
        Ok(self.events(&look, &states))
    }

    fn look(&mut self) -> leasehold::Result<(Look, States)> {
        self.last = Instant::now();
        Look::take(&self.names, || self.watch.look_each())
    }

    fn events(&mut self, look: &Look, states: &States) -> Vec<LockEvent> {
        let at = snapshot::now();
        let told = |name: &String, event, text| LockEvent {
            at,
            name: name.clone(),
            event,
            text,
            ..LockEvent::default()
        };
        let recovered = self.outages.iter().filter(|name| !look.unknown.contains(*name));
        let mut events: Vec<_> =
            recovered.map(|name| told(name, Happening::Recovered, None)).collect();
        if look.unknown.len() < self.names.len() {
            events.extend(self.observer.compare(look));
        }
        for (name, state) in self.names.iter().zip(states) {
            if let Err(error) = state
                && !self.outages.contains(name)
            {
                let text = Failure::from(error.clone()).to_string();
                events.push(told(name, Happening::Outage, Some(text)));
            }
        }
        self.outages.clone_from(&look.unknown);
        events
    }
}
