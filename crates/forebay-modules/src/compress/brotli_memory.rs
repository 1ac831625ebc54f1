//! Memory of brotli encoders. An encoder asks its allocator for memory, and unlike the encoders of gzip and zstd it cannot be
//! renewed. So the blocks that it gives back are kept for the next encoder of the thread. Hot path.

use super::pool::Demand;
use brotli::enc::cluster::HistogramPair;
use brotli::enc::combined_alloc::BrotliAlloc;
use brotli::enc::command::Command;
use brotli::enc::entropy_encode::HuffmanTree;
use brotli::enc::histogram::{ContextType, HistogramCommand, HistogramDistance, HistogramLiteral};
use brotli::enc::{
    Allocator, PDF, SliceWrapper, SliceWrapperMut, StaticCommand, ZopfliNode, floatX, s16, v8,
};
use forebay_core::idle_memory::Ended;
use std::cell::RefCell;

/// Largest amount of memory that a thread keeps, bytes. One encoder of the highest levels may take more.
const MOST: usize = 32 * 1024 * 1024;

/// Levels whose tables of positions have a count for each bucket, and are read up to the count only.
const COUNTED: std::ops::RangeInclusive<u8> = 5..=9;

/// Allocator of an encoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Level of the encoder.
    pub(super) level: u8,
}

impl BrotliAlloc for Memory {}

impl<T: Cell> Allocator<T> for Memory {
    type AllocatedMemory = Cells<T>;

    fn alloc_cell(&mut self, len: usize) -> Cells<T> {
        if len == 0 {
            return Cells::default();
        }
        let kept = SHELVES.with_borrow_mut(|shelves| {
            shelves.demand.take(bytes::<T>(len));
            let shelf = T::shelf(shelves);
            // Only a block of exactly this length serves, since the slice of a block shows the encoder all of
            // it.
            let at = shelf.iter().rposition(|block| block.len() == len)?;
            let block = shelf.remove(at);
            shelves.kept -= bytes::<T>(len);
            Some(block)
        });
        Cells(match kept {
            Some(block) if T::is_written_first(len, self.level) => block,
            Some(mut block) => {
                // The encoder expects empty tables, and the content of one client must not reach the encoder
                // of another.
                block.fill(T::default());
                block
            }
            None => vec![T::default(); len].into(),
        })
    }

    fn free_cell(&mut self, cells: Cells<T>) {
        drop(cells);
    }
}

/// Block of memory. Dropping it gives it back.
pub(super) struct Cells<T: Cell>(Box<[T]>);

impl<T: Cell> Default for Cells<T> {
    fn default() -> Cells<T> {
        Cells(Box::default())
    }
}

impl<T: Cell> Drop for Cells<T> {
    fn drop(&mut self) {
        let block = std::mem::take(&mut self.0);
        if !block.is_empty() {
            // A thread that is ending has no shelves any more.
            let _ = SHELVES.try_with(|shelves| shelves.borrow_mut().keep(block));
        }
    }
}

impl<T: Cell> SliceWrapper<T> for Cells<T> {
    fn slice(&self) -> &[T] {
        &self.0
    }
}

impl<T: Cell> SliceWrapperMut<T> for Cells<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// Type of which encoders ask for memory.
pub(super) trait Cell: Clone + Default + 'static {
    /// Returns the blocks of this type, the longest unused first.
    fn shelf(shelves: &mut Shelves) -> &mut Vec<Box<[Self]>>;

    /// Returns `true` if an encoder of this level writes each element of a block of `len` elements before it reads it. The block then
    /// keeps what is in it, since clearing the largest blocks takes 7 % of the time for a short content. Blocks of content are
    /// always cleared.
    fn is_written_first(_len: usize, _level: u8) -> bool {
        false
    }
}

/// Shortest table of positions: 2^14 buckets of 2^4 positions. Other blocks of this type are far shorter.
const POSITIONS: usize = 1 << 18;

fn is_table_of_positions(len: usize, level: u8) -> bool {
    len >= POSITIONS && COUNTED.contains(&level)
}

const fn bytes<T>(len: usize) -> usize {
    len.saturating_mul(size_of::<T>())
}

impl Shelves {
    fn keep<T: Cell>(&mut self, block: Box<[T]>) {
        let size = bytes::<T>(block.len());
        self.demand.give(size);
        let room = self.demand.room().min(MOST);
        let mut kept = self.kept;
        let shelf = T::shelf(self);
        // Blocks of sizes that no encoder asks for any more make room for the sizes that are in use.
        while kept + size > room && !shelf.is_empty() {
            kept -= bytes::<T>(shelf.remove(0).len());
        }
        if kept + size <= room {
            shelf.push(block);
            kept += size;
        }
        self.kept = kept;
    }
}

/// Drops memory that was not needed since the last call.
pub(super) fn end_unneeded() -> Ended {
    SHELVES.with_borrow_mut(|shelves| {
        shelves.demand.turn();
        let too_much = shelves.kept > shelves.demand.room();
        if too_much {
            *shelves = Shelves { demand: std::mem::take(&mut shelves.demand), ..Shelves::default() };
        }
        Ended { some: too_much, left: shelves.kept > 0 }
    })
}

thread_local! {
    static SHELVES: RefCell<Shelves> = RefCell::default();
}

macro_rules! shelves {
    ($($name:ident: $type:ty $(=> $written_first:expr)?,)*) => {
        /// Blocks that a thread keeps, by the type of what is in them.
        #[derive(Default)]
        pub(super) struct Shelves {
            demand: Demand,
            /// Size of all blocks, bytes.
            kept: usize,
            $($name: Vec<Box<[$type]>>,)*
        }

        $(impl Cell for $type {
            fn shelf(shelves: &mut Shelves) -> &mut Vec<Box<[$type]>> {
                &mut shelves.$name
            }
            $(fn is_written_first(len: usize, level: u8) -> bool {
                $written_first(len, level)
            })?
        })*
    };
}

shelves! {
    bytes: u8,
    shorts: u16,
    signed: i32,
    words: u32 => is_table_of_positions,
    longs: u64,
    floats: floatX,
    eight_floats: v8,
    sixteen_shorts: s16,
    commands: Command => |_, _| true,
    densities: PDF,
    static_commands: StaticCommand,
    literals: HistogramLiteral,
    histogram_commands: HistogramCommand,
    distances: HistogramDistance,
    pairs: HistogramPair,
    contexts: ContextType,
    trees: HuffmanTree,
    nodes: ZopfliNode,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> usize {
        SHELVES.with_borrow(|s| s.kept)
    }

    #[test]
    fn blocks_serve_again_empty() {
        let mut m = Memory { level: 5 };
        let mut a: Cells<u32> = m.alloc_cell(1000);
        a.slice_mut().fill(7);
        let place = a.slice().as_ptr();
        let other: Cells<u8> = m.alloc_cell(10);
        drop(a);
        assert_eq!(kept(), 4000);
        let again: Cells<u32> = m.alloc_cell(1000);
        assert_eq!((again.slice().as_ptr(), again.slice()), (place, [0; 1000].as_slice()));
        assert_eq!(kept(), 0);
        drop((again, other));
        assert_eq!(kept(), 4010);
        // Another size takes the place of the one that is used no more.
        let smaller: Cells<u32> = m.alloc_cell(900);
        drop(smaller);
        assert_eq!(kept(), 3600 + 10);
        end_unneeded();
        assert_eq!(kept(), 3610, "it was needed since the last call");
        assert!(end_unneeded().some);
        assert_eq!(kept(), 0);
    }

    #[test]
    fn tables_of_positions_stay_as_they_are_where_their_counts_are_cleared() {
        let kept_after = |len: usize, level: u8| {
            let mut m = Memory { level };
            let mut table: Cells<u32> = m.alloc_cell(len);
            table.slice_mut().fill(7);
            drop(table);
            let again: Cells<u32> = m.alloc_cell(len);
            again.slice().iter().all(|position| *position == 7)
        };
        for level in 0..=11 {
            assert_eq!(kept_after(POSITIONS, level), (5..=9).contains(&level), "{level}");
            assert!(!kept_after(POSITIONS - 1, level), "{level}");
        }
        let mut m = Memory { level: 5 };
        let mut text: Cells<u8> = m.alloc_cell(POSITIONS);
        text.slice_mut().fill(b'x');
        drop(text);
        let again: Cells<u8> = m.alloc_cell(POSITIONS);
        assert!(again.slice().iter().all(|b| *b == 0), "content of another client");
    }
}
