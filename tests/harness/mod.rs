//! The harness of the integration tests: real servers, faults on the way to
//! them, child processes, and waits that are bounded.
//!
//! | file | what it gives |
//! | --- | --- |
//! | `wait.rs` | conditions to wait for; this process's threads and descriptors |
//! | `spawned.rs` | a child process that never outlives this one |
//! | `watcher.rs` | what sees to that |
//! | `listener.rs` | a TCP listener served by a thread |
//! | `members.rs` | whose connection it is |
//! | `resp.rs` | requests, parsed |
//! | `config.rs`, `server.rs`, `inspect.rs` | a redis-server, and what a test asks it |
//! | `ports.rs` | ports for servers |
//! | `gate.rs` | the proxies through which a server is reached, if it has such |
//! | `clock.rs`, `clock.c`, `boot_clock.c` | clocks of servers and clients that a test moves |
//! | `replicated.rs` | a master with replicas and sentinels |
//! | `cluster.rs`, `nodes.rs` | a cluster, and what its nodes say of each other |
//! | `proxy.rs`, `proxy/` | a TCP proxy with faults that a test switches |
//! | `process.rs` | the test binary again, as another process |
//! | `impostor.rs` | answers that no real server can be made to give |

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test binary includes the whole harness and uses a part of it"
)]

pub mod bare;
mod clock;
pub mod cluster;
pub mod config;
pub mod faults;
pub mod gate;
pub mod impostor;
pub mod inspect;
pub mod listener;
pub mod members;
pub mod nodes;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod replicated;
pub mod resp;
pub mod server;
pub mod spawned;
pub mod subject;
pub mod trickle;
pub mod wait;
mod watcher;

pub use clock::BootClock;
pub use cluster::Cluster;
pub use config::Config;
pub use impostor::Impostor;
pub use inspect::{Peer, exists, owner, pttl};
pub use members::Members;
pub use process::ChildProcess;
pub use proxy::{Direction, Flow, Proxy, Whose};
pub use replicated::Replicated;
pub use server::Server;
pub use trickle::Trickle;
pub use wait::{eventually, eventually_some, in_time, join, sleeping};
