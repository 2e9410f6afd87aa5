//! A TCP proxy between a client and a server, in the test's process, with faults
//! that the test switches while it runs.
//!
//! Two threads carry the bytes of a connection, one per direction, chunk by
//! chunk. What happens to a chunk is its direction's `Flow`:
//!
//! | flow | bytes are | the connection |
//! | --- | --- | --- |
//! | `Pass` | forwarded | stays |
//! | `Swallow` | read and dropped | stays, half-open |
//! | `Hold` | kept back, in order, until `release_held` | stays; see below |
//! | `CutAfter(n)` | forwarded up to the n-th, the rest dropped | closes on both sides after them; others pass |
//!
//! A flow is set either for all connections, those that exist and those to come
//! (`set`, and the methods named after faults), for some of them (`set_for`), or for one,
//! by a command that comes by on it (`on_request`). What is set for fewer goes before.
//!
//! While bytes are held, whatever follows them in their direction is held too. A
//! client that closes its connection then changes nothing for the server: the
//! upstream connection stays open, the held requests are delivered when they are
//! released, and only then it is closed. If the server closes it before, they
//! are dropped.

mod carry;
mod rules;

pub use rules::{Direction, Flow, Stats, Traffic, Whose};

use self::carry::Wires;
use super::listener::Listener;
use super::members::Members;
use super::wait::{BOUND, holds_within};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A TCP proxy on a free port of 127.0.0.1. Dropping it closes all connections
/// and joins all threads.
#[derive(Debug)]
pub struct Proxy {
    listener: Listener,
    wires: Arc<Wires>,
}

impl Proxy {
    /// Starts a proxy that lets everything pass to `upstream`.
    pub fn start(upstream: SocketAddr) -> Self {
        Self::knowing(Members::default(), upstream)
    }

    /// The same, for a proxy that knows by which of these members a connection is made.
    pub fn knowing(members: Members, upstream: SocketAddr) -> Self {
        let wires = Arc::new(Wires::to(upstream, members));
        let listener = Listener::start("proxy", {
            let wires = Arc::clone(&wires);
            move |client| wires.connect(client)
        });
        Self { listener, wires }
    }

    /// `redis://127.0.0.1:<port>/`, without credentials.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Sets the flow of one direction, for all connections for which nothing else is set.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.set_for(Whose::All, direction, flow);
    }

    /// The same for some of the connections.
    pub fn set_for(&self, whose: Whose, direction: Direction, flow: Flow) {
        self.wires.rules().set(whose, direction, flow);
    }

    /// Finds out by whom the connections were made: done when a rule asks, it would hold up
    /// their bytes.
    pub fn identify(&self) {
        self.wires.identify_all();
    }

    /// Lets everything pass: takes back flows, delays and `on_request`, then
    /// forwards what is held. Bytes that were swallowed are lost.
    pub fn pass(&self) {
        self.wires.rules().reset();
        self.release_held();
    }

    /// Keeps every chunk of this direction for this long before it goes on, on
    /// all connections. The next chunk of a connection is read after that.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.delay_for(Whose::All, direction, delay);
    }

    /// The same for some of the connections.
    pub fn delay_for(&self, whose: Whose, direction: Direction, delay: Duration) {
        self.wires.rules().set_delay(whose, direction, delay);
    }

    /// Closes the connection on which the `bytes`-th byte of requests from now
    /// on goes to the server, right after it, counted over all connections. No
    /// reply to these bytes comes back. With 0, the next chunk closes it.
    pub fn cut_requests_after(&self, bytes: usize) {
        self.set(Direction::Requests, Flow::CutAfter(bytes));
    }

    /// The same for replies: with 0, the next request is executed and its
    /// connection closes without an answer.
    pub fn cut_replies_after(&self, bytes: usize) {
        self.set(Direction::Replies, Flow::CutAfter(bytes));
    }

    /// Drops all requests from now on; the connections stay open.
    pub fn swallow_requests(&self) {
        self.set(Direction::Requests, Flow::Swallow);
    }

    /// Drops all replies from now on; the connections stay open.
    pub fn swallow_replies(&self) {
        self.set(Direction::Replies, Flow::Swallow);
    }

    /// Keeps all requests back from now on.
    pub fn hold_requests(&self) {
        self.set(Direction::Requests, Flow::Hold);
    }

    /// Keeps all replies back from now on.
    pub fn hold_replies(&self) {
        self.set(Direction::Replies, Flow::Hold);
    }

    /// Delivers what is held, in order, and holds nothing more. Once it returns,
    /// the bytes are on their way, also those of clients that have gone.
    pub fn release_held(&self) {
        self.wires.release_held();
    }

    /// Waits for a command with these bytes in it, and then sets a flow for
    /// the connection that it came on, from that command's first byte; for
    /// replies, from the next chunk. Happens once; several may wait. Commands
    /// before it in the same write are not touched, those behind it are.
    ///
    /// The pattern has to come in one chunk, which commands of some kilobytes do.
    pub fn on_request(&self, pattern: &[u8], direction: Direction, flow: Flow) {
        self.wires.rules().on_request(pattern, direction, flow);
    }

    /// Closes every new connection at once. Existing ones stay, except one so
    /// young that no byte of it has passed: the proxy may not have taken it yet.
    pub fn refuse(&self) {
        self.wires.rules().refusing = true;
    }

    /// Takes new connections again and lets everything pass.
    pub fn heal(&self) {
        self.wires.rules().refusing = false;
        self.pass();
    }

    /// Closes all current connections on both sides; what they hold is dropped.
    pub fn kill_all(&self) {
        self.kill(&Whose::All);
    }

    /// The same for some of the connections.
    pub fn kill(&self, whose: &Whose) {
        self.wires.kill(whose);
    }

    /// What has passed so far.
    pub fn stats(&self) -> Stats {
        self.wires.stats()
    }

    /// Blocks until so many bytes have been forwarded in this direction since
    /// the proxy started.
    #[track_caller]
    pub fn wait_for_bytes(&self, direction: Direction, bytes: usize) {
        self.wait_until("bytes to pass", |stats| stats.traffic(direction).forwarded >= bytes);
    }

    /// Blocks until the counters fulfil `condition`; panics with `what` and the
    /// counters if they never do.
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
        self.wires.join();
    }
}
