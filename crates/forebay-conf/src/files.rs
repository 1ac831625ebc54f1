//! Every file the configuration is made of, read once and recorded.
//!
//! The master reads from disk with its privilege; the record goes to the worker, which builds the same
//! configuration from it without touching the disk.

use crate::tree::FileId;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Reads and remembers files and glob results.
#[derive(Debug, Default)]
pub struct Files {
    recorded_only: bool,
    order: Vec<PathBuf>,
    contents: BTreeMap<PathBuf, Result<Vec<u8>, i32>>,
    globs: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl Files {
    /// Reads from the disk, each file once.
    pub fn disk() -> Files {
        Files::default()
    }

    /// The file's bytes. Errors are remembered too, with their errno.
    pub fn read(&mut self, path: &Path) -> io::Result<(FileId, &[u8])> {
        if !self.contents.contains_key(path) {
            let got = if self.recorded_only { Err(io::Error::from_raw_os_error(2)) } else { std::fs::read(path) };
            self.order.push(path.to_owned());
            self.contents.insert(path.to_owned(), got.map_err(|e| e.raw_os_error().unwrap_or(5)));
        }
        let id = FileId(self.order.iter().position(|p| p == path).expect("inserted above") as u32);
        match &self.contents[path] {
            Ok(b) => Ok((id, b)),
            Err(e) => Err(io::Error::from_raw_os_error(*e)),
        }
    }

    /// Path of a file.
    pub fn path(&self, id: FileId) -> &Path {
        self.order.get(id.0 as usize).map_or(Path::new("(unknown)"), |p| p)
    }
}
