//! Worker threads of a client for jobs that block while their caller must not.
//!
//! A RedLock uses them to send one request to many servers without waiting for each in turn.
//! A job starts a thread if all threads are busy, up to [`MAX_THREADS`]. The threads end when the
//! executor is closed and its queue is empty. No job runs on the thread that submits it: if the
//! system has no room for a first thread, the jobs wait in the queue, and the next job or the
//! watchdog tries again.

use std::fmt;
use std::sync::Arc;

use crate::util::sync::Mutex;
use crate::util::system::{
    channel::{self, Receiver, Sender},
    thread::JoinHandle,
};
use crate::util::threads;

/// The number of jobs that run at the same time; further jobs wait in the queue.
const MAX_THREADS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on up to eight threads.
#[derive(Default)]
pub(crate) struct Executor(Mutex<ExecutorState>);

#[derive(Default)]
struct ExecutorState {
    /// The job queue, from the first job until the executor is closed.
    queue: Option<(Sender<Job>, Receiver<Job>)>,
    threads: usize,
    handles: Vec<JoinHandle<()>>,
    /// Jobs that were submitted and have not finished.
    open: usize,
    closed: bool,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("threads", &self.0.lock().threads).finish()
    }
}

impl Executor {
    /// Queues a job and starts a thread for it if all are busy. Does not wait for the job.
    ///
    /// After [`Executor::close`] each job gets a thread of its own that nobody joins, or is dropped
    /// if the system has no room for the thread.
    pub(crate) fn run(self: &Arc<Executor>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        if state.closed {
            drop(state);
            drop(threads::detach("leasehold-jobs", job, |job| job()));
            return;
        }
        let (sender, queue) = state.queue.get_or_insert_with(channel::unbounded).clone();
        state.open += 1;
        let starts = state.open > state.threads && state.threads < MAX_THREADS;
        state.threads += usize::from(starts);
        drop(state);
        let executor = Arc::clone(self);
        let job: Job = Box::new(move || {
            threads::catch_panic("running a background job", job);
            executor.0.lock().open -= 1;
        });
        // Sending fails only without a receiver, and each worker holds one.
        drop(sender.send(job));
        if starts {
            self.start_worker(queue);
        }
    }

    /// Starts a worker that takes jobs from `queue` until the executor is closed.
    fn start_worker(&self, queue: Receiver<Job>) {
        let jobs = queue.clone();
        let work = move || jobs.into_iter().for_each(|job| job());
        match threads::start("leasehold-jobs", work) {
            Ok(thread) => self.0.lock().handles.push(thread),
            Err(_) => self.0.lock().threads -= 1,
        }
    }

    /// Starts a worker for jobs that wait without one.
    pub(crate) fn start_missing_worker(&self) {
        let mut state = self.0.lock();
        if state.threads > 0 || state.open == 0 {
            return;
        }
        let Some((_, queue)) = &state.queue else { return };
        let queue = queue.clone();
        state.threads = 1;
        drop(state);
        self.start_worker(queue);
    }

    /// Lets the threads end after the queued jobs, and returns them for joining.
    pub(crate) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.0.lock();
        state.closed = true;
        let (queue, handles) = (state.queue.take(), std::mem::take(&mut state.handles));
        drop(state);
        drop(queue);
        handles
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn jobs_run_concurrently_and_a_panic_ends_no_thread() {
        let executor = Arc::<Executor>::default();
        let met = Arc::new(Barrier::new(MAX_THREADS + 1));
        executor.run(|| panic!("expected by this test"));
        for _ in 0..MAX_THREADS {
            let met = Arc::clone(&met);
            executor.run(move || {
                met.wait();
            });
        }
        met.wait();
        assert!(executor.0.lock().threads <= MAX_THREADS);
    }

    #[test]
    fn jobs_submitted_after_close_still_run() {
        let executor = Arc::<Executor>::default();
        let (sender, receiver) = channel::unbounded();
        let submit = |number| {
            let sender = sender.clone();
            executor.run(move || sender.send(number).expect("the test receives it"));
        };
        (0..3).for_each(submit);
        let threads = executor.close();
        submit(3);
        drop(sender);
        let mut done: Vec<i32> = receiver.into_iter().collect();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 3]);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
