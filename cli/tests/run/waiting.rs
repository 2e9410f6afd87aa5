//! Signals and outages while the program waits for the lock.

use std::fs;

use leasehold::Client;
use rustix::process::Signal;

use crate::harness::{Server, eventually, eventually_some, exists};
use crate::program::{Running, UNTIL_INPUT, run};

/// Starts a program that waits for the lock `x`; blocks until it does.
fn waiting(server: &Server, client: &Client, options: &[&str]) -> Running {
    let running = Running::start(run(server, &[options, &["x", "--", "echo", "got it"]].concat()));
    let lock = client.lock("x");
    let fair = client.fair_lock("x");
    let count = || {
        if options.contains(&"--fair") {
            fair.waiting().expect("the server answers").queue().len() as u64
        } else {
            lock.waiting().expect("the server answers").processes()
        }
    };
    eventually("the program waits", || count() == 1);
    running
}

/// Returns how often the thread of a program that reads signals went to sleep; `None` if it is
/// awake.
fn sleeps(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the program runs");
    let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).ok();
    let status = threads
        .flatten()
        .filter_map(status)
        .find(|status| status.starts_with("Name:\tleasehold-signa\n"))
        .filter(|status| status.contains("\nState:\tS"))?;
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

#[test]
fn a_signal_ends_the_wait_and_the_place_in_the_queue() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let guard = client.fair_lock("x").lock().expect("the lock is free");
    for (signal, code) in [
        (Signal::HUP, 129),
        (Signal::INT, 130),
        (Signal::QUIT, 131),
        (Signal::TERM, 143),
        (Signal::ALARM, 142),
    ] {
        let running = waiting(&server, &client, &["--fair"]);
        running.signal(signal);
        let end = running.end();
        assert_eq!((end.code(), end.output.len(), end.errors.as_str()), (code, 0, ""));
        let info = client.fair_lock("x").waiting().expect("the server answers");
        assert!(info.queue().is_empty(), "{info:?}");
    }
    guard.unlock().expect("the lock was held");
    assert!(!exists(&server, "x"));
}

#[test]
fn signals_for_the_command_do_not_end_the_wait() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let guard = client.lock("x").lock().expect("the lock is free");
    let mut running = waiting(&server, &client, &[]);
    for signal in [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT, Signal::IO] {
        let pid = running.process().pid();
        let before = eventually_some("the thread sleeps", || sleeps(pid));
        running.signal(signal);
        // Otherwise the signal may reach the command.
        eventually("the program has read the signal", || sleeps(pid) > Some(before));
    }
    guard.unlock().expect("the lock was held");
    assert_eq!(running.line(), "got it");
    assert_eq!(running.finish().code(), 0);
}

#[test]
fn a_stop_of_a_waiting_program_ends_with_cont() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let guard = client.lock("x").lock().expect("the lock is free");
    let mut running = waiting(&server, &client, &[]);
    running.process().stop();
    guard.unlock().expect("the lock was held");
    running.process().resume();
    assert_eq!(running.line(), "got it");
    assert_eq!(running.finish().code(), 0);
}

#[test]
fn a_wait_survives_an_outage() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let guard = client.lock("x").lock().expect("the lock is free");
    let running = waiting(&server, &client, &[]);
    server.kill();
    drop(guard);
    server.restart();
    assert_eq!(running.line(), "got it");
    assert_eq!(running.finish().code(), 0);
}

/// The withdrawal gets no answer, and does not delay the end by its time-outs.
#[test]
fn a_signal_ends_the_wait_for_a_lock_of_a_silent_server() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    for options in [&[][..], &["--fair"], &["--queue"], &["--permits", "1"]] {
        server.ask::<()>(&["FLUSHALL"]);
        let holder = Running::script(&server, &[options, &["x"]].concat(), UNTIL_INPUT);
        let waiting = Running::start(run(&server, &[options, &["x", "--", "true"]].concat()));
        let count = || match options.first() {
            Some(&"--fair") => client.fair_lock("x").waiting(),
            Some(&"--queue") => client.queue_lock("x").waiting(),
            Some(_) => client.semaphore("x").waiting(),
            None => client.lock("x").waiting(),
        };
        eventually("the program waits", || count().expect("an answer").processes() > 0);
        server.stop();
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.end().code(), 143, "{options:?}");
        server.resume();
        assert_eq!(holder.finish().code(), 5);
    }
}
