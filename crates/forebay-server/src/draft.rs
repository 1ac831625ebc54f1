//! Files that the server writes for others to read: entries of caches, stored responses, bodies of requests.
//!
//! A file is a [`Draft`] while its one owner writes it. [`Draft::finish`] moves it to its place and ends the writing: the result is a
//! [`Readable`], which has no way to write. So a file that anything else may see cannot be changed through the handle of the response
//! that made it.
//!
//! `Index::renew` (`cache/index.rs`) is the only writer to a published entry of a cache. It changes times in the part that has a
//! checksum.

use forebay_core::trace;
use forebay_sys::files;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// File that is being written. If it still has a name when it is dropped, the name is removed.
#[derive(Debug)]
pub struct Draft {
    file: Arc<File>,
    name: Option<PathBuf>,
}

/// Open file that is only read.
#[derive(Clone, Debug)]
pub struct Readable(Arc<File>);

impl Draft {
    /// Creates a file of mode 600 that did not exist. Does not make directories.
    ///
    /// # Errors
    /// Errors of open(2): `AlreadyExists` if something is there.
    pub fn create(name: &Path) -> io::Result<Draft> {
        // A request whose way is recorded leaves nothing on the disk.
        if trace::is_on() {
            return Draft::unplaced();
        }
        let file = Arc::new(files::create_new(name, files::PRIVATE)?);
        Ok(Draft { file, name: Some(name.to_owned()) })
    }

    /// Creates a file without a name, which never gets a place: where the way of a request is only recorded.
    #[cold]
    fn unplaced() -> io::Result<Draft> {
        let name = std::env::temp_dir().join(format!("forebay-{:016x}", forebay_sys::random::random_u64()));
        let file = Arc::new(files::create_new(&name, files::PRIVATE)?);
        let mut draft = Draft { file, name: Some(name) };
        draft.remove_name()?;
        Ok(draft)
    }

    /// Creates a file as [`Draft::create`] does, and makes missing directories above it with mode `directories`.
    ///
    /// # Errors
    /// Errors of open(2) and mkdir(2).
    pub fn create_below(name: &Path, directories: u32) -> io::Result<Draft> {
        // Only the first file of a directory finds it missing, so it is made after a failure instead of looked for each time.
        match (Draft::create(name), name.parent()) {
            (Err(e), Some(dir)) if e.kind() == io::ErrorKind::NotFound => {
                files::create_directories(dir, directories)?;
                Draft::create(name)
            }
            (made, _) => made,
        }
    }

    /// Returns the name of the file, if it has one.
    pub fn name(&self) -> Option<&Path> {
        self.name.as_deref()
    }

    /// Removes the name of the file, whose bytes stay readable.
    ///
    /// # Errors
    /// Errors of unlink(2). The file counts as nameless in any case.
    pub fn remove_name(&mut self) -> io::Result<()> {
        self.name.take().map_or(Ok(()), std::fs::remove_file)
    }

    /// Leaves the file with its name where it is when the draft is dropped.
    pub fn leave_name(&mut self) -> Option<PathBuf> {
        self.name.take()
    }

    /// Writes `bytes` at an offset. Blocks.
    ///
    /// # Errors
    /// Errors of pwrite(2). Some of the bytes may have been written.
    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Sets the mode, and the time of the last change if one is given.
    ///
    /// # Errors
    /// Errors of fchmod(2) and futimens(2).
    pub fn set(&mut self, mode: u32, modified: Option<SystemTime>) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))?;
        modified.map_or(Ok(()), |time| self.file.set_modified(time))
    }

    /// Returns a handle for reading what has been written so far.
    pub fn reader(&self) -> Readable {
        Readable(self.file.clone())
    }

    /// Ends writing: has `place` move the file from its name to its place. `place` gets an empty path for a file without a
    /// name. If it fails, the file is removed. Blocks.
    ///
    /// # Errors
    /// Errors of `place`.
    pub fn finish(mut self, place: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<Readable> {
        // The file has no name that could be moved, see `unplaced`.
        if trace::is_on() {
            return Ok(self.reader());
        }
        // If this fails, the drop of the draft removes the file.
        place(self.name().unwrap_or(Path::new("")))?;
        self.name = None;
        Ok(self.reader())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // The directory may be gone, and nothing depends on the file any more.
        let _ = self.remove_name();
    }
}

impl Readable {
    /// Reads `out.len()` bytes at an offset. Blocks.
    ///
    /// # Errors
    /// Errors of pread(2); `UnexpectedEof` if the file is shorter.
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    /// Reads at most `out.len()` bytes at an offset, and returns their number. Blocks.
    ///
    /// # Errors
    /// Errors of pread(2).
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(out, offset)
    }

    /// Reads bytes at an offset if the kernel has all of them in memory. Returns `false` if it would wait for the disk, or
    /// cannot read them.
    pub fn read_now(&self, out: &mut [u8], offset: u64) -> bool {
        let n = out.len();
        let mut bufs = [io::IoSliceMut::new(out)];
        // With this flag the kernel fails instead of waiting for the disk (preadv2(2)).
        let got = rustix::io::preadv2(&self.0, &mut bufs, offset, rustix::io::ReadWriteFlags::NOWAIT);
        got == Ok(n)
    }
}

impl From<OwnedFd> for Readable {
    fn from(fd: OwnedFd) -> Readable {
        Readable(Arc::new(fd.into()))
    }
}

impl AsFd for Readable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_without_an_end_leaves_no_file() {
        let dir = tempfile::tempdir().expect("directory");
        let name = dir.path().join("deep").join("file");
        let mut draft = Draft::create_below(&name, 0o700).expect("made");
        draft.write_at(b"abc", 2).expect("written");
        assert!(Draft::create(&name).is_err(), "the name is taken");
        drop(draft);
        assert!(!name.exists());
    }

    #[test]
    fn a_finished_file_stays_and_is_read() {
        let dir = tempfile::tempdir().expect("directory");
        let (name, place) = (dir.path().join("draft"), dir.path().join("place"));
        let mut draft = Draft::create(&name).expect("made");
        draft.write_at(b"abc", 0).expect("written");
        draft.set(0o640, Some(SystemTime::UNIX_EPOCH)).expect("set");
        let file = draft.finish(|from| std::fs::rename(from, &place)).expect("placed");
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, 1).expect("read");
        assert_eq!(&bytes, b"bc");
        assert!(file.read_exact_at(&mut bytes, 2).is_err(), "shorter");
        let made = std::fs::metadata(&place).expect("there");
        assert_eq!(made.permissions().mode() & 0o777, 0o640);
        assert_eq!(made.modified().expect("a time"), SystemTime::UNIX_EPOCH);
    }

    #[test]
    fn a_file_that_finds_no_place_is_removed() {
        let dir = tempfile::tempdir().expect("directory");
        let name = dir.path().join("draft");
        let draft = Draft::create(&name).expect("made");
        assert!(draft.finish(|_| Err(io::Error::other("full"))).is_err());
        assert!(!name.exists());
    }

    #[test]
    fn bytes_stay_readable_without_a_name() {
        let dir = tempfile::tempdir().expect("directory");
        let name = dir.path().join("draft");
        let mut draft = Draft::create(&name).expect("made");
        draft.remove_name().expect("removed");
        draft.write_at(b"abc", 0).expect("written");
        let mut bytes = [0; 3];
        draft.reader().read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!((&bytes, name.exists(), draft.name()), (b"abc", false, None));
    }
}
