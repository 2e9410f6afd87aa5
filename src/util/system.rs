//! The system under the library: threads, channels, locks, clocks, random bytes, hash maps, names.
//!
//! Only this file and `transport/connection/mod.rs`, which names the sockets, know whether the
//! system is real. A simulation (`sim/`, built with `--cfg leasehold_sim`) puts the crate
//! `simulated` in its place, with the same names and signatures. `script/layers` checks that the
//! rest of the library takes from here what is here.

#[cfg(not(leasehold_sim))]
pub(crate) use real::*;
#[cfg(leasehold_sim)]
pub(crate) use simulation::*;

#[cfg(not(leasehold_sim))]
#[cfg_attr(
    all(test, leasehold_model),
    allow(dead_code, unused_imports, reason = "the model checker has its own mutexes")
)]
mod real {
    pub(crate) use crate::util::platform::process;
    pub(crate) use crossbeam_channel as channel;
    pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::collections::{HashMap, HashSet};
    pub(crate) use std::process::id as process_id;
    pub(crate) use std::sync::OnceLock;
    pub(crate) use std::{thread, thread_local};

    /// Declares a static. Each process has one.
    macro_rules! per_process {
        ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
            $(#[$attribute])*
            static $name: $type = $value;
        };
    }
    pub(crate) use per_process;

    /// Returns 16 random bytes.
    pub(crate) fn random_bytes() -> [u8; 16] {
        uuid::Uuid::new_v4().into_bytes()
    }

    /// A condition of which one system call wakes all waiting threads. `parking_lot` makes one call
    /// per thread, and on a busy machine each call may cost the calling thread its processor.
    pub(crate) mod broadcast {
        use std::sync::PoisonError;
        use std::time::Duration;

        pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

        pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
            mutex.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn wait_for<'a, T>(
            changed: &Condvar,
            guard: MutexGuard<'a, T>,
            span: Duration,
        ) -> MutexGuard<'a, T> {
            changed.wait_timeout(guard, span).unwrap_or_else(PoisonError::into_inner).0
        }
    }

    pub(crate) mod clock {
        use crate::util::platform;
        use rustix::time::{ClockId, Timespec, clock_gettime, clock_gettime_dynamic};
        use std::time::{Instant, SystemTime};

        pub(crate) use std::thread::sleep;

        /// Returns the nanoseconds since boot on the clock that goes on during suspension, unless
        /// the system refuses it.
        pub(crate) fn boot_time() -> Option<u64> {
            clock_gettime_dynamic(platform::CLOCK).ok().map(nanos)
        }

        /// Returns nanoseconds on a clock that may stand still during suspension.
        pub(crate) fn monotonic_time() -> u64 {
            nanos(clock_gettime(ClockId::Monotonic))
        }

        fn nanos(time: Timespec) -> u64 {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
            seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
        }

        /// Returns the time of day. This clock may jump.
        pub(crate) fn wall_time() -> SystemTime {
            SystemTime::now()
        }

        /// Returns the present on the clock of the standard library.
        pub(crate) fn instant() -> Instant {
            Instant::now()
        }
    }

    /// The names of this machine and of this program.
    pub(crate) mod names {
        use std::path::{Path, PathBuf};

        /// Returns the name of this machine in its network, if it is UTF-8.
        ///
        /// The file comes first: a system that refuses the system call ends the process.
        pub(crate) fn host() -> Option<String> {
            let name = match std::fs::read_to_string("/proc/sys/kernel/hostname") {
                Ok(name) => name,
                Err(_) => rustix::system::uname().nodename().to_str().ok()?.to_owned(),
            };
            Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
        }

        /// Returns the file name of this program: that of its first argument, or else of its
        /// executable.
        pub(crate) fn program() -> Option<String> {
            let first = std::env::args_os().next().map(PathBuf::from);
            let executable = || std::env::current_exe().ok();
            first.as_deref().and_then(file_name).or_else(|| file_name(&executable()?))
        }

        fn file_name(path: &Path) -> Option<String> {
            Some(path.file_name()?.to_str()?.to_owned())
        }

        #[cfg(test)]
        mod tests {
            use super::*;

            #[test]
            fn the_machine_and_the_program_have_names() {
                assert!(host().is_some_and(|host| !host.is_empty()));
                let executable = std::env::current_exe().expect("a running program has a path");
                assert_eq!(program(), file_name(&executable));
                assert_eq!(file_name(Path::new("/")), None);
            }
        }
    }
}

#[cfg(leasehold_sim)]
mod simulation {
    pub(crate) use simulated::map::{HashMap, HashSet};
    pub(crate) use simulated::sync::{Condvar, Mutex, MutexGuard, OnceLock};
    pub(crate) use simulated::{channel, process, process_id, random_bytes, thread, thread_local};

    macro_rules! per_process {
        ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
            $(#[$attribute])*
            static $name: simulated::local::PerProcess<$type> =
                simulated::local::PerProcess::new(|| $value);
        };
    }
    pub(crate) use per_process;

    pub(crate) mod broadcast {
        use std::time::Duration;

        pub(crate) use super::{Condvar, Mutex, MutexGuard};

        pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
            mutex.lock()
        }

        pub(crate) fn wait_for<'a, T>(
            changed: &Condvar,
            mut guard: MutexGuard<'a, T>,
            span: Duration,
        ) -> MutexGuard<'a, T> {
            changed.wait_for(&mut guard, span);
            guard
        }
    }

    pub(crate) mod clock {
        pub(crate) use simulated::clock::{instant, since_boot as monotonic_time, wall_time};

        pub(crate) fn boot_time() -> Option<u64> {
            Some(monotonic_time())
        }
    }

    pub(crate) mod names {
        pub(crate) fn host() -> Option<String> {
            Some("simulation".to_owned())
        }

        pub(crate) fn program() -> Option<String> {
            Some("worker".to_owned())
        }
    }
}
