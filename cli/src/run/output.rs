//! The output of the command of `once --output`: a thread reads it, and passes it on.
//!
//! The thread never waits for one side alone: a reader of `leasehold` that pauses does not delay
//! the result, unless it is a terminal that is stopped. It holds back the command as a pipe does,
//! once a [`CHUNK`] waits for it.
//!
//! The result is what the command has written until its end. A process that the command leaves
//! behind finds the pipe closed.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread, write};
use rustix::stdio::stdout;

use crate::failure::Result;

/// The greatest length of a result in bytes, which the library sets.
pub(super) const MOST_BYTES: usize = 512 * 1024;

/// The number of bytes that may wait to be passed on, while the command runs.
const CHUNK: usize = 64 * 1024;

/// The number of bytes for which a pipe has room, if it has any.
const LEAST_ROOM: usize = 4096;

/// What the command has written.
#[derive(Debug)]
pub(super) enum Captured {
    /// The output is no result.
    Nothing,
    Output(Vec<u8>),
    /// More than [`MOST_BYTES`].
    TooLarge,
    /// The output was not read to its end.
    Failed(io::Error),
}

impl Captured {
    fn add(&mut self, bytes: &[u8]) {
        match self {
            Captured::Output(value) if value.len() + bytes.len() <= MOST_BYTES => {
                value.extend_from_slice(bytes);
            }
            Captured::Failed(_) => {}
            _ => *self = Captured::TooLarge,
        }
    }
}

/// The thread that reads the output.
pub(super) struct Output {
    /// Its end tells the thread that the command has ended.
    running: Option<PipeWriter>,
    captured: Receiver<Captured>,
    thread: JoinHandle<io::Result<()>>,
}

impl Output {
    /// Starts the thread; returns the pipe for the command too.
    pub(super) fn start() -> io::Result<(PipeWriter, Output)> {
        let ((source, writer), (ended, running)) = (io::pipe()?, io::pipe()?);
        let (sender, captured) = mpsc::channel();
        let copy = Copy::new(source, ended, sender);
        let thread = thread::Builder::new().name("output".to_owned()).spawn(move || copy.run())?;
        Ok((writer, Output { running: Some(running), captured, thread }))
    }

    /// Returns what the command has written, once it has ended.
    pub(super) fn end(&mut self) -> Captured {
        self.running = None;
        // The thread sends it before its own end.
        self.captured
            .recv()
            .unwrap_or_else(|_| Captured::Failed(io::Error::other("no reader is left")))
    }

    /// Blocks until all output is passed on. Fails if stdout does.
    pub(super) fn finish(self) -> Result<()> {
        Ok(self.thread.join().unwrap_or(Ok(()))?)
    }
}

/// The state of the thread.
struct Copy {
    /// The output of the command, until its end, and the pipe that tells of that end.
    source: Option<(PipeReader, PipeReader)>,
    captured: Captured,
    sender: Sender<Captured>,
    /// What is not passed on yet.
    pending: Vec<u8>,
    /// The end of the passing on: a reader that has ended is no failure.
    ended: Option<io::Result<()>>,
}

impl Copy {
    fn new(source: PipeReader, ended: PipeReader, sender: Sender<Captured>) -> Copy {
        let (captured, pending) = (Captured::Output(Vec::new()), Vec::new());
        Copy { source: Some((source, ended)), captured, sender, pending, ended: None }
    }

    fn run(mut self) -> io::Result<()> {
        // A terminal with `stty tostop` would stop this process, and with it the renewals.
        let mut mask = SigSet::empty();
        mask.add(Blocked::SIGTTOU);
        // It fails only for a wrong mask.
        let _ = mask.thread_block();
        while self.source.is_some() || !self.pending.is_empty() {
            let (is_readable, has_ended, is_writable) = self.wait()?;
            if has_ended {
                self.read_rest();
            } else if is_readable {
                self.read();
            }
            if is_writable {
                self.write();
            }
        }
        self.ended.unwrap_or(Ok(()))
    }

    /// Blocks until there is something to do: to read, to read for the last time, to write.
    fn wait(&self) -> io::Result<(bool, bool, bool)> {
        let mut files = Vec::with_capacity(3);
        if let Some((source, ended)) = &self.source {
            let wanted =
                if self.pending.len() < CHUNK { PollFlags::IN } else { PollFlags::empty() };
            files.push(PollFd::new(ended, PollFlags::IN));
            if !wanted.is_empty() {
                files.push(PollFd::new(source, wanted));
            }
        }
        let stdout = stdout();
        let at_output = files.len();
        if !self.pending.is_empty() {
            files.push(PollFd::new(&stdout, PollFlags::OUT));
        }
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: usize| files.get(at).is_some_and(|file| !file.revents().is_empty());
        Ok((at_output == 2 && is_ready(1), at_output > 0 && is_ready(0), is_ready(at_output)))
    }

    /// Reads what there is. The end of the pipe is the end of the output.
    fn read(&mut self) {
        let Some((source, _)) = &mut self.source else { return };
        let mut bytes = vec![0; CHUNK];
        match source.read(&mut bytes) {
            Ok(0) => self.end(),
            Ok(count) => self.take(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.fail(error),
        }
    }

    /// Reads what is in the pipe, and closes it.
    fn read_rest(&mut self) {
        let Some((source, _)) = &mut self.source else { return };
        let mut bytes = Vec::new();
        let left = ioctl_fionread(&*source).map_err(io::Error::from);
        let read = left.and_then(|left| source.take(left).read_to_end(&mut bytes));
        self.take(&bytes);
        match read {
            Ok(_) => self.end(),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.captured = Captured::Failed(error);
        self.end();
    }

    fn take(&mut self, bytes: &[u8]) {
        self.captured.add(bytes);
        if self.ended.is_none() {
            self.pending.extend_from_slice(bytes);
        }
    }

    fn end(&mut self) {
        self.source = None;
        // The receiver waits until the end of this thread.
        let _ = self.sender.send(std::mem::replace(&mut self.captured, Captured::Nothing));
    }

    /// Passes on as much as the output takes without a wait.
    fn write(&mut self) {
        let most = self.pending.len().min(LEAST_ROOM);
        match write(stdout(), &self.pending[..most]) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => {
                self.pending.clear();
                let is_end = error == Errno::PIPE;
                self.ended = Some(if is_end { Ok(()) } else { Err(error.into()) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_512_kib_at_most() {
        let mut captured = Captured::Output(Vec::new());
        captured.add(&vec![1; MOST_BYTES - 1]);
        captured.add(&[2]);
        assert!(matches!(&captured, Captured::Output(value) if value.len() == MOST_BYTES));
        captured.add(&[]);
        assert!(matches!(&captured, Captured::Output(_)));
        captured.add(&[3]);
        assert!(matches!(captured, Captured::TooLarge));
        captured.add(&[]);
        assert!(matches!(captured, Captured::TooLarge));
    }
}
