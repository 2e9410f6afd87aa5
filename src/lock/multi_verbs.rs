//! The verbs of a lock whose `acquire` returns several holds as one.

/// Implements the verbs of a lock whose `acquire` returns several holds as one.
macro_rules! multi_verbs {
    ($lock:ident) => {
        impl $lock {
            /// Blocks until this thread holds the lock.
            ///
            /// Waits as [`Lock::lock`](crate::Lock::lock) does. The documentation of this type
            /// states the round trips.
            ///
            /// # Errors
            /// The errors of [`Lock::lock`](crate::Lock::lock).
            pub fn lock(&self) -> Result<MultiGuard> {
                self.acquire(Patience::Forever, false)?
                    .map(MultiGuard::new)
                    .ok_or_else($crate::lock::handle::endless_wait_ended)
            }

            /// Takes the lock if it is free; returns `None` if it is not.
            ///
            /// Waits for the answers of the servers, for one response time-out at most.
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock`](crate::Lock::try_lock).
            pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
                Ok(self.acquire(Patience::None, false)?.map(MultiGuard::new))
            }

            /// Blocks until this thread holds the lock; returns `None` after `timeout`.
            ///
            /// `Duration::MAX` waits without limit.
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<MultiGuard>> {
                let patience = Patience::span(clock::now(), timeout);
                Ok(self.acquire(patience, false)?.map(MultiGuard::new))
            }

            /// Blocks until this thread holds the lock; returns `None` after `deadline`.
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiGuard>> {
                let patience = Patience::instant(clock::now(), deadline);
                Ok(self.acquire(patience, false)?.map(MultiGuard::new))
            }

            /// Blocks until the lock is held; returns an owned guard.
            ///
            /// The guard belongs to no thread and can be sent to another one.
            ///
            /// # Errors
            /// The errors of [`Lock::lock_owned`](crate::Lock::lock_owned).
            pub fn lock_owned(&self) -> Result<OwnedMultiGuard> {
                self.acquire(Patience::Forever, true)?
                    .map(OwnedMultiGuard::new)
                    .ok_or_else($crate::lock::handle::endless_wait_ended)
            }

            /// Takes the lock if it is free; returns an owned guard or `None`.
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock`](crate::Lock::try_lock).
            pub fn try_lock_owned(&self) -> Result<Option<OwnedMultiGuard>> {
                Ok(self.acquire(Patience::None, true)?.map(OwnedMultiGuard::new))
            }

            /// Blocks until the lock is held; returns an owned guard, or `None` after `timeout`.
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_for_owned`](crate::Lock::try_lock_for_owned).
            pub fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<OwnedMultiGuard>> {
                let patience = Patience::span(clock::now(), timeout);
                Ok(self.acquire(patience, true)?.map(OwnedMultiGuard::new))
            }

            /// Blocks until the lock is held; returns an owned guard, or `None` after `deadline`.
            ///
            /// # Errors
            /// The errors of [`Lock::try_lock_for_owned`](crate::Lock::try_lock_for_owned).
            pub fn try_lock_until_owned(
                &self,
                deadline: Instant,
            ) -> Result<Option<OwnedMultiGuard>> {
                let patience = Patience::instant(clock::now(), deadline);
                Ok(self.acquire(patience, true)?.map(OwnedMultiGuard::new))
            }
        }
    };
}
pub(crate) use multi_verbs;
