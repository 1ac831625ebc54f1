//! Signals as something to wait for, next to sockets.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The signals that mean something here.
const HANDLED: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCHLD,
    Signal::SIGALRM,
];

/// A signal and the process that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// Kind of signal.
    pub signal: Signal,
    /// Sender; 0 is the kernel.
    pub from: u32,
}

/// Descriptor that becomes readable with a signal.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks the handled signals for this thread, and those it starts, and takes them over.
    ///
    /// # Errors
    /// Errors of signalfd(2).
    pub(crate) fn take_over() -> io::Result<Signals> {
        let mask: SigSet = HANDLED.into_iter().collect();
        mask.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The next signal that has come, without waiting.
    pub(crate) fn next(&self) -> Option<Received> {
        let info = self.0.read_signal().ok().flatten()?;
        let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())?;
        Some(Received { signal, from: info.ssi_pid })
    }

    /// Waits for a signal, for one of `others` to be readable (or closed), or for `until`. Gives for each of
    /// `others` whether it is ready.
    ///
    /// # Errors
    /// Errors of poll(2).
    pub(crate) fn wait(&self, others: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<Vec<bool>> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        fds.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(3600),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect())
    }
}

/// `signal 1 (SIGHUP) received from 10369, reconfiguring`.
pub(crate) fn received_line(received: Received, action: &str) -> String {
    let Received { signal, from } = received;
    let sender = if from == 0 { String::new() } else { format!(" from {from}") };
    format!("signal {} ({signal}) received{sender}{action}", signal as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let hup = Received { signal: Signal::SIGHUP, from: 7 };
        assert_eq!(received_line(hup, ", reconfiguring"), "signal 1 (SIGHUP) received from 7, reconfiguring");
        assert_eq!(
            received_line(Received { signal: Signal::SIGIO, from: 0 }, ""),
            "signal 29 (SIGIO) received"
        );
    }
}
