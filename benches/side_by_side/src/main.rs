//! Measures leasehold, its floor and its peers on one server in one run, and prints
//! tables of ratios. Started by `script/bench`, which builds the drivers first:
//!
//! `side-by-side --peers FILE [--works a,b] [--contenders a,b] [--rounds N]
//! [--millis M] [--threads 1,8] [--paths tcp,unix] [--size small|full] [--out FOLDER]`
//!
//! FILE has a line per contender: its name, and the command that starts its driver
//! (`benches/peers/README.md`), parted by a tab; or a `-` and why it cannot be had.

mod chart;
mod driver;
mod machine;
mod process;
mod records;
mod report;
mod run;
mod server;
mod sheet;
mod works;

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use driver::Recipe;
use run::{Run, Sizes};
use server::{Path as ServerPath, Server};
use sheet::Table;

type Failure = Box<dyn Error + Send + Sync>;
type Result<T = (), E = Failure> = std::result::Result<T, E>;

type Work = fn(&mut Run) -> Result<Vec<Table>>;

const WORKS: [(&str, Work); 7] = [
    ("uncontended", works::uncontended::measure),
    ("nested", works::nested::measure),
    ("threads", works::threads::measure),
    ("processes", works::processes::measure),
    ("held", works::held::measure),
    ("waiters", works::waiters::measure),
    ("handles", works::handles::measure),
];

fn main() -> Result {
    let options = options()?;
    let wanted = |list: &str, name: &str| {
        options.get(list).is_none_or(|wanted| wanted.split(',').any(|one| one == name))
    };
    let peers = options.get("peers").ok_or("--peers is missing")?;
    let (recipes, absent) = recipes(&fs::read_to_string(peers)?);
    let recipes = recipes.into_iter().filter(|recipe| wanted("contenders", &recipe.name));
    let mut run = Run {
        server: Server::start()?,
        recipes: recipes.collect(),
        sizes: sizes(&options)?,
        folder: tempfile::tempdir()?,
        absent,
        versions: Vec::new(),
    };
    let mut tables = Vec::new();
    for (_, measure) in WORKS.iter().filter(|(name, _)| wanted("works", name)) {
        for table in measure(&mut run)? {
            println!("{}", table.markdown());
            tables.push(table);
        }
        run.server.clear()?;
    }
    let text = report::text(&mut run, &tables)?;
    if let Some(folder) = options.get("out") {
        report::write(Path::new(folder), &text, &tables)?;
    }
    Ok(())
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
    let small = options.get("size").is_some_and(|size| size == "small");
    let number = |name: &str, default: u64| -> Result<u64> {
        options.get(name).map_or(Ok(default), |text| Ok(text.parse()?))
    };
    let pick = |full: usize, less: usize| if small { less } else { full };
    Ok(Sizes {
        rounds: usize::try_from(number("rounds", if small { 1 } else { 9 })?)?,
        round: Duration::from_millis(number("millis", if small { 100 } else { 1_000 })?),
        processes: pick(16, 2),
        held: pick(100_000, 0),
        waiters: pick(10_000, 100),
        handles: pick(1_000_000, 1_000),
        threads: numbers(options.get("threads"), &[1, 8, 64])?,
        paths: paths(options.get("paths")),
    })
}

fn numbers(list: Option<&String>, default: &[usize]) -> Result<Vec<usize>> {
    let Some(list) = list else { return Ok(default.to_vec()) };
    list.split(',').map(|number| Ok(number.parse()?)).collect()
}

fn paths(list: Option<&String>) -> Vec<ServerPath> {
    let all = [("tcp", ServerPath::Tcp), ("unix", ServerPath::Unix)].into_iter();
    let wanted = |name: &str| list.is_none_or(|list| list.split(',').any(|one| one == name));
    all.filter(|(name, _)| wanted(name)).map(|(_, path)| path).collect()
}

/// Who can be had, and who cannot and why.
fn recipes(list: &str) -> (Vec<Recipe>, Vec<String>) {
    let (mut recipes, mut absent) = (Vec::new(), Vec::new());
    for line in list.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [name, "-", why] => absent.push(format!("{name}: {why}")),
            [name, command] => recipes.push(Recipe {
                name: name.to_owned(),
                command: command.split(' ').map(str::to_owned).collect(),
            }),
            _ => {}
        }
    }
    (recipes, absent)
}
