//! Calls about many locks, in batches that are all written before any reply is read.
//!
//! A server may refuse a whole batch because of one key, or because its keys are in several slots.
//! Each item of such a batch is then sent by itself, in the same round.

use crate::cancel::Limit;
use crate::error::Error;
use crate::transport::call::Call;
use crate::transport::pool::request::CallReply;
use crate::transport::pool::router::Router;
use crate::util::log_lines::LINES;
use crate::util::log_target;

/// The largest number of keys in one script call.
const MAX_KEYS: usize = 128;

/// The reason why a batch has no usable reply.
#[derive(Debug)]
pub(super) enum BatchFailure {
    /// A connection is being made in the background.
    Connecting,
    /// The topology changed after the batch was sent.
    Outdated,
    Failed {
        error: Error,
        /// Whether the batch may have run, or may run later.
        written: bool,
    },
}

pub(super) type BatchResult = Result<CallReply, BatchFailure>;

/// Sends calls for all items and reports the outcome of each. A batch has items of one group.
///
/// Each item needs one key. Blocks until each batch has its reply or its time-out.
pub(super) fn send_all<T, K: Ord>(
    router: &Router,
    items: &mut [T],
    group: impl Fn(&T) -> K,
    call: impl Fn(&[T]) -> Call,
    report: impl FnMut(&[T], BatchResult),
) {
    send_weighted(router, items, group, |_| 1, call, report);
}

/// Sends calls as [`send_all`] does, for items that need several keys.
///
/// `weight` returns the number of keys of an item, or a larger number.
pub(super) fn send_weighted<T, K: Ord>(
    router: &Router,
    items: &mut [T],
    group: impl Fn(&T) -> K,
    weight: impl Fn(&T) -> usize,
    call: impl Fn(&[T]) -> Call,
    mut report: impl FnMut(&[T], BatchResult),
) {
    items.sort_by_key(&group);
    let groups = items.chunk_by(|a, b| group(a) == group(b));
    let batches = groups.flat_map(|group| split(group, &weight));
    let mut refused = Vec::new();
    send(router, batches, &call, |batch, outcome| match outcome {
        Err(BatchFailure::Failed { error, .. }) if batch.len() > 1 && error.is_caused_by_keys() => {
            refused.push(batch);
        }
        outcome => report(batch, outcome),
    });
    send(router, refused.iter().flat_map(|batch| batch.chunks(1)), &call, report);
}

/// Splits items into batches of at most [`MAX_KEYS`] keys, or of one item.
fn split<T>(items: &[T], weight: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut batches, mut start, mut keys) = (Vec::new(), 0, 0);
    for (at, item) in items.iter().enumerate() {
        keys += weight(item);
        if keys > MAX_KEYS && start < at {
            batches.push(&items[start..at]);
            (start, keys) = (at, weight(item));
        }
    }
    batches.push(&items[start..]);
    batches
}

fn send<'a, T: 'a>(
    router: &Router,
    batches: impl Iterator<Item = &'a [T]>,
    call: impl Fn(&[T]) -> Call,
    mut report: impl FnMut(&'a [T], BatchResult),
) {
    let generation = router.generation();
    let queued: Vec<_> = batches.map(|batch| (batch, router.queue_private(call(batch)))).collect();
    for (batch, queued) in queued {
        let waited = queued.map(|routed| router.wait_without_retry(routed, &Limit::none()).1);
        let outcome = match waited {
            Err(None) => Err(BatchFailure::Connecting),
            Err(Some(error)) => Err(BatchFailure::Failed { error, written: false }),
            Ok(Err(failure)) => {
                let written = failure.is_written();
                Err(BatchFailure::Failed { error: failure.into_error(), written })
            }
            Ok(Ok(_)) if router.generation() != generation => Err(BatchFailure::Outdated),
            Ok(Ok(reply)) => Ok(reply),
        };
        report(batch, outcome);
    }
}

/// Logs that a batch about this many locks failed; `command` names its command.
pub(super) fn log_failed(command: &str, locks: usize, error: &Error) {
    log::debug!(
        logger: LINES, target: log_target::CONNECTION,
        error:% = error.with_causes(), server = error.server();
        "a {command} of {locks} locks failed: {}", error.with_causes()
    );
}

impl BatchFailure {
    /// Returns the error of a server or of a connection; `None` before the first connection, and
    /// after a topology change.
    pub(super) fn error(&self) -> Option<&Error> {
        match self {
            BatchFailure::Connecting | BatchFailure::Outdated => None,
            BatchFailure::Failed { error, .. } => Some(error),
        }
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            BatchFailure::Connecting => Error::not_connected(),
            BatchFailure::Outdated => Error::outdated(),
            BatchFailure::Failed { error, .. } => error,
        }
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_at_most_128_keys_or_one_item() {
        let sizes = |weights: &[usize]| -> Vec<usize> {
            split(weights, |weight| *weight).iter().map(|batch| batch.len()).collect()
        };
        assert_eq!(sizes(&[1; 300]), [128, 128, 44]);
        assert_eq!(sizes(&[2; 130]), [64, 64, 2]);
        assert_eq!(sizes(&[1000, 1000, 1]), [1, 1, 1]);
        assert_eq!(sizes(&[1, 1000, 127, 1, 1]), [1, 1, 2, 1]);
    }
}
