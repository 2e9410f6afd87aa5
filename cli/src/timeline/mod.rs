//! `leasehold timeline`.

use std::process::ExitCode;

use crate::address::Server;
use crate::args::TimelineArgs;
use crate::failure::{Code, Failure, Result};

pub(crate) fn run(_: &Server, _: &TimelineArgs) -> Result<ExitCode> {
    Err(Failure::new(Code::Internal, "not built yet"))
}
