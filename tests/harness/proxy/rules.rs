//! The rules that decide about each chunk of bytes, and the counters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From clients to the server.
    Requests,
    /// From the server to clients.
    Replies,
}

/// The treatment of the bytes of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The bytes are forwarded.
    Pass,
    /// The bytes are dropped.
    Swallow,
    /// The bytes are held back until `release_held`.
    Hold,
    /// This number of bytes is forwarded, then the connection closes on both sides.
    CutAfter(usize),
}

/// The counters of a proxy since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes from clients to the server.
    pub requests: Traffic,
    /// Bytes from the server to clients.
    pub replies: Traffic,
    /// Connections that were accepted and connected to the server.
    pub accepted: usize,
    /// Connections that were closed at once, by `refuse` or because the server accepted none.
    pub refused: usize,
    /// Open upstream connections.
    pub open: usize,
    /// Connections that `Flow::CutAfter` closed, counted before they close.
    pub cuts: usize,
    /// Commands that applied a rule of `on_request`.
    pub triggered: usize,
    /// Connections that clients closed before the server or the proxy did.
    pub closed_by_client: usize,
    /// Connections that the server closed before the proxy passed on the client's close.
    pub closed_by_server: usize,
}

/// The bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received bytes, counted before any delay.
    pub received: usize,
    /// Forwarded bytes, counted right after the write: a client may read a reply before that.
    pub forwarded: usize,
    /// Bytes that `Swallow` or `CutAfter` dropped.
    pub swallowed: usize,
    /// Bytes that are held.
    pub held: usize,
    /// Bytes that were held when their connection closed.
    pub dropped: usize,
}

impl Stats {
    /// Returns the counters of one direction.
    pub fn traffic(&self, direction: Direction) -> &Traffic {
        match direction {
            Direction::Requests => &self.requests,
            Direction::Replies => &self.replies,
        }
    }

    pub(super) fn traffic_mut(&mut self, direction: Direction) -> &mut Traffic {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Replies => &mut self.replies,
        }
    }
}

/// The decision of `Rules::judge` about a chunk.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Forward,
    Swallow,
    Hold,
    /// Forward that many bytes, then close.
    Cut(usize),
}

/// A selection of a proxy's connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Connections {
    /// All connections.
    All,
    /// The connections that this member has made (`Proxy::knowing`).
    Member(Arc<str>),
    /// The connections on which a subscription has passed.
    Subscribers,
    /// The connection with this number.
    One(usize),
}

/// The facts about a connection that decide which rules apply.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) number: usize,
    pub(super) member: Option<Arc<str>>,
    pub(super) subscribes: bool,
}

impl Facts {
    /// Returns the selections that contain the connection, the smallest first.
    fn selections(&self) -> impl Iterator<Item = Connections> {
        let one = Some(Connections::One(self.number));
        let member = self.member.clone().map(Connections::Member);
        let subscribers = self.subscribes.then_some(Connections::Subscribers);
        [one, member, subscribers, Some(Connections::All)].into_iter().flatten()
    }

    pub(super) fn is_in(&self, connections: &Connections) -> bool {
        self.selections().any(|selection| selection == *connections)
    }
}

/// The rules that the test has set, and the counters.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// A flow for fewer connections overrides a flow for more.
    flows: HashMap<(Connections, Direction), Flow>,
    delays: HashMap<(Connections, Direction), Duration>,
    triggers: Vec<Trigger>,
    pub(super) refusing: bool,
    pub(super) stats: Stats,
}

/// A pattern in a request, and the flow that it sets.
#[derive(Debug)]
pub(super) struct Trigger {
    pattern: Vec<u8>,
    direction: Direction,
    flow: Flow,
}

impl Rules {
    pub(super) fn set(&mut self, connections: Connections, direction: Direction, flow: Flow) {
        self.flows.insert((connections, direction), flow);
    }

    /// Returns whether a rule depends on the member that made a connection.
    pub(super) fn depend_on_members(&self) -> bool {
        let mut set = self.flows.keys().chain(self.delays.keys());
        set.any(|(connections, _)| matches!(connections, Connections::Member(_)))
    }

    pub(super) fn set_delay(
        &mut self,
        connections: Connections,
        direction: Direction,
        delay: Duration,
    ) {
        self.delays.insert((connections, direction), delay);
    }

    pub(super) fn delay(&self, link: &Facts, direction: Direction) -> Duration {
        let mut keys = link.selections().map(|selection| (selection, direction));
        keys.find_map(|key| self.delays.get(&key)).copied().unwrap_or_default()
    }

    pub(super) fn on_request(&mut self, pattern: &[u8], direction: Direction, flow: Flow) {
        assert!(!pattern.is_empty(), "an empty pattern is in every request");
        self.triggers.push(Trigger { pattern: pattern.to_owned(), direction, flow });
    }

    /// Removes all rules, so that everything passes.
    pub(super) fn reset(&mut self) {
        self.flows.clear();
        self.delays.clear();
        self.triggers.clear();
    }

    /// Ends every `Hold`.
    pub(super) fn end_holds(&mut self) {
        self.flows.retain(|_, flow| *flow != Flow::Hold);
    }

    /// Decides about a chunk of a connection, and counts its bytes towards a cut.
    pub(super) fn judge(&mut self, link: &Facts, direction: Direction, length: usize) -> Verdict {
        let Some(flow) = self.flow(link, direction) else {
            return Verdict::Forward;
        };
        match flow {
            Flow::Pass => Verdict::Forward,
            Flow::Swallow => Verdict::Swallow,
            Flow::Hold => Verdict::Hold,
            Flow::CutAfter(left) if *left > length => {
                *left -= length;
                Verdict::Forward
            }
            Flow::CutAfter(left) => {
                let bytes = *left;
                *flow = Flow::Pass;
                Verdict::Cut(bytes)
            }
        }
    }

    fn flow(&mut self, link: &Facts, direction: Direction) -> Option<&mut Flow> {
        let mut keys = link.selections().map(|selection| (selection, direction));
        let key = keys.find(|key| self.flows.contains_key(key))?;
        self.flows.get_mut(&key)
    }

    /// Removes and returns the first trigger in this chunk of requests.
    ///
    /// The number is the offset at which the command of the trigger starts.
    pub(super) fn take_trigger(&mut self, chunk: &[u8]) -> Option<(Trigger, usize)> {
        let hits = self.triggers.iter().enumerate();
        let hits =
            hits.filter_map(|(index, trigger)| Some((find(chunk, &trigger.pattern)?, index)));
        let (place, index) = hits.min()?;
        Some((self.triggers.remove(index), command_start(chunk, place)))
    }

    /// Sets the flow of a trigger for the connection `link`.
    pub(super) fn set_off(&mut self, link: usize, trigger: &Trigger) {
        self.set(Connections::One(link), trigger.direction, trigger.flow);
        self.stats.triggered += 1;
    }

    /// Removes the rules of a connection that has ended.
    pub(super) fn remove(&mut self, link: usize) {
        self.flows.retain(|(connections, _), _| *connections != Connections::One(link));
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// Returns the offset at which the command with the byte at `place` starts.
///
/// Every command is an array, so it starts with the last `*` at the start of a line before `place`.
fn command_start(chunk: &[u8], place: usize) -> usize {
    let before = &chunk[..=place];
    let start = before.windows(3).rposition(|window| window == b"\r\n*");
    start.map_or(0, |line_end| line_end + 2)
}
