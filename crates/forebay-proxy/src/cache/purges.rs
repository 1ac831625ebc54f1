//! Purges that the replicas of the server share (`purge_sync` of `proxy_cache_path`), through the store of `shared_store`.
//!
//! The replica that a purge is sent to removes the entries, answers, and informs the store. The others read the purge
//! there within milliseconds. While the store is away, purges are kept for it. A replica that was cut off or not running
//! reads on from the last purge that it has read. The position of this purge is in a file of the cache's directory, since
//! the entries outlive the process as well.

use super::Cache;
use super::entry::hash;
use forebay_core::shared_store::{Id, Link, MAX_PREFIX, Note, Purge, Received, Tells, Topic, zone_name};
use forebay_sys::files;
use forebay_sys::sync::lock;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Largest number of purges that wait for the store or for its confirmation.
const MAX_WAITING: usize = 10_000;
/// File in the directory of a cache with the position of the last purge that was read. No entry has such a name.
const SEEN: &str = "last_shared_purge";

/// Purges for other replicas.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Purge>,
    /// Purges that the store has not confirmed.
    sent: VecDeque<Purge>,
}

impl Outbox {
    /// Adds a purge. Returns `false` if there are too many.
    fn add(&mut self, purge: Purge) -> bool {
        let room = self.waiting.len() + self.sent.len() < MAX_WAITING;
        if room {
            self.waiting.push_back(purge);
        }
        room
    }

    /// Takes the purges that wait. They are kept until they are confirmed.
    fn take(&mut self, notes: &mut Vec<Note>) {
        notes.extend(self.waiting.iter().cloned().map(Note::Purge));
        self.sent.append(&mut self.waiting);
    }

    /// Has purges sent again that were not confirmed. Removing an entry twice does no harm.
    fn renew(&mut self) {
        self.sent.append(&mut self.waiting);
        std::mem::swap(&mut self.sent, &mut self.waiting);
    }
}

/// Tells other replicas of a purge, if the cache has `purge_sync`. A key that ends in `*` stands for all keys that begin like it.
///
/// # Errors
/// If the purge cannot be passed on. The text says why.
pub fn tell(cache: &Cache, key: &[u8]) -> Result<(), String> {
    if !cache.purge_sync {
        return Ok(());
    }
    let purge = match key.strip_suffix(b"*") {
        Some(prefix) if prefix.len() > MAX_PREFIX => {
            Err(format!("the key before \"*\" is longer than {MAX_PREFIX} bytes"))
        }
        Some(prefix) => Ok(Purge::Prefix(prefix.into())),
        None => Ok(Purge::Entry(hash([key]))),
    };
    let added = purge.and_then(|purge| match lock(&cache.index.outbox).add(purge) {
        true => Ok(()),
        false => Err(format!("{MAX_WAITING} purges wait for the shared store")),
    });
    let link = Link::of_process();
    match added {
        Ok(()) => link.wake(),
        Err(_) => drop(link.counts.purges_lost.fetch_add(1, Relaxed)),
    }
    added
}

/// Purges of a cache, as the tasks of the store see them.
#[derive(Debug)]
pub struct Purges {
    name: Vec<u8>,
    cache: Arc<Cache>,
}

impl Purges {
    /// Returns the purges of a cache. `None` without `purge_sync`.
    pub fn of(cache: &Arc<Cache>) -> Option<Purges> {
        let name = || zone_name(cache.name.clone());
        cache.purge_sync.then(|| Purges { name: name(), cache: cache.clone() })
    }

    fn seen_file(&self) -> PathBuf {
        self.cache.path.join(SEEN)
    }
}

impl Tells for Purges {
    fn name(&self) -> &[u8] {
        &self.name
    }

    fn topic(&self) -> Topic {
        Topic::Purges
    }

    fn renew(&self) {
        lock(&self.cache.index.outbox).renew();
    }

    fn take_notes(&self, notes: &mut Vec<Note>) {
        lock(&self.cache.index.outbox).take(notes);
    }

    fn answer(&self, note: Note, _: Option<&[u8]>) {
        let Note::Purge(purge) = note else { return };
        let sent = &mut lock(&self.cache.index.outbox).sent;
        // The store answers in order, so the first equal purge is the right one.
        if let Some(at) = sent.iter().position(|p| *p == purge) {
            sent.remove(at);
        }
    }

    fn hear(&self, told: Vec<Received>) {
        let index = &self.cache.index;
        // The same purge often comes several times, and each prefix costs a look at all entries.
        let all: HashSet<Received> = told.into_iter().collect();
        let mut prefixes = Vec::new();
        for told in &all {
            match told {
                Received::Purge(Purge::Entry(hash)) => index.purge_entry(&self.cache, hash),
                Received::Purge(Purge::Prefix(prefix)) => prefixes.push(&**prefix),
                Received::Bound { .. } => {}
            }
        }
        if !prefixes.is_empty() {
            // All prefixes are matched in one visit of the entries.
            let _turn = index.purge_one_at_a_time_blocking();
            index.purge(&self.cache, &prefixes);
        }
    }

    fn missed(&self) {}

    fn last_seen(&self) -> Option<Id> {
        let mut text = Vec::new();
        File::open(self.seen_file()).ok()?.take(64).read_to_end(&mut text).ok()?;
        Id::parse(text.trim_ascii())
    }

    fn keep_seen(&self, last: Id) {
        // The file is replaced as a whole, so that it never has half a position. If it is missing or older, purges are
        // read again, or purges between two processes are missed.
        let (file, new) = (self.seen_file(), self.cache.path.join(format!("{SEEN}.new")));
        let written = files::write(&new, format!("{last}\n").as_bytes(), files::PRIVATE);
        let _ = written.and_then(|()| std::fs::rename(&new, &file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::Index;

    fn purges(directory: &std::path::Path, purge_sync: bool) -> Arc<Cache> {
        let mut cache = Cache::for_tests(directory);
        (cache.purge_sync, cache.index) = (purge_sync, Arc::new(Index::new(1000)));
        Arc::new(cache)
    }

    fn notes(purges: &Purges) -> Vec<Purge> {
        let mut notes = Vec::new();
        purges.take_notes(&mut notes);
        let purge = |note| match note {
            Note::Purge(purge) => purge,
            other => panic!("{other:?}"),
        };
        notes.into_iter().map(purge).collect()
    }

    #[test]
    fn purges_are_kept_until_the_store_has_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = purges(directory.path(), true);
        let board = Purges::of(&cache).expect("shared");
        for key in [&b"a"[..], b"b*", b"*"] {
            assert_eq!(tell(&cache, key), Ok(()));
        }
        let all =
            [Purge::Entry(hash([&b"a"[..]])), Purge::Prefix(b"b"[..].into()), Purge::Prefix(b""[..].into())];
        assert_eq!(notes(&board), all);
        assert_eq!(notes(&board), []);
        board.answer(Note::Purge(all[0].clone()), None);
        assert_eq!(tell(&cache, b"c*"), Ok(()));
        // The connection was lost.
        board.renew();
        let last = Purge::Prefix(b"c"[..].into());
        assert_eq!(notes(&board), [all[1].clone(), all[2].clone(), last]);
        let long = [vec![b'k'; MAX_PREFIX + 1], b"*".to_vec()].concat();
        assert_eq!(tell(&cache, &long), Err("the key before \"*\" is longer than 4096 bytes".to_owned()));
        assert_eq!(tell(&cache, &long[1..]), Ok(()));
        (0..MAX_WAITING - 4).for_each(|_| assert_eq!(tell(&cache, b"a"), Ok(())));
        assert_eq!(tell(&cache, b"a"), Err("10000 purges wait for the shared store".to_owned()));
        let own = purges(directory.path(), false);
        assert_eq!((tell(&own, &long), Purges::of(&own).is_none()), (Ok(()), true));
    }

    #[test]
    fn the_last_purge_is_known_to_a_later_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let board = Purges::of(&purges(directory.path(), true)).expect("shared");
        assert_eq!(board.last_seen(), None);
        let id = Id::parse(b"1732572858000-3").expect("a position");
        board.keep_seen(id);
        assert_eq!(board.last_seen(), Some(id));
        for odd in ["", "x", &"1".repeat(1000)] {
            std::fs::write(directory.path().join(SEEN), odd).expect("written");
            assert_eq!(board.last_seen(), None, "{odd}");
        }
    }

    #[test]
    fn purges_of_others_are_carried_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = purges(directory.path(), true);
        let board = Purges::of(&cache).expect("shared");
        let entry = |key: &[u8]| {
            let file = cache.file(&hash([key]));
            let meta = crate::cache::entry::Meta { key: key.to_vec(), ..Default::default() };
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            std::fs::write(&file, meta.encode(0)).expect("written");
            file
        };
        let files = [&b"a/1"[..], b"a/2", b"b/1", b"c"].map(entry);
        let there = || files.each_ref().map(|file| file.exists());
        // The directory has not been read yet.
        board.hear(vec![Received::Purge(Purge::Entry(hash([&b"c"[..]])))]);
        assert_eq!(there(), [true, true, true, false]);
        let prefix = |text: &[u8]| Received::Purge(Purge::Prefix(text.into()));
        board.hear(vec![prefix(b"a/1"), prefix(b"b"), prefix(b"x")]);
        assert_eq!(there(), [false, true, false, false]);
    }
}
