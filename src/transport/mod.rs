//! The way to the servers: sockets, replies, shared connections, topologies, pub/sub.
//!
//! Knows no lock, no hold and no permit. Imports `cancel`, `error` and `util` only, so it could be
//! a crate of its own. Inside, a folder imports only from those below it:
//!
//! | module | content |
//! | --- | --- |
//! | [`listener`] | the threads that receive messages, and the channels with waiting callers |
//! | [`pool`] | shared connections, background requests, the router to the right server |
//! | [`topology`] | the addresses of the servers: one, Sentinel, Cluster; fail-overs; their health |
//! | [`connection`] | sockets, TLS, the parser of replies |
//! | [`call`], [`reply`], [`script`], [`slots`] | packed commands, replies, scripts, slots of keys |

pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod listener;
pub(crate) mod pool;
pub(crate) mod reply;
pub(crate) mod script;
pub(crate) mod slots;
pub(crate) mod topology;
