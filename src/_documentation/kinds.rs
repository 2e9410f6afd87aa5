//! All kinds of locks and synchronizers: their use, their cost, and the kind of Redisson that
//! shares the data.
//!
//! All kinds of locks have the same methods. The last column is the kind of Redisson 4.x that
//! shares the data. Use one kind for one name.
//!
//! | kind | use | cost | Redisson |
//! | --- | --- | --- | --- |
//! | `client.lock(name)` | default | one round trip to take, none to drop | `getLock` |
//! | `fenced_lock` | the protected resource refuses smaller `token()`s | one more key per name, never deleted | `getFencedLock` |
//! | `fair_lock` | first come, first served | each waiter polls; a dead waiter blocks the others for `fair_waiter_timeout` | `getFairLock` |
//! | `queue_lock` | many callers compete; priorities (`with_weight`) | one wake-up per release, of a waiter that needs no further round trip; one more key per name, never deleted | none |
//! | `once` | work that is done once, and its result for all | two more keys per name, which expire; each waiting caller asks, and gets the whole result | none |
//! | `rw_lock` | many readers, few writers | one key per reader; readers and writers take turns | `getReadWriteLock` |
//! | `spin_lock` | very short holds, or no right to subscribe | each process polls, with short pauses | `getSpinLock` |
//! | `MultiLock::new([..])` | several locks without deadlock | one round trip for plain locks of one client | `getMultiLock` |
//! | `RedLock::new(clients, name)` | survives the loss of a server | one round trip, and one thread per server | `getRedLock` |
//! | `lock(name).with_holder(id)` | a job holds the lock, not a thread | one round trip per guard and per release, nested or not | `getLock`, with `id` for the thread |
//! | `semaphore` | at most n callers at a time; the permits of a dead process come back | as `lock`, for up to 1,000 permits at once; its key is never deleted | `getPermitExpirableSemaphore` |
//! | `plain_semaphore` | permits that are used up, such as a stock | one round trip per change; its key is never deleted | `getSemaphore` |
//! | `latch` | callers wait until n parts are done | one round trip per change | `getCountDownLatch` |
//! | `election` | one leader at a time, known to all (`leader()`, `observe()`) | as `queue_lock`, and one more round trip per leader | none |
