//! `leasehold top`.

use std::process::ExitCode;

use crate::address::Server;
use crate::args::TopArgs;
use crate::failure::{Code, Failure, Result};

pub(crate) fn run(_: &Server, _: &TopArgs) -> Result<ExitCode> {
    Err(Failure::new(Code::Internal, "not built yet"))
}
