//! A sandbox that refuses system calls which a client can do without.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::Client;

use crate::harness::faults::{build, patient};
use crate::harness::process::{self, ChildProcess, Role};
use crate::harness::{Server, eventually, refusals};

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
