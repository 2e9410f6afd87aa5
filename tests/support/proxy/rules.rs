//! What happens to the bytes, decided chunk by chunk, and the counters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From clients to the server.
    Requests,
    /// From the server to clients.
    Replies,
}

/// What happens to the bytes of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They are forwarded.
    Pass,
    /// They are dropped.
    Swallow,
    /// They are kept back until `release_held`.
    Hold,
    /// So many are forwarded, then the connection closes on both sides.
    CutAfter(usize),
}

/// What the proxy has seen since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes from clients to the server.
    pub requests: Traffic,
    /// Bytes from the server to clients.
    pub replies: Traffic,
    /// Connections that were taken and led to the server.
    pub accepted: usize,
    /// Connections that were closed at once, by `refuse` or because the server
    /// took none.
    pub refused: usize,
    /// Upstream connections that are open now.
    pub open: usize,
    /// Connections that `Flow::CutAfter` closed, counted before they close.
    pub cuts: usize,
    /// Commands that `on_request` waited for and that came.
    pub triggered: usize,
    /// Connections that clients closed before the server or the proxy did.
    pub closed_by_client: usize,
    /// Connections that the server closed before the proxy had told it that the
    /// client was gone.
    pub closed_by_server: usize,
}

/// The bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that came, counted before any delay.
    pub received: usize,
    /// Bytes that went on, counted right after: a client may see a reply a moment
    /// before this does.
    pub forwarded: usize,
    /// Bytes that `Swallow` or a cut dropped.
    pub swallowed: usize,
    /// Bytes that are held now.
    pub held: usize,
    /// Bytes that were held when their connection closed.
    pub dropped: usize,
}

impl Stats {
    /// The counters of one direction.
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

/// What `Rules::judge` says about a chunk.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Forward,
    Swallow,
    Hold,
    /// Forward so many bytes, then close.
    Cut(usize),
}

/// A part of the connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// Those that this member has made (`Proxy::knowing`).
    Member(Arc<str>),
    /// Those on which a subscription has come by.
    Subscribers,
}

/// What is known of a connection, by which it is judged.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) number: usize,
    pub(super) member: Option<Arc<str>>,
    pub(super) subscribes: bool,
}

impl Known {
    fn is(&self, whose: &Whose) -> bool {
        match whose {
            Whose::Member(name) => self.member.as_ref() == Some(name),
            Whose::Subscribers => self.subscribes,
        }
    }
}

/// All that the test has set, and the counters.
#[derive(Debug, Default)]
pub(super) struct Rules {
    flows: HashMap<Direction, Flow>,
    /// Flows of parts of the connections, which go before those of all.
    flows_of: HashMap<(Whose, Direction), Flow>,
    /// Flows of single connections, which go first.
    own_flows: HashMap<(usize, Direction), Flow>,
    delays: HashMap<Direction, Duration>,
    delays_of: HashMap<(Whose, Direction), Duration>,
    triggers: Vec<Trigger>,
    pub(super) refusing: bool,
    pub(super) stats: Stats,
}

/// A pattern in a request, and what it sets off.
#[derive(Debug)]
pub(super) struct Trigger {
    pattern: Vec<u8>,
    direction: Direction,
    flow: Flow,
}

impl Rules {
    pub(super) fn set(&mut self, direction: Direction, flow: Flow) {
        self.flows.insert(direction, flow);
    }

    pub(super) fn set_for(&mut self, whose: Whose, direction: Direction, flow: Flow) {
        self.flows_of.insert((whose, direction), flow);
    }

    /// Whether it matters whose a connection is.
    pub(super) fn tell_members_apart(&self) -> bool {
        let flows = self.flows_of.keys().map(|(whose, _)| whose);
        let delays = self.delays_of.keys().map(|(whose, _)| whose);
        flows.chain(delays).any(|whose| matches!(whose, Whose::Member(_)))
    }

    pub(super) fn set_delay(&mut self, direction: Direction, delay: Duration) {
        self.delays.insert(direction, delay);
    }

    pub(super) fn set_delay_for(&mut self, whose: Whose, direction: Direction, delay: Duration) {
        self.delays_of.insert((whose, direction), delay);
    }

    pub(super) fn delay(&self, link: &Known, direction: Direction) -> Duration {
        let mut parts = self.delays_of.iter();
        let part = parts.find(|((whose, way), _)| *way == direction && link.is(whose));
        let delay = part.map(|(_, delay)| delay).or(self.delays.get(&direction));
        delay.copied().unwrap_or_default()
    }

    pub(super) fn on_request(&mut self, pattern: &[u8], direction: Direction, flow: Flow) {
        assert!(!pattern.is_empty(), "an empty pattern is in every request");
        self.triggers.push(Trigger { pattern: pattern.to_owned(), direction, flow });
    }

    /// Lets everything pass from now on.
    pub(super) fn reset(&mut self) {
        self.flows.clear();
        self.flows_of.clear();
        self.own_flows.clear();
        self.delays.clear();
        self.delays_of.clear();
        self.triggers.clear();
    }

    /// Ends every `Hold`.
    pub(super) fn hold_no_more(&mut self) {
        self.flows.retain(|_, flow| *flow != Flow::Hold);
        self.flows_of.retain(|_, flow| *flow != Flow::Hold);
        self.own_flows.retain(|_, flow| *flow != Flow::Hold);
    }

    /// Decides about a chunk that comes by on a connection, and counts it towards a cut.
    pub(super) fn judge(&mut self, link: &Known, direction: Direction, length: usize) -> Verdict {
        let flow = self.flow(link, direction);
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

    fn flow(&mut self, link: &Known, direction: Direction) -> &mut Flow {
        if let Some(own) = self.own_flows.get_mut(&(link.number, direction)) {
            return own;
        }
        let mut parts = self.flows_of.iter_mut();
        let part = parts.find(|((whose, way), _)| *way == direction && link.is(whose));
        part.map_or_else(|| self.flows.entry(direction).or_insert(Flow::Pass), |(_, flow)| flow)
    }

    /// Takes the first trigger that this chunk of requests sets off, with the
    /// place where its command starts.
    pub(super) fn take_trigger(&mut self, chunk: &[u8]) -> Option<(Trigger, usize)> {
        let hits = self.triggers.iter().enumerate();
        let hits =
            hits.filter_map(|(index, trigger)| Some((find(chunk, &trigger.pattern)?, index)));
        let (place, index) = hits.min()?;
        Some((self.triggers.remove(index), command_start(chunk, place)))
    }

    /// Gives connection `link` the flow of a trigger that it set off.
    pub(super) fn set_off(&mut self, link: usize, trigger: &Trigger) {
        self.own_flows.insert((link, trigger.direction), trigger.flow);
        self.stats.triggered += 1;
    }

    /// Forgets a connection that has ended.
    pub(super) fn forget(&mut self, link: usize) {
        self.own_flows.retain(|(owner, _), _| *owner != link);
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// Where the command starts that the byte at `place` belongs to: at the last `*`
/// on a line's start before it, since every command is an array.
fn command_start(chunk: &[u8], place: usize) -> usize {
    let before = &chunk[..=place];
    let start = before.windows(3).rposition(|window| window == b"\r\n*");
    start.map_or(0, |line_end| line_end + 2)
}
