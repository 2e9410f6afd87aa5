//! The thread that looks at locks, so that keys are answered while a look is slow.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, LockInfo, LockWatch, Locks};

use super::report::{Finding, Report};
use super::schedule::{Cost, Schedule, Task};
use super::sight::Sight;
use crate::failure::Failure;
use crate::observe::Observer;
use crate::observe::snapshot::Look;

/// The number of locks that one step of a search takes.
const STEP: usize = 256;

/// The time that a lock takes which an earlier request to the server has brought.
const BUFFERED: Duration = Duration::from_micros(100);

/// The number of names of a watch that is never too large for the visible rows.
const SMALL_WATCH: usize = 32;

/// The rows that the user wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) visible: Vec<String>,
    pub(crate) followed: Option<String>,
    /// Whether there are no looks at all.
    pub(crate) is_paused: bool,
}

/// Starts the thread. It ends when the sender of wishes is dropped, after its present look.
///
/// `tell` receives the reports; `None` says that the thread has ended.
pub(crate) fn start(
    client: Client,
    pattern: String,
    every: Duration,
    tell: impl Fn(Option<Report>) + Send + 'static,
) -> io::Result<Sender<Wish>> {
    let (sender, wishes) = mpsc::channel();
    let looker = Looker {
        client,
        pattern,
        schedule: Schedule::new(every, Instant::now()),
        wish: Wish::default(),
        round_trip: Duration::MAX,
        search: None,
        visible: None,
        followed: None,
        missing: None,
    };
    let run = move || {
        let end = TellEnd(tell);
        looker.run(&wishes, |report| end.0(Some(report)));
    };
    thread::Builder::new().name("looks".into()).spawn(run)?;
    Ok(sender)
}

/// Tells the end of the thread, also after a panic.
struct TellEnd<F: Fn(Option<Report>)>(F);

impl<F: Fn(Option<Report>)> Drop for TellEnd<F> {
    fn drop(&mut self) {
        self.0(None);
    }
}

struct Looker {
    client: Client,
    pattern: String,
    schedule: Schedule,
    wish: Wish,
    /// The shortest time of a question without any work for the server.
    round_trip: Duration,
    search: Option<Search>,
    visible: Option<Watched>,
    followed: Option<(Watched, Observer)>,
    /// The error of a server that did not answer the last search, or a look since.
    missing: Option<String>,
}

/// A search that goes on.
struct Search {
    locks: Locks,
    begun: Instant,
    /// The begin of the last request to the server.
    read: Instant,
    took: Duration,
    has_found: bool,
    /// The error of a server that did not answer.
    error: Option<leasehold::Error>,
}

/// A watch of these names.
struct Watched {
    names: Vec<String>,
    watch: LockWatch,
}

impl Looker {
    /// Looks until nobody has wishes any more.
    fn run(mut self, wishes: &Receiver<Wish>, tell: impl Fn(Report)) {
        loop {
            let (task, due) = self.schedule.next(self.wish.followed.is_some());
            let wish = if self.wish.is_paused {
                wishes.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                wishes.recv_timeout(due.saturating_duration_since(Instant::now()))
            };
            match wish {
                Ok(wish) => self.take(wish),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.perform(task, &tell),
            }
        }
    }

    fn take(&mut self, wish: Wish) {
        if wish.followed != self.wish.followed {
            self.followed = None;
        }
        self.wish = wish;
        self.schedule.hurry(Instant::now());
    }

    fn perform(&mut self, task: Task, tell: &impl Fn(Report)) {
        let outcome = match task {
            Task::Search => self.search(tell),
            Task::Visible => self.look_at_visible(tell),
            Task::Followed => self.look_at_followed(tell),
        };
        if let Err(error) = outcome {
            self.search = None;
            self.schedule.failed(Instant::now());
            tell(Report::Failed(text(&error)));
        }
    }

    /// Looks at the next locks of a search.
    fn search(&mut self, tell: &impl Fn(Report)) -> leasehold::Result<()> {
        let mut search = match self.search.take() {
            Some(search) => search,
            None => self.begin_search()?,
        };
        let meter = Meter::start(self.round_trip);
        let (at, found) = search.step()?;
        let cost = meter.stop();
        search.took += cost.took();
        search.has_found |= !found.is_empty();
        let is_over = found.len() < STEP;
        if is_over {
            self.missing = search.error.as_ref().map(text);
        }
        if let Some(error) = search.error.take_if(|_| is_over && !search.has_found) {
            return Err(error);
        }
        let sights = found.iter().map(Sight::from).collect();
        let missing = self.missing.clone();
        tell(Report::Found(Finding { at, took: cost.took(), sights, missing }));
        if !is_over {
            self.schedule.searched_step(cost);
            self.search = Some(search);
            return Ok(());
        }
        let every = self.schedule.search_ends(cost);
        // Locks that this search has not found may be held on a server that did not answer.
        if search.error.is_none() {
            tell(Report::Searched { begun: search.begun, took: search.took, every });
        }
        Ok(())
    }

    fn begin_search(&mut self) -> leasehold::Result<Search> {
        let begun = Instant::now();
        self.schedule.search_begins(begun);
        // A ping waits for all servers.
        if self.missing.is_none() {
            match self.client.ping() {
                Ok(()) => self.round_trip = self.round_trip.min(begun.elapsed()),
                // The search finds out whether other servers answer.
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        }
        let (locks, took) = (self.client.locks(&self.pattern)?, Duration::ZERO);
        Ok(Search { locks, begun, read: begun, took, has_found: false, error: None })
    }

    fn look_at_visible(&mut self, tell: &impl Fn(Report)) -> leasehold::Result<()> {
        let meter = Meter::start(self.round_trip);
        // A watch has a connection. So one that sees more rows than the visible ones stays.
        if !self.visible.as_ref().is_some_and(|watched| watched.sees(&self.wish.visible)) {
            self.visible = Some(Watched::new(&self.client, self.wish.visible.clone())?);
        }
        let looked = match &mut self.visible {
            Some(watched) if !watched.names.is_empty() => Some(watched.look()?),
            _ => None,
        };
        let cost = meter.stop();
        self.schedule.looked_at_visible(cost);
        if let Some((_, sights, error)) = looked {
            tell(self.found(cost, sights, error));
        }
        Ok(())
    }

    /// Returns the report of a look by name.
    fn found(&mut self, cost: Cost, sights: Vec<Sight>, error: Option<leasehold::Error>) -> Report {
        self.missing = error.as_ref().map(text).or(self.missing.take());
        let missing = self.missing.clone();
        Report::Found(Finding { at: cost.begun, took: cost.took(), sights, missing })
    }

    /// Looks at the followed lock, and tells its events since the last look.
    fn look_at_followed(&mut self, tell: &impl Fn(Report)) -> leasehold::Result<()> {
        let Some(name) = self.wish.followed.clone() else { return Ok(()) };
        let meter = Meter::start(self.round_trip);
        if self.followed.is_none() {
            let watched = Watched::new(&self.client, vec![name])?;
            self.followed = Some((watched, Observer::default()));
        }
        let Some((watched, observer)) = &mut self.followed else { return Ok(()) };
        let (look, sights, error) = watched.look()?;
        let cost = meter.stop();
        self.schedule.looked_at_followed(cost);
        let events = observer.compare(&look);
        tell(self.found(cost, sights, error));
        tell(Report::Happened(events));
        Ok(())
    }
}

impl Search {
    /// Returns the next locks, and the time since which the server may have told of the first one.
    fn step(&mut self) -> leasehold::Result<(Instant, Vec<LockInfo>)> {
        let (mut first, mut found) = (None, Vec::new());
        while found.len() < STEP {
            let begun = Instant::now();
            match self.locks.next() {
                Some(Ok(lock)) => found.push(lock),
                Some(Err(error)) if error.is_retryable() => drop(self.error.get_or_insert(error)),
                Some(Err(error)) => return Err(error),
                None => break,
            }
            if begun.elapsed() > BUFFERED {
                self.read = begun;
            }
            first = first.or(Some(self.read));
        }
        Ok((first.unwrap_or(self.read), found))
    }
}

impl Watched {
    fn new(client: &Client, names: Vec<String>) -> leasehold::Result<Watched> {
        let watch = client.watch_locks(names.iter().cloned())?;
        Ok(Watched { names, watch })
    }

    /// Returns whether the watch sees all of these names, and not many more.
    fn sees(&self, names: &[String]) -> bool {
        let is_lean = self.names.len() <= 2 * names.len().max(SMALL_WATCH);
        is_lean && names.iter().all(|name| self.names.contains(name))
    }

    /// Looks once. Free locks have a sight too, but are no part of the look.
    ///
    /// Returns the error of a server that does not answer beside the locks of the others.
    fn look(&mut self) -> leasehold::Result<(Look, Vec<Sight>, Option<leasehold::Error>)> {
        let (look, states) = Look::take(&self.names, || self.watch.look_each())?;
        let mut error = None;
        let mut sights = Vec::new();
        for (name, state) in self.names.iter().zip(states) {
            match state {
                Ok(lock) => sights.push(lock.map_or_else(|| Sight::free(name), |it| (&it).into())),
                Err(failed) => drop(error.get_or_insert(failed)),
            }
        }
        match error {
            Some(error) if sights.is_empty() => Err(error),
            error => Ok((look, sights, error)),
        }
    }
}

fn text(error: &leasehold::Error) -> String {
    Failure::from(error.clone()).to_string()
}

/// Measures a look.
struct Meter {
    begun: Instant,
    round_trip: Duration,
}

impl Meter {
    fn start(round_trip: Duration) -> Meter {
        Meter { begun: Instant::now(), round_trip }
    }

    fn stop(&self) -> Cost {
        Cost { begun: self.begun, ended: Instant::now(), round_trip: self.round_trip }
    }
}
