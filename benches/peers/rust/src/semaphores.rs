//! leasehold's semaphores with their defaults.

use leasehold::{Builder, Client, PlainSemaphore, Semaphore};

use crate::contender::{Blocking, Contender, PERMITS, Result, Worker};
use crate::leasehold::Release;

/// The kind of semaphore, and how a pair releases its permit.
#[derive(Clone, Copy, Debug)]
enum Sort {
    Leased(Release),
    Plain,
}

struct Semaphores {
    client: Client,
    url: String,
    sort: Sort,
    pool: Option<usize>,
}

pub(crate) fn open(url: &str, name: &str, pool: Option<usize>) -> Result<Contender> {
    let sort = match name {
        "leasehold-plain-semaphore" => Sort::Plain,
        "leasehold-semaphore-unlock" => Sort::Leased(Release::Unlock),
        _ => Sort::Leased(Release::Drop),
    };
    Ok(Contender::Blocking(Box::new(Semaphores::new(url, sort, pool)?)))
}

impl Semaphores {
    fn new(url: &str, sort: Sort, pool: Option<usize>) -> Result<Semaphores> {
        let builder = Client::builder().single(url);
        let client = pool.into_iter().fold(builder, Builder::pool_size).build()?;
        Ok(Semaphores { client, url: url.to_owned(), sort, pool })
    }
}

impl Blocking for Semaphores {
    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn another(&self) -> Result<Box<dyn Blocking>> {
        Ok(Box::new(Semaphores::new(&self.url, self.sort, self.pool)?))
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        Ok(match self.sort {
            Sort::Leased(release) => {
                let semaphore = self.client.semaphore(name).with_permits(PERMITS);
                Box::new(Leased { semaphore, release })
            }
            Sort::Plain => {
                let semaphore = self.client.plain_semaphore(name);
                semaphore.try_set_permits(PERMITS)?;
                Box::new(Plain(semaphore))
            }
        })
    }
}

struct Leased {
    semaphore: Semaphore,
    release: Release,
}

impl Worker for Leased {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        let permit = self.semaphore.acquire()?;
        until();
        match self.release {
            Release::Drop => drop(permit),
            Release::Unlock => permit.release()?,
        }
        Ok(())
    }
}

struct Plain(PlainSemaphore);

impl Worker for Plain {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        self.0.acquire(1)?;
        until();
        Ok(self.0.release(1)?)
    }
}
