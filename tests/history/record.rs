//! What a worker writes down, line by line, as it happens: one that is killed has said all
//! but its last few microseconds.

use super::Nanos;
use super::worker::Kind;
use std::str::SplitWhitespace;

/// One thing that happened to an attempt to get a lock. Attempts are counted by each worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub attempt: u64,
    pub at: Nanos,
    pub what: What,
}

/// What it was.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// It is about to ask for the lock.
    Asks(Wish),
    /// It has the lock, with this fencing token, or 0.
    Got { token: u64 },
    /// It looked, and its hold was valid.
    Valid,
    /// It looked, and its hold was over, though it had not ended it.
    Lost,
    /// It is about to end its hold.
    Ends,
    /// It has ended it.
    Ended(End),
    /// Its patience ended before it had the lock.
    Refused,
    /// It got an error, of this kind, instead of the lock.
    Failed(String),
}

/// For what it asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    pub lock: String,
    /// Others may hold the lock beside it if they too share.
    pub shares: bool,
    /// Milliseconds of a fixed lease, or `None` for one that is renewed.
    pub lease: Option<u64>,
    /// Milliseconds for which it is willing to wait.
    pub patience: u64,
}

/// How a hold was ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// `unlock()` said that the lock is free.
    Unlocked,
    /// The guard was dropped.
    Dropped,
    /// `unlock()` gave an error: it may have been released, or not.
    Unknown,
}

impl Record {
    /// The line that says it.
    pub fn line(&self) -> String {
        let Record { attempt, at, what } = self;
        let what = match what {
            What::Asks(Wish { lock, shares, lease, patience }) => {
                let lease = lease.map_or("renewed".to_owned(), |lease| lease.to_string());
                format!("asks {lock} {shares} {lease} {patience}")
            }
            What::Got { token } => format!("got {token}"),
            What::Valid => "valid".to_owned(),
            What::Lost => "lost".to_owned(),
            What::Ends => "ends".to_owned(),
            What::Ended(End::Unlocked) => "unlocked".to_owned(),
            What::Ended(End::Dropped) => "dropped".to_owned(),
            What::Ended(End::Unknown) => "unknown".to_owned(),
            What::Refused => "refused".to_owned(),
            What::Failed(kind) => format!("failed {kind}"),
        };
        format!("{attempt} {at} {what}")
    }

    /// What a line says; `None` if it is none, or was cut off.
    pub fn parse(line: &str) -> Option<Record> {
        let mut words = line.split_whitespace();
        let (attempt, at) = (number(&mut words)?, number(&mut words)?);
        let what = match words.next()? {
            "asks" => What::Asks(Wish::parse(&mut words)?),
            "got" => What::Got { token: number(&mut words)? },
            "valid" => What::Valid,
            "lost" => What::Lost,
            "ends" => What::Ends,
            "unlocked" => What::Ended(End::Unlocked),
            "dropped" => What::Ended(End::Dropped),
            "unknown" => What::Ended(End::Unknown),
            "refused" => What::Refused,
            "failed" => What::Failed(words.next()?.to_owned()),
            _ => return None,
        };
        Some(Record { attempt, at, what })
    }
}

impl Wish {
    /// Whether it is for a lock at which all stand in a queue.
    pub fn queues(&self) -> bool {
        self.lock.starts_with(&Kind::Fair.to_string())
    }

    fn parse(words: &mut SplitWhitespace<'_>) -> Option<Wish> {
        let (lock, shares) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let lease = match words.next()? {
            "renewed" => None,
            lease => Some(lease.parse().ok()?),
        };
        Some(Wish { lock, shares, lease, patience: number(words)? })
    }
}

fn number(words: &mut SplitWhitespace<'_>) -> Option<u64> {
    words.next()?.parse().ok()
}

#[test]
fn what_a_line_says_is_what_was_written() {
    let wish = |lease| Wish { lock: "rw:1".to_owned(), shares: true, lease, patience: 20 };
    let all = [
        What::Asks(wish(None)),
        What::Asks(wish(Some(70))),
        What::Got { token: 12 },
        What::Valid,
        What::Lost,
        What::Ends,
        What::Ended(End::Unlocked),
        What::Ended(End::Dropped),
        What::Ended(End::Unknown),
        What::Refused,
        What::Failed("timeout".to_owned()),
    ];
    for (attempt, what) in (7..).zip(all) {
        let record = Record { attempt, at: 1 << 60, what };
        assert_eq!(Record::parse(&record.line()), Some(record));
    }
    for cut in ["", "1", "1 2", "1 2 as", "1 2 asks plain:0 false", "1 2 got", "x 2 valid"] {
        assert_eq!(Record::parse(cut), None, "{cut}");
    }
}
