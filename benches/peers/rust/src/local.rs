//! What a process can do without a server: a mutex, and a hand-off in order by
//! parking and unparking, as bare as it gets.

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
    Contender::Blocking(Box::new(Named::<Line>::default()))
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
        Ok(Box::new(Of(lock)))
    }
}

struct Of<L>(Arc<L>);

impl<L: Local> Worker for Of<L> {
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

/// A lock that is handed to who waits first.
#[derive(Default)]
struct Line(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    taken: bool,
    line: VecDeque<(Thread, Arc<AtomicBool>)>,
}

impl Local for Line {
    fn hold(&self, until: &mut dyn FnMut()) {
        self.acquire();
        until();
        self.release();
    }
}

impl Line {
    fn acquire(&self) {
        let granted = {
            let mut waiting = self.0.lock();
            if !std::mem::replace(&mut waiting.taken, true) {
                return;
            }
            let granted = Arc::<AtomicBool>::default();
            waiting.line.push_back((thread::current(), Arc::clone(&granted)));
            granted
        };
        while !granted.load(Ordering::Acquire) {
            thread::park();
        }
    }

    fn release(&self) {
        let next = {
            let mut waiting = self.0.lock();
            let next = waiting.line.pop_front();
            waiting.taken = next.is_some();
            next
        };
        if let Some((thread, granted)) = next {
            granted.store(true, Ordering::Release);
            thread.unpark();
        }
    }
}
