//! How do I let one of many processes do a task, with the others as standbys?
//!
//! `cargo run --example one_leader` runs with a server of its own, or uses `REDIS_URL`.
//!
//! Three processes campaign. The first leader is asked to stop and hands over at once. The second
//! one is killed: the third follows when the lease ends. The main process observes the leaders.

mod support;

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{CancelToken, Client, Election, Leader};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The time after which a dead leader is replaced.
const LEASE: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    match &arguments[1..] {
        [url, name] => lead(url, name),
        _ => observe(),
    }
}

fn election(url: &str) -> Result<Election> {
    let client = Client::builder().single(url).watchdog_timeout(LEASE).build()?;
    Ok(client.election("example:one_leader"))
}

/// The work of a process, until its input ends.
fn lead(url: &str, name: &str) -> Result<()> {
    let stop = CancelToken::new();
    let stops = stop.clone();
    thread::spawn(move || {
        io::stdin().lines().for_each(drop);
        stops.cancel();
    });
    election(url)?.with_value(name).run(&stop, |term| {
        while !term.wait_lost(Duration::from_millis(100)) {
            // One step of the task. Resources get the token, and refuse smaller ones.
            let _ = term.token();
        }
    })?;
    Ok(())
}

fn observe() -> Result<()> {
    let server = support::Server::start()?;
    let leaders = election(server.url())?.observe()?;
    let mut processes = HashMap::new();
    for name in ["one", "two", "three"] {
        processes.insert(name.to_owned(), start(server.url(), name)?);
    }

    let first = next_leader(&leaders)?;
    println!("main  observes the leader {} of term {}", first.value(), first.token());
    let mut stopped = processes.remove(first.value()).ok_or("an unknown leader")?;
    let began = Instant::now();
    drop(stopped.stdin.take()); // asks the process to stop
    let second = next_leader(&leaders)?;
    println!("main  stopped it; {} follows after {:.1?}", second.value(), began.elapsed());
    assert!(stopped.wait()?.success() && second.token() > first.token());

    let mut killed = processes.remove(second.value()).ok_or("an unknown leader")?;
    let began = Instant::now();
    killed.kill()?;
    killed.wait()?;
    let third = next_leader(&leaders)?;
    println!("main  killed it; {} follows after {:.1?}", third.value(), began.elapsed());
    assert!(third.token() > second.token());

    let mut last = processes.remove(third.value()).ok_or("an unknown leader")?;
    drop(last.stdin.take());
    assert!(last.wait()?.success());
    Ok(())
}

/// Blocks until the receiver has a leader. States without a leader are skipped.
fn next_leader(leaders: &crossbeam_channel::Receiver<Option<Leader>>) -> Result<Leader> {
    leaders.iter().flatten().next().ok_or_else(|| "the client is closed".into())
}

/// Starts this program as a candidate. The end of its input asks it to stop.
fn start(url: &str, name: &str) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    Ok(command.args([url, name]).stdin(Stdio::piped()).spawn()?)
}
