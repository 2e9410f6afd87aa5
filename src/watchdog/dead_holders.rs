//! The holds of processes that are gone.
//!
//! A record of a client may say that its holds end with its process, or that it is an instance of
//! which only one runs ([`Fate`]). Who waits for a lock then has to look for the holder: the
//! watchdog does so at each poll, for all locks that callers of this process wait for, and a call
//! that no poll helps does so when it is refused (`acquire/question.rs`).
//!
//! 1. A script tells the holders of the locks. Their clients are mostly known from the last look.
//! 2. The records of the others are read.
//! 3. If the fate of a client is met, its record is read once more: a client that was closed has
//!    none, and what it has left is left on purpose; another process may belong to it by now.
//! 4. The release of each of its holds is sent in its place. Its script checks the owner, wakes the
//!    waiting callers, and passes a queue lock on. So it does no harm twice, or late.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use super::Watchdog;
use crate::cancel::Limit;
use crate::command::client_record::{self, ClientRecord, Fate};
use crate::command::{details, freed};
use crate::error::{Error, Result};
use crate::kind::holders::{self, FoundHold};
use crate::kind::rules::{self, ReleaseReply};
use crate::local::Local;
use crate::transport::call::Call;
use crate::transport::pool::Target;
use crate::transport::pool::request::{Request, into_reply};
use crate::transport::pool::router::{RoutedCall, Router};
use crate::transport::reply::Reply;
use crate::util::clock::{self, Moment};
use crate::util::log_lines::LINES;
use crate::util::log_target;
use crate::util::sync::Mutex;
use crate::util::system::HashMap;

/// The largest number of locks in one script call: each may have 64 holders.
const MAX_LOCKS: usize = 64;

/// The number of clients that are remembered.
const MAX_CLIENTS: usize = 4096;

/// What the records of other clients say.
#[derive(Debug, Default)]
pub(super) struct Fates {
    by_client: Mutex<HashMap<Uuid, (Fate, Moment)>>,
    /// Whether the server has refused a look. Each refusal is an entry in its ACL log.
    are_refused: AtomicBool,
}

impl Fates {
    /// Returns the fate of a client, if its record was read after `since`, or tells a fate that does
    /// not change: a client may say later that its holds end, or name a group.
    fn known(&self, client: Uuid, since: Moment) -> Option<Fate> {
        let fates = self.by_client.lock();
        let (fate, read) = fates.get(&client)?;
        let stays = match fate {
            Fate::Leases => false,
            Fate::Process { groups, .. } => groups.is_empty(),
            Fate::Succeeded => true,
        };
        (stays || *read >= since).then(|| fate.clone())
    }

    fn note(&self, client: Uuid, fate: Fate, now: Moment) {
        let mut fates = self.by_client.lock();
        if fates.len() >= MAX_CLIENTS {
            fates.clear();
        }
        fates.insert(client, (fate, now));
    }

    /// Notes whether a reply to a look is a missing permission.
    fn note_refusal(&self, reply: &Result<Reply>) {
        let refused = reply.as_ref().err().filter(|error| error.code() == Some("NOPERM"));
        if let Some(error) = refused.filter(|_| !self.are_refused.swap(true, Ordering::Relaxed)) {
            log::debug!(
                logger: LINES, target: log_target::LEASE,
                error:% = error.with_causes(), server = error.server();
                "this client waits for the leases of processes that are gone; permit \
                 ~leasehold_client:* +hmget: {}", error.with_causes()
            );
        }
    }
}

/// A lock, or a semaphore, that callers of this process wait for.
#[derive(Clone, Copy, Debug)]
struct AwaitedLock<'a> {
    local: &'a Arc<Local>,
    has_permits: bool,
}

/// How the caller of a look sends commands: one round trip for all of them.
type Ask<'a> = dyn Fn(Vec<Call>) -> Vec<Result<Reply>> + 'a;

impl Watchdog {
    /// Ends the holds of processes that are gone on the locks that callers wait for.
    pub(super) fn end_holds_of_dead(&self, locals: &[Arc<Local>]) {
        if !self.looks_for_dead() {
            return;
        }
        let awaited = locals.iter().filter(|local| local.awaits_holders());
        let awaited = awaited.map(|it| AwaitedLock { local: it, has_permits: it.awaits_permits() });
        self.end_dead_holds(awaited.collect(), &|calls| ask_privately(&self.router, calls));
    }

    /// Ends the holds of processes that are gone on one lock. Returns whether there were any.
    ///
    /// For a caller that was refused. One round trip, at most twice per poll interval for each lock:
    /// callers that poll by themselves do so after half of it at the earliest.
    pub(crate) fn ends_dead_holds_of(
        &self,
        local: &Arc<Local>,
        has_permits: bool,
        limit: &Limit<'_>,
    ) -> bool {
        let span = self.settings.poll_interval / 2;
        if !self.looks_for_dead() || !local.takes_look(clock::now(), span) {
            return false;
        }
        let ask = |calls| ask_shared(&self.router, calls, limit);
        self.end_dead_holds(vec![AwaitedLock { local, has_permits }], &ask)
    }

    /// Returns whether the client reads the records of others: it has one itself, and the
    /// permission.
    fn looks_for_dead(&self) -> bool {
        self.announcer.is_some() && !self.fates.are_refused.load(Ordering::Relaxed)
    }

    fn end_dead_holds(&self, awaited: Vec<AwaitedLock<'_>>, ask: &Ask<'_>) -> bool {
        let found = self.find_holds(awaited, ask);
        let clients = found.iter().flat_map(|(_, holds)| holds).map(|hold| hold.client);
        let mut dead: BTreeSet<_> = clients.filter(|it| *it != self.settings.client).collect();
        let begun = clock::now();
        self.learn_fates(&dead, ask);
        dead.retain(|client| self.fates.known(*client, begun).is_some_and(|fate| fate.is_met()));
        if dead.is_empty() {
            return false;
        }
        let records = self.read_records(dead.into_iter().collect(), ask);
        let is_dead = |record: &ClientRecord| self.fate(record).is_met();
        let dead: HashMap<_, _> =
            records.into_iter().filter_map(|(it, record)| Some((it, record?))).collect();
        let holds = found.iter().flat_map(|(local, holds)| holds.iter().map(move |it| (local, it)));
        let holds: Vec<_> = holds
            .filter_map(|(local, hold)| Some((*local, hold, dead.get(&hold.client)?)))
            .filter(|(_, _, record)| is_dead(record))
            .collect();
        let replies = ask(holds.iter().map(|(local, hold, _)| release(local, hold)).collect());
        let ended = holds.into_iter().zip(replies).filter(|((local, hold, record), reply)| {
            let reply = reply.clone().and_then(rules::read_release);
            let ends = reply.is_ok_and(|reply| reply != ReleaseReply::NotHeld);
            if ends {
                self.ended(local, hold, record);
            }
            ends
        });
        ended.count() > 0
    }

    /// Returns some holders of each lock.
    fn find_holds<'l>(
        &self,
        mut awaited: Vec<AwaitedLock<'l>>,
        ask: &Ask<'_>,
    ) -> Vec<(&'l Arc<Local>, Vec<FoundHold>)> {
        let slot = |it: &AwaitedLock<'_>| self.slot_of(it.local);
        awaited.sort_by_key(slot);
        let same_slot = awaited.chunk_by(|a, b| slot(a) == slot(b));
        let batches: Vec<_> = same_slot.flat_map(|chunk| chunk.chunks(MAX_LOCKS)).collect();
        let look = |batch: &&[AwaitedLock<'_>]| {
            holders::look(batch.iter().map(|it| (it.local.name(), it.has_permits)))
        };
        let replies = ask(batches.iter().map(look).collect());
        replies.iter().for_each(|reply| self.fates.note_refusal(reply));
        let found = batches.into_iter().zip(replies).filter_map(|(batch, reply)| {
            let holds = reply.and_then(holders::read).unwrap_or_default();
            let locals = batch.iter().map(|it| it.local);
            (holds.len() == batch.len()).then(|| locals.zip(holds))
        });
        found.flatten().collect()
    }

    /// Reads the records of clients that are not known.
    fn learn_fates(&self, clients: &BTreeSet<Uuid>, ask: &Ask<'_>) {
        let now = clock::now();
        let unknown = clients.iter().filter(|it| self.fates.known(**it, now).is_none()).copied();
        for (client, record) in self.read_records(unknown.collect(), ask) {
            // A record that is missing may be written a moment later.
            if let Some(record) = record {
                self.fates.note(client, self.fate(&record), now);
            }
        }
    }

    fn read_records(&self, clients: Vec<Uuid>, ask: &Ask<'_>) -> Vec<(Uuid, Option<ClientRecord>)> {
        if clients.is_empty() {
            return Vec::new();
        }
        let replies = ask(clients.iter().map(|client| client_record::query(*client)).collect());
        replies.iter().for_each(|reply| self.fates.note_refusal(reply));
        let records = replies.into_iter().map(|reply| ClientRecord::read(&reply.ok()?));
        clients.into_iter().zip(records).collect()
    }

    /// Returns the fate of the client with this record, as this client sees it.
    fn fate(&self, record: &ClientRecord) -> Fate {
        record.fate(&self.settings.own_record)
    }

    /// Notes that a hold has been ended, and tells its client, which may run all the same.
    fn ended(&self, local: &Arc<Local>, hold: &FoundHold, record: &ClientRecord) {
        let (name, kind) = (local.name().given(), hold.rules.kind());
        log::info!(
            logger: LINES, target: log_target::LEASE, lock = &**name, kind:?;
            "the lock {name:?} was released for its holder {} (host {}, pid {}), which is gone",
            hold.owner, record.host().unwrap_or("?"), record.pid().unwrap_or(0)
        );
        self.settings.events.stats().series(|| (kind.short_name(), None)).freed();
        let (channel, message) =
            (details::wake_channel(hold.client), freed::message(local.name().key()));
        let tell = Call::command(&[b"PUBLISH", channel.as_bytes(), &message]);
        self.router.send_background(Request::background_once(tell), None);
        local.may_be_free();
    }
}

/// Returns the release of a hold. An election has its own, which its candidates know.
fn release(local: &Local, hold: &FoundHold) -> Call {
    let of_candidates = local.rules_of_grants().filter(|it| it.kind() == hold.rules.kind());
    of_candidates.unwrap_or(hold.rules).release(local.name(), &hold.owner)
}

/// Sends commands over the connections of the watchdog, with its short time-outs.
fn ask_privately(router: &Router, calls: Vec<Call>) -> Vec<Result<Reply>> {
    let queued: Vec<_> = calls.into_iter().map(|call| router.queue_private(call)).collect();
    let wait = |routed| into_reply(router.wait_without_retry(routed, &Limit::none()).1);
    let reply = |queued: std::result::Result<RoutedCall, Option<Error>>| {
        queued.map_err(|error| error.unwrap_or_else(Error::not_connected)).and_then(wait)
    };
    queued.into_iter().map(reply).collect()
}

/// Sends commands over the connections of callers.
fn ask_shared(router: &Router, calls: Vec<Call>, limit: &Limit<'_>) -> Vec<Result<Reply>> {
    let queued: Vec<_> = calls.into_iter().map(|call| router.queue(call, Target::Any)).collect();
    queued
        .into_iter()
        .map(|routed| into_reply(router.wait_without_retry(routed, limit).1))
        .collect()
}
