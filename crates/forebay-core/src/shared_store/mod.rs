//! Store that several replicas of the server share (`shared_store`): Valkey or Redis.
//!
//! Worker threads never wait for it. They leave questions in their zones ([`Shares`]) and wake the task of the configuration,
//! which runs on the tokio thread, sends all questions of a turn in one pipeline, and hands the answers to the zones. [`Link`] is
//! what threads see of it: whether the store answers, and how many replicas there are.
//!
//! Zones of another kind ([`Tells`]) tell all replicas what they know, by messages in the store that `listen.rs` reads.
//!
//! `directive.rs` reads `shared_store`, `task.rs` is the task, `calls.rs` what it sends, `client.rs` its connection, `retry.rs` what happens when that ends, `resp.rs` the
//! protocol, `script.rs` what runs in the store for limits, `seal.rs` what hides secrets in the store, `messages.rs` what replicas tell each other.
//!
//! A request that has to wait for the store waits in its hook (`store_answers.rs` of forebay-modules). Sessions
//! ([`crate::upstream::sticky`]) and purges (`cache/purges.rs` of forebay-proxy) are zones that tell replicas what they know: the task
//! appends their notes to streams in the store. `listen.rs` reads each stream over a connection of its own, from the last message that
//! was read, which the process keeps over reloads.
//!
//! Streams serve better here than publish and subscribe. A message is read in the same way whether it is new or from before a failure,
//! nothing falls between the two, and a replica notices that its last message is gone.

mod calls;
mod client;
mod directive;
mod listen;
mod messages;
mod resp;
mod retry;
mod script;
pub(crate) mod seal;
mod task;

pub use directive::{Settings, SharedStore, Stores, directive};
pub use messages::{
    Id, MAX_PREFIX, MAX_SERVER, Note, Purge, Received, ServerSender, SessionKey, Tells, Topic, read_any,
    zone_name,
};

use crate::histogram::{self, BUCKETS, Histogram};
use forebay_sys::sync::lock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Zone with a part in the store.
pub trait Shares: Send + Sync {
    /// Returns the name of the zone.
    fn name(&self) -> &[u8];

    /// Notes that the store may have forgotten everything, since its connection is a new one.
    fn renew(&self) {}

    /// Takes the questions that wait.
    fn take_asks(&self, asks: &mut Vec<Ask>);

    /// Takes an answer. A question without an answer is dropped.
    fn answer(&self, ask: Ask, answer: Answer);
}

/// Question about a key.
#[derive(Debug)]
pub struct Ask {
    /// Key in the zone.
    pub key: Box<[u8]>,
    /// Question to the store.
    pub question: Question,
    /// Receiver of the answer.
    pub client: Client,
}

/// Question to the store about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// For cells of a rate. Times are in nanoseconds.
    Cells {
        /// Time between two cells.
        interval: i64,
        /// Time before its slot at which a cell may be granted.
        tolerance: i64,
        /// Cells that have been spent already; negative: cells that are given back.
        debt: i32,
        /// Cells that are wanted.
        want: u32,
    },
    /// For places of which a replica takes so many.
    Places {
        /// Places of this replica from now on.
        count: u32,
        /// Places of all replicas at most. `None`: the number is only reported.
        most: Option<u32>,
    },
}

/// Receiver of an answer.
#[derive(Debug)]
pub enum Client {
    /// The zone.
    Zone,
    /// A request that waits.
    Request(oneshot::Sender<Answer>),
}

/// Answer of the store. Times are in nanoseconds from the moment of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Cells that are granted; 1 or 0 if places are.
    pub granted: u32,
    /// Slot of the first of them.
    pub first: i64,
    /// Slot of the next cell of the key.
    pub due: i64,
}

/// Counts of the questions to the store.
#[derive(Debug, Default)]
pub struct Counts {
    /// Cells that were asked for.
    pub asked: AtomicU64,
    /// Cells that were granted.
    pub granted: AtomicU64,
    /// Cells that were spent before the store knew.
    pub reported: AtomicU64,
    /// Cells that were given back.
    pub returned: AtomicU64,
    /// Failures: connections that were lost or not made, and errors in replies.
    pub errors: AtomicU64,
    /// Servers of sessions that the other replicas were told.
    pub sessions_told: AtomicU64,
    /// Servers of sessions that other replicas have told.
    pub sessions_heard: AtomicU64,
    /// Sessions that the store was asked for.
    pub sessions_asked: AtomicU64,
    /// Purges that the other replicas were told.
    pub purges_told: AtomicU64,
    /// Purges that other replicas have told.
    pub purges_heard: AtomicU64,
    /// Purges that could not be told.
    pub purges_lost: AtomicU64,
    /// Messages for no zone of this server, and those that are in no right form.
    pub ignored: AtomicU64,
    /// Times at which messages may have been missed.
    pub missed: AtomicU64,
    /// Times from question to answer, in the buckets of [`BUCKETS`].
    times: [AtomicU64; BUCKETS.len() + 1],
    /// Sum of these, microseconds.
    time_sum: AtomicU64,
}

impl Counts {
    fn count_time(&self, time: Duration) {
        if let Some(c) = self.times.get(histogram::bucket(time)) {
            c.fetch_add(1, Relaxed);
        }
        self.time_sum.fetch_add(u64::try_from(time.as_micros()).unwrap_or(0), Relaxed);
    }

    /// Returns the times from question to answer.
    pub fn times(&self) -> Histogram {
        let mut h = Histogram::default();
        for (to, from) in h.counts.iter_mut().zip(&self.times) {
            *to = from.load(Relaxed);
        }
        h.sum = Duration::from_micros(self.time_sum.load(Relaxed));
        h
    }
}

/// State of the store as worker threads see it. It belongs to the process, so that a reload keeps it.
#[derive(Debug, Default)]
pub struct Link {
    /// Whether a configuration in effect has a store.
    used: AtomicBool,
    up: AtomicBool,
    /// Replicas that the store has counted last; 0: none yet.
    counted: AtomicU32,
    /// Number that [`Link::set_replicas`] has set, which takes precedence; 0: none.
    told: AtomicU32,
    wake: Notify,
    /// Counts.
    pub counts: Counts,
    /// Last message that was read, by topic and part of the store.
    cursors: Mutex<Vec<(Topic, Vec<u8>, Id)>>,
}

impl Link {
    /// Returns the link of this process.
    pub fn of_process() -> Arc<Link> {
        static LINK: LazyLock<Arc<Link>> = LazyLock::new(Arc::default);
        LINK.clone()
    }

    /// Returns whether the store answers. If it does not, each replica applies its share of the limits.
    pub fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Returns whether a configuration in effect has a store.
    pub fn is_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// Returns the number of replicas, at least 1. It is the last one known if the store is away.
    pub fn replicas(&self) -> u32 {
        match self.told.load(Relaxed) {
            0 => self.counted.load(Relaxed).max(1),
            told => told,
        }
    }

    /// Sets the number of replicas from a source that knows better than the store, such as a controller. `None` goes back to the
    /// number in the store.
    pub fn set_replicas(&self, number: Option<u32>) {
        self.told.store(number.unwrap_or(0), Relaxed);
    }

    /// Sets whether the store answers.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Relaxed);
    }

    /// Sets the number of replicas to assume until the store has counted them.
    fn assume(&self, replicas: u32) {
        let _ = self.counted.compare_exchange(0, replicas, Relaxed, Relaxed);
    }

    /// Returns the last message of a topic that was read from a part of the store.
    fn cursor(&self, topic: Topic, place: &[u8]) -> Option<Id> {
        lock(&self.cursors).iter().find(|(t, p, _)| *t == topic && p == place).map(|(.., id)| *id)
    }

    /// Sets the last message of a topic that was read. The former one, of whatever part of the store, is forgotten.
    fn set_cursor(&self, topic: Topic, place: &[u8], id: Id) {
        let mut all = lock(&self.cursors);
        all.retain(|(t, ..)| *t != topic);
        all.push((topic, place.to_vec(), id));
    }

    /// Wakes the task that asks the store.
    pub fn wake(&self) {
        self.wake.notify_one();
    }
}
