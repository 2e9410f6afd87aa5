//! A semaphore with permits in use, as `show` shows it.

use leasehold::{Client, HolderInfo, Result, WaitingInfo};

/// A semaphore with permits in use.
#[derive(Debug)]
pub(crate) struct SemaphoreInfo {
    pub(crate) name: String,
    pub(crate) permits: i64,
    pub(crate) in_use: u64,
    pub(crate) holders: Vec<HolderInfo>,
    pub(crate) waiting: WaitingInfo,
}

impl SemaphoreInfo {
    /// Returns the semaphore with this name, if it has permits in use.
    ///
    /// `None` also for a key of another kind, and for a user that may not read semaphores.
    pub(crate) fn find(client: &Client, name: &str) -> Result<Option<SemaphoreInfo>> {
        match SemaphoreInfo::read(client, name) {
            Err(error) if error.is_server() && !error.is_retryable() => Ok(None),
            found => found,
        }
    }

    fn read(client: &Client, name: &str) -> Result<Option<SemaphoreInfo>> {
        let semaphore = client.semaphore(name);
        let holders = semaphore.holders()?;
        if holders.is_empty() {
            return Ok(None);
        }
        Ok(Some(SemaphoreInfo {
            name: name.to_owned(),
            permits: semaphore.permits()?,
            in_use: semaphore.in_use()?,
            holders,
            waiting: semaphore.waiting()?,
        }))
    }
}
