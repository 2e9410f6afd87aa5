//! Changes of counts that take effect once, and waits that end with a count.
//!
//! For plain semaphores and latches, and for the deletion of a result of work. None of these has an
//! owner or a lease, so there is no hold to keep, to renew or to lose. Reading order: `request.rs`
//! (one change, which a repeated command does not repeat), `background.rs` (the end of a request
//! without a reply), `wait.rs` (one call of a waiting verb, and its question for the loop),
//! `latch.rs` and `take.rs` (what it waits for). Imports: `acquire` and below.

mod background;
mod latch;
mod request;
mod take;
mod wait;

pub(crate) use background::send_in_background;
pub(crate) use request::{CountChange, CountRequest};
pub(crate) use wait::CountCall;

use crate::error::{Error, ErrorKind, Result};
use crate::transport::reply::{self, Reply};

/// Reads a count, which Redis keeps as text. A missing key is 0.
pub(crate) fn read_count(reply: Reply) -> Result<i64> {
    match reply {
        Reply::Nil => Ok(0),
        Reply::Text(text) => {
            let count = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
            count.ok_or_else(|| {
                Error::new(ErrorKind::Server, "the key holds a value that is no count")
                    .with_code("WRONGTYPE")
            })
        }
        Reply::Refused(refusal) => Err(Error::refused(&refusal)),
        other => Err(reply::unexpected(&other)),
    }
}
