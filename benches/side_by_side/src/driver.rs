//! A driver that runs: commands in, answers out (`benches/peers/README.md`).

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::spawned::Spawned;
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
    process: Spawned,
    orders: ChildStdin,
    answers: Receiver<String>,
    /// The first word of the last order.
    ordered: String,
}

/// An order is done by then, unless it is given a time of its own. Who needs longer is not
/// waited for.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

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
        let mut command = Command::new(program);
        command.args(arguments).args([&recipe.name, url]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Spawned::start(&mut command, None)?;
        let (orders, output) = process.pipes().ok_or("no pipes")?;
        let lines = BufReader::new(output).lines();
        let (said, answers) = mpsc::channel();
        thread::spawn(move || {
            lines.map_while(|line| line.ok()).try_for_each(|line| said.send(line))
        });
        let (name, version) = (recipe.name.clone(), String::new());
        let ordered = "start".to_owned();
        let mut driver = Driver { name, version, process, orders, answers, ordered };
        let hello = driver.hear(LONGEST)?;
        if hello.word != "ready" {
            return Err(hello.line.into());
        }
        driver.version = hello.line.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(driver)
    }

    /// Gives an order and waits for the answer.
    pub(crate) fn ask(&mut self, order: &str, hoped: &str) -> Result<Option<Answer>> {
        self.order(order)?;
        self.answer(hoped, LONGEST)
    }

    /// Gives an order. Its answer is to be taken before the next.
    pub(crate) fn order(&mut self, order: &str) -> Result {
        self.ordered = order.split(' ').next().unwrap_or_default().to_owned();
        writeln!(self.orders, "{order}").map_err(|error| format!("the driver is gone: {error}"))?;
        Ok(self.orders.flush()?)
    }

    pub(crate) fn answer(&mut self, hoped: &str, longest: Duration) -> Result<Option<Answer>> {
        self.hear(longest)?.expect(hoped)
    }

    fn hear(&self, longest: Duration) -> Result<Answer> {
        match self.answers.recv_timeout(longest) {
            Ok(line) => Ok(Answer::parse(&line)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("`{}` did not finish within {} s", self.ordered, longest.as_secs())
                    .into())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(format!("the driver ended at `{}`", self.ordered).into())
            }
        }
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        process::cpu(self.process.pid())
    }

    pub(crate) fn resident(&self) -> Result<u64> {
        process::resident(self.process.pid())
    }

    /// Sockets that it has open.
    pub(crate) fn connections(&self) -> Result<usize> {
        process::sockets(self.process.pid())
    }
}
