//! A TCP proxy in the test's process, with faults that the test switches at run time.
//!
//! Two threads carry the bytes of a connection in chunks, one thread per direction. The `Flow` of
//! the direction decides what happens to a chunk:
//!
//! | flow | bytes | connection |
//! | --- | --- | --- |
//! | `Pass` | forwarded | stays open |
//! | `Swallow` | read and dropped | stays half-open |
//! | `Hold` | held back, in order, until `release_held` | stays open, see below |
//! | `CutAfter(n)` | n bytes forwarded, the rest dropped | closes on both sides; others pass |
//!
//! A test sets a flow for all present and future connections (`set`, and the methods named after
//! faults), for some of them (`set_for`), or for one connection, when a given command passes on it
//! (`on_request`). A flow for fewer connections overrides a flow for more.
//!
//! While bytes are held, all later bytes of the same direction are held too. If the client closes
//! its connection meanwhile, the upstream connection stays open until the held requests are
//! released and delivered. If the server closes the connection, the held bytes are dropped.

mod carry;
mod rules;

pub use rules::{Connections, Direction, Flow, Stats, Traffic};

use self::carry::Carrier;
use super::listener::Listener;
use super::members::Members;
use super::wait::{BOUND, holds_within};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A TCP proxy on a free port of 127.0.0.1.
///
/// Dropping it closes all connections and joins all threads.
#[derive(Debug)]
pub struct Proxy {
    listener: Listener,
    carrier: Arc<Carrier>,
}

impl Proxy {
    /// Starts a proxy that forwards everything to `upstream`.
    pub fn start(upstream: SocketAddr) -> Self {
        Self::knowing(Members::default(), upstream)
    }

    /// Starts a proxy that knows which of these members makes a connection.
    pub fn knowing(members: Members, upstream: SocketAddr) -> Self {
        let carrier = Arc::new(Carrier::to(upstream, members));
        let listener = Listener::start("proxy", {
            let carrier = Arc::clone(&carrier);
            move |client| carrier.connect(client)
        });
        Self { listener, carrier }
    }

    /// Returns `redis://127.0.0.1:<port>/`, without credentials.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Returns the address of the proxy.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Sets the flow of one direction for all connections without a flow of their own.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.set_for(Connections::All, direction, flow);
    }

    /// Sets the flow of one direction for some of the connections.
    pub fn set_for(&self, connections: Connections, direction: Direction, flow: Flow) {
        self.carrier.rules().set(connections, direction, flow);
    }

    /// Identifies the members that made the connections.
    ///
    /// Otherwise the first rule for a member does so, which delays the bytes of the connections.
    pub fn identify(&self) {
        self.carrier.identify_all();
    }

    /// Removes flows, delays and `on_request` rules, then forwards the held bytes.
    ///
    /// Swallowed bytes stay lost.
    pub fn pass(&self) {
        self.carrier.rules().reset();
        self.release_held();
    }

    /// Delays every chunk of this direction, on all connections.
    ///
    /// The next chunk of a connection is read after the delay.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.delay_for(Connections::All, direction, delay);
    }

    /// Delays every chunk of this direction on some of the connections.
    pub fn delay_for(&self, connections: Connections, direction: Direction, delay: Duration) {
        self.carrier.rules().set_delay(connections, direction, delay);
    }

    /// Closes a connection right after the `bytes`-th byte of further requests passed on it.
    ///
    /// The bytes of all connections count. No reply to these bytes comes back. With 0, the next
    /// chunk closes its connection.
    pub fn cut_requests_after(&self, bytes: usize) {
        self.set(Direction::Requests, Flow::CutAfter(bytes));
    }

    /// Drops all further replies; the connections stay open.
    pub fn swallow_replies(&self) {
        self.set(Direction::Replies, Flow::Swallow);
    }

    /// Holds all further requests back.
    pub fn hold_requests(&self) {
        self.set(Direction::Requests, Flow::Hold);
    }

    /// Holds all further replies back.
    pub fn hold_replies(&self) {
        self.set(Direction::Replies, Flow::Hold);
    }

    /// Delivers the held bytes, in order, and ends every `Hold`.
    ///
    /// On return the bytes are written, including those of clients that have closed.
    pub fn release_held(&self) {
        self.carrier.release_held();
    }

    /// Sets a flow for the connection of the next command that contains `pattern`.
    ///
    /// A flow for requests begins with that command's first byte, a flow for replies with the next
    /// chunk. Commands before it in the same write pass; commands after it get the flow. Each rule
    /// applies once; several rules may wait.
    ///
    /// The pattern has to arrive in one chunk, as in commands of a few kilobytes.
    pub fn on_request(&self, pattern: &[u8], direction: Direction, flow: Flow) {
        self.carrier.rules().on_request(pattern, direction, flow);
    }

    /// Closes every new connection at once. Existing connections stay.
    ///
    /// A connection on which no byte has passed may count as new.
    pub fn refuse(&self) {
        self.carrier.rules().refusing = true;
    }

    /// Accepts new connections again and lets everything pass.
    pub fn heal(&self) {
        self.carrier.rules().refusing = false;
        self.pass();
    }

    /// Closes all current connections on both sides; their held bytes are dropped.
    pub fn kill_all(&self) {
        self.kill(&Connections::All);
    }

    /// Closes some of the current connections on both sides.
    pub fn kill(&self, connections: &Connections) {
        self.carrier.kill(connections);
    }

    /// Returns the counters since the start of the proxy.
    pub fn stats(&self) -> Stats {
        self.carrier.stats()
    }

    /// Blocks until `bytes` bytes have passed in this direction since the proxy's start.
    #[track_caller]
    pub fn wait_for_bytes(&self, direction: Direction, bytes: usize) {
        self.wait_until("bytes to pass", |stats| stats.traffic(direction).forwarded >= bytes);
    }

    /// Blocks until the counters fulfil `condition`; panics with `what` after `BOUND`.
    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl Fn(&Stats) -> bool) {
        let happened = holds_within(BOUND, || condition(&self.stats()));
        assert!(happened, "never happened: {what}: {:#?}", self.stats());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.close();
        self.kill_all();
        self.carrier.join();
    }
}
