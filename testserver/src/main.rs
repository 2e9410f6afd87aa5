//! The server as a program, for clients in other processes. Takes the place of `redis-server`.

use leasehold_testserver::Program;
use std::process::ExitCode;

const HELP: &str = "\
usage: leasehold-testserver [FILE] [--SETTING VALUE]..

Serves until a client sends SHUTDOWN, or until it is killed. Keeps nothing on disk.
FILE has one setting per line, as redis.conf:
  port N          listens at this port of 127.0.0.1; 0, the default, for none
  unixsocket P    listens at this path
  dir D           the working folder
  requirepass P   the password of the default user
  and maxclients, maxmemory 0|1, min-replicas-to-write, timeout
Other settings of Redis are refused unless they say what the server does anyway.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Program::from_args(&args).and_then(Program::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("leasehold-testserver: {problem}");
            ExitCode::FAILURE
        }
    }
}
