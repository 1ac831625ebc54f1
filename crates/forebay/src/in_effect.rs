//! The configuration in effect, for commands of the one who runs the server, and what a reload changes in it.
//!
//! The master keeps the record of its files in a memfd. Its own user and root can open it by way of /proc, and nobody else.

use crate::changes::{Recorded, between};
use forebay_conf::files::Files;
use forebay_core::config::Environment;
use forebay_modules::parts::facts::Changes;
use nix::unistd::Pid;
use rustix::fs::MemfdFlags;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Name of the memfd.
const NAME: &str = "forebay-configuration";
/// Most bytes of files whose record is kept. The record of a larger configuration would cost as much memory again.
const LONGEST: usize = 4 << 20;
/// Most changes of either kind that are shown.
const MOST: usize = 10;

/// Record of the files of a configuration that is in effect.
#[derive(Debug, Default)]
pub(crate) struct InEffect(#[expect(dead_code, reason = "it is open for others to find")] Option<OwnedFd>);

impl InEffect {
    /// Keeps the record of files. There is none where it is too long or the kernel refuses: a reload then names no changes.
    pub(crate) fn new(files: &Files) -> InEffect {
        if files.size() > LONGEST {
            return InEffect(None);
        }
        let bytes = files.to_bytes();
        let kept = || -> std::io::Result<OwnedFd> {
            let mut file = File::from(rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC)?);
            file.write_all(&bytes)?;
            Ok(file.into())
        };
        InEffect(kept().ok())
    }
}

/// Reads the record of a master process. `None` if it has none, or belongs to somebody else.
pub(crate) fn of(master: Pid) -> Option<Vec<u8>> {
    let links = std::fs::read_dir(format!("/proc/{master}/fd")).ok()?;
    let start = format!("/memfd:{NAME}");
    let is_it = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with(&start))
    };
    let path = links.flatten().map(|entry| entry.path()).find(is_it)?;
    let mut bytes = Vec::new();
    // A new descriptor begins at the start of the file.
    File::open(path).ok()?.take(2 * LONGEST as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the changes from a record to the files as they are. `certificates` are files that are not configuration.
pub(crate) fn changes(record: &[u8], environment: &Environment, certificates: &[PathBuf]) -> Option<Changes> {
    let mut now = Files::disk();
    let directory = environment.conf_path.parent().unwrap_or(&environment.prefix);
    forebay_conf::parse::parse(&environment.conf_path, &environment.globals, directory, &mut now);
    for path in certificates {
        // A certificate that cannot be read has been refused, or is the same for both.
        let _ = now.read(path);
    }
    let mut before = Recorded::new(environment, record)?;
    let mut after = Recorded::new(environment, &now.to_bytes())?;
    Some(between(&mut before, &mut after, certificates))
}

/// Returns lines for people: the number of changed directives, the directives, and files that were renewed.
pub(crate) fn text(changes: &Changes) -> String {
    let [_, added, removed] = changes.counts;
    let renewed = changes.files.iter().filter(|(_, what)| *what == "renewed");
    let mut out = match (added, removed) {
        (0, 0) => "no directive changed".to_owned(),
        (1, 1) => "one directive changed".to_owned(),
        (1, 0) => "one directive added".to_owned(),
        (0, 1) => "one directive removed".to_owned(),
        _ => format!("{added} directives added, {removed} removed"),
    };
    for (sign, list, all) in [('-', &changes.removed, removed), ('+', &changes.added, added)] {
        for line in list.iter().take(MOST) {
            let _ = write!(out, "\n  {sign} {line}");
        }
        if all > MOST {
            let _ = write!(out, "\n  {sign} and {} more", all - MOST);
        }
    }
    for (file, _) in renewed {
        let _ = write!(out, "\n  renewed: {file}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changes_since_a_record() {
        let dir = tempfile::tempdir().expect("a directory");
        let conf_path = dir.path().join("nginx.conf");
        let environment = Environment {
            prefix: dir.path().into(),
            conf_path: conf_path.clone(),
            globals: String::new(),
            error_log: None,
            access_log: String::new(),
        };
        let write = |text: &str| std::fs::write(&conf_path, text).expect("written");
        write("events {}\nhttp { server { listen 80; } }\n");
        let mut files = Files::disk();
        forebay_conf::parse::parse(&conf_path, "", dir.path(), &mut files);
        let kept = InEffect::new(&files);
        let record = of(nix::unistd::getpid()).expect("the record of this process");
        let shown = |record: &[u8]| text(&changes(record, &environment, &[]).expect("changes"));
        assert_eq!(shown(&record), "no directive changed");
        write("events {}\nhttp { server { listen 81; } }\n");
        assert_eq!(
            shown(&record),
            "one directive changed\n  - nginx.conf:2: listen 80;\n  + nginx.conf:2: listen 81;"
        );
        let many: String = (0..12).map(|n| format!("allow 10.0.0.{n};\n")).collect();
        write(&format!("events {{}}\nhttp {{ server {{ listen 80; {many} }} }}\n"));
        let shown = shown(&record);
        assert!(
            shown.starts_with("12 directives added, 0 removed\n  + nginx.conf:2: allow 10.0.0.0;"),
            "{shown}"
        );
        assert!(shown.ends_with("\n  + and 2 more"), "{shown}");
        drop(kept);
    }
}
