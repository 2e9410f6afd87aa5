//! `leasehold ls`.

use std::process::ExitCode;

use crate::address::Server;
use crate::args::LsArgs;
use crate::failure::{Code, Failure, Output, Result};

pub(crate) fn run(_: &Server, _: &LsArgs, _: Output) -> Result<ExitCode> {
    Err(Failure::new(Code::Internal, "not built yet"))
}
