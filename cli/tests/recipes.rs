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

/// Runs the block with this text three times. Returns how many programs each run started.
fn started(text: &str) -> [usize; 3] {
    let server = Server::start().expect("a socket can be made");
    let blocks = shell_blocks();
    let block = blocks.iter().find(|block| block.text().contains(text)).expect("a recipe");
    [(); 3].map(|()| {
        let run = block.run(Path::new(PROGRAM), server.url()).expect("bash is installed");
        assert!(run.output.status.success(), "{:?}", run.output);
        run.started.len()
    })
}

#[test]
fn the_cron_job_runs_once_per_minute() {
    assert_eq!(started("--min-hold"), [1, 0, 0]);
}

#[test]
fn a_result_is_made_once() {
    assert_eq!(started("leasehold once --keep 192h"), [1, 0, 0]);
    assert_eq!(started("leasehold once --keep 1h"), [1, 0, 0]);
}
