//! A number in Redis, which may be a latch or free permits, as `show` and `force` show it.

use leasehold::Client;
use serde::Serialize;

use super::text;

/// The object of `show --json` for a number.
#[derive(Debug, Serialize)]
pub(crate) struct Count {
    name: String,
    kind: &'static str,
    count: i64,
    waiting: Waiting,
}

#[derive(Debug, Serialize)]
struct Waiting {
    processes: u64,
}

impl Count {
    /// Returns the number with this name; `None` if there is none, or the user may not read it.
    ///
    /// A number does not tell whether it is the count of a latch, or the free permits of a plain
    /// semaphore or of a semaphore. The server keeps no holders of it.
    pub(crate) fn find(client: &Client, name: &str) -> leasehold::Result<Option<Count>> {
        match Count::read(client, name) {
            Err(error) if error.is_server() && !error.is_retryable() => Ok(None),
            found => found,
        }
    }

    fn read(client: &Client, name: &str) -> leasehold::Result<Option<Count>> {
        let permits = client.plain_semaphore(name);
        // A number that is missing reads as 0 too.
        let count = permits.available()?;
        if count == 0 {
            return Ok(None);
        }
        let for_latch = match client.latch(name).waiting() {
            // In a cluster no latch has such a name.
            Err(error) if error.is_invalid_name() => 0,
            waiting => waiting?.processes(),
        };
        let waiting = Waiting { processes: permits.waiting()?.processes() + for_latch };
        Ok(Some(Count { name: name.to_owned(), kind: "count", count, waiting }))
    }

    /// Returns all facts, a line each.
    pub(crate) fn describe(&self) -> String {
        format!("{}\nwaiting       {} processes\n", self.in_a_line(), self.waiting.processes)
    }

    /// Returns a sentence.
    pub(crate) fn in_a_line(&self) -> String {
        format!(
            "{} is a count of {}, without holders: of a latch, or the free permits of a semaphore",
            text::printable(&self.name),
            self.count
        )
    }
}
