//! leasehold itself, with its defaults.

use std::any::Any;
use std::time::Duration;

use leasehold::{Builder, Client, Guard, Lock, OwnedGuard};

use crate::contender::{Blocking, Contender, Failure, Keeper, Result, Worker};

/// How a pair ends.
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
        Ok(Box::new(Of { lock: self.client.lock(name), release: self.release }))
    }

    fn keeper(&self, lease: Duration) -> Option<Result<Box<dyn Keeper>>> {
        let built = Client::builder().single(&self.url).watchdog_timeout(lease).build();
        Some(
            built
                .map_err(Failure::from)
                .map(|client| Box::new(Kept { client, guards: Vec::new() }) as Box<dyn Keeper>),
        )
    }

    fn handle(&self, name: String) -> Option<Box<dyn Any>> {
        Some(Box::new(self.client.lock(name)))
    }
}

struct Of {
    lock: Lock,
    release: Release,
}

impl Worker for Of {
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

impl Of {
    fn nested(&self, body: &mut dyn FnMut(&mut dyn FnMut() -> Result) -> Result) -> Result {
        let guard = self.lock.lock()?;
        let done = body(&mut || self.release.end(self.lock.lock()?, &mut || ()));
        guard.unlock()?;
        done
    }
}

struct Kept {
    client: Client,
    guards: Vec<OwnedGuard>,
}

impl Keeper for Kept {
    fn take(&mut self, name: &str) -> Result {
        self.guards.push(self.client.lock(name).lock_owned()?);
        Ok(())
    }

    fn drop_all(self: Box<Self>) -> usize {
        let lost = self.guards.iter().filter(|guard| guard.check().is_err()).count();
        drop(self.guards);
        self.client.close();
        lost
    }
}
