//! A running driver, which gets commands and sends answers (`benches/peers/README.md`).

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::spawned::Spawned;
use crate::{Result, process};

/// The name of a contender, and the command that starts its driver.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
}

pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) version: String,
    process: Spawned,
    commands: ChildStdin,
    answers: Receiver<String>,
    /// The first word of the last command.
    last_command: String,
}

/// The time-out of a command that has no time-out of its own.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// An answer line of a driver.
#[derive(Debug)]
pub(crate) struct Answer {
    word: String,
    fields: HashMap<String, String>,
    line: String,
}

impl Answer {
    fn parse(line: &str) -> Answer {
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default().to_owned();
        let fields = words.filter_map(|word| word.split_once('='));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Answer { word, fields, line: line.to_owned() }
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.fields.get(name)?.parse().ok()
    }
}

impl Driver {
    /// Starts a driver. Returns an error with the reason if it does not run.
    pub(crate) fn start(recipe: &Recipe, url: &str) -> Result<Driver> {
        let (program, arguments) = recipe.command.split_first().ok_or("an empty command")?;
        let mut command = Command::new(program);
        command.args(arguments).args([&recipe.name, url]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Spawned::start(&mut command, None)?;
        let (commands, output) = process.pipes().ok_or("no pipes")?;
        let lines = BufReader::new(output).lines();
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in lines.map_while(|line| line.ok()) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let (name, version) = (recipe.name.clone(), String::new());
        let last_command = "start".to_owned();
        let mut driver = Driver { name, version, process, commands, answers, last_command };
        let first = driver.next_answer(LONGEST)?;
        if first.word != "ready" {
            return Err(first.line.into());
        }
        driver.version = first.line.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(driver)
    }

    /// Sends a command and waits for the answer that begins with `expected`.
    pub(crate) fn ask(&mut self, command: &str, expected: &str) -> Result<Option<Answer>> {
        self.send(command)?;
        self.answer(expected, LONGEST)
    }

    /// Sends a command. Its answer must be read before the next command.
    pub(crate) fn send(&mut self, command: &str) -> Result {
        self.last_command = command.split(' ').next().unwrap_or_default().to_owned();
        writeln!(self.commands, "{command}")
            .map_err(|error| format!("the driver is gone: {error}"))?;
        Ok(self.commands.flush()?)
    }

    /// Waits for the answer to the last command, which has to begin with `expected`. Returns `None`
    /// if the command is unsupported.
    pub(crate) fn answer(&mut self, expected: &str, longest: Duration) -> Result<Option<Answer>> {
        let answer = self.next_answer(longest)?;
        match answer.word.as_str() {
            "unsupported" => Ok(None),
            word if word == expected => Ok(Some(answer)),
            _ => Err(answer.line.into()),
        }
    }

    fn next_answer(&self, longest: Duration) -> Result<Answer> {
        match self.answers.recv_timeout(longest) {
            Ok(line) => Ok(Answer::parse(&line)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let (command, seconds) = (&self.last_command, longest.as_secs());
                Err(format!("`{command}` did not finish within {seconds} s").into())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(format!("the driver ended at `{}`", self.last_command).into())
            }
        }
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        process::cpu(self.process.pid())
    }

    pub(crate) fn resident(&self) -> Result<u64> {
        process::resident(self.process.pid())
    }

    /// Returns the number of open sockets.
    pub(crate) fn connections(&self) -> Result<usize> {
        process::sockets(self.process.pid())
    }
}
