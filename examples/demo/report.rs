//! The reports of a worker to the parent: one line each on its standard output.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A step of a thread with the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Waiting,
    Acquired,
    Released,
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// All threads run.
    Ready,
    /// A thread began a slow job.
    Took { thread: usize, job: usize },
    /// A thread did a slow job and recorded it.
    Did { thread: usize, job: usize },
    /// A thread noticed the loss of its lock and did not record its job.
    Noticed { thread: usize, job: usize, why: String },
    /// The client's `waited` event.
    Waited(Duration),
    /// The client's `lost` event.
    Lost,
    /// A thread did a step with the lock, at a time since 1970.
    Lock { thread: usize, step: Step, at: Duration },
}

impl Step {
    /// The steps with their words, which are those of `leasehold watch --json`.
    const ALL: [(Step, &str); 4] = [
        (Step::Waiting, "waiting"),
        (Step::Acquired, "acquired"),
        (Step::Released, "released"),
        (Step::Lost, "lost"),
    ];

    pub(crate) fn word(self) -> &'static str {
        Step::ALL.iter().find(|(step, _)| *step == self).map_or("", |(_, word)| word)
    }

    fn read(word: &str) -> Option<Step> {
        Step::ALL.iter().find(|(_, known)| *known == word).map(|(step, _)| *step)
    }
}

/// Returns the time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Report {
    /// Returns the report of a present step.
    pub(crate) fn lock(thread: usize, step: Step) -> Report {
        Report::Lock { thread, step, at: now() }
    }

    /// Prints the report.
    pub(crate) fn send(&self) {
        match self {
            Report::Ready => println!("ready"),
            Report::Took { thread, job } => println!("took {thread} {job}"),
            Report::Did { thread, job } => println!("did {thread} {job}"),
            Report::Noticed { thread, job, why } => println!("noticed {thread} {job} {why}"),
            Report::Waited(time) => println!("waited {}", time.as_micros()),
            Report::Lost => println!("lost"),
            Report::Lock { thread, step, at } => {
                println!("lock {thread} {} {}", at.as_micros(), step.word());
            }
        }
    }

    /// Reads a report; `None` for any other line.
    pub(crate) fn read(line: &str) -> Option<Report> {
        let mut words = line.splitn(4, ' ');
        let first = words.next()?;
        let mut number = || words.next().and_then(|word| word.parse().ok());
        Some(match first {
            "ready" => Report::Ready,
            "took" => Report::Took { thread: number()?, job: number()? },
            "did" => Report::Did { thread: number()?, job: number()? },
            "noticed" => {
                let (thread, job) = (number()?, number()?);
                Report::Noticed { thread, job, why: words.next()?.to_owned() }
            }
            "waited" => Report::Waited(Duration::from_micros(u64::try_from(number()?).ok()?)),
            "lost" => Report::Lost,
            "lock" => {
                let (thread, at) = (number()?, u64::try_from(number()?).ok()?);
                let step = Step::read(words.next()?)?;
                Report::Lock { thread, step, at: Duration::from_micros(at) }
            }
            _ => return None,
        })
    }
}
