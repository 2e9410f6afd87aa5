//! The events of a file: one JSON object per line, as `watch --json` prints them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::observe::event::LockEvent;

/// Reads the events of a file. Skips empty lines.
///
/// A line that is no event is an error with its number.
pub(crate) fn read(path: &Path) -> Result<Vec<LockEvent>> {
    let name = path.display();
    let unreadable = |error| Failure::usage(format!("{name} cannot be read: {error}"));
    parse(BufReader::new(File::open(path).map_err(unreadable)?))
        .map_err(|wrong| Failure::usage(format!("{name}, {wrong}; each line must be an event")))
}

fn parse(lines: impl BufRead) -> std::result::Result<Vec<LockEvent>, String> {
    let mut events = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let wrong = |error: String| format!("line {number}: {error}");
        let line = line.map_err(|error| wrong(error.to_string()))?;
        if !line.trim().is_empty() {
            let event = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
            events.push(event);
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::Happening;

    #[test]
    fn lines_are_events_and_empty_lines_are_skipped() {
        let lines = "\n{\"at\":1.5,\"name\":\"a\",\"event\":\"waiting\",\"pid\":7}\n  \n";
        let events = parse(lines.as_bytes()).expect("the line is an event");
        let expected = LockEvent {
            at: 1.5,
            name: "a".into(),
            event: Happening::Waiting,
            pid: Some(7),
            ..LockEvent::default()
        };
        assert_eq!(events, [expected]);
    }

    #[test]
    fn fields_of_later_versions_are_skipped() {
        let line = r#"{"at":1,"name":"a","event":"released","token":4}"#;
        assert_eq!(parse(line.as_bytes()).expect("an event").len(), 1);
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number() {
        let good = r#"{"at":1,"name":"a","event":"mark"}"#;
        for wrong in ["{", "nothing", "[]", r#"{"at":1,"name":"a","event":"stolen"}"#] {
            let error = parse(format!("{good}\n\n{wrong}\n").as_bytes()).expect_err(wrong);
            assert!(error.starts_with("line 3: "), "{wrong}: {error}");
        }
        let error = parse(&b"\xff\xfe\n"[..]).expect_err("no UTF-8");
        assert!(error.starts_with("line 1: "), "{error}");
    }
}
