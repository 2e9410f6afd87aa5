//! Values of each task, and values of each process.

use crate::world;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// The values of one task or of one process, by the address of their key.
pub(crate) type Values = crate::map::HashMap<usize, Rc<dyn Any>>;

/// A value of each task: what `thread_local!` makes.
pub struct LocalKey<T: 'static> {
    #[doc(hidden)]
    pub init: fn() -> T,
}

/// The task has ended and has no values any more.
#[derive(Debug)]
pub struct AccessError;

impl<T: 'static> LocalKey<T> {
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("the task has not ended")
    }

    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        let key = std::ptr::from_ref(self).addr();
        let value = match world::task_value(key)? {
            Some(value) => value,
            None => {
                // The value may have an initialiser that uses other values.
                let value: Rc<dyn Any> = Rc::new((self.init)());
                world::set_task_value(key, Rc::clone(&value))?;
                value
            }
        };
        Ok(f(value.downcast_ref().expect("a key has one type")))
    }
}

impl<T: 'static> LocalKey<Cell<T>> {
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }
}

impl<T> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

/// Declares values of each task, as `std::thread_local!` declares those of each thread.
#[macro_export]
macro_rules! thread_local {
    ($(#[$attribute:meta])* $vis:vis static $name:ident : $type:ty = const $init:block $(;)?) => {
        $(#[$attribute])*
        $vis static $name: $crate::local::LocalKey<$type> =
            $crate::local::LocalKey { init: || $init };
    };
    ($(#[$attribute:meta])* $vis:vis static $name:ident : $type:ty = $init:expr $(;)?) => {
        $(#[$attribute])*
        $vis static $name: $crate::local::LocalKey<$type> =
            $crate::local::LocalKey { init: || $init };
    };
}

/// A value of each process, as a static is in a real one. It is never dropped.
pub struct PerProcess<T: 'static> {
    init: fn() -> T,
}

impl<T> PerProcess<T> {
    pub const fn new(init: fn() -> T) -> PerProcess<T> {
        PerProcess { init }
    }
}

impl<T: 'static> Deref for PerProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let key = std::ptr::from_ref(self).addr();
        let found = world::process_value(key);
        let value = found.unwrap_or_else(|| {
            let value: &'static T = Box::leak(Box::new((self.init)()));
            let value: Rc<dyn Any> = Rc::new(value);
            world::set_process_value(key, Rc::clone(&value));
            value
        });
        let value: &&'static T = value.downcast_ref().expect("a key has one type");
        value
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}
