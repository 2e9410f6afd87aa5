//! What a worker tells the parent: one line each on its standard output.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// All threads are there.
    Ready,
    /// A thread has begun a slow job.
    Took { thread: usize, job: usize },
    /// A thread has done a slow job, and recorded it.
    Did { thread: usize, job: usize },
    /// A thread has noticed that its lock is gone, and did not record its job.
    Noticed { thread: usize, job: usize, why: String },
    /// The client's `waited` event.
    Waited(Duration),
    /// The client's `lost` event.
    Lost,
}

impl Said {
    pub(crate) fn say(&self) {
        match self {
            Said::Ready => println!("ready"),
            Said::Took { thread, job } => println!("took {thread} {job}"),
            Said::Did { thread, job } => println!("did {thread} {job}"),
            Said::Noticed { thread, job, why } => println!("noticed {thread} {job} {why}"),
            Said::Waited(time) => println!("waited {}", time.as_micros()),
            Said::Lost => println!("lost"),
        }
    }

    /// `None` for a line that is none of these.
    pub(crate) fn read(line: &str) -> Option<Said> {
        let mut words = line.splitn(4, ' ');
        let first = words.next()?;
        let mut number = || words.next().and_then(|word| word.parse().ok());
        Some(match first {
            "ready" => Said::Ready,
            "took" => Said::Took { thread: number()?, job: number()? },
            "did" => Said::Did { thread: number()?, job: number()? },
            "noticed" => {
                let (thread, job) = (number()?, number()?);
                Said::Noticed { thread, job, why: words.next()?.to_owned() }
            }
            "waited" => Said::Waited(Duration::from_micros(u64::try_from(number()?).ok()?)),
            "lost" => Said::Lost,
            _ => return None,
        })
    }
}
