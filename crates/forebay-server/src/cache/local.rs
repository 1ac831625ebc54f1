//! Cached responses as one thread serves them: small ones with their bodies in memory, large ones with an open
//! file. An entry is good as long as its node has the generation it was made from. Hot path.

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

/// Memory for entries of one thread, bytes; half of it holds what was used lately.
const BUDGET: usize = 64 * 1024 * 1024;

/// Open files of large entries in each half.
const FILES: usize = 128;

/// What an entry takes beside its bytes.
const OVERHEAD: usize = 512;

/// The body of an entry.
#[derive(Debug)]
pub enum Content {
    /// In memory.
    Memory(Bytes),
    /// In its file, from an offset on.
    File(Rc<OpenFile>, u64),
}

/// A cached response.
#[derive(Debug)]
pub struct Entry {
    /// What is known about it.
    pub meta: Meta,
    /// Its place in the index.
    pub node: Arc<Node>,
    /// Body.
    pub content: Content,
    /// Heads of plain answers as they were sent last, without their date.
    pub heads: SentHeads,
    /// Its compressed forms.
    pub forms: Forms,
    generation: u64,
}

impl Entry {
    /// Whether it is still what the index has.
    #[inline]
    pub fn current(&self) -> bool {
        self.generation == self.node.generation()
    }

    /// The generation of its node that it was made from.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Length of the body in bytes.
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Memory(b) => b.len() as u64,
            Content::File(f, start) => f.size.saturating_sub(*start),
        }
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The body as a part of a response.
    pub fn part(&self) -> Part {
        match &self.content {
            Content::Memory(b) => Part::Bytes(b.clone()),
            Content::File(file, start) => Part::File { file: file.clone(), start: *start, end: file.size },
        }
    }

    fn cost(&self) -> usize {
        let body = if let Content::Memory(b) = &self.content { b.len() } else { 0 };
        OVERHEAD + body + self.meta.head.len() + self.meta.key.len() + self.forms.len() as usize
    }

    fn is_file(&self) -> bool {
        matches!(self.content, Content::File(..))
    }
}

type Half = HashMap<Box<[u8]>, Rc<Entry>, foldhash::fast::RandomState>;

/// The entries of one thread: what has not been used since the newer half was begun is given up when it is full.
#[derive(Debug, Default)]
pub struct Local {
    newer: RefCell<Half>,
    older: RefCell<Half>,
    bytes: Cell<usize>,
    files: Cell<usize>,
}

impl Local {
    /// An entry that is current.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<Rc<Entry>> {
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

    /// Keeps an entry.
    pub fn put(&self, key: &[u8], e: &Rc<Entry>) {
        self.put_boxed(key.into(), e.clone());
    }

    /// An entry has got a compressed form of `n` bytes.
    pub fn grew(&self, n: usize) {
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

    /// Lets go of all open files: descriptors are short.
    pub fn shed(&self) {
        for half in [&self.newer, &self.older] {
            half.borrow_mut().retain(|_, e| !e.is_file());
        }
        self.files.set(0);
    }
}

/// Why there is no entry.
#[derive(Debug)]
pub enum Unusable {
    /// There is no file.
    Missing,
    /// It cannot be opened.
    Failed(Errno),
    /// It is not what it should be.
    Broken(&'static str),
}

/// Opens the file of an entry, through the pool of blocking threads where the kernel would have to wait.
///
/// # Errors
/// [`Unusable`].
pub async fn open(cache: &Cache, node: &Arc<Node>, key: &[u8]) -> Result<Entry, Unusable> {
    use std::os::unix::ffi::OsStrExt;
    let path = cache.file(&node.hash);
    // Read before the file is: should it be replaced meanwhile, the entry is found outdated.
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
    let mut start: Vec<u8>;
    let mut have: &[u8] = match &file.content {
        Some(c) => c,
        None => {
            start = vec![0; 4096.max(FIXED)];
            read_at(&file, &mut start).map_err(Unusable::Failed)?;
            &start
        }
    };
    let (meta, body_start) = loop {
        match Meta::decode(have, file.size).map_err(Unusable::Broken)? {
            Ok(decoded) => break decoded,
            Err(need) if need > have.len() && file.content.is_none() => {
                start = vec![0; need];
                read_at(&file, &mut start).map_err(Unusable::Failed)?;
                have = &start;
            }
            Err(_) => return Err(Unusable::Broken("is too small")),
        }
    };
    if meta.key != key {
        return Err(Unusable::Broken("belongs to another key"));
    }
    let content = match &file.content {
        Some(c) => Content::Memory(c.slice(body_start..)),
        None => Content::File(Rc::new(file), body_start as u64),
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

fn read_at(file: &OpenFile, out: &mut Vec<u8>) -> Result<(), Errno> {
    let n = rustix::io::pread(&file.fd, out.as_mut_slice(), 0)?;
    out.truncate(n);
    Ok(())
}

/// Name of a temporary file of an entry, beside it.
pub fn beside(path: &Path) -> std::path::PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!("{name}.{}.{:010}", std::process::id(), forebay_sys::serial::next()))
}
