//! How do I limit how many jobs run at the same time, over all processes?
//!
//! `cargo run --example limited_jobs` runs with a server of its own, or uses `REDIS_URL`.
//!
//! Four processes run jobs, at most two at a time. One process is killed in the middle of a job.
//! Its permit is renewed no more, so the permit comes back when the lease ends.

mod support;

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Semaphore};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const JOBS_AT_A_TIME: u32 = 2;
const JOBS_PER_WORKER: u32 = 3;

/// The time after which the permits of a dead process come back.
const LEASE: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    match &arguments[1..] {
        [url, worker] => run_jobs(url, worker),
        _ => start_workers(),
    }
}

/// Returns the semaphore of all processes. The first caller sets the number of permits.
fn semaphore(url: &str) -> Result<Semaphore> {
    let client = Client::builder().single(url).watchdog_timeout(LEASE).build()?;
    Ok(client.semaphore("example:limited_jobs").with_permits(JOBS_AT_A_TIME))
}

/// The work of a process: a few jobs, or one that never ends.
fn run_jobs(url: &str, worker: &str) -> Result<()> {
    let jobs = semaphore(url)?;
    for job in 1..=JOBS_PER_WORKER {
        let permit = jobs.acquire()?;
        println!("worker {worker}  runs job {job}");
        if worker == "stuck" {
            io::stdin().lines().for_each(drop); // until its end, or that of the main process
        }
        thread::sleep(Duration::from_millis(100)); // the job
        permit.check()?; // before each step that must not run beyond the limit
        permit.release()?;
    }
    Ok(())
}

fn start_workers() -> Result<()> {
    let server = support::Server::start()?;
    let jobs = semaphore(server.url())?;

    let (mut stuck, mut lines) = start_worker(server.url(), "stuck")?;
    let mut line = String::new();
    lines.read_line(&mut line)?;
    print!("{line}");
    let workers = ["1", "2", "3"].map(|worker| start_worker(server.url(), worker));
    let mut printers = Vec::new();
    for worker in workers {
        let (process, lines) = worker?;
        let print = move || lines.lines().map_while(|it| it.ok()).for_each(|it| println!("{it}"));
        printers.push((process, thread::spawn(print)));
    }
    let mut most = 0;
    for (process, _) in &mut printers {
        while process.try_wait()?.is_none() {
            most = jobs.in_use()?.max(most);
            thread::sleep(Duration::from_millis(5));
        }
        assert!(process.wait()?.success());
    }
    printers.into_iter().for_each(|(_, printer)| printer.join().expect("no panic"));
    println!("main      saw {most} jobs at a time, at most");
    assert!(most <= JOBS_AT_A_TIME.into());

    assert!(jobs.try_acquire_many(JOBS_AT_A_TIME)?.is_none());
    stuck.kill()?;
    stuck.wait()?;
    let killed = Instant::now();
    println!("main      killed the stuck worker, which did not give its permit back");
    let all = jobs.acquire_many(JOBS_AT_A_TIME)?;
    println!("main      has both permits after {:.1?}, the rest of the lease", killed.elapsed());
    assert!(all.is_held());
    Ok(())
}

/// Starts this program as a worker. Returns the process and its output.
fn start_worker(url: &str, worker: &str) -> Result<(Child, BufReader<ChildStdout>)> {
    let mut command = Command::new(env::current_exe()?);
    command.args([url, worker]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or("the output is piped")?;
    Ok((child, BufReader::new(output)))
}
