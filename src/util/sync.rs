//! Mutexes, condition variables, parking and what each thread has for itself: the
//! one switch between the real ones and those of the model checker (`model.rs`).

#[cfg(not(all(test, leasehold_model)))]
pub(crate) use real::{AtomicU64, Condvar, Mutex, thread_local};

#[cfg(all(test, leasehold_model))]
pub(crate) use model::{AtomicU64, Condvar, Mutex, thread_local};

/// Whether time passes. In a model it stands still.
pub(crate) const TIME_PASSES: bool = !cfg!(all(test, leasehold_model));

pub(crate) use group::WaitGroup;
pub(crate) use parker::Parker;

use crate::util::clock::Moment;

#[cfg(not(all(test, leasehold_model)))]
mod real {
    use super::Moment;
    use crate::util::clock;
    pub(crate) use parking_lot::Mutex;
    use parking_lot::MutexGuard;
    pub(crate) use std::sync::atomic::AtomicU64;
    pub(crate) use std::thread_local;
    use std::time::Duration;

    /// No sleep lasts longer: condition variables count on a clock that stands
    /// still while the machine is suspended.
    const LONGEST_SLEEP: Duration = Duration::from_secs(1);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Waits until notified or until `end`; may also return for no reason.
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Moment) {
            let span = clock::now().until(end).min(LONGEST_SLEEP);
            self.0.wait_for(guard, span);
        }
    }

    pub(super) mod wide {
        use super::{LONGEST_SLEEP, Moment, clock};
        use std::sync::PoisonError;
        pub(in crate::util::sync) use std::sync::{Condvar, Mutex, MutexGuard};

        pub(in crate::util::sync) fn wait_until<'a, T>(
            changed: &Condvar,
            guard: MutexGuard<'a, T>,
            end: Moment,
        ) -> MutexGuard<'a, T> {
            let span = clock::now().until(end).min(LONGEST_SLEEP);
            changed.wait_timeout(guard, span).unwrap_or_else(PoisonError::into_inner).0
        }
    }

    pub(super) mod signal {
        use super::{Moment, clock};
        use crossbeam_channel::{Receiver, Sender};
        use std::time::Duration;

        /// A waiting caller with a deadline looks at the clock at least this often. Channels are
        /// timed by a clock that stands still while the machine is suspended, deadlines by one
        /// that goes on: a deadline that passes during suspend is noticed so long after the
        /// resume. Longer than the sleeps above, because there may be thousands of callers: each
        /// look costs about 17 us of processor time.
        pub(super) const LONGEST_NAP: Duration = Duration::from_secs(5);

        /// How long a caller sleeps before it looks at the clock again.
        pub(super) fn nap(now: Moment, end: Moment) -> Duration {
            match end {
                // No clock ends this sleep.
                Moment::END => Duration::MAX,
                end => now.until(end).min(LONGEST_NAP),
            }
        }

        /// A bell that is rung at most once until somebody has heard it.
        #[derive(Debug)]
        pub(crate) struct Bell {
            ring: Sender<()>,
            heard: Receiver<()>,
        }

        impl Default for Bell {
            fn default() -> Bell {
                let (ring, heard) = crossbeam_channel::bounded(1);
                Bell { ring, heard }
            }
        }

        impl Bell {
            pub(crate) fn ring(&self) {
                // A full channel: it has been rung and not been heard yet.
                let _ = self.ring.try_send(());
            }

            pub(crate) fn hear(&self, end: Moment) {
                let _ = self.heard.recv_timeout(nap(clock::now(), end));
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::signal::{LONGEST_NAP, nap};
        use super::*;

        /// The machine is suspended at any moment of the sleep: the clock of deadlines goes on,
        /// that of sleeps does not.
        #[test]
        fn a_deadline_that_passes_during_suspend_is_noticed_within_the_longest_nap() {
            let deadline = Moment::START + Duration::from_secs(100);
            for left in (0..100_000).step_by(7).map(Duration::from_millis) {
                let rest_after_resume = nap(deadline.before(left), deadline);
                assert!(rest_after_resume <= LONGEST_NAP && rest_after_resume <= left);
                assert!(rest_after_resume == left || rest_after_resume == LONGEST_NAP);
            }
            assert_eq!(nap(deadline, Moment::END), Duration::MAX, "another thread ends it");
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
            // A model that panics has failed; what it leaves behind is of no interest.
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("present but during a wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("present but during a wait")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Time stands still in a model: only a notification ends the wait.
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _end: Moment) {
            let inner = guard.0.take().expect("present but during a wait");
            guard.0 = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(super) mod wide {
        use super::Moment;
        pub(in crate::util::sync) use shuttle::sync::{Condvar, Mutex, MutexGuard};
        use std::sync::PoisonError;

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

        #[derive(Debug, Default)]
        pub(crate) struct Bell {
            rung: Mutex<bool>,
            ringing: Condvar,
        }

        impl Bell {
            pub(crate) fn ring(&self) {
                *self.rung.lock() = true;
                self.ringing.notify_all();
            }

            pub(crate) fn hear(&self, end: Moment) {
                let mut rung = self.rung.lock();
                while !*rung {
                    self.ringing.wait_until(&mut rung, end);
                }
                *rung = false;
            }
        }
    }
}

mod group {
    use super::Moment;
    #[cfg(all(test, leasehold_model))]
    use super::model::wide::{self, Condvar, Mutex, MutexGuard};
    #[cfg(not(all(test, leasehold_model)))]
    use super::real::wide::{self, Condvar, Mutex, MutexGuard};
    use crate::util::clock;
    use std::sync::PoisonError;

    /// Threads that sleep until something of their own is done, or until one of them is
    /// offered something. All are woken by one system call: that of `parking_lot` makes
    /// one per thread, and on a busy machine each may cost the caller its processor.
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
        /// Wakes all, to look whether they are done.
        pub(crate) fn wake(&self) {
            drop(self.lock());
            self.changed.notify_all();
        }

        /// Wakes one who is not done, now or when it is about to sleep. Whether anybody
        /// sleeps here.
        pub(crate) fn offer(&self) -> bool {
            let mut state = self.lock();
            // If it was offered before, somebody is on the way.
            if !std::mem::replace(&mut state.offer, true) {
                self.changed.notify_one();
            }
            state.asleep > 0
        }

        /// Sleeps until `done`, after which somebody calls [`WaitGroup::wake`], or until it
        /// takes an offer; `false` if neither came before `end`.
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
                state = wide::wait_until(&self.changed, state, end);
                state.asleep -= 1;
            };
            // It may have been woken for the offer, and has no use for it.
            if state.offer {
                self.changed.notify_one();
            }
            woken
        }

        fn lock(&self) -> MutexGuard<'_, State> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

mod parker {
    #[cfg(all(test, leasehold_model))]
    use super::model::signal::Bell;
    #[cfg(not(all(test, leasehold_model)))]
    use super::real::signal::Bell;
    use super::{Moment, thread_local};
    use std::sync::Arc;

    /// Where one waiting thread sleeps. Whoever changes something that it may be
    /// waiting for rings; it then looks for itself at what has changed. A ring
    /// before the sleep is not lost: the sleep ends at once.
    #[derive(Debug, Default)]
    pub(crate) struct Parker(Bell);

    impl Parker {
        /// The calling thread's own: a thread sleeps in one place at a time.
        pub(crate) fn mine() -> Arc<Parker> {
            thread_local!(static MINE: Arc<Parker> = Arc::default());
            MINE.try_with(Arc::clone).unwrap_or_default()
        }

        /// Wakes the thread, or keeps it from its next sleep.
        pub(crate) fn unpark(&self) {
            self.0.ring();
        }

        /// Sleeps until rung or until `end`; may also return for no reason.
        pub(crate) fn park_until(&self, end: Moment) {
            self.0.hear(end);
        }
    }
}
