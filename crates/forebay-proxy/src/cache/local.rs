//! Cached responses of one thread: small ones with their bodies in memory, large ones with an open file. An entry is
//! valid as long as its node has the generation that it was read at. Hot path.

use super::Cache;
use super::bells::Bell;
use super::entry::{FIXED, Meta};
use super::index::{Node, Renewal};
use forebay_core::idle_memory::Ended;
use forebay_core::thread::Thread as WorkerThread;
use forebay_net::reactor::NOTICE_CACHES;
use forebay_server::file_cache::{self, Identity, Inspected, OpenFile, Opened};
use forebay_server::module::thread::{ThreadSlot, ThreadState};
use forebay_server::response::Part;
use forebay_server::response::made::Made;
use forebay_server::response::stored::{Content, Stored};
use forebay_server::thread::Thread;
use rustix::io::Errno;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory for entries of one thread, bytes: one half each for [`Halves::newer`] and [`Halves::older`].
const BUDGET: usize = 64 * 1024 * 1024;

/// Largest number of open files of large entries in each half.
const FILES: usize = 128;

/// Time after which an entry that is not used is dropped. The next request for it reads its file.
const UNUSED: Duration = Duration::from_secs(60);

/// Memory that an entry takes in addition to its content, bytes (an estimate).
const OVERHEAD: usize = 512;

/// A cached response.
#[derive(Debug)]
pub struct Entry {
    /// Metadata.
    pub meta: Meta,
    /// Node in the index.
    pub node: Arc<Node>,
    /// Body.
    pub content: Content,
    /// What has been made of the body.
    pub made: Made,
    generation: u64,
    /// State of the file.
    read: Identity,
}

impl Stored for Entry {
    fn status(&self) -> u16 {
        self.meta.status
    }

    fn content(&self) -> &Content {
        &self.content
    }

    fn made(&self) -> &Made {
        &self.made
    }

    fn grew(&self, thread: &Thread, bytes: u64) {
        CACHED.of(thread).grew(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

impl Entry {
    /// Returns `true` if the file has not changed since the entry was read.
    #[inline]
    pub fn current(&self) -> bool {
        self.generation == self.node.generation()
    }

    /// Returns what [`Index::renew`](super::index::Index::renew) needs to know of the entry.
    pub fn renewal(&self) -> Renewal {
        Renewal { node: self.node.clone(), generation: self.generation, read: self.read }
    }

    /// Returns the length of the body in bytes.
    pub fn len(&self) -> u64 {
        self.content.len()
    }

    /// Returns `true` if the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the body as a part of a response.
    pub fn part(&self) -> Part {
        match &self.content {
            Content::Memory(b) => Part::Bytes(b.clone()),
            Content::File(file, start) => Part::File { file: file.clone(), start: *start, end: file.size },
        }
    }

    fn cost(&self) -> usize {
        let body = if let Content::Memory(b) = &self.content { b.len() } else { 0 };
        let made = self.made.size() as usize;
        OVERHEAD + body + self.meta.head.len() + self.meta.key.len() + made
    }

    fn is_file(&self) -> bool {
        matches!(self.content, Content::File(..))
    }
}

type Half = HashMap<Box<[u8]>, Rc<Entry>, foldhash::fast::RandomState>;

/// Entries in two halves. A used entry moves to the newer half. When that is full it becomes the older half, whose remaining
/// entries are dropped.
#[derive(Debug)]
struct Halves {
    newer: RefCell<Half>,
    older: RefCell<Half>,
    /// Costs of the newer half, and the limit for them.
    cost: Cell<usize>,
    most: usize,
}

impl Halves {
    fn new(most: usize) -> Halves {
        Halves { newer: RefCell::default(), older: RefCell::default(), cost: Cell::new(0), most }
    }

    /// Returns an entry if it is still valid.
    #[inline]
    fn get(&self, key: &[u8], cost: fn(&Entry) -> usize) -> Option<Rc<Entry>> {
        if let Some(e) = self.newer.borrow().get(key) {
            if e.current() {
                return Some(e.clone());
            }
        } else {
            let (key, e) = self.older.borrow_mut().remove_entry(key)?;
            if e.current() {
                self.put(key, e.clone(), cost(&e));
                return Some(e);
            }
            return None;
        }
        self.newer.borrow_mut().remove(key);
        None
    }

    fn put(&self, key: Box<[u8]>, e: Rc<Entry>, cost: usize) {
        // The older half is dropped as a whole: counting uses of entries would cost more on each hit.
        if self.cost.get() + cost > self.most {
            self.turn();
        }
        self.cost.set(self.cost.get() + cost);
        self.newer.borrow_mut().insert(key, e);
    }

    /// Counts a cost that was added to an entry.
    fn grew(&self, cost: usize) {
        self.cost.set(self.cost.get() + cost);
        if self.cost.get() > self.most {
            self.turn();
        }
    }

    /// Drops the entries of the older half, which have not been used since the last turn. Returns `true` if there were any.
    fn turn(&self) -> bool {
        let newer = std::mem::take(&mut *self.newer.borrow_mut());
        self.cost.set(0);
        !self.older.replace(newer).is_empty()
    }

    fn is_empty(&self) -> bool {
        self.newer.borrow().is_empty() && self.older.borrow().is_empty()
    }

    /// Drops the entries that are not valid any more.
    fn drop_outdated(&self) {
        for half in [&self.newer, &self.older] {
            half.borrow_mut().retain(|_, e| e.current());
        }
    }

    fn clear(&self) {
        self.turn();
        self.turn();
    }
}

/// Entries of one thread: small entries with their bodies in memory, and large entries with an open file.
#[derive(Debug)]
pub struct Local {
    memory: Halves,
    files: Halves,
    /// Time of the last turn by [`Local::end_unneeded`].
    turned: Cell<Option<Instant>>,
    epoll: Arc<OwnedFd>,
    /// Bell that rings when files are gone. The thread has one once it has had a file open.
    bell: OnceCell<Arc<Bell>>,
}

/// Responses of upstreams that threads have served from a cache.
pub static CACHED: ThreadSlot<Local> = ThreadSlot::new();

impl ThreadState for Local {
    fn new(worker: &WorkerThread) -> Local {
        Local::new(worker.io.poller.epoll().clone())
    }

    fn noticed(&self, number: u32) {
        if number == NOTICE_CACHES {
            self.drop_outdated();
        }
    }

    fn shed_files(&self) -> bool {
        self.shed()
    }

    fn end_unneeded(&self, now: Instant) -> Ended {
        let some = Local::end_unneeded(self, now);
        Ended { some, left: !self.is_empty() }
    }
}

impl Local {
    /// Creates a store without entries for the thread with this epoll set.
    pub fn new(epoll: Arc<OwnedFd>) -> Local {
        let (memory, files) = (Halves::new(BUDGET / 2), Halves::new(FILES));
        Local { memory, files, turned: Cell::default(), epoll, bell: OnceCell::new() }
    }

    /// Returns an entry if it is still valid.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<Rc<Entry>> {
        self.memory.get(key, Entry::cost).or_else(|| self.files.get(key, |_| 1))
    }

    /// Adds an entry.
    pub fn put(&self, key: &[u8], e: &Rc<Entry>) {
        if !e.is_file() {
            return self.memory.put(key.into(), e.clone(), e.cost());
        }
        // Without a bell the thread would not learn that the file is gone, and keep it open.
        let Some(bell) = self.bell() else { return };
        self.files.put(key.into(), e.clone(), 1);
        bell.hold(true);
        // The file may have been removed before the thread held its bell, which did not ring for it then.
        if !e.current() {
            self.drop_outdated();
        }
    }

    fn bell(&self) -> Option<&Bell> {
        if let Some(bell) = self.bell.get() {
            return Some(bell);
        }
        let made = Bell::new(&self.epoll).ok()?;
        Some(self.bell.get_or_init(|| made))
    }

    /// Counts `n` bytes that were made of an entry in memory and are kept with it.
    pub fn grew(&self, n: usize) {
        self.memory.grew(n);
    }

    /// Closes the files that have been removed or replaced. Answers under way keep their files open.
    pub fn drop_outdated(&self) {
        let Some(bell) = self.bell.get() else { return };
        bell.heard();
        // Only open files keep space on the disk. Outdated entries in memory leave when they are next looked up, or with
        // their half.
        self.files.drop_outdated();
        bell.hold(!self.files.is_empty());
    }

    /// Drops entries that have not been used for `UNUSED` to twice as long, among them all that are gone from the index. Returns `true`
    /// if there were any.
    pub fn end_unneeded(&self, now: Instant) -> bool {
        let is_early = |at: Instant| now.saturating_duration_since(at) < UNUSED;
        if self.turned.get().is_some_and(is_early) {
            return false;
        }
        self.turned.set(Some(now));
        // Both have to turn, so `||` would be wrong here.
        let ended = self.memory.turn() | self.files.turn();
        if let Some(bell) = self.bell.get() {
            bell.hold(!self.files.is_empty());
        }
        ended
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.files.is_empty()
    }

    /// Drops all entries with open files, because descriptors run short. Returns `true` if there were any.
    pub fn shed(&self) -> bool {
        let had = !self.files.is_empty();
        self.files.clear();
        if let Some(bell) = self.bell.get() {
            bell.hold(false);
        }
        had
    }
}

/// Reason for which [`open`] gives no entry.
#[derive(Debug)]
pub enum Unusable {
    /// The file does not exist.
    Missing,
    /// The file cannot be opened or read.
    Failed(Errno),
    /// The file is not a valid entry of the key.
    Broken(&'static str),
}

/// Opens the file of an entry. `generation`: the generation of the node at this moment. If the file is replaced
/// meanwhile, the entry counts as outdated. Uses the blocking pool if the kernel would have to wait for the disk.
///
/// # Errors
/// [`Unusable`].
pub async fn open(cache: &Cache, node: &Arc<Node>, generation: u64, key: &[u8]) -> Result<Entry, Unusable> {
    use std::os::unix::ffi::OsStrExt;
    let path = cache.file(&node.hash);
    // Most files are in the memory of the kernel, and opening them here saves the way to another thread.
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
    // Two keys may have the same MD5, by chance or on purpose, and must not share a response.
    if meta.key != key {
        return Err(Unusable::Broken("belongs to another key"));
    }
    let read = file.state();
    let content = match &file.content {
        Some(c) => Content::Memory(c.slice(body_start..)),
        None => Content::File(Rc::new(file), body_start as u64),
    };
    Ok(Entry { meta, node: node.clone(), content, made: Made::default(), generation, read })
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
pub fn beside(path: &Path) -> std::path::PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!("{name}.{}.{:010}", std::process::id(), forebay_sys::serial::next()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::Index;
    use std::os::unix::ffi::OsStrExt;

    /// Writes the file of an entry with a body of so many bytes, and reads it.
    fn entry(index: &Index, dir: &Path, key: &[u8], size: usize) -> Rc<Entry> {
        let path = dir.join(key.escape_ascii().to_string());
        let meta = Meta { key: key.to_vec(), ..Default::default() };
        std::fs::write(&path, [meta.encode(size as u64), vec![b'x'; size]].concat()).expect("written");
        let Inspected::File(file) = file_cache::open(path.as_os_str().as_bytes()) else { panic!("no file") };
        let node = index.obtain(&crate::cache::entry::hash([key]), 1).expect("room");
        let generation = node.generation();
        Rc::new(read(file.opened(), &node, generation, key).expect("an entry"))
    }

    #[test]
    fn entries_that_nobody_asks_for_are_dropped() {
        let dir = tempfile::tempdir().expect("directory");
        let poller = forebay_net::reactor::Poller::new().expect("epoll");
        let (local, index) = (Local::new(poller.epoll().clone()), Index::new(10));
        let kinds = [("small", 10), ("large", file_cache::SMALL as usize + 1)];
        let put = |name: &str| {
            let entries = kinds.map(|(kind, size)| {
                let key = format!("{name} {kind}").into_bytes();
                let entry = entry(&index, dir.path(), &key, size);
                local.put(&key, &entry);
                assert_eq!(entry.is_file(), kind == "large");
                Rc::downgrade(&entry)
            });
            move || entries.iter().filter(|entry| entry.strong_count() > 0).count()
        };
        let ask =
            |name: &str| kinds.map(|(kind, _)| local.get(format!("{name} {kind}").as_bytes()).is_some());
        let (asked, unasked) = (put("asked"), put("unasked"));
        let mut now = Instant::now();
        assert!(!local.end_unneeded(now), "nothing is that old");
        for n in 0..4 {
            assert_eq!(ask("asked"), [true; 2]);
            assert!(!local.end_unneeded(now + UNUSED / 2));
            now += UNUSED;
            assert_eq!(local.end_unneeded(now), n == 0, "{n}");
            assert_eq!((asked(), unasked()), (2, 0), "{n}");
        }
        assert_eq!(ask("unasked"), [false; 2]);
        assert!(!local.is_empty() && local.end_unneeded(now + UNUSED));
        assert!(local.is_empty() && asked() == 0);
    }
}
