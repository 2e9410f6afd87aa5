//! A sandbox that refuses system calls which a client can do without, and signals that interrupt
//! the calls of all threads again and again.

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Builder, Client};

use crate::harness::faults::{NEVER, build, patient};
use crate::harness::process::{self, ChildProcess, Role};
use crate::harness::{Server, eventually, refusals, refusals_and_signals, signals};

/// A short deadline.
const SOON: Duration = Duration::from_millis(100);

/// The log lines about refusals.
static LINES: Lines = Lines(Mutex::new(Vec::new()));

struct Lines(Mutex<Vec<String>>);

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        if text.contains("the system refuses") {
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(format!("{} {text}", record.level()));
        }
    }

    fn flush(&self) {}
}

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == "work" => work(&role),
        Some(role) if role.name() == "call" => call(&role),
        Some(role) => panic!("unknown role: {role:?}"),
    }
}

/// Excludes a second client, waits for it and for a deadline, over TCP and over a socket.
fn work(role: &Role) {
    log::set_logger(&LINES).expect("the first logger");
    log::set_max_level(log::LevelFilter::Debug);
    for url in [role.arg(0), role.arg(1)] {
        let [first, second]: [Client; 2] = [(); 2].map(|()| build(patient(url)));
        let guard = first.lock("a").lock_owned().expect("free");
        let brief = second.lock("a").try_lock_for(Duration::from_millis(200));
        assert!(brief.expect("a reply").is_none(), "{url}: the lock is held");
        let waiting = std::thread::spawn(move || second.lock("a").lock()?.unlock());
        assert!(guard.is_held());
        guard.unlock().expect("held");
        waiting.join().expect("no panic").expect("granted");
    }
    role.say("worked");
    let lines = || LINES.0.lock().unwrap_or_else(PoisonError::into_inner);
    eventually("both lines are written", || lines().len() >= 2);
    for line in lines().iter() {
        role.say(line);
    }
}

#[test]
fn clients_work_without_options_of_sockets_and_without_the_boot_clock() {
    let server = Server::start();
    let urls = [&*server.url(), &*server.unix_url()];
    let (name, library) = refusals();
    let mut child =
        ChildProcess::start_with("refusals::child_entry", "work", &urls, &[(name, &library)]);
    child.expect_line("worked");
    let lines = child.said_to_the_end();
    let [clock, option] = &lines[..] else { panic!("one line about each: {lines:?}") };
    assert!(clock.starts_with("WARN the system refuses CLOCK_BOOTTIME"), "{clock}");
    assert!(option.starts_with("DEBUG ") && option.contains("such as TCP_NODELAY"), "{option}");
}

fn settings(url: &str) -> Builder {
    patient(url).response_timeout(NEVER).connect_timeout(NEVER).pool_timeout(NEVER)
}

/// Calls a server that has stopped, on a connection and on new ones.
fn call(role: &Role) {
    let connected = role.args().iter().map(|url| build(settings(url)));
    let connected: Vec<Client> = connected.collect();
    role.say("ready");
    role.expect("stopped");
    let lazy = role.args().iter().map(|url| settings(url).build_lazily().expect("a good URL"));
    let clients: Vec<Client> = connected.into_iter().chain(lazy).collect();
    for client in &clients {
        for _ in 0..3 {
            let error = client.lock("a").try_lock_for(SOON).map(drop);
            let error = error.expect_err("the server is stopped");
            assert!(error.is_timeout(), "{error}");
        }
    }
    role.say("returned");
    role.expect("resumed");
    for client in &clients {
        drop(client.lock("b").lock().expect("the server answers again"));
    }
    role.say("done");
}

/// The calls have no other limit than their deadline.
#[test]
fn signals_suspend_no_deadline() {
    let server = Server::with(|config| config.line("tcp-backlog 1"));
    let urls = [&*server.url(), &*server.unix_url()];
    for (name, library) in [signals(), refusals_and_signals()] {
        let variables = [(name, &*library)];
        let mut child =
            ChildProcess::start_with("refusals::child_entry", "call", &urls, &variables);
        child.expect_line("ready");
        server.stop();
        // Two connections fill the backlog of the socket.
        let fill = || UnixStream::connect(server.path("redis.sock")).expect("the backlog has room");
        let filling = [fill(), fill()];
        child.send_line("stopped");
        child.expect_line("returned");
        drop(filling);
        server.resume();
        child.send_line("resumed");
        child.expect_line("done");
    }
}
