//! Preloaded libraries: clocks that a test moves, those of servers and those of clients in child
//! processes, a sandbox that refuses system calls, and a storm of signals.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// The file in a server's folder that contains the offset of its clock.
pub(super) const OFFSET: &str = "clock";

/// Makes `command` start a server in `folder` with a clock that a test can move.
pub(super) fn prepare(command: &mut Command, folder: &Path) {
    let offset = folder.join(OFFSET);
    if !offset.exists() {
        fs::write(&offset, 0_i64.to_ne_bytes()).expect("our own folder is writable");
    }
    command.env("LD_PRELOAD", library("clock")).env("CLOCK_OFFSET", offset);
}

/// Sets the clock of the server in `folder` to `micros` ahead of the machine's clock.
pub(super) fn set(folder: &Path, micros: i64) {
    // One write without truncation, since the server reads at any time.
    let file = OpenOptions::new().write(true).open(folder.join(OFFSET));
    let mut file = file.expect("the server was started with a movable clock");
    file.write_all(&micros.to_ne_bytes()).expect("our own folder is writable");
}

/// The boot clock of a child process, which counts suspended time and can jump ahead.
///
/// After a jump the process observes a suspend of its machine.
#[derive(Debug)]
pub struct BootClock(TempDir);

impl BootClock {
    /// Returns a clock with the time of the machine's clock.
    pub fn new() -> Self {
        let clock = Self(folder());
        fs::write(clock.offset(), 0_i64.to_ne_bytes()).expect("our own folder is writable");
        clock
    }

    /// Returns the environment variables that give a process this clock.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.to_str().expect("the path is UTF-8").to_owned();
        [("LD_PRELOAD", text(library("boot_clock"))), ("BOOT_CLOCK_OFFSET", text(self.offset()))]
    }

    /// Sets the clock to `span` ahead of the machine's clock.
    pub fn suspend_for(&self, span: Duration) {
        set(self.0.path(), i64::try_from(span.as_micros()).expect("the span fits into 64 bits"));
    }

    fn offset(&self) -> PathBuf {
        self.0.path().join(OFFSET)
    }
}

/// Returns the environment variable that has a process refused some system calls.
pub fn refusals() -> (&'static str, String) {
    preloading(&["refusals"])
}

/// Returns the environment variable that sends signals to all threads of a process, again and
/// again.
pub fn signals() -> (&'static str, String) {
    preloading(&["signals"])
}

/// Returns the variable for both, [`refusals`] and [`signals`].
pub fn refusals_and_signals() -> (&'static str, String) {
    preloading(&["refusals", "signals"])
}

fn preloading(names: &[&str]) -> (&'static str, String) {
    let paths = names.iter().map(|name| library(name).to_str().expect("UTF-8").to_owned());
    ("LD_PRELOAD", paths.collect::<Vec<_>>().join(":"))
}

fn folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("leasehold-").tempdir();
    folder.expect("a temporary folder can be made")
}

/// Returns the path of a preloaded library; the first call compiles all of them.
fn library(name: &str) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = folder();
        for name in ["clock", "boot_clock", "refusals", "signals"] {
            compile(folder.path(), name);
        }
        folder
    });
    folder.path().join(name).with_extension("so")
}

fn compile(folder: &Path, name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    compiler.arg(folder.join(name).with_extension("so")).arg(source);
    let status = compiler.status().expect("script/bootstrap has installed a C compiler");
    assert!(status.success(), "a preloaded library does not compile");
}
