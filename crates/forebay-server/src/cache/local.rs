//! Cached responses of one thread: small ones with their bodies in memory, large ones with an open file. An entry is
//! valid as long as its node has the generation that it was read at. Hot path.

use super::Cache;
use super::entry::{FIXED, Meta};
use super::index::Node;
use crate::compress::forms::Forms;
use crate::file_cache::{self, Inspected, OpenFile, Opened};
use crate::response::Part;
use crate::response::sent::SentHeads;
use bytes::Bytes;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Memory for entries of one thread, bytes: one half each for `Local::newer` and `Local::older`.
const BUDGET: usize = 64 * 1024 * 1024;

/// Open files of large entries in each half.
const FILES: usize = 128;

/// Memory that an entry takes in addition to its content, bytes (an estimate).
const OVERHEAD: usize = 512;

/// The body of an entry.
#[derive(Debug)]
pub(crate) enum EntryContent {
    /// In memory.
    Memory(Bytes),
    /// In its file, from an offset on.
    File(Rc<OpenFile>, u64),
}

/// A cached response.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Metadata.
    pub meta: Meta,
    /// Node in the index.
    pub node: Arc<Node>,
    /// Body.
    pub content: EntryContent,
    /// Response heads as last sent, without `Date`, for reuse.
    pub heads: SentHeads,
    /// Compressed forms of the body.
    pub forms: Forms,
    generation: u64,
}

impl Entry {
    /// Returns `true` if the file has not changed since the entry was read.
    #[inline]
    pub(crate) fn current(&self) -> bool {
        self.generation == self.node.generation()
    }

    /// Returns the generation of the node at which the entry was read.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the length of the body in bytes.
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            EntryContent::Memory(b) => b.len() as u64,
            EntryContent::File(f, start) => f.size.saturating_sub(*start),
        }
    }

    /// Returns `true` if the body is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the body as a part of a response.
    pub(crate) fn part(&self) -> Part {
        match &self.content {
            EntryContent::Memory(b) => Part::Bytes(b.clone()),
            EntryContent::File(file, start) => {
                Part::File { file: file.clone(), start: *start, end: file.size }
            }
        }
    }

    fn cost(&self) -> usize {
        let body = if let EntryContent::Memory(b) = &self.content { b.len() } else { 0 };
        OVERHEAD + body + self.meta.head.len() + self.meta.key.len() + self.forms.len() as usize
    }

    fn is_file(&self) -> bool {
        matches!(self.content, EntryContent::File(..))
    }
}

type Half = HashMap<Box<[u8]>, Rc<Entry>, foldhash::fast::RandomState>;

/// Entries of one thread, in two halves. A used entry moves to the newer half. When that is full it becomes the older
/// half, whose remaining entries are dropped.
#[derive(Debug, Default)]
pub(crate) struct Local {
    newer: RefCell<Half>,
    older: RefCell<Half>,
    bytes: Cell<usize>,
    files: Cell<usize>,
}

impl Local {
    /// Returns an entry if it is still valid.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Rc<Entry>> {
        if let Some(e) = self.newer.borrow().get(key) {
            if e.current() {
                return Some(e.clone());
            }
        } else {
            let (key, e) = self.older.borrow_mut().remove_entry(key)?;
            if e.current() {
                self.put_boxed(key, e.clone());
                return Some(e);
            }
            return None;
        }
        self.newer.borrow_mut().remove(key);
        None
    }

    /// Adds an entry.
    pub(crate) fn put(&self, key: &[u8], e: &Rc<Entry>) {
        self.put_boxed(key.into(), e.clone());
    }

    /// Counts a compressed form of `n` bytes that was added to an entry.
    pub(crate) fn grew(&self, n: usize) {
        self.bytes.set(self.bytes.get() + n);
        if self.bytes.get() > BUDGET / 2 {
            *self.older.borrow_mut() = std::mem::take(&mut *self.newer.borrow_mut());
            self.bytes.set(0);
            self.files.set(0);
        }
    }

    fn put_boxed(&self, key: Box<[u8]>, e: Rc<Entry>) {
        self.bytes.set(self.bytes.get() + e.cost());
        self.files.set(self.files.get() + usize::from(e.is_file()));
        if self.bytes.get() > BUDGET / 2 || self.files.get() > FILES {
            *self.older.borrow_mut() = std::mem::take(&mut *self.newer.borrow_mut());
            self.bytes.set(e.cost());
            self.files.set(usize::from(e.is_file()));
        }
        self.newer.borrow_mut().insert(key, e);
    }

    /// Drops all entries with open files, because descriptors run short.
    pub(crate) fn shed(&self) {
        for half in [&self.newer, &self.older] {
            half.borrow_mut().retain(|_, e| !e.is_file());
        }
        self.files.set(0);
    }
}

/// Reason for which [`open`] gives no entry.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// The file does not exist.
    Missing,
    /// The file cannot be opened or read.
    Failed(Errno),
    /// The file is not a valid entry of the key.
    Broken(&'static str),
}

/// Opens the file of an entry. Uses the blocking pool if the kernel would have to wait for the disk.
///
/// # Errors
/// [`Unusable`].
pub(crate) async fn open(cache: &Cache, node: &Arc<Node>, key: &[u8]) -> Result<Entry, Unusable> {
    use std::os::unix::ffi::OsStrExt;
    let path = cache.file(&node.hash);
    // Load the generation before reading the file: if the file is replaced in between, the entry counts as outdated.
    let generation = node.generation();
    let inspected = match file_cache::open_cached(path.as_os_str().as_bytes()) {
        Opened::Found(i) => i,
        Opened::WouldBlock => {
            let path = path.clone();
            let open = move || file_cache::open(path.as_os_str().as_bytes());
            tokio::task::spawn_blocking(open).await.unwrap_or(Inspected::Error(Errno::IO))
        }
    };
    let file = match inspected {
        Inspected::File(f) => f.opened(),
        Inspected::Error(Errno::NOENT | Errno::NOTDIR) => return Err(Unusable::Missing),
        Inspected::Error(e) => return Err(Unusable::Failed(e)),
        Inspected::Dir | Inspected::Other => return Err(Unusable::Broken("is not a regular file")),
    };
    read(file, node, generation, key)
}

fn read(file: OpenFile, node: &Arc<Node>, generation: u64, key: &[u8]) -> Result<Entry, Unusable> {
    let (meta, body_start) = match &file.content {
        Some(c) => Meta::decode(c, file.size).map_err(Unusable::Broken)?.map_err(|_| TOO_SMALL)?,
        None => read_meta(&file)?,
    };
    if meta.key != key {
        return Err(Unusable::Broken("belongs to another key"));
    }
    let content = match &file.content {
        Some(c) => EntryContent::Memory(c.slice(body_start..)),
        None => EntryContent::File(Rc::new(file), body_start as u64),
    };
    Ok(Entry {
        meta,
        node: node.clone(),
        content,
        heads: SentHeads::default(),
        forms: Forms::default(),
        generation,
    })
}

const TOO_SMALL: Unusable = Unusable::Broken("is too small");

/// Reads the start of a file, and more of it as long as its fields need more.
fn read_meta(file: &OpenFile) -> Result<(Meta, usize), Unusable> {
    let mut need = 4096.max(FIXED);
    loop {
        let mut start = vec![0; need];
        read_at(file, &mut start).map_err(Unusable::Failed)?;
        match Meta::decode(&start, file.size).map_err(Unusable::Broken)? {
            Ok(decoded) => return Ok(decoded),
            Err(more) if more > start.len() => need = more,
            Err(_) => return Err(TOO_SMALL),
        }
    }
}

fn read_at(file: &OpenFile, out: &mut Vec<u8>) -> Result<(), Errno> {
    let n = rustix::io::pread(&file.fd, out.as_mut_slice(), 0)?;
    out.truncate(n);
    Ok(())
}

/// Returns a name for a temporary file next to the entry's file.
pub(crate) fn beside(path: &Path) -> std::path::PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!("{name}.{}.{:010}", std::process::id(), forebay_sys::serial::next()))
}
