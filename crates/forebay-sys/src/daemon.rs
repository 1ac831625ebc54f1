//! Leaving the terminal (nginx: daemon).

use rustix::fs::{Mode, OFlags};
use std::io;

/// Goes on in a child process with a session of its own and no terminal; the calling process exits with
/// code 0. Standard input and output become `/dev/null`; standard error stays until [`silence_stderr`].
///
/// # Errors
/// The process has more than one thread (a child would have one, and locks that nothing releases), and those
/// of fork(2), setsid(2) and open(2).
pub fn detach() -> io::Result<()> {
    if threads()? != 1 {
        return Err(io::Error::other("fork() needs a process with a single thread"));
    }
    // SAFETY: the process has one thread, checked above, so no lock can be held by a thread that the child
    // lacks, and the child may do what any process may do.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { .. } => std::process::exit(0),
        nix::unistd::ForkResult::Child => {}
    }
    rustix::process::setsid()?;
    rustix::process::umask(Mode::empty());
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Sends standard error to `/dev/null`.
///
/// # Errors
/// Errors of open(2).
pub fn silence_stderr() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

/// Replaces standard input by `/dev/null`.
///
/// # Errors
/// Errors of open(2).
pub fn silence_stdin() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::stdio::dup2_stdin(&null)?)
}

fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}
