//! Files that the process may not read any more, whatever its user is (Landlock, landlock(7)).

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, make_bitflags,
};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Takes files and directories away from the process and its children for good: they can neither be read nor listed, by any
/// name. A process without capabilities cannot trace processes outside either (ptrace(2)), so that their memory and environment stay
/// closed, too. Must be called while the process has one thread. Paths that do not exist are left out, as there is nothing to read.
///
/// The kernel knows allowed places only. Everything beside the paths is therefore allowed as it is at the time of the call: what is
/// made later right beside a closed path, or beside a directory above it, is closed as well. Where the kernel is older than 5.19,
/// files cannot be moved to another directory (`EXDEV`).
///
/// Returns `false` if the kernel has no Landlock.
///
/// # Errors
/// A directory above a path cannot be listed, or the kernel refuses the rules.
pub fn close(paths: &[PathBuf]) -> io::Result<bool> {
    let closed: BTreeSet<PathBuf> = paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    if closed.is_empty() {
        return Ok(true);
    }
    let failed = |e: &dyn std::fmt::Display| io::Error::other(e.to_string());
    let rights = make_bitflags!(AccessFs::{ReadFile | ReadDir | Refer});
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(rights)
        .and_then(Ruleset::create)
        .map_err(|e| failed(&e))?;
    let mut rules = rules.set_compatibility(CompatLevel::BestEffort);
    for open in open_beside(&closed)? {
        rules = allow(rules, &open, rights).map_err(|e| failed(&e))?;
    }
    let status = rules.restrict_self().map_err(|e| failed(&e))?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Keeps the memory and the environment of this process from others of its user: no core dumps, no tracing (prctl(2),
/// `PR_SET_DUMPABLE`).
///
/// # Errors
/// Errors of the system call.
pub fn hide_memory() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

/// Allows what is below a path. One that has gone meanwhile, or that the process cannot open, is left out.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    let Ok(place) = PathFd::new(path) else { return Ok(rules) };
    let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(ABI::V2) };
    rules.add_rule(PathBeneath::new(place, rights))
}

/// Lists the highest places that contain none of the paths and lie in none.
fn open_beside(closed: &BTreeSet<PathBuf>) -> io::Result<Vec<PathBuf>> {
    let above: BTreeSet<&Path> = closed.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    let mut open = Vec::new();
    for directory in above {
        // Nothing below a closed directory is opened again.
        if closed.iter().any(|path| directory.starts_with(path)) {
            continue;
        }
        let entries = match fs::read_dir(directory) {
            // What this user cannot list is not opened.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            // A link would open what it names, which may be a closed path. Its target counts where it lies.
            let is_link = entry.file_type()?.is_symlink();
            if !is_link && !closed.iter().any(|closed| closed.starts_with(&path)) {
                open.push(path);
            }
        }
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Landlock holds for the thread that asks for it, so the test has one of its own.
    #[test]
    fn closed_files_cannot_be_read_by_any_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(&path, "text").expect("a file");
            path
        };
        let (token, key) = (make("secrets/account/token"), make("etc/webhook/key"));
        let (beside, other) = (make("etc/webhook/beside"), make("other/file"));
        std::os::unix::fs::symlink(&token, dir.path().join("link")).expect("a link");
        let link = dir.path().join("link");
        let moved = dir.path().join("other/deeper/file");
        fs::create_dir_all(moved.parent().expect("a parent")).expect("directories");
        let gone = dir.path().join("none");
        let secrets = dir.path().join("secrets");
        let worked = std::thread::spawn(move || {
            assert!(
                close(&[secrets.clone(), key.clone(), gone]).expect("closes"),
                "this kernel has no Landlock"
            );
            for path in [&token, &key, &link] {
                let e = fs::read(path).expect_err("closed");
                assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{}", path.display());
            }
            assert_eq!(fs::read_dir(&secrets).expect_err("closed").kind(), io::ErrorKind::PermissionDenied);
            // Another name does not open it, whether it is allowed to exist or not.
            let second = other.with_file_name("second");
            let _ = fs::hard_link(&token, &second);
            let _ = fs::rename(&key, &second);
            assert!(fs::read(&second).is_err());
            assert_eq!(fs::read(&beside).expect("beside"), b"text");
            fs::write(&other, "new").expect("writes");
            fs::rename(&other, &moved).expect("moves");
            assert_eq!(fs::read(&moved).expect("reads"), b"new");
            fs::read("/proc/self/status").expect("its own state");
        });
        worked.join().expect("the thread");
    }

    #[test]
    fn nothing_is_closed_for_paths_that_do_not_exist() {
        std::thread::spawn(|| {
            assert!(close(&["/none/at/all".into()]).expect("works"));
            fs::read("/proc/self/status").expect("reads");
        })
        .join()
        .expect("the thread");
    }
}
