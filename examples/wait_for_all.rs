//! How do I wait until several processes have finished their parts?
//!
//! `cargo run --example wait_for_all` runs with a server of its own, or uses `REDIS_URL`.
//!
//! A latch counts the parts. Each loader is a process of its own, and counts down by a guard. The
//! count has no owner: a loader that crashes does not count, so this program starts another one.

mod support;

use std::env;
use std::error::Error;
use std::process::{Child, Command};

use leasehold::{Client, CountDownLatch};

const PARTS: u64 = 3;
/// The part whose first loader crashes.
const CRASHES: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    if let [part, url, fate] = &env::args().skip(1).collect::<Vec<_>>()[..] {
        return load(part, url, fate == "crashes");
    }
    let server = support::Server::start()?;
    let client = Client::open(server.url())?;
    let latch = loaded(&client);
    latch.delete()?; // left by an earlier run that was killed
    assert!(latch.try_set_count(PARTS)?, "this process begins the round");

    let start = |part, fate| loader(part, server.url(), fate);
    let fate = |part| if part == CRASHES { "crashes" } else { "works" };
    let loaders: Result<Vec<_>, _> = (0..PARTS).map(|part| start(part, fate(part))).collect();
    for (part, mut loader) in (0..).zip(loaders?) {
        while !loader.wait()?.success() {
            println!("main      the loader of part {part} has crashed, {} to go", latch.count()?);
            loader = start(part, "works")?;
        }
    }
    latch.wait()?; // any process can wait, also for loaders on other machines
    println!("main      all parts are loaded");
    assert_eq!(latch.count()?, 0);
    Ok(())
}

fn loaded(client: &Client) -> CountDownLatch {
    client.latch("example:loaded")
}

/// Starts a process that loads one part.
fn loader(part: u64, url: &str, fate: &str) -> Result<Child, Box<dyn Error>> {
    let program = env::current_exe()?;
    Ok(Command::new(program).args([&part.to_string(), url, fate]).spawn()?)
}

/// The work of a loader.
fn load(part: &str, url: &str, crashes: bool) -> Result<(), Box<dyn Error>> {
    let client = Client::open(url)?;
    let done = loaded(&client).count_down_on_drop(); // counts after errors and panics too
    println!("loader    loads part {part}");
    if crashes {
        std::process::exit(1); // runs no drop, like a kill
    }
    drop(done);
    println!("loader    has loaded part {part}");
    Ok(()) // the drop of the client waits until the count has reached the server
}
