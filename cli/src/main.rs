//! The program `leasehold`: runs commands under distributed locks, and shows who holds them.
//!
//! `args` is the command line; `address` finds the server; `failure` has the exit codes. Each verb
//! has a module: `run`, which also has `once`, and those in `holder`, `views`, `top` and
//! `timeline`. `observe` compares successive looks at locks and tells the events between them;
//! `watch`, `top` and `timeline` use it.

mod address;
mod args;
mod documents;
mod duration;
mod failure;
mod holder;
mod observe;
mod run;
mod timeline;
mod top;
mod views;

use std::process::ExitCode;

use args::{Arguments, Verb};
use failure::Result;

fn main() -> ExitCode {
    if let Some(code) = run::run_if_asked() {
        return code;
    }
    match Arguments::read().and_then(perform) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// Performs the verb. Returns the exit code of the program.
fn perform(arguments: Arguments) -> Result<ExitCode> {
    let output = arguments.output;
    match arguments.verb {
        Verb::Run(run) => run::run(&arguments.server, &run),
        Verb::Once(once) => run::once(&arguments.server, &once),
        Verb::Acquire(acquire) => holder::acquire(&arguments.server, &acquire),
        Verb::Extend(extend) => holder::extend(&arguments.server, &extend),
        Verb::Release(release) => holder::release(&arguments.server, &release),
        Verb::Ls(ls) => views::ls::run(&arguments.server, &ls, output),
        Verb::Show(show) => views::show::run(&arguments.server, &show, output),
        Verb::Watch(watch) => views::watch::run(&arguments.server, &watch, output),
        Verb::Force(force) => views::force::run(&arguments.server, &force, output),
        Verb::Audit => views::audit::run(&arguments.server, output),
        Verb::Top(top) => top::run(&arguments.server, &top),
        Verb::Timeline(timeline) => timeline::run(&arguments.server, &timeline),
        Verb::Completions { shell } => documents::completions(shell),
        Verb::Man => documents::man(),
    }
}
