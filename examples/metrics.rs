//! How do I export the statistics to Prometheus?
//!
//! `cargo run --example metrics --features metrics -- PORT` runs with a server of its own, or uses
//! `REDIS_URL`. It prints the URL of the metrics page, and serves the page until its input ends.
//! Without a port, or with port 0, the system chooses one.

mod support;

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use leasehold::Client;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

const WORKERS: usize = 3;
const ORDERS: usize = 20;

/// The upper ends of the buckets of the histograms, in seconds.
const BUCKETS: [f64; 7] = [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0];

fn main() -> Result<(), Box<dyn Error>> {
    let port = env::args().nth(1).map_or(Ok(0), |port| port.parse())?;
    let server = support::Server::start()?;
    // The recorder comes first: a client registers each metric at its first use, with the recorder
    // that is installed then.
    let page = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    let client = Client::open(server.url())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("http://{}/metrics", listener.local_addr()?);
    thread::spawn(move || serve(&listener, &page));

    process_orders(&client)?;
    serve_customers(&client)?;
    lose_a_lease(&client)?;
    println!("the work is done; the end of the input ends the program");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// Takes one lock for each order. All these locks have the label `orders`.
fn process_orders(client: &Client) -> leasehold::Result<()> {
    thread::scope(|scope| {
        let work = |worker| {
            scope.spawn(move || {
                (0..ORDERS).try_for_each(|order| {
                    let lock = client.lock(format!("example:metrics:order:{worker}:{order}"));
                    lock.with_label("orders").lock()?.unlock()
                })
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(work).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
}

/// Has two customers wait at a counter.
fn serve_customers(client: &Client) -> leasehold::Result<()> {
    let counter = client.fair_lock("example:metrics:counter").with_label("counter");
    thread::scope(|scope| {
        let guard = counter.lock()?;
        let customers = [(); 2].map(|()| scope.spawn(|| counter.lock()?.unlock()));
        while client.stats().waiting_now() < 2 {
            thread::yield_now();
        }
        guard.unlock()?;
        customers.into_iter().try_for_each(|customer| customer.join().expect("no panic"))
    })
}

/// Works for longer than its lease lasts.
fn lose_a_lease(client: &Client) -> leasehold::Result<()> {
    let report = client.lock("example:metrics:report").with_label("report");
    let guard = report.with_lease(Duration::from_millis(50)).lock()?;
    assert!(guard.wait_lost(Duration::from_secs(10)));
    Ok(())
}

/// Answers each request with the page.
///
/// A scrape also empties the recorder's buffers of durations. A program with rare scrapes calls
/// `PrometheusHandle::run_upkeep` from time to time.
fn serve(listener: &TcpListener, page: &PrometheusHandle) {
    for stream in listener.incoming() {
        if let Err(error) = stream.and_then(|stream| respond(stream, &page.render())) {
            eprintln!("a request failed: {error}");
        }
    }
}

fn respond(mut stream: TcpStream, page: &str) -> io::Result<()> {
    let head = BufReader::new(&stream).lines();
    head.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
    let length = page.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{page}"
    )
}
