//! What locks send to Redis and read from it: scripts, the names of keys and channels, the owner
//! fields of locks, records and messages.
//!
//! Imports `transport` (calls, replies and scripts only), `error` and `util`. Reading order:
//! [`script`] (the table of Lua scripts), then [`owner`] and [`name`], which define the bytes
//! shared with other clients; [`owner_field`] reads the fields of both, [`permit`] has the ids of
//! permits. [`client_record`] is the hash that names a client, [`details`] the messages about holds
//! between clients, [`grant`] the message that grants a lock, [`asked`] and [`freed`] those to the
//! client of a holder, [`leader`] the record of an election's leader.

pub(crate) mod asked;
pub(crate) mod client_record;
pub(crate) mod details;
pub(crate) mod freed;
pub(crate) mod grant;
pub(crate) mod leader;
pub(crate) mod name;
pub(crate) mod owner;
pub(crate) mod owner_field;
pub(crate) mod permit;
pub(crate) mod script;
