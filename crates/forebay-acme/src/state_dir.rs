//! Files of an issuer: account, keys, certificates, and a lock that processes and nodes share. Everything blocks.

use crate::settings::Order;
use crate::{accounts, certificate};
use forebay_sys::files;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use zeroize::Zeroizing;

/// Extension of the file with the result of a test.
const RESULT: &str = "tested";
/// Most certificates of a directory that are looked at for those of other orders.
const MAX_ORDERS: usize = 1000;
/// Largest file that is read, bytes.
const MAX_FILE: u64 = 1 << 20;

/// Directory of an issuer.
#[derive(Clone, Debug)]
pub(crate) struct StateDir(PathBuf);

/// Lock that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Locked(#[allow(dead_code, reason = "held, not read")] File);

/// Certificate chain with its key, in PEM.
pub(crate) struct Files {
    pub(crate) chain: Vec<u8>,
    pub(crate) key: Zeroizing<Vec<u8>>,
    /// Time of the last change of the chain's file.
    pub(crate) changed: SystemTime,
}

impl StateDir {
    pub(crate) fn new(path: &Path) -> StateDir {
        StateDir(path.to_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes the directory if there is none.
    ///
    /// # Errors
    /// Errors of mkdir(2), with the path.
    pub(crate) fn create(&self) -> Result<(), String> {
        files::create_directories(&self.0, files::PRIVATE_DIRECTORY)
            .map_err(|e| failed("mkdir()", &self.0, &e))
    }

    /// Reads a file. Returns `None` if there is none.
    ///
    /// # Errors
    /// Errors of open(2) and read(2), with the path.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
        let path = self.path(name);
        let file = match files::open_regular(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("open()", &path, &e)),
        };
        let mut bytes = Zeroizing::new(Vec::new());
        files::read_whole(&file, MAX_FILE, &mut bytes).map_err(|e| failed("read()", &path, &e))?;
        Ok(Some(bytes))
    }

    /// Writes a file that only the server's user may read. It has its name only once it is complete and on the disk.
    ///
    /// # Errors
    /// Errors of open(2), write(2), fsync(2) and rename(2), with the path.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.path(name);
        let new = self.path(&format!("{name}.new"));
        let wrote = replace(&new, &path, bytes);
        wrote.map_err(|e| {
            let _ = std::fs::remove_file(&new);
            failed("write()", &path, &e)
        })
    }

    /// Reads the certificate and key of an order. Returns `None` if there are none.
    ///
    /// # Errors
    /// As [`StateDir::read`].
    pub(crate) fn certificate(&self, order: &str) -> Result<Option<Files>, String> {
        let Some(changed) = self.changed(order) else { return Ok(None) };
        let (chain, key) = (self.read(&format!("{order}.crt"))?, self.read(&format!("{order}.key"))?);
        let (Some(chain), Some(key)) = (chain, key) else { return Ok(None) };
        Ok(Some(Files { chain: chain.to_vec(), key, changed }))
    }

    /// Returns the names of the orders that have certificates here, at most [`MAX_ORDERS`].
    pub(crate) fn orders(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        names.filter_map(|n| n.strip_suffix(".crt").map(str::to_owned)).take(MAX_ORDERS).collect()
    }

    /// Returns the time at which the certificate of an order last changed.
    pub(crate) fn changed(&self, order: &str) -> Option<SystemTime> {
        std::fs::metadata(self.path(&format!("{order}.crt"))).and_then(|m| m.modified()).ok()
    }

    /// Writes the certificate and key of an order.
    ///
    /// # Errors
    /// As [`StateDir::write`].
    pub(crate) fn write_certificate(&self, order: &str, chain: &[u8], key: &[u8]) -> Result<(), String> {
        // A reader between the two finds a pair that does not fit and reads again later.
        self.write(&format!("{order}.key"), key)?;
        self.write(&format!("{order}.crt"), chain)
    }

    /// Takes the lock of the directory. Returns `None` if another process has it.
    ///
    /// # Errors
    /// If the file of the lock cannot be made.
    pub(crate) fn lock(&self) -> Result<Option<Locked>, String> {
        let path = self.path("lock");
        let file = files::append(&path, files::PRIVATE).map_err(|e| failed("open()", &path, &e))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Locked(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(failed("flock()", &path, &e.into())),
        }
    }

    /// Removes a mark of an order. Returns `true` if there was one.
    pub(crate) fn take_mark(&self, order: &str, mark: Mark) -> bool {
        std::fs::remove_file(self.path(&mark.file(order))).is_ok()
    }

    /// Writes the result of a test of an order.
    ///
    /// # Errors
    /// As [`StateDir::write`].
    pub(crate) fn write_result(&self, order: &str, text: &str) -> Result<(), String> {
        self.write(&format!("{order}.{RESULT}"), text.as_bytes())
    }
}

/// File that asks the server for something at the next reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A renewal.
    Renew,
    /// A test, whose result [`take_result`] returns.
    Test,
}

impl Mark {
    fn file(self, order: &str) -> String {
        let extension = match self {
            Mark::Renew => "renew",
            Mark::Test => "test",
        };
        format!("{order}.{extension}")
    }

    /// Makes the file for the order with these files in a directory.
    ///
    /// # Errors
    /// Errors of open(2).
    pub fn set(self, directory: &Path, order: &str) -> io::Result<()> {
        files::write(&directory.join(self.file(order)), b"", files::PRIVATE)
    }
}

/// Removes the result of a test and returns its JSON text, if there is one.
pub fn take_result(directory: &Path, order: &str) -> Option<String> {
    let state = StateDir::new(directory);
    let name = format!("{order}.{RESULT}");
    let bytes = state.read(&name).ok().flatten()?;
    let _ = std::fs::remove_file(state.path(&name));
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Certificate of an order on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The issuer keeps certificates in memory only.
    Nowhere,
    /// There is none in this directory.
    Missing(PathBuf),
    /// It cannot be read, or is not one for the order, for this reason.
    Unusable(String),
    /// It expires at this time, seconds since 1970, and is in this file.
    Until(i64, PathBuf),
}

/// Looks for the certificate of an order.
pub fn stored(order: &Order) -> Stored {
    let Some(path) = &order.issuer.state_path else { return Stored::Nowhere };
    let state = StateDir::new(path);
    let file = accounts::file_of(&state, order);
    let read = state.certificate(&file).and_then(|files| match files {
        None => Ok(Stored::Missing(path.clone())),
        Some(files) => {
            let (_, leaf) = certificate::checked(&order.identifiers, &files.chain, &files.key)?;
            Ok(Stored::Until(leaf.until, state.path(&format!("{file}.crt"))))
        }
    });
    read.unwrap_or_else(Stored::Unusable)
}

fn replace(new: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Left by a process that ended in between.
    let _ = std::fs::remove_file(new);
    let mut file = files::create_new(new, files::PRIVATE)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(new, path)?;
    // Makes the new name durable.
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn failed(call: &str, path: &Path, e: &io::Error) -> String {
    format!("{call} \"{}\" failed ({})", path.display(), forebay_sys::errno::errno(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_private_and_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(&dir.path().join("state"));
        state.create().expect("made");
        assert_eq!(state.read("account.key").map(|f| f.is_none()), Ok(true));
        std::fs::write(state.path("account.key.new"), "left over").expect("written");
        state.write("account.key", b"one").expect("written");
        state.write("account.key", b"two").expect("written");
        let read = state.read("account.key").expect("readable").expect("there");
        assert_eq!(read.as_slice(), b"two");
        let mode = |p: PathBuf| std::fs::metadata(p).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(state.path("account.key")), mode(state.0.clone())), (0o600, 0o700));
        assert!(!state.path("account.key.new").exists());
    }

    #[test]
    fn a_lock_has_one_holder() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(dir.path());
        let held = state.lock().expect("a file");
        assert!(held.is_some());
        assert!(state.lock().expect("a file").is_none());
        drop(held);
        assert!(state.lock().expect("a file").is_some());
    }

    #[test]
    fn a_mark_counts_once() {
        let dir = tempfile::tempdir().expect("a directory");
        Mark::Renew.set(dir.path(), "a").expect("written");
        let state = StateDir::new(dir.path());
        assert!(!state.take_mark("a", Mark::Test));
        assert!(state.take_mark("a", Mark::Renew));
        assert!(!state.take_mark("a", Mark::Renew));
    }

    #[test]
    fn a_result_is_read_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(dir.path());
        assert_eq!(take_result(dir.path(), "a"), None);
        state.write_result("a", "{}").expect("written");
        assert_eq!(take_result(dir.path(), "a").as_deref(), Some("{}"));
        assert_eq!(take_result(dir.path(), "a"), None);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("file"), "").expect("written");
        let state = StateDir::new(&dir.path().join("file"));
        let text = state.write("a", b"x").expect_err("no directory");
        assert!(text.starts_with("write() \"") && text.contains("Not a directory"), "{text}");
    }
}
