//! The picture of `top` in the README: the screen during real work.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::harness::Server;
use crate::harness::spawned::Spawned;
use crate::svg;
use crate::terminal::Terminal;
use crate::workload::Work;
use vt100::Screen;

/// The largest size of the picture, in bytes.
const LARGEST: usize = 60_000;

/// The text for readers who do not see the picture.
const TITLE: &str = "leasehold top: the locks of a shop with kind, age, lease left, waiting \
    callers, hand-offs per second, host, pid, program and label of the holder";

/// Processes of a shop on several hosts.
const WORKS: [Work; 26] = [
    Work::new("checkout", "blue", "plain", "orders:42").on("web-1").with_rhythm(4, 1, 3),
    Work::new("checkout", "green", "plain", "orders:42").on("web-2").with_rhythm(4, 1, 3),
    Work::new("checkout", "blue", "queue", "seats:A12").on("web-1").with_rhythm(40, 3, 2),
    Work::new("checkout", "green", "queue", "seats:A12").on("web-2").with_rhythm(40, 3, 2),
    Work::new("checkout", "green", "queue", "seats:A12").on("web-3").with_rhythm(40, 3, 2),
    Work::new("payments", "blue", "fenced", "ledger:eu").on("web-1").with_rhythm(15, 20, 1),
    Work::new("payments", "green", "fenced", "ledger:eu").on("web-2").with_rhythm(15, 20, 1),
    Work::new("payments", "green", "fenced", "ledger:us").on("web-3").with_rhythm(50, 20, 2),
    Work::new("reports", "leader", "queue", "leader:reports").on("job-1"),
    Work::new("reports", "standby", "queue", "leader:reports").on("job-2"),
    Work::new("reports", "standby", "queue", "leader:reports").on("job-3"),
    Work::new("invoices", "cron", "plain", "cron:invoices").on("job-1"),
    Work::new("invoices", "cron", "plain", "cron:invoices").on("job-2"),
    Work::new("migrate", "v42", "plain", "migration:shop").on("job-2"),
    Work::new("search", "blue", "read", "catalogue").on("web-1").with_rhythm(90_000, 9, 2),
    Work::new("search", "green", "read", "catalogue").on("web-2").with_rhythm(90_000, 9, 2),
    Work::new("importer", "nightly", "write", "prices").on("job-3").with_rhythm(1500, 20, 2),
    Work::new("mailer", "blue", "fair", "smtp:relay").on("web-1").with_rhythm(250, 20, 1),
    Work::new("mailer", "green", "fair", "smtp:relay").on("web-2").with_rhythm(250, 20, 1),
    Work::new("mailer", "green", "fair", "smtp:relay").on("web-3").with_rhythm(250, 20, 1),
    Work::new("images", "blue", "plain", "thumbnails:7").on("web-1").with_rhythm(120, 60, 2),
    Work::new("images", "green", "plain", "thumbnails:7").on("web-2").with_rhythm(120, 60, 2),
    Work::new("exporter", "nightly", "fenced", "export:weekly").on("job-3"),
    Work::new("sessions", "blue", "plain", "sessions:cleanup").on("web-3"),
    Work::new("sync", "warehouse", "write", "stock:berlin").on("job-1").with_rhythm(900, 60, 1),
    Work::new("compact", "nightly", "plain", "archive:2026-11").on("job-1"),
];

#[test]
#[ignore = "writes a picture; script/pictures-top runs it"]
fn the_screen_of_top_as_a_picture() {
    let server = Server::start();
    let _processes: Vec<Spawned> = WORKS.iter().map(|work| work.start(&server)).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.env_remove("NO_COLOR").args(["--url", &server.url(), "top", "--sort", "handoffs"]);
    let mut terminal = Terminal::start(&command, 24, 100);
    terminal.wait_for("all locks", |screen| {
        WORKS.iter().all(|work| screen.contents().contains(work.lock))
    });
    terminal.press("\x1b[B\x1b[B");
    // Until each client has been seen twice, the hand-offs have lower bounds.
    let is_counted = |screen: &Screen| !screen.contents().contains(" >") && is_settled(screen);
    terminal.wait_for("counted hand-offs", is_counted);
    let picture = svg::picture(&terminal.screen(), TITLE);
    assert!(picture.len() < LARGEST, "{} bytes", picture.len());
    let path = path();
    fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
    fs::write(&path, picture).expect("the folder is writable");
    println!("{}\n{}", path.display(), terminal.framed());
}

/// Returns whether the oldest hold is that old that all processes are known.
fn is_settled(screen: &Screen) -> bool {
    let ages = screen
        .rows(0, 100)
        .filter_map(|row| row.split_whitespace().nth(2)?.strip_suffix('s')?.parse::<f64>().ok());
    ages.fold(0.0, f64::max) > 20.0
}

/// Returns the path of the picture: `LEASEHOLD_PICTURE`, else that of the README.
fn path() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/top.svg");
    env::var_os("LEASEHOLD_PICTURE").map_or_else(own, PathBuf::from)
}
