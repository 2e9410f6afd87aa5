//! The parts of a handle that locks, semaphores and latches share: name, client and settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{AcquireCall, AcquireOptions, HoldHandle, LockContext, Taken, checked_lease};
use crate::cancel::{CancelToken, Limit, ResponseLimit};
use crate::command::name::Name;
use crate::config::{self, LONGEST_LEASE, SHORTEST_LEASE, SHORTEST_RENEWED_LEASE};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Events, Kind};
use crate::inspect::info::WaitingInfo;
use crate::inspect::query::Inspector;
use crate::kind::rules::{KindRules, ListensTo, PermitRequest};
use crate::local::Local;
use crate::local::hold::HoldSettings;
use crate::stats::{CallRecord, Series};
use crate::transport::pool::Target;
use crate::util::clock::Patience;

/// The name, the client and the settings of a handle. A clone shares all of them.
#[derive(Clone)]
pub(crate) struct SharedHandle {
    name: Arc<str>,
    /// The shared state of the name, or the error for an invalid name or setting.
    context: Result<Arc<LockContext>>,
    /// The kind in events and statistics.
    kind: Kind,
    /// The fixed lease, without which the watchdog renews a hold.
    lease: Option<Duration>,
    cancel: Option<CancelToken>,
    settings: HoldSettings,
}

/// The settings. An invalid setting makes the calls of the handle fail.
impl SharedHandle {
    pub(crate) fn new(engine: Arc<Engine>, name: String, kind: Kind) -> SharedHandle {
        let name: Arc<str> = name.into();
        let local = engine.local(&name);
        SharedHandle::of_local(engine, name, kind, local)
    }

    /// Returns the handle for the forced release of a lock of any kind, also of Redisson's.
    pub(crate) fn of_any_lock(engine: Arc<Engine>, name: String) -> SharedHandle {
        let name: Arc<str> = name.into();
        let local = engine.local_of_any_lock(&name);
        SharedHandle::of_local(engine, name, Kind::default(), local)
    }

    fn of_local(
        engine: Arc<Engine>,
        name: Arc<str>,
        kind: Kind,
        local: Result<Arc<Local>>,
    ) -> SharedHandle {
        let context = local.map(|local| Arc::new(LockContext { engine, local }));
        SharedHandle {
            name,
            context,
            kind,
            lease: None,
            cancel: None,
            settings: HoldSettings::default(),
        }
    }

    /// Makes every call of the handle fail if `check` fails. The first error stays.
    pub(crate) fn require(&mut self, check: impl FnOnce(&LockContext) -> Result<()>) {
        if let Ok(context) = &self.context
            && let Err(error) = check(context)
        {
            self.context = Err(error);
        }
    }

    pub(crate) fn set_kind(&mut self, kind: Kind) {
        self.kind = kind;
    }

    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.lease = Some(lease);
    }

    /// Replaces a fixed lease, as a fixed lease set later replaces this one.
    pub(crate) fn set_renewed_lease(&mut self, lease: Duration) {
        self.lease = None;
        let lease = lease.min(LONGEST_LEASE);
        self.require(|_| {
            if lease < SHORTEST_RENEWED_LEASE {
                return Err(Error::configuration("the renewed lease is below 100 ms"));
            }
            Ok(())
        });
        if let Ok(context) = &self.context {
            context.engine.watchdog.expect_lease(lease);
            self.settings = self.settings.with_renewed_lease(lease);
        }
    }

    pub(crate) fn set_reader_preference(&mut self) {
        self.settings = self.settings.with_reader_preference();
    }

    pub(crate) fn set_cancel(&mut self, token: &CancelToken) {
        self.cancel = Some(token.clone());
    }

    pub(crate) fn set_max_hold(&mut self, max_hold: Duration) {
        self.settings = self.settings.with_max_hold(max_hold.min(LONGEST_LEASE));
    }

    pub(crate) fn set_min_hold(&mut self, min_hold: Duration) {
        self.settings = self.settings.with_min_hold(min_hold.min(LONGEST_LEASE));
    }

    pub(crate) fn set_linger(&mut self, linger: Duration) {
        self.settings = self.settings.with_linger(linger);
    }

    pub(crate) fn set_weight(&mut self, weight: u32) {
        self.require(|_| match weight {
            1..=10 => Ok(()),
            _ => Err(Error::configuration("the weight of a waiter must be from 1 to 10")),
        });
        self.settings = self.settings.with_weight(weight);
    }

    pub(crate) fn set_label(&mut self, label: &str) {
        self.require(|_| config::check_text("the label", label));
        if let Ok(context) = &self.context {
            self.settings = self.settings.with_label(context.engine.events.stats().label(label));
        }
    }

    pub(crate) fn set_listener(&mut self, listener: Arc<dyn Events>) {
        let Ok(context) = &self.context else { return };
        let LockContext { engine, .. } = &**context;
        match engine.router.check_process().and_then(|()| engine.events.listener(listener)) {
            Ok(listener) => self.settings = self.settings.with_listener(listener),
            Err(error) => self.context = Err(error),
        }
    }
}

impl SharedHandle {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn cancel(&self) -> Option<&CancelToken> {
        self.cancel.as_ref()
    }

    pub(crate) fn settings(&self) -> &HoldSettings {
        &self.settings
    }

    pub(crate) fn context(&self) -> Result<&Arc<LockContext>> {
        self.context.as_ref().map_err(|error| self.named(error.clone()))
    }

    /// Adds the name to an error.
    pub(crate) fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(&self.name))
    }

    /// Returns the statistics of the client for the kind and the label of this handle.
    pub(crate) fn series(&self) -> Result<Series<'_>> {
        let stats = self.context()?.engine.events.stats();
        Ok(stats.series(|| self.settings.series_key(self.kind)))
    }

    /// Returns the call of a verb that acquires. The handle's settings replace absent options.
    pub(crate) fn acquire_call<'a>(
        &'a self,
        rules: &'static dyn KindRules,
        holder_name: Option<&'a Arc<str>>,
        options: &AcquireOptions<'a>,
    ) -> Result<AcquireCall<'a>> {
        let named = |error| self.named(error);
        let context = self.context()?;
        let lease = options.lease.or(self.lease).map(checked_lease).transpose().map_err(named)?;
        let cancel = options.cancel.or(self.cancel());
        let options = AcquireOptions { lease, cancel, ..*options };
        Ok(AcquireCall { context, rules, holder_name, settings: &self.settings, options })
    }

    /// Takes a hold that belongs to no thread, and counts the call.
    ///
    /// Returns `None` if the patience ended, as a verb of a lock does.
    pub(crate) fn acquire_owned(
        &self,
        rules: &'static dyn KindRules,
        permits: Option<PermitRequest>,
        patience: Patience,
    ) -> Result<Option<HoldHandle>> {
        self.take_owned(rules, permits, patience, |taken| Ok(taken.hold()))
    }

    /// Takes a hold as [`acquire_owned`](SharedHandle::acquire_owned) does, or what there is in its
    /// place. `read` makes the outcome of it.
    pub(crate) fn take_owned<T>(
        &self,
        rules: &'static dyn KindRules,
        permits: Option<PermitRequest>,
        patience: Patience,
        read: impl FnOnce(Taken) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let clients = [self.series()?];
        let record = CallRecord::new(&clients);
        let options = AcquireOptions {
            owned: true,
            permits,
            record: Some(&record),
            ..AcquireOptions::new(patience)
        };
        let taken = self.acquire_call(rules, None, &options)?.take();
        record.end(patience, taken.and_then(read))
    }

    /// Fails if the limit for renewals is too short.
    pub(crate) fn check_max_hold(&self) -> Result<()> {
        if self.settings.max_hold().is_some_and(|max_hold| max_hold < SHORTEST_LEASE) {
            let text = "the longest hold must be at least 10 ms long";
            Err(self.named(Error::configuration(text)))
        } else {
            Ok(())
        }
    }

    /// Fails if the linger time is more than half of a renewed lease.
    pub(crate) fn check_linger(&self) -> Result<()> {
        let Some(linger) = self.settings.linger().filter(|_| self.lease.is_none()) else {
            return Ok(());
        };
        let of_client = self.context()?.engine.settings.watchdog_timeout;
        if linger > self.settings.renewed_lease().unwrap_or(of_client) / 2 {
            let text = "the linger time is more than half of the lease";
            return Err(self.named(Error::configuration(text)));
        }
        Ok(())
    }

    /// Returns the response limit of a call that begins now without a deadline.
    pub(crate) fn response_limit(&self) -> ResponseLimit {
        self.context
            .as_ref()
            .map_or_else(|_| ResponseLimit::over(), |context| context.engine.response_limit())
    }

    /// Runs a call that does not wait for others, within a response limit.
    pub(crate) fn run<T>(
        &self,
        response_limit: ResponseLimit,
        call: impl FnOnce(&LockContext, &Limit<'_>) -> Result<T>,
    ) -> Result<T> {
        let context = self.context()?;
        let engine = &context.engine;
        let run = || {
            engine.check_open()?;
            let _active = engine.begin_call();
            let limit = engine.limit(response_limit);
            engine.wait_until_ready(|| limit)?;
            call(context, &limit)
        };
        run().map_err(|error| self.named(error))
    }

    /// Runs a query within one response time-out, behind an unanswered release of this process.
    pub(crate) fn inspect<T>(
        &self,
        query: impl FnOnce(&Inspector<'_>, &Name, Target) -> Result<T>,
    ) -> Result<T> {
        self.run(self.response_limit(), |context, limit| {
            let target = Target::prefer(context.local.unanswered_release());
            query(&Inspector::new(&context.engine, limit), context.local.name(), target)
        })
    }

    /// Returns the callers that wait.
    pub(crate) fn waiting(&self, listens_to: ListensTo) -> Result<WaitingInfo> {
        self.inspect(|inspector, name, target| inspector.waiting(name, listens_to, target))
    }

    /// Writes the fields that the `Debug` forms of all handles show.
    pub(crate) fn fmt(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("kind", &format_args!("{}", self.kind))
            .field("name", &self.name)
            .field("lease", &self.lease)
            .field("label", &self.settings.label())
            .finish_non_exhaustive()
    }
}

/// Returns the error of an endless wait that ended without a result, which does not happen.
pub(crate) fn endless_wait_ended() -> Error {
    Error::new(ErrorKind::Timeout, "a wait without a time limit ended")
}
