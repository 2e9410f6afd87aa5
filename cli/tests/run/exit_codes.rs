//! The exit code of each end, and the line on stderr.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use leasehold::Client;

use crate::command::{PROGRAM, leasehold};
use crate::harness::{Server, eventually, exists, server::free_port};
use crate::program::{Running, assert_wrong_usage, code_of, run};

#[test]
fn the_exit_code_is_that_of_the_command_and_nothing_is_printed() {
    let server = Server::start();
    for code in [0, 1, 7, 75, 255] {
        let end = Running::start(run(&server, &["x", "--", "sh", "-c", &format!("exit {code}")]));
        let end = end.finish();
        assert_eq!((end.code(), end.output.len(), end.errors.as_str()), (code, 0, ""));
        assert!(!exists(&server, "x"));
    }
}

#[test]
fn a_command_that_a_signal_ended_gives_128_and_the_number() {
    let server = Server::start();
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        assert_eq!(code_of(&server, &["x", "--", "sh", "-c", &format!("kill -{signal} $$")]), code);
    }
}

#[test]
fn a_held_lock_gives_1_or_the_chosen_code_and_nothing_is_printed() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let guard = client.lock("x").lock().expect("the lock is free");
    for (options, code) in [
        (&["-n"][..], 1),
        (&["--nonblock", "-E", "9"], 9),
        (&["-w", "50ms"], 1),
        (&["-w", "0"], 1),
        (&["--wait", "0.05", "--conflict-exit-code", "0"], 0),
    ] {
        let running = Running::start(run(&server, &[options, &["x", "--", "echo", "no"]].concat()));
        let end = running.finish();
        assert_eq!(
            (end.code(), end.output.len(), end.errors.as_str()),
            (code, 0, ""),
            "{options:?}"
        );
    }
    guard.unlock().expect("the lock was held");
    assert_eq!(code_of(&server, &["-n", "x", "--", "true"]), 0);
}

#[test]
fn the_holder_is_named_on_request() {
    let server = Server::start();
    let client = Client::builder().single(server.url()).label("nightly").build();
    let client = client.expect("the server runs");
    let guard = client.lock("x").lock().expect("the lock is free");
    let permit = client.semaphore("jobs").with_permits(1).acquire().expect("it is free");
    eventually("the record is written", || !server.client_records().is_empty());
    for (options, begin) in [
        (&["-n", "x"][..], "leasehold: not acquired: x is held by nightly on "),
        (&["-w", "50ms", "x"], "leasehold: not acquired: x is held by nightly on "),
        (&["-n", "--permits", "1", "jobs"], "leasehold: not acquired: jobs is held by nightly on "),
    ] {
        let words = [&["--verbose"], options, &["--", "echo", "no"]].concat();
        let end = Running::start(run(&server, &words)).finish();
        assert_eq!((end.code(), end.output.len()), (1, 0), "{options:?}");
        assert!(end.one_error().starts_with(begin), "{end:?}");
        assert!(end.errors.contains(&format!("pid {}, for ", std::process::id())), "{end:?}");
    }
    let waiting = Running::start(run(&server, &["--verbose", "x", "--", "true"]));
    let begin = "leasehold: waits: x is held by nightly on ";
    eventually("the holder is named", || waiting.errors().ends_with("s\n"));
    guard.unlock().expect("the lock was held");
    let end = waiting.finish();
    assert!(end.code() == 0 && end.one_error().starts_with(begin), "{end:?}");
    drop(permit);
}

#[test]
fn a_wait_with_a_limit_ends_with_the_release() {
    let server = Server::start();
    let client = Client::open(server.url()).expect("the server runs");
    let lock = client.lock("x").with_lease(Duration::from_millis(300));
    lock.lock().expect("the lock is free").detach();
    assert_eq!(code_of(&server, &["-w", "1h", "x", "--", "true"]), 0);
}

#[test]
fn no_server_gives_69() {
    let url = format!("redis://:secret@127.0.0.1:{}/", free_port());
    for words in
        [&["--url", &url, "run", "x", "--", "true"], &["run", "--url", &url, "x", "--", "true"]]
    {
        let mut command = leasehold();
        command.args(words);
        let end = Running::start(command).finish();
        assert_eq!(end.code(), 69);
        assert!(end.one_error().contains("is the server running"), "{end:?}");
        assert_eq!(end.errors.matches("Connection refused").count(), 1, "{end:?}");
        assert!(!end.errors.contains("secret"), "{end:?}");
    }
}

#[test]
fn wrong_usage_gives_64_before_a_server_is_asked() {
    let wrong = [
        &["x"][..],
        &["x", "--"],
        &["x", "true"],
        &["--", "true"],
        &["--nobody", "x", "--", "true"],
        &["", "--", "true"],
        &["a{b", "--", "true"],
        &["-n", "-w", "1s", "x", "--", "true"],
        &["-w", "soon", "x", "--", "true"],
        &["-w", "-1", "x", "--", "true"],
        &["-E", "256", "x", "--", "true"],
        &["-s", "--fair", "x", "--", "true"],
        &["--queue", "--permits", "2", "x", "--", "true"],
        &["--weight", "2", "x", "--", "true"],
        &["--queue", "--weight", "0", "x", "--", "true"],
        &["--queue", "--weight", "11", "x", "--", "true"],
        &["--permits", "0", "x", "--", "true"],
        &["-s", "--min-hold", "1s", "x", "--", "true"],
        &["--max-hold", "0", "x", "--", "true"],
        &["--lease", "99ms", "x", "--", "true"],
        &["--cluster", "--sentinel", "m", "x", "--", "true"],
    ];
    assert_wrong_usage("run", &wrong);
}

#[test]
fn an_address_is_needed_and_may_stand_in_two_variables() {
    let server = Server::start();
    for (variables, code) in [
        (&[][..], 64),
        (&[("LEASEHOLD_URL", "")], 64),
        (&[("REDIS_URL", server.url())].map(|(name, url)| (name, url.leak() as &str)), 0),
        (&[("LEASEHOLD_URL", ""), ("REDIS_URL", server.url().leak())], 0),
        (
            &[
                ("LEASEHOLD_URL", server.url().leak() as &str),
                ("REDIS_URL", "redis://127.0.0.1:1/"),
            ],
            0,
        ),
    ] {
        let mut command = leasehold();
        command.args(["run", "x", "--", "true"]).envs(variables.iter().copied());
        assert_eq!(Running::start(command).finish().code(), code, "{variables:?}");
    }
}

/// The second variable may name another server, on which nothing would be excluded.
#[test]
fn an_unreadable_address_is_no_missing_one() {
    let server = Server::start();
    let mut command = leasehold();
    command.env("LEASEHOLD_URL", OsStr::from_bytes(b"redis://\xff"));
    command.env("REDIS_URL", server.url()).args(["run", "x", "--", "true"]);
    let end = Running::start(command).finish();
    assert_eq!(end.code(), 64, "{end:?}");
    assert!(end.one_error().contains("LEASEHOLD_URL"), "{end:?}");
}

#[test]
fn a_refusal_gives_77() {
    let server = Server::with(|config| config.password("right"));
    for url in [server.url(), server.login_url("default", "secret")] {
        let mut command = leasehold();
        command.env("LEASEHOLD_URL", url).args(["run", "x", "--", "true"]);
        let end = Running::start(command).finish();
        assert_eq!(end.code(), 77, "{end:?}");
        assert!(!end.one_error().contains("secret"), "{end:?}");
    }
}

#[test]
fn a_key_of_another_type_gives_77() {
    let server = Server::start();
    let () = server.ask(&["SET", "x", "text"]);
    let end = Running::start(run(&server, &["x", "--", "true"])).finish();
    assert_eq!(end.code(), 77);
    assert!(end.one_error().contains("WRONGTYPE"), "{end:?}");
}

#[test]
fn no_error_shows_a_password() {
    for url in [
        "redis://user:s3cret@",
        "redis://:s3cret@127.0.0.1:port/",
        "redis:/:s3cret@127.0.0.1/",
        "http://:s3cret@127.0.0.1/",
        "redis://:s3c ret@127.0.0.1/",
        "redis://:s3cret@no.such.host.invalid/",
        "rediss://:s3cret@127.0.0.1:1/#insecure",
        "redis://:s3cret=s3cret@127.0.0.1:1/",
        "redis://:s3cret@127.0.0.1:1/,redis://:s3cret@127.0.0.1:1/",
    ] {
        for words in [
            &["run", "--url", url, "x", "--", "true"][..],
            &["--url", url, "run", "x", "--", "true"],
            &[url, "run", "x", "--", "true"],
            &["run", url],
            &["run", "--permits", url, "x", "--", "true"],
        ] {
            let mut command = leasehold();
            command.args(words);
            let end = Running::start(command).finish();
            assert!([64, 69].contains(&end.code()), "{words:?}: {end:?}");
            let line = end.one_error();
            assert!(!line.contains("s3c") && !line.contains("ret@"), "{words:?}: {line}");
        }
    }
}

#[test]
fn a_full_stderr_changes_no_exit_code() {
    for (words, code) in
        [(&[][..], 64), (&["run", "x"], 64), (&["run", "x", "--", "no-such-command"], 127)]
    {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"]);
        command.arg(PROGRAM).args(words);
        assert_eq!(Running::start(command).finish().code(), code, "{words:?}");
    }
}

#[test]
fn a_missing_command_takes_no_lock() {
    let server = Server::start();
    for (command, code) in
        [("no-such-command", 127), ("/no/such/command", 127), ("/dev/null", 126), ("/", 126)]
    {
        let end = Running::start(run(&server, &["--min-hold", "1h", "x", "--", command])).finish();
        assert_eq!(end.code(), code, "{end:?}");
        assert!(end.one_error().contains(command), "{end:?}");
        assert!(!exists(&server, "x"));
    }
}

#[test]
fn a_command_that_the_system_refuses_gives_the_code_of_a_shell_and_frees_the_lock() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("script");
    std::fs::write(&path, "#!/no/such/interpreter\n").expect("our own folder");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("our own file");
    let path = path.to_str().expect("a path in ASCII");
    let end = Running::start(run(&server, &["x", "--", path])).finish();
    assert_eq!(end.code(), 127, "{end:?}");
    end.one_error();
    assert!(!exists(&server, "x"));
}
