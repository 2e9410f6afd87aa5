//! The crate `redisson` 0.1 in its blocking form: r2d2 connections, a poll every 100 ms.

use std::any::Any;
use std::sync::Arc;

use redisson::{RLock, RedissonClient, RedissonConfig};

use crate::contender::{Blocking, Contender, Result, Worker};

struct Redisson {
    client: RedissonClient,
    url: String,
}

pub(crate) fn open(url: &str) -> Result<Contender> {
    Ok(Contender::Blocking(Box::new(Redisson::new(url)?)))
}

impl Redisson {
    fn new(url: &str) -> Result<Redisson> {
        let config = RedissonConfig::single_server(url);
        let client = RedissonClient::new(config).map_err(|error| error.to_string())?;
        Ok(Redisson { client, url: url.to_owned() })
    }
}

impl Blocking for Redisson {
    fn version(&self) -> &str {
        "0.1.0"
    }

    fn another(&self) -> Result<Box<dyn Blocking>> {
        Ok(Box::new(Redisson::new(&self.url)?))
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        Ok(Box::new(LockWorker(Arc::new(self.client.get_lock(name)))))
    }

    fn handle(&self, name: String) -> Option<Box<dyn Any>> {
        Some(Box::new(self.client.get_lock(&name)))
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        let _ = self.client.shutdown();
    }
}

struct LockWorker(Arc<RLock>);

impl LockWorker {
    fn acquire(&self) -> Result {
        Ok(self.0.lock().map_err(|error| error.to_string())?)
    }

    fn release(&self) -> Result {
        // The result is ignored: it is false also if the key does not exist.
        self.0.unlock().map_err(|error| error.to_string())?;
        Ok(())
    }
}

impl Worker for LockWorker {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        self.acquire()?;
        until();
        self.release()
    }
}
