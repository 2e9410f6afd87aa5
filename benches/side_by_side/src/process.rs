//! What the system knows of a process.

use std::fs;
use std::time::Duration;

use crate::Result;

/// Processor time it has used so far, of all its threads, those that ended included.
/// Granularity: a clock tick, 10 ms on Linux.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program stands in parentheses and may hold anything.
    let (_, after) = stat.rsplit_once(')').ok_or("an odd /proc/pid/stat")?;
    let field = |at: usize| -> Result<u64> {
        Ok(after.split_whitespace().nth(at).ok_or("a short /proc/pid/stat")?.parse()?)
    };
    let ticks = field(11)? + field(12)?;
    Ok(Duration::from_secs(1) / rustix::param::clock_ticks_per_second().try_into()?
        * ticks.try_into()?)
}

/// Bytes of memory that are resident.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.ok_or("no VmRSS")?.trim().parse::<u64>()? * 1024)
}

/// How many sockets it has open.
pub(crate) fn sockets(pid: u32) -> Result<usize> {
    let links = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    Ok(targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count())
}
