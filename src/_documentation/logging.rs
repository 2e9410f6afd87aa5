//! The lines that the client writes to the log: targets, levels and key-values.
//!
//! Log lines go to the [`log`](https://docs.rs/log) facade. The target of a line names its subject,
//! so a filter such as `leasehold::lease=warn` selects one subject:
//!
//! | target | levels | subject |
//! | --- | --- | --- |
//! | `leasehold::lease` | warn, info, debug | holds of processes that are gone; losses, overdue holds, failed releases and clean-ups; locks that are held without a time to live; semaphores with another capacity than `with_permits`; waits for an owned guard of the same thread |
//! | `leasehold::connection` | warn, info, debug | outages of servers; replaced connections; failed subscriptions, heartbeats and polls; loads of scripts; refused options of sockets |
//! | `leasehold::topology` | info, debug | clusters without sharded pub/sub; failed checks for fail-overs |
//! | `leasehold::audit` | warn | servers whose configuration [endangers locks](crate::Builder::audit_policy) |
//! | `leasehold::events` | error, warn | panics of [`Events`](crate::Events) methods and of closures; dropped events |
//! | `leasehold::client` | error, warn, debug | threads of the client that do not start, panic, or outlast the close; dropped lines; the [client record](crate::Builder::announce); questions to running processes about holds; a refused clock |
//!
//! One line at level warn tells that a server does not answer, or refuses commands with a code, and
//! how many leases, awaited locks and background requests are affected. A refusal with another code
//! has another line. The attempts that follow
//! have no lines of their own. One line at level info tells the end, with the duration: the server
//! answers, or has refused no repeated command for 5 s. An outage that affects nothing has no line:
//! a call that fails returns its error. Each failed renewal is an event
//! ([`Events::renewal_failed`](crate::Events::renewal_failed)).
//!
//! Each line also has key-values for structured loggers: facts of its text, and other facts.
//!
//! | key | value |
//! | --- | --- |
//! | `lock` | the name of the lock, without the client's prefix |
//! | `kind` | the kind of the lock, as `Debug` shows it: `Plain`, `Fair`, `Semaphore` and so on |
//! | `hold` | the number of the hold, as in events |
//! | `capacity` | the number of permits of a semaphore |
//! | `wanted` | the number of permits of `with_permits` |
//! | `reason` | the [`LostReason`](crate::LostReason), as `Debug` shows it: `Expired`, `Gone`, `HeldTooLong` |
//! | `error` | the text of the error and of its causes |
//! | `server` | the address of the server, without user and password; null if the error names no server |
//!
//! Targets and keys stay the same in compatible versions. Texts may change.
//!
//! A thread of its own (`leasehold-log`) calls the logger, so a logger that blocks delays no call,
//! renewal or release, and a logger may use locks. The thread exists while lines are queued, and
//! serves all clients of the process. Lines keep their order, but may come a little later than
//! lines of the program. While 1024 lines wait, further ones are dropped, and a line tells how many
//! were. [`Client::close`](crate::Client::close) waits for the queued lines; a process that ends
//! without it may lose the last ones.
//!
//! A program that logs with `tracing` receives the log lines through the crate
//! [`tracing-log`](https://docs.rs/tracing-log), by one command and one line of code:
//!
//! ```sh
//! cargo add tracing-log
//! ```
//!
//! ```text
//! tracing_log::LogTracer::init()?;        // at the start, beside `set_global_default(subscriber)`
//! ```
//!
//! The `init` methods of `tracing-subscriber`, such as `tracing_subscriber::fmt().init()`, do this
//! already, by the default feature `tracing-log`; a second `LogTracer::init` returns an error.
//! Filters see the targets above. `tracing-log` 0.2 passes target, level and text, but no
//! key-values. To get these facts as fields, emit a `tracing` event from an implementation of
//! [`Events`](crate::Events).
