//! Files that do not exist, on file systems in memory. Such file systems remember no names without files, so a lookup that must not wait
//! (openat2(2), RESOLVE_CACHED) cannot decide, although nothing there ever waits for a disk. Hot path.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time for which the devices of such file systems are known.
const KNOWN: Duration = Duration::from_secs(10);

/// Number of directories of a path that are tried, the last ones first.
const DEPTH: usize = 8;

/// Number of a device: major, minor.
type Device = (u32, u32);

#[derive(Debug, Default)]
struct Devices {
    in_memory: Vec<Device>,
    read: Option<Instant>,
}

thread_local! {
    static DEVICES: RefCell<Devices> = RefCell::default();
}

/// Returns `true` if there certainly is no file at an absolute path, and a file system in memory says so. Does not wait for a disk or a
/// network: it only looks at directories that are cached.
pub fn is_missing(path: &[u8], now: Instant) -> bool {
    let mut end = path.len();
    for _ in 0..DEPTH {
        let Some(slash) = path.get(..end).and_then(|p| p.iter().rposition(|b| *b == b'/')) else {
            return false;
        };
        let (dir, name) = (&path[..slash], &path[slash + 1..end]);
        end = slash;
        if name.is_empty() || dir.is_empty() {
            continue;
        }
        match open(dir) {
            Ok(dir) => {
                let look = || rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
                return is_in_memory(&dir, now) && look().err() == Some(Errno::NOENT);
            }
            // The directory itself may be missing, so the directory above it is tried.
            Err(Errno::AGAIN) => {}
            Err(_) => return false,
        }
    }
    false
}

fn open(dir: &[u8]) -> Result<OwnedFd, Errno> {
    // With PATH, the directory is only found and not opened, which needs no permission to read it.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, dir, flags, Mode::empty(), ResolveFlags::CACHED)
}

fn is_in_memory(dir: &OwnedFd, now: Instant) -> bool {
    // Without this flag, a network file system would ask its server.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(found) = rustix::fs::statx(dir, c"", flags, StatxFlags::empty()) else { return false };
    DEVICES.with_borrow_mut(|devices| {
        if devices.read.is_none_or(|read| now.saturating_duration_since(read) > KNOWN) {
            let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
            *devices = Devices { in_memory: in_memory(&mounts), read: Some(now) };
        }
        devices.in_memory.contains(&(found.stx_dev_major, found.stx_dev_minor))
    })
}

/// Returns the devices of file systems in memory: of lines such as `36 35 0:32 / /dev/shm rw,nosuid shared:9 - tmpfs tmpfs rw`
/// (proc_pid_mountinfo(5)).
fn in_memory(mounts: &[u8]) -> Vec<Device> {
    let device = |line: &[u8]| {
        let text = std::str::from_utf8(line).ok()?;
        let (mount, kind) = text.split_once(" - ")?;
        let is_one = matches!(kind.split(' ').next(), Some("tmpfs" | "ramfs"));
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        is_one.then_some((major.parse().ok()?, minor.parse().ok()?))
    };
    mounts.split(|b| *b == b'\n').filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_in_memory_are_found() {
        let mounts = b"36 35 0:32 / /dev/shm rw,nosuid shared:9 - tmpfs tmpfs rw\n\
            37 35 254:0 / / rw - ext4 /dev/vda rw\nx\n38 35 0:33 /a\\040b /r rw master:1 - ramfs none rw\n";
        assert_eq!(in_memory(mounts), [(0, 32), (0, 33)]);
    }

    #[test]
    fn missing_files_are_told_from_those_that_may_be_there() {
        let now = Instant::now();
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        std::fs::write(dir.path().join("file"), "x").expect("written");
        std::os::unix::fs::symlink("/proc/self/nowhere", dir.path().join("link")).expect("a link");
        let missing = |name: &str, at: &std::path::Path| {
            is_missing([at.as_os_str().as_encoded_bytes(), b"/", name.as_bytes()].concat().as_slice(), now)
        };
        for name in ["none", "none/index.php", "a/b/c/d", "none/", "/none"] {
            assert!(missing(name, dir.path()), "{name}");
        }
        // The target of a link may be anywhere, and what is below a file is no missing one.
        for name in ["file", "link", "link/below", "file/below", ""] {
            assert!(!missing(name, dir.path()), "{name}");
        }
        // Where it was built, there is a disk.
        let disk = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(!is_missing(b"relative", now) && !is_missing(b"/", now) && !is_missing(b"", now));
        if !in_memory(&std::fs::read("/proc/self/mountinfo").expect("mounts")).is_empty() {
            assert!(!missing("Cargo.toml", disk));
        }
    }
}
