//! Tasks, in the place of `std::thread`.

use crate::world::{self, ProcessId, TaskId};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use crate::clock::sleep;

/// The outcome of a task: its value, or what it panicked with.
pub type Result<T> = std::thread::Result<T>;

/// The place where a task leaves its outcome.
type Place<T> = Arc<Mutex<Option<Result<T>>>>;

/// The name of the tasks of scopes.
pub(crate) const SCOPED: &str = "scoped";

/// A task that can be joined.
#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: Thread,
    outcome: Place<T>,
}

/// A task, as others see it.
#[derive(Clone, Debug)]
pub struct Thread {
    task: TaskId,
    name: String,
}

impl Thread {
    pub fn id(&self) -> TaskId {
        self.task
    }

    pub fn name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

/// Returns the current task.
pub fn current() -> Thread {
    Thread { task: world::current(), name: world::task_name() }
}

/// Blocks the current task for `span`, or until another task unparks it.
pub fn park_timeout(span: Duration) {
    world::park(Some(crate::clock::since_boot().saturating_add(crate::clock::nanos(span))));
}

/// Starts a task of the current process.
pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    JoinHandle::start(world::current_process(), "thread", run)
}

/// Starts tasks with names.
#[derive(Debug, Default)]
pub struct Builder {
    name: String,
}

impl Builder {
    pub fn new() -> Builder {
        Builder::default()
    }

    #[must_use]
    pub fn name(self, name: String) -> Builder {
        Builder { name }
    }

    pub fn spawn<T: Send + 'static>(
        self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        Ok(JoinHandle::start(world::current_process(), &self.name, run))
    }
}

/// Returns a closure that leaves its outcome in a place.
fn into_place<'a, T: 'a>(place: &Place<T>, run: impl FnOnce() -> T + 'a) -> Box<dyn FnOnce() + 'a> {
    let place = Arc::clone(place);
    Box::new(move || {
        let outcome = catch_unwind(AssertUnwindSafe(run));
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    })
}

impl<T> JoinHandle<T> {
    pub(crate) fn start(
        process: ProcessId,
        name: &str,
        run: impl FnOnce() -> T + 'static,
    ) -> JoinHandle<T>
    where
        T: 'static,
    {
        let outcome = Place::default();
        let task = world::spawn(process, name, into_place(&outcome, run));
        JoinHandle { thread: Thread { task, name: name.to_owned() }, outcome }
    }

    pub(crate) fn task(&self) -> TaskId {
        self.thread.task
    }

    pub fn thread(&self) -> &Thread {
        &self.thread
    }

    pub fn is_finished(&self) -> bool {
        world::task_has_ended(self.thread.task)
    }

    /// Blocks until the task has ended. A task that was killed leaves an error.
    pub fn join(self) -> Result<T> {
        if !self.is_finished() {
            world::wait_for_end(self.thread.task);
        }
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        outcome.unwrap_or_else(|| Err(Box::new("the process was killed")))
    }
}

/// A scope for tasks that borrow from their parent, as `std::thread::Scope`.
pub struct Scope<'scope, 'env: 'scope> {
    tasks: RefCell<Vec<TaskId>>,
    has_panicked: Arc<Mutex<bool>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

/// A task of a scope.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    handle: JoinHandle<T>,
    scope: PhantomData<&'scope ()>,
}

impl<T> ScopedJoinHandle<'_, T> {
    pub fn join(self) -> Result<T> {
        self.handle.join()
    }
}

impl<'scope> Scope<'scope, '_> {
    pub fn spawn<T: Send + 'scope>(
        &'scope self,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let outcome = Place::default();
        let has_panicked = Arc::clone(&self.has_panicked);
        let run = into_place(&outcome, move || {
            catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                *has_panicked.lock().unwrap_or_else(PoisonError::into_inner) = true;
                resume_unwind(panic)
            })
        });
        // SAFETY: `scope` does not return before the task has ended. If the process is killed, no
        // task of it runs any more.
        let run = unsafe {
            std::mem::transmute::<Box<dyn FnOnce() + 'scope>, Box<dyn FnOnce() + 'static>>(run)
        };
        let task = world::spawn(world::current_process(), SCOPED, run);
        self.tasks.borrow_mut().push(task);
        let thread = Thread { task, name: SCOPED.to_owned() };
        ScopedJoinHandle { handle: JoinHandle { thread, outcome }, scope: PhantomData }
    }
}

/// Runs `f` and then waits for the tasks that it started in the scope.
pub fn scope<'env, T>(f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    let scope = Scope {
        tasks: RefCell::default(),
        has_panicked: Arc::default(),
        scope: PhantomData,
        env: PhantomData,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    loop {
        let next = scope.tasks.borrow_mut().pop();
        let Some(task) = next else { break };
        world::wait_for_end(task);
    }
    match outcome {
        Err(panic) => resume_unwind(panic),
        Ok(_) if *scope.has_panicked.lock().unwrap_or_else(PoisonError::into_inner) => {
            panic!("a scoped thread panicked")
        }
        Ok(value) => value,
    }
}
