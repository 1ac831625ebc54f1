//! `disable_symlinks`: opening a file while refusing symbolic links on the way.

use crate::file_cache::{self, Found, Inspected};
use crate::modules::core::SymlinkMode;
use crate::request::Request;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Flags for the last component.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);
/// Flags for the directories before it.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a path under the rules of the location. A link on the way gives `ENOTDIR`, one at the end `ELOOP`,
/// as in nginx.
pub async fn open(req: &mut Request, path: &[u8]) -> Found {
    let http = req.http();
    let rules = &http.location(req).settings.core.disable_symlinks;
    if path.contains(&0) {
        return Found::Error(Errno::NOENT);
    }
    let from = match &rules.from {
        None => Vec::new(),
        Some(t) => t.value(req).unwrap_or_default(),
    };
    let checked_from = exempt(path, &from);
    let (path, mode) = (path.to_vec(), rules.mode);
    // The walk takes several calls, each of which may wait for the disk.
    let opened = tokio::task::spawn_blocking(move || match open_checked(&path, checked_from, mode) {
        Ok(fd) => file_cache::inspect(fd),
        Err(e) => Inspected::Error(e),
    });
    opened.await.map_or(Found::Error(Errno::IO), Found::from)
}

/// Returns the number of bytes of the path that `from=` exempts, which must be whole components.
fn exempt(path: &[u8], from: &[u8]) -> usize {
    let end = from.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let from = from.get(..end).unwrap_or_default();
    match path.strip_prefix(from) {
        Some([b'/', ..] | []) => from.len(),
        _ => 0,
    }
}

fn open_checked(path: &[u8], exempt: usize, mode: SymlinkMode) -> Result<OwnedFd, Errno> {
    let (head, rest) = path.split_at_checked(exempt).unwrap_or((b"", path));
    // Links in the exempt part are followed, so it is opened as a whole.
    let base = match (head, rest.first()) {
        (b"", Some(b'/')) => rustix::fs::open("/", DIRECTORY, Mode::empty()),
        (b"", _) => rustix::fs::open(".", DIRECTORY, Mode::empty()),
        (head, _) => rustix::fs::openat(CWD, head, DIRECTORY, Mode::empty()),
    };
    let base = base?;
    let rest = rest.iter().position(|b| *b != b'/').and_then(|i| rest.get(i..)).unwrap_or(b".");
    if mode == SymlinkMode::On {
        // One call is enough where the kernel can do it (Linux 5.6). If it fails, the walk below finds out what was wrong.
        if let Ok(fd) = rustix::fs::openat2(&base, rest, FILE, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            return Ok(fd);
        }
    }
    walk(base, rest, mode)
}

fn walk(base: OwnedFd, path: &[u8], mode: SymlinkMode) -> Result<OwnedFd, Errno> {
    let mut at = base;
    let mut components = path.split(|b| *b == b'/').filter(|c| !c.is_empty()).peekable();
    // A path with a slash at its end names a directory, as for the kernel (path_resolution(7)).
    let must_be_dir = path.last() == Some(&b'/');
    while let Some(name) = components.next() {
        let flags = match components.peek() {
            Some(_) => DIRECTORY,
            None if must_be_dir => FILE.union(OFlags::DIRECTORY),
            None => FILE,
        };
        at = step(at.as_fd(), name, flags, mode)?;
    }
    Ok(at)
}

fn step(at: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: SymlinkMode) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
        // With NOFOLLOW, a link gives ELOOP as a file and ENOTDIR as a directory (open(2)).
        Err(Errno::LOOP | Errno::NOTDIR) if mode == SymlinkMode::IfNotOwner => {}
        other => return other,
    }
    // The name is a link, which may be followed if its owner also owns the target.
    let fd = rustix::fs::openat(at, name, flags, Mode::empty())?;
    let link = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = rustix::fs::fstat(&fd)?;
    if link.st_uid == target.st_uid { Ok(fd) } else { Err(Errno::LOOP) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_whole_components_are_exempt() {
        assert_eq!(exempt(b"/a/b/c", b"/a/b"), 4);
        assert_eq!(exempt(b"/a/b/c", b"/a/b/"), 4);
        assert_eq!(exempt(b"/a/bc", b"/a/b"), 0);
        assert_eq!(exempt(b"/a/b", b""), 0);
    }

    #[test]
    fn links_are_refused() {
        let dir = std::env::temp_dir().join(format!("forebay-symlinks-{}", std::process::id()));
        let dir = dir.canonicalize().unwrap_or(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("real")).unwrap();
        std::fs::write(dir.join("real/f"), "f").unwrap();
        symlink("real", dir.join("link")).unwrap();
        symlink("f", dir.join("real/l")).unwrap();
        let base = dir.as_os_str().as_encoded_bytes();
        let open = |name: &str, exempt: usize, mode| {
            let path = [base, b"/", name.as_bytes()].concat();
            open_checked(&path, exempt, mode).map(drop)
        };
        assert_eq!(open("real/f", 0, SymlinkMode::On), Ok(()));
        assert_eq!(open("real/l", 0, SymlinkMode::On), Err(Errno::LOOP));
        assert_eq!(open("link/f", 0, SymlinkMode::On), Err(Errno::NOTDIR));
        assert_eq!(open("link/f", base.len() + 5, SymlinkMode::On), Ok(()));
        assert_eq!(open("link/l", 0, SymlinkMode::IfNotOwner), Ok(()));
        assert_eq!(open("real/f/x", 0, SymlinkMode::IfNotOwner), Err(Errno::NOTDIR));
        assert_eq!(open("real/none", 0, SymlinkMode::IfNotOwner), Err(Errno::NOENT));
        assert_eq!(open("real/", 0, SymlinkMode::On), Ok(()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
