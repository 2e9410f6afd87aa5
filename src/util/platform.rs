//! All code that differs between operating systems.

pub(crate) use os::{CLOCK, SEND, unix_socket};

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
}
