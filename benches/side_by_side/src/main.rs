//! Measures leasehold, its floor and its peers on one server in one run.
//!
//! Prints tables of figures and ratios. `script/bench` builds the drivers and starts it:
//!
//! `side-by-side --peers FILE [--works a,b] [--contenders a,b] [--rounds N]
//! [--millis M] [--threads 1,8] [--processes 2,4] [--turns 2x1,8x8] [--held 1000] [--waiters N]
//! [--paths tcp,unix]
//! [--size small|medium|full] [--out FOLDER] [--strict yes]`
//!
//! A contender is a library in one way of use. A work is one workload, such as `uncontended`.
//!
//! A contender that fails is named in the report and does not end the run. With `--strict`, the run
//! fails at its end if a contender has no row in a table.
//!
//! FILE has a line per contender: its name, a tab, and the command that starts its driver
//! (`benches/peers/README.md`). Without a driver: its name, a tab, a `-`, a tab, and the reason.

mod chart;
mod contenders;
mod driver;
mod machine;
mod process;
mod records;
mod report;
mod run;
mod server;
mod spawned;
mod table;
mod works;

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use driver::Recipe;
use run::{Run, Sizes, say};
use server::{Path as ServerPath, Server};
use table::Table;
use works::turns::Shape;

type Failure = Box<dyn Error + Send + Sync>;
type Result<T = (), E = Failure> = std::result::Result<T, E>;

type Work = fn(&mut Run) -> Result<Vec<Table>>;

const WORKS: [(&str, Work); 10] = [
    ("uncontended", works::uncontended::measure),
    ("nested", works::nested::measure),
    ("threads", works::threads::measure),
    ("processes", works::processes::measure),
    ("turns", works::turns::measure),
    ("meetings", works::meetings::measure),
    ("held", works::held::measure),
    ("waiters", works::waiters::measure),
    ("handles", works::handles::measure),
    ("semaphore", works::semaphore::measure),
];

fn main() -> Result {
    let options = options()?;
    let wanted = |list: &str, name: &str| {
        options.get(list).is_none_or(|wanted| wanted.split(',').any(|one| one == name))
    };
    let peers = options.get("peers").ok_or("--peers is missing")?;
    let (recipes, absent) = recipes(&fs::read_to_string(peers)?, |name| wanted("contenders", name));
    let mut run = Run {
        server: Server::start()?,
        recipes,
        sizes: sizes(&options)?,
        absent,
        versions: Vec::new(),
    };
    let mut tables = Vec::new();
    for (name, measure) in WORKS.iter().filter(|(name, _)| wanted("works", name)) {
        let begin = Instant::now();
        for table in measure(&mut run)? {
            println!("{}", table.markdown());
            tables.push(table);
        }
        run.server.clear()?;
        say(&format!("{name} took {} s", begin.elapsed().as_secs()));
        // Written after each work, so that an interrupted run leaves a report.
        if let Some(folder) = options.get("out") {
            let text = report::text(&mut run, &tables)?;
            report::write(Path::new(folder), &text, &tables)?;
        }
    }
    if options.contains_key("strict") { complete(&run, &tables) } else { Ok(()) }
}

/// Returns an error if a contender was not measured or does not support a work.
fn complete(run: &Run, tables: &[Table]) -> Result {
    let rows = tables.iter().flat_map(|table| {
        table.missing().map(move |name| format!("no row for {name} in \"{}\"", table.title))
    });
    let wrong: Vec<String> = run.absent.iter().cloned().chain(rows).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
}

fn options() -> Result<HashMap<String, String>> {
    let mut options = HashMap::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let name = name.strip_prefix("--").ok_or_else(|| format!("{name}: not an option"))?;
        let value = arguments.next().ok_or_else(|| format!("--{name} has no value"))?;
        options.insert(name.to_owned(), value);
    }
    Ok(options)
}

fn sizes(options: &HashMap<String, String>) -> Result<Sizes> {
    let number = |name: &str, default: u64| -> Result<u64> {
        options.get(name).map_or(Ok(default), |text| Ok(text.parse()?))
    };
    let list = |name: &str, default: &[usize]| -> Result<Vec<usize>> {
        let Some(list) = options.get(name) else { return Ok(default.to_vec()) };
        list.split(',').map(|number| Ok(number.parse()?)).collect()
    };
    let size = options.get("size").map_or("full", String::as_str);
    let [rounds, millis, lease, waiters, handles] = match size {
        "small" => [1, 100, 2, 100, 1_000],
        "medium" => [2, 300, 6, 1_000, 100_000],
        "full" => [7, 500, 12, 10_000, 1_000_000],
        _ => return Err(format!("{size}: not a size").into()),
    };
    let (processes, held): (&[usize], &[usize]) = match size {
        "small" => (&[2], &[100]),
        "medium" => (&[2, 8], &[1_000, 10_000]),
        _ => (&[2, 4, 8, 16], &[1_000, 10_000, 100_000]),
    };
    let turns = match size {
        "small" => "2x1,2x2",
        "medium" => "2x1,8x1,2x8",
        _ => "2x1,4x1,8x1,16x1,64x1,1x64,8x8",
    };
    Ok(Sizes {
        rounds: usize::try_from(number("rounds", rounds)?)?,
        round: Duration::from_millis(number("millis", millis)?),
        lease: Duration::from_secs(number("lease", lease)?),
        waiters: usize::try_from(number("waiters", waiters)?)?,
        handles: usize::try_from(number("handles", handles)?)?,
        processes: list("processes", processes)?,
        turns: shapes(options.get("turns").map_or(turns, String::as_str))?,
        held: list("held", held)?,
        threads: list("threads", &[1, 8, 64])?,
        paths: paths(options.get("paths")),
    })
}

/// Parses processes and threads, such as `2x1,8x8`.
fn shapes(list: &str) -> Result<Vec<Shape>> {
    let shape = |text: &str| -> Result<Shape> {
        let (processes, threads) = text.split_once('x').ok_or("--turns: PROCESSESxTHREADS,..")?;
        Ok(Shape { processes: processes.parse()?, threads: threads.parse()? })
    };
    list.split(',').map(shape).collect()
}

fn paths(list: Option<&String>) -> Vec<ServerPath> {
    let all = [("tcp", ServerPath::Tcp), ("unix", ServerPath::Unix)].into_iter();
    let wanted = |name: &str| list.is_none_or(|list| list.split(',').any(|one| one == name));
    all.filter(|(name, _)| wanted(name)).map(|(_, path)| path).collect()
}

/// Returns the drivers of the wanted contenders, and a line for each that has none.
fn recipes(list: &str, wanted: impl Fn(&str) -> bool) -> (Vec<Recipe>, Vec<String>) {
    let (mut recipes, mut absent) = (Vec::new(), Vec::new());
    for line in list.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [name, ..] if !wanted(name) => {}
            [name, "-", reason] => absent.push(format!("not run: {name}: {reason}")),
            [name, command] => recipes.push(Recipe {
                name: name.to_owned(),
                command: command.split(' ').map(str::to_owned).collect(),
            }),
            _ => {}
        }
    }
    (recipes, absent)
}
