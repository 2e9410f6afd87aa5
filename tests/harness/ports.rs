//! Ports of 127.0.0.1 for servers.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// The distance from a cluster node's port to the port of its bus.
pub(super) const TO_THE_BUS: u16 = 10_000;

/// Returns a port of 127.0.0.1 without a listener.
///
/// The port is below the range of ports for outgoing connections. So no client gets the port of a
/// server that is down, and a client that connects in a loop never connects to itself.
pub fn free_port() -> u16 {
    random_port(10_000..outgoing_ports_start(), is_free)
}

/// Returns a free port for a cluster node; the port 10000 above is also free.
///
/// Both are below the range for outgoing connections, if that range leaves room.
pub fn free_port_with_bus() -> u16 {
    let end = outgoing_ports_start().saturating_sub(TO_THE_BUS).max(11_000);
    random_port(10_000..end, |port| is_free(port) && is_free(port + TO_THE_BUS))
}

fn random_port(ports: Range<u16>, fits: impl Fn(u16) -> bool) -> u16 {
    (0..1000)
        .map(|attempt| random_of(&ports, attempt))
        .find(|port| fits(*port))
        .expect("some port is free")
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

fn random_of(ports: &Range<u16>, attempt: u64) -> u16 {
    // The standard library's random keys differ in every thread of every process.
    let random = RandomState::new().hash_one(attempt);
    let offset = random % u64::try_from(ports.len()).expect("a length fits");
    ports.start + u16::try_from(offset).expect("an offset into ports is one")
}
