//! Help, completions, the man page, and the README.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use crate::command::leasehold;
use crate::program::{Finished, Running};

const README: &str = include_str!("../../README.md");
const CODES: &str = include_str!("../../src/failure.rs");
const VERBS: [&str; 14] = [
    "run",
    "once",
    "acquire",
    "extend",
    "release",
    "ls",
    "show",
    "watch",
    "force",
    "audit",
    "top",
    "timeline",
    "completions",
    "man",
];

fn output(words: &[&str]) -> Finished {
    let mut command = leasehold();
    command.args(words);
    let end = Running::start(command).finish();
    assert_eq!((end.code(), end.errors.as_str()), (0, ""), "{words:?}");
    end
}

#[test]
fn help_fits_one_screen_and_has_one_form() {
    for verb in [&[][..]].into_iter().chain(VERBS.iter().map(std::slice::from_ref)) {
        let long = output(&[verb, &["--help"]].concat()).output;
        assert_eq!(long, output(&[verb, &["-h"]].concat()).output, "{verb:?}");
        let most = if verb.is_empty() { 28 } else { 42 };
        assert!(long.len() <= most, "{verb:?}: {} lines", long.len());
        assert!(long.iter().all(|line| line.chars().count() <= 80), "{verb:?}: {long:?}");
    }
}

#[test]
fn without_a_verb_the_help_goes_to_stderr() {
    let end = Running::start(leasehold()).finish();
    assert_eq!((end.code(), end.output.len()), (64, 0));
    assert!(end.errors.contains("Usage: leasehold"), "{end:?}");
}

#[test]
fn verbs_show_only_the_options_that_they_use() {
    let shows = |verb: &str, option: &str| {
        output(&[verb, "--help"]).output.iter().any(|line| line.contains(option))
    };
    assert!(shows("ls", "--json") && shows("ls", "--url"));
    assert!(!shows("run", "--json") && shows("run", "--url"));
    assert!(!shows("man", "--json") && !shows("man", "--url"));
}

#[test]
fn a_reader_that_ends_is_no_failure_and_a_full_disk_is_one() {
    for words in ["man", "completions bash", "--help"] {
        let script = format!("\"$0\" {words} | true; echo \"${{PIPESTATUS[0]}}\"");
        let shell = Command::new("bash").args(["-c", &script, crate::command::PROGRAM]).output();
        let code = shell.expect("a shell").stdout;
        assert_eq!(String::from_utf8_lossy(&code), "0\n", "{words}");
        let script = format!("\"$0\" {words} >/dev/full");
        let shell = Command::new("sh").args(["-c", &script, crate::command::PROGRAM]).output();
        let shell = shell.expect("a shell");
        assert_eq!(shell.status.code(), Some(70), "{words}: {shell:?}");
    }
}

#[test]
fn verbs_without_json_refuse_the_option() {
    let once = ["once", "--json", "x", "--", "true"];
    for words in [&["run", "--json", "x", "--", "true"][..], &once, &["--json", "man"]] {
        let mut command = leasehold();
        command.args(words);
        let end = Running::start(command).finish();
        assert_eq!(end.code(), 64, "{words:?}");
        assert!(end.errors.contains("prints no JSON"), "{end:?}");
    }
}

#[test]
fn the_version_is_that_of_the_crate() {
    let version = format!("leasehold {}", env!("CARGO_PKG_VERSION"));
    for option in ["--version", "-V"] {
        assert_eq!(output(&[option]).output.concat(), version);
    }
}

/// Returns whether a program is installed.
fn is_installed(program: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", "command -v \"$0\"", program]);
    command.stdout(Stdio::null()).status().expect("a shell").success()
}

/// Checks that a shell reads the completions, and that they have all verbs.
fn load(shell: &str, options: &[&str], script: &str) {
    let completions = output(&["completions", shell]).output.join("\n");
    for verb in VERBS {
        assert!(completions.contains(verb), "{shell}: {verb}");
    }
    if !is_installed(shell) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("completions");
    std::fs::write(&file, completions).expect("our own folder");
    let mut command = Command::new(shell);
    command.args(options).args(["-c", script]).env("file", &file);
    let end = Running::start(command).finish();
    assert_eq!((end.code(), end.errors.as_str()), (0, ""), "{shell}: {end:?}");
    assert!(end.output.iter().any(|line| line.contains("leasehold")), "{shell}: {end:?}");
}

#[test]
fn completions_load() {
    load("bash", &["--norc"], "source \"$file\" && complete -p leasehold");
    load("zsh", &["-f"], "autoload -U compinit; compinit -D; . \"$file\"; echo $_comps[leasehold]");
    load("fish", &["--no-config"], "source $file; complete -c leasehold");
}

#[test]
fn bash_completes_verbs_and_options() {
    if !is_installed("bash") {
        return;
    }
    let completions = output(&["completions", "bash"]).output.join("\n");
    let complete = |words: &str, last: usize| {
        let script = format!(
            "{completions}\nCOMP_WORDS=({words}); COMP_CWORD={last}; \
             _leasehold leasehold \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; \
             echo \"${{COMPREPLY[*]}}\""
        );
        let mut command = Command::new("bash");
        command.args(["--norc", "-c", &script]);
        Running::start(command).finish().output.concat()
    };
    assert_eq!(complete("leasehold time", 1), "timeline");
    assert_eq!(complete("leasehold run --min", 2), "--min-hold");
}

#[test]
fn the_man_page_has_all_verbs_and_no_faults() {
    let page = output(&["man"]).output.join("\n");
    for verb in VERBS {
        assert!(page.contains(&format!(".SH \"LEASEHOLD {}\"", verb.to_uppercase())), "{verb}");
    }
    assert!(page.contains("\\-\\-min\\-hold") && page.contains("LEASEHOLD_URL"));
    if !is_installed("groff") {
        return;
    }
    let mut command = Command::new("groff");
    command.args(["-man", "-Tutf8", "-ww", "-z"]);
    let mut running = Running::start(command);
    running.say(&page);
    let end = running.finish();
    assert_eq!((end.code(), end.errors.as_str()), (0, ""));
}

/// Returns the long options that the words of a text name.
fn options(text: &str) -> BTreeSet<&str> {
    let words = text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '-');
    words.filter(|word| word.starts_with("--") && word.len() > 2).collect()
}

/// Returns the first cells of the table of the README below this heading line.
fn first_cells(heading: &str) -> Vec<&'static str> {
    let (_, table) = README.split_once(heading).expect("the README has this line");
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('|').nth(1).expect("a cell").trim()).collect()
}

/// Returns the long options in the help of a verb.
fn options_of_help(help: &[String]) -> BTreeSet<&str> {
    let lines = help.iter().map(|line| line.trim_start());
    let lines = lines.filter(|line| line.starts_with('-') && !line.contains("--help"));
    lines.flat_map(|line| options(line)).collect()
}

#[test]
fn the_readme_has_the_flags_of_run() {
    let help = output(&["run", "--help"]).output;
    let cells = first_cells("./import.sh file.csv").join(" ");
    assert_eq!(options(&cells), options_of_help(&help));
}

/// The flags that `once` has, and `run` has not, have a table; those of `run` that `once` has not
/// have a sentence.
#[test]
fn the_readme_has_the_flags_of_once() {
    let [run, once] = ["run", "once"].map(|verb| output(&[verb, "--help"]).output);
    let (run, once) = (options_of_help(&run), options_of_help(&once));
    let cells = first_cells("./fetch-rates").join(" ");
    assert_eq!(options(&cells), &once - &run);
    let (_, sentence) = README.split_once("It has the flags of `run`, except").expect("a sentence");
    let (sentence, _) = sentence.split_once('.').expect("its end");
    assert_eq!(options(sentence), &run - &once);
}

#[test]
fn the_readme_has_the_verbs() {
    let cells = first_cells("report --all").join(" ");
    for verb in VERBS {
        assert!(cells.contains(&format!("`{verb}")), "{verb}");
    }
}

#[test]
fn the_readme_has_the_exit_codes() {
    let (_, codes) = CODES.split_once("enum Code {").expect("the table of codes");
    let (codes, _) = codes.split_once('}').expect("its end");
    let codes: BTreeSet<&str> = codes
        .lines()
        .filter_map(|line| Some(line.split_once(" = ")?.1.trim_end_matches(',')))
        .collect();
    let cells = first_cells("### Exit codes");
    let numbers = cells.iter().filter_map(|cell| cell.split(',').next());
    let numbers: BTreeSet<&str> =
        numbers.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit())).collect();
    assert_eq!(numbers, codes);
}
