//! Checks the shell lines of `docs/recipes.md`, and that no Rust block is left out of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_recipes::{RECIPES, shell_blocks};

/// Returns the path of a file of this crate.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn shell_lines_parse() {
    let blocks = shell_blocks();
    assert!(blocks.len() >= 3, "found only {blocks:?}");
    for block in blocks {
        let output = Command::new("bash").args(["-n", "-c", block.text()]).output().expect("bash");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "line {}: {complaint}", block.line());
        assert!(block.text().contains("leasehold "), "line {}", block.line());
    }
}

/// A stand-in for `leasehold` runs the command after `--`.
#[test]
fn shell_blocks_start_their_programs() {
    for block in shell_blocks() {
        let run = block.run(&path("stand-ins/leasehold"), "redis://unused/").expect("timeout");
        assert!(run.output.status.success(), "line {}: {:?}", block.line(), run.output);
        assert_eq!(run.started, block.programs(), "line {}", block.line());
        assert!(!run.started.is_empty(), "line {}", block.line());
    }
}

#[test]
fn every_recipe_has_a_rust_block() {
    let recipes: Vec<&str> = RECIPES.split("\n## ").skip(1).collect();
    assert!(recipes.len() >= 7, "found only {} recipes", recipes.len());
    for recipe in recipes {
        assert!(recipe.contains("\n```rust"), "{:?} has none", recipe.lines().next());
    }
}

/// PostgreSQL writes `$1` for the `?1` of SQLite.
#[test]
fn statements_for_postgresql_are_those_of_the_rust_blocks() {
    let (_, rest) = RECIPES.split_once("\n```sql\n").expect("a block with SQL");
    let block = rest.split("\n```").next().unwrap_or_default();
    let statements: Vec<&str> = block.lines().filter_map(|line| line.strip_suffix(';')).collect();
    assert!(statements.len() >= 2, "found only {statements:?}");
    for statement in statements {
        let literal = format!("\"{}\"", statement.replace('$', "?"));
        assert!(RECIPES.contains(&literal), "no Rust block runs {literal}");
    }
}

/// A block may be left out only until the library has the names that the block uses.
#[test]
fn rust_blocks_run() {
    let client = fs::read_to_string(path("../../src/client.rs")).expect("the source of Client");
    let opened = RECIPES.lines().filter(|line| line.starts_with("```rust"));
    let left_out: Vec<&str> = opened.filter(|line| *line != "```rust").collect();
    if client.contains("pub fn election(") {
        assert_eq!(left_out, [""; 0])
    } else {
        assert_eq!(left_out, ["```rust,ignore"], "the recipe with an election")
    }
}
