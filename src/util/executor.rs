//! Threads of a client for what may block while its caller must not: one that asks many
//! servers at once waits for none of them alone.
//!
//! They are started when they are needed and end with the client.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use crate::util::sync::Mutex;
use crate::util::threads;

/// How many jobs run at the same time; others wait.
const MOST: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Where jobs are handed in.
#[derive(Default)]
pub(crate) struct Executor(Mutex<ExecutorState>);

#[derive(Default)]
struct ExecutorState {
    jobs: Option<(Sender<Job>, Receiver<Job>)>,
    threads: usize,
    handles: Vec<JoinHandle<()>>,
    /// Jobs that were handed in and are not done.
    open: usize,
    closed: bool,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").field("threads", &self.0.lock().threads).finish()
    }
}

impl Executor {
    /// Has a job done by and by; on a thread of its own, which nobody joins, if the client is
    /// closed.
    pub(crate) fn run(self: &Arc<Executor>, job: impl FnOnce() + Send + 'static) {
        let (sender, starts) = {
            let mut retries = self.0.lock();
            if retries.closed {
                drop(retries);
                return threads::detach_or_run("leasehold-aside", job);
            }
            let (sender, receiver) = retries.jobs.get_or_insert_with(crossbeam_channel::unbounded);
            let (sender, receiver) = (sender.clone(), receiver.clone());
            retries.open += 1;
            let starts = retries.open > retries.threads && retries.threads < MOST;
            retries.threads += usize::from(starts);
            (sender, starts.then_some(receiver))
        };
        let retries = Arc::clone(self);
        let job: Job = Box::new(move || {
            threads::survive("doing something aside", job);
            retries.0.lock().open -= 1;
        });
        let Some(receiver) = starts else { return drop(sender.send(job)) };
        let rest = receiver.clone();
        let work = move || receiver.into_iter().for_each(|job| job());
        drop(sender.send(job));
        match threads::start("leasehold-aside", work) {
            Ok(thread) => self.0.lock().handles.push(thread),
            Err(error) => {
                let mut retries = self.0.lock();
                retries.threads -= 1;
                let alone = retries.threads == 0;
                drop(retries);
                threads::say(|| log::error!("no thread for what is done aside: {error}"));
                if alone {
                    rest.try_iter().for_each(|job| job());
                }
            }
        }
    }

    /// Lets the threads end when they have done what was handed in.
    pub(crate) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut retries = self.0.lock();
        retries.closed = true;
        let (jobs, handles) = (retries.jobs.take(), std::mem::take(&mut retries.handles));
        drop(retries);
        drop(jobs);
        handles
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn jobs_run_beside_each_other_and_a_panic_ends_no_thread() {
        let aside = Arc::<Executor>::default();
        let met = Arc::new(Barrier::new(MOST + 1));
        aside.run(|| panic!("this is expected"));
        for _ in 0..MOST {
            let met = Arc::clone(&met);
            aside.run(move || {
                met.wait();
            });
        }
        met.wait();
        assert!(aside.0.lock().threads <= MOST);
    }

    #[test]
    fn what_is_handed_in_is_done_after_closing_too() {
        let aside = Arc::<Executor>::default();
        let (sender, receiver) = crossbeam_channel::unbounded();
        let hand_in = |number| {
            let sender = sender.clone();
            aside.run(move || sender.send(number).expect("it is received"));
        };
        (0..3).for_each(hand_in);
        let threads = aside.close();
        hand_in(3);
        drop(sender);
        let mut done: Vec<i32> = receiver.into_iter().collect();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 3]);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
