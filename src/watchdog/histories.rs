//! Which servers have kept their data since they were last asked.
//!
//! A connection that broke may mean a server that has lost its data, or one that closes idle
//! connections. The replication id tells: a master takes a new one when it starts and when it
//! is promoted, and `INFO` names it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::command::call::Call;
use crate::command::reply::Reply;
use crate::pool::request::{Failure, Outcome};
use crate::pool::router::Router;
use crate::util::sync::Mutex;

/// The replication id of each server, by its address.
#[derive(Debug, Default)]
pub(super) struct Histories {
    known: Mutex<BTreeMap<Arc<str>, String>>,
    /// A server has refused to tell: none is asked again.
    forbidden: AtomicBool,
}

impl Histories {
    /// The nodes that name the same history as when they were last asked.
    pub(super) fn unchanged(&self, router: &Router) -> BTreeSet<u32> {
        if self.forbidden.load(Ordering::Relaxed) {
            return BTreeSet::new();
        }
        let told = router.call_each_server(|| Call::command(&[b"INFO", b"replication"]));
        let known = |(node, server, outcome)| self.is_known(server, outcome).then_some(node);
        told.into_iter().filter_map(known).collect()
    }

    fn is_known(&self, server: Arc<str>, outcome: Outcome) -> bool {
        let id = match outcome {
            Ok(answer) => replication_id(&answer.reply),
            Err(Failure { error, .. }) => {
                self.forbidden.fetch_or(error.is_server() && error.is_final(), Ordering::Relaxed);
                None
            }
        };
        self.is_same(server, id)
    }

    /// Whether the server has said the same before.
    fn is_same(&self, server: Arc<str>, id: Option<String>) -> bool {
        let mut known = self.known.lock();
        let before = known.remove(&server);
        let same = id.is_some() && before == id;
        id.into_iter().for_each(|id| drop(known.insert(Arc::clone(&server), id)));
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
    fn a_server_is_the_same_if_it_names_the_same_history_again() {
        let histories = Histories::default();
        let says = |server: &str, id: &str| {
            let info = format!("# Replication\r\nrole:master\r\nmaster_replid:{id}\r\nother:1\r\n");
            histories.is_same(server.into(), replication_id(&Reply::Text(info.into_bytes())))
        };
        assert!(!says("a", "1") && says("a", "1") && !says("b", "1"));
        assert!(!says("a", "2") && says("a", "2"));
        assert!(!histories.is_same("a".into(), replication_id(&Reply::Nil)));
        assert!(!says("a", "2"), "it might have been another meanwhile");
    }
}
