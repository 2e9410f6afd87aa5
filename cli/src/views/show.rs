//! `leasehold show`.

use std::process::ExitCode;

use crate::address::Server;
use crate::args::ShowArgs;
use crate::failure::{Code, Failure, Output, Result};

pub(crate) fn run(_: &Server, _: &ShowArgs, _: Output) -> Result<ExitCode> {
    Err(Failure::new(Code::Internal, "not built yet"))
}
