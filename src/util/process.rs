//! The names of this machine and of this program.

use std::path::{Path, PathBuf};

/// Returns the name of this machine in its network, if it is UTF-8.
///
/// The file comes first: a system that refuses the system call ends the process.
pub(crate) fn host() -> Option<String> {
    let name = match std::fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(name) => name,
        Err(_) => rustix::system::uname().nodename().to_str().ok()?.to_owned(),
    };
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Returns the file name of this program: that of its first argument, or else of its executable.
pub(crate) fn program() -> Option<String> {
    let first = std::env::args_os().next().map(PathBuf::from);
    let executable = || std::env::current_exe().ok();
    first.as_deref().and_then(file_name).or_else(|| file_name(&executable()?))
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_the_program_have_names() {
        assert!(host().is_some_and(|host| !host.is_empty()));
        let executable = std::env::current_exe().expect("a running program has a path");
        assert_eq!(program(), file_name(&executable));
        assert_eq!(file_name(Path::new("/")), None);
    }
}
