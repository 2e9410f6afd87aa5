//! A server's clock that a test moves.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Where a server's folder keeps how far its clock is off.
pub(super) const OFFSET: &str = "clock";

/// Lets a server that is started by this command, in this folder, run with such a clock.
pub(super) fn prepare(command: &mut Command, folder: &Path) {
    let offset = folder.join(OFFSET);
    if !offset.exists() {
        fs::write(&offset, 0_i64.to_ne_bytes()).expect("our own folder is writable");
    }
    command.env("LD_PRELOAD", library()).env("CLOCK_OFFSET", offset);
}

/// Moves the clock of the server in this folder to so many microseconds ahead of the machine's.
pub(super) fn set(folder: &Path, micros: i64) {
    // In one write and without truncation: the server reads at any time.
    let file = OpenOptions::new().write(true).open(folder.join(OFFSET));
    let mut file = file.expect("the server was started with a clock that can be moved");
    file.write_all(&micros.to_ne_bytes()).expect("our own folder is writable");
}

/// The library that takes the place of the clock, compiled at its first use.
fn library() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::Builder::new().prefix("leasehold-").tempdir();
        let folder = folder.expect("a temporary folder can be made");
        compile(&folder.path().join("clock.so"));
        folder
    });
    folder.path().join("clock.so")
}

fn compile(library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/clock.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(library).arg(source);
    let status = compiler.status().expect("script/bootstrap has installed a C compiler");
    assert!(status.success(), "the clock does not compile");
}
