//! The shell lines of `docs/recipes.md` run, with the program and a server of their own.

use std::path::Path;

use leasehold_recipes::{Server, shell_blocks};

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

#[test]
fn the_shell_lines_of_the_recipes_run() {
    let server = Server::start().expect("redis-server is installed");
    let blocks = shell_blocks();
    assert!(!blocks.is_empty());
    for block in blocks {
        let run = block.run(Path::new(PROGRAM), server.url()).expect("bash is installed");
        assert!(run.output.status.success(), "line {}: {:?}", block.line(), run.output);
        assert_eq!(run.started, block.programs(), "line {}: {}", block.line(), block.text());
    }
}

#[test]
fn the_cron_job_runs_once_per_minute() {
    let server = Server::start().expect("redis-server is installed");
    let blocks = shell_blocks();
    let cron = blocks.iter().find(|block| block.text().contains("--min-hold"));
    let cron = cron.expect("the recipe of the cron job");
    let started = [(); 3].map(|()| {
        let run = cron.run(Path::new(PROGRAM), server.url()).expect("bash is installed");
        assert!(run.output.status.success(), "{:?}", run.output);
        run.started.len()
    });
    assert_eq!(started, [1, 0, 0]);
}
