//! [`Looks`]: a thread that looks at locks again and again, and the signals that end a program.
//!
//! Another thread searches for the locks whose names match patterns. The looks go on meanwhile, at
//! the locks that earlier searches have found.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, LockWatch};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::event::{Happening, LockEvent};
use super::snapshot::{self, Look, States};
use super::{Observer, rest_after};
use crate::address::Server;
use crate::failure::{Failure, Result};
use crate::run::is_ignored;
use crate::views::pattern;

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(1);

/// The shortest time between two looks while a server does not answer.
const PAUSE: Duration = Duration::from_millis(500);

/// The shortest time between two searches for the names that match patterns.
const SEARCH: Duration = Duration::from_secs(1);

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

/// Starts a thread that tells of signals, and makes the second signal end the program. A signal
/// that was ignored at the start (nohup, background jobs of scripts) stays ignored.
fn forward_signals(sender: SyncSender<Told>) -> Result<()> {
    let caught = [SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(caught)?;
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

/// The locks that a search has found held.
struct Found {
    /// The begin of the search, in seconds since 1970.
    begun: f64,
    names: BTreeSet<String>,
}

/// Looks at locks, and tells the events between the looks.
struct Looker {
    client: Client,
    watch: LockWatch,
    /// The names that are no patterns.
    given: BTreeSet<String>,
    patterns: Vec<String>,
    /// The names of the watch.
    names: Vec<String>,
    /// The searches for patterns. The thread ends with its receiver.
    searches: Option<Receiver<leasehold::Result<Found>>>,
    /// The begin of the last search.
    searched: f64,
    /// The error of the last search, if no server answered it.
    unanswered: Option<leasehold::Error>,
    observer: Observer,
    /// The locks that the last look saw held, and those whose server did not answer it.
    held: BTreeSet<String>,
    /// The locks whose server does not answer, and the patterns whose search had no answer.
    outages: BTreeSet<String>,
    /// The begin of the last look, and the time that it took.
    last: Instant,
    took: Duration,
}

impl Looker {
    /// Connects, and searches once for the names that match patterns. No look yet.
    fn new(server: &Server, names: &[String]) -> Result<Looker> {
        let (patterns, given): (Vec<_>, Vec<_>) =
            names.iter().cloned().partition(|name| pattern::is_pattern(name));
        let given: BTreeSet<String> = given.into_iter().collect();
        let client = server.connect()?;
        let mut looker = Looker {
            watch: client.watch_locks(&given)?,
            names: given.iter().cloned().collect(),
            given,
            patterns,
            client,
            searches: None,
            searched: snapshot::now(),
            unanswered: None,
            observer: Observer::default(),
            held: BTreeSet::new(),
            outages: BTreeSet::new(),
            last: Instant::now(),
            took: Duration::ZERO,
        };
        if !looker.patterns.is_empty() {
            looker.take(search(&looker.client, &looker.patterns)?)?;
            let (client, patterns) = (looker.client.clone(), looker.patterns.clone());
            looker.searches = Some(start_searches(client, patterns)?);
        }
        Ok(looker)
    }

    /// Looks at the locks that a search has found, besides those that are held, and those given.
    fn take(&mut self, found: Found) -> leasehold::Result<()> {
        let wanted = &(&self.given | &found.names) | &self.held;
        let is_watched = |name: &&String| self.names.binary_search(name).is_ok();
        let new: Vec<&String> = wanted.iter().filter(|name| !is_watched(name)).collect();
        // A watch has a connection. So one that sees a few locks too many stays.
        if !new.is_empty() || self.names.len() > 2 * wanted.len() {
            new.into_iter().for_each(|name| self.observer.add(name, self.searched));
            self.watch = self.client.watch_locks(&wanted)?;
            self.names = wanted.into_iter().collect();
        }
        self.searched = found.begun;
        Ok(())
    }

    /// Waits until the next look is due. Looks at the locks of patterns, which may be many, take at
    /// most half of the time.
    fn pause(&self, every: Duration) {
        let pause = every.max(if self.outages.is_empty() { SHORTEST } else { PAUSE });
        let rest = if self.searches.is_some() { self.took } else { Duration::ZERO };
        thread::sleep(pause.saturating_sub(self.last.elapsed()).max(rest));
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
        let searches = self.searches.iter().flat_map(Receiver::try_iter).collect::<Vec<_>>();
        for found in searches {
            self.unanswered = match found {
                Err(error) if error.is_retryable() => Some(error),
                found => self.take(found?).map(|()| None)?,
            };
        }
        let (look, states) = Look::take(&self.names, || self.watch.look_each())?;
        let held: BTreeSet<_> = look.locks.iter().map(|lock| lock.name.clone()).collect();
        self.held = &held | &look.unknown;
        self.took = self.last.elapsed();
        Ok((look, states))
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
        let mut unknown = look.unknown.clone();
        if self.unanswered.is_some() {
            unknown.extend(self.patterns.iter().cloned());
        }
        let recovered = self.outages.difference(&unknown);
        let mut events: Vec<_> =
            recovered.map(|name| told(name, Happening::Recovered, None)).collect();
        if look.unknown.len() < self.names.len() || self.names.is_empty() {
            events.extend(self.observer.compare(look));
        }
        let of_patterns = self.patterns.iter().zip(std::iter::repeat(self.unanswered.as_ref()));
        let errors = self.names.iter().zip(states.iter().map(|state| state.as_ref().err()));
        for (name, error) in errors.chain(of_patterns) {
            if let Some(error) = error
                && !self.outages.contains(name)
            {
                let text = Failure::from(error.clone()).to_string();
                events.push(told(name, Happening::Outage, Some(text)));
            }
        }
        self.outages = unknown;
        events
    }
}

/// Starts the thread that searches. It ends after the end of the receiver.
fn start_searches(
    client: Client,
    patterns: Vec<String>,
) -> Result<Receiver<leasehold::Result<Found>>> {
    let (sender, receiver) = sync_channel(1);
    thread::Builder::new().name("searches".into()).spawn(move || {
        let mut took = Duration::ZERO;
        loop {
            thread::sleep(SEARCH.max(rest_after(took)));
            let begun = Instant::now();
            let found = search(&client, &patterns);
            took = begun.elapsed();
            if sender.send(found).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Returns the locks whose names match any of the patterns.
///
/// An error about one node of a cluster hides the locks of that node.
fn search(client: &Client, patterns: &[String]) -> leasehold::Result<Found> {
    let begun = snapshot::now();
    let (mut names, mut failure) = (BTreeSet::new(), None);
    for pattern in patterns {
        for lock in client.locks(pattern)? {
            match lock {
                Ok(lock) => drop(names.insert(lock.name().to_owned())),
                Err(error) if error.is_retryable() => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    match failure {
        Some(error) if names.is_empty() => Err(error),
        _ => Ok(Found { begun, names }),
    }
}
