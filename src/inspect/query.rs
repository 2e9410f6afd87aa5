//! The commands of a query, each with a response limit. Commands to one node go in one write.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use super::holder::HolderInfo;
use super::info::WaitingInfo;
use super::live::{LiveDetails, LiveSession};
use super::lock_state::{self, LockState, Side};
use crate::cancel::Limit;
use crate::command::call::Call;
use crate::command::client_record::{self, ClientRecord};
use crate::command::name::Name;
use crate::command::reply::Reply;
use crate::command::script;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::kind::rules::ListensTo;
use crate::pool::Target;
use crate::pool::request::{Failure, Outcome};
use crate::pool::router::RoutedCall;
use crate::topology::route::Generation;

/// The largest number of locks in one script call, which takes the server about 0.2 ms.
const MAX_LOCKS: usize = 32;

/// The records of clients that a query has read. `None`: the client has no record.
pub(super) type ClientRecords = BTreeMap<Uuid, Option<Arc<ClientRecord>>>;

/// The answers of running processes, by client and number of the hold.
pub(super) type HoldDetails = HashMap<(Uuid, u64), LiveDetails>;

/// Sends the commands of one query.
#[derive(Debug)]
pub(crate) struct Inspector<'a> {
    engine: &'a Arc<Engine>,
    limit: &'a Limit<'a>,
}

/// The data of each lock that a script call reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// The holders of a lock with a known name.
    Look,
    /// Everything, unless the hash is not that of a lock.
    Search,
}

impl<'a> Inspector<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, limit: &'a Limit<'a>) -> Inspector<'a> {
        Inspector { engine, limit }
    }

    /// Returns the number of topology changes so far.
    pub(crate) fn generation(&self) -> Generation {
        self.engine.router.generation()
    }

    /// Returns the holders on one side of a lock.
    ///
    /// Two round trips, one if the lock has no holder; then asks the running processes.
    pub(crate) fn holders(
        &self,
        name: &Name,
        side: Side,
        target: Target,
    ) -> Result<Vec<HolderInfo>> {
        let call = describe_call(&[name], Reading::Look);
        let reply = self.engine.router.call(call, target, self.limit)?;
        let state = reply.value.into_list()?.pop().map(LockState::read).transpose()?;
        let mut holders = state.flatten().map_or_else(Vec::new, |state| state.holders(side));
        self.add_facts(name, &mut holders)?;
        Ok(holders)
    }

    /// Adds the records of the clients, and the answers of the running processes.
    pub(super) fn add_facts(&self, name: &Name, holders: &mut [HolderInfo]) -> Result<()> {
        self.add_records(&mut ClientRecords::new(), holders.iter_mut())?;
        let asked = holders.iter().filter_map(HolderInfo::hold_to_ask);
        let asked = asked.map(|(client, hold)| (client, (name.key().to_owned(), hold)));
        let details = ask_processes(&mut LiveSession::open(self.engine), asked);
        holders.iter_mut().for_each(|holder| holder.add_details(&details));
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
        let processes = self.subscribers(&[channel])?;
        Ok(WaitingInfo::of_processes(processes.into_iter().sum()))
    }

    fn queue(&self, verb: &[u8], key: &str, target: Target) -> Result<WaitingInfo> {
        let call = Call::on_key(verb, key.as_bytes(), &[b"0", b"-1"]);
        let reply = self.engine.router.call(call, target, self.limit)?;
        let owners = lock_state::read_owners(reply.value)?;
        let mut queue = lock_state::waiting_callers(&owners);
        self.add_records(&mut ClientRecords::new(), queue.iter_mut())?;
        Ok(WaitingInfo::of_queue(queue))
    }

    /// Returns the servers to ask about something that is not bound to a key.
    pub(super) fn targets(&self) -> Vec<Target> {
        let router = &self.engine.router;
        match router.is_cluster() {
            true => router.servers().into_iter().map(|(_, it)| Target::Prefer(it)).collect(),
            false => vec![Target::Any],
        }
    }

    /// Returns the reply of one server to a command.
    pub(super) fn ask(&self, call: Call, target: Target) -> Result<Reply> {
        Ok(self.engine.router.call(call, target, self.limit)?.value)
    }

    /// Describes those of the keys that are hashes with an owner field.
    ///
    /// One round trip. Locks in one slot share a script call. If the server refuses such a call
    /// because of a key, each of its locks gets a call, in one more round trip.
    pub(super) fn describe(&self, mut names: Vec<Name>) -> Result<Vec<(Name, LockState)>> {
        let router = &self.engine.router;
        let slot = |name: &Name| router.slot_of(name.key());
        names.sort_by_key(slot);
        let chunks = names.chunk_by(|a, b| slot(a) == slot(b));
        let batches: Vec<&[Name]> = chunks.flat_map(|chunk| chunk.chunks(MAX_LOCKS)).collect();
        let mut states = Vec::with_capacity(names.len());
        let mut refused: Vec<&Name> = Vec::new();
        for (batch, outcome) in batches.iter().zip(self.send_batches(&batches)) {
            match outcome {
                Err(error) if batch.len() > 1 && error.is_caused_by_keys() => {
                    refused.extend(*batch)
                }
                outcome => states.extend(batch.iter().zip(outcome?.into_list()?)),
            }
        }
        for (name, outcome) in refused.iter().zip(self.send_each(&refused)) {
            states.extend(outcome?.into_list()?.into_iter().map(|reply| (*name, reply)));
        }
        let mut by_key: BTreeMap<String, Reply> =
            states.into_iter().map(|(name, reply)| (name.key().to_owned(), reply)).collect();
        let mut described = Vec::with_capacity(by_key.len());
        for name in names {
            let reply = by_key.remove(name.key()).unwrap_or(Reply::List(Vec::new()));
            described.extend(LockState::read(reply)?.map(|state| (name, state)));
        }
        Ok(described)
    }

    fn send_batches(&self, batches: &[&[Name]]) -> Vec<Result<Reply>> {
        let router = &self.engine.router;
        let call = |batch: &&[Name]| describe_call(&Vec::from_iter(*batch), Reading::Search);
        let queued = self.queue_all(batches.iter().map(call));
        let wait = |(batch, routed): (&&[Name], RoutedCall)| match batch.len() {
            1 => router.wait(routed, self.limit).1,
            _ => router.wait_without_retry(routed, self.limit).1,
        };
        batches.iter().zip(queued).map(wait).map(into_reply).collect()
    }

    fn send_each(&self, names: &[&Name]) -> Vec<Result<Reply>> {
        self.ask_all(names.iter().map(|name| describe_call(&[name], Reading::Search)))
    }

    /// Queues commands about keys, on the same connection at each node.
    fn queue_all(&self, calls: impl Iterator<Item = Call>) -> Vec<RoutedCall> {
        let mut target = Target::Any;
        let queue = |call| {
            let routed = self.engine.router.queue(call, target);
            target = Target::Prefer(routed.connection);
            routed
        };
        calls.map(queue).collect()
    }

    fn wait_all(&self, queued: Vec<RoutedCall>) -> Vec<Result<Reply>> {
        let wait = |routed| self.engine.router.wait(routed, self.limit).1;
        queued.into_iter().map(wait).map(into_reply).collect()
    }

    /// Sends commands about keys, then waits for the replies.
    fn ask_all(&self, calls: impl Iterator<Item = Call>) -> Vec<Result<Reply>> {
        self.wait_all(self.queue_all(calls))
    }

    /// Returns the number of subscribers of each channel. One round trip.
    pub(super) fn subscribers(&self, channels: &[&str]) -> Result<Vec<u64>> {
        let mut counts = vec![0; channels.len()];
        if channels.is_empty() {
            return Ok(counts);
        }
        let verb: &[u8] = match self.engine.is_sharded() {
            true => b"SHARDNUMSUB",
            false => b"NUMSUB",
        };
        let names = channels.iter().map(|channel| channel.as_bytes());
        let parts: Vec<&[u8]> = [b"PUBSUB", verb].into_iter().chain(names).collect();
        let queue = |target| self.engine.router.queue(Call::command(&parts), target);
        let queued = self.targets().into_iter().map(queue).collect();
        for reply in self.wait_all(queued) {
            // The reply has the channels in the order of the command, each before its number.
            let numbers = reply?.into_list()?.into_iter().skip(1).step_by(2);
            for (count, number) in counts.iter_mut().zip(numbers) {
                *count += u64::try_from(number.into_int()?).unwrap_or(0);
            }
        }
        Ok(counts)
    }

    /// Sets the records of the clients of all holders. One round trip for those not in `known`.
    ///
    /// # Errors
    /// `is_server` with the code `NOPERM` and the missing permission, if the server refuses.
    pub(super) fn add_records<'h>(
        &self,
        known: &mut ClientRecords,
        holders: impl Iterator<Item = &'h mut HolderInfo>,
    ) -> Result<()> {
        let holders: Vec<_> = holders.collect();
        let clients = holders.iter().filter_map(|holder| Some(holder.hold()?.0));
        let clients: BTreeSet<_> = clients.filter(|client| !known.contains_key(client)).collect();
        let replies = self.ask_all(clients.iter().map(|client| client_record::query(*client)));
        for (client, reply) in clients.into_iter().zip(replies) {
            known.insert(client, read_record(reply)?.map(Arc::new));
        }
        for holder in holders {
            let record = holder.hold().and_then(|(client, _)| known.get(&client).cloned());
            holder.set_record(record.flatten());
        }
        Ok(())
    }
}

/// Asks running processes for details of their holds; a hold is a key and a number.
pub(super) fn ask_processes(
    session: &mut LiveSession,
    asked: impl Iterator<Item = (Uuid, (String, u64))>,
) -> HoldDetails {
    let mut by_client: BTreeMap<Uuid, Vec<(String, u64)>> = BTreeMap::new();
    asked.for_each(|(client, hold)| by_client.entry(client).or_default().push(hold));
    let answers = session.ask(&Vec::from_iter(by_client)).into_iter();
    answers.map(|(client, hold, details)| ((client, hold), details)).collect()
}

/// Returns the call that describes these locks, which share a slot.
fn describe_call(names: &[&Name], reading: Reading) -> Call {
    let reading: &[u8] = match reading {
        Reading::Look => b"look",
        Reading::Search => b"search",
    };
    let tagged: Vec<_> = names.iter().map(|name| name.tagged()).collect();
    let keys = names.iter().map(|name| name.key().as_bytes());
    let args = [reading].into_iter().chain(tagged.iter().map(|it| it.as_bytes()));
    Call::script(&script::LOCK_INFO, keys, args)
}

fn into_reply(outcome: Outcome) -> Result<Reply> {
    outcome.map(|reply| reply.value).map_err(Failure::into_error)
}

/// Reads the record of a client; `None` if it has none, or its key is no record.
fn read_record(reply: Result<Reply>) -> Result<Option<ClientRecord>> {
    match reply {
        Ok(reply) => Ok(ClientRecord::read(&reply)),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        Err(error) if error.code() == Some("NOPERM") => Err(forbidden(&error)),
        Err(error) => Err(error),
    }
}

/// Returns the error for a missing permission to read the records of clients.
fn forbidden(error: &Error) -> Error {
    const ADVICE: &str = "the records of clients need ~leasehold_client:* and +hmget";
    let forbidden = Error::new(ErrorKind::Server, format!("{ADVICE}: {error}"));
    forbidden.with_code("NOPERM").with_source(error.clone())
}
