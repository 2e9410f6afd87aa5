//! The parts of a handle that semaphores and latches share: name, client and settings.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{AcquireCall, AcquireOptions, HoldHandle, LockContext, checked_lease};
use crate::cancel::{CancelToken, Limit};
use crate::command::call::Call;
use crate::command::name::Name;
use crate::config;
use crate::count::{CountCall, CountChange, CountRequest, read_count};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{Events, Kind};
use crate::inspect::info::WaitingInfo;
use crate::inspect::query::Inspector;
use crate::kind::rules::{KindRules, ListensTo, PermitRequest};
use crate::local::hold::HoldTerms;
use crate::pool::Target;
use crate::stats::CallRecord;
use crate::util::clock::Patience;

/// The name, the client and the settings of a handle. A clone shares all of them.
#[derive(Clone)]
pub(super) struct SharedHandle {
    name: Arc<str>,
    /// The shared state of the name, or the error for an invalid name or setting.
    context: Result<Arc<LockContext>>,
    cancel: Option<CancelToken>,
    terms: HoldTerms,
    kind: Kind,
}

impl SharedHandle {
    pub(super) fn new(engine: Arc<Engine>, name: String, kind: Kind) -> SharedHandle {
        let name: Arc<str> = name.into();
        let context = engine.local(&name).map(|local| Arc::new(LockContext { engine, local }));
        SharedHandle { name, context, cancel: None, terms: HoldTerms::default(), kind }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes every call of the handle fail if `check` fails.
    pub(super) fn require(&mut self, check: impl FnOnce(&LockContext) -> Result<()>) {
        if let Ok(context) = &self.context
            && let Err(error) = check(context)
        {
            self.context = Err(error);
        }
    }

    pub(super) fn set_cancel(&mut self, token: &CancelToken) {
        self.cancel = Some(token.clone());
    }

    pub(super) fn set_label(&mut self, label: &str) {
        self.require(|_| config::check_text("the label", label));
        if let Ok(context) = &self.context {
            self.terms = self.terms.with_label(context.engine.events.stats().label(label));
        }
    }

    pub(super) fn set_listener(&mut self, listener: Arc<dyn Events>) {
        let keep = |context: &Arc<LockContext>| {
            context.engine.router.check_process()?;
            context.engine.events.listener(listener)
        };
        match self.context.as_ref().map(keep) {
            Ok(Ok(listener)) => self.terms = self.terms.with_listener(listener),
            Ok(Err(error)) => self.context = Err(error),
            Err(_) => {}
        }
    }

    /// Adds the name to an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.with_lock_name(Arc::clone(&self.name))
    }

    pub(super) fn context(&self) -> Result<&Arc<LockContext>> {
        self.context.as_ref().map_err(|error| self.named(error.clone()))
    }

    /// Changes the terms of the holds and waits of this handle.
    pub(super) fn change_terms(&mut self, change: impl FnOnce(&HoldTerms) -> HoldTerms) {
        self.terms = change(&self.terms);
    }

    /// Takes permits; returns `None` if the patience ended, as a verb of a lock does.
    pub(super) fn acquire(
        &self,
        rules: &'static dyn KindRules,
        lease: Option<Duration>,
        permits: PermitRequest,
        patience: Patience,
    ) -> Result<Option<HoldHandle>> {
        let context = self.context()?;
        let series = || self.terms.series_key(self.kind);
        let clients = [context.engine.events.stats().series(series)];
        let record = CallRecord::new(&clients);
        let options = AcquireOptions {
            lease: lease.map(checked_lease).transpose().map_err(|error| self.named(error))?,
            owned: true,
            cancel: self.cancel.as_ref(),
            permits: Some(permits),
            record: Some(&record),
            ..AcquireOptions::new(patience)
        };
        let call = AcquireCall { context, rules, holder_name: None, terms: &self.terms, options };
        record.end(patience, call.acquire())
    }

    /// Runs a query within one response time-out, behind an unanswered release of this process.
    pub(super) fn inspect<T>(
        &self,
        query: impl FnOnce(&Inspector<'_>, &Name, Target) -> Result<T>,
    ) -> Result<T> {
        self.run(|context, limit| {
            let target = Target::prefer(context.local.unanswered_release());
            query(&Inspector::new(&context.engine, limit), context.local.name(), target)
        })
    }

    /// Runs a call that does not wait, within one response time-out.
    fn run<T>(&self, call: impl FnOnce(&LockContext, &Limit<'_>) -> Result<T>) -> Result<T> {
        let context = self.context()?;
        let engine = &context.engine;
        let run = || {
            engine.check_open()?;
            let _active = engine.begin_call();
            let limit = engine.limit(engine.response_limit());
            engine.wait_until_ready(&limit)?;
            call(context, &limit)
        };
        run().map_err(|error| self.named(error))
    }

    /// Makes a change, and returns the number in the reply. One round trip.
    pub(super) fn change(&self, change: CountChange) -> Result<i64> {
        self.run(|context, limit| CountRequest::new(context, change).run(limit))
    }

    /// Returns the count in Redis, 0 without a key. One round trip.
    pub(super) fn count(&self) -> Result<i64> {
        self.run(|context, limit| {
            let get = Call::on_key(b"GET", context.local.name().key().as_bytes(), &[]);
            read_count(context.engine.router.call(get, Target::Any, limit)?.value)
        })
    }

    /// Returns the clients that listen on the channel.
    pub(super) fn waiting(&self, listens_to: ListensTo) -> Result<WaitingInfo> {
        self.inspect(|inspector, name, target| inspector.waiting(name, listens_to, target))
    }

    /// Runs a call that waits, and counts its outcome.
    pub(super) fn wait(
        &self,
        patience: Patience,
        wait: impl FnOnce(&CountCall<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let context = self.context()?;
        let series = || self.terms.series_key(self.kind);
        let clients = [context.engine.events.stats().series(series)];
        let record = CallRecord::new(&clients);
        let call = CountCall {
            context,
            kind: self.kind,
            terms: &self.terms,
            cancel: self.cancel.as_ref(),
            patience,
            record: &record,
        };
        let outcome = wait(&call).map(|is_met| is_met.then_some(()));
        Ok(record.end(patience, outcome)?.is_some())
    }

    /// Writes the fields that the `Debug` forms of all handles show.
    pub(super) fn fmt(&self, name: &str, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(name)
            .field("name", &self.name)
            .field("label", &self.terms.label())
            .finish_non_exhaustive()
    }
}
