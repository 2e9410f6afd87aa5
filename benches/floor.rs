//! leasehold against its floor: the bare redis crate sending the same two scripts.
//!
//! Starts a redis-server of its own, and measures uncontended pairs of one thread
//! over TCP and over a unix socket: `lock()` + `unlock()`, `lock()` + drop, and a
//! nested pair. Each figure is the median over rounds in which the contestants take
//! turns, so that a noisy machine is noisy for all of them. What counts is the ratio.
//!
//! `cargo bench --bench floor`; `LEASEHOLD_BENCH_ROUNDS` (default 15) and
//! `LEASEHOLD_BENCH_PAIRS` (default 2000) set its size.

use std::error::Error;
use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::{Client, Lock};
use redis::io::tcp::TcpSettings;
use redis::{Connection, IntoConnectionInfo};

type Failure = Box<dyn Error>;

const ACQUIRE: &str = include_str!("../lua/plain_acquire.lua");
const RELEASE: &str = include_str!("../lua/plain_release.lua");

fn main() -> Result<(), Failure> {
    let server = Server::start()?;
    let (rounds, pairs) =
        (size("LEASEHOLD_BENCH_ROUNDS", 15)?, size("LEASEHOLD_BENCH_PAIRS", 2000)?);
    println!(
        "{rounds} rounds of {pairs} pairs, one thread; microseconds per pair, and times the floor"
    );
    for (path, url) in [("TCP", server.tcp.clone()), ("unix socket", server.unix.clone())] {
        measure(path, &url, rounds, pairs)?;
    }
    Ok(())
}

/// One path to the server: all contestants, round by round.
fn measure(path: &str, url: &str, rounds: usize, pairs: usize) -> Result<(), Failure> {
    let mut floor = Floor::connect(url)?;
    let client = Client::open(url)?;
    let (lock, held) = (client.lock("bench:pair"), client.lock("bench:nested"));
    let guard = held.lock()?;
    let mut figures: [(&str, Vec<Duration>); 4] = [
        ("floor", Vec::new()),
        ("lock + unlock", Vec::new()),
        ("lock + drop", Vec::new()),
        ("nested lock + drop", Vec::new()),
    ];
    for _ in 0..rounds {
        figures[0].1.push(per_pair(pairs, || floor.pair())?);
        figures[1].1.push(per_pair(pairs, || Ok(lock.lock()?.unlock()?))?);
        figures[2].1.push(per_pair(pairs, || drop_pair(&lock))?);
        lock.lock()?.unlock()?;
        figures[3].1.push(per_pair(pairs * 50, || drop_pair(&held))?);
    }
    guard.unlock()?;
    report(path, &mut figures);
    Ok(())
}

fn drop_pair(lock: &Lock) -> Result<(), Failure> {
    drop(black_box(lock.lock()?));
    Ok(())
}

fn per_pair(
    pairs: usize,
    mut pair: impl FnMut() -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    let start = Instant::now();
    (0..pairs).try_for_each(|_| pair())?;
    Ok(start.elapsed() / u32::try_from(pairs)?)
}

fn report(path: &str, figures: &mut [(&str, Vec<Duration>)]) {
    let mut floor = None;
    for (what, times) in figures {
        times.sort_unstable();
        let micros = |at: usize| times[at].as_secs_f64() * 1e6;
        let (median, last) = (micros(times.len() / 2), times.len() - 1);
        let floor = *floor.get_or_insert(median);
        let ratio = median / floor;
        println!(
            "{path:<12} {what:<20} {median:>9.2} us   {ratio:>6.3}   ({:.2} to {:.2})",
            micros(last / 10),
            micros(last - last / 10)
        );
    }
}

fn size(variable: &str, default: usize) -> Result<usize, Failure> {
    match std::env::var(variable) {
        Ok(text) => Ok(text.parse::<usize>()?.max(1)),
        Err(_) => Ok(default),
    }
}

/// The bare crate: one connection, two scripts, two round trips.
struct Floor {
    connection: Connection,
    acquire: String,
    release: String,
    count: u64,
}

impl Floor {
    fn connect(url: &str) -> Result<Floor, Failure> {
        let settings = TcpSettings::default().set_nodelay(true);
        let info = url.into_connection_info()?.set_tcp_settings(settings);
        let mut connection = redis::Client::open(info)?.get_connection()?;
        let mut load = |script: &str| {
            redis::cmd("SCRIPT").arg("LOAD").arg(script).query::<String>(&mut connection)
        };
        let (acquire, release) = (load(ACQUIRE)?, load(RELEASE)?);
        Ok(Floor { connection, acquire, release, count: 0 })
    }

    fn pair(&mut self) -> Result<(), Failure> {
        self.count += 1;
        let owner = format!("00000000-0000-4000-8000-000000000000:{}", self.count);
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(&self.acquire).arg(1).arg("bench:floor").arg(30_000).arg(&owner);
        let granted: i64 = acquire.query(&mut self.connection)?;
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(1).arg("bench:floor").arg(&owner);
        release.arg("redisson_lock__channel:{bench:floor}").arg("0");
        let heard: i64 = release.query(&mut self.connection)?;
        match (granted, heard) {
            (-2, 0) => Ok(()),
            other => Err(format!("the floor got {other:?}").into()),
        }
    }
}

/// A redis-server of this process's own.
struct Server {
    child: Child,
    tcp: String,
    unix: String,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Result<Server, Failure> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("redis.sock");
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let binary = std::env::var("LEASEHOLD_REDIS_SERVER");
        let mut child = Command::new(binary.as_deref().unwrap_or("redis-server"))
            .args(["--save", "", "--bind", "127.0.0.1", "--port", &port.to_string()])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()?;
        let (tcp, unix) =
            (format!("redis://127.0.0.1:{port}/"), format!("redis+unix://{}", socket.display()));
        let end = Instant::now() + Duration::from_secs(30);
        while redis::Client::open(unix.as_str())?.get_connection().is_err() {
            if Instant::now() > end || child.try_wait()?.is_some() {
                return Err("redis-server did not start".into());
            }
            std::thread::yield_now();
        }
        Ok(Server { child, tcp, unix, _folder: folder })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
