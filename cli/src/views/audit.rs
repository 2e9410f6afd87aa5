//! `leasehold audit`.

use std::process::ExitCode;

use crate::address::Server;
use crate::failure::{Code, Failure, Output, Result};

pub(crate) fn run(_: &Server, _: Output) -> Result<ExitCode> {
    Err(Failure::new(Code::Internal, "not built yet"))
}
