//! `rslock` 0.10: tokio tasks over one multiplexed connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rslock::LockManager;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::contender::{Contender, Failure, Result};
use crate::stamp::{self, Record};

pub(crate) const VERSION: &str = "0.10.0";

const LEASE: Duration = Duration::from_secs(30);

/// The library, on a runtime as in the example of its README.
pub(crate) struct Tasks {
    runtime: Runtime,
    locks: LockManager,
    url: String,
    waiting: Option<(oneshot::Sender<()>, JoinSet<Result<u64>>)>,
}

pub(crate) fn open(url: &str) -> Result<Contender> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let locks = LockManager::new(vec![url]);
    Ok(Contender::Tasks(Tasks { runtime, locks, url: url.to_owned(), waiting: None }))
}

impl Tasks {
    /// Returns the records and the number of failed pairs.
    pub(crate) fn pairs(
        &self,
        names: Vec<String>,
        time: Duration,
        think_us: u64,
    ) -> Result<(Vec<Record>, u64)> {
        self.runtime.block_on(async {
            let begin = Arc::new(Notify::new());
            let mut tasks = JoinSet::new();
            for (worker, name) in (0..).zip(names) {
                let (locks, begin) = (self.locks.clone(), Arc::clone(&begin));
                tasks.spawn(async move {
                    begin.notified().await;
                    let end = stamp::now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    one_worker(&locks, worker, &name, end, think_us).await
                });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            begin.notify_waiters();
            let (mut records, mut errors) = (Vec::new(), 0);
            while let Some(done) = tasks.join_next().await {
                let (of_one, failed) = done?;
                records.extend(of_one);
                errors += failed;
            }
            Ok((records, errors))
        })
    }

    pub(crate) fn start(&self, count: u64) -> Result<u64> {
        let begin = stamp::now();
        for _ in 0..count {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(async {
                let locks = LockManager::new(vec![self.url.as_str()]);
                locks.acquire(&b"bench:start"[..], LEASE).await?.release().await;
                Ok::<_, Failure>(())
            })?;
        }
        Ok(stamp::now() - begin)
    }

    /// Acquires `taken`, and starts a waiting task for each of `names`.
    pub(crate) fn wait(&mut self, taken: Vec<String>, names: Vec<String>) -> Result {
        let own = LockManager::new(vec![self.url.as_str()]);
        let held = self.runtime.block_on(async {
            let mut held = Vec::new();
            for name in taken {
                held.push(own.acquire(name.as_bytes(), LEASE * 100).await?);
            }
            Ok::<_, Failure>(held)
        })?;
        let (free, freed) = oneshot::channel();
        let asked = Arc::new(AtomicUsize::new(0));
        let (mut tasks, count) = (JoinSet::new(), names.len());
        for name in names {
            let (locks, asked) = (self.locks.clone(), Arc::clone(&asked));
            let body = async move {
                asked.fetch_add(1, Ordering::Relaxed);
                locks.acquire(name.as_bytes(), LEASE).await?.release().await;
                Ok(stamp::now())
            };
            tasks.spawn_on(body, self.runtime.handle());
        }
        let release = async move {
            let _ = freed.await;
            let begin = stamp::now();
            for guard in held {
                guard.release().await;
            }
            Ok(begin)
        };
        tasks.spawn_on(release, self.runtime.handle());
        while asked.load(Ordering::Relaxed) < count {
            std::thread::yield_now();
        }
        self.waiting = Some((free, tasks));
        Ok(())
    }

    /// Returns the nanoseconds from the release to the last end, and the number of failures.
    pub(crate) fn free(&mut self) -> Result<(u64, u64)> {
        let (free, mut tasks) = self.waiting.take().ok_or("nobody waits")?;
        let begin = stamp::now();
        let _ = free.send(());
        let mut errors = 0;
        self.runtime.block_on(async {
            while let Some(done) = tasks.join_next().await {
                errors += u64::from(!matches!(done, Ok(Ok(_))));
            }
        });
        Ok((stamp::now() - begin, errors))
    }
}

async fn one_worker(
    locks: &LockManager,
    worker: u64,
    name: &str,
    end: u64,
    think_us: u64,
) -> (Vec<Record>, u64) {
    let (mut records, mut errors) = (Vec::new(), 0);
    while stamp::now() < end {
        let asked = stamp::now();
        let Ok(guard) = locks.acquire(name.as_bytes(), LEASE).await else {
            errors += 1;
            continue;
        };
        let (acquired, releasing) = (stamp::now(), stamp::now());
        guard.release().await;
        records.push(Record { worker, asked, acquired, releasing, released: stamp::now() });
        stamp::spin(think_us);
    }
    (records, errors)
}
