//! Models of the wait loop, run under the model checker.
//!
//! The real loop needs an engine. [`wait_loop`] is a smaller loop without one: it takes the same
//! steps with the same parts, which are the queue and the holds (`local/`), the retry schedule
//! (`schedule.rs`) and the channels (`transport/listener/channels.rs`). [`process`] checks the threads of
//! one process, [`messages`] the messages between processes.

mod messages;
mod process;
mod wait_loop;
