//! The processor time of calls that wait while their server is away.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Result};

use crate::harness::process::alone;
use crate::harness::{Proxy, Server, eventually};

/// Long enough for several polls, and for pauses of the server of every length.
const OUTAGE: Duration = Duration::from_secs(5);

/// Returns the processor time of this process so far.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("the figures of this process");
    let behind_name = stat.rsplit(')').next().expect("a name in brackets");
    let field = |at| behind_name.split_whitespace().nth(at).and_then(|it| it.parse::<u64>().ok());
    let ticks = field(11).zip(field(12)).map(|(user, system)| user + system);
    Duration::from_millis(10 * ticks.expect("ticks of 10 ms"))
}

/// Each kind of wait has its own loop.
#[test]
fn waiting_calls_sleep_while_their_server_is_away() -> Result<()> {
    if !alone("idle::waiting_calls_sleep_while_their_server_is_away") {
        return Ok(());
    }
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = Client::builder().single(proxy.url()).announce(false).build()?;
    let holder = Client::builder().single(server.url()).announce(false).build()?;
    let _held = (
        holder.lock("plain").lock_owned()?,
        holder.fair_lock("fair").lock_owned()?,
        holder.queue_lock("queue").lock_owned()?,
        holder.rw_lock("rw").write_owned()?,
        holder.semaphore("permits").with_permits(1).acquire()?,
    );
    assert!(holder.plain_semaphore("stock").try_set_permits(1)?);
    assert!(holder.plain_semaphore("stock").try_acquire(1)?);
    assert!(holder.latch("latch").try_set_count(1)?);
    thread::scope(|scope| {
        let wait = 2 * OUTAGE;
        let (plain, fair) = (client.lock("plain"), client.fair_lock("fair"));
        let (queue, rw) = (client.queue_lock("queue"), client.rw_lock("rw"));
        let (permits, stock) = (client.semaphore("permits"), client.plain_semaphore("stock"));
        let latch = client.latch("latch");
        scope.spawn(move || drop(plain.try_lock_for(wait)));
        scope.spawn(move || drop(fair.try_lock_for(wait)));
        scope.spawn(move || drop(queue.try_lock_for(wait)));
        scope.spawn(move || drop(rw.try_read_for(wait)));
        scope.spawn(move || drop(permits.with_permits(1).try_acquire_for(wait)));
        scope.spawn(move || drop(stock.try_acquire_for(1, wait)));
        scope.spawn(move || drop(latch.wait_for(wait)));
        eventually("all wait", || client.stats().waiting_now() == 7);
        proxy.refuse();
        proxy.kill_all();
        let (start, before) = (Instant::now(), processor_time());
        thread::sleep(OUTAGE);
        let (passed, used) = (start.elapsed(), processor_time() - before);
        proxy.heal();
        assert!(used < passed / 10, "{used:?} of processor time in {passed:?}");
    });
    Ok(())
}
