//! Zones of counters for monitoring (nginx Plus: status_zone). Each thread writes its own cells; readers add them up. A front
//! end defines kinds of zones and the places of their cells. Hot path.

pub mod sessions;

use forebay_sys::sync::lock;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

/// Kind of the things that a zone counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneKind {
    /// Name of the kind, unique.
    pub name: &'static str,
    /// Number of cells that each thread has for a zone.
    pub cells: usize,
}

/// Cells that one thread writes.
type Cells = Arc<[AtomicU64]>;

/// Adds to a cell of this thread. No other thread writes it, so no atomic read-modify-write is needed.
pub fn add(cells: &[AtomicU64], at: usize, n: u64) {
    if let Some(c) = cells.get(at) {
        c.store(c.load(Relaxed).wrapping_add(n), Relaxed);
    }
}

/// Subtracts 1 from a cell of this thread.
pub fn subtract_one(cells: &[AtomicU64], at: usize) {
    // Wraps: another thread may have added the 1, and the sum over all threads is right.
    add(cells, at, u64::MAX);
}

/// A zone; lives as long as a configuration names it.
#[derive(Debug)]
pub struct StatusZone {
    /// Kind.
    pub kind: ZoneKind,
    /// Name.
    pub name: Vec<u8>,
    /// Unique in the process.
    pub id: usize,
    shards: Mutex<Vec<(ThreadId, Cells)>>,
}

static ZONES: Mutex<Vec<Weak<StatusZone>>> = Mutex::new(Vec::new());

/// Returns the zone of this name. Its counters survive a reload.
pub fn zone(kind: ZoneKind, name: &[u8]) -> Arc<StatusZone> {
    let mut all = lock(&ZONES);
    let known = all.iter().filter_map(Weak::upgrade).find(|z| z.kind == kind && z.name == name);
    known.unwrap_or_else(|| {
        let z = Arc::new(StatusZone { kind, name: name.to_vec(), id: all.len(), shards: Mutex::default() });
        all.push(Arc::downgrade(&z));
        z
    })
}

/// Returns all zones of a kind, in the order in which the configuration named them.
pub fn zones(kind: ZoneKind) -> Vec<Arc<StatusZone>> {
    lock(&ZONES).iter().filter_map(Weak::upgrade).filter(|z| z.kind == kind).collect()
}

thread_local! {
    /// This thread's cells, by the numbers of the zones.
    static LOCAL: RefCell<Vec<Option<Cells>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with this thread's cells of a zone. At the end of a thread there may be none any more.
pub fn with_cells(id: usize, f: impl FnOnce(&[AtomicU64])) {
    let _ = LOCAL.try_with(|all| {
        let mut all = all.borrow_mut();
        if let Some(Some(cells)) = all.get(id) {
            return f(cells);
        }
        let Some(zone) = lock(&ZONES).get(id).and_then(Weak::upgrade) else { return };
        let cells = zone.cells();
        f(&cells);
        if all.len() <= id {
            all.resize(id + 1, None);
        }
        all[id] = Some(cells);
    });
}

impl StatusZone {
    /// Returns this thread's cells.
    fn cells(&self) -> Cells {
        let me = std::thread::current().id();
        let mut shards = lock(&self.shards);
        if let Some((_, c)) = shards.iter().find(|(id, _)| *id == me) {
            return c.clone();
        }
        let cells: Cells = (0..self.kind.cells).map(|_| AtomicU64::new(0)).collect();
        shards.push((me, cells.clone()));
        cells
    }

    /// Returns a function that adds up a cell over all threads.
    pub fn sum(&self) -> impl Fn(usize) -> u64 + use<> {
        let shards: Vec<Cells> = lock(&self.shards).iter().map(|(_, c)| c.clone()).collect();
        move |at| {
            let cells = shards.iter().filter_map(|s| s.get(at));
            cells.fold(0, |sum, c| sum.wrapping_add(c.load(Relaxed)))
        }
    }
}
