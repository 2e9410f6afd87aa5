//! The state of the model: the server's data, the clients, their calls, and the packets in flight.
//!
//! All times are relative and saturate. Tokens, places and times of terms come from counters;
//! [`State::tidy`] replaces them by their ranks, because the protocol only compares them. So the
//! state space is finite.

use super::Layout;

pub(super) const SLOTS: usize = 3;
pub(super) const ROUNDS: u8 = 2;
pub(super) const NUMBERS: usize = SLOTS * ROUNDS as usize;
pub(super) const NOBODY: u8 = u8::MAX;

/// Leases in ticks. One tick is the poll interval.
pub(super) const GRANT_LEASE: u8 = 2;
pub(super) const LEASE: u8 = 3;

pub(super) fn slot_of(number: u8) -> usize {
    (number / ROUNDS) as usize
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) server: Server,
    /// An older state of the server, which a fail-over may bring back.
    pub(super) copy: Option<Box<Server>>,
    pub(super) clients: [Client; SLOTS],
    pub(super) calls: [Call; SLOTS],
    /// Sorted. Their order of arrival is free.
    pub(super) packets: Vec<Packet>,
    /// The faults that may still happen.
    pub(super) budget: u8,
    pub(super) seen: Violations,
}

/// The data of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) holder: u8,
    /// The holder's remaining lease.
    pub(super) lease: u8,
    /// The score of each number; 0 outside the queue.
    pub(super) queue: [u8; NUMBERS],
    pub(super) terms: [Terms; SLOTS],
    /// The last token. It survives a loss of the data, as the server's time exceeds it.
    pub(super) token: u8,
}

/// A client that the server counts as alive while `left` is not 0. Unknown if `since` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Terms {
    pub(super) since: u8,
    pub(super) left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Life {
    Up,
    Stopped,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) life: Life,
    pub(super) listens: bool,
    /// Whether the heartbeat of this tick was sent.
    pub(super) beat: bool,
    /// The client has not noticed the last fail-over.
    pub(super) moved: bool,
}

/// One thread of a client: its call in the current round, or its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Call {
    pub(super) round: u8,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    Idle,
    Waiting(Wait),
    /// `void`: a loss of the server's data has ended the hold there.
    Holding {
        left: u8,
        void: bool,
    },
}

/// A registered waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Wait {
    /// The base: the age of its request, and the bound of its reply.
    pub(super) age: u8,
    pub(super) bound: u8,
    /// From the last refused reply; 0 before it.
    pub(super) place: u8,
    pub(super) terms_since: u8,
    /// An acquire is in flight.
    pub(super) asks: bool,
    /// An acquire is due.
    pub(super) again: bool,
}

/// A command, reply or message that takes longer than one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Packet {
    Granted { number: u8, token: u8, void: bool },
    Acquire { number: u8, place: u8, sent: Sent },
    Acquired { number: u8, age: u8, reply: AcquireReply, void: bool },
    Release { number: u8 },
    Heartbeat { client: u8, sent: Sent, waiters: u8 },
    Beat { client: u8, age: u8, reply: BeatReply, void: bool },
    Renew { number: u8, sent: Sent },
    Renewed { number: u8, age: u8, is_held: bool, void: bool },
}

/// The age of a command, and whether its sender still takes the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Sent {
    Awaited(u8),
    Copy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum AcquireReply {
    Held,
    Refused { bound: u8, place: u8, terms_since: u8, is_new: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BeatReply {
    pub(super) terms_since: u8,
    pub(super) is_new: bool,
    /// The number of this client that holds the lock, or [`NOBODY`].
    pub(super) hold: u8,
    pub(super) ttl: u8,
    pub(super) bound: u8,
}

/// The fault of a step, as only the step can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Violations {
    /// A grant to a number while a better waiter was live, or to a client that counts as gone.
    pub(super) order: bool,
    /// A script has left the lock free with a live waiter in the queue.
    pub(super) idle: bool,
    /// A heartbeat whose reply came at once has not repeated a grant.
    pub(super) unrepeated: bool,
    /// No fault: a fail-over has brought back numbers whose calls have ended.
    pub(super) restored: bool,
}

impl Server {
    /// A server without data.
    pub(super) fn new(token: u8) -> Self {
        let (queue, terms) = ([0; NUMBERS], [Terms::default(); SLOTS]);
        Self { holder: NOBODY, lease: 0, queue, terms, token }
    }
}

impl State {
    pub(super) fn new(budget: u8) -> Self {
        let client = Client { life: Life::Up, listens: true, beat: false, moved: false };
        let call = Call { round: 0, phase: Phase::Idle };
        Self {
            server: Server::new(0),
            copy: None,
            clients: [client; SLOTS],
            calls: [call; SLOTS],
            packets: Vec::new(),
            budget,
            seen: Violations::default(),
        }
    }

    /// The number of the slot's call; of its last call after all rounds.
    pub(super) fn number(&self, slot: usize) -> u8 {
        slot as u8 * ROUNDS + self.calls[slot].round.min(ROUNDS - 1)
    }

    /// Whether the number's call has ended, with or without the lock.
    pub(super) fn has_ended(&self, number: u8) -> bool {
        self.calls[slot_of(number)].round > number % ROUNDS
    }

    pub(super) fn wait(&self, number: u8) -> Option<Wait> {
        match self.calls[slot_of(number)].phase {
            Phase::Waiting(wait) if self.number(slot_of(number)) == number => Some(wait),
            _ => None,
        }
    }

    pub(super) fn is_holding(&self, number: u8) -> bool {
        let slot = slot_of(number);
        self.number(slot) == number && matches!(self.calls[slot].phase, Phase::Holding { .. })
    }

    pub(super) fn has_acquire_of(&self, number: u8) -> bool {
        self.packets.iter().any(|p| matches!(p, Packet::Acquire { number: n, .. } if *n == number))
    }

    pub(super) fn has_release_of(&self, number: u8) -> bool {
        self.packets.contains(&Packet::Release { number })
    }

    /// Whether a command about the number can still change the server's data.
    fn is_at_server(&self, number: u8) -> bool {
        let servers = [Some(&self.server), self.copy.as_deref()];
        let knows = |it: &Server| it.holder == number || it.queue[number as usize] > 0;
        servers.into_iter().flatten().any(knows) || self.has_acquire_of(number)
    }

    /// Drops packets without effect and gives equal states one form.
    pub(super) fn tidy(&mut self, layout: Layout) {
        let mut packets = std::mem::take(&mut self.packets);
        self.packets = packets.clone();
        packets.retain(|packet| self.matters(*packet, layout));
        packets.sort_unstable();
        packets.dedup();
        self.packets = packets;
        if self.server.holder == NOBODY {
            self.server.lease = 0;
        }
        self.rank_tokens();
        self.rank_places();
        self.rank_terms(layout);
        if layout.is_symmetric() {
            self.sort_slots(layout);
        }
    }

    fn matters(&self, packet: Packet, layout: Layout) -> bool {
        match packet {
            Packet::Granted { number, token, .. } => match self.wait(number) {
                Some(wait) => token > wait.bound || layout.seed.is_some(),
                None => self.is_at_server(number) && !self.is_holding(number),
            },
            Packet::Acquired { number, .. } => self.wait(number).is_some_and(|w| w.asks),
            Packet::Release { number } => self.is_at_server(number),
            Packet::Beat { client, .. } => {
                self.waiting_of(client as usize, layout).next().is_some()
            }
            Packet::Renew { number, .. } => self.is_at_server(number) || self.is_holding(number),
            Packet::Renewed { number, .. } => self.is_holding(number),
            Packet::Acquire { .. } | Packet::Heartbeat { .. } => true,
        }
    }

    /// The slots of the client with a registered waiter.
    pub(super) fn waiting_of(
        &self,
        client: usize,
        layout: Layout,
    ) -> impl Iterator<Item = usize> + '_ {
        let is_waiting = |slot: usize| matches!(self.calls[slot].phase, Phase::Waiting(_));
        (0..SLOTS).filter(move |&slot| layout.clients[slot] == client && is_waiting(slot))
    }

    /// Only `token > bound` counts, and a new token exceeds all. So a token becomes its rank among
    /// the tokens in flight, and a bound the number of tokens in flight that it covers.
    fn rank_tokens(&mut self) {
        let mut ranks = Ranks::default();
        for packet in &self.packets {
            if let Packet::Granted { token, .. } = packet {
                ranks.add(*token);
            }
        }
        self.server.token = ranks.len();
        if let Some(copy) = &mut self.copy {
            copy.token = 0;
        }
        for call in &mut self.calls {
            if let Phase::Waiting(wait) = &mut call.phase {
                wait.bound = ranks.up_to(wait.bound);
            }
        }
        for packet in &mut self.packets {
            match packet {
                Packet::Granted { token: value, .. }
                | Packet::Acquired { reply: AcquireReply::Refused { bound: value, .. }, .. }
                | Packet::Beat { reply: BeatReply { bound: value, .. }, .. } => {
                    *value = ranks.up_to(*value);
                }
                _ => {}
            }
        }
    }

    fn rank_places(&mut self) {
        let mut ranks = Ranks::default();
        self.each_place(|place| ranks.add(*place));
        self.each_place(|place| *place = ranks.up_to(*place));
    }

    /// Visits each score that is known anywhere.
    pub(super) fn each_place(&mut self, mut visit: impl FnMut(&mut u8)) {
        let mut visit = |place: &mut u8| {
            if *place > 0 {
                visit(place);
            }
        };
        self.server.queue.iter_mut().for_each(&mut visit);
        if let Some(copy) = &mut self.copy {
            copy.queue.iter_mut().for_each(&mut visit);
        }
        for call in &mut self.calls {
            if let Phase::Waiting(wait) = &mut call.phase {
                visit(&mut wait.place);
            }
        }
        for packet in &mut self.packets {
            match packet {
                Packet::Acquire { place, .. }
                | Packet::Acquired { reply: AcquireReply::Refused { place, .. }, .. } => {
                    visit(place);
                }
                _ => {}
            }
        }
    }

    fn rank_terms(&mut self, layout: Layout) {
        for client in 0..SLOTS {
            let mut ranks = Ranks::default();
            self.each_terms_since(client, layout, |since| ranks.add(*since));
            self.each_terms_since(client, layout, |since| *since = ranks.up_to(*since));
        }
    }

    /// Visits each time of the client's terms that is known anywhere.
    pub(super) fn each_terms_since(
        &mut self,
        client: usize,
        layout: Layout,
        mut visit: impl FnMut(&mut u8),
    ) {
        let mut visit = |since: &mut u8| {
            if *since > 0 {
                visit(since);
            }
        };
        visit(&mut self.server.terms[client].since);
        if let Some(copy) = &mut self.copy {
            visit(&mut copy.terms[client].since);
        }
        for (slot, call) in self.calls.iter_mut().enumerate() {
            if let Phase::Waiting(wait) = &mut call.phase
                && layout.clients[slot] == client
            {
                visit(&mut wait.terms_since);
            }
        }
        let packets = self.packets.iter_mut();
        packets.filter_map(|packet| packet.terms_since(client, layout)).for_each(visit);
    }
}

impl Packet {
    /// The time of the client's terms in a reply to the client.
    fn terms_since(&mut self, client: usize, layout: Layout) -> Option<&mut u8> {
        match self {
            Packet::Acquired {
                number, reply: AcquireReply::Refused { terms_since, .. }, ..
            } => (layout.client_of(*number) == client).then_some(terms_since),
            Packet::Beat { client: of, reply, .. } => {
                (*of as usize == client).then_some(&mut reply.terms_since)
            }
            _ => None,
        }
    }
}

/// The order of equal slots is free: states that differ in this order only become one.
impl State {
    fn sort_slots(&mut self, layout: Layout) {
        let mut order: [usize; SLOTS] = std::array::from_fn(|slot| slot);
        order.sort_by_key(|&slot| (layout.clients[slot], self.slot_key(slot, layout)));
        if layout.has_own_clients() {
            order.sort_by_key(|&slot| self.slot_key(slot, layout));
        }
        if order.is_sorted() {
            return;
        }
        let mut renamed = [0; SLOTS];
        (0..SLOTS).for_each(|slot| renamed[order[slot]] = slot);
        self.rename(order, renamed, layout);
    }

    fn slot_key(&self, slot: usize, layout: Layout) -> impl Ord + use<> {
        let first = slot * ROUNDS as usize;
        let client = layout.clients[slot];
        let places: [u8; ROUNDS as usize] =
            std::array::from_fn(|round| self.server.queue[first + round]);
        let is_holder = self.server.holder != NOBODY && slot_of(self.server.holder) == slot;
        let terms = self.server.terms[client];
        (self.calls[slot], self.clients[client], terms, places, is_holder)
    }

    /// Moves each slot, and its client if all slots have their own, to its new position.
    fn rename(&mut self, order: [usize; SLOTS], renamed: [usize; SLOTS], layout: Layout) {
        let number = |it: u8| match it {
            NOBODY => NOBODY,
            it => renamed[slot_of(it)] as u8 * ROUNDS + it % ROUNDS,
        };
        let moves_clients = layout.has_own_clients();
        self.calls = order.map(|old| self.calls[old]);
        if moves_clients {
            self.clients = order.map(|old| self.clients[old]);
        }
        for server in [Some(&mut self.server), self.copy.as_deref_mut()].into_iter().flatten() {
            server.holder = number(server.holder);
            let queue = server.queue;
            (0..NUMBERS).for_each(|it| server.queue[number(it as u8) as usize] = queue[it]);
            if moves_clients {
                server.terms = order.map(|old| server.terms[old]);
            }
        }
        let client = |it: u8| if moves_clients { renamed[it as usize] as u8 } else { it };
        self.packets.iter_mut().for_each(|packet| packet.rename(number, client));
        self.packets.sort_unstable();
    }
}

impl Packet {
    fn rename(&mut self, rename: impl Fn(u8) -> u8, rename_client: impl Fn(u8) -> u8) {
        match self {
            Packet::Granted { number, .. }
            | Packet::Acquire { number, .. }
            | Packet::Acquired { number, .. }
            | Packet::Release { number }
            | Packet::Renew { number, .. }
            | Packet::Renewed { number, .. } => *number = rename(*number),
            Packet::Heartbeat { client, .. } => *client = rename_client(*client),
            Packet::Beat { client, reply, .. } => {
                *client = rename_client(*client);
                reply.hold = rename(reply.hold);
            }
        }
    }
}

/// A small set of counter values.
#[derive(Default)]
struct Ranks(u128);

impl Ranks {
    fn add(&mut self, value: u8) {
        self.0 |= 1 << value;
    }

    fn len(&self) -> u8 {
        self.0.count_ones() as u8
    }

    /// The number of values in the set up to this one.
    fn up_to(&self, value: u8) -> u8 {
        (self.0 & ((2 << value) - 1)).count_ones() as u8
    }
}
