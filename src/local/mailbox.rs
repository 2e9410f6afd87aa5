//! The mailbox of a caller that waits: what others have done for it since its last step.
//!
//! Whoever has news for a caller posts it and wakes the caller; the caller looks before each of its
//! steps ([`crate::wait`]). So a wake-up carries its reason, and a caller that was woken for
//! nothing sleeps again. Better news replaces worse: a hold that another thread hands off, a grant
//! by message, then the request to ask the server.
//!
//! A caller gets news only through its registration: its place in the queue of this process, among
//! the callers for grants (`waiters.rs`), or among those for permits (`permit_queue.rs`). News is
//! posted under the mutex of the registration. So a caller that looks after the end of its
//! registration misses nothing.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use crate::local::hold::Hold;
use crate::local::waiters::WaiterGrant;
use crate::util::sync::{Mutex, Parker, thread_local};

#[cfg(all(test, leasehold_model))]
mod model;

/// What others have done for a caller.
#[derive(Debug, Default)]
pub(crate) enum News {
    #[default]
    None,
    /// A reason to ask the server: a poll found the lock free or got no reply, permits may be free,
    /// or the caller may have lost its place in a queue lock.
    Ask,
    /// A server has granted the lock by message.
    Granted(WaiterGrant),
    /// Another thread of this process has handed its hold off.
    HandedOff(Arc<Hold>),
}

/// The news of one caller, and the parker on which it sleeps.
#[derive(Debug)]
pub(crate) struct Mailbox {
    parker: Arc<Parker>,
    news: Mutex<News>,
}

impl Mailbox {
    /// Returns an empty mailbox whose news wakes the calling thread.
    ///
    /// A thread uses its mailbox again once nobody else has it, so most calls allocate none.
    pub(crate) fn mine() -> Arc<Mailbox> {
        thread_local!(static MINE: RefCell<Arc<Mailbox>> = RefCell::new(Mailbox::new()));
        let empty = |mine: &RefCell<Arc<Mailbox>>| {
            let mut mine = mine.borrow_mut();
            match Arc::get_mut(&mut mine) {
                Some(unused) => *unused.news.get_mut() = News::None,
                // Another has it: a call of this thread that runs a callback, which makes this
                // call, or a thread that has just handed its hold off.
                None => *mine = Mailbox::new(),
            }
            Arc::clone(&mine)
        };
        MINE.try_with(empty).unwrap_or_else(|_| Mailbox::new())
    }

    fn new() -> Arc<Mailbox> {
        Arc::new(Mailbox { parker: Parker::mine(), news: Mutex::default() })
    }

    pub(crate) fn parker(&self) -> &Arc<Parker> {
        &self.parker
    }

    /// Wakes the caller without news, to look at the state of the lock.
    pub(super) fn wake(&self) {
        self.parker.unpark();
    }

    /// Has the caller ask the server.
    pub(super) fn ask(&self) {
        let mut news = self.news.lock();
        if let News::None = *news {
            *news = News::Ask;
        }
        drop(news);
        self.wake();
    }

    /// Posts a grant, unless a known grant is later, or is the same grant and lasts longer.
    pub(super) fn grant(&self, grant: WaiterGrant) {
        let order = |grant: &WaiterGrant| (grant.token, grant.deadline());
        let mut news = self.news.lock();
        let is_known = match &*news {
            News::None | News::Ask => false,
            News::Granted(known) => order(known) >= order(&grant),
            News::HandedOff(_) => true,
        };
        if !is_known {
            *news = News::Granted(grant);
        }
        drop(news);
        self.wake();
    }

    /// Has the caller ask in the place of a grant that has ended: one with this token or a smaller.
    pub(super) fn end_grants(&self, token_bound: u64) {
        let mut news = self.news.lock();
        if let News::Granted(grant) = &*news
            && grant.token <= token_bound
        {
            *news = News::Ask;
            drop(news);
            self.wake();
        }
    }

    /// Posts a hold that the caller has from now on. Whoever posts it wakes the caller, without the
    /// mutex of the registration.
    pub(super) fn hand_off(&self, hold: Arc<Hold>) {
        let before = mem::replace(&mut *self.news.lock(), News::HandedOff(hold));
        drop(before);
    }

    /// Takes a hold or a grant. The request to ask stays until the caller asks.
    pub(crate) fn take(&self) -> News {
        let mut news = self.news.lock();
        match *news {
            News::Ask => News::Ask,
            _ => mem::take(&mut *news),
        }
    }

    /// Takes a hold that was handed off to the caller, who has left the queue.
    pub(super) fn take_handed_off(&self) -> Option<Arc<Hold>> {
        match self.take() {
            News::HandedOff(hold) => Some(hold),
            News::None | News::Ask | News::Granted(_) => None,
        }
    }

    /// Returns whether the caller has to ask.
    pub(crate) fn must_ask(&self) -> bool {
        matches!(*self.news.lock(), News::Ask)
    }

    /// Notes that the caller is about to ask. Later news has it ask again.
    pub(crate) fn begin_question(&self) {
        let mut news = self.news.lock();
        if let News::Ask = *news {
            *news = News::None;
        }
    }
}
