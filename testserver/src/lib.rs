//! A small Redis-compatible server in the process, for tests and trials without `redis-server`.
//!
//! [`TestServer::start`] makes a thread and a Unix socket: no program, no port, no configuration.
//! Scripts run in a real Lua 5.1. A test moves the clock ahead, ends a lease, silences the server,
//! refuses commands or loses all data, in microseconds and without a sleep:
//!
//! ```
//! use leasehold_testserver::TestServer;
//! use std::io::{Read, Write};
//! use std::os::unix::net::UnixStream;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = TestServer::start()?;
//! let mut client = UnixStream::connect(server.socket())?;
//! let mut ask = |request: &str| -> std::io::Result<String> {
//!     client.write_all(request.as_bytes())?;
//!     let mut reply = [0; 64];
//!     let read = client.read(&mut reply)?;
//!     Ok(String::from_utf8_lossy(&reply[..read]).into_owned())
//! };
//! assert_eq!(ask("SET lock mine NX PX 30000\r\n")?, "+OK\r\n");
//! server.advance(Duration::from_secs(30))?;
//! assert_eq!(ask("EXISTS lock\r\n")?, ":0\r\n");
//! # Ok(())
//! # }
//! ```
//!
//! The crate knows nothing of its clients; any Redis client that connects to a Unix socket can use
//! it. It needs Unix (tested on Linux), Rust 1.88 or newer, and a C compiler, which builds Lua.
//!
//! # What it answers
//!
//! The replies are those of Redis 7.0.15, byte by byte, in RESP2 and RESP3. A test sends a million
//! random calls to this server and to a real one: scripts, and commands on data and channels. It
//! compares each reply, and the counts of calls and errors. `CLIENT LIST` and `INFO` have fewer
//! facts, of which some are constant.
//!
//! - Keys: `COPY DBSIZE DEL EXISTS EXPIRE EXPIREAT EXPIRETIME FLUSHALL FLUSHDB KEYS PERSIST PEXPIRE
//!   PEXPIREAT PEXPIRETIME PTTL RENAME SCAN TTL TYPE UNLINK`
//! - Texts: `APPEND DECR DECRBY GET GETDEL GETSET INCR INCRBY MGET MSET PSETEX SET SETEX SETNX
//!   STRLEN`
//! - Hashes: `HDEL HEXISTS HGET HGETALL HINCRBY HKEYS HLEN HMGET HMSET HRANDFIELD HSET HSETNX
//!   HSTRLEN HVALS`
//! - Lists: `LINDEX LLEN LPOP LPOS LPUSH LRANGE LREM LSET LTRIM RPOP RPUSH`
//! - Sets: `SADD SCARD SISMEMBER SMEMBERS SREM`
//! - Sorted sets: `ZADD ZCARD ZCOUNT ZINCRBY ZMSCORE ZPOPMAX ZPOPMIN ZRANGE ZRANGEBYSCORE ZRANK
//!   ZREM ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZREVRANK ZSCORE`
//! - Channels: `PSUBSCRIBE PUBLISH PUBSUB PUNSUBSCRIBE SPUBLISH SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE
//!   UNSUBSCRIBE`
//! - Scripts: `EVAL EVALSHA SCRIPT EXISTS|FLUSH|KILL|LOAD`
//! - Connections and server: `AUTH CLIENT GETNAME|ID|INFO|KILL|LIST|PAUSE|SETNAME|UNBLOCK|UNPAUSE
//!   CONFIG GET|RESETSTAT|SET ECHO HELLO INFO PING QUIT RESET ROLE SELECT SHUTDOWN TIME WAIT`
//! - Clusters and sentinels: `ASKING CLUSTER INFO|KEYSLOT|MYID|SLOTS SENTINEL
//!   GET-MASTER-ADDR-BY-NAME|MASTER|REPLICAS|SENTINELS`
//!
//! It refuses everything else: a command as one that Redis does not know, an option or a setting
//! with `ERR the test server does not have ..`.
//!
//! # What differs
//!
//! - A [`TestServer`] is a master without replicas; see below for others. It has 16 databases, one
//!   user, no transactions and no blocking commands.
//! - `CONFIG SET` changes `maxclients`, `maxmemory`, `min-replicas-to-write`, `requirepass` and
//!   `timeout`. With a `maxmemory` of 1, the server has no memory left, as a Redis without
//!   eviction; 0 is no limit, and there is no other value. Queues of output have no limit. `CONFIG
//!   GET` answers nothing for a setting that the server does not have, as Redis does.
//! - In scripts, `redis` has `call`, `pcall`, `error_reply`, `status_reply`, `sha1hex`, `log`
//!   (which writes nothing), `replicate_commands`, the levels of the log and the version. There are
//!   no `cjson`, `cmsgpack`, `struct`, `bit`, `os`, `coroutine`, `load`, `loadstring` and
//!   `collectgarbage`, and no random numbers. A script may not choose a database.
//! - A script that does not end blocks the server for ever, and with it each method of
//!   [`TestServer`] and its drop. `SCRIPT KILL` always answers `NOTBUSY`.
//! - `DBSIZE` does not count expired keys, which Redis may still count.
//! - What has no order in Redis (`KEYS`, `SCAN`, `SMEMBERS`, large hashes) has another one here.
//! - In builds with debug assertions, Lua ends the process if a `pcall` of a script returns more
//!   than 18 values.
//!
//! # Simulations
//!
//! [`core::Core`] is the same server without sockets, threads and clock, for simulations of whole
//! systems. It takes and returns bytes, on one thread (it is not `Send`). The simulation carries
//! the bytes, so its clients must not open sockets themselves. Several cores can be a master with
//! replicas, sentinels, or a cluster: [`core`] tells how.

pub mod core;
mod net;
mod program;
mod server;

pub use core::Data;
#[doc(hidden)]
pub use program::Program;
pub use server::{Error, TestServer};
