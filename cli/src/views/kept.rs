//! The result of work that is done once, as `show` and `force` show it.

use leasehold::{Client, OnceOutcome};
use serde::Serialize;

use super::text;
use crate::observe::snapshot::{now, since_1970};

/// The object of `show --json` for a result.
#[derive(Debug, Serialize)]
pub(crate) struct Kept {
    name: String,
    kind: &'static str,
    /// The time of the commit, in seconds since 1970.
    at: f64,
    /// The time since the commit, in seconds.
    age: f64,
    token: u64,
    bytes: usize,
}

impl Kept {
    /// Returns the result with this name; `None` if there is none, or the user may not read it.
    pub(crate) fn find(client: &Client, name: &str) -> leasehold::Result<Option<Kept>> {
        match client.once(name).outcome() {
            // Work has no such name.
            Err(error) if error.is_invalid_name() => Ok(None),
            Err(error) if error.is_server() && !error.is_retryable() => Ok(None),
            outcome => Ok(outcome?.map(|outcome| Kept::of(name, &outcome))),
        }
    }

    fn of(name: &str, outcome: &OnceOutcome) -> Kept {
        let at = since_1970(outcome.at());
        // The clock of the server may be ahead.
        let age = (now() - at).max(0.0);
        let (token, bytes) = (outcome.token(), outcome.value().len());
        Kept { name: name.to_owned(), kind: "result", at, age, token, bytes }
    }

    /// Returns all facts, a line each.
    pub(crate) fn describe(&self) -> String {
        let (done, age) = (text::date_and_time(self.at), text::brief(self.age));
        format!(
            "name          {}\nkind          result\ndone          {done} local time ({age} ago)\n\
             result        {} bytes\ntoken         {}\n",
            text::printable(&self.name),
            self.bytes,
            self.token
        )
    }

    /// Returns a sentence.
    pub(crate) fn in_a_line(&self) -> String {
        format!(
            "{} is free, and was done {} ago; leasehold once --forget deletes the result",
            text::printable(&self.name),
            text::brief(self.age)
        )
    }
}
