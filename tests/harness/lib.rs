//! The harness of the integration tests: real servers, network faults, child processes, and
//! bounded waits.
//!
//! | file | content |
//! | --- | --- |
//! | `wait.rs` | waits for conditions; counts of this process's threads and descriptors |
//! | `spawned.rs` | a child process that never outlives this process |
//! | `watcher.rs` | the shell that kills such a child |
//! | `listener.rs` | a TCP listener served by a thread |
//! | `members.rs` | the process at the other end of a connection |
//! | `resp.rs` | the parser of requests |
//! | `config.rs`, `server.rs`, `inspect.rs` | a redis-server, its configuration, questions to it |
//! | `certificates.rs` | certificates of servers and clients |
//! | `ports.rs` | free ports for servers, each used once |
//! | `gate.rs` | the proxies in front of a server |
//! | `clock.rs`, `clock.c`, `boot_clock.c` | clocks of servers and clients that a test moves |
//! | `refusals.c`, `signals.c` | a sandbox; a storm of signals |
//! | `replicated.rs` | a master with replicas and sentinels |
//! | `cluster.rs`, `nodes.rs` | a cluster, and the output of `CLUSTER NODES` |
//! | `slots.rs` | the slots of keys |
//! | `proxy.rs`, `proxy/` | a TCP proxy with faults that a test switches |
//! | `details.rs` | requests for details about holds |
//! | `held.rs` | locks and permits of all kinds, by the names of the kinds |
//! | `holders.rs` | a server with holders to look at |
//! | `trickle.rs` | a proxy that slows replies down or never ends them |
//! | `process.rs` | the test binary as a child process |
//! | `impostor.rs` | a server with replies that no real server gives |
//! | `bare.rs` | direct calls of the scripts in `lua/` |
//! | `redisson.rs` | Redisson's operations on semaphores and latches, in bare scripts |
//! | `subject.rs` | the verbs of all kinds of locks, as a trait |
//! | `turns.rs` | a loop beside a caller that waits; the ends of such loops and waits |
//! | `synchronizers.rs` | semaphores and latches that are taken, awaited, and free again |
//! | `queued.rs` | waiters of queue locks, and questions about their queues |
//! | `elections.rs` | candidates, leaders and observers of an election |
//! | `permissions.rs` | the permissions of docs/permissions.md |
//! | `faults.rs` | clients, event logs, waiters and assertions for tests of faults |

pub mod bare;
pub mod certificates;
mod clock;
pub mod cluster;
pub mod config;
pub mod details;
pub mod elections;
pub mod faults;
pub mod gate;
pub mod held;
pub mod holders;
pub mod impostor;
pub mod inspect;
pub mod listener;
pub mod members;
pub mod nodes;
pub mod permissions;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod queued;
pub mod redisson;
pub mod replicated;
pub mod resp;
pub mod server;
pub mod slots;
pub mod spawned;
pub mod subject;
pub mod synchronizers;
pub mod trickle;
pub mod turns;
pub mod wait;
mod watcher;

pub use clock::{BootClock, refusals, refusals_and_signals, signals};
pub use cluster::Cluster;
pub use config::Config;
pub use impostor::Impostor;
pub use inspect::{Peer, exists, owner, pttl};
pub use members::Members;
pub use process::ChildProcess;
pub use proxy::{Connections, Direction, Flow, Proxy};
pub use replicated::Replicated;
pub use server::Server;
pub use trickle::Trickle;
pub use turns::{CancelOnDrop, StopsOnDrop, holds_during_waits};
pub use wait::{
    await_unchanged, eventually, eventually_some, in_time, join, or_too_late, sleeping,
};
