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

/// Makes the process that `command` starts end, by SIGTERM, when the thread that starts it ends, however that happens.
pub fn die_with_starter(command: &mut Command) -> &mut Command {
    let signal = Some(rustix::process::Signal::TERM);
    // SAFETY: between fork and exec only what is safe in a signal handler may be called; this is a system call alone.
    unsafe { command.pre_exec(move || Ok(rustix::process::set_parent_process_death_signal(signal)?)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let start = || die_with_starter(Command::new("sleep").arg("60")).spawn().expect("sleep");
        let mut child = std::thread::spawn(start).join().expect("started");
        let status = child.wait().expect("ended");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::SIGTERM as i32));
    }

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
