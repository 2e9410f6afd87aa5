//! Shell completions and the man page, made from the command line's definition.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args;
use crate::failure::Result;
use crate::views::print;

/// Prints the completions for a shell.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::definition(), "leasehold", &mut script);
    print::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the man page: the program, and a section for each verb.
pub(crate) fn man() -> Result<ExitCode> {
    let definition = args::definition();
    let mut page = Vec::new();
    let program = Man::new(definition.clone()).title("LEASEHOLD");
    program.render_title(&mut page)?;
    program.render_name_section(&mut page)?;
    parts(&definition, &mut page)?;
    for verb in definition.get_subcommands() {
        section(verb, &mut page)?;
    }
    print::print(&String::from_utf8_lossy(&page))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the section of a verb, whose own sections become subsections.
fn section(verb: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let mut text = Vec::new();
    // The options of the program are in its own section.
    let verb = verb.clone().disable_help_flag(true);
    parts(&verb.clone().bin_name(format!("leasehold {}", verb.get_name())), &mut text)?;
    writeln!(page, ".SH \"LEASEHOLD {}\"", verb.get_name().to_uppercase())?;
    page.write_all(String::from_utf8_lossy(&text).replace(".SH ", ".SS ").as_bytes())
}

/// Writes the sections that the program and each verb have.
fn parts(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    let mut notes = Vec::new();
    if command.get_after_help().or(command.get_after_long_help()).is_some() {
        man.render_extra_section(&mut notes)?;
    }
    page.write_all(String::from_utf8_lossy(&notes).replace(".SH EXTRA", ".SH NOTES").as_bytes())
}
