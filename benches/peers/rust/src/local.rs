//! Locks without a server: a mutex, and a first-in, first-out hand-off by park and unpark.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use parking_lot::Mutex;

use crate::contender::{Blocking, Contender, Result, Worker};

/// Locks of one kind, by name.
struct Named<L> {
    locks: Arc<Mutex<HashMap<String, Arc<L>>>>,
}

impl<L> Default for Named<L> {
    fn default() -> Named<L> {
        Named { locks: Arc::default() }
    }
}

trait Local: Default + Send + Sync + 'static {
    fn hold(&self, until: &mut dyn FnMut());
}

pub(crate) fn park() -> Contender {
    Contender::Blocking(Box::new(Named::<FifoLock>::default()))
}

pub(crate) fn parking_lot() -> Contender {
    Contender::Blocking(Box::new(Named::<Mutex<()>>::default()))
}

impl<L: Local> Blocking for Named<L> {
    fn version(&self) -> &str {
        "local"
    }

    fn another(&self) -> Result<Box<dyn Blocking>> {
        Err("a local lock has no client".into())
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        let lock = Arc::clone(self.locks.lock().entry(name.to_owned()).or_default());
        Ok(Box::new(LocalWorker(lock)))
    }
}

struct LocalWorker<L>(Arc<L>);

impl<L: Local> Worker for LocalWorker<L> {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        self.0.hold(until);
        Ok(())
    }
}

impl Local for Mutex<()> {
    fn hold(&self, until: &mut dyn FnMut()) {
        let _guard = self.lock();
        until();
    }
}

/// A lock that is handed to the first waiter of its queue.
#[derive(Default)]
struct FifoLock(Mutex<FifoState>);

#[derive(Default)]
struct FifoState {
    held: bool,
    queue: VecDeque<(Thread, Arc<AtomicBool>)>,
}

impl Local for FifoLock {
    fn hold(&self, until: &mut dyn FnMut()) {
        self.acquire();
        until();
        self.release();
    }
}

impl FifoLock {
    fn acquire(&self) {
        let granted = {
            let mut state = self.0.lock();
            if !std::mem::replace(&mut state.held, true) {
                return;
            }
            let granted = Arc::<AtomicBool>::default();
            state.queue.push_back((thread::current(), Arc::clone(&granted)));
            granted
        };
        while !granted.load(Ordering::Acquire) {
            thread::park();
        }
    }

    fn release(&self) {
        let next = {
            let mut state = self.0.lock();
            let next = state.queue.pop_front();
            state.held = next.is_some();
            next
        };
        if let Some((thread, granted)) = next {
            granted.store(true, Ordering::Release);
            thread.unpark();
        }
    }
}
