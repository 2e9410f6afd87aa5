//! All code that differs between operating systems.

pub(crate) use os::{CLOCK, SEND, process, unix_socket};

#[cfg(any(target_os = "linux", target_os = "android"))]
mod os {
    use rustix::fd::OwnedFd;
    use rustix::io::Result;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socket_with};
    use rustix::time::DynamicClockId;

    /// Counts since boot, also while the machine is suspended.
    pub(crate) const CLOCK: DynamicClockId<'static> = DynamicClockId::Boottime;

    /// A write to a closed connection is an error, not a signal.
    pub(crate) const SEND: SendFlags = SendFlags::NOSIGNAL;

    /// Returns a socket that child processes do not inherit.
    pub(crate) fn unix_socket() -> Result<OwnedFd> {
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
    }

    /// The processes of this machine. In doubt a process counts as one that lives.
    pub(crate) mod process {
        use crate::util::system::process_id;
        use rustix::io::Errno;
        use rustix::process::{Pid, test_kill_process, test_kill_process_group};
        use std::fs;

        /// Returns a text that only processes have in common which know each other by the same ids
        /// and the same times of start.
        ///
        /// `None` if `/proc` does not show the processes of this namespace.
        pub(crate) fn place() -> Option<String> {
            let own = fs::read_link("/proc/self").ok()?;
            // In the `/proc` of an outer namespace a process has an id for each.
            let status = fs::read_to_string("/proc/self/status").ok()?;
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let is_inner = ids.is_some_and(|ids| ids.split_ascii_whitespace().count() > 1);
            if is_inner || own.to_str()?.parse() != Ok(process_id()) {
                return None;
            }
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            let link = |name: &str| fs::read_link(format!("/proc/self/ns/{name}")).ok();
            let pids = link("pid")?;
            // Linux has namespaces of times since 5.6. They change the times of start.
            let times = link("time").unwrap_or_default();
            Some(format!("{} {} {}", boot.trim_end(), pids.display(), times.display()))
        }

        /// Returns whether no process has this id and this time of start, which has a resolution of
        /// 10 ms.
        pub(crate) fn is_gone(pid: u32, start: u64) -> bool {
            let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
            // `/proc` may hide the processes of other users, so it does not tell that none exists.
            test_kill_process(id) == Err(Errno::SRCH)
                || look(pid).is_some_and(|it| it.is_not(start))
        }

        /// Returns whether no process is left in this group.
        pub(crate) fn is_group_gone(group: u32) -> bool {
            let id = i32::try_from(group).ok().and_then(Pid::from_raw);
            id.is_some_and(|id| test_kill_process_group(id) == Err(Errno::SRCH))
        }

        /// Returns the time at which the process with this id has started, in the unit of `/proc`.
        pub(crate) fn start(pid: u32) -> Option<u64> {
            look(pid).map(|it| it.start)
        }

        /// What `/proc` tells of a process.
        struct Sight {
            start: u64,
            /// Whether all its threads have ended. Its parent has not asked for that yet.
            has_ended: bool,
        }

        impl Sight {
            fn is_not(&self, start: u64) -> bool {
                self.start != start || self.has_ended
            }
        }

        fn look(pid: u32) -> Option<Sight> {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            read(&text)
        }

        /// Reads the text of `/proc/PID/stat`. The name of the program may have any characters.
        fn read(text: &str) -> Option<Sight> {
            let (_, numbers) = text.rsplit_once(')')?;
            let fields: Vec<&str> = numbers.split_ascii_whitespace().collect();
            let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
            // A leader that has ended is a zombie too while other threads of it run.
            let (is_zombie, threads) = (matches!(fields.first(), Some(&("Z" | "X"))), number(17)?);
            Some(Sight { start: number(19)?, has_ended: is_zombie && threads <= 1 })
        }

        #[cfg(test)]
        mod tests {
            use super::*;

            #[test]
            fn the_status_of_a_process_is_read_behind_its_name() {
                let text = |state, threads| {
                    format!(
                        "7 (a) Z (b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 815 0"
                    )
                };
                let sight = |state, threads| read(&text(state, threads)).expect("a status");
                assert_eq!(sight("S", 3).start, 815);
                assert!(!sight("S", 3).is_not(815) && sight("S", 3).is_not(814));
                assert!(sight("Z", 1).is_not(815), "a zombie has ended");
                assert!(!sight("Z", 2).is_not(815), "other threads of it run");
                assert!(read("").is_none() && read("7 (a) S 1").is_none());
            }

            #[test]
            fn this_process_is_not_gone() {
                let me = process_id();
                let start = start(me).expect("a process with a start");
                assert!(!is_gone(me, start) && is_gone(me, start + 1));
                assert!(place().is_some_and(|place| place.contains("pid:[")));
            }

            #[test]
            fn ids_that_no_process_can_have_are_not_gone() {
                for id in [0, u32::MAX, 1 << 31] {
                    assert!(!is_gone(id, 0) && !is_group_gone(id), "{id}");
                }
                assert!(!is_group_gone(1), "that would be all processes");
            }
        }
    }
}

/// On macOS the monotonic clock counts while the machine is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod os {
    use rustix::fd::OwnedFd;
    use rustix::io::{FdFlags, Result, fcntl_setfd};
    use rustix::net::{AddressFamily, SendFlags, SocketType, socket};
    use rustix::time::{ClockId, DynamicClockId};

    pub(crate) const CLOCK: DynamicClockId<'static> = DynamicClockId::Known(ClockId::Monotonic);

    #[cfg(target_vendor = "apple")]
    pub(crate) const SEND: SendFlags = SendFlags::empty();
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) const SEND: SendFlags = SendFlags::NOSIGNAL;

    pub(crate) fn unix_socket() -> Result<OwnedFd> {
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        #[cfg(target_vendor = "apple")]
        rustix::net::sockopt::set_socket_nosigpipe(&socket, true)?;
        Ok(socket)
    }

    /// Which processes exist is known on Linux only.
    pub(crate) mod process {
        pub(crate) fn place() -> Option<String> {
            None
        }

        pub(crate) fn is_gone(_pid: u32, _start: u64) -> bool {
            false
        }

        pub(crate) fn is_group_gone(_group: u32) -> bool {
            false
        }

        pub(crate) fn start(_pid: u32) -> Option<u64> {
            None
        }
    }
}
