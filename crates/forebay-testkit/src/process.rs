//! Processes, as /proc shows them.

use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns the program under test: cargo puts it into the directory above the one of the test program.
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let own = std::env::current_exe().expect("a test program");
        let directory: PathBuf = own.parent().and_then(|deps| deps.parent()).expect("target").into();
        directory.join("forebay").to_str().expect("UTF-8").to_owned()
    })
}

/// Sends a signal to one process; one that is gone is no error.
pub fn kill(pid: i32, signal: Signal) {
    assert!(pid > 1, "not a pid of ours: {pid}");
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// Has a process end with its requests, and waits for that.
pub fn quit(pid: i32) {
    kill(pid, Signal::SIGQUIT);
    crate::wait_until("the end of the process", || !alive(pid));
}

/// Returns `true` if a process exists and is not a zombie.
pub fn alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Returns the memory that a process has allocated and written to, KiB. Pages of files do not count: which of them are resident
/// depends on the page cache, and how they are shared on other servers of the same program.
pub fn memory(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("its anonymous memory");
    line.trim().trim_end_matches(" kB").parse().expect("KiB")
}

/// Returns the command line of a process, as `ps` shows it.
pub fn title(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_owned()
}

/// Returns the children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Returns the number of descriptors that a process has open.
pub fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count()
}
