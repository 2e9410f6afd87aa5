//! The records of a worker: one line per event.
//!
//! A worker writes each line at once, so a killed worker loses at most its last few microseconds.

use crate::kind::{CAPACITY, Kind};
use crate::system::Nanos;
use std::str::SplitWhitespace;

/// Whole milliseconds as nanoseconds.
pub const fn millis(count: u64) -> Nanos {
    count * 1_000_000
}

/// An event with its moment and the number of its attempt. Each worker numbers its attempts.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub attempt: u64,
    pub at: Nanos,
    pub event: Event,
}

/// An event of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The worker is about to call for the lock.
    Asks(Request),
    /// The worker has the lock. The fencing token is 0 for locks without tokens.
    Granted { token: u64 },
    /// A check finds the hold valid.
    Valid,
    /// A check finds the hold over, though the worker has not released it.
    Lost,
    /// The worker has extended the hold by its fixed lease, or has tried to extend a red lock.
    Extended,
    /// The worker is about to release the hold.
    Ends,
    /// The worker has released the hold.
    Ended(End),
    /// The worker has made a call about a latch or a result, or a lock is held. A wait has ended
    /// with an open latch, or with work that is done.
    Done,
    /// A reader or an observer of an election learns this leader, or that there is none. A caller
    /// learns this result of work. Or the answer to a question has this token, and no value.
    Seen(Option<Seen>),
    /// The call gave up at its deadline, or changed nothing, or a lock is free.
    Refused,
    /// The call returned this error: its kind and text as one word.
    Failed(String),
    /// A short sleep of the worker lasted this much longer. The number of the attempt is 0.
    Stalled(Nanos),
}

/// The leader of an election, or the result of work, as another process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub token: u64,
    /// The value of the leader or of the result, 0 for a text that is no number.
    pub value: u64,
}

/// The lock and the options of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub lock: String,
    pub verb: Verb,
    /// Whether the hold may coexist with other shared holds.
    pub shared: bool,
    /// The fixed lease in milliseconds, or `None` for a renewed lease.
    pub lease: Option<u64>,
    /// The renewed lease in milliseconds, if it is not that of the client.
    pub renewed: Option<u64>,
    /// The linger time in milliseconds.
    pub linger: Option<u64>,
    /// The longest wait in milliseconds.
    pub max_wait: u64,
    /// Whether a cancellation ends the wait, in place of a time-out.
    pub cancelled: bool,
    /// The weight of a waiter for a queue lock.
    pub weight: u32,
    /// The permits of a semaphore, its new capacity, or the count that is set; otherwise 1.
    pub permits: u32,
    /// The longest hold in milliseconds, or `None`.
    pub max_hold: Option<u64>,
    /// The minimum hold in milliseconds, or `None`.
    pub min_hold: Option<u64>,
    /// How long the result of work is kept, in milliseconds.
    pub keep: Option<u64>,
    /// The value of a candidate or of a result, another one for each call; otherwise 0.
    pub value: u64,
}

/// The verb of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Acquires a lock or permits, wins an election, waits for a latch, or begins work.
    Acquire,
    /// Acquires a lock as one of the members of a multi-lock.
    Join,
    /// Waits for a term inside of `run`.
    Lead,
    /// Asks for the leader of an election.
    Look,
    /// Observes an election.
    Observe,
    /// Asks whether a lock is held.
    Ask,
    /// Searches for locks, which tells whether this one is held.
    Search,
    /// Sets the capacity of a semaphore.
    Resize,
    /// Adds permits to a plain semaphore, or takes some away.
    Add,
    Remove,
    SetCount,
    CountDown,
    Delete,
    /// Reads the result of work, or deletes it.
    Outcome,
    Forget,
}

impl Verb {
    const ALL: [(Verb, &'static str); 15] = [
        (Verb::Acquire, "acquire"),
        (Verb::Join, "join"),
        (Verb::Lead, "lead"),
        (Verb::Look, "look"),
        (Verb::Observe, "observe"),
        (Verb::Ask, "ask"),
        (Verb::Search, "search"),
        (Verb::Resize, "resize"),
        (Verb::Add, "add"),
        (Verb::Remove, "remove"),
        (Verb::SetCount, "set"),
        (Verb::CountDown, "down"),
        (Verb::Delete, "delete"),
        (Verb::Outcome, "outcome"),
        (Verb::Forget, "forget"),
    ];

    fn parse(word: &str) -> Option<Verb> {
        Verb::ALL.iter().find(|(_, other)| *other == word).map(|(verb, _)| *verb)
    }
}

impl std::fmt::Display for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (_, word) = Verb::ALL.iter().find(|(verb, _)| verb == self).expect("one of all");
        f.write_str(word)
    }
}

/// How a worker releases a hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// `unlock()` reported that the lock is released.
    Unlocked,
    /// The commit of work reported that its result is written.
    Committed,
    /// The guard was dropped.
    Dropped,
    /// `unlock()`, or the commit, returned that the hold was lost.
    Lost,
    /// `unlock()` returned another error: the lock may be released or not. Or the commit did.
    Unknown,
}

impl Record {
    /// Formats the record as a line.
    pub fn line(&self) -> String {
        let Record { attempt, at, event } = self;
        let event = match event {
            Event::Asks(request) => request.line(),
            Event::Granted { token } => format!("granted {token}"),
            Event::Valid => "valid".to_owned(),
            Event::Lost => "lost".to_owned(),
            Event::Extended => "extended".to_owned(),
            Event::Ends => "ends".to_owned(),
            Event::Ended(End::Unlocked) => "unlocked".to_owned(),
            Event::Ended(End::Committed) => "committed".to_owned(),
            Event::Ended(End::Dropped) => "dropped".to_owned(),
            Event::Ended(End::Lost) => "gone".to_owned(),
            Event::Ended(End::Unknown) => "unknown".to_owned(),
            Event::Done => "done".to_owned(),
            Event::Seen(None) => "seen none".to_owned(),
            Event::Seen(Some(Seen { token, value })) => format!("seen {token} {value}"),
            Event::Refused => "refused".to_owned(),
            Event::Failed(kind) => format!("failed {kind}"),
            Event::Stalled(span) => format!("stalled {span}"),
        };
        format!("{attempt} {at} {event}")
    }

    /// Parses a line. Returns `None` for other lines and for incomplete ones.
    pub fn parse(line: &str) -> Option<Record> {
        let mut words = line.split_whitespace();
        let (attempt, at) = (number(&mut words)?, number(&mut words)?);
        let event = match words.next()? {
            "asks" => Event::Asks(Request::parse(&mut words)?),
            "granted" => Event::Granted { token: number(&mut words)? },
            "valid" => Event::Valid,
            "lost" => Event::Lost,
            "extended" => Event::Extended,
            "ends" => Event::Ends,
            "unlocked" => Event::Ended(End::Unlocked),
            "committed" => Event::Ended(End::Committed),
            "dropped" => Event::Ended(End::Dropped),
            "gone" => Event::Ended(End::Lost),
            "unknown" => Event::Ended(End::Unknown),
            "done" => Event::Done,
            "seen" => Event::Seen(Seen::parse(&mut words)?),
            "refused" => Event::Refused,
            "failed" => Event::Failed(words.next()?.to_owned()),
            "stalled" => Event::Stalled(number(&mut words)?),
            _ => return None,
        };
        Some(Record { attempt, at, event })
    }
}

impl Seen {
    /// Parses a leader, or the word for none.
    fn parse(words: &mut SplitWhitespace<'_>) -> Option<Option<Seen>> {
        let Some(token) = limit(words)? else { return Some(None) };
        Some(Some(Seen { token, value: number(words)? }))
    }
}

impl Request {
    /// Whether the lock is of this kind.
    fn is_of(&self, kind: Kind) -> bool {
        self.lock.starts_with(&kind.to_string())
    }

    /// Whether the call takes over holds that linger.
    pub fn may_linger(&self) -> bool {
        let kinds = [Kind::Plain, Kind::Fenced, Kind::Rw];
        !self.shared && kinds.into_iter().any(|kind| self.is_of(kind))
    }

    /// Whether the lock is fair, so that callers of all processes queue.
    pub fn is_fair(&self) -> bool {
        self.is_of(Kind::Fair)
    }

    /// Whether the lock is a queue lock, as that of an election is.
    pub fn is_queued(&self) -> bool {
        self.is_of(Kind::Election) || self.is_of(Kind::Queued)
    }

    /// Whether the call only reads the leader of an election.
    pub fn is_look(&self) -> bool {
        matches!(self.verb, Verb::Look | Verb::Observe)
    }

    /// Whether the call asks if a lock is held.
    pub fn is_question(&self) -> bool {
        matches!(self.verb, Verb::Ask | Verb::Search)
    }

    /// Whether the call reads or deletes the result of work.
    pub fn is_of_result(&self) -> bool {
        matches!(self.verb, Verb::Outcome | Verb::Forget)
    }

    /// Whether the lock is work that is done once.
    pub fn is_once(&self) -> bool {
        self.is_of(Kind::Once)
    }

    /// Whether the call changes the capacity of a semaphore.
    pub fn is_change(&self) -> bool {
        matches!(self.verb, Verb::Resize | Verb::Add | Verb::Remove)
    }

    /// Returns the number of permits that the call adds to a plain semaphore, negative if it takes
    /// some away.
    pub fn added(&self) -> i64 {
        let permits = i64::from(self.permits);
        if self.verb == Verb::Remove { -permits } else { permits }
    }

    /// Returns the number of permits that valid holds may have at once, 1 for a lock. That of a
    /// semaphore may change.
    pub fn capacity(&self) -> u32 {
        if self.is_leased() || self.is_counted() { CAPACITY } else { 1 }
    }

    /// Whether the lock is a semaphore with leased permits.
    pub fn is_leased(&self) -> bool {
        self.is_of(Kind::Semaphore)
    }

    /// Whether the lock is a latch, which nobody holds.
    pub fn is_latch(&self) -> bool {
        self.is_of(Kind::Latch)
    }

    /// Whether the lock is a plain semaphore, of which Redis only has a count.
    pub fn is_counted(&self) -> bool {
        self.is_of(Kind::Count)
    }

    fn line(&self) -> String {
        let Request { lock, shared, lease, renewed, max_wait, max_hold, min_hold, .. } = self;
        let Request { linger, cancelled, weight, permits, verb, keep, value, .. } = self;
        let [lease, renewed, linger, max_hold, min_hold, keep] =
            [lease, renewed, linger, max_hold, min_hold, keep]
                .map(|millis| millis.map_or("none".to_owned(), |millis| millis.to_string()));
        let limits = format!("{max_hold} {min_hold}");
        let wait = format!("{max_wait} {limits} {cancelled} {weight}");
        let leases = format!("{lease} {renewed} {linger}");
        format!("asks {lock} {verb} {shared} {leases} {wait} {permits} {keep} {value}")
    }

    /// Returns a request that waits, with a renewed lease and no limits.
    pub fn waiting(lock: String, max_wait: u64) -> Request {
        Request {
            lock,
            verb: Verb::Acquire,
            shared: false,
            lease: None,
            renewed: None,
            linger: None,
            max_wait,
            cancelled: false,
            weight: 1,
            permits: 1,
            max_hold: None,
            min_hold: None,
            keep: None,
            value: 0,
        }
    }

    fn parse(words: &mut SplitWhitespace<'_>) -> Option<Request> {
        let (lock, verb) = (words.next()?.to_owned(), Verb::parse(words.next()?)?);
        let shared = words.next()?.parse().ok()?;
        let (lease, renewed, linger) = (limit(words)?, limit(words)?, limit(words)?);
        let max_wait = number(words)?;
        let (max_hold, min_hold) = (limit(words)?, limit(words)?);
        let cancelled = words.next()?.parse().ok()?;
        let [weight, permits] = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        let (keep, value) = (limit(words)?, number(words)?);
        Some(Request {
            lock,
            verb,
            shared,
            lease,
            renewed,
            linger,
            max_wait,
            cancelled,
            weight,
            permits,
            max_hold,
            min_hold,
            keep,
            value,
        })
    }
}

/// Parses a number, or the word for none.
fn limit(words: &mut SplitWhitespace<'_>) -> Option<Option<u64>> {
    match words.next()? {
        "none" => Some(None),
        number => Some(Some(number.parse().ok()?)),
    }
}

fn number(words: &mut SplitWhitespace<'_>) -> Option<u64> {
    words.next()?.parse().ok()
}

#[test]
fn a_line_is_parsed_into_the_record_that_wrote_it() {
    let request = |lease, max_hold: Option<u64>, min_hold| {
        Event::Asks(Request {
            lock: "rw:1".to_owned(),
            verb: Verb::CountDown,
            shared: true,
            lease,
            renewed: max_hold.map(|max_hold| max_hold + 1),
            linger: max_hold.map(|max_hold| max_hold + 2),
            max_wait: 20,
            cancelled: true,
            weight: 7,
            permits: 2,
            max_hold,
            min_hold,
            keep: min_hold.map(|min_hold| min_hold + 3),
            value: 91,
        })
    };
    let all = [
        request(None, Some(80), None),
        request(Some(70), None, Some(90)),
        Event::Granted { token: 12 },
        Event::Valid,
        Event::Lost,
        Event::Extended,
        Event::Ends,
        Event::Ended(End::Unlocked),
        Event::Ended(End::Committed),
        Event::Ended(End::Dropped),
        Event::Ended(End::Lost),
        Event::Ended(End::Unknown),
        Event::Done,
        Event::Seen(None),
        Event::Seen(Some(Seen { token: 12, value: 91 })),
        Event::Refused,
        Event::Failed("timeout".to_owned()),
        Event::Stalled(31),
    ];
    for (attempt, event) in (7..).zip(all) {
        let record = Record { attempt, at: 1 << 60, event };
        assert_eq!(Record::parse(&record.line()), Some(record));
    }
    let asks = "1 2 asks a acquire false none 7 none none true 1 1 none";
    for cut in ["", "1", "1 2", "1 2 as", asks, "1 2 granted", "1 2 seen 3", "x 2 valid"] {
        assert_eq!(Record::parse(cut), None, "{cut}");
    }
}
