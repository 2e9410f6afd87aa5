//! The load of `top` on a server with many locks, for the documents.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Server, eventually};
use crate::start;
use crate::workload::Work;

/// The processes and their locks.
const HOLDERS: [&str; 8] = ["a:", "b:", "c:", "d:", "e:", "f:", "g:", "h:"];
const LOCKS_EACH: usize = 1250;

/// The time over which the load is measured: longer than the renewal of all leases.
const SPAN: Duration = Duration::from_secs(40);

/// Counters of the server.
struct Counters {
    at: Instant,
    cpu: f64,
    bytes: [f64; 2],
    /// Calls and microseconds of each command.
    commands: BTreeMap<String, [f64; 2]>,
}

impl Counters {
    fn of(server: &Server) -> Counters {
        let info: String = server.ask(&["INFO", "everything"]);
        let lines: BTreeMap<&str, &str> =
            info.lines().filter_map(|line| line.split_once(':')).collect();
        let number = |name: &str| lines[name].trim().parse::<f64>().expect("a number");
        let command = |(name, value): (&&str, &&str)| {
            let part = |at: usize| value.split(',').nth(at)?.split_once('=')?.1.parse().ok();
            Some((name.strip_prefix("cmdstat_")?.to_owned(), [part(0)?, part(1)?]))
        };
        Counters {
            at: Instant::now(),
            cpu: number("used_cpu_user") + number("used_cpu_sys"),
            bytes: [number("total_net_input_bytes"), number("total_net_output_bytes")],
            commands: lines.iter().filter_map(command).collect(),
        }
    }

    /// Prints the load per second since these earlier counters.
    fn print_since(&self, what: &str, before: &Counters) {
        let seconds = (self.at - before.at).as_secs_f64();
        let cpu = 100.0 * (self.cpu - before.cpu) / seconds;
        let [input, output] =
            [0, 1].map(|way: usize| (self.bytes[way] - before.bytes[way]) / seconds / 1000.0);
        println!("{what}: {seconds:.1} s, CPU {cpu:.2} %, kB/s in {input:.1} out {output:.1}");
        for (name, now) in &self.commands {
            let then = before.commands.get(name).copied().unwrap_or_default();
            let [calls, micros] = [now[0] - then[0], now[1] - then[1]];
            if calls > 0.0 {
                println!("    {name:20} {:8.1}/s {:8.1} us/s", calls / seconds, micros / seconds);
            }
        }
    }
}

/// Measures a span, and prints its load.
fn measure(server: &Server, what: &str) {
    let before = Counters::of(server);
    thread::sleep(SPAN);
    Counters::of(server).print_since(what, &before);
}

#[test]
#[ignore = "prints the load with 10,000 locks, takes two minutes, and wants a release build"]
fn load_with_many_locks() {
    let server = Server::start();
    let _holders: Vec<_> =
        HOLDERS.iter().map(|names| Work::many(LOCKS_EACH, names).start(&server)).collect();
    let all = HOLDERS.len() * LOCKS_EACH;
    eventually("all locks are held", || server.ask::<usize>(&["DBSIZE"]) == all + HOLDERS.len());
    measure(&server, "the holders alone");
    let before = Counters::of(&server);
    let mut terminal = start(&server);
    terminal.wait_for_text(&format!("{all} locks"));
    Counters::of(&server).print_since("the first search", &before);
    terminal.wait_for_text("all locks every");
    measure(&server, "with top");
    println!("{}", terminal.framed());
    terminal.press("\r");
    terminal.wait_for_text("HELD by");
    measure(&server, "with top that follows a lock");
}
