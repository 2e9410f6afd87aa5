//! The guarantees of locks, their conditions, and their limits.
//!
//! While [`Guard::is_held`](crate::Guard::is_held) returns true, no conflicting hold on the lock is
//! valid. (Two holds of readers do not conflict, nor do two holds of one [named
//! holder](crate::Lock::with_holder).) The number of valid permits of a
//! [`Semaphore`](crate::Semaphore) never exceeds the capacity, except after a
//! [`resize`](crate::Semaphore::resize) to fewer permits than are in use. Conditions:
//! - the clock of the server does not step forward;
//! - the clock of the client never stands still, and is at most 1 % slower than the clock of the
//!   server (the clock of a paused virtual machine may stand still, and so may that of a sandbox
//!   without `CLOCK_BOOTTIME` while the machine sleeps);
//! - no write that the server acknowledged is lost in a fail-over, in a restart without data or by
//!   eviction;
//! - nobody deletes the key;
//! - the clocks of Java hosts that share a [`Semaphore`](crate::Semaphore) agree with the [clock of
//!   the server](crate::Semaphore#clocks).
//!
//! A guard never reports a valid lease after the deadline of the lease. The lease counts from the
//! moment before the command was sent, on a clock that continues while the machine sleeps.
//!
//! The operating system can pause a program *after* its last check, until its lease has ended. No
//! lock with a lease can prevent that. The protected resource has to refuse such a stale writer
//! itself, by the token of a [`FencedLock`](crate::FencedLock), a [`QueueLock`](crate::QueueLock)
//! or a [`Leadership`](crate::Leadership).
//!
//! # Promises
//!
//! - **Loss.** A holder learns of a lost lease, renewed or fixed, within a third of
//!   `watchdog_timeout`: from `check()`, `Events::lost` and the log. **A fail-over may give a lock
//!   to a second holder.**
//! - **Stale writers.** A program that was paused can write after the end of its lease. Only the
//!   protected resource can refuse that, by the tokens of `fenced_lock`, `queue_lock` and
//!   `election`.
//! - **Ownership.** Only the holder or `force_unlock()` ends a hold before its lease ends. The
//!   locks and permits of a dead process are free at the end of their lease (by default 30 s). With
//!   [`release_on_death`](crate::Builder::release_on_death) a waiting client on the same machine
//!   ends them within 1.2 poll intervals, if the kernel says that the process is gone; with
//!   [`instance`](crate::Builder::instance) its successor does. Neither ends a hold of a process
//!   that runs, is stopped, or is not reachable, unless the operator breaks the promise that an
//!   instance name is, or copies machines or processes that run. It takes longer if more than 64
//!   readers or permits are there (each look sees 64), if a cluster node was not asked before (one
//!   interval more), and if the process also waited in the queue of a fair lock: its places there
//!   last for their time-outs.
//! - **Waiting.** After a release in another process, the first waiting thread of a process gets
//!   the lock within two round trips and 2 ms (spin lock: after a pause), unless a third process is
//!   faster. If the release message is lost, the thread asks within the poll interval (1 s). A hold
//!   that [lingers](crate::Lock::with_linger) is released when a waiting thread asks for it; if that
//!   message is lost, the thread asks again within the poll interval.
//! - **Exact counts.** Plain semaphores and latches count each change once, also after a lost
//!   reply.
//! - **Deadlines and errors.** A call returns at most 100 ms after its deadline, cancellation or
//!   `close()`; an unfinished acquire is undone in the background. A call fails if its first
//!   request gets no answer (`is_connection()`, `is_timeout()`); a call that already waits survives
//!   outages, and refusals that end by themselves or by a change at the server (`NOREPLICAS`,
//!   `OOM`).
//! - **Drop.** The drop of a guard never waits for the network and never panics. `close()` the
//!   client last, to send the pending releases. Create the client after a fork.
