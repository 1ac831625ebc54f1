//! Index of a cache's entries, for all threads. Locks of its shards are held only for moments. The thread that serves
//! an entry records the time of use in the node; the manager updates the order of eviction when it needs it.

use super::{Cache, Hash, bells};
use forebay_server::file_cache::Identity;
use forebay_sys::files;
use forebay_sys::sync::lock;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use tokio::sync::Notify;

/// Number of shards, each with locks.
const SHARDS: usize = 32;

/// Size of a block of the file system, bytes. Sizes on disk are rounded up to it.
pub(super) const BLOCK: u64 = 4096;

/// Returns milliseconds since the first call in this process.
pub fn millis(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    u64::try_from(now.saturating_duration_since(start).as_millis()).unwrap_or(u64::MAX)
}

/// Node of an entry. The entry may not have a file yet.
#[derive(Debug)]
pub struct Node {
    /// Hash of the key.
    pub hash: Hash,
    /// Key, after [`Index::purge`] has read it from the file.
    key: OnceLock<Box<[u8]>>,
    /// Position in the order of the index: `stamp` (changed only under the order's lock) and `id`.
    stamp: AtomicU64,
    id: u64,
    /// Counter that grows when the file is replaced, renewed or removed.
    generation: AtomicU64,
    /// Last use, see [`millis`].
    used: AtomicU64,
    gone: AtomicBool,
    state: Mutex<NodeState>,
    /// Signal that a request has finished filling the entry.
    pub filled: Notify,
}

/// Mutable state of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeState {
    /// The entry has a file.
    pub exists: bool,
    /// Bytes on disk.
    size: u64,
    /// Number of requests for the entry.
    pub uses: u64,
    /// Status of a failure, or of an error that `error_page` answers, and the time until which it is remembered.
    pub error: Option<(u16, i64)>,
    /// Number of the ticket under which a request fetches the entry. Set while it makes other requests wait,
    updating: Option<u64>,
    /// at most until this time (nginx: proxy_cache_lock_age).
    pub locked_until: Option<Instant>,
}

impl Node {
    /// Returns the generation.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Records a use at `now`.
    #[inline]
    pub fn touch(&self, now: u64) {
        // Most uses within a millisecond need no write, which would take the cache line away from other threads.
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    /// Calls `f` with the state, under its lock.
    pub fn with<R>(&self, f: impl FnOnce(&mut NodeState) -> R) -> R {
        f(&mut lock(&self.state))
    }

    /// Increments the generation, which makes earlier copies outdated.
    pub fn renewed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct Shard {
    nodes: Mutex<HashMap<Hash, Arc<Node>, foldhash::fast::RandomState>>,
    /// Held while a file is renamed, rewritten or removed. Worker threads take it through [`forebay_server::disk::Disk`] only, since that waits
    /// for the disk.
    files: Mutex<()>,
}

/// All entries of a cache.
#[derive(Debug)]
pub struct Index {
    /// Unique number of the index in this process.
    id: u64,
    /// Held while a purge visits all entries.
    purging: tokio::sync::Mutex<()>,
    /// Purges for other replicas.
    pub outbox: Mutex<super::purges::Outbox>,
    shards: Vec<Shard>,
    /// Nodes by the time of last use known when they were inserted; it may be out of date.
    order: Mutex<BTreeMap<(u64, u64), Arc<Node>>>,
    ids: AtomicU64,
    count: AtomicUsize,
    size: AtomicU64,
    max_nodes: usize,
    /// The directory has been read, so an entry that is not in the index has no file.
    loaded: AtomicBool,
}

impl Index {
    /// Creates an empty index for `max_nodes` entries.
    pub fn new(max_nodes: usize) -> Index {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Index {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            purging: tokio::sync::Mutex::new(()),
            outbox: Mutex::default(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            order: Mutex::default(),
            ids: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            size: AtomicU64::new(0),
            max_nodes: max_nodes.max(1),
            loaded: AtomicBool::new(false),
        }
    }

    /// Returns the unique number of the index. Numbers are not reused after a reload.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn shard(&self, hash: &Hash) -> &Shard {
        // The hash is MD5, so its first byte spreads the entries evenly.
        &self.shards[usize::from(hash[0]) % SHARDS]
    }

    /// Returns `true` if the directory has been read.
    pub fn loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// Records that the directory has been read.
    pub fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    /// Returns the number of bytes on disk.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the zone in use and in total, approximately.
    pub fn room(&self) -> (usize, usize) {
        let bytes = |n: usize| n.saturating_mul(super::config::NODE as usize);
        (bytes(self.count()), bytes(self.max_nodes))
    }

    /// Returns `true` if there are more entries than the zone has room for.
    pub fn crowded(&self) -> bool {
        self.count() > self.max_nodes
    }

    /// Returns the node of a hash, if there is one.
    pub fn find(&self, hash: &Hash) -> Option<Arc<Node>> {
        lock(&self.shard(hash).nodes).get(hash).cloned()
    }

    /// Returns the node of a hash, and creates it if necessary. Returns `None` if the zone is full and the manager has
    /// not made room yet.
    pub fn obtain(&self, hash: &Hash, now: u64) -> Option<Arc<Node>> {
        let mut nodes = lock(&self.shard(hash).nodes);
        if let Some(n) = nodes.get(hash) {
            return Some(n.clone());
        }
        // Some nodes more than the zone has room for are accepted, since the manager removes entries in the background.
        if self.count() > self.most() {
            return None;
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let node = Arc::new(Node {
            hash: *hash,
            key: OnceLock::new(),
            stamp: AtomicU64::new(now),
            id,
            generation: AtomicU64::new(0),
            used: AtomicU64::new(now),
            gone: AtomicBool::new(false),
            state: Mutex::default(),
            filled: Notify::new(),
        });
        nodes.insert(*hash, node.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        // Insert while the shard is locked: otherwise `remove` could run first and leave the node in the order for ever.
        lock(&self.order).insert((now, id), node.clone());
        drop(nodes);
        if self.crowded() {
            super::manager::nudge();
        }
        Some(node)
    }

    /// Records a file that exists already.
    pub fn note(&self, node: &Node, len: u64) {
        node.with(|s| {
            if !s.exists {
                s.exists = true;
                self.set_size(s, len);
            }
        });
    }

    fn set_size(&self, s: &mut NodeState, len: u64) {
        let size = len.div_ceil(BLOCK) * BLOCK;
        // Added before the old size is subtracted, so that the sum never falls below zero in between.
        self.size.fetch_add(size, Ordering::Relaxed);
        self.size.fetch_sub(s.size, Ordering::Relaxed);
        s.size = size;
    }

    /// Moves a complete file into the cache and updates its node. Blocks.
    ///
    /// # Errors
    /// If the file cannot be moved. It is removed then.
    pub fn publish(&self, cache: &Cache, node: &Arc<Node>, from: &Path, len: u64) -> io::Result<()> {
        let target = cache.file(&node.hash);
        let shard = self.shard(&node.hash);
        let files = lock(&shard.files);
        let done = rename(from, &target, files::PRIVATE_DIRECTORY);
        if let Err(e) = done {
            let _ = std::fs::remove_file(from);
            return Err(e);
        }
        let mut node = node.clone();
        // The manager or a purge may have removed the node while the response was fetched, so the file gets a new one.
        if node.gone.load(Ordering::Acquire) {
            match self.obtain(&node.hash, millis(Instant::now())) {
                Some(n) => node = n,
                None => {
                    let _ = std::fs::remove_file(&target);
                    return Ok(());
                }
            }
        }
        let replaced = node.with(|s| {
            s.error = None;
            self.set_size(s, len);
            std::mem::replace(&mut s.exists, true)
        });
        node.renewed();
        // The generation changes only after the new file is in place. A thread that sees it finds the new file.
        drop(files);
        // Threads that have the replaced file open keep its space on disk until they close it.
        if replaced {
            bells::ring();
        }
        if cache.max_size.is_some_and(|max| self.size() > max) {
            super::manager::nudge();
        }
        Ok(())
    }

    /// Overwrites the start of an entry's file with a start of the same length, which has other times. Does nothing if
    /// the entry was read from another file, or if the file has changed since (`read`). Blocks.
    ///
    /// This is the only function that writes to a published file. The start has a checksum, so that a reader that sees only a part
    /// of the change takes the file for broken; it looks again then, since the generation has changed.
    ///
    /// # Errors
    /// If the entry cannot be written.
    pub fn renew(&self, cache: &Cache, e: &Renewal, start: &[u8]) -> io::Result<()> {
        let _files = lock(&self.shard(&e.node.hash).files);
        // If the file was replaced or removed meanwhile, the file that is in place has times of its own.
        if e.node.generation() == e.generation {
            let file = files::open_to_write(&cache.file(&e.node.hash))?;
            // Another process with the same directory, such as the one before an upgrade, has generations of its own.
            if e.read.still(&file) {
                file.write_all_at(start, 0)?;
            }
            e.node.renewed();
        }
        Ok(())
    }

    /// Removes an entry with its file. Blocks.
    pub fn remove(&self, cache: &Cache, node: &Arc<Node>) {
        let shard = self.shard(&node.hash);
        let _files = lock(&shard.files);
        let existed = {
            let mut nodes = lock(&shard.nodes);
            // Another thread has removed the node before, and a file in its place belongs to a newer node.
            if nodes.get(&node.hash).is_none_or(|n| !Arc::ptr_eq(n, node)) {
                return;
            }
            nodes.remove(&node.hash);
            node.gone.store(true, Ordering::Release);
            self.count.fetch_sub(1, Ordering::Relaxed);
            let mut order = lock(&self.order);
            order.remove(&(node.stamp.load(Ordering::Relaxed), node.id));
            drop(order);
            node.with(|s| {
                let existed = std::mem::take(&mut s.exists);
                self.size.fetch_sub(std::mem::take(&mut s.size), Ordering::Relaxed);
                existed
            })
        };
        node.renewed();
        if existed {
            let _ = std::fs::remove_file(cache.file(&node.hash));
            bells::ring();
        }
    }

    /// Records that a file is missing or broken, unless another one has taken its place since `generation`. Blocks.
    pub fn forget_file(&self, cache: &Cache, node: &Node, generation: u64, remove: bool) -> Forgotten {
        let shard = self.shard(&node.hash);
        let _files = lock(&shard.files);
        // The file was replaced after it had been read, so what was found out about it is no longer true.
        if node.generation() != generation {
            return Forgotten::No;
        }
        node.with(|s| {
            s.exists = false;
            self.size.fetch_sub(std::mem::take(&mut s.size), Ordering::Relaxed);
        });
        node.renewed();
        if remove {
            let _ = std::fs::remove_file(cache.file(&node.hash));
        }
        bells::ring();
        Forgotten::Yes
    }

    /// Returns the least recently used entry with the time of its last use, without removing it. Moves entries that
    /// were used since they were inserted to their new place.
    pub fn oldest(&self) -> Option<(u64, Arc<Node>)> {
        let mut order = lock(&self.order);
        loop {
            let ((stamp, id), node) = order.pop_first()?;
            // Uses do not move entries at once, which would need this lock for each hit. The order catches up here.
            let used = node.used.load(Ordering::Relaxed);
            node.stamp.store(used.max(stamp), Ordering::Relaxed);
            order.insert((used.max(stamp), id), node.clone());
            if used <= stamp {
                return Some((stamp, node));
            }
        }
    }

    /// Removes the entry of a key with this hash. Blocks.
    pub fn purge_entry(&self, cache: &Cache, hash: &Hash) {
        match self.find(hash) {
            Some(node) => self.remove(cache, &node),
            None if self.loaded() => {}
            // The loader has not seen all files yet, so the file may exist without a node.
            None => drop(std::fs::remove_file(cache.file(hash))),
        }
    }

    /// Removes all entries whose keys begin with one of `prefixes`. Blocks. The first call opens each file for its key. The
    /// nodes keep the keys, so only caches purged in this way spend memory on them.
    pub fn purge(&self, cache: &Cache, prefixes: &[&[u8]]) {
        if !self.loaded() {
            // The loader works at its own pace and has not reached all files yet.
            super::manager::read_in(cache, || ());
        }
        for node in self.all() {
            let key = node.key.get().map(|key| key.to_vec()).or_else(|| {
                let key = super::entry::key_of(&cache.file(&node.hash))?;
                Some(node.key.get_or_init(|| key.into()).to_vec())
            });
            if key.is_some_and(|key| prefixes.iter().any(|prefix| key.starts_with(prefix))) {
                self.remove(cache, &node);
            }
        }
    }

    /// Waits until no other purge visits all entries. Many at a time would occupy all threads of the blocking pool.
    pub async fn purge_one_at_a_time(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.purging.lock().await
    }

    /// As [`Index::purge_one_at_a_time`], outside of asynchronous code. Blocks.
    pub fn purge_one_at_a_time_blocking(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.purging.blocking_lock()
    }

    /// Returns the largest number of nodes.
    pub(super) fn most(&self) -> usize {
        self.max_nodes + self.max_nodes / 4 + 64
    }

    /// Returns the entries with files, the least recently used first.
    pub(super) fn kept(&self) -> Vec<Kept> {
        let mut kept = Vec::with_capacity(self.count());
        for shard in &self.shards {
            kept.extend(lock(&shard.nodes).values().filter_map(|node| {
                let blocks = node.with(|s| s.exists.then_some(s.size / BLOCK))?;
                let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
                Some(Kept { used: node.used.load(Ordering::Relaxed), hash: node.hash, blocks })
            }));
        }
        kept.sort_unstable_by_key(|k| k.used);
        kept
    }

    /// Returns all current nodes.
    fn all(&self) -> Vec<Arc<Node>> {
        self.shards.iter().flat_map(|s| lock(&s.nodes).values().cloned().collect::<Vec<_>>()).collect()
    }
}

/// An entry with a file, as it is kept over a restart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Last use, see [`millis`].
    used: u64,
    pub hash: Hash,
    /// Blocks on disk.
    pub blocks: u32,
}

/// Entry whose times are renewed.
#[derive(Debug)]
pub struct Renewal {
    /// Its node.
    pub node: Arc<Node>,
    /// Generation of the node at which the entry was read.
    pub generation: u64,
    /// State of the file then.
    pub read: Identity,
}

/// Result of [`Index::forget_file`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// The entry has no file now.
    Yes,
    /// The file has been replaced, renewed or removed since it was read.
    No,
}

impl Drop for Index {
    fn drop(&mut self) {
        // The cache is not part of the configuration any more: threads close its files.
        self.all().iter().for_each(|node| node.renewed());
        bells::ring();
    }
}

/// Moves a file and creates missing parent directories with the mode `directories`. Copies it if the target is on
/// another file system.
///
/// # Errors
/// If the file can be neither moved nor copied.
pub fn rename(from: &Path, to: &Path, directories: u32) -> io::Result<()> {
    // The directory usually exists, so it is made only after a failure.
    match std::fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if let Some(dir) = to.parent() {
                files::create_directories(dir, directories)?;
            }
            std::fs::rename(from, to).or_else(|e| copy(from, to, e))
        }
        Err(e) => copy(from, to, e),
        Ok(()) => Ok(()),
    }
}

fn copy(from: &Path, to: &Path, e: io::Error) -> io::Result<()> {
    if e.kind() != io::ErrorKind::CrossesDevices {
        return Err(e);
    }
    let beside = to.with_extension(format!("{:010}", forebay_sys::serial::next()));
    // The copy gets its name only when it is complete, so nobody reads a part of it.
    let copied = std::fs::copy(from, &beside).and_then(|_| std::fs::rename(&beside, to));
    if copied.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    let _ = std::fs::remove_file(from);
    copied
}

/// Permission to fill an entry. Dropping it releases the entry's lock.
#[derive(Debug)]
pub struct Ticket {
    /// The entry.
    pub node: Arc<Node>,
    /// Number of the lock in `NodeState::updating`; `None` for a ticket without the lock.
    holds: Option<u64>,
}

impl Ticket {
    /// Creates a ticket without the lock.
    pub fn plain(node: Arc<Node>) -> Ticket {
        Ticket { node, holds: None }
    }

    /// Takes the lock unless another request has it. `age` is the time at which the lock expires.
    pub fn take(node: &Arc<Node>, age: Option<Instant>, now: Instant) -> Option<Ticket> {
        node.with(|s| {
            // A request that holds the lock for longer than `proxy_cache_lock_age` no longer keeps others from fetching.
            if s.updating.is_some() && s.locked_until.is_none_or(|t| t > now) {
                return None;
            }
            s.updating = Some(forebay_sys::serial::next());
            s.locked_until = age;
            Some(Ticket { node: node.clone(), holds: s.updating })
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.holds.is_some() {
            self.node.with(|s| {
                // An expired ticket must not release the lock of the next holder.
                if s.updating == self.holds {
                    (s.updating, s.locked_until) = (None, None);
                }
            });
            // Requests that wait also learn of a failure, so that one of them fetches the response instead.
            self.node.filled.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_comes_first() {
        let index = Index::new(10);
        let (a, b) = ([1; 16], [2; 16]);
        let first = index.obtain(&a, 1).expect("room");
        index.obtain(&b, 2).expect("room");
        assert_eq!(index.oldest().map(|(t, n)| (t, n.hash)), Some((1, a)));
        first.touch(5);
        assert_eq!(index.oldest().map(|(t, n)| (t, n.hash)), Some((2, b)));
        assert_eq!(index.count(), 2);
    }

    fn cache(dir: &Path) -> Cache {
        let mut cache = Cache::for_tests(dir);
        cache.index = Arc::new(Index::new(1000));
        cache
    }

    #[test]
    fn nothing_of_an_entry_stays_behind_its_removal() {
        let dir = tempfile::tempdir().expect("directory");
        let cache = cache(dir.path());
        for n in 0..100u64 {
            let node = cache.index.obtain(&[1; 16], n).expect("room");
            node.touch(n + 50);
            if n % 2 == 0 {
                // The manager puts it elsewhere.
                assert!(cache.index.oldest().is_some());
            }
            cache.index.remove(&cache, &node);
            assert_eq!((cache.index.count(), lock(&cache.index.order).len()), (0, 0), "{n}");
        }
        assert!(cache.index.oldest().is_none());
    }

    #[test]
    fn a_purge_of_many_opens_each_file_once() {
        let dir = tempfile::tempdir().expect("directory");
        let cache = cache(dir.path());
        let entry = |key: &[u8]| {
            let hash = crate::cache::entry::hash([key]);
            let meta = crate::cache::entry::Meta { key: key.to_vec(), ..Default::default() };
            let bytes = meta.encode(0);
            let path = cache.file(&hash);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(&path, &bytes).expect("written");
            let node = cache.index.obtain(&hash, 1).expect("room");
            cache.index.note(&node, bytes.len() as u64);
            path
        };
        let (a1, a2, b) = (entry(b"a/1"), entry(b"a/2"), entry(b"b"));
        cache.index.purge(&cache, &[b"a/1"]);
        assert_eq!((a1.exists(), a2.exists(), b.exists()), (false, true, true));
        // A key that is known needs no look at the file.
        std::fs::write(&a2, b"").expect("emptied");
        cache.index.purge(&cache, &[b"a/"]);
        assert_eq!((a2.exists(), b.exists(), cache.index.count()), (false, true, 1));
    }

    #[test]
    fn a_purge_finds_files_that_the_loader_has_not_read() {
        let dir = tempfile::tempdir().expect("directory");
        let cache = cache(dir.path());
        let [a, b] = [&b"a/1"[..], b"b"].map(|key| {
            let meta = crate::cache::entry::Meta { key: key.to_vec(), ..Default::default() };
            let path = cache.file(&crate::cache::entry::hash([key]));
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(&path, meta.encode(0)).expect("written");
            path
        });
        cache.index.purge(&cache, &[b"a/"]);
        assert_eq!((a.exists(), b.exists(), cache.index.count()), (false, true, 1));
    }

    #[test]
    fn no_index_has_the_number_of_another() {
        let numbers: std::collections::HashSet<u64> = (0..10).map(|_| Index::new(1).id()).collect();
        assert_eq!(numbers.len(), 10);
    }

    #[test]
    fn one_at_a_time_fills_an_entry() {
        let index = Index::new(10);
        let node = index.obtain(&[1; 16], 1).expect("room");
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(5);
        let ticket = Ticket::take(&node, Some(later), now);
        assert!(ticket.is_some() && Ticket::take(&node, None, now).is_none());
        assert!(Ticket::take(&node, None, later).is_some());
        drop(ticket);
        assert!(Ticket::take(&node, None, now).is_some());
    }

    #[test]
    fn a_slow_request_gives_up_no_right_of_others() {
        let index = Index::new(10);
        let node = index.obtain(&[1; 16], 1).expect("room");
        let now = Instant::now();
        let second = std::time::Duration::from_secs(1);
        let slow = Ticket::take(&node, Some(now + second), now);
        let next = Ticket::take(&node, Some(now + 2 * second), now + second);
        assert!(slow.is_some() && next.is_some());
        drop(slow);
        assert!(Ticket::take(&node, None, now + second).is_none());
        drop(next);
        assert!(Ticket::take(&node, None, now + second).is_some());
    }

    #[test]
    fn a_full_zone_takes_no_more() {
        let index = Index::new(1);
        let mut made = 0;
        for n in 0..200u8 {
            made += usize::from(index.obtain(&[n; 16], 1).is_some());
        }
        assert!(made < 100 && index.crowded());
    }
}
