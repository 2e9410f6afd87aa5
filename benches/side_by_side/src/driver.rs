//! A driver that runs: commands in, answers out (`benches/peers/README.md`).

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::{Result, process};

/// How one contender is started.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
}

pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) version: String,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

/// A driver that says nothing for that long has gone wrong.
const LONGEST_SILENCE: Duration = Duration::from_secs(180);

/// A line that a driver said.
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

    /// The answer, if it is the one that was hoped for. `None` if the library has
    /// nothing of the kind.
    fn expect(self, word: &str) -> Result<Option<Answer>> {
        match self.word.as_str() {
            "unsupported" => Ok(None),
            said if said == word => Ok(Some(self)),
            _ => Err(self.line.into()),
        }
    }
}

impl Driver {
    /// Starts a driver; `Err` says why it does not run.
    pub(crate) fn start(recipe: &Recipe, url: &str) -> Result<Driver> {
        let (program, arguments) = recipe.command.split_first().ok_or("an empty command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .args([&recipe.name, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let orders = child.stdin.take().ok_or("no standard input")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
        let (said, answers) = mpsc::channel();
        thread::spawn(move || {
            lines.map_while(|line| line.ok()).try_for_each(|line| said.send(line))
        });
        let (name, version) = (recipe.name.clone(), String::new());
        let mut driver = Driver { name, version, child, orders, answers };
        let hello = driver.hear(LONGEST_SILENCE)?;
        if hello.word != "ready" {
            return Err(hello.line.into());
        }
        driver.version = hello.line.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(driver)
    }

    /// Gives an order and waits for the answer.
    pub(crate) fn ask(&mut self, order: &str, hoped: &str) -> Result<Option<Answer>> {
        self.order(order)?;
        self.answer(hoped)
    }

    /// Gives an order. Its answer is to be taken before the next.
    pub(crate) fn order(&mut self, order: &str) -> Result {
        writeln!(self.orders, "{order}")?;
        Ok(self.orders.flush()?)
    }

    pub(crate) fn answer(&mut self, hoped: &str) -> Result<Option<Answer>> {
        self.answer_within(hoped, LONGEST_SILENCE)
    }

    pub(crate) fn answer_within(
        &mut self,
        hoped: &str,
        longest: Duration,
    ) -> Result<Option<Answer>> {
        let answer = self.hear(longest).and_then(|answer| answer.expect(hoped));
        answer.map_err(|error| format!("{}: {error}", self.name).into())
    }

    fn hear(&self, longest: Duration) -> Result<Answer> {
        match self.answers.recv_timeout(longest) {
            Ok(line) => Ok(Answer::parse(&line)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("no answer within {} s", longest.as_secs()).into())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err("the driver has ended".into()),
        }
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        process::cpu(self.child.id())
    }

    pub(crate) fn resident(&self) -> Result<u64> {
        process::resident(self.child.id())
    }

    /// Sockets that it has open.
    pub(crate) fn connections(&self) -> Result<usize> {
        process::sockets(self.child.id())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
