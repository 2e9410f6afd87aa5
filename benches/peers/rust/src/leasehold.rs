//! leasehold with its defaults.

use std::any::Any;
use std::time::Duration;

use leasehold::kind::LockKind;
use leasehold::{Builder, Client, Guard, Lock, OwnedGuard};

use crate::contender::{Blocking, Contender, Failure, Holder, Result, Worker};

/// How a pair releases its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Release {
    Drop,
    Unlock,
}

impl Release {
    fn end<K: LockKind>(self, guard: Guard<K>, until: &mut dyn FnMut()) -> Result {
        until();
        match self {
            Release::Drop => drop(guard),
            Release::Unlock => guard.unlock()?,
        }
        Ok(())
    }
}

/// Makes a handle of one kind of lock.
type Make<K> = fn(&Client, &str) -> Lock<K>;

struct Leasehold<K: LockKind> {
    client: Client,
    url: String,
    make: Make<K>,
    release: Release,
    pool: Option<usize>,
}

/// Opens the kind of lock that the name of the contender ends with, plain without such a name.
pub(crate) fn open(url: &str, name: &str, pool: Option<usize>) -> Result<Contender> {
    let (kind, release) = match name.strip_suffix("-unlock") {
        Some(kind) => (kind, Release::Unlock),
        None => (name, Release::Drop),
    };
    Ok(Contender::Blocking(match kind {
        "leasehold-fair" => boxed(url, |client, name| client.fair_lock(name), release, pool)?,
        "leasehold-linger" => boxed(url, lingering, release, pool)?,
        "leasehold-queue" => boxed(url, |client, name| client.queue_lock(name), release, pool)?,
        _ => boxed(url, |client, name| client.lock(name), release, pool)?,
    }))
}

/// Returns a lock whose holds linger.
fn lingering(client: &Client, name: &str) -> Lock {
    client.lock(name).with_linger(Duration::from_millis(500))
}

fn boxed<K: LockKind>(
    url: &str,
    make: Make<K>,
    release: Release,
    pool: Option<usize>,
) -> Result<Box<dyn Blocking>> {
    Ok(Box::new(Leasehold::new(url, make, release, pool)?))
}

impl<K: LockKind> Leasehold<K> {
    fn new(
        url: &str,
        make: Make<K>,
        release: Release,
        pool: Option<usize>,
    ) -> Result<Leasehold<K>> {
        let builder = Client::builder().single(url);
        let client = pool.into_iter().fold(builder, Builder::pool_size).build()?;
        Ok(Leasehold { client, url: url.to_owned(), make, release, pool })
    }
}

impl<K: LockKind> Blocking for Leasehold<K> {
    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn another(&self) -> Result<Box<dyn Blocking>> {
        Ok(Box::new(Leasehold::new(&self.url, self.make, self.release, self.pool)?))
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        Ok(Box::new(LockWorker { lock: (self.make)(&self.client, name), release: self.release }))
    }

    fn holder(&self, lease: Duration) -> Option<Result<Box<dyn Holder>>> {
        let built = Client::builder().single(&self.url).watchdog_timeout(lease).build();
        Some(built.map_err(Failure::from).map(|client| {
            Box::new(Guards { client, make: self.make, guards: Vec::new() }) as Box<dyn Holder>
        }))
    }

    fn handle(&self, name: String) -> Option<Box<dyn Any>> {
        Some(Box::new((self.make)(&self.client, &name)))
    }
}

struct LockWorker<K: LockKind> {
    lock: Lock<K>,
    release: Release,
}

impl<K: LockKind> Worker for LockWorker<K> {
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

impl<K: LockKind> LockWorker<K> {
    fn nested(&self, body: &mut dyn FnMut(&mut dyn FnMut() -> Result) -> Result) -> Result {
        let guard = self.lock.lock()?;
        let done = body(&mut || self.release.end(self.lock.lock()?, &mut || ()));
        guard.unlock()?;
        done
    }
}

struct Guards<K: LockKind> {
    client: Client,
    make: Make<K>,
    guards: Vec<OwnedGuard<K>>,
}

impl<K: LockKind> Holder for Guards<K> {
    fn acquire(&mut self, name: &str) -> Result {
        self.guards.push((self.make)(&self.client, name).lock_owned()?);
        Ok(())
    }

    fn release_all(self: Box<Self>) -> usize {
        let lost = self.guards.iter().filter(|guard| guard.check().is_err()).count();
        drop(self.guards);
        self.client.close();
        lost
    }
}
