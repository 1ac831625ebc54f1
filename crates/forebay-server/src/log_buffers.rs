//! Lines of access logs on their way into the files: gathered for a turn of the loop or some busy ones, or in a buffer for longer
//! (nginx: access_log, buffer= and flush=). Hot path.
//!
//! The lines lie in memory that the master has too ([`forebay_sys::log_area`]). When the process is killed, the master
//! writes what is left, so that no line is lost that was complete. While a write is under way its slot says so: where
//! that write was cut off, the master goes on behind the last byte that reached a regular file
//! ([`forebay_core::log::write::resume`]). A line may then stand there twice; none is torn, none is lost. The exception is
//! a line for which the area has no room, or which is longer than its slot.

use crate::access_log::AccessLog;
use crate::error_log;
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_core::log::write::{encode, is_regular, write_lines};
use forebay_sys::log_area::{Mapped, Slot};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long lines of a log without a buffer may wait while one turn follows another.
pub const GATHER: Duration = Duration::from_millis(1);

/// Lines of a log without a buffer are written when so many bytes have gathered, if the turn is not over before.
const GATHERED: usize = 16 * 1024;

/// Least room for a log. More than a line is ever long; what is not used takes no memory.
const ROOM: usize = 64 * 1024;

/// Where lines wait.
#[derive(Debug)]
enum Store {
    Shared(Slot),
    /// The area has no room. A killed process takes these along.
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
    /// Bytes at which it is written.
    limit: usize,
    gzip: Option<u32>,
    /// Whether lines wait longer than a turn.
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
    /// Number of the configuration; the master knows its logs by it.
    generation: u64,
    /// By [`place`].
    buffers: Vec<Option<Buffer>>,
    /// Places of logs without a buffer that have lines.
    gathered: Vec<usize>,
    /// The turn that the first of them is of.
    gathered_at: Option<Instant>,
    /// A line that is being made.
    pub(crate) scratch: Vec<u8>,
    /// Earliest time at which a buffer is due.
    pub due: Option<Instant>,
}

/// Logs are told apart by their number and by whether they have a buffer, since a file may be named with and without one.
#[inline]
fn place(log: usize, l: &AccessLog) -> usize {
    2 * log + usize::from(l.buffer != 0)
}

#[inline]
fn limit(l: &AccessLog) -> usize {
    if l.buffer == 0 { GATHERED } else { l.buffer }
}

impl LogBuffers {
    /// None yet. `area`: where they are made; `None`: in the thread's own memory.
    pub fn new(area: Option<Arc<Mapped>>) -> LogBuffers {
        LogBuffers { area, ..LogBuffers::default() }
    }

    /// Forgets the buffers, which have been flushed: from now on log files have the numbers of configuration `generation`.
    pub fn forget(&mut self, generation: u64) {
        self.generation = generation;
        self.renew();
    }

    /// Forgets the buffers, which have been flushed: the files are others.
    pub fn renew(&mut self) {
        self.buffers.clear();
        self.gathered.clear();
        self.due = None;
    }

    /// Since when [`flush_gathered`] has anything to do; `None`: it has not.
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

/// Adds a line, its newline included, to log number `log`. It leaves when the buffer is full or due, or at the end
/// of this turn.
#[inline]
pub fn append(thread: &Thread, log: usize, l: &AccessLog, line: &[u8]) {
    let mut all = thread.log_buffers.borrow_mut();
    if let Some(Some(b)) = all.buffers.get_mut(place(log, l))
        && b.limit == limit(l)
        && b.gzip == l.gzip
        && b.store.len() > 0
        && b.store.len() + line.len() <= b.limit
        && b.store.append(line)
    {
        return;
    }
    append_to_another(thread, &mut all, log, l, line);
}

/// The first line of a buffer, or one that does not fit.
#[cold]
#[inline(never)]
fn append_to_another(thread: &Thread, all: &mut LogBuffers, log: usize, l: &AccessLog, line: &[u8]) {
    let at = place(log, l);
    if all.buffers.len() <= at {
        all.buffers.resize_with(at + 1, || None);
    }
    let suits = |b: &Buffer| b.limit == limit(l) && b.gzip == l.gzip;
    if !all.buffers[at].as_ref().is_some_and(suits) {
        if let Some(mut old) = all.buffers[at].take() {
            flush_buffer(thread, log, &mut old);
        }
        let store = all.store(log, l);
        if let (Store::Own(_), Some(_)) = (&store, &all.area) {
            say_full(thread);
        }
        all.buffers[at] = Some(Buffer {
            store,
            limit: limit(l),
            gzip: l.gzip,
            buffered: l.buffer != 0,
            flush: None,
            flush_at: None,
            regular: thread.with_log(log, |fd| is_regular(fd)).unwrap_or(false),
        });
    }
    let Some(b) = &mut all.buffers[at] else { return };
    b.flush = l.flush;
    if b.store.len() > 0 && b.store.len() + line.len() > b.limit {
        flush_buffer(thread, log, b);
    }
    let first = b.store.len() == 0;
    if !b.store.append(line) {
        // Longer than any slot.
        flush_buffer(thread, log, b);
        write(thread, log, &encode(line, b.gzip), b.regular, |_| {});
        return;
    }
    if b.store.len() > b.limit {
        flush_buffer(thread, log, b);
        return;
    }
    if !b.buffered {
        if all.gathered.is_empty() {
            all.gathered_at = Some(thread.clock.now());
        }
        if !all.gathered.contains(&at) {
            all.gathered.push(at);
        }
    } else if let (true, Some(flush)) = (first, b.flush) {
        let due = thread.clock.now() + flush;
        b.flush_at = Some(due);
        all.due = Some(all.due.map_or(due, |d| d.min(due)));
    }
}

/// Writes a line at once, past the buffers: that of a request which began under a configuration whose log files
/// had other numbers.
#[cold]
pub fn write_late(thread: &Thread, req: &crate::request::Request, log: usize, l: &AccessLog, line: &[u8]) {
    let line = encode(line, l.gzip);
    let now = thread.config();
    let same =
        req.conf.config.log_files.get(log).and_then(|p| now.config.log_files.iter().position(|q| p == q));
    match (same, req.conf.logs.borrow().get(log)) {
        (Some(log), _) => {
            let regular = thread.with_log(log, |fd| is_regular(fd)).unwrap_or(false);
            write(thread, log, &line, regular, |_| {});
        }
        (None, Some(fd)) => count(thread, write_lines(fd, &line, is_regular(fd), |_| {})),
        (None, None) => {}
    }
}

/// There is no room in the area; said once a process.
fn say_full(thread: &Thread) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let size = forebay_sys::log_area::SIZE >> 20;
        let text = format!(
            "the buffers of access logs need more than {size} MB of shared memory: lines in the last ones are lost if \
             the worker process is killed"
        );
        error_log::log(thread, Level::Warn, &text);
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
    b.store.begin();
    match b.gzip {
        None => write(thread, log, b.store.bytes(), b.regular, |start| b.store.written(start)),
        // A member is one piece, whoever reads.
        Some(_) => write(thread, log, &encode(b.store.bytes(), b.gzip), true, |_| {}),
    }
    b.store.clear();
}

/// Writes what has gathered for logs without a buffer; at the end of a turn, if the next does not follow at once, and before
/// a connection is closed.
pub fn flush_gathered(thread: &Thread) {
    let mut all = thread.log_buffers.borrow_mut();
    let all = &mut *all;
    for at in all.gathered.drain(..) {
        if let Some(Some(b)) = all.buffers.get_mut(at) {
            flush_buffer(thread, at / 2, b);
        }
    }
}

/// Writes out buffers: all lines, or those of buffers that are due.
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
