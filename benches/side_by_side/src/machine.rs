//! The machine, the tools and the date of a run.

use std::fs;
use std::process::Command;

/// Returns lines with the processor, memory, system, compiler, commit and date.
pub(crate) fn lines() -> Vec<String> {
    let mut lines = vec![format!("processor: {}", processor()), format!("memory: {}", memory())];
    for (what, program, arguments) in [
        ("system", "uname", &["-srm"][..]),
        ("rustc", "rustc", &["--version"]),
        ("commit", "git", &["describe", "--always", "--dirty", "--abbrev=10"]),
        ("date", "date", &["--utc", "+%Y-%m-%d %H:%M UTC"]),
    ] {
        let output = Command::new(program).args(arguments).output();
        let output = output.map_or("unknown".to_owned(), |output| {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        });
        lines.push(format!("{what}: {output}"));
    }
    lines
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} x {model}")
}

fn memory() -> String {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.map_or("unknown".to_owned(), |kilobytes| format!("{} GiB", kilobytes >> 20))
}
