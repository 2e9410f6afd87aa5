//! The verbs of every kind of lock, as a trait.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use leasehold::kind::LockKind;
use leasehold::{
    CancelToken, Guard, Lock, MultiGuard, MultiLock, OwnedGuard, OwnedMultiGuard, Permit, RedLock,
    Result, Semaphore,
};
use std::time::{Duration, Instant};

/// A guard of any kind.
pub trait SubjectGuard {
    fn unlock(self) -> Result<()>;
    fn check(&self) -> Result<()>;
    fn is_held(&self) -> bool;
    fn remaining(&self) -> Duration;
    fn wait_lost(&self, timeout: Duration) -> bool;
    fn extend(&self, lease: Duration) -> Result<()>;
    fn on_lost(&self, call: impl FnOnce() + Send + 'static);
    fn detach(self);
}

/// A lock of any kind.
pub trait Subject: Clone + Send + Sync + 'static {
    type Guard: SubjectGuard;
    type Owned: SubjectGuard + Send + 'static;

    fn lock(&self) -> Result<Self::Guard>;
    fn try_lock(&self) -> Result<Option<Self::Guard>>;
    fn try_lock_for(&self, timeout: Duration) -> Result<Option<Self::Guard>>;
    fn try_lock_until(&self, deadline: Instant) -> Result<Option<Self::Guard>>;
    fn lock_owned(&self) -> Result<Self::Owned>;
    fn try_lock_owned(&self) -> Result<Option<Self::Owned>>;
    fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<Self::Owned>>;
    fn try_lock_until_owned(&self, deadline: Instant) -> Result<Option<Self::Owned>>;
    fn with_lease(self, lease: Duration) -> Self;
    fn with_cancel(self, token: &CancelToken) -> Self;
    fn unlock(&self) -> Result<()>;
    fn is_locked(&self) -> Result<bool>;
    fn is_held(&self) -> bool;
    fn hold_count(&self) -> usize;
    fn remaining(&self) -> Result<Option<Duration>>;
    fn force_unlock(&self) -> Result<bool>;
}

macro_rules! subject_guard {
    ([$($generics:tt)*] $guard:ty) => {
        impl<$($generics)*> SubjectGuard for $guard {
            fn unlock(self) -> Result<()> {
                self.unlock()
            }
            fn check(&self) -> Result<()> {
                self.check()
            }
            fn is_held(&self) -> bool {
                self.is_held()
            }
            fn remaining(&self) -> Duration {
                self.remaining()
            }
            fn wait_lost(&self, timeout: Duration) -> bool {
                self.wait_lost(timeout)
            }
            fn extend(&self, lease: Duration) -> Result<()> {
                self.extend(lease)
            }
            fn on_lost(&self, call: impl FnOnce() + Send + 'static) {
                self.on_lost(call);
            }
            fn detach(self) {
                self.detach();
            }
        }
    };
}

macro_rules! subject {
    ([$($generics:tt)*] $lock:ty, $guard:ty, $owned:ty) => {
        impl<$($generics)*> Subject for $lock {
            type Guard = $guard;
            type Owned = $owned;

            fn lock(&self) -> Result<$guard> {
                self.lock()
            }
            fn try_lock(&self) -> Result<Option<$guard>> {
                self.try_lock()
            }
            fn try_lock_for(&self, timeout: Duration) -> Result<Option<$guard>> {
                self.try_lock_for(timeout)
            }
            fn try_lock_until(&self, deadline: Instant) -> Result<Option<$guard>> {
                self.try_lock_until(deadline)
            }
            fn lock_owned(&self) -> Result<$owned> {
                self.lock_owned()
            }
            fn try_lock_owned(&self) -> Result<Option<$owned>> {
                self.try_lock_owned()
            }
            fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<$owned>> {
                self.try_lock_for_owned(timeout)
            }
            fn try_lock_until_owned(&self, deadline: Instant) -> Result<Option<$owned>> {
                self.try_lock_until_owned(deadline)
            }
            fn with_lease(self, lease: Duration) -> Self {
                self.with_lease(lease)
            }
            fn with_cancel(self, token: &CancelToken) -> Self {
                self.with_cancel(token)
            }
            fn unlock(&self) -> Result<()> {
                self.unlock()
            }
            fn is_locked(&self) -> Result<bool> {
                self.is_locked()
            }
            fn is_held(&self) -> bool {
                self.is_held()
            }
            fn hold_count(&self) -> usize {
                self.hold_count()
            }
            fn remaining(&self) -> Result<Option<Duration>> {
                self.remaining()
            }
            fn force_unlock(&self) -> Result<bool> {
                self.force_unlock()
            }
        }
    };
}

subject_guard!([P: LockKind] Guard<P>);
subject_guard!([P: LockKind] OwnedGuard<P>);
subject!([P: LockKind] Lock<P>, Guard<P>, OwnedGuard<P>);
subject_guard!([] MultiGuard);
subject_guard!([] OwnedMultiGuard);
subject!([] MultiLock, MultiGuard, OwnedMultiGuard);
subject!([] RedLock, MultiGuard, OwnedMultiGuard);

/// A semaphore with one permit, which excludes as a lock does.
#[derive(Clone)]
pub struct OnePermit(pub Semaphore);

impl SubjectGuard for Permit {
    fn unlock(self) -> Result<()> {
        self.release()
    }
    fn check(&self) -> Result<()> {
        self.check()
    }
    fn is_held(&self) -> bool {
        self.is_held()
    }
    fn remaining(&self) -> Duration {
        self.remaining()
    }
    fn wait_lost(&self, timeout: Duration) -> bool {
        self.wait_lost(timeout)
    }
    fn extend(&self, _lease: Duration) -> Result<()> {
        panic!("a permit has no such method");
    }
    fn on_lost(&self, call: impl FnOnce() + Send + 'static) {
        self.on_lost(call);
    }
    fn detach(self) {
        panic!("a permit has no such method");
    }
}

impl Subject for OnePermit {
    type Guard = Permit;
    type Owned = Permit;

    fn lock(&self) -> Result<Permit> {
        self.0.acquire()
    }
    fn try_lock(&self) -> Result<Option<Permit>> {
        self.0.try_acquire()
    }
    fn try_lock_for(&self, timeout: Duration) -> Result<Option<Permit>> {
        self.0.try_acquire_for(timeout)
    }
    fn try_lock_until(&self, deadline: Instant) -> Result<Option<Permit>> {
        self.0.try_acquire_until(deadline)
    }
    fn lock_owned(&self) -> Result<Permit> {
        self.0.acquire()
    }
    fn try_lock_owned(&self) -> Result<Option<Permit>> {
        self.0.try_acquire()
    }
    fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<Permit>> {
        self.0.try_acquire_for(timeout)
    }
    fn try_lock_until_owned(&self, deadline: Instant) -> Result<Option<Permit>> {
        self.0.try_acquire_until(deadline)
    }
    fn with_lease(self, lease: Duration) -> Self {
        OnePermit(self.0.with_lease(lease))
    }
    fn with_cancel(self, token: &CancelToken) -> Self {
        OnePermit(self.0.with_cancel(token))
    }
    fn unlock(&self) -> Result<()> {
        panic!("a semaphore has no such method");
    }
    fn is_locked(&self) -> Result<bool> {
        Ok(self.0.available()? <= 0)
    }
    /// A permit belongs to no thread.
    fn is_held(&self) -> bool {
        false
    }
    fn hold_count(&self) -> usize {
        0
    }
    fn remaining(&self) -> Result<Option<Duration>> {
        panic!("a semaphore has no such method");
    }
    fn force_unlock(&self) -> Result<bool> {
        panic!("a semaphore has no such method");
    }
}

/// One of the two sides of a read-write lock.
#[derive(Clone)]
pub enum Side<R, W> {
    Read(R),
    Write(W),
}

macro_rules! either {
    ($side:expr, $it:ident => $do:expr) => {
        match $side {
            Side::Read($it) => $do,
            Side::Write($it) => $do,
        }
    };
}

impl<R: SubjectGuard, W: SubjectGuard> SubjectGuard for Side<R, W> {
    fn unlock(self) -> Result<()> {
        either!(self, it => it.unlock())
    }
    fn check(&self) -> Result<()> {
        either!(self, it => it.check())
    }
    fn is_held(&self) -> bool {
        either!(self, it => it.is_held())
    }
    fn remaining(&self) -> Duration {
        either!(self, it => it.remaining())
    }
    fn wait_lost(&self, timeout: Duration) -> bool {
        either!(self, it => it.wait_lost(timeout))
    }
    fn extend(&self, lease: Duration) -> Result<()> {
        either!(self, it => it.extend(lease))
    }
    fn on_lost(&self, call: impl FnOnce() + Send + 'static) {
        either!(self, it => it.on_lost(call));
    }
    fn detach(self) {
        either!(self, it => it.detach());
    }
}

macro_rules! to_side {
    ($side:expr, $it:ident => $do:expr) => {
        match $side {
            Side::Read($it) => $do.map(Side::Read),
            Side::Write($it) => $do.map(Side::Write),
        }
    };
}

macro_rules! to_optional_side {
    ($side:expr, $it:ident => $do:expr) => {
        match $side {
            Side::Read($it) => $do.map(|guard| guard.map(Side::Read)),
            Side::Write($it) => $do.map(|guard| guard.map(Side::Write)),
        }
    };
}

impl<R: Subject, W: Subject> Subject for Side<R, W> {
    type Guard = Side<R::Guard, W::Guard>;
    type Owned = Side<R::Owned, W::Owned>;

    fn lock(&self) -> Result<Self::Guard> {
        to_side!(self, it => it.lock())
    }
    fn try_lock(&self) -> Result<Option<Self::Guard>> {
        to_optional_side!(self, it => it.try_lock())
    }
    fn try_lock_for(&self, timeout: Duration) -> Result<Option<Self::Guard>> {
        to_optional_side!(self, it => it.try_lock_for(timeout))
    }
    fn try_lock_until(&self, deadline: Instant) -> Result<Option<Self::Guard>> {
        to_optional_side!(self, it => it.try_lock_until(deadline))
    }
    fn lock_owned(&self) -> Result<Self::Owned> {
        to_side!(self, it => it.lock_owned())
    }
    fn try_lock_owned(&self) -> Result<Option<Self::Owned>> {
        to_optional_side!(self, it => it.try_lock_owned())
    }
    fn try_lock_for_owned(&self, timeout: Duration) -> Result<Option<Self::Owned>> {
        to_optional_side!(self, it => it.try_lock_for_owned(timeout))
    }
    fn try_lock_until_owned(&self, deadline: Instant) -> Result<Option<Self::Owned>> {
        to_optional_side!(self, it => it.try_lock_until_owned(deadline))
    }
    fn with_lease(self, lease: Duration) -> Self {
        match self {
            Side::Read(it) => Side::Read(it.with_lease(lease)),
            Side::Write(it) => Side::Write(it.with_lease(lease)),
        }
    }
    fn with_cancel(self, token: &CancelToken) -> Self {
        match self {
            Side::Read(it) => Side::Read(it.with_cancel(token)),
            Side::Write(it) => Side::Write(it.with_cancel(token)),
        }
    }
    fn unlock(&self) -> Result<()> {
        either!(self, it => it.unlock())
    }
    fn is_locked(&self) -> Result<bool> {
        either!(self, it => it.is_locked())
    }
    fn is_held(&self) -> bool {
        either!(self, it => it.is_held())
    }
    fn hold_count(&self) -> usize {
        either!(self, it => it.hold_count())
    }
    fn remaining(&self) -> Result<Option<Duration>> {
        either!(self, it => it.remaining())
    }
    fn force_unlock(&self) -> Result<bool> {
        either!(self, it => it.force_unlock())
    }
}
