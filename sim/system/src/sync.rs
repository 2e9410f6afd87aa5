//! Mutexes, condition variables and cells: those of `parking_lot`, and `std::sync::OnceLock`.
//!
//! The real mutex inside keeps the value. Nobody ever waits for it: a task that finds it locked
//! sleeps in the simulation.

use crate::clock::{nanos, since_boot};
use crate::world::{TaskId, current, maybe_give_way, park, unpark};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError, TryLockError};
use std::time::Duration;

/// Sleeping tasks, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Sleepers(sync::Mutex<VecDeque<TaskId>>);

impl Sleepers {
    pub(crate) const fn new() -> Sleepers {
        Sleepers(sync::Mutex::new(VecDeque::new()))
    }

    fn list(&self) -> sync::MutexGuard<'_, VecDeque<TaskId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the current task, which is about to sleep.
    pub(crate) fn join(&self) {
        self.add(current());
    }

    /// Removes the current task.
    pub(crate) fn leave(&self) {
        self.remove(current());
    }

    pub(crate) fn add(&self, task: TaskId) {
        self.list().push_back(task);
    }

    pub(crate) fn remove(&self, task: TaskId) {
        self.list().retain(|other| *other != task);
    }

    pub(crate) fn take(&self) -> VecDeque<TaskId> {
        std::mem::take(&mut *self.list())
    }

    pub(crate) fn wake_one(&self) {
        let first = self.list().pop_front();
        if let Some(first) = first {
            unpark(first);
        }
    }

    pub(crate) fn wake_all(&self) {
        for task in self.take() {
            unpark(task);
        }
    }
}

/// A mutex.
pub struct Mutex<T> {
    value: sync::Mutex<T>,
    waiting: Sleepers,
}

/// The right to the value of a locked mutex.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` during the wait for a condition, and at the end.
    value: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { value: sync::Mutex::new(value), waiting: Sleepers::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        maybe_give_way();
        MutexGuard { mutex: self, value: Some(self.take()) }
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> sync::MutexGuard<'_, T> {
        loop {
            match self.value.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    self.waiting.join();
                    park(None);
                    self.waiting.leave();
                }
            }
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

impl<T> MutexGuard<'_, T> {
    fn unlock(&mut self) {
        drop(self.value.take());
        self.mutex.waiting.wake_one();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("locked")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(Sleepers);

impl Condvar {
    pub fn notify_one(&self) {
        self.0.wake_one();
    }

    pub fn notify_all(&self) {
        self.0.wake_all();
    }

    /// Blocks until notified or for `span`; may also return without a reason.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, span: Duration) {
        let end = since_boot().saturating_add(nanos(span));
        self.0.join();
        guard.unlock();
        park(Some(end));
        self.0.leave();
        guard.value = Some(guard.mutex.take());
    }
}

/// A cell that is set once.
pub struct OnceLock<T> {
    value: sync::OnceLock<T>,
    /// Held while a value is made.
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    pub const fn new() -> OnceLock<T> {
        OnceLock { value: sync::OnceLock::new(), making: Mutex::new(()) }
    }

    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock();
        self.value.set(value)
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.value.get() {
            return value;
        }
        let _making = self.making.lock();
        match self.value.get() {
            Some(value) => value,
            None => {
                let value = make();
                self.value.get_or_init(|| value)
            }
        }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> OnceLock<T> {
        OnceLock { value: value.into(), making: Mutex::default() }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.value, f)
    }
}
