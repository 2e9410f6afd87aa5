//! Ports of 127.0.0.1 for servers.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// How far above its port a node of a cluster listens for the others.
pub(super) const TO_THE_BUS: u16 = 10_000;

/// Finds a port of 127.0.0.1 that nobody listens on at the moment. It lies below
/// the range from which the kernel takes the ports of outgoing connections:
/// while a server is down, none of its clients is given the server's port, nor
/// can one that connects to it in a loop end up connected to itself.
pub fn free_port() -> u16 {
    random_port(10_000..outgoing_ports_start(), is_free)
}

/// Finds such a port for a node of a cluster: the one 10000 above it is free too,
/// and below that range too where the range leaves room for it.
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

/// 32768 unless the machine is set up otherwise.
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
