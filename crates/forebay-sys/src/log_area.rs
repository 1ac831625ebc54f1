//! Lines of logs in memory that outlives the process which wrote them.
//!
//! The master makes an [`Area`] for each worker process: a sealed memfd, sparse, so that only what is used takes
//! memory. The worker maps it ([`Mapped`]) and its threads claim slots, one for each log that they gather lines
//! for ([`Slot`]). When the worker has ended, in whatever way, the master reads the remaining lines ([`Area::left`]).
//!
//! This is safe after `kill -9`, since a line's bytes are stored before the slot's length, which is a release
//! store. The master reads after waitpid(2), so it sees each store that precedes another one that it sees. A line
//! that was being copied is behind the length and does not count.
//!
//! The worker may be hostile: the master only reads with pread(2), never through a mapping, the size of the file
//! is sealed, and every number is checked. At most as many bytes can be left as the area has.

use crate::sync::lock;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Size of an area, bytes. It bounds the buffers of a worker process together.
pub const SIZE: usize = 128 << 20;

/// Slots of an area.
const ENTRIES: u32 = 4096;
/// Bytes before the data of the slots: the table of entries.
const TABLE: usize = ENTRIES as usize * size_of::<Entry>();
/// Capacities are multiples of this, so that no two slots share a page.
const PAGE: usize = 4096;

/// Seals from the start: the size stays, so that no access through the mapping can fail.
const SIZED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Entry of the table for a slot. Only the thread that claimed the slot writes it. Two entries never share a pair
/// of cache lines.
#[repr(C, align(128))]
struct Entry {
    /// Number of the configuration that `log` is a number of; 0: the slot is free.
    generation: AtomicU64,
    log: AtomicU64,
    /// Level; 0: not compressed.
    gzip: AtomicU64,
    /// Offset of the data in the area.
    offset: AtomicU64,
    capacity: AtomicU64,
    /// Bytes at the start that are in the log already.
    start: AtomicU64,
    /// Bytes that count.
    length: AtomicU64,
    /// Not 0 while a write to the log may be under way.
    writing: AtomicU64,
}

/// Bytes that a process left in a slot when it ended, from the start to its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Generation that was given to [`Mapped::claim`].
    pub generation: u64,
    /// Number of the log that was given to [`Mapped::claim`].
    pub log: u64,
    /// Level of compression that was given to [`Mapped::claim`].
    pub gzip: Option<u32>,
    /// A write of `bytes` to the log had begun, so that some of them may be there.
    pub writing: bool,
    /// The lines that are not known to be in the log. Never empty.
    pub bytes: Vec<u8>,
}

/// An area, in the process that reads the remaining lines.
#[derive(Debug)]
pub struct Area {
    fd: OwnedFd,
    size: usize,
}

impl Area {
    /// Creates a clean area of [`SIZE`].
    ///
    /// # Errors
    /// Errors of memfd_create(2) and ftruncate(2); `EFBIG` if no file of this process may be that long.
    pub fn create() -> io::Result<Area> {
        Area::with_size(SIZE)
    }

    /// Creates a clean area of about `size` bytes, the table of slots not counted.
    ///
    /// # Errors
    /// Errors of [`Area::create`].
    pub fn with_size(size: usize) -> io::Result<Area> {
        let size = size.next_multiple_of(PAGE) + TABLE;
        // Growing a file beyond this limit raises a signal that ends the process.
        let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if most.is_some_and(|most| most < size as u64) {
            return Err(Errno::FBIG.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let make = |flags| rustix::fs::memfd_create("logs", flags);
        // Kernels before 6.3 do not know the first.
        let fd = make(flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| make(flags))?;
        rustix::fs::ftruncate(&fd, size as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SIZED)?;
        Ok(Area { fd, size })
    }

    /// Returns the descriptor to be given to the writing process, for [`Mapped::new`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads the remaining lines of the slots, one after the other. Returns the number of inconsistent slots, which it skips.
    /// Only a hostile or broken writer leaves such slots.
    ///
    /// # Errors
    /// Errors of pread(2).
    pub fn left(&self, mut each: impl FnMut(Left)) -> io::Result<usize> {
        let file = std::fs::File::from(self.fd.try_clone()?);
        let mut table = vec![0; TABLE];
        file.read_exact_at(&mut table, 0)?;
        let (mut broken, mut budget) = (0, self.size);
        for entry in table.chunks_exact(size_of::<Entry>()) {
            let number = |at: usize| {
                let bytes = entry.get(at..at + 8).and_then(|b| b.try_into().ok());
                bytes.map_or(0, u64::from_ne_bytes)
            };
            let generation = number(offset_of!(Entry, generation));
            if generation == 0 {
                continue;
            }
            let size = |at: usize| usize::try_from(number(at)).unwrap_or(usize::MAX);
            let (offset, capacity) = (size(offset_of!(Entry, offset)), size(offset_of!(Entry, capacity)));
            let (start, length) = (size(offset_of!(Entry, start)), size(offset_of!(Entry, length)));
            let gzip = number(offset_of!(Entry, gzip));
            let inside = offset >= TABLE && offset.checked_add(capacity).is_some_and(|end| end <= self.size);
            if !inside || length > capacity || gzip > 9 || length > budget {
                broken += 1;
                continue;
            }
            // All is in the log when the length has been set to 0, the start not yet.
            let count = length.saturating_sub(start);
            if count == 0 {
                continue;
            }
            budget -= length;
            let mut bytes = vec![0; count];
            file.read_exact_at(&mut bytes, (offset + start) as u64)?;
            each(Left {
                generation,
                log: number(offset_of!(Entry, log)),
                gzip: u32::try_from(gzip).ok().filter(|level| *level > 0),
                writing: number(offset_of!(Entry, writing)) != 0,
                bytes,
            });
        }
        Ok(broken)
    }
}

/// Free parts of the area.
#[derive(Debug)]
struct Free {
    /// Entries that were given back.
    entries: Vec<u32>,
    /// The first of those that were never used.
    unused: u32,
    /// Offset and length of each free piece, ascending; no two touch.
    space: Vec<(usize, usize)>,
}

impl Free {
    fn take(&mut self, capacity: usize) -> Option<(u32, usize)> {
        let at = self.space.iter().position(|(_, length)| *length >= capacity)?;
        let entry = match self.entries.pop() {
            Some(entry) => entry,
            None if self.unused < ENTRIES => {
                self.unused += 1;
                self.unused - 1
            }
            None => return None,
        };
        let (offset, length) = &mut self.space[at];
        let taken = *offset;
        *offset += capacity;
        *length -= capacity;
        if *length == 0 {
            self.space.remove(at);
        }
        Some((entry, taken))
    }

    fn give(&mut self, entry: u32, offset: usize, capacity: usize) {
        self.entries.push(entry);
        let at = self.space.partition_point(|(start, _)| *start < offset);
        self.space.insert(at, (offset, capacity));
        // The piece behind first, since joining with the one before changes the index. Below 0 the range is reversed
        // and `get` finds nothing.
        for first in [at, at.wrapping_sub(1)] {
            if let Some([(start, length), (next, more)]) = self.space.get(first..first.wrapping_add(2))
                && start + length == *next
            {
                let joined = (*start, length + more);
                self.space.splice(first..first + 2, [joined]);
            }
        }
    }
}

/// An area, as the process has it whose threads write lines.
#[derive(Debug)]
pub struct Mapped {
    base: NonNull<u8>,
    size: usize,
    free: Mutex<Free>,
}

// SAFETY: the mapping belongs to the process, not to a thread. Bytes of it are only written through a `Slot`, which
// has its part alone, and entries are atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above; `free` is behind a lock.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps an area, which works once.
    ///
    /// # Errors
    /// Errors of mmap(2); `InvalidData` when the descriptor is no area, `EPERM` when it has been mapped before.
    pub fn new(fd: OwnedFd) -> io::Result<Arc<Mapped>> {
        let size = usize::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SIZED));
        if size <= TABLE || !sealed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is there.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, &fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let free = Free { entries: Vec::new(), unused: 0, space: vec![(TABLE, size / PAGE * PAGE - TABLE)] };
        let mapped = Mapped { base, size, free: Mutex::new(free) };
        // Sealing succeeds once, so that one process writes to the area and none after it.
        let last = SealFlags::SEAL;
        let add = |seals| rustix::fs::fcntl_add_seals(&fd, seals);
        add(SealFlags::FUTURE_WRITE | last)
            .or_else(|e| if e == Errno::INVAL { add(last) } else { Err(e) })?;
        Ok(Arc::new(mapped))
    }

    /// Takes a slot of at least `capacity` bytes for lines of log number `log` of configuration `generation`, which
    /// is not 0, to be compressed with level `gzip`. `None`: there is no room.
    pub fn claim(
        self: &Arc<Self>,
        generation: u64,
        log: u64,
        gzip: Option<u32>,
        capacity: usize,
    ) -> Option<Slot> {
        let capacity = capacity.max(1).checked_next_multiple_of(PAGE)?;
        let (index, offset) = self.free().take(capacity)?;
        // SAFETY: `offset` and `capacity` are those of a free piece, which lies inside the mapping.
        let data = unsafe { self.base.add(offset) };
        let slot = Slot { area: self.clone(), index, offset, data, capacity, length: 0 };
        let entry = slot.entry();
        for (field, value) in [
            (&entry.log, log),
            (&entry.gzip, u64::from(gzip.unwrap_or(0))),
            (&entry.offset, offset as u64),
            (&entry.capacity, capacity as u64),
            (&entry.start, 0),
            (&entry.length, 0),
            (&entry.writing, 0),
            // Last: from here on the master looks at it.
            (&entry.generation, generation),
        ] {
            field.store(value, Ordering::Release);
        }
        Some(slot)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        lock(&self.free)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping that `new` made, and each slot keeps `self` alive.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// A part of an area that one thread appends lines to. Dropping it gives the part back, unless there are lines in it:
/// then it stays for the master.
#[derive(Debug)]
pub struct Slot {
    area: Arc<Mapped>,
    index: u32,
    offset: usize,
    /// `offset` as an address.
    data: NonNull<u8>,
    capacity: usize,
    /// A copy of the length in the entry, which no other thread writes.
    length: usize,
}

impl Slot {
    #[inline]
    fn entry(&self) -> &Entry {
        // SAFETY: the index is below ENTRIES, so the entry lies inside the mapping, which lives as long as `area`;
        // the mapping begins at a page, so it is aligned; zeros or anything else are a valid entry of atomics.
        unsafe { self.area.base.cast::<Entry>().add(self.index as usize).as_ref() }
    }

    /// Adds whole lines, which count from then on. `false`: there is no room.
    #[inline]
    pub fn append(&mut self, lines: &[u8]) -> bool {
        if lines.len() > self.capacity - self.length {
            return false;
        }
        // SAFETY: the bytes from `length` to `capacity` lie inside the mapping and are this slot's alone; there is
        // room for `lines`, which cannot be part of this slot, since it is borrowed mutably.
        unsafe {
            let end = self.data.as_ptr().add(self.length);
            std::ptr::copy_nonoverlapping(lines.as_ptr(), end, lines.len());
        }
        self.length += lines.len();
        self.entry().length.store(self.length as u64, Ordering::Release);
        true
    }

    /// Returns its lines.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `length` bytes have been written by `append`; only it changes them, and it borrows mutably. The
        // other process that has the area only reads it.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.length) }
    }

    /// Returns the number of bytes in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns `true` if it has no lines.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Notes that a write of its lines to the log begins.
    pub fn begin(&self) {
        self.entry().writing.store(1, Ordering::Release);
    }

    /// Notes that the first `start` bytes are in the log.
    pub fn written(&self, start: usize) {
        self.entry().start.store(start as u64, Ordering::Release);
    }

    /// Forgets the lines: they are in the log.
    pub fn clear(&mut self) {
        self.length = 0;
        let entry = self.entry();
        // In this order: without a length there is nothing left, whatever the others say.
        entry.length.store(0, Ordering::Release);
        entry.start.store(0, Ordering::Release);
        entry.writing.store(0, Ordering::Release);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_empty() {
            self.entry().generation.store(0, Ordering::Release);
            self.area.free().give(self.index, self.offset, self.capacity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(size: usize) -> (Area, Arc<Mapped>) {
        let area = Area::with_size(size).expect("memfd");
        let mapped = Mapped::new(area.fd().try_clone_to_owned().expect("descriptor")).expect("mapped");
        (area, mapped)
    }

    fn left(area: &Area) -> (Vec<Left>, usize) {
        let mut all = Vec::new();
        let broken = area.left(|left| all.push(left)).expect("read");
        (all, broken)
    }

    fn texts(area: &Area) -> Vec<String> {
        left(area).0.into_iter().map(|l| String::from_utf8_lossy(&l.bytes).into_owned()).collect()
    }

    #[test]
    fn appended_lines_stay() {
        let (area, mapped) = both(1 << 20);
        assert_eq!(left(&area), (vec![], 0));
        let mut a = mapped.claim(7, 3, Some(6), 100).expect("room");
        let mut b = mapped.claim(8, 0, None, 100).expect("room");
        assert!(a.append(b"one\n") && a.append(b"two\n") && b.append(b"three\n"));
        assert_eq!((a.bytes(), a.len()), (b"one\ntwo\n".as_slice(), 8));
        let expected =
            Left { generation: 7, log: 3, gzip: Some(6), writing: false, bytes: b"one\ntwo\n".into() };
        assert_eq!(left(&area).0[0], expected);
        a.begin();
        a.written(4);
        assert_eq!(left(&area).0[0], Left { writing: true, bytes: b"two\n".into(), ..expected });
        a.clear();
        assert_eq!(texts(&area), ["three\n"]);
        assert!(a.append(b"again\n"));
        assert_eq!(texts(&area), ["again\n", "three\n"]);
    }

    #[test]
    fn a_dropped_slot_keeps_its_lines_for_the_master_only() {
        let (area, mapped) = both(64 << 10);
        let mut full = mapped.claim(1, 1, None, 32 << 10).expect("room");
        assert!(full.append(b"kept\n"));
        drop(full);
        assert!(mapped.claim(1, 1, None, 64 << 10).is_none());
        let empty = mapped.claim(1, 2, None, 32 << 10).expect("room");
        assert!(mapped.claim(1, 3, None, 1).is_none());
        drop(empty);
        assert!(mapped.claim(1, 3, None, 1).is_some());
        drop(mapped);
        assert_eq!(texts(&area), ["kept\n"]);
    }

    #[test]
    fn a_full_area_gives_no_slot_and_freed_space_joins() {
        let (_area, mapped) = both(64 << 10);
        let mut slots: Vec<_> = std::iter::from_fn(|| mapped.claim(1, 0, None, 1)).collect();
        assert_eq!(slots.len(), 16);
        assert!(mapped.claim(1, 0, None, usize::MAX).is_none());
        // Every other one, then the rest, from both ends.
        for i in [0, 2, 4, 6] {
            slots.swap_remove(i);
        }
        while let Some(slot) = slots.pop() {
            drop(slot);
            if !slots.is_empty() {
                drop(slots.remove(0));
            }
        }
        let mut whole = mapped.claim(1, 0, None, 64 << 10).expect("one piece again");
        assert!(whole.append(&[b'x'; 64 << 10]) && !whole.append(b"x"));
    }

    #[test]
    fn no_more_slots_than_entries() {
        let (_area, mapped) = both((ENTRIES as usize + 1) * PAGE);
        let slots: Vec<_> = std::iter::from_fn(|| mapped.claim(1, 0, None, 1)).collect();
        assert_eq!(slots.len(), ENTRIES as usize);
    }

    #[test]
    fn hostile_entries_are_left_out() {
        let (area, mapped) = both(64 << 10);
        let mut slot = mapped.claim(1, 0, None, 16 << 10).expect("room");
        assert!(slot.append(b"line\n"));
        let entry = slot.entry();
        let size = (64 << 10) + TABLE as u64;
        let good = |field: &AtomicU64| field.load(Ordering::Relaxed);
        for (field, value, broken, lines) in [
            (&entry.length, 16 << 10, 0, 1),
            (&entry.length, (16 << 10) + 1, 1, 0),
            (&entry.length, u64::MAX, 1, 0),
            (&entry.start, 5, 0, 0),
            (&entry.start, u64::MAX, 0, 0),
            (&entry.capacity, u64::MAX, 1, 0),
            (&entry.offset, 0, 1, 0),
            (&entry.offset, size - 5, 1, 0),
            (&entry.offset, u64::MAX - 5, 1, 0),
            (&entry.gzip, 10, 1, 0),
            (&entry.gzip, u64::MAX, 1, 0),
            (&entry.log, u64::MAX, 0, 1),
            (&entry.generation, u64::MAX, 0, 1),
        ] {
            let before = good(field);
            field.store(value, Ordering::Relaxed);
            let (found, wrong) = left(&area);
            assert_eq!((found.len(), wrong), (lines, broken), "{value}");
            field.store(before, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_slots_together_leave_no_more_than_the_area_holds() {
        let (area, mapped) = both(64 << 10);
        let slots: Vec<_> = std::iter::from_fn(|| mapped.claim(1, 0, None, 4096)).collect();
        for slot in &slots {
            let entry = slot.entry();
            entry.offset.store(TABLE as u64, Ordering::Relaxed);
            entry.capacity.store(64 << 10, Ordering::Relaxed);
            entry.length.store(64 << 10, Ordering::Relaxed);
        }
        let (found, broken) = left(&area);
        let total: usize = found.iter().map(|l| l.bytes.len()).sum();
        assert!(total <= (64 << 10) + TABLE && broken > 0, "{total} bytes, {broken} broken");
    }

    #[test]
    fn only_a_sealed_area_is_mapped() {
        let fd =
            rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&fd, SIZE as u64).expect("sparse");
        assert!(Mapped::new(fd).is_err());
        let (area, _) = both(4096);
        assert_eq!(rustix::fs::ftruncate(area.fd(), 0), Err(Errno::PERM));
        let again = Mapped::new(area.fd().try_clone_to_owned().expect("descriptor"));
        assert_eq!(again.map_err(|e| e.raw_os_error()).err(), Some(Some(Errno::PERM.raw_os_error())));
    }

    #[test]
    fn an_area_is_sparse() {
        let (area, mapped) = both(SIZE);
        let mut slot = mapped.claim(1, 0, None, 1 << 20).expect("room");
        assert!(slot.append(b"line\n"));
        let stat = rustix::fs::fstat(area.fd()).expect("stat");
        assert!(stat.st_blocks * 512 <= 64 << 10, "{} blocks", stat.st_blocks);
    }
}
