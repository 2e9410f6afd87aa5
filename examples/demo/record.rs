//! The record of the run, for the picture: the steps of all threads, the kill and the stop.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Result;
use super::report::Step;
use super::worker::LOCK;

/// A worker process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) name: char,
    pub(crate) process: u32,
}

impl Member {
    /// Returns the name of a thread, such as `A1`.
    pub(crate) fn thread(self, number: usize) -> String {
        format!("{}{number}", self.name)
    }
}

/// Events in the form of `leasehold watch --json`, which `leasehold timeline --input` draws.
#[derive(Debug, Default)]
pub(crate) struct Record {
    events: Vec<Value>,
    /// The last step of each thread, by its name.
    last: HashMap<String, Step>,
}

impl Record {
    /// Adds a step of a thread.
    pub(crate) fn step(&mut self, member: Member, thread: &str, step: Step, at: Duration) {
        self.last.insert(thread.to_owned(), step);
        self.add(member, at, step.word(), [("thread", json!(thread))]);
    }

    /// Adds the end of the lease of a thread that does not release the lock.
    pub(crate) fn expiry(&mut self, member: Member, thread: &str, at: Duration) {
        self.add(member, at, "expired", [("thread", json!(thread))]);
    }

    /// Adds a text.
    pub(crate) fn mark(&mut self, member: Member, text: &str, at: Duration) {
        self.add(member, at, "mark", [("text", json!(text))]);
    }

    /// Adds the end of the waits of a killed process.
    pub(crate) fn end_waits(&mut self, member: Member, at: Duration) {
        let last = self.last.iter().filter(|(_, step)| **step == Step::Waiting);
        let waiting: Vec<String> = last.map(|(thread, _)| thread.clone()).collect();
        for thread in waiting.iter().filter(|thread| thread.starts_with(member.name)) {
            self.add(member, at, "left", [("thread", json!(thread))]);
        }
    }

    fn add<const N: usize>(
        &mut self,
        member: Member,
        at: Duration,
        event: &str,
        more: [(&str, Value); N],
    ) {
        let facts = [
            ("at", json!(at.as_secs_f64())),
            ("name", json!(LOCK)),
            ("event", json!(event)),
            ("label", json!(member.name.to_string())),
            ("pid", json!(member.process)),
        ];
        let facts = facts.into_iter().chain(more).map(|(key, value)| (key.to_owned(), value));
        self.events.push(Value::Object(facts.collect::<Map<_, _>>()));
    }

    /// Writes the events, one per line.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let lines = self.events.iter().map(|event| format!("{event}\n"));
        let written = fs::write(path, lines.collect::<String>());
        written.map_err(|error| format!("{} cannot be written: {error}", path.display()).into())
    }
}
