//! The list of jobs in Redis and the record: plain keys without protection.

use std::collections::HashMap;
use std::process;

use redis::Connection;

use super::Result;

/// A job. Numbers start at 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) number: usize,
    /// The job lasts until the parent permits its end.
    pub(crate) slow: bool,
}

/// A done job, and the thread that did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) job: usize,
    pub(crate) process: u32,
    pub(crate) thread: usize,
}

/// The keys of this run.
///
/// After the prefix: `jobs`, a list of "quick" and "slow"; `done`, the number of done jobs; `log`,
/// a list of "job process thread".
pub(crate) struct Jobs {
    connection: Connection,
    keys: String,
}

impl Jobs {
    pub(crate) fn open(url: &str, keys: &str) -> Result<Jobs> {
        let connection = redis::Client::open(url)?.get_connection()?;
        Ok(Jobs { connection, keys: keys.to_owned() })
    }

    /// Writes a new list.
    pub(crate) fn write(&mut self, kinds: &[&str]) -> Result<()> {
        redis::cmd("RPUSH").arg(self.key("jobs")).arg(kinds).exec(&mut self.connection)?;
        Ok(())
    }

    /// Reads the next job.
    pub(crate) fn next(&mut self) -> Result<Option<Job>> {
        let done = redis::cmd("GET").arg(self.key("done")).query(&mut self.connection)?;
        let done: usize = Option::unwrap_or_default(done);
        let mut kind = redis::cmd("LINDEX");
        let kind: Option<String> =
            kind.arg(self.key("jobs")).arg(done).query(&mut self.connection)?;
        Ok(kind.map(|kind| Job { number: done + 1, slow: kind == "slow" }))
    }

    /// Records a job as done by this process. Two commands in one write, so that little time passes
    /// after the last check of the lock.
    pub(crate) fn record(&mut self, job: Job, thread: usize) -> Result<()> {
        let line = format!("{} {} {thread}", job.number, process::id());
        let mut commands = redis::pipe();
        commands.rpush(self.key("log"), line).set(self.key("done"), job.number);
        commands.exec(&mut self.connection)?;
        Ok(())
    }

    /// Reads the done jobs in the order of the record.
    pub(crate) fn log(&mut self) -> Result<Vec<Done>> {
        let mut log = redis::cmd("LRANGE");
        let lines: Vec<String> =
            log.arg(self.key("log")).arg(0).arg(-1).query(&mut self.connection)?;
        let done = lines.iter().map(|line| Done::read(line));
        done.collect::<Option<_>>().ok_or_else(|| "the log in Redis cannot be read".into())
    }

    /// Removes all keys of this run except that of the lock.
    pub(crate) fn delete(&mut self) -> Result<()> {
        let keys = ["jobs", "done", "log"].map(|name| self.key(name));
        redis::cmd("DEL").arg(&keys).exec(&mut self.connection)?;
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.keys)
    }
}

impl Done {
    fn read(line: &str) -> Option<Done> {
        let mut words = line.split(' ');
        Some(Done {
            job: words.next()?.parse().ok()?,
            process: words.next()?.parse().ok()?,
            thread: words.next()?.parse().ok()?,
        })
    }
}

/// The figures of a log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) done: usize,
    pub(crate) twice: usize,
    pub(crate) never: usize,
    pub(crate) between_processes: usize,
    pub(crate) between_threads: usize,
}

impl Count {
    pub(crate) fn of(log: &[Done], jobs: usize) -> Count {
        let mut times: HashMap<usize, usize> = (1..=jobs).map(|job| (job, 0)).collect();
        log.iter().for_each(|done| *times.entry(done.job).or_default() += 1);
        let moves = |is_move: &dyn Fn(&Done, &Done) -> bool| {
            log.windows(2).filter(|pair| is_move(&pair[0], &pair[1])).count()
        };
        Count {
            done: log.len(),
            twice: times.values().filter(|times| **times > 1).count(),
            never: times.values().filter(|times| **times == 0).count(),
            between_processes: moves(&|a, b| a.process != b.process),
            between_threads: moves(&|a, b| a.process == b.process && a.thread != b.thread),
        }
    }
}
