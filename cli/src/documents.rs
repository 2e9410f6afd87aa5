//! Shell completions and the man page, made from the command line's definition.

use std::io;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::CommandLine;
use crate::failure::Result;

/// Prints the completions for a shell.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode> {
    clap_complete::generate(shell, &mut CommandLine::command(), "leasehold", &mut io::stdout());
    Ok(ExitCode::SUCCESS)
}

/// Prints the man page.
pub(crate) fn man() -> Result<ExitCode> {
    clap_mangen::Man::new(CommandLine::command()).render(&mut io::stdout())?;
    Ok(ExitCode::SUCCESS)
}
