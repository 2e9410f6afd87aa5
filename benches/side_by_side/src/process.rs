//! Figures of a process from `/proc`.

use std::fs;
use std::time::Duration;

use crate::Result;

/// Returns the processor time of all threads so far, ended threads included.
///
/// The resolution is a clock tick, 10 ms on Linux.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program is in parentheses and may contain any character.
    let (_, after) = stat.rsplit_once(')').ok_or("an odd /proc/pid/stat")?;
    let field = |at: usize| -> Result<u64> {
        Ok(after.split_whitespace().nth(at).ok_or("a short /proc/pid/stat")?.parse()?)
    };
    let ticks = field(11)? + field(12)?;
    Ok(Duration::from_secs(1) / rustix::param::clock_ticks_per_second().try_into()?
        * ticks.try_into()?)
}

/// Returns the processor time of the running threads so far. The resolution is a nanosecond.
pub(crate) fn cpu_of_threads(pid: u32) -> Result<Duration> {
    let mut used = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // The time on a processor, and two other numbers.
        let times = fs::read_to_string(thread?.path().join("schedstat"))?;
        used += times.split(' ').next().ok_or("an odd schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(used))
}

/// Returns the bytes of resident memory.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.ok_or("no VmRSS")?.trim().parse::<u64>()? * 1024)
}

/// Returns the number of open sockets.
pub(crate) fn sockets(pid: u32) -> Result<usize> {
    let links = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    Ok(targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count())
}
