//! `redlock` 2: blocking, with a new connection for every command.

use redlock::RedLock;

use crate::contender::{Blocking, Contender, Result, Worker};

const LEASE_MILLIS: usize = 30_000;

struct Manager {
    locks: RedLock,
    url: String,
}

pub(crate) fn open(url: &str) -> Result<Contender> {
    Ok(Contender::Blocking(Box::new(Manager::new(url))))
}

impl Manager {
    fn new(url: &str) -> Manager {
        Manager { locks: RedLock::new(vec![url]), url: url.to_owned() }
    }
}

impl Blocking for Manager {
    fn version(&self) -> &str {
        "2.0.0"
    }

    fn another(&self) -> Result<Box<dyn Blocking>> {
        Ok(Box::new(Manager::new(&self.url)))
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        Ok(Box::new(LockWorker { locks: self.locks.clone(), name: name.as_bytes().to_vec() }))
    }
}

struct LockWorker {
    locks: RedLock,
    name: Vec<u8>,
}

impl Worker for LockWorker {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        let guard = self.locks.acquire(&self.name, LEASE_MILLIS)?;
        until();
        drop(guard);
        Ok(())
    }
}
