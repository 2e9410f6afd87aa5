//! Locks and permits of all kinds, by the names of the kinds: what processes hold that are killed.

use leasehold::{Begin, Client, MultiLock, RedLock};
use std::time::Duration;

/// All kinds of locks and permits that a process can hold.
pub const KINDS: [&str; 12] = [
    "plain",
    "named",
    "fair",
    "fenced",
    "queue",
    "spin",
    "read",
    "write",
    "semaphore",
    "slots",
    "election",
    "once",
];

/// What a process holds, until it is dropped.
pub type Held = Box<dyn std::any::Any>;

/// Takes a lock of this kind; `None` if it does not become free in this time.
pub fn take(client: &Client, name: &str, kind: &str, wait: Option<Duration>) -> Option<Held> {
    macro_rules! lock {
        ($lock:expr) => {{
            let lock = $lock;
            let taken = match wait {
                Some(wait) => lock.try_lock_for_owned(wait),
                None => lock.try_lock_owned(),
            };
            taken.expect("the server answers").map(|guard| Box::new(guard) as Held)
        }};
    }
    match kind {
        "plain" => lock!(client.lock(name)),
        "detached" => {
            client.lock(name).lock().expect("free").detach();
            Some(Box::new(()))
        }
        "named" => lock!(client.lock(name).with_holder("nightly")),
        "fair" => lock!(client.fair_lock(name)),
        "fenced" => lock!(client.fenced_lock(name)),
        "queue" => lock!(client.queue_lock(name)),
        "spin" => lock!(client.spin_lock(name)),
        "read" => lock!(client.rw_lock(name).read_lock()),
        "write" => lock!(client.rw_lock(name).write_lock()),
        "multi" => lock!(MultiLock::new([client.lock(name), client.lock("another")])),
        "red" => lock!(RedLock::new([client.clone()], name)),
        "semaphore" | "slots" => {
            let semaphore = client.semaphore(name).with_permits(3);
            let semaphore = if kind == "slots" { semaphore.with_slots() } else { semaphore };
            let taken = match wait {
                Some(wait) => semaphore.try_acquire_many_for(2, wait),
                None => semaphore.try_acquire_many(2),
            };
            taken.expect("the server answers").map(|permit| Box::new(permit) as Held)
        }
        "election" => {
            let election = client.election(name);
            let taken = match wait {
                Some(wait) => election.try_campaign_for(wait),
                None => election.try_campaign(),
            };
            taken.expect("the server answers").map(|term| Box::new(term) as Held)
        }
        "once" => {
            let once = client.once(name);
            let begun = match wait {
                Some(wait) => once.try_begin_for(wait),
                None => once.try_begin(),
            };
            begun.expect("the server answers").map(|begin| match begin {
                Begin::Run(run) => Box::new(run) as Held,
                Begin::Done(done) => panic!("nobody has committed: {done:?}"),
            })
        }
        kind => panic!("unknown: {kind}"),
    }
}

/// Returns the kind whose caller is refused because of a hold of this kind.
pub fn opposite(kind: &str) -> &str {
    match kind {
        "read" => "write",
        "write" => "read",
        "named" => "plain",
        kind => kind,
    }
}
