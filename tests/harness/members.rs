//! Who is at the other end of a connection: one of the processes of a test.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The processes of a test by name. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Members(Arc<Mutex<Known>>);

/// A look at the kernel's table takes 20 ms and more, so many who want to know share one.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Known {
    by_pid: HashMap<u32, Arc<str>>,
    /// Whose connections there were at the last look, by their end there.
    by_address: HashMap<SocketAddr, Arc<str>>,
    /// When that look began, and when it was over.
    looked: Option<(Instant, Instant)>,
}

impl Members {
    /// Names a process. One that has the name already has ended, and is forgotten.
    pub fn join(&self, name: &str, pid: u32) {
        let by_pid = &mut self.known().by_pid;
        by_pid.retain(|_, other| **other != *name);
        by_pid.insert(pid, name.into());
    }

    /// The member that has connected, before `since`, from `client`, a TCP port of this
    /// machine; `None` if that is nobody's, or has been closed already.
    pub fn who_connects_from(&self, client: SocketAddr, since: Instant) -> Option<Arc<str>> {
        let mut known = self.known();
        // An older look may have seen another that had the port before.
        if known.looked.is_none_or(|(begun, _)| begun < since) {
            // Those who come meanwhile wait for the same look.
            let soon = known.looked.map(|(_, over)| BETWEEN_LOOKS.saturating_sub(over.elapsed()));
            thread::sleep(soon.unwrap_or_default());
            let begun = Instant::now();
            known.by_address = look(&known.by_pid);
            known.looked = Some((begun, Instant::now()));
        }
        known.by_address.get(&client).cloned()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose the connections are, by their end there.
fn look(by_pid: &HashMap<u32, Arc<str>>) -> HashMap<SocketAddr, Arc<str>> {
    let sockets = |(pid, name): (&u32, &Arc<str>)| {
        sockets(*pid).into_iter().map(|inode| (inode, Arc::clone(name))).collect::<Vec<_>>()
    };
    let members: HashMap<String, Arc<str>> = by_pid.iter().flat_map(sockets).collect();
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux, which says whose a socket is");
    let rows = table.lines().filter_map(|row| {
        let fields: Vec<_> = row.split_ascii_whitespace().collect();
        let name = members.get(*fields.get(9)?)?;
        Some((address(fields[1])?, Arc::clone(name)))
    });
    rows.collect()
}

/// An address as the kernel's table has it: the bytes of the first part in reverse.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::from((Ipv4Addr::from(ip.to_ne_bytes()), port)))
}

/// The numbers of the sockets that a process has open.
fn sockets(pid: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    let numbers = links.filter_map(|link| {
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(inode.to_owned())
    });
    numbers.collect()
}
