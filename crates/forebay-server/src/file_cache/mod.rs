//! Cache of one thread's open files and the contents of small ones (nginx: open_file_cache). For connections without
//! sendfile it also keeps contents of larger files. Hot path.
//!
//! With `open_file_cache` an entry is valid for `open_file_cache_valid`. Without it, each use checks by one `statx`
//! that the file is still the same. Changes take effect at once, as in nginx, while descriptor, validators and contents
//! are kept. Requests that began before the current turn of the loop share one check, since it is younger than each of
//! them. Frequently used files are not checked: the kernel reports their changes ([`Watches`]).
//!
//! A full cache takes a file in when it is opened for the second time in a while (`Seen`). Where there are many more files than entries,
//! most are not used again before they leave, and it costs much to keep them.

mod seen;

use crate::file_watch::{Changes, Unwatched, Watches, WayId};
use crate::response::made::Made;
use bytes::Bytes;
use forebay_net::tls::record;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};
use seen::Seen;
use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Largest file kept in memory, bytes.
pub const SMALL: u64 = 128 * 1024;

/// Longest part of a file that is copied from memory where there is sendfile, bytes. One write then sends head and body. By
/// measurement, sendfile takes two thirds of the copy's time for 100 KB on one processor, and as much as the copy for 128 KB on another.
const COPIED: u64 = 64 * 1024;

/// Largest file kept in memory after repeated reads for connections that need its bytes in user space (TLS, HTTP/2),
/// bytes. By measurement, the copy from the page cache is an eighth of all work for 1 MB over TLS.
const MEDIUM: u64 = 2 * 1024 * 1024;

/// Memory for contents of such files, bytes a thread. It includes contents that have left the cache but are still being sent.
const MEDIUM_BUDGET: u64 = 32 * 1024 * 1024;

/// Memory for other contents, bytes a thread.
const CONTENT_BUDGET: u64 = 64 * 1024 * 1024;

/// Time for which an unused entry is kept without `open_file_cache`.
const IDLE: Duration = Duration::from_secs(60);

/// Maximum number of entries without `open_file_cache`.
const DEFAULT_ENTRIES: usize = 1024;

/// Number of checks of a file after which it is watched instead. A watch costs about as much as these.
const WATCH_AFTER: i16 = 32;

/// Number of checks until the next attempt if a file could not be watched.
const WATCH_AGAIN: i16 = 4096;

/// Time after which even a watched file is checked, since some kinds of writing make no event.
const TRUST: Duration = Duration::from_millis(250);

/// Number of entries that [`FileCache::end_unneeded`] looks at.
const LOOKED_AT: usize = 4096;

/// Entries dropped at a time when descriptors run short.
pub const SHED: usize = 16;

/// Attributes that distinguish one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: (i64, u64),
    ctime: (i64, u64),
}

impl Identity {
    pub(crate) fn of(s: &Stat) -> Identity {
        Identity {
            dev: s.st_dev,
            ino: s.st_ino,
            size: s.st_size.max(0) as u64,
            mtime: (s.st_mtime, s.st_mtime_nsec),
            ctime: (s.st_ctime, s.st_ctime_nsec),
        }
    }

    /// Returns `true` if a file is still in this state.
    pub fn still(self, fd: impl std::os::fd::AsFd) -> bool {
        rustix::fs::fstat(fd).is_ok_and(|s| Identity::of(&s) == self)
    }
}

/// An open regular file.
#[derive(Debug)]
pub struct OpenFile {
    /// Descriptor.
    pub fd: OwnedFd,
    /// Bytes.
    pub size: u64,
    /// Unix seconds.
    pub mtime: i64,
    /// Contents, if small.
    pub content: Option<Bytes>,
    /// Contents followed by the content type of a TLS record: see [`OpenFile::inner`].
    inner: Option<Bytes>,
    /// Contents of a larger file, for connections that cannot use sendfile.
    whole: OnceCell<Whole>,
    /// The file was read piece by piece before.
    again: Cell<bool>,
    /// `ETag`, with quotes.
    pub etag: Box<[u8]>,
    /// Heads and compressed forms made from the content.
    pub made: Made,
    /// The file is in the cache, so that the next request will find data kept with it.
    pub kept: Cell<bool>,
    identity: Identity,
}

impl OpenFile {
    /// Returns the state of the file when it was opened.
    pub fn state(&self) -> Identity {
        self.identity
    }

    /// Returns `true` if a part of the file is to leave by sendfile on connections that have it.
    #[inline]
    pub fn leaves_by_sendfile(&self, start: u64, end: u64) -> bool {
        self.content.is_none() || end.saturating_sub(start) > COPIED
    }

    /// Returns the contents if they are in memory.
    #[inline]
    pub fn bytes(&self) -> Option<&Bytes> {
        self.content.as_ref().or_else(|| self.whole.get().map(|w| &w.bytes))
    }

    /// Returns the contents from `start` to their end, followed by the type of a TLS 1.3 record (RFC 8446, section 5.2:
    /// TLSInnerPlaintext), so that they can be sealed without a copy. Returns `None` if they are too large or not in
    /// memory.
    #[inline]
    pub fn inner(&self, start: u64, end: u64) -> Option<&[u8]> {
        let inner = self.inner.as_ref().filter(|i| i.len() as u64 == end + 1)?;
        inner.get(start as usize..)
    }
}

/// Contents of a file of middle size.
#[derive(Debug)]
struct Whole {
    bytes: Bytes,
    /// Sum of such contents of the thread, bytes.
    live: Arc<AtomicU64>,
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.live.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Result of looking up a path.
#[derive(Clone, Debug)]
pub enum Found {
    /// A regular file.
    File(Rc<OpenFile>),
    /// A directory.
    Dir,
    /// Neither file nor directory (socket, device, ...).
    Other,
    /// Could not be opened.
    Error(Errno),
}

/// Rules for a lookup (nginx: open_file_cache*).
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `max=` and `inactive=`; `None` checks the file on every use.
    pub cache: Option<(u64, Duration)>,
    /// `open_file_cache_valid`.
    pub valid: Duration,
    /// `open_file_cache_min_uses`.
    pub min_uses: u64,
    /// `open_file_cache_errors`.
    pub errors: bool,
}

impl Policy {
    /// Returns `true` if a result is kept.
    fn keeps(&self, found: &Found) -> bool {
        match found {
            Found::File(_) => true,
            Found::Dir => self.cache.is_some(),
            Found::Error(_) => self.cache.is_some() && self.errors,
            Found::Other => false,
        }
    }
}

#[derive(Debug)]
struct CachedFile {
    found: Found,
    checked: Instant,
    used: Instant,
    uses: u64,
    /// Number of checks since the file was opened or its watch ended.
    looks: i16,
    watch: Option<WayId>,
    key: Rc<[u8]>,
    newer: usize,
    older: usize,
}

const NIL: usize = usize::MAX;

/// Cache of one thread. Least recently used entries leave first.
#[derive(Debug)]
pub struct FileCache {
    index: HashMap<Rc<[u8]>, usize, foldhash::fast::RandomState>,
    entries: Vec<CachedFile>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
    content_bytes: u64,
    /// Bytes of contents of files of middle size. Requests may hold them longer than the cache does.
    medium_bytes: Arc<AtomicU64>,
    watches: Option<Watches>,
    /// Longest time for which an unused entry is kept, of all locations that have asked.
    inactive: Duration,
    /// Paths that were opened while the cache was full.
    seen: Seen,
}

impl Default for FileCache {
    fn default() -> Self {
        FileCache {
            index: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NIL,
            oldest: NIL,
            content_bytes: 0,
            medium_bytes: Arc::default(),
            watches: None,
            inactive: IDLE,
            seen: Seen::default(),
        }
    }
}

/// Returns `true` if less than `time` has passed at `now`. Adding and comparing costs a fraction of subtracting times.
#[inline]
fn within(from: Instant, time: Duration, now: Instant) -> bool {
    from.checked_add(time).is_none_or(|end| now < end)
}

/// Result of a lookup that opens nothing.
pub enum Cached {
    /// The entry is valid.
    Hit(Found),
    /// The path has to be opened.
    Miss,
}

impl FileCache {
    /// Creates an empty cache that watches files. It needs calls of [`FileCache::handle_events`].
    pub fn watching(watches: Watches) -> FileCache {
        FileCache { watches: Some(watches), ..FileCache::default() }
    }

    /// Handles the kernel's events about watched files; `mounts` if the mount table has changed. Must be called before
    /// the requests of a turn run.
    pub fn handle_events(&mut self, mounts: bool, now: Instant) {
        let Some(w) = &mut self.watches else { return };
        match if mounts { w.forget() } else { w.handle_events(now) } {
            Changes::Some(entries) => {
                for i in entries {
                    if let Some(e) = self.entries.get_mut(i) {
                        // The watch has ended, so each use checks the file again.
                        (e.watch, e.looks) = (None, 0);
                    }
                }
            }
            Changes::All => self.entries.iter_mut().for_each(|e| (e.watch, e.looks) = (None, 0)),
        }
    }

    /// Looks a path up. May check the state of the file, but opens nothing. `now` is the time of the turn; `early` if
    /// the request began before the turn.
    #[inline]
    pub fn get(&mut self, path: &[u8], policy: &Policy, now: Instant, early: bool) -> Cached {
        let Some(&i) = self.index.get(path) else { return Cached::Miss };
        let e = &mut self.entries[i];
        let fresh = match policy.cache {
            Some(_) => within(e.checked, policy.valid, now) && e.uses >= policy.min_uses,
            // A request that has arrived in this turn may follow a change that was made after the check of the turn.
            None => early && (e.checked == now || e.watch.is_some() && within(e.checked, TRUST, now)),
        };
        if !fresh {
            if !unchanged(path, &e.found) {
                self.remove(i);
                return Cached::Miss;
            }
            self.checked(i, policy, now);
        }
        let e = &mut self.entries[i];
        e.used = now;
        e.uses += 1;
        let found = e.found.clone();
        if self.newest != i {
            self.unlink(i);
            self.link(i);
        }
        Cached::Hit(found)
    }

    /// Notes that a file has been checked. A file that is checked again and again is watched instead.
    #[inline]
    fn checked(&mut self, i: usize, policy: &Policy, now: Instant) {
        let e = &mut self.entries[i];
        e.checked = now;
        e.looks = e.looks.saturating_add(1);
        if e.looks >= WATCH_AFTER && e.watch.is_none() {
            self.watch(i, policy, now);
        }
    }

    /// Watches the file of an entry, if that is possible.
    fn watch(&mut self, i: usize, policy: &Policy, now: Instant) {
        let e = &mut self.entries[i];
        // If the file cannot be watched, many checks have to follow before the next attempt.
        e.looks = -WATCH_AGAIN;
        // An entry of `open_file_cache` is not checked at each use, so a watch would save nothing.
        if let (Some(w), Found::File(f), None) = (&mut self.watches, &e.found, policy.cache) {
            match w.add(&e.key, i, f.identity, now) {
                Ok(id) => e.watch = Some(id),
                // The next use opens the file again, and its new state may last.
                Err(Unwatched::Changed) => e.looks = 0,
                Err(Unwatched::Impossible) => {}
            }
        }
    }

    /// Adds a result, unless the cache is full and the path has not been opened lately. `now` is the time of a turn that began before the
    /// file was opened.
    pub fn put(&mut self, path: &[u8], found: &Found, policy: &Policy, now: Instant) {
        if !policy.keeps(found) {
            return;
        }
        if let Some(&i) = self.index.get(path) {
            self.remove(i);
        }
        self.end_idle(policy, now);
        // Locations may have different limits, and all use the one cache of the thread. The limit of the current location applies.
        let max = policy.cache.map_or(DEFAULT_ENTRIES, |(max, _)| max as usize).max(1);
        if self.is_full(max) {
            // With `open_file_cache`, each file is kept, as in nginx.
            if policy.cache.is_none() && !self.seen.note(self.index.hasher().hash_one(path)) {
                return;
            }
            while self.oldest != NIL && self.is_full(max) {
                self.remove(self.oldest);
            }
        }
        self.content_bytes += content_len(found);
        if let Found::File(f) = found {
            f.kept.set(true);
        }
        let key: Rc<[u8]> = path.into();
        let i = self.store(CachedFile {
            found: found.clone(),
            checked: now,
            used: now,
            uses: 1,
            looks: 0,
            watch: None,
            key: key.clone(),
            newer: NIL,
            older: NIL,
        });
        self.index.insert(key, i);
        self.link(i);
    }

    fn is_full(&self, max: usize) -> bool {
        self.index.len() >= max || self.content_bytes > CONTENT_BUDGET
    }

    /// Removes entries that have not been used for long.
    fn end_idle(&mut self, policy: &Policy, now: Instant) {
        let inactive = policy.cache.map_or(IDLE, |(_, t)| t);
        self.inactive = self.inactive.max(inactive);
        // The list is in the order of last uses, so the search ends at the first entry that is still in use.
        while self.entries.get(self.oldest).is_some_and(|e| !within(e.used, inactive, now)) {
            self.remove(self.oldest);
        }
    }

    /// Puts an entry into a free slot. Returns the slot.
    fn store(&mut self, entry: CachedFile) -> usize {
        match self.free.pop() {
            Some(i) => {
                self.entries[i] = entry;
                i
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        }
    }

    /// Counts `n` bytes that were made of the content of a file of this cache and are kept with it.
    pub fn grew(&mut self, file: &OpenFile, n: u64) {
        if file.kept.get() {
            self.content_bytes += n;
        }
        while self.content_bytes > CONTENT_BUDGET && self.oldest != NIL {
            self.remove(self.oldest);
        }
    }

    /// Reads the contents of a file that is used repeatedly, if it is of medium size, there is room, and it is entirely
    /// in the page cache.
    pub fn read_again(&mut self, file: &OpenFile, now: Instant) {
        if file.size > MEDIUM || file.bytes().is_some() || !file.kept.get() || !file.again.replace(true) {
            return;
        }
        // Only entries that have not been used for a while make room.
        while self.medium_bytes.load(Ordering::Relaxed) + file.size > MEDIUM_BUDGET {
            match self.entries.get(self.oldest) {
                Some(e) if now.saturating_duration_since(e.used) >= IDLE => self.remove(self.oldest),
                _ => return,
            }
        }
        if let Some(bytes) = read_resident(&file.fd, file.size as usize)
            // The file may have changed while it was read, and its validators would not fit the bytes.
            && file.identity.still(&file.fd)
        {
            self.medium_bytes.fetch_add(file.size, Ordering::Relaxed);
            let _ = file.whole.set(Whole { bytes, live: self.medium_bytes.clone() });
        }
    }

    /// Drops entries that have not been used for long, and entries whose files have been deleted, which would take room on the disk until
    /// their next use. Looks at the `LOOKED_AT` least recently used entries. Returns `true` if some were dropped.
    pub fn end_unneeded(&mut self, now: Instant) -> bool {
        let before = self.index.len();
        let (mut next, inactive) = (self.oldest, self.inactive);
        for _ in 0..LOOKED_AT {
            let Some(e) = self.entries.get(next) else { break };
            let i = std::mem::replace(&mut next, e.newer);
            if now.saturating_duration_since(e.used) >= inactive || is_deleted(&e.found) {
                self.remove(i);
            }
        }
        if self.index.is_empty() {
            self.seen.clear();
        }
        self.index.len() < before
    }

    /// Returns `true` if the cache has no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Drops up to `n` of the least recently used entries. Returns their number.
    pub fn shed(&mut self, n: usize) -> usize {
        let mut shed = 0;
        while shed < n && self.oldest != NIL {
            self.remove(self.oldest);
            shed += 1;
        }
        shed
    }

    fn remove(&mut self, i: usize) {
        self.unlink(i);
        let key = self.entries[i].key.clone();
        self.content_bytes = self.content_bytes.saturating_sub(content_len(&self.entries[i].found));
        if let Found::File(f) = std::mem::replace(&mut self.entries[i].found, Found::Other) {
            f.kept.set(false);
        }
        if let (Some(w), Some(id)) = (&mut self.watches, self.entries[i].watch.take()) {
            w.remove(id);
        }
        self.index.remove(&key);
        self.free.push(i);
    }

    fn unlink(&mut self, i: usize) {
        let (newer, older) = (self.entries[i].newer, self.entries[i].older);
        match self.entries.get_mut(newer) {
            Some(e) => e.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older) {
            Some(e) => e.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link(&mut self, i: usize) {
        self.entries[i].newer = NIL;
        self.entries[i].older = self.newest;
        match self.entries.get_mut(self.newest) {
            Some(e) => e.newer = i,
            None => self.oldest = i,
        }
        self.newest = i;
    }
}

fn content_len(f: &Found) -> u64 {
    match f {
        Found::File(f) => f.content.as_ref().map_or(0, |c| c.len() as u64) + f.made.size(),
        _ => 0,
    }
}

/// Returns `true` for a file without a name.
fn is_deleted(found: &Found) -> bool {
    matches!(found, Found::File(f) if rustix::fs::fstat(&f.fd).is_ok_and(|s| s.st_nlink == 0))
}

/// Returns `true` if the path still leads to a file in the same state.
fn unchanged(path: &[u8], found: &Found) -> bool {
    let stat = rustix::fs::stat(path);
    match (found, stat) {
        (Found::File(f), Ok(s)) => Identity::of(&s) == f.identity,
        (Found::Dir, Ok(s)) => FileType::from_raw_mode(s.st_mode) == FileType::Directory,
        (Found::Error(e), Err(now)) => *e == now,
        _ => false,
    }
}

/// A regular file that has just been opened. It can be sent between threads.
#[derive(Debug)]
pub struct Regular {
    fd: OwnedFd,
    identity: Identity,
    /// Contents followed by one byte: see [`OpenFile::inner`].
    content: Option<Bytes>,
}

impl Regular {
    /// Adds the data that the serving thread keeps with a file.
    pub fn opened(self) -> OpenFile {
        let Regular { fd, identity, content: inner } = self;
        let content = inner.as_ref().map(|all| all.slice(..all.len() - 1));
        OpenFile {
            fd,
            size: identity.size,
            mtime: identity.mtime.0,
            content,
            inner,
            whole: OnceCell::new(),
            again: Cell::new(false),
            // nginx makes the tag of the same two parts.
            etag: format!("\"{:x}-{:x}\"", identity.mtime.0, identity.size).into_bytes().into(),
            made: Made::default(),
            kept: Cell::new(false),
            identity,
        }
    }
}

/// Result of opening a path, in a form that can be sent between threads.
#[derive(Debug)]
pub enum Inspected {
    /// A regular file.
    File(Regular),
    /// A directory.
    Dir,
    /// Neither.
    Other,
    /// Failed.
    Error(Errno),
}

impl From<Inspected> for Found {
    fn from(i: Inspected) -> Found {
        match i {
            Inspected::File(f) => Found::File(Rc::new(f.opened())),
            Inspected::Dir => Found::Dir,
            Inspected::Other => Found::Other,
            Inspected::Error(e) => Found::Error(e),
        }
    }
}

/// Result of [`open_cached`].
pub enum Opened {
    /// An answer.
    Found(Inspected),
    /// The kernel would have to read from disk: open the path on the blocking pool.
    WouldBlock,
}

/// Opens a path if the kernel can do that without reading from disk.
pub fn open_cached(path: &[u8]) -> Opened {
    // With NONBLOCK, opening a FIFO does not wait for a writer (fifo(7)).
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    match rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(fd) => Opened::Found(inspect(fd)),
        // The kernel does not have all names of the path in memory (openat2(2), RESOLVE_CACHED).
        Err(Errno::AGAIN) => Opened::WouldBlock,
        // Kernels before 5.12 do not know the flag, and filters of containers may forbid the call.
        Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => Opened::Found(open(path)),
        Err(e) => Opened::Found(Inspected::Error(e)),
    }
}

/// Opens a path; may block.
pub fn open(path: &[u8]) -> Inspected {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => inspect(fd),
        Err(e) => Inspected::Error(e),
    }
}

/// Inspects an open descriptor and reads the whole of a small file.
pub fn inspect(fd: OwnedFd) -> Inspected {
    let s = match rustix::fs::fstat(&fd) {
        Ok(s) => s,
        Err(e) => return Inspected::Error(e),
    };
    match FileType::from_raw_mode(s.st_mode) {
        FileType::Directory => return Inspected::Dir,
        FileType::RegularFile => {}
        _ => return Inspected::Other,
    }
    let identity = Identity::of(&s);
    let content = if identity.size <= SMALL { read_whole(&fd, identity.size as usize) } else { None };
    Inspected::File(Regular { fd, identity, content })
}

/// Reads a file and appends the type of application data.
fn read_whole(fd: &OwnedFd, len: usize) -> Option<Bytes> {
    let mut buf = Vec::with_capacity(len + 1);
    while buf.len() < len {
        let at = buf.len() as u64;
        match rustix::io::pread(fd, rustix::buffer::spare_capacity(&mut buf), at) {
            // The file has become shorter since its attributes were read.
            Ok(0) => return None,
            Ok(_) => {}
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    buf.truncate(len);
    buf.push(record::DATA);
    Some(Bytes::from(buf))
}

/// Reads a whole file if all of it is in the page cache.
fn read_resident(fd: &OwnedFd, len: usize) -> Option<Bytes> {
    let mut buf = vec![0; len];
    let mut at = 0;
    while at < len {
        let mut rest = [IoSliceMut::new(buf.get_mut(at..)?)];
        match rustix::io::preadv2(fd, &mut rest, at as u64, ReadWriteFlags::NOWAIT) {
            Ok(n) if n > 0 => at += n,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return None,
        }
    }
    Some(Bytes::from(buf))
}

/// Returns the attributes of a path without opening it (`try_files`, `index`, `if -f`).
pub fn kind(path: &[u8]) -> Result<Stat, Errno> {
    rustix::fs::statat(rustix::fs::CWD, path, AtFlags::empty())
}

#[cfg(test)]
mod tests;
