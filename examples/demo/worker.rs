//! A worker process of the demo: threads that do jobs from one list in Redis.
//!
//! A job is not safe to do twice, and the list does not help: to do the next job, a
//! thread reads how many are done, works on the one after them, records that it has
//! done it, and writes the new number. Only the lock around these steps keeps two
//! threads from doing the same job.

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
use super::said::Said;

/// The lease of the demo's lock: short, so that a dead worker is soon replaced.
pub(crate) const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(2);

/// The name of the lock, behind the prefix of this run's keys.
pub(crate) const LOCK: &str = "lock";

/// How many threads a worker has.
pub(crate) const THREADS: usize = 2;

/// What the parent says when all workers are ready.
pub(crate) const START: usize = 0;

/// How long a quick job takes. A slow one takes until the parent says so.
const QUICK: Duration = Duration::from_millis(3);

/// How long the end of the client's threads may take.
const ENDING: Duration = Duration::from_secs(10);

/// The lock (none, to show what happens then), the jobs, and the parent's word.
struct Worker {
    lock: Option<Lock>,
    url: String,
    keys: String,
    word: Arc<Word>,
}

/// Runs a worker until there are no more jobs, with the lock or without.
pub(crate) fn run(keys: String, locked: bool) -> Result<()> {
    let url = env::var("REDIS_URL")?;
    let (ends, ended) = mpsc::channel();
    let client = Client::builder()
        .single(&url)
        .watchdog_timeout(WATCHDOG_TIMEOUT)
        .name_prefix(&keys)
        .events(Told { _ends: ends })
        .build()?;
    let lock = locked.then(|| client.lock(LOCK));

    let worker = Worker { lock, url, keys, word: Word::listen() };
    worker.run_threads();

    // What is still to be told is told before the process ends.
    drop((worker, client));
    match ended.recv_timeout(ENDING) {
        Err(RecvTimeoutError::Disconnected) => Ok(()),
        _ => Err("the client's events did not end with the client".into()),
    }
}

impl Worker {
    fn run_threads(&self) {
        thread::scope(|scope| {
            for thread in 1..=THREADS {
                scope.spawn(move || self.work(thread).unwrap_or_else(|error| fail(&*error)));
            }
            Said::Ready.say();
        });
    }

    /// Does jobs until there are none left.
    fn work(&self, thread: usize) -> Result<()> {
        let mut jobs = Jobs::open(&self.url, &self.keys)?;
        self.word.wait_for(START);
        while self.do_next(thread, &mut jobs)? {}
        Ok(())
    }

    /// Does the next job, under the lock; whether there was one.
    fn do_next(&self, thread: usize, jobs: &mut Jobs) -> Result<bool> {
        let guard = match self.lock.as_ref().map(Lock::lock).transpose() {
            // The answer came when the lease was over already: another try.
            Err(error) if error.is_lost() => return Ok(true),
            guard => guard?,
        };

        let Some(job) = jobs.next()? else { return Ok(false) };
        self.work_on(job, thread);

        // The last moment to notice that the lock is another's by now, and so is the job.
        if let Some(why) = guard.as_ref().and_then(lost) {
            Said::Noticed { thread, job: job.number, why }.say();
            return Ok(true);
        }
        jobs.record(job, thread)?;
        if job.slow {
            Said::Did { thread, job: job.number }.say();
        }
        Ok(true)
    }

    fn work_on(&self, job: Job, thread: usize) {
        if job.slow {
            Said::Took { thread, job: job.number }.say();
            self.word.wait_for(job.number);
        } else {
            thread::sleep(QUICK);
        }
    }
}

/// Ends the worker at once; the parent then gives up as well.
fn fail(error: &dyn Error) -> ! {
    eprintln!("a worker failed: {error}");
    process::exit(1)
}

/// Why the lock is not this guard's any more, if it is not.
fn lost(guard: &Guard) -> Option<String> {
    guard.check().err().map(|error| error.to_string())
}

/// Passes on what the client tells of its locks.
struct Told {
    /// Dropped when there is nothing more to tell.
    _ends: Sender<()>,
}

impl Events for Told {
    fn waited(&self, event: &Waited) {
        Said::Waited(event.waited).say();
    }

    fn lost(&self, _: &Lost) {
        Said::Lost.say();
    }
}

/// The last number that the parent has given the word for: [`START`], then each slow
/// job that may end.
#[derive(Default)]
struct Word {
    given: Mutex<Option<usize>>,
    news: Condvar,
}

impl Word {
    /// Hears the parent's word on standard input from now on. Without a parent the
    /// process ends.
    fn listen() -> Arc<Word> {
        let word = Arc::new(Word::default());
        let heard = Arc::clone(&word);
        thread::spawn(move || {
            let numbers = io::stdin().lines().map_while(|line| line.ok()?.parse().ok());
            numbers.for_each(|number| heard.give(number));
            process::exit(1);
        });
        word
    }

    fn give(&self, number: usize) {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
        self.news.notify_all();
    }

    fn wait_for(&self, number: usize) {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let not_yet = |given: &mut Option<usize>| given.is_none_or(|given| given < number);
        drop(self.news.wait_while(given, not_yet));
    }
}
