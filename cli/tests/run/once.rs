//! `leasehold once`: one result, whoever runs the command.

use std::process::{Command, Stdio};

use leasehold::{Begin, Client};
use rustix::process::Signal;

use crate::command::{PROGRAM, leasehold};
use crate::harness::wait::{BOUND, holds_within};
use crate::harness::{Server, eventually, exists, server::free_port};
use crate::program::{Finished, Running, UNTIL_INPUT, assert_wrong_usage, group_ends, once};
use crate::terminal::Terminal;

/// The key of the result of `x`.
const RESULT: &str = "leasehold_once:{x}";

/// A lease that ends no run during a test.
const LONG: [&str; 3] = ["--lease", "1000s", "x"];

/// A command like `UNTIL_INPUT` that succeeds.
const SUCCEEDS: &str = "echo group $$; read -r line; echo \"did $line\"";

/// Runs `leasehold once` with these words and this command to its end.
#[track_caller]
fn end(server: &Server, words: &[&str], command: &[&str]) -> Finished {
    Running::start(once(server, &[words, &["--"], command].concat())).finish()
}

/// Checks the code and the output of `leasehold once`, which prints nothing of its own.
#[track_caller]
fn gives(server: &Server, words: &[&str], command: &[&str], code: i32, output: &[&str]) {
    let end = end(server, words, command);
    let is_quiet = end.errors.is_empty();
    assert!(end.code() == code && end.output == output && is_quiet, "{words:?}: {end:?}");
}

/// Starts `leasehold once` with a script, which runs.
fn start(server: &Server, words: &[&str], script: &str) -> Running {
    Running::script_of("once", server, words, script)
}

/// Starts `leasehold once`, which waits for the run of another.
fn waiting(server: &Server, words: &[&str], command: &[&str]) -> Running {
    let client = Client::open(server.url()).expect("the server runs");
    let running = Running::start(once(server, &[words, &["--"], command].concat()));
    let lock = client.lock("x");
    eventually("the program waits", || lock.waiting().expect("an answer").processes() == 1);
    running
}

fn has_result(server: &Server) -> bool {
    exists(server, RESULT)
}

#[test]
fn the_first_run_commits_and_the_second_does_not_run() {
    let server = Server::start();
    gives(&server, &["x"], &["echo", "ran"], 0, &["ran"]);
    assert!(has_result(&server) && !exists(&server, "x"));
    for options in [&[][..], &["-n"], &["-w", "1h"], &["-w", "0"]] {
        gives(&server, &[options, &["x"]].concat(), &["echo", "ran"], 0, &[]);
    }
    let length: usize = server.ask(&["HSTRLEN", RESULT, "value"]);
    assert_eq!(length, 0, "without --output the result is empty");
    gives(&server, &["--output", "x"], &["echo", "ran"], 0, &[]);
    gives(&server, &["--name=-x"], &["echo", "ran"], 0, &["ran"]);
}

#[test]
fn the_output_is_the_result() {
    let server = Server::start();
    let script = ["sh", "-c", "echo \"$1 $LEASEHOLD_LOCK\"; echo note >&2; printf end", "sh", "1"];
    let first = end(&server, &["--output", "x"], &script);
    assert_eq!((first.code(), &*first.errors), (0, "note\n"));
    assert_eq!(first.output, ["1 x", "end"]);
    gives(&server, &["--output", "x"], &["false"], 0, &["1 x", "end"]);
    gives(&server, &["x"], &["echo", "no"], 0, &[]);
    // Any bytes, and no line at the end.
    let result: Vec<u8> = server.ask(&["HGET", RESULT, "value"]);
    assert_eq!(result, b"1 x\nend");
    let bytes = ["printf", "\\377\\000\\n"];
    for _ in 0..2 {
        let output = once(&server, &[&["--output", "bytes", "--"], &bytes[..]].concat()).output();
        assert_eq!(output.expect("the program runs").stdout, b"\xff\0\n");
    }
}

#[test]
fn a_result_is_kept_for_its_time() {
    let server = Server::start();
    let left = || server.ask::<i64>(&["PTTL", RESULT]);
    gives(&server, &["x"], &["echo", "ran"], 0, &["ran"]);
    assert!((86_000_000..=86_400_000).contains(&left()), "{}", left());
    assert_eq!(forget(&server), (0, "the result of x is deleted".to_owned()));
    gives(&server, &["--keep", "300ms", "x"], &["echo", "ran"], 0, &["ran"]);
    eventually("the result expires", || !has_result(&server));
    gives(&server, &["--keep", "2h", "x"], &["echo", "ran"], 0, &["ran"]);
    assert!((7_100_000..=7_200_000).contains(&left()), "{}", left());
}

/// Deletes the result; returns the code and the line.
fn forget(server: &Server) -> (i32, String) {
    let end = Running::start(once(server, &["--forget", "x"])).finish();
    assert_eq!(end.errors, "");
    (end.code(), end.output.concat())
}

#[test]
fn a_deleted_result_is_made_again() {
    let server = Server::start();
    assert_eq!(forget(&server), (1, "x has no result".to_owned()));
    gives(&server, &["--output", "x"], &["echo", "first"], 0, &["first"]);
    assert_eq!(forget(&server), (0, "the result of x is deleted".to_owned()));
    gives(&server, &["--output", "x"], &["echo", "second"], 0, &["second"]);
}

#[test]
fn a_failing_command_commits_nothing_and_gives_its_code() {
    let server = Server::start();
    for (script, code) in [("exit 3", 3), ("exit 75", 75), ("kill -TERM $$", 143)] {
        for options in [&[][..], &["--output"]] {
            let script = ["sh", "-c", &format!("echo tried; {script}")];
            gives(&server, &[options, &["x"]].concat(), &script, code, &["tried"]);
            assert!(!has_result(&server) && !exists(&server, "x"));
        }
    }
    for (command, code) in [("no-such-command", 127), ("/", 126)] {
        assert_eq!(end(&server, &["x"], &[command]).code(), code);
    }
    gives(&server, &["x"], &["true"], 0, &[]);
}

#[test]
fn who_does_not_wait_for_a_run_gets_1_or_the_chosen_code() {
    let server = Server::start();
    let running = start(&server, &["x"], UNTIL_INPUT);
    for (options, code) in [
        (&["-n"][..], 1),
        (&["-w", "50ms"], 1),
        (&["-n", "-E", "0"], 0),
        (&["-w", "0", "--code", "9", "--output"], 9),
    ] {
        gives(&server, &[options, &["x"]].concat(), &["echo", "no"], code, &[]);
    }
    let end = end(&server, &["-n", "--verbose", "x"], &["echo", "no"]);
    assert!(end.one_error().starts_with("leasehold: not acquired: x is held by sh on "), "{end:?}");
    assert_eq!(running.finish().code(), 5);
}

#[test]
fn who_waits_gets_the_result_of_the_commit() {
    let server = Server::start();
    let mut running = start(&server, &["--output", "x"], SUCCEEDS);
    let waiters = [&["--output", "x"][..], &["-w", "1h", "--output", "x"]]
        .map(|words| Running::start(once(&server, &[words, &["--", "echo", "no"]].concat())));
    let client = Client::open(server.url()).expect("the server runs");
    let lock = client.lock("x");
    eventually("both wait", || lock.waiting().expect("an answer").processes() == 2);
    running.say("it");
    assert_eq!(running.finish().code(), 0);
    for waiter in waiters {
        let end = waiter.finish();
        assert_eq!((end.code(), end.output.len()), (0, 2), "{end:?}");
        assert!(end.output[0].starts_with("group ") && end.output[1] == "did it", "{end:?}");
    }
}

#[test]
fn who_waits_runs_after_a_failure() {
    let server = Server::start();
    let running = start(&server, &["x"], UNTIL_INPUT);
    let waiter = waiting(&server, &["--output", "x"], &["echo", "mine"]);
    assert_eq!(running.finish().code(), 5);
    assert_eq!(waiter.finish().output, ["mine"]);
    gives(&server, &["--output", "x"], &["false"], 0, &["mine"]);
}

#[test]
fn the_command_has_the_token_of_its_run() {
    let server = Server::start();
    let script = ["sh", "-c", "echo $LEASEHOLD_TOKEN; echo ${LEASEHOLD_SLOT-none}"];
    let mut command = once(&server, &[&["--output", "x", "--"], &script[..]].concat());
    command.env("LEASEHOLD_SLOT", "7");
    let end = Running::start(command).finish();
    let token: String = server.ask(&["HGET", RESULT, "token"]);
    assert_eq!(end.output, [&*token, "none"]);
}

#[test]
fn a_signal_to_the_command_leaves_no_result() {
    let server = Server::start();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let running = start(&server, &["--output", "x"], "echo group $$; exec sleep 1000");
        running.signal(signal);
        let end = running.end();
        assert_eq!((end.code(), end.errors.as_str()), (code, ""), "{end:?}");
        assert!(!has_result(&server) && !exists(&server, "x"));
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_run() {
    let server = Server::start();
    let running = start(&server, &["x"], UNTIL_INPUT);
    let waiter = waiting(&server, &["x"], &["echo", "no"]);
    waiter.signal(Signal::TERM);
    let end = waiter.end();
    assert_eq!((end.code(), end.output.len(), &*end.errors), (143, 0, ""));
    assert_eq!(running.finish().code(), 5);
}

#[test]
fn after_a_kill_the_next_caller_runs() {
    let server = Server::start();
    for options in [&["--release-on-death"][..], &["--release-on-death", "--output"]] {
        let mut running = start(&server, &[options, &LONG[..]].concat(), UNTIL_INPUT);
        let group = running.group_id().to_string();
        eventually("the record has the group", || {
            let records: Vec<String> = server.ask(&["KEYS", "leasehold_client:*"]);
            let known = |key: &String| server.ask::<Option<String>>(&["HGET", key, "group"]);
            records.iter().any(|key| known(key).as_ref() == Some(&group))
        });
        let waiter = waiting(&server, &["--output", "x"], &["echo", "mine"]);
        running.process().kill();
        // The guard ends the command, and the waiting client sees that it is gone.
        group_ends(running.group_id());
        assert_eq!(waiter.finish().output, ["mine"]);
        assert_eq!(forget(&server).0, 0);
    }
    let mut running = start(&server, &["--lease", "1s", "x"], UNTIL_INPUT);
    running.process().kill();
    gives(&server, &["--output", "x"], &["echo", "mine"], 0, &["mine"]);
}

#[test]
fn a_lost_run_ends_the_command_and_commits_nothing() {
    let server = Server::start();
    for options in [&[][..], &["--output"]] {
        let words = [options, &["--lease", "3s", "x"]].concat();
        let running = start(&server, &words, SUCCEEDS);
        let () = server.ask(&["DEL", "x"]);
        let end = running.end();
        assert_eq!(end.code(), 75, "{end:?}");
        assert!(end.one_error().contains("was terminated; somebody deleted the key"), "{end:?}");
        assert!(!has_result(&server));
    }
}

#[test]
fn a_loss_that_the_commit_finds_is_a_failure() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let running = start(&server, &LONG, SUCCEEDS);
    let () = server.ask(&["DEL", "x"]);
    let Begin::Run(run) = client.once("x").begin().expect("an answer") else {
        panic!("nothing is committed")
    };
    let end = running.finish();
    assert_eq!(end.code(), 75, "{end:?}");
    assert!(end.one_error().contains("had ended by itself, and its result is not committed"));
    run.commit("theirs").expect("held");
    gives(&server, &["--output", "x"], &["false"], 0, &["theirs"]);
}

#[test]
fn a_command_that_runs_for_too_long_leaves_no_result() {
    let server = Server::start();
    let running = start(&server, &["--max-hold", "200ms", "--output", "x"], UNTIL_INPUT);
    let end = running.end();
    assert_eq!(end.code(), 75);
    assert!(end.one_error().contains("longer than --max-hold 200ms"), "{end:?}");
    assert!(!has_result(&server) && !exists(&server, "x"));
}

#[test]
fn a_commit_without_an_answer_is_a_failure() {
    let server = Server::start();
    let running = start(&server, &["--lease", "10s", "x"], SUCCEEDS);
    server.kill();
    let end = running.finish();
    assert_eq!(end.code(), 69, "{end:?}");
    assert!(end.one_error().contains("leasehold show x tells whether"), "{end:?}");
}

/// The commit is repeated until the end of the lease.
#[test]
fn a_signal_ends_the_wait_for_the_answer_to_a_commit() {
    let server = Server::start();
    let mut running = start(&server, &LONG, SUCCEEDS);
    server.stop();
    running.say("it");
    group_ends(running.group_id());
    let has_ended = || {
        running.signal(Signal::TERM);
        running.process().try_wait().is_some()
    };
    assert!(holds_within(BOUND, has_ended));
    server.resume();
    assert_eq!(running.end().code(), 143);
}

#[test]
fn a_commit_that_the_server_refuses_gives_77() {
    let server = Server::start();
    let running = start(&server, &["x"], SUCCEEDS);
    let () = server.ask(&["SET", RESULT, "text"]);
    let end = running.finish();
    assert_eq!(end.code(), 77, "{end:?}");
    let line = end.one_error();
    assert!(line.contains("WRONGTYPE") && line.ends_with("is not committed"), "{line}");
    assert!(!exists(&server, "x"));
}

#[test]
fn a_key_of_another_type_gives_77() {
    let server = Server::start();
    for key in ["x", RESULT] {
        let () = server.ask(&["SET", key, "text"]);
        let end = end(&server, &["x"], &["echo", "no"]);
        assert_eq!((end.code(), end.output.len()), (77, 0));
        assert!(end.one_error().contains("WRONGTYPE"), "{end:?}");
        let () = server.ask(&["DEL", key]);
    }
}

#[test]
fn an_output_has_512_kib_at_most() {
    let server = Server::start();
    for (length, code) in [(512 * 1024 + 1, 65), (512 * 1024, 0), (1, 0)] {
        let print = format!("head -c {length} /dev/zero");
        let words = ["--output", "x", "--", "sh", "-c", &print];
        let output = once(&server, &words).output().expect("the program runs");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), length.min(524_289)));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors.contains("larger than 512 KiB"), code == 65, "{errors}");
        assert_eq!(has_result(&server), code == 0);
        assert!(!exists(&server, "x"));
        if code == 0 {
            let kept = once(&server, &["--output", "x", "--", "false"]).output();
            assert_eq!(kept.expect("the program runs").stdout.len(), length);
            assert_eq!(forget(&server).0, 0);
        }
    }
    // Its own code tells more, and without --output any length is good.
    let fails = ["sh", "-c", "head -c 600000 /dev/zero; exit 4"];
    assert_eq!(end(&server, &["--output", "x"], &fails).code(), 4);
    let long = ["sh", "-c", "head -c 600000 /dev/zero"];
    assert_eq!(end(&server, &["x"], &long).code(), 0);
}

/// The reader waits for the end of the program, which waits for no reader.
#[test]
fn a_reader_that_pauses_does_not_delay_the_commit() {
    let server = Server::start();
    let print = ["head", "-c", "100000", "/dev/zero"];
    let mut command = once(&server, &[&["--output", "x", "--"], &print[..]].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
    eventually("the result is committed", || has_result(&server) && !exists(&server, "x"));
    assert!(child.try_wait().expect("our own child").is_none(), "there is more to pass on");
    let output = child.wait_with_output().expect("our own child");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 100_000));
}

#[test]
fn a_reader_that_ends_is_no_failure_and_a_full_disk_is_one() {
    let server = Server::start();
    let script = "\"$0\" once --output x -- sh -c 'head -c 300000 /dev/zero' | true; \
                  echo \"${PIPESTATUS[0]}\"; \"$0\" once --output x -- false | wc -c";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, PROGRAM]).env("LEASEHOLD_URL", server.url());
    let output = bash.output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n300000\n", "{output:?}");
    for name in ["x", "y"] {
        let script = format!("\"$0\" once --output {name} -- echo it >/dev/full");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, PROGRAM]).env("LEASEHOLD_URL", server.url());
        assert_eq!(shell.output().expect("a shell").status.code(), Some(70), "{name}");
    }
    gives(&server, &["--output", "y"], &["false"], 0, &["it"]);
}

#[test]
fn a_process_that_stays_behind_delays_nothing() {
    let server = Server::start();
    // The process in the background has the output open, and ends with the input.
    let script = "exec 3<&0; (read -r line <&3) & echo \"group $$\"; echo it";
    let end = start(&server, &["--output", "x"], script).end();
    assert_eq!((end.code(), end.output), (0, vec!["it".to_owned()]));
    assert!(has_result(&server));
}

#[test]
fn a_command_on_a_terminal_may_read_and_its_output_is_the_result() {
    let server = Server::start();
    let script = "test -t 1 || echo piped; read -r line; echo \"got $line\"";
    let command = once(&server, &["--output", "x", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command, 24, 100);
    terminal.wait_for_text("piped");
    terminal.press("a line\r");
    terminal.wait_for_text("got a line");
    assert_eq!(terminal.wait().code(), Some(0));
    gives(&server, &["--output", "x"], &["false"], 0, &["piped", "got a line"]);
    let command = once(&server, &["y", "--", "sh", "-c", "test -t 1 && echo terminal"]);
    let mut terminal = Terminal::start(&command, 24, 100);
    terminal.wait_for_text("terminal");
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn a_command_that_is_not_run_is_named_on_request() {
    let server = Server::start();
    gives(&server, &["--verbose", "x"], &["true"], 0, &[]);
    let end = end(&server, &["--verbose", "x"], &["echo", "no"]);
    assert_eq!((end.code(), end.output.len()), (0, 0));
    let line = end.one_error();
    assert!(line.starts_with("leasehold: x was done "), "{line}");
    assert!(line.ends_with("s ago; the command is not run"), "{line}");
}

#[test]
fn wrong_usage_gives_64_before_a_server_is_asked() {
    let wrong = [
        &["x"][..],
        &["x", "--"],
        &["--", "true"],
        &["x", "true"],
        &["", "--", "true"],
        &["a{b", "--", "true"],
        &["--forget"],
        &["--forget", "x", "--", "true"],
        &["--forget", "--output", "x"],
        &["--forget", "--keep", "1h", "x"],
        &["--keep", "9ms", "x", "--", "true"],
        &["--keep", "soon", "x", "--", "true"],
        &["--min-hold", "1s", "x", "--", "true"],
        &["--queue", "x", "--", "true"],
        &["-n", "-w", "1s", "x", "--", "true"],
        &["--lease", "99ms", "x", "--", "true"],
        &["--max-hold", "0", "x", "--", "true"],
    ];
    assert_wrong_usage("once", &wrong);
    let url = format!("redis://127.0.0.1:{}/", free_port());
    for words in [&["x", "--", "true"][..], &["--forget", "x"]] {
        let mut command = leasehold();
        command.env("LEASEHOLD_URL", &url).arg("once").args(words);
        assert_eq!(Running::start(command).finish().code(), 69, "{words:?}");
    }
}
