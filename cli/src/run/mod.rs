//! `leasehold run`.

use std::process::ExitCode;

use crate::address::Server;
use crate::args::RunArgs;
use crate::failure::{Code, Failure, Result};

pub(crate) fn run(_: &Server, _: &RunArgs) -> Result<ExitCode> {
    Err(Failure::new(Code::Internal, "not built yet"))
}
