//! [`LINES`]: the queue of log lines to the logger of the program.
//!
//! No thread of the library and no caller runs a logger: a logger may block, use the library, or
//! panic. `log::warn!(logger: LINES, ...)` formats the line and queues it, and a thread of its own
//! (`leasehold-log`) passes it on. The thread starts with a line and ends when the queue is empty,
//! so it outlives no client. All clients of a process share queue and thread: a process has one
//! logger, and some lines belong to no client.
//!
//! [`CAPACITY`] bounds the queue. Lines that do not fit are counted, and a line at their place
//! tells the number.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use log::kv::{self, Key, Value, VisitSource, VisitValue};
use log::{Level, Log, Metadata, Record};

use crate::util::clock::{self, Moment};
use crate::util::log_target;
use crate::util::sync::Parker;
use crate::util::system::{OnceLock, per_process, process_id, thread_local};
use crate::util::threads;

/// The queue of log lines, as a logger for the macros of the log crate.
pub(crate) static LINES: LogLines = LogLines;

/// The number of queued lines at which further lines are dropped.
const CAPACITY: usize = 1024;

/// The interval at which [`flush`] checks whether the lines are written.
const FLUSH_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);

/// Queues each line that it gets. Does not block and runs no code of the program.
#[derive(Debug)]
pub(crate) struct LogLines;

impl Log for LogLines {
    /// The thread asks the program's logger, since a filter of the program may block, too.
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    /// Queues the line, or counts it as dropped, and has a thread that writes.
    fn log(&self, record: &Record<'_>) {
        // Made before the mutex is locked, because it runs the `Display` of foreign values.
        let (lines, line) = (ProcessLines::mine(), LogLine::of(record));
        lines.lock().push(line);
        lines.start_writer();
    }

    fn flush(&self) {}
}

/// Blocks until the logger has got all lines that are queued now, or until `end`.
///
/// Returns at once in a call of the logger itself.
pub(crate) fn flush(end: Moment) {
    let lines = ProcessLines::mine();
    let target = lines.lock().queued;
    lines.start_writer();
    while !IS_WRITER.get() && lines.lock().written < target && clock::now() < end {
        Parker::default().park_until(end.min(clock::now() + FLUSH_INTERVAL));
    }
}

/// Starts the thread for lines that are queued without one, because the system had no room.
pub(crate) fn start_missing_writer() {
    ProcessLines::mine().start_writer();
}

thread_local!(static IS_WRITER: Cell<bool> = const { Cell::new(false) });

/// The queue of one process.
///
/// A forked child has no thread of its parent, and the fork may have interrupted a step on the
/// queue. So a child uses a queue of its own and touches nothing else of its parent's.
struct ProcessLines {
    /// The id of the process, 0 before the first line.
    process: AtomicU32,
    state: Mutex<LinesState>,
    of_child: OnceLock<Box<ProcessLines>>,
}

struct LinesState {
    lines: VecDeque<LogLine>,
    /// The lines that did not fit into the queue since the last one that did.
    dropped: u64,
    has_writer: bool,
    /// How many lines were queued so far.
    queued: u64,
    /// How many of these the logger has got.
    written: u64,
}

per_process! {
    static FIRST: ProcessLines = ProcessLines::new();
}

impl ProcessLines {
    const fn new() -> ProcessLines {
        let state = LinesState {
            lines: VecDeque::new(),
            dropped: 0,
            has_writer: false,
            queued: 0,
            written: 0,
        };
        ProcessLines {
            process: AtomicU32::new(0),
            state: Mutex::new(state),
            of_child: OnceLock::new(),
        }
    }

    /// Returns the queue of this process.
    fn mine() -> &'static ProcessLines {
        let (id, mut lines): (_, &ProcessLines) = (process_id(), &FIRST);
        loop {
            match lines.process.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire) {
                Err(owner) if owner != id => {
                    lines = lines.of_child.get_or_init(|| Box::new(ProcessLines::new()));
                }
                _ => return lines,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread if there are lines and no thread. The next line tries again after a
    /// failure.
    fn start_writer(&'static self) {
        let mut state = self.lock();
        if state.has_writer || state.lines.is_empty() {
            return;
        }
        state.has_writer = true;
        drop(state);
        if threads::start("leasehold-log", || self.write()).is_err() {
            self.lock().has_writer = false;
        }
    }

    /// Passes lines to the logger until the queue is empty.
    fn write(&self) {
        IS_WRITER.set(true);
        let next = || self.lock().next();
        while let Some(line) = next() {
            // Without a report: the logger has just panicked.
            threads::catch_quietly(|| line.write());
            self.lock().written += 1;
        }
    }
}

impl LinesState {
    fn push(&mut self, line: LogLine) {
        if self.lines.len() >= CAPACITY {
            self.dropped += 1;
            return;
        }
        self.tell_dropped();
        self.queued += 1;
        self.lines.push_back(line);
    }

    /// Queues a line about dropped ones, at their place.
    fn tell_dropped(&mut self) {
        if self.dropped > 0 {
            self.lines.push_back(LogLine::of_dropped(std::mem::take(&mut self.dropped)));
            self.queued += 1;
        }
    }

    /// Returns the next line. Without one, the thread ends.
    fn next(&mut self) -> Option<LogLine> {
        if self.lines.is_empty() {
            self.tell_dropped();
        }
        let line = self.lines.pop_front();
        self.has_writer = line.is_some();
        line
    }
}

/// A formatted line.
struct LogLine {
    level: Level,
    target: Box<str>,
    text: String,
    module_path: Option<&'static str>,
    file: Option<&'static str>,
    line: Option<u32>,
    key_values: Vec<(Box<str>, LogValue)>,
}

impl LogLine {
    fn of(record: &Record<'_>) -> LogLine {
        let mut key_values = KeyValues(Vec::new());
        // The visitor never fails.
        let _ = record.key_values().visit(&mut key_values);
        LogLine {
            level: record.level(),
            target: record.target().into(),
            text: record.args().to_string(),
            module_path: record.module_path_static(),
            file: record.file_static(),
            line: record.line(),
            key_values: key_values.0,
        }
    }

    fn of_dropped(dropped: u64) -> LogLine {
        LogLine {
            level: Level::Warn,
            target: log_target::CLIENT.into(),
            text: format!("the logger is too slow: {dropped} log lines were dropped here"),
            module_path: Some(module_path!()),
            file: Some(file!()),
            line: Some(line!()),
            key_values: Vec::new(),
        }
    }

    fn write(&self) {
        let key_values: Vec<_> =
            self.key_values.iter().map(|(key, value)| (&**key, value.to_value())).collect();
        let mut record = Record::builder();
        let key_values = key_values.as_slice();
        record.level(self.level).target(&self.target).line(self.line).key_values(&key_values);
        record.module_path_static(self.module_path).file_static(self.file);
        log::logger().log(&record.args(format_args!("{}", self.text)).build());
    }
}

/// A value of a key that outlives its line's call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LogValue {
    Null,
    Number(u64),
    Text(String),
    /// What `Debug` or `Display` shows of a value.
    Shown(Shown),
}

/// A text that `Debug` shows without quotes.
#[derive(Clone, PartialEq, Eq)]
struct Shown(String);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LogValue {
    fn to_value(&self) -> Value<'_> {
        match self {
            LogValue::Null => Value::null(),
            LogValue::Number(number) => Value::from(*number),
            LogValue::Text(text) => Value::from(&**text),
            LogValue::Shown(shown) => Value::from_debug(shown),
        }
    }
}

impl<'v> VisitValue<'v> for LogValue {
    fn visit_any(&mut self, value: Value<'_>) -> Result<(), kv::Error> {
        *self = LogValue::Shown(Shown(value.to_string()));
        Ok(())
    }

    fn visit_null(&mut self) -> Result<(), kv::Error> {
        *self = LogValue::Null;
        Ok(())
    }

    fn visit_u64(&mut self, value: u64) -> Result<(), kv::Error> {
        *self = LogValue::Number(value);
        Ok(())
    }

    fn visit_str(&mut self, value: &str) -> Result<(), kv::Error> {
        *self = LogValue::Text(value.to_owned());
        Ok(())
    }
}

struct KeyValues(Vec<(Box<str>, LogValue)>);

impl<'kvs> VisitSource<'kvs> for KeyValues {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        let mut owned = LogValue::Null;
        value.visit(&mut owned)?;
        self.0.push((key.as_str().into(), owned));
        Ok(())
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use log::kv::Source;

    fn line(text: &str) -> LogLine {
        LogLine { text: text.to_owned(), ..LogLine::of_dropped(0) }
    }

    fn texts(state: &mut LinesState) -> Vec<String> {
        std::iter::from_fn(|| state.next()).map(|line| line.text).collect()
    }

    #[test]
    fn a_full_queue_drops_lines_and_tells_their_number_at_their_place() {
        let lines = ProcessLines::new();
        let mut state = lines.lock();
        (0..CAPACITY + 3).for_each(|_| state.push(line("early")));
        assert!(state.next().is_some_and(|line| line.text == "early"));
        state.push(line("late"));
        state.push(line("does not fit"));
        let found = texts(&mut state);
        let dropped =
            |number| format!("the logger is too slow: {number} log lines were dropped here");
        assert_eq!(
            found[CAPACITY - 2..],
            ["early".to_owned(), dropped(3), "late".into(), dropped(1)]
        );
        assert_eq!(state.queued, CAPACITY as u64 + 3);
    }

    #[test]
    fn values_keep_their_type_and_their_forms() {
        let error = crate::error::Error::timeout();
        let pairs = [
            ("text", Value::from("a")),
            ("number", Value::from(7u64)),
            ("null", Value::from_any(&None::<&str>)),
            ("debug", Value::from_debug(&Level::Warn)),
            ("display", Value::from_display(&error)),
        ];
        let mut owned = KeyValues(Vec::new());
        Source::visit(&pairs, &mut owned).expect("the visitor never fails");
        let shown = |text: &str| LogValue::Shown(Shown(text.to_owned()));
        let expected = [
            LogValue::Text("a".to_owned()),
            LogValue::Number(7),
            LogValue::Null,
            shown("Warn"),
            shown(&error.to_string()),
        ];
        assert!(owned.0.iter().map(|(_, value)| value).eq(&expected));
        for ((_, value), (_, owned)) in pairs.iter().zip(&owned.0) {
            let owned = owned.to_value();
            assert_eq!(format!("{value} {value:?}"), format!("{owned} {owned:?}"));
        }
    }
}
