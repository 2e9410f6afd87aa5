//! The worker processes, as their parent sees them.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Result;
use super::said::Said;
use super::worker::START;

/// How long the parent waits for anything before it gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The workers. Dropped, it kills those that still run.
pub(crate) struct Crew {
    workers: Vec<Worker>,
    heard: Receiver<Heard>,
    tally: Tally,
}

/// What the workers have told of all locks together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) waits: usize,
    pub(crate) longest_wait: Duration,
    pub(crate) lost: usize,
}

struct Worker {
    name: char,
    child: Child,
    word: ChildStdin,
    killed: bool,
    ended: bool,
}

/// A line of a worker; without words, its end.
#[derive(Debug)]
struct Heard {
    worker: usize,
    at: Instant,
    said: Option<Said>,
}

/// A thread that has taken a job, done it, or lost it.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) worker: usize,
    /// Its name: `A1`.
    pub(crate) who: String,
    pub(crate) at: Instant,
}

impl Crew {
    /// Starts this program anew as workers A, B, C, ... with `arguments`, and waits
    /// until all are ready.
    pub(crate) fn start(size: u8, url: &str, arguments: &[&str]) -> Result<Crew> {
        let (sender, heard) = mpsc::channel();
        let mut crew = Crew { workers: Vec::new(), heard, tally: Tally::default() };
        for (number, name) in (b'A'..b'A' + size).enumerate() {
            let mut child = Command::new(env::current_exe()?)
                .args(arguments)
                .env("REDIS_URL", url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (Some(word), Some(lines)) = (child.stdin.take(), child.stdout.take()) else {
                unreachable!("both are piped")
            };
            let (name, killed, ended) = (char::from(name), false, false);
            crew.workers.push(Worker { name, child, word, killed, ended });
            let sender = sender.clone();
            thread::spawn(move || listen(number, lines, &sender));
        }
        for _ in 0..size {
            crew.wait_for("a worker to start", |_, said| said.eq(&Said::Ready).then_some(()))?;
        }
        Ok(crew)
    }

    /// Waits until a slow job is taken, by whichever worker or by another than that
    /// one.
    pub(crate) fn taker(&mut self, job: usize, other_than: Option<usize>) -> Result<Turn> {
        let (taken, thread) = self.wait_for("a worker to take a slow job", |worker, said| {
            let &Said::Took { thread, job: taken } = said else { return None };
            (taken == job && other_than != Some(worker)).then_some(thread)
        })?;
        Ok(self.turn(&taken, thread))
    }

    /// Lets whoever works on a slow job finish it, and waits until it is done.
    pub(crate) fn let_finish(&mut self, job: usize) -> Result<Turn> {
        self.give_word(job);
        let (done, thread) = self.wait_for("a slow job to be done", |_, said| {
            let &Said::Did { thread, job: done } = said else { return None };
            (done == job).then_some(thread)
        })?;
        Ok(self.turn(&done, thread))
    }

    /// Waits until a thread that took a job notices that its lock is gone, and says why.
    pub(crate) fn loss(&mut self, job: usize, taken: &Turn) -> Result<(Turn, String)> {
        let (noticed, (thread, why)) = self.wait_for("a loss to be noticed", |worker, said| {
            let Said::Noticed { thread, job: lost, why } = said else { return None };
            (*lost == job && worker == taken.worker).then(|| (*thread, why.clone()))
        })?;
        Ok((self.turn(&noticed, thread), why))
    }

    fn turn(&self, heard: &Heard, thread: usize) -> Turn {
        let who = self.who(self.member(heard.worker).1, thread);
        Turn { worker: heard.worker, who, at: heard.at }
    }

    /// Waits for something that a worker says, and passes over what comes before it.
    fn wait_for<T>(
        &mut self,
        what: &str,
        find: impl Fn(usize, &Said) -> Option<T>,
    ) -> Result<(Heard, T)> {
        let end = Instant::now() + PATIENCE;
        while self.is_any_left() {
            let heard = self.hear(what, end)?;
            let found = heard.said.as_ref().and_then(|said| find(heard.worker, said));
            if let Some(found) = found {
                return Ok((heard, found));
            }
        }
        Err(format!("all workers have ended; waited in vain for {what}").into())
    }

    /// The next line of any worker, counted. That a worker fails is an error.
    fn hear(&mut self, what: &str, end: Instant) -> Result<Heard> {
        let left = end.saturating_duration_since(Instant::now());
        let heard = self.heard.recv_timeout(left);
        let heard = heard.map_err(|_| format!("waited {PATIENCE:?} in vain for {what}"))?;
        match heard.said {
            Some(Said::Waited(time)) => {
                self.tally.waits += 1;
                self.tally.longest_wait = self.tally.longest_wait.max(time);
            }
            Some(Said::Lost) => self.tally.lost += 1,
            None => self.workers[heard.worker].end()?,
            Some(_) => {}
        }
        Ok(heard)
    }

    fn is_any_left(&self) -> bool {
        self.workers.iter().any(|worker| !worker.ended)
    }

    /// Has the workers begin.
    pub(crate) fn begin(&mut self) {
        self.give_word(START);
    }

    /// Gives all workers the word for a slow job: whoever works on it is done.
    fn give_word(&mut self, job: usize) {
        for worker in &mut self.workers {
            // One that has been killed does not listen.
            let _ = writeln!(worker.word, "{job}");
        }
    }

    /// Kills a worker: it has no chance to do anything more.
    pub(crate) fn kill(&mut self, worker: usize) -> Result<()> {
        self.workers[worker].killed = true;
        self.workers[worker].child.kill()?;
        Ok(())
    }

    /// Stops a worker as Ctrl-Z would, and a debugger or a suspended machine.
    pub(crate) fn stop(&self, worker: usize) -> Result<()> {
        self.workers[worker].signal(Signal::STOP)
    }

    /// Lets a stopped worker go on.
    pub(crate) fn go_on(&self, worker: usize) -> Result<()> {
        self.workers[worker].signal(Signal::CONT)
    }

    /// Waits until all workers have ended, and gives what they have told in all.
    pub(crate) fn finish(&mut self) -> Result<Tally> {
        let end = Instant::now() + PATIENCE;
        while self.is_any_left() {
            self.hear("the workers to end", end)?;
        }
        Ok(self.tally)
    }

    /// The name and the process id of a worker.
    pub(crate) fn member(&self, worker: usize) -> (char, u32) {
        let Worker { name, child, .. } = &self.workers[worker];
        (*name, child.id())
    }

    /// What a thread of the process with that id is called: `A1`.
    pub(crate) fn who(&self, id: u32, thread: usize) -> String {
        let worker = self.workers.iter().find(|worker| worker.child.id() == id);
        let name = worker.map_or('?', |worker| worker.name);
        format!("{name}{thread}")
    }
}

impl Worker {
    /// It has said its last word. An error if it has failed.
    fn end(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        let killed = self.killed && status.signal() == Some(Signal::KILL.as_raw());
        if !(status.success() || killed) {
            return Err(format!("worker {} has failed: {status}", self.name).into());
        }
        self.ended = true;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for Worker {
    /// The parent may be on its way out because of an error.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads what a worker says until it ends.
fn listen(worker: usize, lines: ChildStdout, sender: &Sender<Heard>) {
    let said = BufReader::new(lines).lines().map_while(|line| line.ok());
    let said = said.filter_map(|line| Said::read(&line)).map(Some);
    for said in said.chain([None]) {
        let _ = sender.send(Heard { worker, at: Instant::now(), said });
    }
}
