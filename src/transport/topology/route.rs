//! The route of a pool: the server to which its connections lead.
//!
//! The server has a fixed address, or is found for each new connection: the current master by
//! [`sentinel`], any node by [`cluster`], which also knows the nodes of the keys. The
//! [`Generation`] of a master's route grows when another server has become the master.
//! Connections of an earlier generation are not used any more.

use std::sync::Arc;

use crate::error::Result;
#[cfg(not(all(test, leasehold_model)))]
use crate::transport::connection::Connection;
#[cfg(all(test, leasehold_model))]
use crate::transport::connection::model::Connection;
use crate::transport::connection::{Address, Timeouts};
use crate::transport::topology::cluster::{self, Cluster};
use crate::transport::topology::sentinel::{self, Sentinels, not_master};
use crate::util::sync::Parker;

/// The server to which the connections of one pool lead.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// A server with a fixed address.
    To(Arc<Address>),
    /// The master that the sentinels name.
    Master(Arc<Sentinels>),
    /// Any node of a cluster.
    Node(Arc<Cluster>),
}

/// The count of topology changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    pub(crate) fn of(count: u64) -> Generation {
        Generation(count)
    }
}

/// A new connection, with its server.
pub(crate) struct RoutedConnection {
    pub(crate) conn: Connection,
    /// The generation in which the connection was opened. A later generation ends its use.
    pub(crate) generation: Generation,
    pub(crate) server: Arc<str>,
}

impl Route {
    /// Connects to the current server.
    ///
    /// May contact several servers, each within both time-outs.
    pub(crate) fn open(&self, timeouts: Timeouts, name: &str) -> Result<RoutedConnection> {
        let open = |address: &Address| {
            let conn = Connection::open_server(address, timeouts, name)?;
            Ok((conn, Arc::clone(address.shown())))
        };
        let ((conn, server), generation) = match self {
            Route::To(address) => (open(address)?, 0),
            Route::Master(sentinels) => sentinels.with_master(timeouts, |address| {
                let (conn, server) = open(address)?;
                if conn.is_replica() { Err(not_master(address)) } else { Ok((conn, server)) }
            })?,
            Route::Node(cluster) => (cluster.with_any_node(open)?, 0),
        };
        Ok(RoutedConnection { conn, generation: Generation(generation), server })
    }

    /// Returns the address of the server, if it has been found. A cluster has no single server.
    pub(crate) fn server(&self) -> Option<Arc<str>> {
        match self {
            Route::To(address) => Some(Arc::clone(address.shown())),
            Route::Master(sentinels) => sentinels.server(),
            Route::Node(_) => None,
        }
    }

    /// Ends a [`FailoverWatch::wait`] on a cluster that waits for a refresh.
    pub(crate) fn wake(&self) {
        if let Route::Node(cluster) = self {
            cluster.request_refresh();
        }
    }

    /// Returns a watch for topology changes, or `None` if the address is fixed.
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

    /// Returns the current generation. Connections of earlier generations are outdated.
    pub(crate) fn generation(&self) -> Generation {
        match self {
            // A connection to any node of a cluster stays usable after a topology change.
            Route::To(_) | Route::Node(_) => Generation::default(),
            Route::Master(sentinels) => Generation(sentinels.generation()),
        }
    }
}

/// Checks the topology repeatedly, over connections that stay open.
pub(crate) enum FailoverWatch {
    Master(sentinel::SentinelWatch),
    Nodes(Box<cluster::ClusterWatch>),
}

impl FailoverWatch {
    /// Blocks until the next check is due. `stop` together with [`Route::wake`] ends the wait.
    pub(crate) fn wait(&mut self, stop: &Parker) {
        match self {
            FailoverWatch::Master(watch) => watch.wait(stop),
            FailoverWatch::Nodes(watch) => watch.wait(stop),
        }
    }

    /// Checks the topology once. Returns whether it has changed.
    pub(crate) fn check(&mut self) -> Result<bool> {
        match self {
            FailoverWatch::Master(watch) => watch.check(),
            FailoverWatch::Nodes(watch) => watch.check(),
        }
    }
}
