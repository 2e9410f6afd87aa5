//! Replication ids, which show whether a server has kept its data across a reconnection.
//!
//! A broken connection may mean that a server lost its data, or that it closes idle connections. A
//! master takes a new replication id when it starts and when it is promoted; `INFO` returns it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::transport::call::Call;
use crate::transport::pool::request::Failure;
use crate::transport::pool::router::Router;
use crate::transport::reply::Reply;
use crate::util::sync::Mutex;

/// The last known replication id of each server in use, by address.
#[derive(Debug, Default)]
pub(super) struct ReplicationIds {
    known: Mutex<BTreeMap<Arc<str>, String>>,
    /// Whether a server has refused the command. No server is asked after that.
    forbidden: AtomicBool,
}

impl ReplicationIds {
    /// Returns the nodes whose replication id is that of the last call. One round trip.
    pub(super) fn unchanged_nodes(&self, router: &Router) -> BTreeSet<u32> {
        if self.forbidden.load(Ordering::Relaxed) {
            return BTreeSet::new();
        }
        let replies = router.call_each_server(|| Call::command(&[b"INFO", b"replication"]));
        let mut unchanged = BTreeSet::new();
        for (node, server, outcome) in replies {
            let id = match outcome {
                Ok(reply) => replication_id(&reply.value),
                Err(Failure { error, .. }) => {
                    let is_forbidden = error.is_server() && error.is_final();
                    self.forbidden.fetch_or(is_forbidden, Ordering::Relaxed);
                    None
                }
            };
            if self.update(server, id) {
                unchanged.insert(node);
            }
        }
        unchanged
    }

    /// Forgets the servers that are not among these.
    pub(super) fn retain(&self, servers: &BTreeSet<Arc<str>>) {
        self.known.lock().retain(|server, _| servers.contains(server));
    }

    /// Stores the id of a server; returns whether it is that of the last call.
    fn update(&self, server: Arc<str>, id: Option<String>) -> bool {
        let mut known = self.known.lock();
        let before = known.remove(&server);
        let same = id.is_some() && before == id;
        if let Some(id) = id {
            known.insert(server, id);
        }
        same
    }
}

fn replication_id(reply: &Reply) -> Option<String> {
    let info = String::from_utf8_lossy(reply.text()?);
    let id = info.lines().find_map(|line| line.strip_prefix("master_replid:"))?.trim_end();
    Some(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_unchanged_if_its_id_is_that_of_the_last_call() {
        let ids = ReplicationIds::default();
        let is_unchanged = |server: &str, id: &str| {
            let info = format!("# Replication\r\nrole:master\r\nmaster_replid:{id}\r\nother:1\r\n");
            ids.update(server.into(), replication_id(&Reply::Text(info.into_bytes())))
        };
        assert!(!is_unchanged("a", "1") && is_unchanged("a", "1") && !is_unchanged("b", "1"));
        assert!(!is_unchanged("a", "2") && is_unchanged("a", "2"));
        assert!(!ids.update("a".into(), replication_id(&Reply::Nil)));
        assert!(!is_unchanged("a", "2"), "the server may have restarted in between");
    }
}
