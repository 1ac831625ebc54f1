//! The master that runs the configuration.

use super::nginx::Nginx;
use forebay_copy::record::version_of;
use forebay_sys::files;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a pid file and of a command line that are read.
const MOST: u64 = 64 << 10;

/// Program of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Nginx,
    Forebay,
    /// Its program cannot be read.
    Unknown,
}

/// A master.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub pid: u32,
    pub server: Server,
    /// Path that it was started by, and that it starts on USR2.
    pub program: PathBuf,
    /// Its arguments have a configuration or a prefix.
    pub names_configuration: bool,
    /// Its arguments have `daemon off`: it does not replace itself.
    pub is_in_foreground: bool,
    /// The master before it still waits, so that it can come back.
    pub has_former: bool,
}

impl Running {
    /// Finds the master whose number a pid file has. `None` if none runs.
    pub(super) fn find(pid_file: &Path, nginx: Option<&Nginx>, own: &Path) -> Option<Running> {
        let (pid, title) = master(pid_file)?;
        let mut former = pid_file.as_os_str().to_owned();
        former.push(".oldbin");
        let words = title.strip_prefix("nginx: master process ").unwrap_or_default();
        let has = |option: &str| words.split(' ').any(|word| word.starts_with(option));
        Some(Running {
            pid,
            server: server(pid, words, nginx, own),
            program: words.split(' ').next().map(PathBuf::from).unwrap_or_default(),
            names_configuration: has("-c") || has("-p"),
            is_in_foreground: words.contains("daemon off"),
            has_former: master(Path::new(&former)).is_some_and(|(former, _)| former != pid),
        })
    }
}

/// Returns the number in a pid file and the title of its process, if that is a master.
fn master(pid_file: &Path) -> Option<(u32, String)> {
    let pid: u32 = files::read_text(pid_file, MOST).ok()?.trim().parse().ok()?;
    let line = files::read_file(Path::new(&format!("/proc/{pid}/cmdline")), MOST).ok()?;
    let title = String::from_utf8_lossy(&line).replace('\0', " ");
    title.starts_with("nginx: master").then_some((pid, title))
}

/// Tells which program a master runs, by its file, or else by the version that it prints.
fn server(pid: u32, words: &str, nginx: Option<&Nginx>, own: &Path) -> Server {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    if is_same_file(&exe, own) {
        return Server::Forebay;
    }
    if nginx.is_some_and(|nginx| is_same_file(&exe, &nginx.program)) {
        return Server::Nginx;
    }
    // Programs of other users are not run.
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid());
    if !owner.is_ok_and(|owner| owner == 0 || owner == nix::unistd::geteuid().as_raw()) {
        return Server::Unknown;
    }
    // Only the owner may run the file itself, which the program at its path may have replaced.
    let title = words.split(' ').next().map(Path::new).filter(|program| program.is_absolute());
    match version_of(&exe).or_else(|| version_of(title?)) {
        Some(version) if version.contains("forebay") => Server::Forebay,
        Some(_) => Server::Nginx,
        None => Server::Unknown,
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    identity(a).is_some_and(|a| identity(b) == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_no_master_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("nginx.pid");
        for text in ["", "x", "4294967295", "99999999999999", &std::process::id().to_string()] {
            std::fs::write(&file, text).expect("written");
            assert!(master(&file).is_none(), "{text}");
        }
        assert!(master(&dir.path().join("none")).is_none());
        assert!(is_same_file(Path::new("/proc/self/exe"), &std::env::current_exe().expect("a program")));
    }
}
