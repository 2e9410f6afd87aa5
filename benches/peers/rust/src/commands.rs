//! The commands of the contract, for libraries whose callers block.
//!
//! A library with an event loop has its own code to run workers.

use std::any::Any;
use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::contender::{Blocking, Contender, Failure, Holder, Result, Worker};
use crate::heap;
use crate::stamp::{self, Held, Record};

/// The stack of a waiter, which needs 72 KiB without optimization.
const WAITER_STACK: usize = 96 * 1024;

/// The stack of the holder, which nests ten thousand holds.
const HOLDER_STACK: usize = 256 * 1024 * 1024;

/// All pairs, in the unit of the argument `share`.
const HUNDRED_PERCENT: u64 = 100_000;

/// The number of nested pairs that are timed at once.
const ROUND: u64 = 64;

/// Executes commands. Keeps the state between two commands.
pub(crate) struct Commands {
    contender: Contender,
    records: Vec<Record>,
    holder: Option<Box<dyn Holder>>,
    waiting: Option<Waiting>,
    handles: Vec<Box<dyn Any>>,
}

/// The state between `wait` and `free`.
struct Waiting {
    free: mpsc::Sender<()>,
    holder: JoinHandle<Result<u64>>,
    waiters: Vec<JoinHandle<Result>>,
}

/// The arguments of one command.
struct Arguments<'a>(HashMap<&'a str, &'a str>);

impl<'a> Arguments<'a> {
    fn parse(words: impl Iterator<Item = &'a str>) -> Arguments<'a> {
        Arguments(words.filter_map(|word| word.split_once('=')).collect())
    }

    fn text(&self, name: &str) -> Result<&'a str> {
        self.0.get(name).copied().ok_or_else(|| format!("{name} is missing").into())
    }

    fn number(&self, name: &str) -> Result<u64> {
        Ok(self.text(name)?.parse()?)
    }

    /// Returns the name of each worker's lock.
    fn names(&self, count: &str) -> Result<Vec<String>> {
        let (prefix, count) = (self.text("locks")?, self.number(count)?);
        let name = |i| if self.shared() { prefix.to_owned() } else { format!("{prefix}:{i}") };
        Ok((0..count).map(name).collect())
    }

    fn shared(&self) -> bool {
        self.0.get("shared") == Some(&"1")
    }

    fn millis(&self, name: &str) -> Result<Duration> {
        Ok(Duration::from_millis(self.number(name)?))
    }
}

impl Commands {
    pub(crate) fn new(contender: Contender) -> Commands {
        let (holder, waiting) = (None, None);
        Commands { contender, records: Vec::new(), holder, waiting, handles: Vec::new() }
    }

    /// Executes a command line and returns the answer.
    pub(crate) fn execute(&mut self, line: &str) -> Result<String> {
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        let arguments = Arguments::parse(words);
        match command {
            "pairs" if arguments.shared() && !self.contender.waits() => {
                Ok("unsupported".to_owned())
            }
            "pairs" => self.pairs(&arguments),
            "meet" => self.meet(&arguments),
            "nested" => self.nested(&arguments),
            "write" => self.write(arguments.text("file")?),
            "hold" => self.hold(&arguments),
            "drop" => self.release_held(),
            "wait" => self.wait(&arguments),
            "free" => self.free(),
            "handles" => self.make_handles(&arguments),
            "forget" => {
                self.handles = Vec::new();
                Ok("forgotten".to_owned())
            }
            "start" => self.start(arguments.number("count")?),
            _ => Ok("unsupported".to_owned()),
        }
    }

    fn pairs(&mut self, arguments: &Arguments<'_>) -> Result<String> {
        let (names, time) = (arguments.names("threads")?, arguments.millis("millis")?);
        let think_us = arguments.number("think_us")?;
        let (records, errors) = match &self.contender {
            #[cfg(feature = "peers")]
            Contender::Tasks(tasks) => tasks.pairs(names, time, think_us)?,
            Contender::Blocking(library) => blocking_pairs(&**library, names, time, think_us)?,
        };
        self.records = records;
        Ok(format!("done pairs={} errors={errors}", self.records.len()))
    }

    fn meet(&mut self, arguments: &Arguments<'_>) -> Result<String> {
        let Contender::Blocking(library) = &self.contender else {
            return Ok("unsupported".to_owned());
        };
        let mut workers = [arguments.text("own")?, arguments.text("other")?]
            .map(|name| library.worker(name))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let (share, time) = (arguments.number("share")?, arguments.millis("millis")?);
        let pause = Duration::from_micros(arguments.number("pause_us")?);
        let (mut held, mut errors) = (Held::default(), 0);
        self.records.clear();
        let end = stamp::now() + u64::try_from(time.as_nanos())?;
        // The pairs with the other lock are spread evenly.
        let mut due = 0;
        while stamp::now() < end {
            due += share;
            let number = due / HUNDRED_PERCENT;
            due %= HUNDRED_PERCENT;
            let asked = stamp::now();
            match workers[usize::try_from(number)?].pair(&mut held) {
                Ok(()) => self.records.push(Record::of(number, asked, &held)),
                Err(_) => errors += 1,
            }
            thread::sleep(pause);
        }
        Ok(format!("done pairs={} errors={errors}", self.records.len()))
    }

    fn nested(&mut self, arguments: &Arguments<'_>) -> Result<String> {
        let Contender::Blocking(library) = &self.contender else {
            return Ok("unsupported".to_owned());
        };
        let (names, time) = (arguments.names("threads")?, arguments.millis("millis")?);
        let workers: Result<Vec<_>> = names.iter().map(|name| library.worker(name)).collect();
        let begin = Barrier::new(names.len());
        let counts = thread::scope(|scope| {
            let threads: Vec<_> = workers?
                .into_iter()
                .map(|worker| scope.spawn(|| nested_pairs(worker, &begin, time)))
                .collect();
            threads
                .into_iter()
                .map(|thread| joined(thread.join()))
                .collect::<Result<Option<Vec<_>>>>()
        })?;
        let Some(counts) = counts else { return Ok("unsupported".to_owned()) };
        let pairs: u64 = counts.iter().map(|(pairs, _)| pairs).sum();
        let nanos: u64 = counts.iter().map(|(_, nanos)| nanos).sum();
        let each = nanos as f64 / pairs.max(1) as f64;
        Ok(format!("done pairs={pairs} errors=0 nanos={each:.2}"))
    }

    fn write(&self, file: &str) -> Result<String> {
        let bytes: Vec<u8> = self.records.iter().flat_map(Record::bytes).collect();
        fs::write(file, bytes)?;
        Ok("written".to_owned())
    }

    fn hold(&mut self, arguments: &Arguments<'_>) -> Result<String> {
        let holder = match &self.contender {
            Contender::Blocking(library) => library.holder(arguments.millis("lease_ms")?),
            #[cfg(feature = "peers")]
            Contender::Tasks(_) => None,
        };
        let Some(holder) = holder else { return Ok("unsupported".to_owned()) };
        let holder = self.holder.insert(holder?);
        let names = arguments.names("count")?;
        for name in &names {
            holder.acquire(name)?;
        }
        Ok(format!("holding count={}", names.len()))
    }

    fn release_held(&mut self) -> Result<String> {
        let holder = self.holder.take().ok_or("nothing is held")?;
        Ok(format!("dropped lost={}", holder.release_all()))
    }

    fn wait(&mut self, arguments: &Arguments<'_>) -> Result<String> {
        if !self.contender.waits() {
            return Ok("unsupported".to_owned());
        }
        let names = arguments.names("count")?;
        let mut taken = names.clone();
        taken.dedup();
        let count = names.len();
        let library = match &mut self.contender {
            #[cfg(feature = "peers")]
            Contender::Tasks(tasks) => {
                tasks.wait(taken, names)?;
                return Ok(format!("waiting count={count}"));
            }
            Contender::Blocking(library) => library,
        };
        let (free, freed) = mpsc::channel();
        let (own, (acquired, ready)) = (library.another()?, mpsc::channel());
        let body = move || hold_until_freed(&*own, &taken, &acquired, &freed);
        let holder = thread::Builder::new().stack_size(HOLDER_STACK).spawn(body)?;
        if ready.recv().is_err() {
            return Err(joined(holder.join())
                .err()
                .unwrap_or_else(|| "nothing was acquired".into()));
        }
        let (waiters, bytes) = start_waiters(&**library, names)?;
        self.waiting = Some(Waiting { free, holder, waiters });
        Ok(format!("waiting count={count} heap={bytes}"))
    }

    fn free(&mut self) -> Result<String> {
        let (nanos, errors) = match &mut self.contender {
            #[cfg(feature = "peers")]
            Contender::Tasks(tasks) => tasks.free()?,
            Contender::Blocking(_) => self.waiting.take().ok_or("nobody waits")?.free()?,
        };
        Ok(format!("drained nanos={nanos} errors={errors}"))
    }

    fn make_handles(&mut self, arguments: &Arguments<'_>) -> Result<String> {
        let Contender::Blocking(library) = &self.contender else {
            return Ok("unsupported".to_owned());
        };
        let names = arguments.names("count")?;
        self.handles = Vec::with_capacity(names.len());
        heap::start_counting();
        let begin = stamp::now();
        for name in names {
            let Some(handle) = library.handle(name) else { return Ok("unsupported".to_owned()) };
            self.handles.push(handle);
        }
        let nanos = stamp::now() - begin;
        Ok(format!("handles nanos={nanos} heap={}", heap::stop_counting()))
    }

    fn start(&mut self, count: u64) -> Result<String> {
        let nanos = match &self.contender {
            #[cfg(feature = "peers")]
            Contender::Tasks(tasks) => tasks.start(count)?,
            Contender::Blocking(library) => {
                let begin = stamp::now();
                for _ in 0..count {
                    let own = library.another()?;
                    own.worker("bench:start")?.pair(&mut Held::default())?;
                }
                stamp::now() - begin
            }
        };
        Ok(format!("started nanos={nanos}"))
    }
}

fn blocking_pairs(
    library: &dyn Blocking,
    names: Vec<String>,
    time: Duration,
    think_us: u64,
) -> Result<(Vec<Record>, u64)> {
    let workers: Result<Vec<_>> = names.iter().map(|name| library.worker(name)).collect();
    let (workers, begin) = (workers?, Barrier::new(names.len()));
    let begin = &begin;
    let done: Vec<_> = thread::scope(|scope| {
        let start = |(number, worker)| {
            scope.spawn(move || one_worker(number, worker, begin, time, think_us))
        };
        let threads: Vec<_> = (0..).zip(workers).map(start).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let errors = done.iter().map(|(_, errors)| errors).sum();
    Ok((done.into_iter().flat_map(|(records, _)| records).collect(), errors))
}

fn one_worker(
    number: u64,
    mut worker: Box<dyn Worker>,
    begin: &Barrier,
    time: Duration,
    think_us: u64,
) -> (Vec<Record>, u64) {
    let (mut records, mut errors, mut held) = (Vec::new(), 0, Held::default());
    begin.wait();
    let end = stamp::now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    while stamp::now() < end {
        let asked = stamp::now();
        match worker.pair(&mut held) {
            Ok(()) => records.push(Record::of(number, asked, &held)),
            Err(_) => errors += 1,
        }
        stamp::spin(think_us);
    }
    (records, errors)
}

/// Returns the number of pairs and their time in nanoseconds. `None` without re-entry.
fn nested_pairs(
    mut worker: Box<dyn Worker>,
    begin: &Barrier,
    time: Duration,
) -> Result<Option<(u64, u64)>> {
    let (mut pairs, mut nanos) = (0, 0);
    let mut body = |pair: &mut dyn FnMut() -> Result| {
        begin.wait();
        let start = stamp::now();
        let end = start + u64::try_from(time.as_nanos())?;
        while stamp::now() < end {
            for _ in 0..ROUND {
                pair()?;
            }
            pairs += ROUND;
        }
        nanos = stamp::now() - start;
        Ok(())
    };
    match worker.nest(&mut body) {
        None => Ok(None),
        Some(done) => done.map(|()| Some((pairs, nanos))),
    }
}

/// Holds all of `names` until `freed` receives. Returns the moment just before the release.
fn hold_until_freed(
    library: &dyn Blocking,
    names: &[String],
    acquired: &mpsc::Sender<()>,
    freed: &mpsc::Receiver<()>,
) -> Result<u64> {
    let mut since = 0;
    nest_holds(library, names, &mut || {
        let _ = acquired.send(());
        let _ = freed.recv();
        since = stamp::now();
    })?;
    Ok(since)
}

/// Holds one lock within the other, because a hold ends when its closure returns.
fn nest_holds(library: &dyn Blocking, names: &[String], within: &mut dyn FnMut()) -> Result {
    let Some((first, others)) = names.split_first() else {
        within();
        return Ok(());
    };
    let mut inner = Ok(());
    library.worker(first)?.hold(&mut || inner = nest_holds(library, others, within))?;
    inner
}

/// Starts the waiters. Returns them and the bytes that their waits allocate.
fn start_waiters(
    library: &dyn Blocking,
    names: Vec<String>,
) -> Result<(Vec<JoinHandle<Result>>, i64)> {
    let count = names.len();
    let (begin, asked) = (Arc::new(Barrier::new(count + 1)), Arc::new(AtomicUsize::new(0)));
    let mut waiters = Vec::with_capacity(count);
    for name in names {
        let (mut worker, begin, asked) =
            (library.worker(&name)?, Arc::clone(&begin), Arc::clone(&asked));
        let body = move || {
            begin.wait();
            asked.fetch_add(1, Ordering::Relaxed);
            worker.pair(&mut Held::default())
        };
        waiters.push(thread::Builder::new().stack_size(WAITER_STACK).spawn(body)?);
    }
    heap::start_counting();
    begin.wait();
    while asked.load(Ordering::Relaxed) < count {
        thread::sleep(Duration::from_millis(1));
    }
    // All waiters are about to call. The pause lets them all wait before the count ends.
    thread::sleep(Duration::from_secs(1) + Duration::from_micros(500) * u32::try_from(count)?);
    Ok((waiters, heap::stop_counting()))
}

impl Waiting {
    /// Returns the nanoseconds from the release to the last end, and the number of failures.
    fn free(self) -> Result<(u64, u64)> {
        self.free.send(()).map_err(|_| Failure::from("the holder has ended"))?;
        let done = self.waiters.into_iter().map(|thread| joined(thread.join()));
        let errors = done.filter(Result::is_err).count();
        let end = stamp::now();
        Ok((end - joined(self.holder.join())?, u64::try_from(errors)?))
    }
}

/// Returns the result of a joined thread, or an error if it panicked.
fn joined<T>(outcome: thread::Result<Result<T>>) -> Result<T> {
    outcome.map_err(|_| Failure::from("a worker panicked"))?
}
