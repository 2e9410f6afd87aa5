//! How long a caller waits beside a client that takes the same lock again and again: each kind, on
//! each topology. A measurement, which prints the table of `docs/questions.md`.

use crate::harness::replicated::MASTER;
use crate::harness::{Cluster, Replicated, Server};
use leasehold::{Builder, Client, MultiLock, RedLock};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A linger time: the holds of a loop mostly linger.
const LINGER: Duration = Duration::from_millis(500);

/// One take and release of a loop, or of the caller that waits.
type Pair = Box<dyn Fn() + Send + Sync>;

/// A kind, with the pairs of the loop and of the caller. The clients are different ones.
type Case = (&'static str, fn(&Client) -> Pair, fn(&Client) -> Pair);

fn pair<G, E: Debug>(take: impl Fn() -> Result<G, E> + Send + Sync + 'static) -> Pair {
    Box::new(move || drop(take().expect("the server answers")))
}

/// The same pair on both sides.
macro_rules! both {
    ($name:literal, $lock:expr, $take:ident) => {{
        fn make(client: &Client) -> Pair {
            let make: fn(&Client) -> _ = $lock;
            let lock = make(client);
            pair(move || lock.$take())
        }
        ($name, make as fn(&Client) -> Pair, make as fn(&Client) -> Pair)
    }};
}

fn reads(client: &Client) -> Pair {
    let lock = client.rw_lock("rw");
    pair(move || lock.read())
}

fn writes(client: &Client) -> Pair {
    let lock = client.rw_lock("rw");
    pair(move || lock.write())
}

fn cases() -> Vec<Case> {
    vec![
        both!("plain lock", |client| client.lock("plain"), lock),
        both!("plain lock that lingers", |client| client.lock("idle").with_linger(LINGER), lock),
        both!("fenced lock", |client| client.fenced_lock("fenced"), lock),
        both!("queue lock", |client| client.queue_lock("queue"), lock),
        both!("fair lock", |client| client.fair_lock("fair"), lock),
        ("writer beside a reader", reads, writes),
        ("reader beside a writer", writes, reads),
        ("writer beside a writer", writes, writes),
        both!("spin lock", |client| client.spin_lock("spin"), lock),
        both!("semaphore with one permit", |it| it.semaphore("permit").with_permits(1), acquire),
        both!("multi-lock of two", |it| MultiLock::new([it.lock("{m}a"), it.lock("{m}b")]), lock),
    ]
}

/// Returns the median and the longest wait of `waits` callers, one after the other.
fn waits(pairs: [&Pair; 2], waits: usize) -> [Duration; 2] {
    let [loops, wait] = pairs;
    let stop = AtomicBool::new(false);
    let mut spans = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                loops();
            }
        });
        let spans = (0..waits).map(|_| {
            thread::sleep(Duration::from_millis(5));
            let begun = Instant::now();
            wait();
            begun.elapsed()
        });
        let spans: Vec<Duration> = spans.collect();
        stop.store(true, Ordering::Relaxed);
        spans
    });
    spans.sort_unstable();
    [spans[waits / 2], spans[waits - 1]]
}

fn cell([median, longest]: [Duration; 2]) -> String {
    let millis = |span: Duration| span.as_secs_f64() * 1e3;
    format!("{:.1}, {:.0}", millis(median), millis(longest))
}

/// `LEASEHOLD_STRESS` multiplies the number of waits.
#[test]
#[ignore = "a measurement: script/test --release --test topology longest_waits -- --ignored --nocapture"]
fn longest_waits_beside_a_looping_holder() {
    let count = 200 * crate::harness::faults::stress();
    let (single, sentinel, cluster) =
        (Server::start(), Replicated::start(1, 3), Cluster::start(3, 0));
    let builders: [Box<dyn Fn() -> Builder>; 3] = [
        Box::new(|| Client::builder().single(single.url())),
        Box::new(|| Client::builder().sentinel(MASTER, sentinel.sentinel_urls())),
        Box::new(|| Client::builder().cluster(cluster.urls())),
    ];
    println!("| {count} waits: median, longest (ms) | one server | Sentinel | Cluster |");
    println!("| --- | ---: | ---: | ---: |");
    for (name, loops, wait) in cases() {
        let cells = builders.each_ref().map(|builder| {
            let [one, two] = [(); 2].map(|()| builder().build().expect("the servers answer"));
            cell(waits([&loops(&one), &wait(&two)], count))
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
    let servers = [(); 3].map(|()| Server::start());
    let clients = || servers.iter().map(|server| Client::open(server.url()).expect("it answers"));
    let red = || {
        let lock = RedLock::new(clients(), "red");
        pair(move || lock.lock())
    };
    println!("| red lock on three servers | {} | | |", cell(waits([&red(), &red()], count)));
}
