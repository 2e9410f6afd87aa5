//! The connections of a proxy, and the threads that carry their bytes.

use super::super::members::Members;
use super::super::wait::holds_within;
use super::rules::{Connections, Direction, Facts, Rules, Stats, Verdict};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

const CHUNK: usize = 64 * 1024;

/// All connections of a proxy, and its rules.
///
/// A thread that locks a `Buffer` and the rules locks the `Buffer` first. The other mutexes are
/// locked alone.
#[derive(Debug)]
pub(super) struct Carrier {
    upstream: SocketAddr,
    members: Members,
    rules: Mutex<Rules>,
    links: Mutex<Vec<Arc<Link>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The connection of one client, with its upstream connection.
#[derive(Debug)]
pub(super) struct Link {
    number: usize,
    since: Instant,
    /// The member that made the connection, if it is known, after the first question.
    member: OnceLock<Option<Arc<str>>>,
    subscribes: AtomicBool,
    client: TcpStream,
    server: TcpStream,
    requests: Mutex<Buffer>,
    replies: Mutex<Buffer>,
    /// Set before the proxy closes both sides. After that no byte passes.
    closed: AtomicBool,
    /// Set before the proxy closes the upstream connection for writing.
    requests_ended: AtomicBool,
}

/// The held bytes of one direction of a link.
#[derive(Debug, Default)]
struct Buffer {
    held: Vec<u8>,
    /// Whether the client has closed. Used for requests only.
    client_closed: bool,
}

impl Carrier {
    pub(super) fn to(upstream: SocketAddr, members: Members) -> Self {
        Self {
            upstream,
            members,
            rules: Mutex::default(),
            links: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    pub(super) fn rules(&self) -> MutexGuard<'_, Rules> {
        lock(&self.rules)
    }

    pub(super) fn stats(&self) -> Stats {
        let mut stats = self.rules().stats;
        stats.open = lock(&self.links).len();
        stats
    }

    /// Connects a new client to the server, or closes the client's connection.
    pub(super) fn connect(self: &Arc<Self>, client: TcpStream) {
        let refusing = self.rules().refusing;
        let server = (!refusing).then(|| TcpStream::connect(self.upstream));
        match server {
            Some(Ok(server)) => self.carry(client, server),
            _ => self.rules().stats.refused += 1,
        }
    }

    pub(super) fn identify_all(&self) {
        let links = lock(&self.links).clone();
        for link in &links {
            self.identify(link);
        }
    }

    /// Closes some of the current connections on both sides.
    pub(super) fn kill(&self, connections: &Connections) {
        if matches!(connections, Connections::Member(_)) {
            self.identify_all();
        }
        let links = lock(&self.links).clone();
        for link in links.iter().filter(|link| self.facts(link).is_in(connections)) {
            link.close();
        }
    }

    /// Blocks until the threads of the connections have ended.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }

    /// Ends every `Hold`, then forwards all held bytes.
    ///
    /// Nothing else passes meanwhile, since the bytes that follow may be held by another rule.
    pub(super) fn release_held(&self) {
        let links = lock(&self.links).clone();
        let both = |link| [Direction::Requests, Direction::Replies].map(|way| (link, way));
        let ways = links.iter().flat_map(both);
        let buffers: Vec<_> = ways.map(|(link, way)| (link, way, link.buffer(way))).collect();
        self.rules().end_holds();
        for (link, way, mut buffer) in buffers {
            self.release(link, way, &mut buffer);
        }
    }

    fn carry(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let number = {
            let stats = &mut self.rules().stats;
            stats.accepted += 1;
            stats.accepted
        };
        let link = Arc::new(Link::between(client, server, number));
        lock(&self.links).push(Arc::clone(&link));
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        for direction in [Direction::Requests, Direction::Replies] {
            let (carrier, link) = (Arc::clone(self), Arc::clone(&link));
            let thread = thread::Builder::new()
                .name("proxy carrier".to_owned())
                .spawn(move || carrier.pump(&link, direction))
                .expect("a thread starts");
            threads.push(thread);
        }
    }

    /// Returns the facts about a link that decide which rules apply.
    ///
    /// The member is looked up only if a rule depends on it, since that takes time.
    fn facts(&self, link: &Link) -> Facts {
        if link.member.get().is_none() && self.rules().depend_on_members() {
            self.identify(link);
        }
        Facts {
            number: link.number,
            member: link.member.get().cloned().flatten(),
            subscribes: link.subscribes.load(Ordering::SeqCst),
        }
    }

    fn identify(&self, link: &Link) {
        link.member.get_or_init(|| {
            let address = link.client.peer_addr().ok()?;
            self.members.connected_from(address, link.since)
        });
    }

    /// Carries the bytes of one direction of a link until its end.
    fn pump(&self, link: &Link, direction: Direction) {
        let mut buffer = vec![0; CHUNK];
        while let Some(length) = read(link.source(direction), &mut buffer) {
            let chunk = &buffer[..length];
            let facts = self.facts(link);
            let delay = {
                let mut rules = self.rules();
                rules.stats.traffic_mut(direction).received += length;
                rules.delay(&facts, direction)
            };
            // The wait ends early if the link closes.
            holds_within(delay, || link.is_closed());
            match direction {
                Direction::Requests => self.deliver_requests(link, chunk),
                Direction::Replies => self.deliver(link, direction, chunk),
            }
        }
        match direction {
            Direction::Requests => self.client_closed(link),
            Direction::Replies => self.server_closed(link),
        }
    }

    /// Delivers a chunk in parts: each command with a trigger starts a new part.
    fn deliver_requests(&self, link: &Link, mut chunk: &[u8]) {
        link.look_for_subscriptions(chunk);
        loop {
            // As the condition of the loop, this would keep the rules locked.
            let hit = self.rules().take_trigger(chunk);
            let Some((trigger, start)) = hit else {
                break;
            };
            let (before, command) = chunk.split_at(start);
            self.deliver(link, Direction::Requests, before);
            self.rules().set_off(link.number, &trigger);
            chunk = command;
        }
        self.deliver(link, Direction::Requests, chunk);
    }

    /// Applies the rules to these bytes.
    ///
    /// The buffer stays locked, so that these bytes go out after bytes that are being released.
    fn deliver(&self, link: &Link, direction: Direction, bytes: &[u8]) {
        let mut buffer = link.buffer(direction);
        if bytes.is_empty() || link.is_closed() {
            return;
        }
        let verdict = if buffer.held.is_empty() {
            let facts = self.facts(link);
            self.rules().judge(&facts, direction, bytes.len())
        } else {
            Verdict::Hold
        };
        match verdict {
            Verdict::Forward => self.forward(link, direction, bytes),
            Verdict::Swallow => self.count_swallowed(direction, bytes.len()),
            Verdict::Hold => {
                buffer.held.extend_from_slice(bytes);
                self.rules().stats.traffic_mut(direction).held += bytes.len();
            }
            Verdict::Cut(length) => self.cut(link, direction, bytes, length),
        }
    }

    fn forward(&self, link: &Link, direction: Direction, bytes: &[u8]) {
        let mut target = link.target(direction);
        // If that side is closed, the thread that reads from it closes the link.
        if target.write_all(bytes).is_ok() {
            self.rules().stats.traffic_mut(direction).forwarded += bytes.len();
        }
    }

    /// Forwards the first `length` bytes and closes the link.
    ///
    /// The link counts as closed before the bytes go out, so that no reply to them passes.
    fn cut(&self, link: &Link, direction: Direction, bytes: &[u8], length: usize) {
        link.closed.store(true, Ordering::SeqCst);
        self.rules().stats.cuts += 1;
        self.count_swallowed(direction, bytes.len() - length);
        self.forward(link, direction, &bytes[..length]);
        link.close();
    }

    fn count_swallowed(&self, direction: Direction, bytes: usize) {
        self.rules().stats.traffic_mut(direction).swallowed += bytes;
    }

    fn release(&self, link: &Link, direction: Direction, buffer: &mut Buffer) {
        let bytes = std::mem::take(&mut buffer.held);
        self.rules().stats.traffic_mut(direction).held -= bytes.len();
        self.forward(link, direction, &bytes);
        if buffer.client_closed {
            link.end_requests();
        }
    }

    /// Passes the client's close on to the server, unless requests are held.
    fn client_closed(&self, link: &Link) {
        let mut buffer = link.buffer(Direction::Requests);
        buffer.client_closed = true;
        if !link.is_closed() {
            self.rules().stats.closed_by_client += 1;
        }
        if buffer.held.is_empty() {
            link.end_requests();
        }
    }

    /// Ends a link whose server has closed, and drops its held bytes.
    fn server_closed(&self, link: &Link) {
        if !link.is_closed() && !link.requests_ended.load(Ordering::SeqCst) {
            self.rules().stats.closed_by_server += 1;
        }
        // After the close no further bytes are held.
        link.close();
        self.drop_held(link, Direction::Requests);
        self.drop_held(link, Direction::Replies);
        lock(&self.links).retain(|other| other.number != link.number);
        self.rules().remove(link.number);
    }

    fn drop_held(&self, link: &Link, direction: Direction) {
        let dropped = std::mem::take(&mut link.buffer(direction).held).len();
        let mut rules = self.rules();
        let traffic = rules.stats.traffic_mut(direction);
        traffic.held -= dropped;
        traffic.dropped += dropped;
    }
}

impl Link {
    fn between(client: TcpStream, server: TcpStream, number: usize) -> Self {
        for stream in [&client, &server] {
            // A closed connection is noticed at the next read.
            let _ = stream.set_nodelay(true);
        }
        Self {
            number,
            since: Instant::now(),
            member: OnceLock::new(),
            subscribes: AtomicBool::new(false),
            client,
            server,
            requests: Mutex::default(),
            replies: Mutex::default(),
            closed: AtomicBool::new(false),
            requests_ended: AtomicBool::new(false),
        }
    }

    /// Notes whether the chunk contains `SUBSCRIBE`, `SSUBSCRIBE` or `PSUBSCRIBE`.
    fn look_for_subscriptions(&self, chunk: &[u8]) {
        const WORD: &[u8] = b"SUBSCRIBE";
        if !self.subscribes.load(Ordering::SeqCst) && chunk.windows(WORD.len()).any(|w| w == WORD) {
            self.subscribes.store(true, Ordering::SeqCst);
        }
    }

    fn source(&self, direction: Direction) -> &TcpStream {
        match direction {
            Direction::Requests => &self.client,
            Direction::Replies => &self.server,
        }
    }

    fn target(&self, direction: Direction) -> &TcpStream {
        match direction {
            Direction::Requests => &self.server,
            Direction::Replies => &self.client,
        }
    }

    fn buffer(&self, direction: Direction) -> MutexGuard<'_, Buffer> {
        match direction {
            Direction::Requests => lock(&self.requests),
            Direction::Replies => lock(&self.replies),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Closes both sides, which ends the reads and writes of both threads.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for stream in [&self.client, &self.server] {
            // Fails only if the connection is already closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes the upstream connection for writing.
    ///
    /// The server still replies to the requests that it has, then closes.
    fn end_requests(&self) {
        self.requests_ended.store(true, Ordering::SeqCst);
        // Fails only if the connection is already closed.
        let _ = self.server.shutdown(Shutdown::Write);
    }
}

/// Blocks until bytes arrive; returns their number, or `None` at the stream's end.
fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return None,
            Ok(length) => return Some(length),
        }
    }
}

/// Locks a mutex, even after a panic: the test fails anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
