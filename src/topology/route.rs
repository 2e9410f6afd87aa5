//! Where connections lead.
//!
//! To a server whose address stays, or to one that is looked for whenever a connection is
//! made, because it may be another by then: see [`sentinel`]. (Where the keys are is another
//! matter: [`cluster`].) What is looked for is *moved*
//! when another server is found in its place; each move is counted, and connections made
//! before it are not used any more.

use std::sync::Arc;

#[cfg(not(all(test, leasehold_model)))]
use crate::connection::Connection;
#[cfg(all(test, leasehold_model))]
use crate::connection::model::Connection;
use crate::connection::{Address, ConnectionIdentity, StaleConnections, Timeouts};
use crate::error::Result;
use crate::topology::cluster::{self, Cluster};
use crate::topology::sentinel::{self, Sentinels, no_master};
use crate::util::sync::Parker;

/// Where the connections of one pool lead.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    To(Arc<Address>),
    /// To the master that the sentinels name.
    Master(Arc<Sentinels>),
    /// To any node of a cluster.
    Node(Arc<Cluster>),
}

/// How often what a route leads to has been another server than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    pub(crate) fn of(count: u64) -> Generation {
        Generation(count)
    }
}

/// A connection, and what its server said of older ones.
pub(crate) struct RoutedConnection {
    pub(crate) conn: Connection,
    pub(crate) stale: StaleConnections,
    /// It is good until there are more.
    pub(crate) generation: Generation,
    pub(crate) server: Arc<str>,
}

impl Route {
    /// Connects to the server of this moment. May speak with several for that, each of which
    /// has both time-outs for itself.
    pub(crate) fn open(
        &self,
        timeouts: Timeouts,
        name: &str,
        stale: &[ConnectionIdentity],
    ) -> Result<RoutedConnection> {
        let open = |address: &Address| {
            let opened = Connection::open(address, timeouts, name.to_owned(), stale)?;
            Ok((opened, Arc::clone(address.shown())))
        };
        let ((opened, server), generation) = match self {
            Route::To(address) => (open(address)?, 0),
            Route::Master(sentinels) => sentinels.with_master(timeouts, |address| {
                let (opened, server) = open(address)?;
                match opened.is_replica {
                    true => Err(no_master(address)),
                    false => Ok((opened, server)),
                }
            })?,
            Route::Node(cluster) => (cluster.with_any_node(open)?, 0),
        };
        let (conn, stale) = (opened.conn, opened.stale);
        Ok(RoutedConnection { conn, stale, generation: Generation(generation), server })
    }

    /// The address of the server, if one has been found.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        match self {
            Route::To(address) => Some(Arc::clone(address.shown())),
            Route::Master(sentinels) => sentinels.server(),
            Route::Node(_) => None,
        }
    }

    /// Ends a wait of [`FailoverWatch::wait`] that waits for a reason to look.
    pub(crate) fn wake(&self) {
        if let Route::Node(cluster) = self {
            cluster.request_refresh();
        }
    }

    /// What looks for another server, where there can be one.
    pub(crate) fn watch(&self) -> Option<FailoverWatch> {
        match self {
            Route::To(_) => None,
            Route::Master(sentinels) => {
                Some(FailoverWatch::Master(sentinel::SentinelWatch::new(Arc::clone(sentinels))))
            }
            Route::Node(cluster) => Some(FailoverWatch::Nodes(Box::new(
                cluster::ClusterWatch::new(Arc::clone(cluster)),
            ))),
        }
    }

    /// A connection that was made with fewer leads to what is no more the server.
    pub(crate) fn generation(&self) -> Generation {
        match self {
            // One node is as good as another.
            Route::To(_) | Route::Node(_) => Generation::default(),
            Route::Master(sentinels) => Generation(sentinels.generation()),
        }
    }
}

/// Looks again and again whether the server is another one, over connections that it keeps.
pub(crate) enum FailoverWatch {
    Master(sentinel::SentinelWatch),
    Nodes(Box<cluster::ClusterWatch>),
}

impl FailoverWatch {
    /// Blocks until it is time to look. `stop` ends the wait, together with [`Route::wake`].
    pub(crate) fn wait(&mut self, stop: &Parker) {
        match self {
            FailoverWatch::Master(watch) => watch.wait(stop),
            FailoverWatch::Nodes(watch) => watch.wait(stop),
        }
    }

    /// Looks. Returns whether the server is another one than before.
    pub(crate) fn look(&mut self) -> Result<bool> {
        match self {
            FailoverWatch::Master(watch) => watch.look(),
            FailoverWatch::Nodes(watch) => watch.look(),
        }
    }
}
