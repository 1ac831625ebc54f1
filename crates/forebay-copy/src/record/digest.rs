//! Digests of files, which show which of them have changed.

use forebay_conf::files::Files;
use forebay_core::digest::sha256;
use forebay_sys::files;
use forebay_sys::printable::printable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most files that are told apart. Beyond them only the digest of all says that something has changed.
const MOST_FILES: usize = 1000;

/// Digest of several files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    all: String,
    /// Digests by path. Empty if there are too many files.
    files: BTreeMap<PathBuf, String>,
}

impl Digest {
    /// Returns the digest of a configuration with all that it includes.
    pub fn of(files: &Files) -> Digest {
        Digest::new(files.iter().map(|(_, path, bytes)| (path, bytes)))
    }

    /// Returns the digest of files with these contents.
    pub fn new<'a>(files: impl IntoIterator<Item = (&'a Path, &'a [u8])>) -> Digest {
        let files: BTreeMap<PathBuf, String> =
            files.into_iter().map(|(path, bytes)| (path.to_owned(), hex(&sha256(bytes)))).collect();
        let mut text = Vec::new();
        for (path, digest) in &files {
            text.extend_from_slice(path.as_os_str().as_encoded_bytes());
            text.push(0);
            text.extend_from_slice(digest.as_bytes());
        }
        let mut digest = Digest { all: hex(&sha256(&text)), files };
        if digest.files.len() > MOST_FILES {
            digest.forget_files();
        }
        digest
    }

    /// Returns the digest of files on the disk. One that cannot be read counts as gone.
    pub fn read<'a>(paths: impl Iterator<Item = &'a Path>) -> Digest {
        let read = |path: &'a Path| Some((path, files::read_file(path, files::MAX_WHOLE).ok()?));
        let read: Vec<(&Path, Vec<u8>)> = paths.filter_map(read).collect();
        Digest::new(read.iter().map(|(path, bytes)| (*path, bytes.as_slice())))
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    pub(super) fn forget_files(&mut self) {
        self.files.clear();
    }

    /// Says what differs in `now`; `None` if nothing does.
    pub fn change(&self, now: &Digest) -> Option<String> {
        if self.all == now.all {
            return None;
        }
        let differs = |a: &Digest, b: &Digest| {
            let path = a.files.iter().find(|(path, digest)| b.files.get(*path) != Some(*digest));
            path.map(|(path, _)| path.clone())
        };
        let shown = |path: PathBuf| printable(path.as_os_str().as_encoded_bytes());
        if self.files.is_empty() || now.files.is_empty() {
            return Some("a file has changed".to_owned());
        }
        let change = match (differs(self, now), differs(now, self)) {
            (Some(path), _) if !now.files.contains_key(&path) => format!("{} is gone", shown(path)),
            (Some(path), _) => format!("{} has changed", shown(path)),
            (None, Some(path)) => format!("{} is new", shown(path)),
            (None, None) => "a file has changed".to_owned(),
        };
        Some(change)
    }
}

/// Writes the first half of a SHA-256 hash, which is enough to tell files apart.
pub(super) fn hex(hash: &[u8; 32]) -> String {
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
