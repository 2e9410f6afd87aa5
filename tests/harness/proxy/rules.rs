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

/// Some of the connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// All of them.
    All,
    /// Those that this member has made (`Proxy::knowing`).
    Member(Arc<str>),
    /// Those on which a subscription has come by.
    Subscribers,
    /// One, by its number.
    One(usize),
}

/// What is known of a connection, by which it is judged.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) number: usize,
    pub(super) member: Option<Arc<str>>,
    pub(super) subscribes: bool,
}

impl Known {
    /// To which it belongs, the fewest first.
    fn parts(&self) -> impl Iterator<Item = Whose> {
        let member = self.member.clone().map(Whose::Member);
        let subscribers = self.subscribes.then_some(Whose::Subscribers);
        let parts = [Some(Whose::One(self.number)), member, subscribers, Some(Whose::All)];
        parts.into_iter().flatten()
    }

    pub(super) fn is(&self, whose: &Whose) -> bool {
        self.parts().any(|part| part == *whose)
    }
}

/// All that the test has set, and the counters.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// What is set for fewer connections goes before what is set for more.
    flows: HashMap<(Whose, Direction), Flow>,
    delays: HashMap<(Whose, Direction), Duration>,
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
    pub(super) fn set(&mut self, whose: Whose, direction: Direction, flow: Flow) {
        self.flows.insert((whose, direction), flow);
    }

    /// Whether it matters whose a connection is.
    pub(super) fn tell_members_apart(&self) -> bool {
        let mut set = self.flows.keys().chain(self.delays.keys());
        set.any(|(whose, _)| matches!(whose, Whose::Member(_)))
    }

    pub(super) fn set_delay(&mut self, whose: Whose, direction: Direction, delay: Duration) {
        self.delays.insert((whose, direction), delay);
    }

    pub(super) fn delay(&self, link: &Known, direction: Direction) -> Duration {
        let delay = link.parts().find_map(|part| self.delays.get(&(part, direction)));
        delay.copied().unwrap_or_default()
    }

    pub(super) fn on_request(&mut self, pattern: &[u8], direction: Direction, flow: Flow) {
        assert!(!pattern.is_empty(), "an empty pattern is in every request");
        self.triggers.push(Trigger { pattern: pattern.to_owned(), direction, flow });
    }

    /// Lets everything pass from now on.
    pub(super) fn reset(&mut self) {
        self.flows.clear();
        self.delays.clear();
        self.triggers.clear();
    }

    /// Ends every `Hold`.
    pub(super) fn hold_no_more(&mut self) {
        self.flows.retain(|_, flow| *flow != Flow::Hold);
    }

    /// Decides about a chunk that comes by on a connection, and counts it towards a cut.
    pub(super) fn judge(&mut self, link: &Known, direction: Direction, length: usize) -> Verdict {
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

    fn flow(&mut self, link: &Known, direction: Direction) -> Option<&mut Flow> {
        let mut places = link.parts().map(|part| (part, direction));
        let place = places.find(|place| self.flows.contains_key(place))?;
        self.flows.get_mut(&place)
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
        self.set(Whose::One(link), trigger.direction, trigger.flow);
        self.stats.triggered += 1;
    }

    /// Forgets a connection that has ended.
    pub(super) fn forget(&mut self, link: usize) {
        self.flows.retain(|(whose, _), _| *whose != Whose::One(link));
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
