//! Access log lines that are not written yet: gathered for one turn of the loop or a few busy ones, or buffered for
//! longer (nginx: access_log, buffer= and flush=). Hot path.
//!
//! The lines are in memory shared with the master ([`forebay_sys::log_area`]). If the process is killed, the master
//! writes the rest, so that no complete line is lost. A slot records that a write is under way. If that write was cut
//! off, the master continues after the last byte that reached a regular file ([`super::write::resume`]). A
//! line may then be written twice, but none is torn or lost. The exception is a line that is longer than its slot or
//! finds no room in the area.

use super::access::AccessLog;
use super::error;
use super::write::{encode, is_regular, write_lines};
use crate::thread::{ActiveConfig, Thread};
use forebay_conf::error::Level;
use forebay_sys::log_area::{Mapped, Slot};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time for which lines of a log without a buffer are gathered over several busy turns.
pub const GATHER: Duration = Duration::from_millis(1);

/// Amount of gathered lines at which a log without a buffer is written before the end of the turn, bytes.
const GATHERED: usize = 16 * 1024;

/// Least size of a slot, bytes. Longer than any line; unused pages take no memory.
const ROOM: usize = 64 * 1024;

/// Memory of a buffer.
#[derive(Debug)]
enum Store {
    Shared(Slot),
    /// Memory of the thread, if the area has no room. These lines are lost if the process is killed.
    Own(Vec<u8>),
}

impl Store {
    #[inline]
    fn append(&mut self, line: &[u8]) -> bool {
        match self {
            Store::Shared(slot) => slot.append(line),
            Store::Own(bytes) => {
                bytes.extend_from_slice(line);
                true
            }
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Store::Shared(slot) => slot.len(),
            Store::Own(bytes) => bytes.len(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Store::Shared(slot) => slot.bytes(),
            Store::Own(bytes) => bytes,
        }
    }

    fn begin(&self) {
        if let Store::Shared(slot) = self {
            slot.begin();
        }
    }

    fn written(&self, start: usize) {
        if let Store::Shared(slot) = self {
            slot.written(start);
        }
    }

    fn clear(&mut self) {
        match self {
            Store::Shared(slot) => slot.clear(),
            Store::Own(bytes) => bytes.clear(),
        }
    }
}

#[derive(Debug)]
struct Buffer {
    store: Store,
    /// Bytes from which on the buffer is written.
    limit: usize,
    gzip: Option<u32>,
    /// `true` if lines stay longer than a turn.
    buffered: bool,
    flush: Option<Duration>,
    flush_at: Option<Instant>,
    /// See [`is_regular`].
    regular: bool,
}

/// Buffers of a thread.
#[derive(Debug, Default)]
pub struct LogBuffers {
    area: Option<Arc<Mapped>>,
    /// Number of the configuration, by which the master finds its log files.
    generation: u64,
    /// By [`place`].
    buffers: Vec<Option<Buffer>>,
    /// Places of logs without a buffer that have lines.
    gathered: Vec<usize>,
    /// Time of the turn in which the first of these lines was added.
    gathered_at: Option<Instant>,
    /// Buffer for building a line.
    pub scratch: Vec<u8>,
    /// Earliest time at which a buffer is due.
    pub due: Option<Instant>,
}

/// Returns the index of a log's buffer. A file may be configured with and without `buffer=`, so each log has two.
#[inline]
fn place(log: usize, l: &AccessLog) -> usize {
    2 * log + usize::from(l.buffer != 0)
}

#[inline]
fn limit(l: &AccessLog) -> usize {
    if l.buffer == 0 { GATHERED } else { l.buffer }
}

impl LogBuffers {
    /// Creates an empty set. Buffers are made in `area`, or in the thread's own memory without one.
    pub fn new(area: Option<Arc<Mapped>>) -> LogBuffers {
        LogBuffers { area, ..LogBuffers::default() }
    }

    /// Drops the buffers, which must have been flushed. From now on, log numbers are those of configuration
    /// `generation`.
    pub fn forget(&mut self, generation: u64) {
        self.generation = generation;
        self.renew();
    }

    /// Drops the buffers, which must have been flushed, because the files were reopened.
    pub fn renew(&mut self) {
        self.buffers.clear();
        self.gathered.clear();
        self.due = None;
    }

    /// Returns the time since which lines wait for [`flush_gathered`], if there are any.
    #[inline]
    pub fn gathered_at(&self) -> Option<Instant> {
        if self.gathered.is_empty() { None } else { self.gathered_at }
    }

    fn store(&self, log: usize, l: &AccessLog) -> Store {
        let room = limit(l).max(ROOM);
        let area = self.area.as_ref();
        match area.and_then(|area| area.claim(self.generation, log as u64, l.gzip, room)) {
            Some(slot) => Store::Shared(slot),
            None => Store::Own(Vec::with_capacity(limit(l).min(ROOM))),
        }
    }
}

/// Adds a line with its newline to log number `log`. It is written when the buffer is full or due, or at the end of
/// this turn.
#[inline]
pub fn append(thread: &Thread, log: usize, l: &AccessLog, line: &[u8]) {
    let mut all = thread.log_buffers.borrow_mut();
    if let Some(Some(b)) = all.buffers.get_mut(place(log, l))
        && b.limit == limit(l)
        && b.gzip == l.gzip
        // The first line takes the other way, which notes when the buffer is due.
        && b.store.len() > 0
        && b.store.len() + line.len() <= b.limit
        && b.store.append(line)
    {
        return;
    }
    append_to_another(thread, &mut all, log, l, line);
}

/// Adds a line that is the first of its buffer or does not fit.
#[cold]
#[inline(never)]
fn append_to_another(thread: &Thread, all: &mut LogBuffers, log: usize, l: &AccessLog, line: &[u8]) {
    let at = place(log, l);
    let Some(b) = all.prepare(thread, log, l) else { return };
    b.flush = l.flush;
    if b.store.len() > 0 && b.store.len() + line.len() > b.limit {
        flush_buffer(thread, log, b);
    }
    let first = b.store.len() == 0;
    if !b.store.append(line) {
        // The line is longer than its slot: write it directly.
        flush_buffer(thread, log, b);
        write(thread, log, &encode(line, b.gzip), b.regular, |_| {});
        return;
    }
    if b.store.len() > b.limit {
        flush_buffer(thread, log, b);
        return;
    }
    let due = b.flush.filter(|_| b.buffered && first).map(|flush| thread.clock.now() + flush);
    b.flush_at = due.or(b.flush_at);
    let buffered = b.buffered;
    all.due = [all.due, due].into_iter().flatten().min();
    if !buffered {
        all.gather(at, thread.clock.now());
    }
}

impl LogBuffers {
    /// Returns the buffer of a log. Makes a new one if there is none or its settings are others.
    fn prepare(&mut self, thread: &Thread, log: usize, l: &AccessLog) -> Option<&mut Buffer> {
        let at = place(log, l);
        if self.buffers.len() <= at {
            self.buffers.resize_with(at + 1, || None);
        }
        let suits = |b: &Buffer| b.limit == limit(l) && b.gzip == l.gzip;
        if !self.buffers[at].as_ref().is_some_and(suits) {
            if let Some(mut old) = self.buffers[at].take() {
                flush_buffer(thread, log, &mut old);
            }
            let store = self.store(log, l);
            if let (Store::Own(_), Some(_)) = (&store, &self.area) {
                warn_of_full_area(thread);
            }
            self.buffers[at] = Some(Buffer {
                store,
                limit: limit(l),
                gzip: l.gzip,
                buffered: l.buffer != 0,
                flush: None,
                flush_at: None,
                regular: thread.with_log(log, |fd| is_regular(fd)).unwrap_or(false),
            });
        }
        self.buffers[at].as_mut()
    }

    /// Notes that a log without a buffer has a line.
    fn gather(&mut self, at: usize, now: Instant) {
        if self.gathered.is_empty() {
            self.gathered_at = Some(now);
        }
        if !self.gathered.contains(&at) {
            self.gathered.push(at);
        }
    }
}

/// Writes a line at once, without a buffer. For requests of a former configuration, whose log numbers differ.
#[cold]
pub fn write_late(thread: &Thread, former: &ActiveConfig, log: usize, l: &AccessLog, line: &[u8]) {
    let line = encode(line, l.gzip);
    let now = thread.active();
    let same =
        former.config.log_files.get(log).and_then(|p| now.config.log_files.iter().position(|q| p == q));
    // The same path may have another number now, and another descriptor after it was reopened.
    match (same, former.logs.borrow().get(log)) {
        (Some(log), _) => {
            let regular = thread.with_log(log, |fd| is_regular(fd)).unwrap_or(false);
            write(thread, log, &line, regular, |_| {});
        }
        (None, Some(fd)) => count(thread, write_lines(fd, &line, is_regular(fd), |_| {})),
        (None, None) => {}
    }
}

/// Logs that the area has no room, once a process.
fn warn_of_full_area(thread: &Thread) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let size = forebay_sys::log_area::SIZE >> 20;
        let text = format!(
            "the buffers of access logs need more than {size} MB of shared memory: lines in the last ones are lost if \
             the worker process is killed"
        );
        error::log(thread, Level::Warn, &text);
    }
}

fn write(thread: &Thread, log: usize, bytes: &[u8], regular: bool, written: impl FnMut(usize)) {
    if let Some(done) = thread.with_log(log, |fd| write_lines(fd, bytes, regular, written)) {
        count(thread, done);
    }
}

fn count(thread: &Thread, result: Result<(), u64>) {
    if let Err(lost) = result {
        thread.counters.log_lines_lost.add(lost);
    }
}

fn flush_buffer(thread: &Thread, log: usize, b: &mut Buffer) {
    b.flush_at = None;
    if b.store.len() == 0 {
        return;
    }
    // Before the write: if the process is killed during it, the master looks for a part of these lines in the log.
    b.store.begin();
    match b.gzip {
        None => write(thread, log, b.store.bytes(), b.regular, |start| b.store.written(start)),
        // Write a gzip member in one piece, also to a pipe.
        // Progress is not noted, since bytes of the member are not bytes of the lines.
        Some(_) => write(thread, log, &encode(b.store.bytes(), b.gzip), true, |_| {}),
    }
    // After the write: until then the master would write the lines.
    b.store.clear();
}

/// Writes the gathered lines of logs without a buffer. Called at the end of a turn unless the next follows at once, and
/// before a connection is closed.
pub fn flush_gathered(thread: &Thread) {
    let mut all = thread.log_buffers.borrow_mut();
    let all = &mut *all;
    for at in all.gathered.drain(..) {
        if let Some(Some(b)) = all.buffers.get_mut(at) {
            flush_buffer(thread, at / 2, b);
        }
    }
}

/// Writes all buffers, or only those that are due.
pub fn flush(thread: &Thread, everything: bool) {
    let mut all = thread.log_buffers.borrow_mut();
    let now = thread.clock.now();
    if !everything && all.due.is_none_or(|d| d > now) {
        return;
    }
    let mut due = None;
    for (at, b) in all.buffers.iter_mut().enumerate() {
        let Some(b) = b else { continue };
        if everything || b.flush_at.is_some_and(|t| t <= now) {
            flush_buffer(thread, at / 2, b);
        } else if let Some(t) = b.flush_at {
            due = Some(due.map_or(t, |d: Instant| d.min(t)));
        }
    }
    all.due = due;
    if everything {
        all.gathered.clear();
    }
}

#[cfg(test)]
mod tests;
