//! The connections and the threads that carry their bytes.

use super::super::members::Members;
use super::super::wait::holds_within;
use super::rules::{Direction, Known, Rules, Stats, Verdict, Whose};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

const CHUNK: usize = 64 * 1024;

/// All connections of a proxy, and the rules that they obey. Whoever locks a
/// lane and the rules locks the lane first; the other mutexes are locked alone.
#[derive(Debug)]
pub(super) struct Wires {
    upstream: SocketAddr,
    members: Members,
    rules: Mutex<Rules>,
    links: Mutex<Vec<Arc<Link>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// One client's connection, led through to the server.
#[derive(Debug)]
pub(super) struct Link {
    number: usize,
    since: Instant,
    /// Who has made it, if that is known, once it was asked.
    member: OnceLock<Option<Arc<str>>>,
    subscribes: AtomicBool,
    client: TcpStream,
    server: TcpStream,
    requests: Mutex<Lane>,
    replies: Mutex<Lane>,
    /// Set before the proxy closes both sides: from then on nothing passes.
    closed: AtomicBool,
    /// Set before the proxy tells the server that no more requests come.
    server_told: AtomicBool,
}

/// What is kept of one direction of a link.
#[derive(Debug, Default)]
struct Lane {
    held: Vec<u8>,
    /// The client has closed; only the lane of requests needs to know.
    client_gone: bool,
}

impl Wires {
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

    /// Leads a new connection to the server, or closes it.
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
        links.iter().for_each(|link| self.identify(link));
    }

    /// Closes these of the current connections on both sides.
    pub(super) fn kill(&self, whose: &Whose) {
        if matches!(whose, Whose::Member(_)) {
            self.identify_all();
        }
        let links = lock(&self.links).clone();
        let theirs = links.iter().filter(|link| self.known(link).is(whose));
        theirs.for_each(|link| link.close());
    }

    /// Waits until the connections' threads have ended.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // Its panic, if any, was printed when it happened.
            let _ = thread.join();
        }
    }

    /// Forwards all that is held, after telling the rules to hold no more. Nothing else
    /// passes meanwhile: what comes because of that may be held by another rule.
    pub(super) fn release_held(&self) {
        let links = lock(&self.links).clone();
        let both = |link| [Direction::Requests, Direction::Replies].map(|way| (link, way));
        let ways = links.iter().flat_map(both);
        let lanes: Vec<_> = ways.map(|(link, way)| (link, way, link.lane(way))).collect();
        self.rules().hold_no_more();
        for (link, way, mut lane) in lanes {
            self.release(link, way, &mut lane);
        }
    }

    fn carry(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let number = self.count_connection();
        let link = Arc::new(Link::between(client, server, number));
        lock(&self.links).push(Arc::clone(&link));
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        for direction in [Direction::Requests, Direction::Replies] {
            let (wires, link) = (Arc::clone(self), Arc::clone(&link));
            let thread = thread::Builder::new()
                .name("proxy carrier".to_owned())
                .spawn(move || wires.pump(&link, direction))
                .expect("a thread starts");
            threads.push(thread);
        }
    }

    /// What is known of a link. Whose it is is looked for only if a rule asks: that takes
    /// time.
    fn known(&self, link: &Link) -> Known {
        if link.member.get().is_none() && self.rules().tell_members_apart() {
            self.identify(link);
        }
        Known {
            number: link.number,
            member: link.member.get().cloned().flatten(),
            subscribes: link.subscribes.load(Ordering::SeqCst),
        }
    }

    fn identify(&self, link: &Link) {
        link.member.get_or_init(|| {
            let address = link.client.peer_addr().ok()?;
            self.members.who_connects_from(address, link.since)
        });
    }

    fn count_connection(&self) -> usize {
        let stats = &mut self.rules().stats;
        stats.accepted += 1;
        stats.accepted
    }

    /// Carries one direction of a link to its end.
    fn pump(&self, link: &Link, direction: Direction) {
        let mut buffer = vec![0; CHUNK];
        while let Some(length) = read(link.source(direction), &mut buffer) {
            let chunk = &buffer[..length];
            let known = self.known(link);
            let delay = {
                let mut rules = self.rules();
                rules.stats.traffic_mut(direction).received += length;
                rules.delay(&known, direction)
            };
            // A wait that ends early when the link does.
            holds_within(delay, || link.is_closed());
            match direction {
                Direction::Requests => self.deliver_requests(link, chunk),
                Direction::Replies => self.deliver(link, direction, chunk),
            }
        }
        match direction {
            Direction::Requests => self.client_gone(link),
            Direction::Replies => self.server_gone(link),
        }
    }

    /// Delivers a chunk in pieces: a command that sets off a trigger starts one.
    fn deliver_requests(&self, link: &Link, mut chunk: &[u8]) {
        link.look_for_subscriptions(chunk);
        loop {
            // Not in the loop's condition, where the rules would stay locked.
            let hit = self.rules().take_trigger(chunk);
            let Some((trigger, place)) = hit else {
                break;
            };
            let (before, command) = chunk.split_at(place);
            self.deliver(link, Direction::Requests, before);
            self.rules().set_off(link.number, &trigger);
            chunk = command;
        }
        self.deliver(link, Direction::Requests, chunk);
    }

    /// Does with these bytes what the rules say. The lane stays locked, so that
    /// they come neither before nor between those that are being released.
    fn deliver(&self, link: &Link, direction: Direction, bytes: &[u8]) {
        let mut lane = link.lane(direction);
        if bytes.is_empty() || link.is_closed() {
            return;
        }
        let verdict = if lane.held.is_empty() {
            let known = self.known(link);
            self.rules().judge(&known, direction, bytes.len())
        } else {
            Verdict::Hold
        };
        match verdict {
            Verdict::Forward => self.forward(link, direction, bytes),
            Verdict::Swallow => self.count_swallowed(direction, bytes.len()),
            Verdict::Hold => {
                lane.held.extend_from_slice(bytes);
                self.rules().stats.traffic_mut(direction).held += bytes.len();
            }
            Verdict::Cut(length) => self.cut(link, direction, bytes, length),
        }
    }

    fn forward(&self, link: &Link, direction: Direction, bytes: &[u8]) {
        let mut target = link.target(direction);
        // If that side has gone, the thread that reads from it sees to it.
        if target.write_all(bytes).is_ok() {
            self.rules().stats.traffic_mut(direction).forwarded += bytes.len();
        }
    }

    /// Forwards the first `length` bytes and closes the link. It counts as closed
    /// before they go out, so that no answer to them can slip through.
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

    fn release(&self, link: &Link, direction: Direction, lane: &mut Lane) {
        let bytes = std::mem::take(&mut lane.held);
        self.rules().stats.traffic_mut(direction).held -= bytes.len();
        self.forward(link, direction, &bytes);
        if lane.client_gone {
            link.tell_server();
        }
    }

    /// Tells the server that its client has gone, unless requests are still held
    /// for it.
    fn client_gone(&self, link: &Link) {
        let mut lane = link.lane(Direction::Requests);
        lane.client_gone = true;
        if !link.is_closed() {
            self.rules().stats.closed_by_client += 1;
        }
        if lane.held.is_empty() {
            link.tell_server();
        }
    }

    /// Ends the link of a server that has gone, and drops what it holds.
    fn server_gone(&self, link: &Link) {
        if !link.is_closed() && !link.server_told.load(Ordering::SeqCst) {
            self.rules().stats.closed_by_server += 1;
        }
        // First, so that nothing is held any more once this has dropped it.
        link.close();
        self.drop_held(link, Direction::Requests);
        self.drop_held(link, Direction::Replies);
        lock(&self.links).retain(|other| other.number != link.number);
        self.rules().forget(link.number);
    }

    fn drop_held(&self, link: &Link, direction: Direction) {
        let dropped = std::mem::take(&mut link.lane(direction).held).len();
        let mut rules = self.rules();
        let traffic = rules.stats.traffic_mut(direction);
        traffic.held -= dropped;
        traffic.dropped += dropped;
    }
}

impl Link {
    fn between(client: TcpStream, server: TcpStream, number: usize) -> Self {
        for stream in [&client, &server] {
            // A client that has gone already is noticed when it is read.
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
            server_told: AtomicBool::new(false),
        }
    }

    /// Also finds `SSUBSCRIBE` and `PSUBSCRIBE`.
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

    fn lane(&self, direction: Direction) -> MutexGuard<'_, Lane> {
        match direction {
            Direction::Requests => lock(&self.requests),
            Direction::Replies => lock(&self.replies),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Closes both sides, which also ends both threads' reads and writes.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for stream in [&self.client, &self.server] {
            // Fails only where it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Tells the server that no more requests come; it answers what it has and
    /// closes.
    fn tell_server(&self) {
        self.server_told.store(true, Ordering::SeqCst);
        // Fails only where it is closed already.
        let _ = self.server.shutdown(Shutdown::Write);
    }
}

/// Blocks until bytes come; `None` at the end of the stream.
fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return None,
            Ok(length) => return Some(length),
        }
    }
}

/// A thread that panicked has left nothing half done that matters to a test
/// that fails anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
