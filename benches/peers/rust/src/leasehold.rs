//! leasehold with its defaults.

use std::any::Any;
use std::time::Duration;

use leasehold::{Builder, Client, Guard, Lock, OwnedGuard};

use crate::contender::{Blocking, Contender, Failure, Holder, Result, Worker};

/// How a pair releases its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Release {
    Drop,
    Unlock,
}

impl Release {
    fn end(self, guard: Guard, until: &mut dyn FnMut()) -> Result {
        until();
        match self {
            Release::Drop => drop(guard),
            Release::Unlock => guard.unlock()?,
        }
        Ok(())
    }
}

struct Leasehold {
    client: Client,
    url: String,
    release: Release,
    pool: Option<usize>,
}

pub(crate) fn open(url: &str, release: Release, pool: Option<usize>) -> Result<Contender> {
    Ok(Contender::Blocking(Box::new(Leasehold::new(url, release, pool)?)))
}

impl Leasehold {
    fn new(url: &str, release: Release, pool: Option<usize>) -> Result<Leasehold> {
        let builder = Client::builder().single(url);
        let client = pool.into_iter().fold(builder, Builder::pool_size).build()?;
        Ok(Leasehold { client, url: url.to_owned(), release, pool })
    }
}

impl Blocking for Leasehold {
    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn another(&self) -> Result<Box<dyn Blocking>> {
        Ok(Box::new(Leasehold::new(&self.url, self.release, self.pool)?))
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        Ok(Box::new(LockWorker { lock: self.client.lock(name), release: self.release }))
    }

    fn holder(&self, lease: Duration) -> Option<Result<Box<dyn Holder>>> {
        let built = Client::builder().single(&self.url).watchdog_timeout(lease).build();
        Some(
            built
                .map_err(Failure::from)
                .map(|client| Box::new(Guards { client, guards: Vec::new() }) as Box<dyn Holder>),
        )
    }

    fn handle(&self, name: String) -> Option<Box<dyn Any>> {
        Some(Box::new(self.client.lock(name)))
    }
}

struct LockWorker {
    lock: Lock,
    release: Release,
}

impl Worker for LockWorker {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        self.release.end(self.lock.lock()?, until)
    }

    fn nest(
        &mut self,
        body: &mut dyn FnMut(&mut dyn FnMut() -> Result) -> Result,
    ) -> Option<Result> {
        Some(self.nested(body))
    }
}

impl LockWorker {
    fn nested(&self, body: &mut dyn FnMut(&mut dyn FnMut() -> Result) -> Result) -> Result {
        let guard = self.lock.lock()?;
        let done = body(&mut || self.release.end(self.lock.lock()?, &mut || ()));
        guard.unlock()?;
        done
    }
}

struct Guards {
    client: Client,
    guards: Vec<OwnedGuard>,
}

impl Holder for Guards {
    fn acquire(&mut self, name: &str) -> Result {
        self.guards.push(self.client.lock(name).lock_owned()?);
        Ok(())
    }

    fn release_all(self: Box<Self>) -> usize {
        let lost = self.guards.iter().filter(|guard| guard.check().is_err()).count();
        drop(self.guards);
        self.client.close();
        lost
    }
}
