//! Resources that a new process inherits.

use nix::sys::signal::SigSet;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the process that `command` starts take all signals, also those that this one keeps from itself: the mask is
/// inherited, and a program that does not set its own could not be ended with SIGTERM.
pub fn unblock_signals(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only what is safe in a signal handler may be called; setting the mask is a system call
    // without any memory of its own.
    unsafe { command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    #[test]
    fn a_child_can_be_ended() {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.thread_block().expect("blocked");
        let blocked = |command: &mut Command| {
            let out = command.args(["SigBlk", "/proc/self/status"]).output().expect("grep");
            String::from_utf8_lossy(&out.stdout).split_whitespace().nth(1).unwrap_or_default().to_owned()
        };
        assert_ne!(blocked(&mut Command::new("grep")), "0000000000000000");
        assert_eq!(blocked(unblock_signals(&mut Command::new("grep"))), "0000000000000000");
    }
}
