//! Who is at the other end of a connection: one of the processes of a test.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The processes of a test by name. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Members(Arc<Mutex<HashMap<u32, Arc<str>>>>);

impl Members {
    /// Names a process. One that has the name already has ended, and is forgotten.
    pub fn join(&self, name: &str, pid: u32) {
        let mut members = self.members();
        members.retain(|_, other| **other != *name);
        members.insert(pid, name.into());
    }

    /// The member that has connected from `client`, a TCP port of this machine; `None`
    /// if that is nobody's, or has been closed already.
    pub fn who_connects_from(&self, client: SocketAddr) -> Option<Arc<str>> {
        let socket = format!("socket:[{}]", inode(client)?);
        let members = self.members().clone();
        members.into_iter().find(|(pid, _)| has_open(*pid, &socket)).map(|(_, name)| name)
    }

    fn members(&self) -> MutexGuard<'_, HashMap<u32, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of the socket that is bound to this address, from the kernel's table.
fn inode(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    let ip = u32::from_ne_bytes(address.ip().octets());
    let local = format!("{ip:08X}:{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.get(1) == Some(&&*local))?;
    row.get(9).map(|inode| (*inode).to_owned())
}

fn has_open(pid: u32, target: &str) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.as_os_str() == target)
}
