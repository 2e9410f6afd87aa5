//! The commands of a query, each with a response limit. Commands to one node go in one write.
//!
//! A node of a cluster that does not answer fails only what it alone knows: the locks in its slots,
//! with their waiting processes, which all subscribe there. A client whose record cannot be read
//! counts as a client without a record.
//!
//! A node that is known to be silent gets [`PATIENCE`] for its replies, if others can answer: what
//! these know must not wait for it at each query. The first query that meets the silence waits for
//! its whole limit. Threads of their own make connections and read late replies, with the usual
//! time-outs. So the node is known to be well soon after it answers, also over a slow network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::holder::HolderInfo;
use super::info::{LockInfo, WaitingInfo};
use super::live::{LiveAnswers, LiveSession, PATIENCE};
use super::lock_state::{self, LockState, Side};
use crate::cancel::Limit;
use crate::command::client_record::{self, ClientRecord};
use crate::command::name::Name;
use crate::command::script;
use crate::engine::Engine;
use crate::engine::absence::Asked;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Kind;
use crate::kind::rules::ListensTo;
use crate::transport::call::{Call, ConnectionId};
use crate::transport::pool::Target;
use crate::transport::pool::request::{Outcome, into_reply};
use crate::transport::pool::router::RoutedCall;
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment};

/// The largest number of locks in one script call, which takes the server about 0.2 ms.
const MAX_LOCKS: usize = 32;

/// The time after which a node is asked for records again that has not answered.
const UNREACHABLE_INTERVAL: Duration = Duration::from_secs(16);

/// The records of clients that one query, or all looks of a watch, have read.
#[derive(Debug, Default)]
pub(super) struct ClientRecords {
    /// `None`: the client has no record.
    by_client: BTreeMap<Uuid, Option<Arc<ClientRecord>>>,
    /// The nodes of a cluster that have not answered, and when they are asked again.
    unreachable: BTreeMap<u32, Moment>,
}

impl ClientRecords {
    pub(super) fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Forgets the clients without a record, which may have one later.
    pub(super) fn forget_missing(&mut self) {
        self.by_client.retain(|_, record| record.is_some());
    }

    /// Forgets all clients but these.
    pub(super) fn forget_others(&mut self, seen: &BTreeSet<Uuid>) {
        self.by_client.retain(|client, _| seen.contains(client));
    }
}

/// A held lock, before its release by force.
#[derive(Debug)]
pub(crate) struct LockToForce {
    /// The kind that the keys suggest; [`Kind::Plain`] for a key that is no lock.
    pub(crate) kind: Kind,
    /// The clients of the holders.
    pub(crate) clients: BTreeSet<Uuid>,
    /// The connection of the look.
    pub(crate) connection: ConnectionId,
}

/// Sends the commands of one query.
#[derive(Debug)]
pub(crate) struct Inspector<'a> {
    engine: &'a Arc<Engine>,
    limit: &'a Limit<'a>,
}

/// The data of each lock that a script call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The holders of a lock with a known name.
    Look,
    /// Also the token counter.
    LookWithToken,
    /// Everything, unless the key is neither that of a lock nor that of a semaphore.
    Any,
    /// The same for keys that are hashes.
    Hash,
    /// The same for keys that are those of semaphores, if they exist.
    Permits,
}

impl<'a> Inspector<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, limit: &'a Limit<'a>) -> Inspector<'a> {
        Inspector { engine, limit }
    }

    pub(super) fn engine(&self) -> &'a Engine {
        self.engine
    }

    /// Returns the holders on one side of a lock.
    ///
    /// Two round trips, one if the lock has no holder; then asks the running processes.
    pub(crate) fn holders(
        &self,
        name: &Name,
        side: Side,
        has_tokens: bool,
        target: Target,
    ) -> Result<Vec<HolderInfo>> {
        let reading = if has_tokens { Reading::LookWithToken } else { Reading::Look };
        let (asked, call) = (self.engine.asks_now(), describe_call([name], reading));
        let reply = self.engine.router.call(call, target, self.limit)?;
        let state = reply.value.into_list()?.pop().map(LockState::read).transpose()?.flatten();
        self.lose_absent(asked, name, state.as_ref());
        let mut holders = state.map_or_else(Vec::new, |state| state.holders(side));
        self.add_facts(name, &mut holders)?;
        Ok(holders)
    }

    /// Adds the records of the clients, and the answers of the running processes.
    pub(super) fn add_facts(&self, name: &Name, holders: &mut [HolderInfo]) -> Result<()> {
        self.add_records(&mut ClientRecords::default(), holders.iter_mut())?;
        let asked = holders.iter().filter_map(HolderInfo::hold_to_ask);
        let asked = asked.map(|(client, hold)| (client, (name.key().to_owned(), hold)));
        let answers = ask_processes(&mut LiveSession::open(self.engine), asked);
        holders.iter_mut().for_each(|holder| holder.add_answers(&answers));
        Ok(())
    }

    /// Returns the waiting callers of a lock. One round trip; two for a queue that is not empty.
    pub(crate) fn waiting(
        &self,
        name: &Name,
        listens_to: ListensTo,
        target: Target,
    ) -> Result<WaitingInfo> {
        let channel = match listens_to {
            ListensTo::OwnChannel => {
                return self.queue(b"LRANGE", name.queue_key(), target);
            }
            ListensTo::Grants => return self.queue(b"ZRANGE", name.waiters_key(), target),
            ListensTo::Nothing => return Ok(WaitingInfo::default()),
            ListensTo::Lock => name.channel(),
            ListensTo::ReadWrite => name.rw_channel(),
            ListensTo::Permits => name.permits_channel(),
            ListensTo::Latch => name.latch_channel(),
        };
        let processes = self.subscribers(&[channel]);
        Ok(WaitingInfo::of_processes(processes.into_iter().sum::<Result<u64>>()?))
    }

    fn queue(&self, verb: &[u8], key: &str, target: Target) -> Result<WaitingInfo> {
        let call = Call::on_key(verb, key.as_bytes(), &[b"0", b"-1"]);
        let reply = self.engine.router.call(call, target, self.limit)?;
        let owners = lock_state::read_owners(reply.value)?;
        let mut queue = lock_state::waiting_callers(&owners);
        self.add_records(&mut ClientRecords::default(), queue.iter_mut())?;
        Ok(WaitingInfo::of_queue(queue))
    }

    /// Returns the servers to ask about something that is not bound to a key.
    pub(super) fn targets(&self) -> Vec<Target> {
        let router = &self.engine.router;
        if router.is_cluster() {
            router.servers().into_iter().map(|(_, it)| Target::Prefer(it)).collect()
        } else {
            vec![Target::Any]
        }
    }

    /// Returns the reply of one server to a command.
    pub(crate) fn ask(&self, call: Call, target: Target) -> Result<Reply> {
        Ok(self.engine.router.call(call, target, self.limit)?.value)
    }

    /// Returns the reply of one server to a command that a query sends to all servers in turn.
    pub(super) fn ask_in_turn(&self, call: Call, target: Target) -> Result<Reply> {
        let servers = self.engine.router.servers().into_iter();
        let at_silent = self.limit_at_silent(servers.map(|(_, connection)| connection.node));
        let routed = self.engine.router.queue(call, target);
        into_reply(self.wait(routed, &at_silent))
    }

    /// Returns the record of a client.
    pub(super) fn ask_for_record(&self, query: Call) -> Result<Reply> {
        let routed = self.engine.router.queue(query, Target::Any);
        into_reply(self.wait(routed, &self.brief()))
    }

    /// Waits for the reply of a node; `at_silent` is the limit if it is known to be silent.
    fn wait(&self, routed: RoutedCall, at_silent: &Limit<'_>) -> Outcome {
        let limit = self.limit_of(routed.connection.node, at_silent);
        self.engine.router.wait(routed, limit).1
    }

    fn limit_of<'l>(&'l self, node: u32, at_silent: &'l Limit<'l>) -> &'l Limit<'l> {
        if self.is_silent(node) { at_silent } else { self.limit }
    }

    fn is_silent(&self, node: u32) -> bool {
        self.engine.is_cluster() && self.engine.router.is_silent(node)
    }

    /// Returns the limit for the replies of silent nodes, if these nodes are asked.
    fn limit_at_silent(&self, mut nodes: impl Iterator<Item = u32>) -> Limit<'a> {
        if nodes.all(|node| self.is_silent(node)) { *self.limit } else { self.brief() }
    }

    fn brief(&self) -> Limit<'a> {
        self.limit.no_later_than(clock::now() + PATIENCE)
    }

    /// Returns what the keys of a lock tell about a release by force; `None` if the lock is free.
    ///
    /// One round trip.
    pub(crate) fn to_force(&self, name: &Name, target: Target) -> Result<Option<LockToForce>> {
        let (asked, call) = (self.engine.asks_now(), describe_call([name], Reading::Any));
        let reply = self.engine.router.call(call, target, self.limit)?;
        let state = reply.value.into_list()?.pop().map(LockState::read).transpose()?.flatten();
        self.lose_absent(asked, name, state.as_ref());
        Ok(state.map(|state| LockToForce {
            kind: state.kind_of_keys(),
            clients: state.holders(Side::Both).iter().filter_map(HolderInfo::client_id).collect(),
            connection: reply.connection,
        }))
    }

    /// Describes the keys that are hashes with an owner field, in the order of the names, which a
    /// server has just told.
    ///
    /// One round trip. Locks in one slot share a script call. If the server refuses such a call
    /// because of a key, each of its locks gets a call, in one more round trip.
    pub(super) fn describe(
        &self,
        names: &[Name],
        reading: Reading,
    ) -> Vec<Result<Option<LockState>>> {
        let (asked, batches) = (self.engine.asks_now(), self.batches(names));
        let queued = self.queue_batches((names, reading), &batches, Target::Any);
        self.receive((names, reading), &batches, queued, asked, &self.brief())
    }

    /// Describes locks, and counts the processes that wait for each. One round trip.
    ///
    /// `first` is the target of the first command. An error concerns one lock.
    pub(super) fn look(
        &self,
        names: &[Name],
        first: Target,
    ) -> Vec<Result<Option<(LockState, u64)>>> {
        let (asked, batches) = (self.engine.asks_now(), self.batches(names));
        let described = (names, Reading::Any);
        let queued = self.queue_batches(described, &batches, first);
        let same = Target::prefer(queued.first().map(|routed| routed.connection));
        let channels: Vec<_> = names.iter().map(Name::channels_of_waiters).collect();
        let subscribers = self.queue_subscribers(channels.as_flattened(), same);
        if self.engine.is_cluster() {
            let counting = subscribers.iter().map(|(_, routed)| routed);
            for routed in queued.iter().chain(counting) {
                self.engine.router.flush(routed.connection);
            }
        }
        let at_silent = self.limit_at_silent(queued.iter().map(|routed| routed.connection.node));
        let states = self.receive(described, &batches, queued, asked, &at_silent);
        let counts = self.count_subscribers(subscribers, channels.as_flattened().len(), &at_silent);
        let mut counts = counts.into_iter();
        let counted = names.iter().zip(channels).zip(states).map(|((name, channels), state)| {
            let counts: Vec<_> = channels.into_iter().zip(counts.by_ref()).collect();
            let Some(state) = state?.filter(LockState::is_lock) else { return Ok(None) };
            let count = counts.into_iter().find(|(channel, _)| *channel == state.channel(name));
            Ok(Some((state, count.map_or(Ok(0), |(_, count)| count)?)))
        });
        counted.collect()
    }

    /// Returns the positions of the names of each script call.
    fn batches(&self, names: &[Name]) -> Vec<Vec<usize>> {
        let slot = |at: &usize| self.engine.router.slot_of(names[*at].key());
        let mut positions: Vec<_> = (0..names.len()).collect();
        positions.sort_by_key(slot);
        let same_slot = positions.chunk_by(|a, b| slot(a) == slot(b));
        same_slot.flat_map(|chunk| chunk.chunks(MAX_LOCKS)).map(<[usize]>::to_vec).collect()
    }

    fn queue_batches(
        &self,
        (names, reading): (&[Name], Reading),
        batches: &[Vec<usize>],
        first: Target,
    ) -> Vec<RoutedCall> {
        let call = |batch: &Vec<usize>| describe_call(batch.iter().map(|at| &names[*at]), reading);
        self.queue_all(batches.iter().map(call), first)
    }

    /// Waits for the descriptions, and returns them in the order of the names.
    fn receive(
        &self,
        (names, reading): (&[Name], Reading),
        batches: &[Vec<usize>],
        queued: Vec<RoutedCall>,
        asked: Asked,
        at_silent: &Limit<'_>,
    ) -> Vec<Result<Option<LockState>>> {
        let router = &self.engine.router;
        let mut states: Vec<_> = names.iter().map(|_| Ok(None)).collect();
        let mut refused: Vec<usize> = Vec::new();
        for (batch, routed) in batches.iter().zip(queued) {
            let limit = self.limit_of(routed.connection.node, at_silent);
            let (_, outcome) = match batch.len() {
                1 => router.wait(routed, limit),
                _ => router.wait_without_retry(routed, limit),
            };
            match into_reply(outcome) {
                Err(error) if batch.len() > 1 && error.is_caused_by_keys() => refused.extend(batch),
                outcome => read_states(batch, outcome, &mut states),
            }
        }
        let again = refused.iter().map(|at| describe_call([&names[*at]], reading));
        for (at, outcome) in refused.iter().zip(self.ask_all(again, self.limit)) {
            read_states(&[*at], outcome, &mut states);
        }
        for (name, state) in names.iter().zip(&states) {
            if let Ok(state) = state {
                self.lose_absent(asked, name, state.as_ref());
            }
        }
        states
    }

    /// Ends the holds of this process that the state of their lock does not show.
    ///
    /// Permits on the same name are no fields of a hash: a semaphore shows them.
    fn lose_absent(&self, asked: Asked, name: &Name, state: Option<&LockState>) {
        if let Some(permits) = state.and_then(LockState::permits) {
            permits.lose_absent(self.engine, asked, name);
        }
        self.engine.lose_absent(asked, name.key(), |hold| {
            let is_shown = |state: &LockState| state.has_hold(hold.owner().hold());
            hold.owner().permits().is_none() && !state.is_some_and(is_shown)
        });
    }

    /// Queues commands about keys, on the same connection at each node.
    fn queue_all(&self, calls: impl Iterator<Item = Call>, first: Target) -> Vec<RoutedCall> {
        let (mut queued, mut target) = (Vec::new(), first);
        for call in calls {
            let routed = self.engine.router.queue(call, target);
            target = Target::Prefer(routed.connection);
            queued.push(routed);
        }
        queued
    }

    fn wait_all(&self, queued: Vec<RoutedCall>, at_silent: &Limit<'_>) -> Vec<Result<Reply>> {
        queued.into_iter().map(|routed| into_reply(self.wait(routed, at_silent))).collect()
    }

    /// Sends commands about keys, then waits for the replies.
    fn ask_all(
        &self,
        calls: impl Iterator<Item = Call>,
        at_silent: &Limit<'_>,
    ) -> Vec<Result<Reply>> {
        self.wait_all(self.queue_all(calls, Target::Any), at_silent)
    }

    /// Returns the number of subscribers of each channel. One round trip.
    pub(super) fn subscribers(&self, channels: &[&str]) -> Vec<Result<u64>> {
        let queued = self.queue_subscribers(channels, Target::Any);
        self.count_subscribers(queued, channels.len(), self.limit)
    }

    /// Queues the commands that count subscribers, each with the positions of its channels.
    ///
    /// The node of a channel's slot has all of its subscribers.
    fn queue_subscribers(&self, channels: &[&str], same: Target) -> Vec<(Vec<usize>, RoutedCall)> {
        let router = &self.engine.router;
        let verb: &[u8] = if self.engine.is_sharded() { b"SHARDNUMSUB" } else { b"NUMSUB" };
        let mut by_node: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, channel) in channels.iter().enumerate() {
            by_node.entry(router.node_of(channel)).or_default().push(at);
        }
        let queue = |positions: Vec<usize>| {
            let (first, rest) = positions.split_first()?;
            let rest: Vec<_> = rest.iter().map(|at| channels[*at].as_bytes()).collect();
            let call = Call::about_channels(verb, channels[*first].as_bytes(), &rest);
            Some((positions, router.queue(call, same)))
        };
        by_node.into_values().filter_map(queue).collect()
    }

    /// Waits for the queued commands; returns the subscribers of each channel.
    fn count_subscribers(
        &self,
        queued: Vec<(Vec<usize>, RoutedCall)>,
        channels: usize,
        at_silent: &Limit<'_>,
    ) -> Vec<Result<u64>> {
        let (positions, queued): (Vec<_>, Vec<_>) = queued.into_iter().unzip();
        let mut counts = vec![Ok(0); channels];
        for (positions, reply) in positions.iter().zip(self.wait_all(queued, at_silent)) {
            let numbers = reply.and_then(read_counts);
            for (place, at) in positions.iter().enumerate() {
                let number = numbers.as_ref().map(|all| all.get(place).copied().unwrap_or(0));
                counts[*at] = number.map_err(Error::clone);
            }
        }
        counts
    }

    /// Sets the records of the clients of all holders. One round trip for those not in `records`.
    ///
    /// Nothing is asked after the limit: a silent node may have used up the time.
    ///
    /// # Errors
    /// `is_server` with the code `NOPERM` and the missing permission, if the server refuses.
    pub(super) fn add_records<'h>(
        &self,
        records: &mut ClientRecords,
        holders: impl Iterator<Item = &'h mut HolderInfo>,
    ) -> Result<()> {
        let (holders, now): (Vec<_>, _) = (holders.collect(), clock::now());
        let clients = holders.iter().filter_map(|holder| Some(holder.hold()?.0));
        let clients: BTreeSet<_> = clients.filter(|_| now < self.limit.end()).collect();
        let node = |client: &Uuid| self.engine.router.node_of(&client_record::key(*client));
        let mut clients: Vec<_> = clients.iter().map(|it| (*it, node(it))).collect();
        clients.retain(|(client, node)| {
            let may_ask = records.unreachable.get(node).is_none_or(|again| *again <= now);
            may_ask && !records.by_client.contains_key(client)
        });
        let queries = clients.iter().map(|(client, _)| client_record::query(*client));
        let replies = self.ask_all(queries, &self.brief());
        for ((client, node), reply) in clients.into_iter().zip(replies) {
            match read_record(reply) {
                Err(error) if self.engine.is_partial(&error) => {
                    records.unreachable.insert(node, clock::now() + UNREACHABLE_INTERVAL);
                }
                record => {
                    records.by_client.insert(client, record?.map(Arc::new));
                }
            }
        }
        for holder in holders {
            let record = holder.hold().and_then(|(client, _)| records.by_client.get(&client));
            holder.set_record(record.cloned().flatten());
        }
        Ok(())
    }
}

/// Asks running processes for details of their holds; a hold is a key and a number.
pub(super) fn ask_processes(
    session: &mut LiveSession,
    asked: impl Iterator<Item = (Uuid, (String, u64))>,
) -> LiveAnswers {
    let mut by_client: BTreeMap<Uuid, Vec<(String, u64)>> = BTreeMap::new();
    asked.for_each(|(client, hold)| by_client.entry(client).or_default().push(hold));
    session.ask(&Vec::from_iter(by_client))
}

/// Asks the processes of the holders of locks, and adds their answers.
pub(super) fn add_answers(session: &mut LiveSession, prefix: &str, found: &mut [LockInfo]) {
    let asked = found.iter().flat_map(|lock| {
        let key = [prefix, lock.name()].concat();
        let holds = lock.holders().iter().filter_map(HolderInfo::hold_to_ask);
        holds.map(move |(client, hold)| (client, (key.clone(), hold)))
    });
    let answers = ask_processes(session, asked);
    found.iter_mut().for_each(|lock| lock.add_answers(&answers));
}

/// Reads the reply about the locks at these positions.
fn read_states(batch: &[usize], reply: Result<Reply>, states: &mut [Result<Option<LockState>>]) {
    match reply.and_then(Reply::into_list) {
        Ok(descriptions) => {
            for (at, description) in batch.iter().zip(descriptions) {
                states[*at] = LockState::read(description);
            }
        }
        Err(error) => batch.iter().for_each(|at| states[*at] = Err(error.clone())),
    }
}

/// Reads numbers of subscribers, in the order of the channels in the command.
fn read_counts(reply: Reply) -> Result<Vec<u64>> {
    let numbers = reply.into_list()?.into_iter().skip(1).step_by(2);
    numbers.map(|number| Ok(u64::try_from(number.into_int()?).unwrap_or(0))).collect()
}

/// Returns the call that describes these locks, which share a slot.
fn describe_call<'n>(
    names: impl IntoIterator<Item = &'n Name, IntoIter: Clone>,
    reading: Reading,
) -> Call {
    let names = names.into_iter();
    let reading: &[u8] = match reading {
        Reading::Look => b"look",
        Reading::LookWithToken => b"token",
        Reading::Any => b"any",
        Reading::Hash => b"hash",
        Reading::Permits => b"permits",
    };
    let tagged: Vec<_> = names.clone().map(Name::tagged).collect();
    let keys = names.map(|name| name.key().as_bytes());
    let args = [reading].into_iter().chain(tagged.iter().map(|it| it.as_bytes()));
    Call::script(&script::LOCK_INFO, keys, args)
}

/// Reads the record of a client; `None` if it has none, or its key is no record.
pub(super) fn read_record(reply: Result<Reply>) -> Result<Option<ClientRecord>> {
    match reply {
        Ok(reply) => Ok(ClientRecord::read(&reply)),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        Err(error) if error.code() == Some("NOPERM") => {
            let advice = "the records of clients need ~leasehold_client:* and +hmget";
            Err(Error::new(ErrorKind::Server, advice).with_code("NOPERM").with_source(error))
        }
        Err(error) => Err(error),
    }
}
