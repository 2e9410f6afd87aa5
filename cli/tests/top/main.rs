//! `leasehold top` in a pseudo-terminal.

use leasehold_harness as harness;
mod load;
mod still;
mod svg;
#[path = "../support/terminal.rs"]
mod terminal;
mod workload;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Server, eventually};
use leasehold::{Client, Guard};
use rustix::process::Signal;
use terminal::Terminal;
use workload::Work;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Returns the command of `top` for this server.
fn top(server: &Server) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    // The environment of the tests must not change the colours or the server.
    command.env_remove("NO_COLOR").env("LEASEHOLD_URL", server.url()).arg("top");
    command
}

fn start(server: &Server) -> Terminal {
    Terminal::start(&top(server), 24, 100)
}

fn client(server: &Server) -> Client {
    let builder = Client::builder().single(server.url()).label("tests");
    builder.build().expect("the server runs")
}

/// Takes plain locks with these names.
fn hold(client: &Client, names: &[&str]) -> Vec<Guard> {
    names.iter().map(|name| client.lock(*name).lock().expect("the lock is free")).collect()
}

/// Returns the row of a lock.
fn row(screen: &vt100::Screen, lock: &str) -> Option<String> {
    let columns = screen.size().1.get();
    screen.rows(0, columns).find(|row| row.starts_with(lock))
}

/// Blocks until the row of a lock has all of these parts.
#[track_caller]
fn wait_for_row(terminal: &Terminal, lock: &str, parts: &[&str]) {
    let has_all = |row: String| parts.iter().all(|part| row.contains(part));
    let what = format!("a row {lock:?} with {parts:?}");
    terminal.wait_for(&what, |screen| row(screen, lock).is_some_and(has_all));
}

/// Blocks until these locks have rows, in this order.
#[track_caller]
fn wait_for_order(terminal: &Terminal, locks: &[&str]) {
    let what = format!("rows in the order {locks:?}");
    terminal.wait_for(&what, |screen| {
        let columns = screen.size().1.get();
        let names = screen.rows(0, columns).filter_map(|row| {
            let name = row.split(' ').next()?.to_owned();
            locks.contains(&&*name).then_some(name)
        });
        names.eq(locks.iter().copied())
    });
}

/// Asserts that the terminal is as a shell expects it.
#[track_caller]
fn assert_restored(terminal: &Terminal) {
    let screen = terminal.screen();
    assert!(!screen.alternate_screen() && !screen.hide_cursor(), "{}", terminal.framed());
    assert!(terminal.edits_lines());
}

#[test]
fn a_terminal_of_a_test_has_a_size_keys_and_a_foreground() {
    let script = "stty size; read x; echo got $x; stty size; stty raw; read y; exit 7";
    let mut terminal = Terminal::start(&shell(script), 24, 80);
    terminal.wait_for_text("24 80");
    assert!(terminal.edits_lines());
    assert_eq!(terminal.foreground(), Some(terminal.pid()));
    terminal.resize(30, 100);
    terminal.press("abc\r");
    terminal.wait_for_text("got abc");
    terminal.wait_for_text("30 100");
    eventually("the shell sets the mode", || !terminal.edits_lines());
    terminal.press("\n");
    assert_eq!(terminal.wait().code(), Some(7));
}

#[test]
fn the_end_of_a_terminal_ends_all_processes_of_its_session() {
    let script = "trap '' HUP TERM; sleep 600 & echo $!; exec sleep 600";
    let terminal = Terminal::start(&shell(script), 24, 80);
    terminal.wait_for("a process id", |screen| screen.contents().trim().parse::<u32>().is_ok());
    let process = format!("/proc/{}/stat", terminal.text().trim());
    drop(terminal);
    // A process that has ended may still wait for its parent: state Z.
    let runs = || fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z"));
    eventually("the process ends", || !runs());
}

#[test]
fn locks_of_all_kinds_have_rows_with_their_holders() {
    let server = Server::start();
    let client = client(&server);
    let held = "the lock is free";
    let _plain = client.lock("plain").lock().expect(held);
    let _fair = client.fair_lock("fair").lock().expect(held);
    let _fenced = client.fenced_lock("fenced").lock().expect(held);
    let _queue = client.queue_lock("queue").lock().expect(held);
    let _read = client.rw_lock("read").read().expect(held);
    let _write = client.rw_lock("write").write().expect(held);
    let terminal = start(&server);
    let pid = std::process::id().to_string();
    for (name, kind) in [
        ("plain", "plain"),
        ("fair", "fair"),
        ("fenced", "fenced"),
        ("queue", "queue"),
        ("read", "read"),
        ("write", "write"),
    ] {
        wait_for_row(&terminal, name, &[kind, &pid, "top-", "tests", "locks_"]);
    }
    terminal.wait_for_text("6 locks, 6 holders, 0 waiting");
    terminal.wait_for_text(&format!("leasehold top  127.0.0.1:{}", server.port()));
}

#[test]
fn keys_sort_filter_follow_and_quit() {
    let server = Server::start();
    let client = client(&server);
    let _guards = hold(&client, &["orders:2", "orders:1", "users:1"]);
    let mut terminal = start(&server);
    wait_for_order(&terminal, &["orders:2", "orders:1", "users:1"]);
    terminal.press("n");
    wait_for_order(&terminal, &["orders:1", "orders:2", "users:1"]);
    terminal.press("r");
    wait_for_order(&terminal, &["users:1", "orders:2", "orders:1"]);
    terminal.press(">\x0c");
    terminal.wait_for_text("AGE▲");
    terminal.press("n/ORD");
    terminal.wait_for_text("filter: ORD");
    terminal.press("\r");
    terminal.wait_for_text("filter \"ORD\": 2 shown");
    wait_for_order(&terminal, &["orders:2", "orders:1"]);
    // The selection was at the lock that the filter hides.
    terminal.press("\x1b[H\x1b[B\r");
    terminal.wait_for_text("HELD by 1 holder");
    assert!(row(&terminal.screen(), "orders:1").is_some(), "{}", terminal.framed());
    terminal.wait_for_text("EVENTS");
    terminal.wait_for_text("held      ");
    terminal.press("?");
    terminal.wait_for_text("follow the selected lock");
    terminal.press("?");
    terminal.wait_for_text("HELD by 1 holder");
    terminal.press("\r");
    wait_for_order(&terminal, &["orders:2", "orders:1"]);
    terminal.press("\x1b");
    wait_for_order(&terminal, &["users:1", "orders:2", "orders:1"]);
    terminal.press("q");
    assert_eq!(terminal.wait().code(), Some(0));
    assert_restored(&terminal);
}

#[test]
fn contended_locks_show_hand_offs_and_waiters() {
    let server = Server::start();
    let work = |kind, lock| Work::new("worker", kind, kind, lock).with_rhythm(2, 1, 2);
    let works = [work("plain", "busy"), work("queue", "ordered"), work("fair", "polite")];
    let _workers: Vec<_> =
        works.iter().flat_map(|work| [work.start(&server), work.start(&server)]).collect();
    let terminal = start(&server);
    for work in &works {
        let what = format!("several hand-offs per second and waiters of {}", work.lock);
        terminal.wait_for(&what, |screen| {
            let row = row(screen, work.lock).unwrap_or_default();
            let cells: Vec<&str> = row.split_whitespace().collect();
            let [_, _, _, _, waiters, rate, .., _label, _thread] = cells[..] else { return false };
            let rate = rate.trim_start_matches('>').strip_suffix("/s").map(str::parse::<f64>);
            rate.is_some_and(|rate| rate.is_ok_and(|rate| rate > 3.0)) && waiters != "0"
        });
        wait_for_row(&terminal, work.lock, &["worker", work.label]);
    }
}

#[test]
fn the_events_of_a_followed_lock_appear() {
    let server = Server::start();
    let client = client(&server);
    let guards = hold(&client, &["orders:42"]);
    let mut terminal = start(&server);
    wait_for_row(&terminal, "orders:42", &[]);
    terminal.press("\r");
    terminal.wait_for_text("held      ");
    drop(guards);
    terminal.wait_for_text("released  ");
    terminal.wait_for_text("FREE");
    let _guard = client.fair_lock("orders:42").lock().expect("the lock is free");
    terminal.wait_for_text("acquired  ");
    terminal.wait_for_text("HELD by 1 holder");
    terminal.wait_for_text("fair lock");
}

#[test]
fn the_screen_follows_the_size_of_the_window() {
    let server = Server::start();
    let client = client(&server);
    let _guards = hold(&client, &["orders:42", "orders:43"]);
    let terminal = Terminal::start(&top(&server), 24, 80);
    wait_for_row(&terminal, "orders:43", &["tests"]);
    terminal.wait_for_no_text("THREAD");
    terminal.resize(30, 120);
    terminal.wait_for_text("THREAD");
    terminal.wait_for("keys in the last row", |screen| {
        screen.rows(0, 120).nth(29).is_some_and(|row| row.starts_with("q quit"))
    });
    terminal.resize(2, 12);
    terminal.wait_for("the smallest table", |screen| {
        let rows: Vec<_> = screen.rows(0, 12).collect();
        rows[0].trim_end() == "LOCK" && rows[1].starts_with("orders:42")
    });
    terminal.resize(24, 80);
    wait_for_row(&terminal, "orders:43", &["tests"]);
}

#[test]
fn an_outage_is_shown_until_the_server_answers_again() {
    let server = Server::start();
    let client = client(&server);
    let guards = hold(&client, &["orders:42"]);
    let mut terminal = start(&server);
    wait_for_row(&terminal, "orders:42", &["tests"]);
    server.kill();
    terminal.wait_for_text("no look for");
    wait_for_row(&terminal, "orders:42", &[]);
    terminal.press("n");
    terminal.wait_for_text("LOCK▼");
    drop(guards);
    server.restart();
    let _after = client.lock("users:1").lock().expect("the server runs again");
    wait_for_row(&terminal, "users:1", &["tests"]);
    terminal.wait_for_no_text("no look for");
    terminal.wait_for_no_text("orders:42");
    terminal.press("q");
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn signals_end_the_program_and_restore_the_terminal() {
    use std::os::unix::process::ExitStatusExt;
    let server = Server::start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = start(&server);
        terminal.wait_for_text("no lock is held");
        assert!(terminal.screen().alternate_screen() && !terminal.edits_lines());
        terminal.signal(signal);
        assert_eq!(terminal.wait().signal(), Some(signal.as_raw()));
        assert_restored(&terminal);
    }
}

#[test]
fn ctrl_z_stops_the_program_and_restores_the_terminal_meanwhile() {
    let server = Server::start();
    let mut terminal = start(&server);
    terminal.wait_for_text("no lock is held");
    terminal.press("\x1a");
    let status = format!("/proc/{}/status", terminal.pid());
    let is_stopped = || fs::read_to_string(&status).is_ok_and(|it| it.contains("\nState:\tT"));
    eventually("the program stops", is_stopped);
    terminal.wait_for("the screen of the shell", |screen| !screen.alternate_screen());
    assert_restored(&terminal);
    let client = client(&server);
    let _guards = hold(&client, &["orders:42"]);
    terminal.signal(Signal::CONT);
    wait_for_row(&terminal, "orders:42", &["tests"]);
    assert!(terminal.screen().alternate_screen() && !terminal.edits_lines());
    terminal.press("q");
    assert_eq!(terminal.wait().code(), Some(0));
    assert_restored(&terminal);
}

#[test]
fn a_paused_screen_stays_and_the_server_has_rest() {
    let server = Server::start();
    let client = client(&server);
    let _before = hold(&client, &["orders:42"]);
    let mut terminal = start(&server);
    wait_for_row(&terminal, "orders:42", &["tests"]);
    terminal.press("p");
    terminal.wait_for_text("PAUSED");
    // A search that runs at the pause ends within the first of these seconds.
    let mut scans = server.calls("scan");
    eventually("a second without a search", || {
        std::thread::sleep(Duration::from_secs(1));
        let before = std::mem::replace(&mut scans, server.calls("scan"));
        before == scans
    });
    let _after = hold(&client, &["users:1"]);
    terminal.press("n");
    terminal.wait_for_text("LOCK▼");
    assert!(row(&terminal.screen(), "users:1").is_none(), "{}", terminal.framed());
    terminal.press("p");
    wait_for_row(&terminal, "users:1", &["tests"]);
}

#[test]
fn names_of_locks_and_holders_cannot_change_the_terminal() {
    let server = Server::start();
    let id = "6ba7b810-9dad-81d1-80b4-00c04fd430c8";
    let record = format!("leasehold_client:{{{id}}}");
    server.ask::<()>(&["HSET", &record, "host", "注文", "program", "a\x1b[2J\x07b"]);
    server.ask::<()>(&["HSET", "evil\u{202e}name", &format!("{id}:1795501318931855"), "1"]);
    let invalid = b"not-utf8-\xff".as_slice();
    let mut set = redis::cmd("HSET");
    let set = set.arg(invalid).arg(format!("{id}:1795501318931856")).arg("1");
    set.query::<()>(&mut server.connection()).expect("a hash");
    let terminal = start(&server);
    wait_for_row(&terminal, r"evil\u{202e}name", &["注文", "none"]);
    assert!(!terminal.bytes().contains(&7), "no bell");
    assert!(!terminal.text().contains('\u{202e}'));
}

#[test]
fn without_colours_the_screen_has_none() {
    let server = Server::start();
    let client = client(&server);
    let _guards = hold(&client, &["orders:42"]);
    let has_colours = |terminal: &Terminal| {
        wait_for_row(terminal, "orders:42", &[]);
        let screen = terminal.screen();
        let cells = (0..24).flat_map(|row| (0..100).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| screen.cell(row, column));
        cells.any(|cell| cell.fgcolor() != vt100::Color::Default)
    };
    assert!(has_colours(&start(&server)));
    let plain = Terminal::start(top(&server).env("NO_COLOR", "1"), 24, 100);
    assert!(!has_colours(&plain));
}

#[test]
fn without_a_terminal_top_points_to_ls() {
    let server = Server::start();
    let output = top(&server).stdin(Stdio::null()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(64));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(error, "leasehold: top needs a terminal; leasehold ls prints a list\n");
    assert!(output.stdout.is_empty());
}

#[test]
fn without_a_server_top_fails_before_it_takes_the_screen() {
    let server = Server::start();
    server.kill();
    let mut terminal = start(&server);
    assert_eq!(terminal.wait().code(), Some(69));
    assert!(terminal.text().starts_with("leasehold: "), "{}", terminal.framed());
    assert!(!terminal.bytes().windows(8).any(|part| part == b"\x1b[?1049h"));
}

#[test]
fn a_wrong_pattern_is_a_usage_error() {
    let server = Server::start();
    let mut terminal = Terminal::start(top(&server).arg("a\tb"), 24, 100);
    assert_eq!(terminal.wait().code(), Some(64));
    terminal.wait_for_text("the pattern contains control characters");
}
