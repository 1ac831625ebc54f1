//! Records of a zone. A lookup takes the lock of a small part of them for a moment, and allocates nothing; changes
//! are made one after the other, and hold for all threads when they return. Hot path.

use super::key::{self, BadKey, Kind, MAX_KEY, Network};
use super::lengths::Lengths;
use super::shard::{NEVER, Record, Shard};
use forebay_sys::sync::{lock, read, write};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, RwLock};
use std::time::{Duration, Instant};

/// Bytes charged for a record in addition to key and value. With this value a zone takes no more memory than its size.
pub const RECORD_COST: usize = 64;

/// Number of parts. Threads that look up different keys at the same time seldom meet in one.
const SHARDS: usize = 128;

/// Reason why a change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The text cannot be a key.
    Key(BadKey),
    /// There is a record with this key.
    Exists,
    /// There is no record with this key.
    Missing,
    /// The zone has no room.
    Full,
    /// Several records can be added to an empty zone only.
    NotEmpty,
    /// Two of the records have the same key.
    Twice,
}

impl From<BadKey> for Refused {
    fn from(bad: BadKey) -> Refused {
        Refused::Key(bad)
    }
}

/// Time for which a record counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It does not expire.
    Endless,
    /// From now on.
    For(Duration),
}

impl Lifetime {
    /// Returns the time of its end.
    fn until(self, now: u64) -> u64 {
        match self {
            Lifetime::Endless => NEVER,
            Lifetime::For(time) => {
                now.saturating_add(u64::try_from(time.as_millis()).unwrap_or(NEVER)).min(NEVER - 1)
            }
        }
    }
}

/// A record outside of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// Time that is left of it.
    pub lifetime: Lifetime,
}

/// Change of a record; `None` leaves a part as it is.
#[derive(Clone, Copy, Debug)]
pub struct Change<'c> {
    /// Value.
    pub value: Option<&'c str>,
    /// Time.
    pub lifetime: Option<Lifetime>,
}

/// Records of a zone.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    shards: Box<[RwLock<Shard>]>,
    hashing: foldhash::fast::RandomState,
    lengths: Lengths,
    /// Bytes that the records may take.
    limit: AtomicUsize,
    /// Bytes charged for the records; the lock orders changes.
    used: Mutex<usize>,
    /// Time at which the next record may expire.
    due: AtomicU64,
    /// Number of changes.
    changes: AtomicU64,
}

impl Store {
    /// Makes an empty store.
    pub fn new(kind: Kind, limit: usize) -> Store {
        Store {
            kind,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            hashing: foldhash::fast::RandomState::default(),
            lengths: Lengths::default(),
            limit: AtomicUsize::new(limit),
            used: Mutex::new(0),
            due: AtomicU64::new(NEVER),
            changes: AtomicU64::new(0),
        }
    }

    /// Returns the type of its keys.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Changes the number of bytes that the records may take. More than that stay if they are there.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns the number of bytes charged for the records.
    pub fn used(&self) -> usize {
        *lock(&self.used)
    }

    /// Returns the number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Appends the value that matches a text. Returns `false` if none does.
    pub fn lookup(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        match self.kind {
            Kind::String => self.append(self.hash(text), text, out),
            Kind::Ip => self.lookup_network(text, out),
            Kind::Prefix => self.lookup_prefix(text, out),
        }
    }

    /// Appends the value of the smallest network around an address or a network.
    fn lookup_network(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(wanted) = Network::parse(text) else { return false };
        self.lengths.of_networks(wanted.is_v4(), wanted.bits()).any(|bits| {
            let network = wanted.shortened(bits);
            self.append(self.hash(network.bytes()), network.bytes(), out)
        })
    }

    /// Appends the value of the longest key that a text begins with.
    fn lookup_prefix(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        self.lengths
            .of_prefixes(text.len().min(MAX_KEY))
            .any(|length| text.get(..length).is_some_and(|key| self.append(self.hash(key), key, out)))
    }

    /// Appends the value of a key. Returns `false` if there is none.
    #[inline]
    fn append(&self, hash: u64, key: &[u8], out: &mut Vec<u8>) -> bool {
        let shard = read(self.shard(hash));
        match shard.find(hash, key) {
            // The clock is read for records that expire only.
            Some(r) if r.until == NEVER || r.until > now() => {
                out.extend_from_slice(r.value());
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.hashing.hash_one(key)
    }

    #[inline]
    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        // The table within takes the upper bits for its tags and the lowest for its places.
        &self.shards[(hash >> 40) as usize % SHARDS]
    }

    /// Returns the value of a record by its own key.
    ///
    /// # Errors
    /// [`Refused::Key`] and [`Refused::Missing`].
    pub fn value(&self, key: &str) -> Result<String, Refused> {
        let key = key::of_record(self.kind, key.as_bytes())?;
        let mut value = Vec::new();
        if !self.append(self.hash(&key), &key, &mut value) {
            return Err(Refused::Missing);
        }
        Ok(String::from_utf8_lossy(&value).into_owned())
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`Refused::Key`], [`Refused::Exists`] and [`Refused::Full`].
    pub fn add(&self, pair: &Pair) -> Result<(), Refused> {
        let key = key::of_record(self.kind, pair.key.as_bytes())?;
        let mut used = lock(&self.used);
        if self.length_of(&key).is_some() {
            return Err(Refused::Exists);
        }
        let record = Record::new(&key, pair.value.as_bytes(), pair.lifetime.until(now()));
        self.make_room(&mut used, cost(&record))?;
        self.put(&mut used, record);
        Ok(())
    }

    /// Adds records to an empty store: all of them, or none.
    ///
    /// # Errors
    /// [`Refused::NotEmpty`], [`Refused::Twice`], [`Refused::Key`] and [`Refused::Full`].
    pub fn fill(&self, pairs: &[Pair]) -> Result<(), Refused> {
        let mut keys = std::collections::HashSet::new();
        let mut records = Vec::with_capacity(pairs.len());
        let now = now();
        for pair in pairs {
            let key = key::of_record(self.kind, pair.key.as_bytes())?;
            records.push(Record::new(&key, pair.value.as_bytes(), pair.lifetime.until(now)));
            if !keys.insert(key) {
                return Err(Refused::Twice);
            }
        }
        let mut used = lock(&self.used);
        self.remove_expired(&mut used);
        if *used > 0 {
            return Err(Refused::NotEmpty);
        }
        self.make_room(&mut used, records.iter().map(cost).sum())?;
        records.into_iter().for_each(|record| self.put(&mut used, record));
        Ok(())
    }

    /// Changes a record.
    ///
    /// # Errors
    /// [`Refused::Key`], [`Refused::Missing`] and [`Refused::Full`].
    pub fn change(&self, key: &str, change: Change<'_>) -> Result<(), Refused> {
        let key = key::of_record(self.kind, key.as_bytes())?;
        let mut used = lock(&self.used);
        let hash = self.hash(&key);
        let (record, before) = {
            let shard = read(self.shard(hash));
            let record = shard.find(hash, &key).filter(|r| r.until > now()).ok_or(Refused::Missing)?;
            let value = change.value.map_or(record.value(), str::as_bytes);
            let until = change.lifetime.map_or(record.until, |l| l.until(now()));
            (Record::new(&key, value, until), cost(record))
        };
        self.make_room(&mut used, cost(&record).saturating_sub(before))?;
        self.put(&mut used, record);
        Ok(())
    }

    /// Removes a record.
    ///
    /// # Errors
    /// [`Refused::Key`] and [`Refused::Missing`].
    pub fn remove(&self, key: &str) -> Result<(), Refused> {
        let key = key::of_record(self.kind, key.as_bytes())?;
        let mut used = lock(&self.used);
        let hash = self.hash(&key);
        let removed = write(self.shard(hash)).remove(hash, &key, &|key| self.hash(key));
        let Some(record) = removed else { return Err(Refused::Missing) };
        self.forget(&mut used, &record);
        self.count_change();
        if record.until > now() { Ok(()) } else { Err(Refused::Missing) }
    }

    /// Removes all records.
    pub fn clear(&self) {
        let mut used = lock(&self.used);
        self.remove_where(&mut used, |_| true);
        self.count_change();
    }

    /// Removes the records that have expired, if there may be any.
    pub fn sweep(&self) {
        if self.due.load(Ordering::Relaxed) <= now() {
            self.remove_expired(&mut lock(&self.used));
        }
    }

    /// Returns all records that count, in the order of their keys.
    pub fn pairs(&self) -> Vec<Pair> {
        let now = now();
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = read(shard);
            all.extend(shard.iter().filter(|r| r.until > now).map(|r| Pair {
                key: key::text(self.kind, r.key()),
                value: String::from_utf8_lossy(r.value()).into_owned(),
                lifetime: match r.until {
                    NEVER => Lifetime::Endless,
                    until => Lifetime::For(Duration::from_millis(until - now)),
                },
            }));
        }
        all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        all
    }

    /// Returns the length of a record that counts.
    fn length_of(&self, key: &[u8]) -> Option<usize> {
        let hash = self.hash(key);
        let shard = read(self.shard(hash));
        shard.find(hash, key).filter(|r| r.until > now()).map(Record::length)
    }

    /// Finds out whether there is room for a number of bytes. Removes what has expired where there is too little.
    fn make_room(&self, used: &mut usize, wanted: usize) -> Result<(), Refused> {
        let limit = self.limit.load(Ordering::Relaxed);
        let fits = |used: usize| wanted == 0 || used.saturating_add(wanted) <= limit;
        if !fits(*used) {
            self.remove_expired(used);
        }
        if fits(*used) { Ok(()) } else { Err(Refused::Full) }
    }

    /// Puts a record in its place, and takes that of the one with the same key.
    fn put(&self, used: &mut usize, record: Record) {
        let (hash, until) = (self.hash(record.key()), record.until);
        *used = used.saturating_add(cost(&record));
        // A lookup has to know the length before the record is there.
        self.lengths.add(self.kind, record.key());
        let former = write(self.shard(hash)).put(hash, record, &|key| self.hash(key));
        if let Some(former) = former {
            self.forget(used, &former);
        }
        self.due.fetch_min(until, Ordering::Relaxed);
        self.count_change();
    }

    /// Notes that a record is gone.
    fn forget(&self, used: &mut usize, record: &Record) {
        *used = used.saturating_sub(cost(record));
        self.lengths.remove(self.kind, record.key());
    }

    fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn remove_expired(&self, used: &mut usize) {
        let now = now();
        let mut next = NEVER;
        self.remove_where(used, |r| {
            let expired = r.until <= now;
            if !expired {
                next = next.min(r.until);
            }
            expired
        });
        self.due.store(next, Ordering::Relaxed);
    }

    fn remove_where(&self, used: &mut usize, mut removed: impl FnMut(&Record) -> bool) {
        for shard in &self.shards {
            let forgotten = |r: &Record| {
                let gone = removed(r);
                if gone {
                    self.forget(used, r);
                }
                gone
            };
            write(shard).remove_all(forgotten, &|key| self.hash(key));
        }
    }
}

/// Returns the bytes charged for a record.
fn cost(record: &Record) -> usize {
    record.length().saturating_add(RECORD_COST)
}

/// Returns the time since the start of the process in milliseconds.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(0)
}
