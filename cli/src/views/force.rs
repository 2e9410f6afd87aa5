//! `leasehold force`.

use std::process::ExitCode;

use crate::address::Server;
use crate::args::ForceArgs;
use crate::failure::{Code, Failure, Output, Result};

pub(crate) fn run(_: &Server, _: &ForceArgs, _: Output) -> Result<ExitCode> {
    Err(Failure::new(Code::Internal, "not built yet"))
}
