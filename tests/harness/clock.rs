//! Clocks that a test moves: a server's, and that of a client in a process of its own.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Where a server's folder keeps how far its clock is off.
pub(super) const OFFSET: &str = "clock";

/// Lets a server that is started by this command, in this folder, run with such a clock.
pub(super) fn prepare(command: &mut Command, folder: &Path) {
    let offset = folder.join(OFFSET);
    if !offset.exists() {
        fs::write(&offset, 0_i64.to_ne_bytes()).expect("our own folder is writable");
    }
    command.env("LD_PRELOAD", library("clock")).env("CLOCK_OFFSET", offset);
}

/// Moves the clock of the server in this folder to so many microseconds ahead of the machine's.
pub(super) fn set(folder: &Path, micros: i64) {
    // In one write and without truncation: the server reads at any time.
    let file = OpenOptions::new().write(true).open(folder.join(OFFSET));
    let mut file = file.expect("the server was started with a clock that can be moved");
    file.write_all(&micros.to_ne_bytes()).expect("our own folder is writable");
}

/// The clock of a process that counts suspended time, which a test lets jump ahead: for the
/// process its machine was suspended.
#[derive(Debug)]
pub struct BootClock(TempDir);

impl BootClock {
    /// A clock that goes with the machine's.
    pub fn new() -> Self {
        let clock = Self(folder());
        fs::write(clock.offset(), 0_i64.to_ne_bytes()).expect("our own folder is writable");
        clock
    }

    /// What a process needs in its environment to run with this clock.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.to_str().expect("a path of letters").to_owned();
        [("LD_PRELOAD", text(library("boot_clock"))), ("BOOT_CLOCK_OFFSET", text(self.offset()))]
    }

    /// Sets the clock to this span ahead of the machine's.
    pub fn suspend_for(&self, span: Duration) {
        set(self.0.path(), i64::try_from(span.as_micros()).expect("not for ever"));
    }

    fn offset(&self) -> PathBuf {
        self.0.path().join(OFFSET)
    }
}

fn folder() -> TempDir {
    let folder = tempfile::Builder::new().prefix("leasehold-").tempdir();
    folder.expect("a temporary folder can be made")
}

/// The library that takes the place of a clock. All are compiled at the first use of any.
fn library(name: &str) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = folder();
        ["clock", "boot_clock"].iter().for_each(|name| compile(folder.path(), name));
        folder
    });
    folder.path().join(name).with_extension("so")
}

fn compile(folder: &Path, name: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    compiler
        .arg(folder.join(name).with_extension("so"))
        .arg(sources.join(name).with_extension("c"));
    let status = compiler.status().expect("script/bootstrap has installed a C compiler");
    assert!(status.success(), "the clock does not compile");
}
