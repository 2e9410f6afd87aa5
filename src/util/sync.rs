//! Mutexes, condition variables, parking and thread-locals, real or of the model checker.
//!
//! The only switch between the two: `real` and `model` export the same names. [`Parker`] and
//! [`WaitGroup`] are built on either. `util/model.rs` says how models run.

#[cfg(not(all(test, leasehold_model)))]
pub(crate) use real::{AtomicU64, Condvar, Mutex, thread_local};

#[cfg(all(test, leasehold_model))]
pub(crate) use model::{AtomicU64, Condvar, Mutex, thread_local};

/// Whether time passes; in a model it stands still.
pub(crate) const TIME_PASSES: bool = !cfg!(all(test, leasehold_model));

pub(crate) use group::WaitGroup;
pub(crate) use parker::{Offer, Parker};

use crate::util::clock::Moment;

#[cfg(not(all(test, leasehold_model)))]
mod real {
    use super::Moment;
    use crate::util::{clock, system};
    pub(crate) use std::sync::atomic::AtomicU64;
    use std::time::Duration;
    use system::MutexGuard;
    pub(crate) use system::{Mutex, thread_local};

    /// The longest sleep, because condition variables use a clock that stands still while the
    /// machine is suspended.
    const LONGEST_SLEEP: Duration = Duration::from_secs(1);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(system::Condvar);

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Blocks until notified or until `end`; may also return without a reason.
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Moment) {
            let span = clock::now().until(end).min(LONGEST_SLEEP);
            self.0.wait_for(guard, span);
        }
    }

    pub(super) mod broadcast {
        use super::{LONGEST_SLEEP, Moment, clock};
        use crate::util::system::broadcast;
        pub(in crate::util::sync) use broadcast::{Condvar, Mutex, MutexGuard, lock};

        pub(in crate::util::sync) fn wait_until<'a, T>(
            changed: &Condvar,
            guard: MutexGuard<'a, T>,
            end: Moment,
        ) -> MutexGuard<'a, T> {
            let span = clock::now().until(end).min(LONGEST_SLEEP);
            broadcast::wait_for(changed, guard, span)
        }
    }

    pub(super) mod signal {
        use super::{Moment, clock};
        use crate::util::sync::Offer;
        use crate::util::system::channel::{self, Receiver, Select, Sender};
        use std::time::Duration;

        /// The longest sleep of a caller that has a deadline.
        ///
        /// Channels use a clock that stands still while the machine is suspended, deadlines one
        /// that goes on. So a deadline that passes during suspension is noticed at most this long
        /// after the resume. Longer than the sleeps above, because there may be thousands of
        /// callers and each wake-up costs about 17 us of processor time.
        pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(5);

        /// Returns how long a caller sleeps before it reads the clock again.
        pub(super) fn sleep_span(now: Moment, end: Moment) -> Duration {
            match end {
                // Only another thread ends this sleep.
                Moment::END => Duration::MAX,
                end => now.until(end).min(LONGEST_WAIT),
            }
        }

        /// A flag that one thread waits for and any thread sets.
        #[derive(Debug)]
        pub(crate) struct Signal {
            sender: Sender<()>,
            receiver: Receiver<()>,
        }

        impl Default for Signal {
            fn default() -> Signal {
                let (sender, receiver) = channel::bounded(1);
                Signal { sender, receiver }
            }
        }

        impl Signal {
            pub(crate) fn set(&self) {
                // The channel is full if the signal is set.
                let _ = self.sender.try_send(());
            }

            pub(crate) fn wait(&self, end: Moment) {
                let _ = self.receiver.recv_timeout(sleep_span(clock::now(), end));
            }

            /// Waits as [`Signal::wait`] does, and meanwhile offers a value to each receiver.
            pub(crate) fn wait_and_offer<T>(
                &self,
                to: &[&Sender<T>],
                value: impl Fn(usize) -> T,
                end: Moment,
            ) -> Offer {
                let mut select = Select::new();
                for sender in to {
                    select.send(sender);
                }
                select.recv(&self.receiver);
                let Ok(ready) = select.select_timeout(sleep_span(clock::now(), end)) else {
                    return Offer::Waiting;
                };
                let at = ready.index();
                let Some(sender) = to.get(at) else {
                    let _ = ready.recv(&self.receiver);
                    return Offer::Waiting;
                };
                Offer::of(at, ready.send(sender, value(at)).is_ok())
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::signal::{LONGEST_WAIT, sleep_span};
        use super::*;

        /// The machine is suspended at any moment of the sleep. The clock of deadlines goes on, the
        /// clock of sleeps stands still.
        #[test]
        fn a_deadline_that_passes_during_suspend_is_noticed_within_the_longest_wait() {
            let deadline = Moment::START + Duration::from_secs(100);
            for left in (0..100_000).step_by(7).map(Duration::from_millis) {
                let rest_after_resume = sleep_span(deadline.before(left), deadline);
                assert!(rest_after_resume <= LONGEST_WAIT && rest_after_resume <= left);
                assert!(rest_after_resume == left || rest_after_resume == LONGEST_WAIT);
            }
            assert_eq!(sleep_span(deadline, Moment::END), Duration::MAX, "another thread ends it");
        }
    }
}

#[cfg(all(test, leasehold_model))]
mod model {
    use super::Moment;
    pub(crate) use shuttle::sync::atomic::AtomicU64;
    pub(crate) use shuttle::thread_local;
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            // A model that panics has failed, so a poisoned mutex needs no handling.
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("present except during a wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("present except during a wait")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Blocks until notified. Time stands still in a model.
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _end: Moment) {
            let inner = guard.0.take().expect("present except during a wait");
            guard.0 = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(super) mod broadcast {
        use super::Moment;
        pub(in crate::util::sync) use shuttle::sync::{Condvar, Mutex, MutexGuard};
        use std::sync::PoisonError;

        pub(in crate::util::sync) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
            mutex.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(in crate::util::sync) fn wait_until<'a, T>(
            changed: &Condvar,
            guard: MutexGuard<'a, T>,
            _end: Moment,
        ) -> MutexGuard<'a, T> {
            changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }
    }

    pub(super) mod signal {
        use super::{Condvar, Moment, Mutex};
        use crate::util::sync::Offer;
        use crate::util::system::channel::{Sender, TrySendError};

        #[derive(Debug, Default)]
        pub(crate) struct Signal {
            is_set: Mutex<bool>,
            changed: Condvar,
        }

        impl Signal {
            pub(crate) fn set(&self) {
                *self.is_set.lock() = true;
                self.changed.notify_all();
            }

            pub(crate) fn wait(&self, end: Moment) {
                let mut is_set = self.is_set.lock();
                while !*is_set {
                    self.changed.wait_until(&mut is_set, end);
                }
                *is_set = false;
            }

            /// Offers each value once, and waits if no receiver takes one. No model uses this.
            pub(crate) fn wait_and_offer<T>(
                &self,
                to: &[&Sender<T>],
                value: impl Fn(usize) -> T,
                end: Moment,
            ) -> Offer {
                for (at, sender) in to.iter().enumerate() {
                    let sent = sender.try_send(value(at));
                    if !matches!(sent, Err(TrySendError::Full(_))) {
                        return Offer::of(at, sent.is_ok());
                    }
                }
                self.wait(end);
                Offer::Waiting
            }
        }
    }
}

mod group {
    use super::Moment;
    #[cfg(all(test, leasehold_model))]
    use super::model::broadcast::{self, Condvar, Mutex, MutexGuard};
    #[cfg(not(all(test, leasehold_model)))]
    use super::real::broadcast::{self, Condvar, Mutex, MutexGuard};
    use crate::util::clock;

    /// Threads that sleep until their own work is done, or until an offer that one of them takes.
    #[derive(Debug, Default)]
    pub(crate) struct WaitGroup {
        state: Mutex<State>,
        changed: Condvar,
    }

    #[derive(Debug, Default)]
    struct State {
        offer: bool,
        asleep: usize,
    }

    impl WaitGroup {
        /// Wakes all threads, which check whether they are done.
        pub(crate) fn wake(&self) {
            drop(self.lock());
            self.changed.notify_all();
        }

        /// Offers the lead to one thread that is not done, now or when it is about to sleep.
        ///
        /// Returns whether any thread sleeps here.
        pub(crate) fn offer(&self) -> bool {
            let mut state = self.lock();
            // An earlier offer has woken a thread that has not taken it yet.
            if !std::mem::replace(&mut state.offer, true) {
                self.changed.notify_one();
            }
            state.asleep > 0
        }

        /// Sleeps until `done` or until an offer. Returns `false` if neither comes before `end`.
        ///
        /// The thread that makes `done` true calls [`WaitGroup::wake`] afterwards.
        pub(crate) fn sleep(&self, end: Moment, done: impl Fn() -> bool) -> bool {
            let mut state = self.lock();
            let woken = loop {
                if done() {
                    break true;
                }
                if std::mem::take(&mut state.offer) {
                    return true;
                }
                if end <= clock::now() {
                    break false;
                }
                state.asleep += 1;
                state = broadcast::wait_until(&self.changed, state, end);
                state.asleep -= 1;
            };
            // This thread may have been woken for the offer, which another thread has to take.
            if state.offer {
                self.changed.notify_one();
            }
            woken
        }

        fn lock(&self) -> MutexGuard<'_, State> {
            broadcast::lock(&self.state)
        }
    }
}

mod parker {
    #[cfg(all(test, leasehold_model))]
    use super::model::signal::Signal;
    #[cfg(not(all(test, leasehold_model)))]
    use super::real::signal::Signal;
    use super::{Moment, thread_local};
    use crate::util::system::channel::Sender;
    use std::sync::Arc;

    /// The outcome of offers to receivers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Offer {
        /// The receiver at this position has its value.
        Taken(usize),
        /// No receiver took a value.
        Waiting,
        /// One of the receivers does not exist any more.
        Abandoned,
    }

    impl Offer {
        pub(crate) fn of(at: usize, is_taken: bool) -> Offer {
            if is_taken { Offer::Taken(at) } else { Offer::Abandoned }
        }
    }

    /// The place where one waiting thread sleeps.
    ///
    /// A thread that changes a condition unparks the waiting one, which checks the condition
    /// itself. An `unpark` before the sleep is not lost: the sleep then ends at once.
    #[derive(Debug, Default)]
    pub(crate) struct Parker(Signal);

    impl Parker {
        /// Returns the parker of the calling thread, which sleeps in one place at a time.
        pub(crate) fn mine() -> Arc<Parker> {
            thread_local!(static MINE: Arc<Parker> = Arc::default());
            MINE.try_with(Arc::clone).unwrap_or_default()
        }

        /// Wakes the thread, or prevents its next sleep.
        pub(crate) fn unpark(&self) {
            self.0.set();
        }

        /// Sleeps until unparked or until `end`; may also return without a reason.
        pub(crate) fn park_until(&self, end: Moment) {
            self.0.wait(end);
        }

        /// Sleeps as [`Parker::park_until`] does, and meanwhile offers a value to each receiver.
        ///
        /// Ends with the first value that is taken. The channels have no capacity. `value` makes
        /// the value of a position when its receiver takes it.
        pub(crate) fn park_and_offer<T>(
            &self,
            to: &[&Sender<T>],
            value: impl Fn(usize) -> T,
            end: Moment,
        ) -> Offer {
            self.0.wait_and_offer(to, value, end)
        }
    }
}
