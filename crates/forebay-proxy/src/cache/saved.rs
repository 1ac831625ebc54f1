//! The index of a cache in a file, so that a restart need not read the directory (Angie: `file=`).
//!
//! The file is written when the process has ended its work, and removed when the next one reads it. So a file that is there tells the
//! truth: after a crash there is none, and the directory is read as without this parameter. While two processes use a cache, as during an
//! upgrade, neither knows all entries, so that none writes. They notice each other by a lock of the directory.
//!
//! Form: a head, then blocks of records with a checksum each. A record is the hash and the number of blocks on disk, the least
//! recently used entry first.

use super::index::{Kept, millis};
use super::{Cache, Hash};
use forebay_sys::files;
use forebay_sys::sync::lock;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

const MAGIC: &[u8; 8] = b"FBINDEX1";
/// Magic, identity of the cache, number of records, checksum of these.
const HEAD: usize = 32;
const RECORD: usize = 20;
/// Records in a block with one checksum.
const BLOCK: usize = 4096;

/// Locks of the directories of this process, for its whole life.
static DIRECTORIES: Mutex<Vec<(PathBuf, File)>> = Mutex::new(Vec::new());

/// Returns the checksum of bytes. Another version of the program may have another one, and ignores the file then.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = foldhash::fast::FixedState::with_seed(0x0f0e_b1d7).build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns a number for the directory and the depth of a cache.
fn identity(cache: &Cache) -> u64 {
    let levels: Vec<u8> = cache.levels.iter().map(|level| b'0' + *level as u8).collect();
    checksum(&[cache.path.as_os_str().as_bytes(), b"\0", &levels].concat())
}

/// Notes that this process uses the directory. Returns `true` if no other one does.
fn is_alone(path: &Path) -> bool {
    let mut known = lock(&DIRECTORIES);
    if !known.iter().any(|(p, _)| p == path) {
        let Ok(directory) = File::open(path) else { return false };
        known.push((path.to_owned(), directory));
    }
    let Some((_, directory)) = known.iter().find(|(p, _)| p == path) else { return false };
    let alone = flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok();
    // Shared from here on. A process that asks at this very moment takes this one for another, and reads the directory.
    flock(directory, FlockOperation::NonBlockingLockShared).is_ok() && alone
}

/// Reads the file of a cache into its index, and removes it. Returns `true` if the index has all entries then.
pub(super) fn read(cache: &Cache) -> bool {
    let Some(path) = &cache.file_of_index else { return false };
    let alone = is_alone(&cache.path);
    let whole = alone && read_file(cache, path).is_ok();
    // A process that ends now writes the file again.
    if whole {
        cache.index.set_loaded();
    }
    // It is true no longer, whoever has written it.
    let _ = std::fs::remove_file(path);
    whole
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn read_file(cache: &Cache, path: &Path) -> io::Result<()> {
    let file = files::open_regular(path)?;
    let length = file.metadata()?.len();
    let mut input = BufReader::with_capacity(256 << 10, file);
    let mut head = [0; HEAD];
    input.read_exact(&mut head)?;
    let count = Head::of(&head).filter(|head| head.identity == identity(cache)).ok_or_else(invalid)?.count;
    let count = usize::try_from(count).map_err(|_| invalid())?;
    // More than the zone has room for would be thrown out at once.
    if count > cache.index.most() || length != length_of(count) {
        return Err(invalid());
    }
    let (mut left, mut block) = (count, vec![0; BLOCK * RECORD + 8]);
    while left > 0 {
        let records = left.min(BLOCK);
        let block = block.get_mut(..records * RECORD + 8).ok_or_else(invalid)?;
        input.read_exact(block)?;
        let (records_of, sum) = block.split_at(records * RECORD);
        if sum != checksum(records_of).to_le_bytes() {
            return Err(invalid());
        }
        let now = millis(Instant::now());
        for record in records_of.chunks_exact(RECORD) {
            let (hash, blocks) = record.split_at(16);
            let hash: Hash = hash.try_into().map_err(|_| invalid())?;
            let blocks = u32::from_le_bytes(blocks.try_into().map_err(|_| invalid())?);
            if let Some(node) = cache.index.obtain(&hash, now) {
                cache.index.note(&node, u64::from(blocks) * super::index::BLOCK);
            }
        }
        left -= records;
    }
    Ok(())
}

fn length_of(count: usize) -> u64 {
    (HEAD + count * RECORD + count.div_ceil(BLOCK) * 8) as u64
}

/// Head of a file.
struct Head {
    identity: u64,
    count: u64,
}

impl Head {
    fn of(bytes: &[u8; HEAD]) -> Option<Head> {
        let (fields, sum) = bytes.split_at(HEAD - 8);
        let number = |at: usize| Some(u64::from_le_bytes(fields.get(at..at + 8)?.try_into().ok()?));
        let is_whole = fields.starts_with(MAGIC) && sum == checksum(fields).to_le_bytes();
        is_whole.then_some(Head { identity: number(8)?, count: number(16)? })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &self.identity.to_le_bytes(), &self.count.to_le_bytes()].concat();
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }
}

/// Writes the files of caches that have one. Called when nothing uses them any more. Returns what failed.
pub fn write_all(caches: &[std::sync::Arc<Cache>]) -> Vec<(PathBuf, io::Error)> {
    let with_file = caches.iter().filter_map(|cache| Some((cache, cache.file_of_index.as_ref()?)));
    with_file.filter_map(|(cache, path)| Some((path.clone(), write(cache, path).err()?))).collect()
}

fn write(cache: &Cache, path: &Path) -> io::Result<()> {
    // An index that has not seen the whole directory would hide files from the next process.
    if !cache.index.loaded() || !is_alone(&cache.path) {
        let _ = std::fs::remove_file(path);
        return Ok(());
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let written = write_file(cache, &temporary).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
        let _ = std::fs::remove_file(path);
    }
    written
}

fn write_file(cache: &Cache, path: &Path) -> io::Result<()> {
    let kept = cache.index.kept();
    let _ = std::fs::remove_file(path);
    let mut out = BufWriter::with_capacity(256 << 10, files::create_new(path, files::PRIVATE)?);
    out.write_all(&Head { identity: identity(cache), count: kept.len() as u64 }.bytes())?;
    let mut block = Vec::with_capacity(BLOCK * RECORD);
    for records in kept.chunks(BLOCK) {
        block.clear();
        for Kept { hash, blocks, .. } in records {
            block.extend_from_slice(hash);
            block.extend_from_slice(&blocks.to_le_bytes());
        }
        out.write_all(&block)?;
        out.write_all(&checksum(&block).to_le_bytes())?;
    }
    // A file that a power failure has cut is found out by its checksums.
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::Index;
    use std::sync::Arc;

    fn cache(dir: &Path) -> Cache {
        let made = Cache::for_tests(dir);
        Cache { file_of_index: Some(dir.join("index")), index: Arc::new(Index::new(20_000)), ..made }
    }

    fn filled(dir: &Path, count: u32) -> Cache {
        let cache = cache(dir);
        for n in 0..count {
            let mut hash = [0; 16];
            hash[..4].copy_from_slice(&n.to_be_bytes());
            let node = cache.index.obtain(&hash, u64::from(n)).expect("room");
            cache.index.note(&node, u64::from(n) + 1);
        }
        cache.index.set_loaded();
        cache
    }

    #[test]
    fn an_index_comes_back_once() {
        let dir = tempfile::tempdir().expect("a directory");
        for count in [0, 1, BLOCK as u32, 10_001] {
            let before = filled(dir.path(), count);
            assert!(write_all(&[Arc::new(before)]).is_empty());
            let after = cache(dir.path());
            assert!(read(&after), "{count}");
            assert_eq!(after.index.count(), count as usize);
            let sizes: u64 = (0..u64::from(count)).map(|n| (n + 1).div_ceil(4096) * 4096).sum();
            assert_eq!(after.index.size(), sizes);
            assert!(!dir.path().join("index").exists());
            assert!(!read(&cache(dir.path())), "it is gone");
        }
    }

    #[test]
    fn a_file_that_is_not_true_is_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("index");
        let write = || assert!(write_all(&[Arc::new(filled(dir.path(), 5000))]).is_empty());
        write();
        let whole = std::fs::read(&path).expect("a file");
        for at in [0, 9, 17, 25, 40, HEAD + BLOCK * RECORD, whole.len() - 1] {
            let mut broken = whole.clone();
            broken[at] ^= 1;
            std::fs::write(&path, broken).expect("written");
            assert!(!read(&cache(dir.path())), "byte {at}");
            assert!(!path.exists());
        }
        for length in [0, 31, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).expect("written");
            assert!(!read(&cache(dir.path())), "{length} bytes");
        }
        // Another depth: no file would be found where the index looks.
        std::fs::write(&path, &whole).expect("written");
        assert!(!read(&Cache { levels: vec![2], ..cache(dir.path()) }));
        // More entries than the zone has room for.
        std::fs::write(&path, &whole).expect("written");
        assert!(!read(&Cache { index: Arc::new(Index::new(100)), ..cache(dir.path()) }));
    }

    #[test]
    fn an_index_that_has_not_seen_all_is_not_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let part = cache(dir.path());
        std::fs::write(dir.path().join("index"), "old").expect("written");
        assert!(write_all(&[Arc::new(part)]).is_empty());
        assert!(!dir.path().join("index").exists());
    }

    #[test]
    fn two_processes_write_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = filled(dir.path(), 3);
        // Another description of the directory is as good as another process.
        let other = File::open(dir.path()).expect("opened");
        flock(&other, FlockOperation::NonBlockingLockShared).expect("a lock");
        assert!(write_all(&[Arc::new(cache)]).is_empty());
        assert!(!dir.path().join("index").exists());
    }

    /// Prints how long it takes for ten million entries: `cargo test --release -p forebay-proxy --lib -- --ignored --nocapture million`.
    #[test]
    #[ignore = "a measurement"]
    fn ten_million_entries() {
        let dir = tempfile::tempdir().expect("a directory");
        let room = |cache: Cache| Cache { index: Arc::new(Index::new(12_000_000)), ..cache };
        let before = room(cache(dir.path()));
        for n in 0..10_000_000u64 {
            let hash = foldhash::fast::FixedState::with_seed(1).hash_one(n);
            let hash = (u128::from(hash) << 64 | u128::from(n)).to_be_bytes();
            let node = before.index.obtain(&hash, n / 100).expect("room");
            before.index.note(&node, 5000);
        }
        before.index.set_loaded();
        let before = [Arc::new(before)];
        let start = Instant::now();
        assert!(write_all(&before).is_empty());
        let written = start.elapsed();
        let after = room(cache(dir.path()));
        let start = Instant::now();
        assert!(read(&after));
        println!("written in {written:?}, read in {:?}", start.elapsed());
        assert_eq!(after.index.count(), 10_000_000);
    }
}
