//! Checks the README, DESIGN.md and docs/ against the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold::Client;

use crate::harness::Server;

const README: &str = include_str!("../../README.md");

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

pub(crate) fn source(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the text of a page of `src/_documentation`.
fn page(name: &str) -> String {
    let lines = source(&format!("src/_documentation/{name}.rs"));
    let text = |line: &str| line.trim_start_matches("//!").trim_start().to_owned() + "\n";
    lines.lines().map(text).collect()
}

/// Returns a document without its code blocks.
fn prose_of(document: &str) -> String {
    document.split("```").step_by(2).collect()
}

/// Returns the code spans in the prose of a document.
fn spans_of(document: &str) -> Vec<String> {
    prose_of(document).split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the table of settings: name and default.
fn settings() -> BTreeMap<String, String> {
    let page = page("settings");
    let table = page.lines().skip_while(|line| !line.starts_with("| setting | default |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let settings: BTreeMap<_, _> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
            let mut next = || cells.next().unwrap_or_else(|| panic!("three cells in {row}"));
            (next().trim_matches('`').to_owned(), next().to_owned())
        })
        .collect();
    assert!(!settings.is_empty(), "the page has a table | setting | default | |");
    settings
}

/// Returns the fields of a default builder, as its `Debug` output shows them.
fn defaults() -> BTreeMap<String, String> {
    let shown = format!("{:?}", Client::builder());
    let fields = shown.strip_prefix("Builder { ").and_then(|rest| rest.strip_suffix(" }"));
    let fields = fields.unwrap_or_else(|| panic!("{shown}"));
    let mut depth = 0;
    let at_top = |sign: char| {
        depth += i32::from("({".contains(sign)) - i32::from(")}".contains(sign));
        sign == ',' && depth == 0
    };
    let fields = fields.split(at_top).map(|field| field.split_once(": "));
    let fields = fields.map(|field| field.expect("name: value"));
    fields.map(|(name, value)| (name.trim().to_owned(), value.to_owned())).collect()
}

#[test]
fn the_settings_table_states_the_defaults() {
    let mut defaults = defaults();
    // The docs of these setters say that they have no default.
    assert_eq!(defaults.remove("server").as_deref(), Some("None"));
    assert_eq!(defaults.remove("events").as_deref(), Some("false"));
    assert_eq!(defaults.remove("label").as_deref(), Some("None"));
    assert_eq!(defaults.remove("instance").as_deref(), Some("None"));
    assert_eq!(settings(), defaults, "the page against Client::builder()");
}

/// Returns the documentation of a setter.
fn docs_of(setter: &str) -> String {
    let config = source("src/config/mod.rs");
    let (before, _) = config
        .split_once(&format!("    pub fn {setter}("))
        .unwrap_or_else(|| panic!("there is no setter {setter}"));
    let docs: Vec<&str> =
        before.lines().rev().map_while(|line| line.trim().strip_prefix("///")).collect();
    docs.into_iter().rev().collect()
}

#[test]
fn every_setter_states_its_default() {
    for (setter, default) in settings() {
        let stated = match default.as_str() {
            "\"\"" => "Default: nothing".to_owned(),
            "(0, 1s)" => "Default: none, for up to 1 s".to_owned(),
            "(512, 5ms)" => "Default: 512 times, for 5 ms".to_owned(),
            span if span.ends_with('s') => format!("Default: {}", spaced(span)),
            count => format!("Default: {count}"),
        };
        let docs = docs_of(&setter);
        assert!(docs.contains(&stated), "{setter}: {stated:?} is not in {docs:?}");
    }
}

/// Turns `30s` into `30 s`, the form of prose.
fn spaced(span: &str) -> String {
    let unit = span.find(char::is_alphabetic).expect("a span has a unit");
    format!("{} {}", &span[..unit], &span[unit..])
}

#[test]
fn figures_in_the_prose_equal_the_defaults() {
    let settings = settings();
    let prose = page("guarantees").replace('\n', " ");
    for (before, setting) in
        [("lease (by default ", "watchdog_timeout"), ("poll interval (", "poll_interval")]
    {
        let figures: Vec<&str> = prose.split(before).skip(1).collect();
        assert!(!figures.is_empty(), "the page has no {before:?}");
        let figure = spaced(&settings[setting]);
        let right = |rest: &&str| rest.starts_with(&format!("{figure})"));
        assert!(figures.iter().all(right), "{before:?} is not followed by {figure}");
    }
}

#[test]
fn the_shortest_lease_is_as_documented() {
    let page = page("settings");
    let (_, rest) = page.split_once("Leases are at least ").expect("the page says how long");
    let millis = rest.split_once(" ms").and_then(|(figure, _)| figure.parse().ok());
    let shortest = Duration::from_millis(millis.expect("a number of ms"));
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server answers");
    let with = |lease| client.lock("a").with_lease(lease).try_lock().map(drop);
    with(shortest)
        .or_else(|error| if error.is_lost() { Ok(()) } else { Err(error) })
        .expect("the shortest lease is accepted");
    let shorter = with(shortest - Duration::from_nanos(1)).expect_err("too short");
    assert!(shorter.is_configuration(), "{shorter:?}");
}

#[test]
fn the_oldest_rust_version_is_that_of_the_manifest() {
    let prose = prose_of(README);
    let (_, rest) = prose.split_once("; Rust ").expect("the README says which Rust");
    let version = rest.split(' ').next().unwrap_or_default();
    assert_eq!(version, env!("CARGO_PKG_RUST_VERSION"), "README against Cargo.toml");
}

#[test]
fn files_named_in_the_readme_exist() {
    let links = README.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let links = links.filter(|target| !target.contains("://")).map(str::to_owned);
    let words = README.split(|sign: char| sign.is_whitespace() || "`()[],;".contains(sign));
    let folders = ["script/", "src/", "tests/", "examples/", "lua/", "benches/", "docs/", ".ci/"];
    let named = words.filter(|word| folders.iter().any(|folder| word.starts_with(folder)));
    let named: BTreeSet<String> = links.chain(named.map(str::to_owned)).collect();
    assert!(named.contains("docs/recipes.md") && named.contains("script/test"), "{named:?}");
    for name in named {
        let file = fs::metadata(path(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let runs = file.permissions().mode() & 0o111 != 0;
        assert!(runs || !name.starts_with("script/"), "{name} cannot be executed");
    }
}

/// Returns the name after `cargo run --example`, and those of the sentence with more examples.
fn examples_named() -> BTreeSet<String> {
    let (_, first) = README.split_once("cargo run --example ").expect("the README runs one");
    let (_, rest) = README.split_once("More examples: ").expect("the README names examples");
    let sentence = rest.split(['.', '(']).next().unwrap_or_default();
    let others = sentence.split('`').skip(1).step_by(2);
    first.lines().take(1).chain(others).map(str::to_owned).collect()
}

#[test]
fn the_readme_names_all_examples() {
    let mut examples = BTreeSet::new();
    for entry in fs::read_dir(path("examples")).expect("there are examples") {
        let path = entry.expect("the folder can be listed").path();
        if path.extension().is_some_and(|kind| kind == "rs") || path.join("main.rs").is_file() {
            examples.insert(path.file_stem().expect("a name").to_string_lossy().into_owned());
        }
    }
    // The README names its script instead.
    assert!(examples.remove("demo"), "there is no examples/demo");
    assert!(source("script/demo").contains("--example demo"), "script/demo runs the demo");
    assert_eq!(examples_named(), examples, "README against examples/");
}

#[test]
fn the_page_on_settings_names_all_features() {
    let page = page("settings");
    let (_, rest) = page.split_once("Features: ").expect("the page names features");
    let paragraph = rest.split("\n\n").next().unwrap_or_default();
    let named: BTreeSet<&str> = paragraph.split('`').skip(1).step_by(2).collect();
    let manifest = source("Cargo.toml");
    let (_, features) = manifest.split_once("[features]\n").expect("there are features");
    let features = features.split("\n[").next().unwrap_or_default();
    let listed = features.lines().filter_map(|line| line.split_once(" = "));
    let mut listed = listed.map(|(name, _)| name).filter(|name| *name != "default");
    let unnamed: Vec<&str> = listed.by_ref().filter(|name| !named.contains(name)).collect();
    assert!(named.contains("tls"), "found only {named:?}");
    assert!(unnamed.is_empty(), "the page does not name the features {unnamed:?}");
}

/// A code span with parentheses is a method of any type.
#[test]
fn methods_named_in_the_readme_and_the_pages_exist() {
    let sources: String = files_in("src").iter().map(|name| source(name)).collect();
    let pages = ["guarantees", "kinds", "settings"].map(page).concat();
    let spans = [spans_of(README), spans_of(&source("COMPARE.md")), spans_of(&pages)].concat();
    let named: BTreeSet<_> = spans.iter().filter_map(|span| span.strip_suffix("()")).collect();
    assert!(named.contains("close"), "found only {named:?}");
    for name in named {
        assert!(sources.contains(&format!("pub fn {name}(")), "there is no method {name}()");
    }
}

/// The example of the README is run with the documentation tests, on a server in the process.
#[test]
fn the_example_of_the_readme_is_run() {
    let lib = source("src/lib.rs");
    let included = "#[cfg(doctest)]\n#[doc = include_str!(\"../README.md\")]\n";
    assert!(lib.contains(included), "src/lib.rs includes the README in its doc tests");
    let opened: Vec<&str> = README.lines().filter(|line| line.starts_with("```rust")).collect();
    assert_eq!(opened, ["```rust"], "the example is run");
}

/// Returns the files of the package.
fn packaged() -> BTreeSet<String> {
    let mut list = Command::new(env!("CARGO"));
    list.args(["package", "--package", "leasehold", "--list", "--allow-dirty", "--offline"])
        .current_dir(path(""));
    let output = list.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn the_package_has_sources_and_documents_but_no_tests() {
    let packaged = packaged();
    let needed = ["src/lib.rs", "lua/plain_acquire.lua", "examples/try_for.rs", "LICENSE"];
    for name in needed {
        assert!(packaged.contains(name), "{name} is not in {packaged:?}");
    }
    let folders = ["tests/", "script/", "benches/", "docs/bench/", ".ci/"];
    let shipped = |name: &&String| folders.iter().any(|folder| name.starts_with(folder));
    assert_eq!(packaged.iter().find(shipped), None);
    let sources = files_in("src").into_iter().chain(files_in("lua")).chain(files_in("examples"));
    let expected = sources.chain(documents().into_iter().filter(|name| !name.contains("bench")));
    let missing: Vec<_> = expected.filter(|name| !packaged.contains(name)).collect();
    assert!(missing.is_empty(), "not in the package: {missing:?}");
}

/// Returns all files below a folder, by their paths from the root.
pub(crate) fn files_in(folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path(folder)).expect("a folder") {
        let name = format!("{folder}/{}", entry.expect("an entry").file_name().to_string_lossy());
        if path(&name).is_dir() { files.extend(files_in(&name)) } else { files.push(name) }
    }
    files
}

/// A link or an image: its text and its target.
type Reference = (&'static str, &'static str);

/// Returns the links and the images.
fn links_and_images() -> (Vec<Reference>, Vec<Reference>) {
    let pairs = README.split("](").zip(README.split("](").skip(1));
    let found = pairs.filter_map(|(before, after)| {
        let (before, text) = before.rsplit_once('[')?;
        Some((before.ends_with('!'), (text, after.split(')').next()?)))
    });
    let (images, links): (Vec<_>, Vec<_>) = found.partition(|(is_image, _)| *is_image);
    let references = |found: Vec<(bool, _)>| found.into_iter().map(|(_, it)| it).collect();
    (references(links), references(images))
}

/// An image has a file of the package, and a text for those who do not see it.
#[test]
fn images_are_in_the_package_and_have_a_text() {
    let packaged = packaged();
    let (_, images) = links_and_images();
    assert!(!images.is_empty() && !README.contains("<img"));
    for (text, file) in images {
        assert!(packaged.contains(file), "{file} is not in the package");
        assert!(text.len() > 40, "{file} has no description: {text:?}");
    }
}

/// Relative links work in a clone. The registry shows the README alone, so `script/registry-links`
/// replaces them at packaging time.
#[test]
fn links_work_in_a_clone_and_on_the_registry_page() {
    let packaged = packaged();
    let (links, _) = links_and_images();
    let relative = links.iter().map(|(_, link)| *link).filter(|link| !link.contains("://"));
    let relative: Vec<_> = relative.filter(|link| *link != "cli/README.md").collect();
    assert!(relative.len() > 3, "found only {relative:?}");
    for file in &relative {
        assert!(packaged.contains(*file), "{file} is not in the package");
    }
    let shown = |readme: &str| {
        let script = Command::new(path("script/registry-links")).arg(path(readme)).output();
        String::from_utf8(script.expect("the script runs").stdout).expect("text")
    };
    for file in relative {
        let link = format!("](https://docs.rs/crate/leasehold/latest/source/{file})");
        assert!(shown("README.md").contains(&link), "no {link}");
    }
    for readme in ["README.md", "cli/README.md", "testserver/README.md"] {
        let shown = shown(readme);
        let files = shown.split(['(', ')', ' ', '\n']).filter(|word| word.ends_with(".md"));
        let links: Vec<_> = files.filter(|word| !word.contains('`')).collect();
        assert!(links.iter().all(|link| link.starts_with("https://")), "{readme}: {links:?}");
    }
}

/// Returns the documents beside the README, without the report that script/bench writes.
fn documents() -> Vec<String> {
    let docs = files_in("docs").into_iter().filter(|name| name.ends_with(".md"));
    let docs = docs.filter(|name| name != "docs/bench/README.md");
    let others = ["DESIGN.md", "COMPARE.md", "SECURITY.md", "CONTRIBUTING.md"];
    docs.chain(others.map(str::to_owned)).collect()
}

/// Paths may leave out `src/`, `lua/` or `docs/bench/`; `NAME` stands for a new file.
#[test]
fn files_named_in_the_documents_exist() {
    let mut checked = 0;
    for document in documents() {
        let is_file = |span: &String| {
            let ends = [".rs", ".lua", ".md", ".c", ".toml"].iter().any(|end| span.ends_with(end));
            let starts = ["script/", "tests/"].iter().any(|start| span.starts_with(start));
            (ends || starts) && !span.contains("NAME")
        };
        for span in spans_of(&source(&document)).iter().filter(|span| is_file(span)) {
            let name = span.split(' ').next().unwrap_or_default();
            let places = ["", "src/", "lua/", "docs/bench/"];
            let found = places.iter().any(|place| path(&format!("{place}{name}")).exists());
            assert!(found, "{document} names {name}");
            checked += 1;
        }
    }
    assert!(checked > 50, "found only {checked} names of files");
}

/// The last column of DESIGN's glossary names a type for most terms.
#[test]
fn types_of_the_glossary_exist() {
    let design = source("DESIGN.md");
    let sources: String = files_in("src").iter().map(|name| source(name)).collect();
    let (_, table) = design.split_once("| term | meaning | type |\n").expect("a glossary");
    let rows: Vec<&str> = table.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 15, "{} terms", rows.len());
    for row in rows {
        let last = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
        let Some(name) = last.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else {
            continue;
        };
        let is_defined = ["struct", "enum", "trait"].iter().any(|word| {
            let defined = format!("{word} {name}");
            let mut after = sources.split(&defined).skip(1);
            after.any(|rest| !rest.starts_with(|sign: char| sign.is_alphanumeric()))
        });
        assert!(is_defined, "there is no type {name}");
    }
}

#[test]
fn the_design_gives_a_reason_for_each_dependency() {
    let (design, manifest) = (source("DESIGN.md"), source("Cargo.toml"));
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").expect("dependencies");
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let names = dependencies.lines().filter_map(|line| line.split_once(" = "));
    let unnamed: Vec<_> =
        names.map(|(name, _)| name).filter(|name| !design.contains(&format!("`{name}`"))).collect();
    assert!(unnamed.is_empty(), "DESIGN.md does not name {unnamed:?}");
}

#[test]
fn the_table_of_promises_names_all_test_files() {
    let testing = source("docs/testing.md");
    // The harness and the checks of histories have tests of themselves.
    let is_listed = |name: &String| {
        let parts: Vec<&str> = name.split('/').collect();
        name.ends_with(".rs")
            && matches!(parts[..], [_, folder, _] if folder != "harness" && folder != "history")
            && source(name).contains("#[test]")
    };
    let tests: Vec<_> = files_in("tests").into_iter().filter(is_listed).collect();
    assert!(tests.len() > 50, "found only {} files", tests.len());
    let unnamed: Vec<_> = tests.iter().filter(|name| !testing.contains(name.as_str())).collect();
    assert!(unnamed.is_empty(), "docs/testing.md does not name {unnamed:?}");
}

/// The benchmark table is copied from the report, one column per section.
#[test]
fn benchmark_figures_are_those_of_the_report() {
    let contenders = [
        ("leasehold, lock and drop", "leasehold-drop"),
        ("leasehold, lock and `unlock()`", "leasehold-unlock"),
        ("bare redis crate", "floor"),
        ("rslock (tokio)", "rslock"),
        ("redlock-rs", "redlock-rs"),
        ("redsync (Go)", "redsync"),
        ("rueidislock (Go)", "rueidislock"),
        ("Redisson (Java)", "redisson"),
    ];
    let report = source("docs/bench/README.md");
    let figure = |threads: &str, contender: &str| {
        let section = format!("### Uncontended, {threads}(s), TCP\n");
        let (_, rows) = report.split_once(&section).expect("the report has the section");
        let row = rows.lines().find(|row| row.starts_with(&format!("| {contender} ")));
        let cells: Vec<&str> = row.expect("the contender has a row").split('|').collect();
        cells[2].split_whitespace().next().expect("a ratio").to_owned()
    };
    let compare = source("COMPARE.md");
    let (_, table) = compare.split_once("| | 1 thread | 8 threads |").expect("a benchmark table");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), contenders.len(), "{rows:?}");
    for (row, (label, contender)) in rows.into_iter().zip(contenders) {
        let figures = ["1 thread", "8 thread", "64 thread"].map(|it| figure(it, contender));
        assert_eq!(row, format!("| {label} | {} |", figures.join(" | ")));
    }
    for callers in [8, 64] {
        let contenders = ["leasehold-unlock", "rslock", "redlock-rs", "redisson"];
        let figures = contenders.map(|it| figure(&format!("{callers} thread"), it)).join(" | ");
        let row = format!("| speed, {callers} callers | {figures} | | |\n");
        assert!(README.contains(&row), "the README has no {row}");
    }
}

#[test]
fn the_readme_says_where_its_scripts_are() {
    let (before, _) =
        README.split_once("```sh\nscript/demo").expect("the README shows script/demo");
    let paragraph = before.trim_end().rsplit("\n\n").next().unwrap_or_default();
    assert!(paragraph.contains("clone of the repository"), "{paragraph}");
    assert!(paragraph.contains("not in the package"), "{paragraph}");
}

#[test]
fn one_file_has_the_platform_specific_code() {
    let marks = ["target_os", "cfg(unix", "cfg(windows", "cfg(not(unix", "cfg(not(windows"];
    let special = |name: &String| marks.iter().any(|mark| source(name).contains(mark));
    let files: Vec<_> = files_in("src").into_iter().filter(special).collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

/// Runs `script/embedded` with a stand-in for `cargo`, and for the programs with the tests, that
/// knows all skipped tests. Returns the folders whose tests were run, or what the script said.
fn folders_run(arguments: &[&str]) -> Result<Vec<String>, String> {
    let stand_in = r#"#!/bin/sh
case "$*" in
*--no-run*) for it in kinds api protocol faults isolated; do echo "tests/$it/main.rs ($0)"; done ;;
*--list*) grep -o '[a-z]*/[a-z0-9_:]*' script/embedded | sed 's,^[a-z]*/,,; s,$,: test,' ;;
"test "*) echo "$*" | sed 's/.*--test \([a-z]*\).*/ran \1/' ;;
esac
"#;
    let folder = tempfile::tempdir().expect("a folder");
    let cargo = folder.path().join("cargo");
    fs::write(&cargo, stand_in).expect("the stand-in is written");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("it can be run");
    let others = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(path("script/embedded"))
        .args(arguments)
        .env("PATH", format!("{}:{others}", folder.path().display()))
        .output()
        .expect("script/embedded runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_prefix("ran ")).map(str::to_owned).collect())
}

#[test]
fn script_embedded_runs_the_folders_that_are_named() {
    let all = ["kinds", "api", "protocol", "faults", "isolated"];
    for (arguments, folders) in [
        (&[][..], &["kinds"][..]),
        (&["all"], &all),
        (&["api", "faults"], &["api", "faults"]),
        (&["kinds", "api"], &["kinds", "api"]),
    ] {
        assert_eq!(folders_run(arguments).expect("folders"), folders, "{arguments:?}");
    }
    for unknown in ["topology", "knids"] {
        let message = folders_run(&["api", unknown]).expect_err("no such folder");
        assert!(message.contains(unknown) && message.contains("FOLDER"), "{message}");
    }
}

/// Runs a job on three replicas at the same time and returns how often it ran.
fn runs_on_three_replicas(server: &Server, run: impl Fn(&Client) -> bool) -> usize {
    let replicas = [(); 3].map(|()| Client::open(server.url()).expect("the server answers"));
    replicas.iter().filter(|replica| run(replica)).count()
}

#[test]
fn the_recipe_runs_a_job_once_per_minute_and_a_drop_does_not() {
    let server = Server::start();
    let dropped = |client: &Client| {
        let guard = client.lock("dropped").try_lock().expect("a reply");
        guard.is_some_and(|guard| guard.unlock().is_ok())
    };
    assert_eq!(runs_on_three_replicas(&server, dropped), 3);
    let kept = |client: &Client| {
        let lock = client.lock("kept").with_min_hold(Duration::from_secs(50));
        let guard = lock.try_lock().expect("a reply");
        guard.is_some_and(|guard| guard.unlock().is_ok())
    };
    assert_eq!(runs_on_three_replicas(&server, kept), 1);
    assert_eq!(runs_on_three_replicas(&server, kept), 0, "in the same minute");
    server.ask::<()>(&["PEXPIRE", "kept", "1"]);
    crate::harness::eventually("the minute is over", || !crate::harness::exists(&server, "kept"));
    assert_eq!(runs_on_three_replicas(&server, kept), 1);
}
