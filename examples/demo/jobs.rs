//! The list of jobs in Redis, and the record of what was done: plain keys, guarded by
//! nothing.

use std::collections::HashMap;
use std::process;

use redis::Connection;

use super::Result;

/// A job. Its number counts from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) number: usize,
    /// It takes until the parent says so.
    pub(crate) slow: bool,
}

/// Who did a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) job: usize,
    pub(crate) process: u32,
    pub(crate) thread: usize,
}

/// The three keys, behind the prefix of this run: `jobs`, a list of "quick" and "slow";
/// `done`, how many are done; `log`, a list of "job process thread".
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

    /// Reads which job is next.
    pub(crate) fn next(&mut self) -> Result<Option<Job>> {
        let done = redis::cmd("GET").arg(self.key("done")).query(&mut self.connection)?;
        let done: usize = Option::unwrap_or_default(done);
        let mut kind = redis::cmd("LINDEX");
        let kind: Option<String> =
            kind.arg(self.key("jobs")).arg(done).query(&mut self.connection)?;
        Ok(kind.map(|kind| Job { number: done + 1, slow: kind == "slow" }))
    }

    /// Writes down that this process has done a job: two commands in one write, so that
    /// little time passes between the last look at the lock and this.
    pub(crate) fn record(&mut self, job: Job, thread: usize) -> Result<()> {
        let line = format!("{} {} {thread}", job.number, process::id());
        let mut commands = redis::pipe();
        commands.rpush(self.key("log"), line).set(self.key("done"), job.number);
        commands.exec(&mut self.connection)?;
        Ok(())
    }

    /// Reads what was done, in the order in which it was recorded.
    pub(crate) fn log(&mut self) -> Result<Vec<Done>> {
        let mut log = redis::cmd("LRANGE");
        let lines: Vec<String> =
            log.arg(self.key("log")).arg(0).arg(-1).query(&mut self.connection)?;
        let done = lines.iter().map(|line| Done::read(line));
        done.collect::<Option<_>>().ok_or_else(|| "the log in Redis is not readable".into())
    }

    /// Removes all keys of this run but the lock's.
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

/// What the log says about a list of jobs.
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
        let handed = |to_thread: &dyn Fn(&Done, &Done) -> bool| {
            log.windows(2).filter(|pair| to_thread(&pair[0], &pair[1])).count()
        };
        Count {
            done: log.len(),
            twice: times.values().filter(|times| **times > 1).count(),
            never: times.values().filter(|times| **times == 0).count(),
            between_processes: handed(&|a, b| a.process != b.process),
            between_threads: handed(&|a, b| a.process == b.process && a.thread != b.thread),
        }
    }
}
