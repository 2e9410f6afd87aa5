//! What taking and releasing a lock allocates, once all that is reused is there: as much
//! as the parser of the redis crate does for the replies that are read, and no more.

mod support;

use allocation_counter::measure;
use leasehold::{Client, Lock, Result};
use std::sync::{Arc, Barrier};
use std::thread;
use support::Server;

const PAIRS: u64 = 500;

/// Takes and releases the lock so often; how many allocations of this thread that cost.
fn allocations(lock: &Lock, release: impl Fn(leasehold::Guard) -> Result<()>) -> u64 {
    let pairs = || {
        for _ in 0..PAIRS {
            let guard = lock.lock().expect("the server answers");
            release(guard).expect("it is held");
        }
    };
    pairs();
    measure(pairs).count_total
}

/// How much the redis crate allocates when it reads as many replies as that many pairs
/// have.
fn parsing(server: &Server, pairs: u64) -> u64 {
    let client = redis::Client::open(server.url()).expect("a good URL");
    let mut connection = client.get_connection().expect("the server answers");
    let ask = redis::cmd("PTTL").arg("nothing").get_packed_command();
    let replies = measure(|| {
        for _ in 0..2 * pairs {
            connection.send_packed_command(&ask).expect("the server answers");
            connection.recv_response().expect("the server answers");
        }
    });
    replies.count_total
}

/// At most so many. The reaper may come between, and the next hold find no spare lease;
/// and a burst of threads fewer spare buffers than it needs.
fn bound(parsing: u64) -> u64 {
    parsing + parsing / 50
}

fn dropped(guard: leasehold::Guard) -> Result<()> {
    drop(guard);
    Ok(())
}

#[test]
fn a_pair_of_one_thread_allocates_what_the_parser_does() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let parsing = parsing(&server, PAIRS);
    assert!(parsing > 0, "nothing would be counted");
    let lock = client.lock("dropped");
    let dropped = allocations(&lock, dropped);
    assert!(dropped <= bound(parsing), "{dropped} allocations, {parsing} for the replies");
    let unlocked = allocations(&client.lock("unlocked"), leasehold::Guard::unlock);
    assert!(unlocked <= bound(parsing), "{unlocked} allocations, {parsing} for the replies");
    Ok(())
}

#[test]
fn a_nested_pair_allocates_nothing() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let lock = client.lock("a");
    let _outer = lock.lock()?;
    assert_eq!(allocations(&lock, dropped), 0);
    assert_eq!(allocations(&lock, leasehold::Guard::unlock), 0);
    Ok(())
}

#[test]
fn threads_that_share_connections_allocate_no_more() -> Result<()> {
    const THREADS: u64 = 8;
    let server = Server::start();
    let client = Client::builder().single(server.url()).pool_size(2).build()?;
    let begin = Arc::new(Barrier::new(usize::try_from(THREADS).expect("small")));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (lock, begin) = (client.lock(format!("lock:{number}")), Arc::clone(&begin));
            thread::spawn(move || {
                begin.wait();
                allocations(&lock, dropped)
            })
        })
        .collect();
    let counts = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
    let (all, parsing) = (counts.sum::<u64>(), parsing(&server, THREADS * PAIRS));
    assert!(all <= bound(parsing), "{all} allocations, {parsing} for the replies");
    Ok(())
}
