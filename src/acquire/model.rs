//! Models of the wait loop, run under the model checker.
//!
//! The question of a lock needs an engine. [`wait_loop`] has a smaller one, for the real loop. It
//! takes the same steps with the same parts, which are the queue and the holds (`local/`), the
//! retry schedule (`wait/schedule.rs`) and the channels (`transport/listener/channels.rs`).
//! [`process`] checks the threads of one process, [`messages`] the messages between processes.

mod messages;
mod process;
mod wait_loop;
