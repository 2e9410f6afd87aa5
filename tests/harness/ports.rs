//! Ports of 127.0.0.1 for servers.
//!
//! Each port has one server: a client of a test that has ended may still call its server, and the
//! log lines of a process tell servers apart by their ports. So a process gives no port away again
//! before all are used, and no other process gives away a port of its slices before it ends.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The distance from a cluster node's port to the port of its bus.
pub(super) const TO_THE_BUS: u16 = 10_000;

/// The first port of the first slice.
const FIRST: u16 = 10_000;

/// The least end of the ports for servers.
const LEAST_END: u16 = 11_000;

/// The number of ports of a slice.
const SLICE: u16 = 100;

/// Returns a port of 127.0.0.1 without a listener.
///
/// The port is below the range of ports for outgoing connections. So no client gets the port of a
/// server that is down, and a client that connects in a loop never connects to itself.
pub fn free_port() -> u16 {
    first_port(|port| is_free(port).then_some(port))
}

/// Listens at a port like those of `free_port`.
pub fn listen() -> TcpListener {
    first_port(|port| bind(port).ok())
}

/// Returns a free port for a cluster node; the port 10000 above is also free.
///
/// Both ports are below the range for outgoing connections, if that range leaves room.
pub fn free_port_with_bus() -> u16 {
    let end = outgoing_ports_start().saturating_sub(TO_THE_BUS).max(LEAST_END);
    first_port(|port| (port < end && is_free(port) && is_free(port + TO_THE_BUS)).then_some(port))
}

/// Returns what `make` makes of the first new port that it can use.
fn first_port<T>(make: impl Fn(u16) -> Option<T>) -> T {
    static PORTS: Mutex<Ports> = Mutex::new(Ports { left: 0..0, slices: VecDeque::new() });
    // More than there are: all ports of this process come again once no other slice is left.
    for _ in 0..u16::MAX {
        let port = PORTS.lock().unwrap_or_else(PoisonError::into_inner).next();
        if let Some(made) = make(port) {
            return made;
        }
    }
    panic!("no port is free")
}

/// The ports of this process.
struct Ports {
    /// Those that have not been given away.
    left: Range<u16>,
    /// The first port of each slice, with a listener that keeps other processes from the slice.
    slices: VecDeque<(u16, TcpListener)>,
}

impl Ports {
    /// Returns a port that was not returned before, or long ago.
    fn next(&mut self) -> u16 {
        if self.left.is_empty() {
            let mut slices = (FIRST..=outgoing_ports_start() - SLICE).step_by(usize::from(SLICE));
            let (first, listener) = slices
                .find_map(|first| Some((first, bind(first).ok()?)))
                .or_else(|| self.slices.pop_front())
                .expect("other processes of tests have all slices");
            self.slices.push_back((first, listener));
            self.left = first + 1..first + SLICE;
        }
        self.left.next().expect("the slice is new")
    }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

fn is_free(port: u16) -> bool {
    bind(port).is_ok()
}

/// Returns the first port for outgoing connections, by default 32768.
fn outgoing_ports_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|start| *start > LEAST_END)
        .unwrap_or(32_768)
}
