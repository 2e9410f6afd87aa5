//! A worker process of the demo: threads that do jobs from one list in Redis.
//!
//! A job must not be done twice, and the list does not prevent it: to do a job, a thread reads how
//! many jobs are done, works on the next one, records it, and writes the new number. Only the lock
//! around these steps keeps two threads from doing the same job.

use std::env;
use std::error::Error;
use std::io;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold::{Client, Events, Guard, Lock, Lost, Waited};

use super::Result;
use super::jobs::{Job, Jobs};
use super::report::{Report, Step};

/// The lease of the lock. Short, so that a dead worker is replaced soon.
pub(crate) const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(2);

/// The name of the lock, after the prefix of this run.
pub(crate) const LOCK: &str = "job-list";

/// The number of threads of a worker.
pub(crate) const THREADS: usize = 2;

/// The permission to begin, given when all workers are ready.
pub(crate) const START: usize = 0;

/// The length of a quick job. A slow job lasts until the parent permits its end.
const QUICK: Duration = Duration::from_millis(3);

/// How long the threads of the client may take to end.
const ENDING: Duration = Duration::from_secs(10);

/// The threads of this process share it. Without a lock they do jobs twice.
struct Worker {
    lock: Option<Lock>,
    url: String,
    keys: String,
    permissions: Arc<Permissions>,
}

/// Runs a worker until there are no more jobs, with or without the lock.
pub(crate) fn run(keys: String, locked: bool) -> Result<()> {
    let url = env::var("REDIS_URL")?;
    let (ends, ended) = mpsc::channel();
    let client = Client::builder()
        .single(&url)
        .watchdog_timeout(WATCHDOG_TIMEOUT)
        .name_prefix(&keys)
        .events(EventReporter { _ends: ends })
        .build()?;
    let lock = locked.then(|| client.lock(LOCK));

    let worker = Worker { lock, url, keys, permissions: Permissions::listen() };
    worker.run_threads();

    // Events that are still queued are reported before the process ends.
    drop((worker, client));
    match ended.recv_timeout(ENDING) {
        Err(RecvTimeoutError::Disconnected) => Ok(()),
        _ => Err("the events thread did not end with the client".into()),
    }
}

impl Worker {
    fn run_threads(&self) {
        thread::scope(|scope| {
            for thread in 1..=THREADS {
                scope.spawn(move || self.work(thread).unwrap_or_else(|error| fail(&*error)));
            }
            Report::Ready.send();
        });
    }

    /// Does jobs until there are no more.
    fn work(&self, thread: usize) -> Result<()> {
        let mut jobs = Jobs::open(&self.url, &self.keys)?;
        self.permissions.wait_for(START);
        while self.do_next(thread, &mut jobs)? {}
        Ok(())
    }

    /// Does the next job under the lock. Returns whether there was one.
    fn do_next(&self, thread: usize, jobs: &mut Jobs) -> Result<bool> {
        self.tell(thread, Step::Waiting);
        let guard = match self.lock.as_ref().map(Lock::lock).transpose() {
            // The grant arrived after its lease had expired: try again.
            Err(error) if error.is_lost() => return Ok(true),
            guard => guard?,
        };
        self.tell(thread, Step::Acquired);

        let Some(job) = jobs.next()? else {
            self.tell(thread, Step::Released);
            return Ok(false);
        };
        self.work_on(job, thread);

        // The last check before the record: if the lock is lost, another worker does the job.
        if let Some(why) = guard.as_ref().and_then(lost) {
            self.tell(thread, Step::Lost);
            Report::Noticed { thread, job: job.number, why }.send();
            return Ok(true);
        }
        jobs.record(job, thread)?;
        if job.slow {
            Report::Did { thread, job: job.number }.send();
        }
        self.tell(thread, Step::Released);
        Ok(true)
    }

    /// Reports a step, for the picture.
    fn tell(&self, thread: usize, step: Step) {
        if self.lock.is_some() {
            Report::lock(thread, step).send();
        }
    }

    fn work_on(&self, job: Job, thread: usize) {
        if job.slow {
            Report::Took { thread, job: job.number }.send();
            self.permissions.wait_for(job.number);
        } else {
            thread::sleep(QUICK);
        }
    }
}

/// Ends the worker at once. The parent then fails too.
fn fail(error: &dyn Error) -> ! {
    eprintln!("a worker failed: {error}");
    process::exit(1)
}

/// Returns why the lock is lost, or `None` if it is held.
fn lost(guard: &Guard) -> Option<String> {
    guard.check().err().map(|error| error.to_string())
}

/// Reports the events of the client.
struct EventReporter {
    /// Dropped after the last event.
    _ends: Sender<()>,
}

impl Events for EventReporter {
    fn waited(&self, event: &Waited) {
        Report::Waited(event.waited).send();
    }

    fn lost(&self, _: &Lost) {
        Report::Lost.send();
    }
}

/// The last permission of the parent: [`START`], then the numbers of slow jobs.
#[derive(Default)]
struct Permissions {
    last: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Permissions {
    /// Starts to read permissions from standard input. Ends the process when the parent ends.
    fn listen() -> Arc<Permissions> {
        let permissions = Arc::new(Permissions::default());
        let shared = Arc::clone(&permissions);
        thread::spawn(move || {
            let numbers = io::stdin().lines().map_while(|line| line.ok()?.parse().ok());
            numbers.for_each(|number| shared.give(number));
            process::exit(1);
        });
        permissions
    }

    fn give(&self, number: usize) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
        self.changed.notify_all();
    }

    fn wait_for(&self, number: usize) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let not_yet = |last: &mut Option<usize>| last.is_none_or(|last| last < number);
        drop(self.changed.wait_while(last, not_yet));
    }
}
