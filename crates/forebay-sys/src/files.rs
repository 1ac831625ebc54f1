//! Files and directories that are made with a mode.
//!
//! A daemon has no umask (see [`crate::daemon::detach`]), so that a file made without a mode is open to all users. The
//! server makes its files here, or with another call that takes a mode; `clippy.toml` of the crates `forebay` and
//! `forebay-server` refuses calls without one.
//!
//! Files of others are read here alone: regular files, up to a length, without waiting. [`read_input`] also
//! takes a named pipe, for which it waits up to two seconds.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Uid;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path};
use std::time::{Duration, Instant};

/// Mode of files for the server alone: temporary files, caches.
pub const PRIVATE: u32 = 0o600;
/// Mode of directories for the server alone.
pub const PRIVATE_DIRECTORY: u32 = 0o700;
/// Mode of logs and pid files.
pub const READABLE: u32 = 0o644;

/// Returns the mode of directories whose files have `mode`: users that may read may enter.
pub fn directory_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// Makes a directory.
///
/// # Errors
/// Errors of mkdir(2).
pub fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

/// Makes a directory and the missing directories above it, each with `mode`. Leaves existing ones as they are.
///
/// # Errors
/// Errors of mkdir(2).
pub fn create_directories(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Makes a new file, for reading and writing. Does not follow links.
///
/// # Errors
/// Errors of open(2): `AlreadyExists` when something is there.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
}

/// Makes or opens a file for reading and writing at its beginning: see `open_trusted`.
///
/// # Errors
/// Errors of `open_trusted`.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    open_trusted(path, OFlags::RDWR | OFlags::CREATE, mode)
}

/// Makes or empties a file and writes `bytes`: see `open_trusted`.
///
/// # Errors
/// Errors of `open_trusted` and write(2).
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = open_trusted(path, OFlags::WRONLY | OFlags::TRUNC | OFlags::CREATE, mode)?;
    io::Write::write_all(&mut file, bytes)
}

/// Makes or opens a file for writing at its end: see `open_trusted`.
///
/// # Errors
/// Errors of `open_trusted`.
pub fn append(path: &Path, mode: u32) -> io::Result<File> {
    open_trusted(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, mode)
}

/// Opens a file as a process with privileges may: links of other users than root are not followed, wherever in the path
/// they are, so that the owner of a directory in it cannot choose another file. Without privileges, and for links of root
/// (`access.log` to `/dev/stdout`), it is open(2). `flags` as there; a file that is made gets `mode`.
///
/// # Errors
/// Errors of open(2); `ELOOP` for a link of another user.
pub(crate) fn open_trusted(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    if !rustix::process::geteuid().is_root() {
        return Ok(rustix::fs::open(path, flags, mode)?.into());
    }
    Ok(match walk(path)? {
        // The kernel opens the file of the descriptor, whatever file has the name by now.
        Walked::There(fd) => {
            let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::open(name, flags.difference(OFlags::CREATE | OFlags::NOFOLLOW), mode)?
        }
        // Another process may have put a link there since: it is not followed.
        Walked::Missing(parent, name) => rustix::fs::openat(parent, name, flags | OFlags::NOFOLLOW, mode)?,
    }
    .into())
}

/// Gives a directory to a user, as far as links of other users than root do not lead to it. One that is the user's is left
/// alone.
///
/// # Errors
/// Errors of open(2) and chown(2); `ELOOP` for a link of another user.
pub fn give_directory(path: &Path, uid: u32) -> io::Result<()> {
    let Walked::There(fd) = walk(path)? else { return Err(Errno::NOENT.into()) };
    let found = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    if found.st_uid != uid {
        rustix::fs::chownat(&fd, "", Some(Uid::from_raw(uid)), None, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// File at the end of a path.
enum Walked {
    /// Something, as an `O_PATH` descriptor.
    There(OwnedFd),
    /// Nothing yet: the directory that it would be in, and its name.
    Missing(OwnedFd, OsString),
}

/// Most links on the way, as in Linux.
const MAX_LINKS: usize = 40;

/// Goes along a path, a name at a time.
fn walk(path: &Path) -> io::Result<Walked> {
    const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
    let start = |path: &Path| {
        let from = if path.is_absolute() { "/" } else { "." };
        rustix::fs::open(from, HANDLE | OFlags::DIRECTORY, Mode::empty())
    };
    let names = |path: &Path| -> Vec<OsString> {
        let part = |part: Component<'_>| match part {
            Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
            _ => None,
        };
        path.components().rev().filter_map(part).collect()
    };
    let mut at = start(path)?;
    // The next name is the last one.
    let mut rest = names(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let next = match rustix::fs::openat(&at, &name, HANDLE | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::NOENT) if rest.is_empty() => return Ok(Walked::Missing(at, name)),
            next => next?,
        };
        let found = rustix::fs::fstat(&next)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            at = next;
            continue;
        }
        links += 1;
        if rustix::fs::fstatfs(&next)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
            // `/proc/self/fd/1` has no text that could be followed, and no other user made it.
            at = rustix::fs::openat(&at, &name, HANDLE, Mode::empty())?;
            continue;
        }
        if links > MAX_LINKS || found.st_uid != 0 {
            return Err(Errno::LOOP.into());
        }
        let text = rustix::fs::readlinkat(&next, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(text.as_bytes()));
        if target.is_absolute() {
            // A relative target goes on from the directory of the link, where `at` still is.
            at = start(target)?;
        }
        // The names of the target come next, before those that followed the link.
        rest.extend(names(target));
    }
    Ok(Walked::There(at))
}

/// Most bytes of a file that is read as a whole: configurations, certificates, lists of users or addresses.
pub const MAX_WHOLE: u64 = 64 << 20;

/// Error for something that is no file with an end: a device, a named pipe, a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a regular file")]
pub struct NotRegular;

impl From<NotRegular> for io::Error {
    fn from(error: NotRegular) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// Returns `true` for the error of [`open_regular`] for something that is no file.
pub fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|e| e.is::<NotRegular>())
}

/// Opens a file that a configuration or a user names for reading. Does not wait for a named pipe's writer. `/dev/null` counts as an
/// empty file.
///
/// # Errors
/// Errors of open(2); `EISDIR` for a directory, and [`NotRegular`].
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = match file {
        // A socket, or a device without a driver.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NXIO) => return Err(NotRegular.into()),
        file => file?,
    };
    let found = rustix::fs::fstat(&file)?;
    let null = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev)) == (1, 3);
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::CharacterDevice if null => Ok(file),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(NotRegular.into()),
    }
}

/// Time that the writer of a named pipe has.
const PIPE_WAIT: Duration = Duration::from_secs(2);

/// Reads a file of the configuration, which may be a named pipe whose writer is there (nginx: ssl_password_file). Appends its bytes.
/// Takes up to two seconds for a pipe, so it is not for the event loop.
///
/// # Errors
/// Errors of [`open_regular`] and [`read_whole`]; [`NotRegular`] for a pipe that is not written to its end in that time.
pub fn read_input(path: &Path, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    match open_regular(path) {
        Err(e) if is_not_regular(&e) => {}
        file => return read_whole(&file?, most, bytes),
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let pipe = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| NotRegular)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&pipe)?.st_mode) != FileType::Fifo {
        return Err(NotRegular.into());
    }
    let (end, before) = (Instant::now() + PIPE_WAIT, bytes.len());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| NotRegular)?;
        // A pipe that no writer has opened yet is silent, although a read would find its end.
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(NotRegular.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        bytes.reserve(4096);
        match rustix::io::read(&pipe, rustix::buffer::spare_capacity(bytes)) {
            Ok(0) => return Ok(()),
            Ok(_) if (bytes.len() - before) as u64 > most => return Err(Errno::FBIG.into()),
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Reads a file of [`open_regular`] to its end, and appends its bytes.
///
/// # Errors
/// Errors of read(2); `EFBIG` if it has more than `most` bytes.
pub fn read_whole(file: &File, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let read = io::Read::read_to_end(&mut io::Read::take(file, most.saturating_add(1)), bytes)?;
    if read as u64 > most { Err(Errno::FBIG.into()) } else { Ok(()) }
}

/// Reads a file that a configuration or a user names: the one way to the bytes of others' files.
///
/// # Errors
/// Errors of [`open_regular`] and [`read_whole`].
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_whole(&open_regular(path)?, most, &mut bytes)?;
    Ok(bytes)
}

/// Reads a file as [`read_file`] does, as text. Replaces bytes that are not UTF-8.
///
/// # Errors
/// Errors of [`read_file`].
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read_file(path, most)?).into_owned())
}

/// Opens a file that is there for writing.
///
/// # Errors
/// Errors of open(2).
pub fn open_to_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_regular_files_up_to_a_length_are_read() {
        let dir = tempfile::tempdir().expect("directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), b"12345").expect("written");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("a link");
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).expect("a socket");
        let sparse = File::create(path("sparse")).expect("made");
        sparse.set_len(1 << 40).expect("length");
        assert_eq!(read_file(&path("file"), 5).expect("read"), b"12345");
        assert_eq!(read_file(&path("link"), 5).expect("read"), b"12345");
        assert_eq!(read_file(Path::new("/dev/null"), 5).expect("read"), b"");
        assert!(!read_file(Path::new("/proc/self/status"), MAX_WHOLE).expect("read").is_empty());
        let errno = |path: &Path, most| Errno::from_io_error(&read_file(path, most).expect_err("refused"));
        assert_eq!(errno(&path("file"), 4), Some(Errno::FBIG));
        assert_eq!(errno(&path("sparse"), 4096), Some(Errno::FBIG));
        assert_eq!(errno(&path("none"), 4), Some(Errno::NOENT));
        assert_eq!(errno(dir.path(), 4), Some(Errno::ISDIR));
        for other in [path("pipe"), path("socket"), "/dev/zero".into(), "/dev/random".into()] {
            let error = read_file(&other, 5).expect_err("refused");
            assert!(is_not_regular(&error), "{}: {error}", other.display());
            assert_eq!(crate::errno::errno(&error), "not a regular file");
        }
        let input = |path: &Path, most| {
            let mut bytes = Vec::new();
            read_input(path, most, &mut bytes).map(|()| bytes)
        };
        assert_eq!(input(&path("file"), 5).expect("read"), b"12345");
        for other in [path("pipe"), path("socket"), "/dev/zero".into()] {
            assert!(is_not_regular(&input(&other, 5).expect_err("refused")), "{}", other.display());
        }
        for (most, read) in [(100_000, true), (99_999, false)] {
            let pipe = path("pipe");
            let writer = std::thread::spawn(move || {
                // The reader may leave before the end.
                let mut pipe = OpenOptions::new().write(true).open(pipe).expect("opened");
                let _ = io::Write::write_all(&mut pipe, &[b'x'; 100_000]);
            });
            let got = input(&path("pipe"), most);
            assert_eq!(got.is_ok_and(|bytes| bytes.len() == 100_000), read);
            writer.join().expect("written");
        }
    }

    #[test]
    fn modes_are_those_that_are_asked_for() {
        let dir = tempfile::tempdir().expect("directory");
        let path = |name: &str| dir.path().join(name);
        let mode = |name: &str| path(name).metadata().expect("there").permissions().mode() & 0o7777;
        create_new(&path("a"), PRIVATE).expect("made");
        assert!(create_new(&path("a"), PRIVATE).is_err());
        append(&path("b"), PRIVATE).expect("made");
        create(&path("c"), PRIVATE).expect("made");
        write(&path("d"), b"text", PRIVATE).expect("made");
        create_directories(&path("e/f/g"), PRIVATE_DIRECTORY).expect("made");
        create_directories(&path("e/f/g"), 0o777).expect("left alone");
        create_directory(&path("h"), PRIVATE_DIRECTORY).expect("made");
        for file in ["a", "b", "c", "d"] {
            assert_eq!(mode(file), 0o600, "{file}");
        }
        for directory in ["e", "e/f", "e/f/g", "h"] {
            assert_eq!(mode(directory), 0o700, "{directory}");
        }
        std::os::unix::fs::symlink("nowhere", path("link")).expect("link");
        assert!(create_new(&path("link"), PRIVATE).is_err());
    }

    /// Links of root are followed, those of others are not. Only root can test this.
    #[test]
    fn links_of_other_users_are_not_followed() {
        let dir = tempfile::tempdir().expect("directory");
        let path = |name: &str| dir.path().join(name);
        let open = |name: &str| {
            let opened = open_trusted(&path(name), OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, PRIVATE);
            opened.and_then(|mut file| io::Write::write_all(&mut file, b"x")).map_err(|e| e.raw_os_error())
        };
        let link = |to: &str, name: &str, owner: Option<u32>| {
            std::os::unix::fs::symlink(to, path(name)).expect("link");
            std::os::unix::fs::lchown(path(name), owner, None).is_ok()
        };
        create_directory(&path("d"), PRIVATE_DIRECTORY).expect("made");
        assert_eq!(open("d/new"), Ok(()));
        assert_eq!(open("d/new"), Ok(()));
        assert_eq!(std::fs::read(path("d/new")).expect("there"), b"xx");
        let own = link("d", "own", None)
            && link("d/../d/new", "own-file", None)
            && link("/dev/stderr", "out", None);
        assert!(own);
        assert_eq!((open("own/new"), open("own-file")), (Ok(()), Ok(())));
        // A pipe or whatever it is has no name.
        open_trusted(&path("out"), OFlags::WRONLY, PRIVATE).expect("standard error");
        assert_eq!(open("d/none/new"), Err(Some(Errno::NOENT.raw_os_error())));
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: other users' links need root");
        }
        assert!(link("d", "other", Some(7)) && link("d/target", "other-file", Some(7)));
        let refused = Err(Some(Errno::LOOP.raw_os_error()));
        assert_eq!((open("other/new"), open("other-file")), (refused, refused));
        assert!(!path("d/target").exists());
        assert!(give_directory(&path("other"), 7).is_err());
        give_directory(&path("own"), 7).expect("given");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&path("d").metadata().expect("there")), 7);
        assert!(give_directory(&path("d/new"), 7).is_err(), "no directory");
        // A circle ends.
        assert!(link("b", "a", None) && link("a", "b", None));
        assert_eq!(open("a"), refused);
    }

    #[test]
    fn readers_of_a_folder_may_enter_it() {
        for (file, directory) in
            [(0o600, 0o700), (0o644, 0o755), (0o660, 0o770), (0o664, 0o775), (0o200, 0o200)]
        {
            assert_eq!(directory_mode(file), directory);
        }
    }
}
