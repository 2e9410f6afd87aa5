#![doc = include_str!("../../recipes.md")]
#![forbid(unsafe_code)]

mod server;
mod shell;

pub use server::Server;
pub use shell::{ShellBlock, ShellRun, shell_blocks};

/// The text of `docs/recipes.md`.
pub const RECIPES: &str = include_str!("../../recipes.md");
