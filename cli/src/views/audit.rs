//! `leasehold audit`: settings of the servers that endanger locks.

use std::process::ExitCode;

use leasehold::AuditFinding;
use serde::Serialize;

use super::{print, text};
use crate::address::Server;
use crate::failure::{Code, Output, Result, with_own_settings};

/// An element of `audit --json`.
#[derive(Debug, Serialize)]
struct Finding<'a> {
    server: &'a str,
    finding: String,
}

pub(crate) fn run(server: &Server, output: Output) -> Result<ExitCode> {
    let findings = server.connect()?.audit()?;
    let line = |it: &AuditFinding| {
        text::printable(&with_own_settings(&it.to_string())).into_owned() + "\n"
    };
    let shown = match output {
        Output::Json => {
            let views = findings
                .iter()
                .map(|it| Finding { server: &it.server, finding: with_own_settings(&it.text) });
            print::json_array(views)?
        }
        Output::Text => findings.iter().map(line).collect(),
    };
    print::print(&shown)?;
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { Code::Negative.into() })
}
