//! The program under test, without what the process of the tests hands down.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::process::Command;

/// The path of the program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// Returns the program, without the variables of this process and the signals that it ignores.
///
/// Shells start background jobs with INT and QUIT ignored, nohup with HUP; `leasehold` leaves them
/// so.
pub(crate) fn leasehold() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", PROGRAM]);
    for variable in [
        "LEASEHOLD_URL",
        "REDIS_URL",
        "LEASEHOLD_LOGIN",
        "LEASEHOLD_LOCK",
        "LEASEHOLD_TOKEN",
        "LEASEHOLD_SLOT",
    ] {
        command.env_remove(variable);
    }
    command
}
