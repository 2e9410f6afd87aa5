//! The reports of a worker to the parent: one line each on its standard output.

use std::time::Duration;

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
}

impl Report {
    /// Prints the report.
    pub(crate) fn send(&self) {
        match self {
            Report::Ready => println!("ready"),
            Report::Took { thread, job } => println!("took {thread} {job}"),
            Report::Did { thread, job } => println!("did {thread} {job}"),
            Report::Noticed { thread, job, why } => println!("noticed {thread} {job} {why}"),
            Report::Waited(time) => println!("waited {}", time.as_micros()),
            Report::Lost => println!("lost"),
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
            _ => return None,
        })
    }
}
