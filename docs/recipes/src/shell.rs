//! The shell lines of the recipes, and a run of them with stand-ins for the programs they start.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::RECIPES;

/// The seconds after which `timeout` ends a block: with TERM, then with KILL.
const LIMIT: &str = "60";
const GRACE: &str = "5";

/// The stand-in for a program, and the file to which it appends its name. The stand-in is a link,
/// because a file that was just written cannot be executed while another thread forks.
const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stand-ins/program");
const STARTED: &str = "started";

/// A block of shell lines in `docs/recipes.md`.
#[derive(Clone, Debug)]
pub struct ShellBlock {
    line: usize,
    text: String,
}

/// The end of a block's run.
#[derive(Debug)]
pub struct ShellRun {
    /// The exit status and the output of the shell.
    pub output: Output,
    /// The programs that ran, in the order of their starts.
    pub started: Vec<String>,
}

/// Returns the blocks of `docs/recipes.md` that open with `sh`, in their order.
pub fn shell_blocks() -> Vec<ShellBlock> {
    let mut blocks = Vec::new();
    let mut lines = RECIPES.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.starts_with("```") {
            let text = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let text = text.collect::<Vec<_>>().join("\n");
            if line == "```sh" {
                blocks.push(ShellBlock { line: number + 1, text });
            }
        }
    }
    blocks
}

impl ShellBlock {
    /// Returns the number of the line that opens the block.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the shell lines.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the names of the programs that the block starts: its words with `./` in front.
    pub fn programs(&self) -> Vec<String> {
        let words = self.text.split_whitespace().filter_map(|word| word.strip_prefix("./"));
        words.map(str::to_owned).collect()
    }

    /// Runs the block with bash, `leasehold` as the program of that name, and `REDIS_URL`.
    ///
    /// The block runs in a temporary folder, where each of its [programs](Self::programs) is a
    /// stand-in that ends at once. A block that does not end within a minute is killed.
    ///
    /// # Errors
    /// The folder cannot be written, or the program `timeout` does not start.
    pub fn run(&self, leasehold: &Path, url: &str) -> io::Result<ShellRun> {
        let folder = TempDir::with_prefix("leasehold-")?;
        symlink(leasehold, folder.path().join("leasehold"))?;
        for program in self.programs() {
            symlink(STAND_IN, folder.path().join(program))?;
        }
        let path = format!("{}:{}", folder.path().display(), env::var("PATH").unwrap_or_default());
        let mut command = Command::new("timeout");
        command.args(["--kill-after", GRACE, LIMIT, "bash", "-eu", "-c", &self.text]);
        command.current_dir(folder.path()).env("PATH", path).env("REDIS_URL", url);
        command.env_remove("LEASEHOLD_URL");
        let output = command.output()?;
        let started = fs::read_to_string(folder.path().join(STARTED)).unwrap_or_default();
        Ok(ShellRun { output, started: started.lines().map(str::to_owned).collect() })
    }
}
