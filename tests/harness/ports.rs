//! Ports of 127.0.0.1 for servers.
//!
//! Each port has one server per process: a client of a test that has ended may still call its
//! server, and the log lines of a process tell servers apart by their ports.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The distance from a cluster node's port to the port of its bus.
pub(super) const TO_THE_BUS: u16 = 10_000;

/// Returns a port of 127.0.0.1 without a listener.
///
/// The port is below the range of ports for outgoing connections. So no client gets the port of a
/// server that is down, and a client that connects in a loop never connects to itself.
pub fn free_port() -> u16 {
    random_port(10_000..outgoing_ports_start(), |port| is_free(port).then_some(port))
}

/// Listens at a port like those of `free_port`.
pub fn listen() -> TcpListener {
    random_port(10_000..outgoing_ports_start(), |port| {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
    })
}

/// Returns a free port for a cluster node; the port 10000 above is also free.
///
/// Both ports are below the range for outgoing connections, if that range leaves room.
pub fn free_port_with_bus() -> u16 {
    let end = outgoing_ports_start().saturating_sub(TO_THE_BUS).max(11_000);
    random_port(10_000..end, |port| (is_free(port) && is_free(port + TO_THE_BUS)).then_some(port))
}

/// Returns what `make` makes of the first random port that it can use and that this function has
/// not given away before.
fn random_port<T>(ports: Range<u16>, make: impl Fn(u16) -> Option<T>) -> T {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let count = u64::try_from(ports.len()).expect("a length fits");
    for attempt in 0..1000 {
        // The standard library's random keys differ in every thread of every process.
        let offset = RandomState::new().hash_one(attempt) % count;
        let port = ports.start + u16::try_from(offset).expect("an offset into ports is one");
        let is_new = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
        if is_new && let Some(made) = make(port) {
            return made;
        }
    }
    panic!("no port is free")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Returns the first port for outgoing connections, by default 32768.
fn outgoing_ports_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|start| *start > 11_000)
        .unwrap_or(32_768)
}
