//! Compares the log lines in the source with the section "Logging" of the crate documentation.

use std::collections::{BTreeMap, BTreeSet};

use crate::readme::{files_in, source};

/// A call of a macro of the log crate.
#[derive(Debug)]
struct LogCall {
    target: String,
    level: String,
    keys: Vec<String>,
}

/// Returns the code of a source file without its comments.
fn code_of(name: &str) -> String {
    let text = source(name);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Reads a call that starts after `log::`, in the form
/// `LEVEL!(logger: LINES, target: log_target::NAME, KEYS; "TEXT"`, perhaps without keys.
///
/// No line goes to the program's logger directly, which may block.
fn read_call(call: &str) -> Option<LogCall> {
    let (level, rest) = call.split_once("!(")?;
    let target = rest.trim_start().strip_prefix("logger: LINES, target: log_target::")?;
    let (target, rest) = target.split_once(',')?;
    let (keys, _) = rest.split_once('"')?;
    let keys = keys.trim().trim_end_matches(';').split(',').map(str::trim);
    let name = |key: &str| key.split([':', ' ']).next().unwrap_or_default().to_owned();
    Some(LogCall {
        target: target.to_owned(),
        level: level.to_owned(),
        keys: keys.filter(|key| !key.is_empty()).map(name).collect(),
    })
}

/// Returns all calls in `src`. Panics at a call without a target.
fn log_calls() -> Vec<LogCall> {
    let mut calls = Vec::new();
    let is_queue = |file: &String| file == "src/util/log_lines.rs";
    for file in files_in("src").into_iter().filter(|file| !is_queue(file)) {
        let code = code_of(&file);
        assert!(!code.contains("use log"), "{file} imports from the log crate");
        for call in code.split("log::").skip(1) {
            let call = read_call(call);
            calls.push(
                call.unwrap_or_else(|| panic!("{file}: a log line has no queue or no target")),
            );
        }
    }
    calls
}

/// Returns the value of each constant of `util/log_target.rs`, by its name.
fn targets() -> BTreeMap<String, String> {
    let code = code_of("src/util/log_target.rs");
    let constants = code.split("const ").skip(1).filter_map(|rest| rest.split_once(": &str = \""));
    let value = |rest: &str| rest.split('"').next().unwrap_or_default().to_owned();
    constants.map(|(name, rest)| (name.to_owned(), value(rest))).collect()
}

/// Returns the rows of a table on the page of logging: the name, and the next column.
fn documented(header: &str) -> BTreeMap<String, String> {
    let page = source("src/_documentation/logging.rs");
    let (_, table) = page.split_once(&format!("//! {header}\n")).expect("a table");
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("//! | "));
    let cells = rows.filter_map(|row| row.split_once(" | "));
    let second = |rest: &str| rest.split(" |").next().unwrap_or_default().to_owned();
    cells.map(|(name, rest)| (name.trim_matches('`').to_owned(), second(rest))).collect()
}

#[test]
fn every_log_line_has_a_documented_target_and_level() {
    let targets = targets();
    let mut levels = BTreeMap::<String, BTreeSet<String>>::new();
    for call in log_calls() {
        let target = targets.get(&call.target).expect("a constant of log_target.rs");
        levels.entry(target.clone()).or_default().insert(call.level);
    }
    let in_docs = documented("| target | levels | subject |").into_iter();
    let in_docs: BTreeMap<_, BTreeSet<_>> = in_docs
        .map(|(target, levels)| (target, levels.split(", ").map(str::to_owned).collect()))
        .collect();
    assert_eq!(levels, in_docs, "src against its documentation");
    assert_eq!(targets.values().collect::<BTreeSet<_>>(), levels.keys().collect());
}

#[test]
fn every_key_of_a_log_line_is_documented() {
    let keys: BTreeSet<_> = log_calls().into_iter().flat_map(|call| call.keys).collect();
    let in_docs: BTreeSet<_> = documented("| key | value |").into_keys().collect();
    assert_eq!(keys, in_docs, "src against its documentation");
}
