//! Files and directories that are made with a mode.
//!
//! A daemon has no umask (see [`crate::daemon::detach`]), so that what is made without a mode is open to everybody. All
//! that the server makes it makes here, or with another call that takes a mode; `clippy.toml` of the crates `forebay` and
//! `forebay-server` refuses those that take none.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Mode of files for the server alone: temporary files, caches.
pub const PRIVATE: u32 = 0o600;
/// Mode of directories for the server alone.
pub const PRIVATE_DIRECTORY: u32 = 0o700;
/// Mode of logs and pid files.
pub const READABLE: u32 = 0o644;

/// Returns the mode of directories whose files have `mode`: who may read may enter.
pub fn directory_mode(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

/// Makes a directory.
///
/// # Errors
/// Those of mkdir(2).
pub fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

/// Makes a directory and those above it that are missing, each with `mode`. One that is there is left as it is.
///
/// # Errors
/// Those of mkdir(2).
pub fn create_directories(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Makes a file that is not there, for reading and writing. Links are not followed.
///
/// # Errors
/// Those of open(2): `AlreadyExists` when something is there.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
}

/// Makes a file, or opens the one that is there, for reading and writing at its beginning.
///
/// # Errors
/// Those of open(2).
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(mode).open(path)
}

/// Makes a file, or empties the one that is there, and writes `bytes`.
///
/// # Errors
/// Those of open(2) and write(2).
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    io::Write::write_all(&mut file, bytes)
}

/// Makes a file, or opens the one that is there, for writing at its end.
///
/// # Errors
/// Those of open(2).
pub fn append(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(mode).open(path)
}

/// Opens a file that is there for writing.
///
/// # Errors
/// Those of open(2).
pub fn open_to_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn who_may_read_may_enter() {
        for (file, directory) in
            [(0o600, 0o700), (0o644, 0o755), (0o660, 0o770), (0o664, 0o775), (0o200, 0o200)]
        {
            assert_eq!(directory_mode(file), directory);
        }
    }
}
