//! Public handles of semaphores and latches.
//!
//! `handle.rs` has the calls that all of them share. Imports `lock` and below.

mod handle;
pub(crate) mod latch;
pub(crate) mod permit;
pub(crate) mod plain;
pub(crate) mod semaphore;

use crate::error::{Error, Result};

/// The largest number of permits that one call takes: a script must not block a server for more
/// than about a millisecond.
const MOST_PERMITS: u32 = 1000;

/// Returns an error if one call cannot take that many permits.
fn check_permits(permits: u32) -> Result<()> {
    check_positive(permits.into())?;
    if permits > MOST_PERMITS {
        Err(Error::configuration(format!("one call takes at most {MOST_PERMITS} permits")))
    } else {
        Ok(())
    }
}

/// Returns an error for 0 permits.
fn check_positive(permits: u64) -> Result<()> {
    match permits {
        0 => Err(Error::configuration("the number of permits must not be 0")),
        _ => Ok(()),
    }
}
