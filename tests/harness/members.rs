//! The processes of a test, and which of them has made a connection.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The processes of a test by name. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Members(Arc<Mutex<State>>);

/// The pause between two reads of the kernel's table. A read takes 20 ms and more, so that
/// callers share one.
const BETWEEN_READS: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct State {
    by_pid: HashMap<u32, Arc<str>>,
    /// The members with connections at the last read, by the address of their end.
    by_address: HashMap<SocketAddr, Arc<str>>,
    /// When the last read began and ended.
    last_read: Option<(Instant, Instant)>,
    /// How long callers waited for reads: the bytes of a connection wait as long.
    waits: Vec<(Instant, Instant)>,
}

impl Members {
    /// Adds a process. It replaces a process of the same name, which has ended.
    pub fn join(&self, name: &str, pid: u32) {
        let by_pid = &mut self.state().by_pid;
        by_pid.retain(|_, other| **other != *name);
        by_pid.insert(pid, name.into());
    }

    /// Returns the member that connected from `client`, a TCP port of this machine.
    ///
    /// The connection was made before `since`. `None` if no member has the port, or if the
    /// connection is closed.
    pub fn connected_from(&self, client: SocketAddr, since: Instant) -> Option<Arc<str>> {
        let called = Instant::now();
        let mut state = self.state();
        // At an older read, another process may have had the port.
        if state.last_read.is_none_or(|(begun, _)| begun < since) {
            // Callers that arrive during the pause wait for the same read.
            let ended = state.last_read.map(|(_, ended)| ended);
            let pause = ended.map(|ended| BETWEEN_READS.saturating_sub(ended.elapsed()));
            thread::sleep(pause.unwrap_or_default());
            let begun = Instant::now();
            state.by_address = read_connections(&state.by_pid);
            state.last_read = Some((begun, Instant::now()));
        }
        state.waits.push((called, Instant::now()));
        state.by_address.get(&client).cloned()
    }

    /// Returns the times in which callers of `connected_from` waited.
    pub fn waits(&self) -> Vec<(Instant, Instant)> {
        self.state().waits.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the members with connections, by the address of their end.
fn read_connections(by_pid: &HashMap<u32, Arc<str>>) -> HashMap<SocketAddr, Arc<str>> {
    let sockets = |(pid, name): (&u32, &Arc<str>)| {
        sockets(*pid).into_iter().map(|inode| (inode, Arc::clone(name))).collect::<Vec<_>>()
    };
    let members: HashMap<String, Arc<str>> = by_pid.iter().flat_map(sockets).collect();
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux lists its sockets");
    let rows = table.lines().filter_map(|row| {
        let fields: Vec<_> = row.split_ascii_whitespace().collect();
        let name = members.get(*fields.get(9)?)?;
        Some((address(fields[1])?, Arc::clone(name)))
    });
    rows.collect()
}

/// Parses an address of the kernel's table, with the bytes of the IP in reverse.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::from((Ipv4Addr::from(ip.to_ne_bytes()), port)))
}

/// Returns the inode numbers of a process's open sockets.
fn sockets(pid: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    let numbers = links.filter_map(|link| {
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(inode.to_owned())
    });
    numbers.collect()
}
