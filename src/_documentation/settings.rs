//! The settings of a client, with their defaults.
//!
//! `Client::open` uses the defaults. `Client::builder` sets the servers, the way to reach them, the
//! event listener, a label, an instance and the settings of the table. These methods set the way to
//! reach the servers: `login`, or `login_provider` for passwords that change; `tls_authority`,
//! `tls_identity` and `tls_host_name`; `master_tls`, `sentinel_tls_authority` and
//! `sentinel_tls_identity` if the TLS of sentinels and master differs; `address_map` for servers
//! behind a NAT.
//!
//! | setting | default | |
//! | --- | --- | --- |
//! | `watchdog_timeout` | 30s | lease of a renewed lock; renewed before a third has passed; `with_renewed_lease` sets that of one handle |
//! | `poll_interval` | 1s | longest time between two polls of an awaited lock |
//! | `pool_size` | 8 | most connections for commands, per server; more threads than that share two |
//! | `pool_timeout` | 3s | longest wait for a busy connection; then `is_pool_timeout()` |
//! | `connect_timeout` | 3s | longest time to connect to an address, without the name look-up |
//! | `response_timeout` | 3s | longest wait for a reply; then `is_timeout()`, and the connection is given up |
//! | `min_replicas` | (0, 1s) | number of replicas that must acknowledge a hold, and the time for it |
//! | `sharding` | Auto | release messages go to one shard of a cluster, or to all nodes |
//! | `allow_replica` | false | takes locks on a `single` server that is a replica, beside its master |
//! | `audit_policy` | Report | reaction to a server whose configuration endangers locks |
//! | `announce` | true | writes a record that shows the client's host, process, program and `label` to other clients |
//! | `release_on_death` | false | the holds of the client end with its process |
//! | `name_prefix` | "" | prefix of all names |
//! | `fair_waiter_timeout` | 300s | silence after which the first waiter of a fair lock counts as dead |
//! | `weight_step` | 1s | time by which each unit of weight above 1 moves a waiter for a queue lock forward |
//! | `spin_back_off` | Exponential { first: 1ms, longest: 128ms } | pauses between the attempts of a spinning caller |
//! | `local_handoff` | (512, 5ms) | how often, and for how long, the threads of a process pass a lock on without a round trip; 0: never |
//!
//! Leases are at least 10 ms. Names have 1 byte to 512 MiB; braces in a name must be a hash tag
//! (`a{b}c`). Features: `tls` (`rediss://` URLs, by rustls); `serde` (serializes the information
//! about holders, leaders and findings of the audit); `metrics` (exports the statistics through the
//! crate `metrics`).
