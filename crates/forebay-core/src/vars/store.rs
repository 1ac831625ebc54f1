//! Values of variables, kept for the life of a request. Hot path.

use super::VarId;

/// Part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u32,
    end: u32,
}

impl Range {
    fn of(self, arena: &[u8]) -> &[u8] {
        arena.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Stored value of a variable.
#[derive(Clone, Copy, Debug, Default)]
enum Slot {
    /// Not evaluated or set yet.
    #[default]
    Empty,
    /// Evaluated: no value.
    Missing,
    /// A part of the arena.
    Value(Range),
}

/// Value as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'s> {
    /// Not evaluated or set yet.
    Empty,
    /// Evaluated: no value.
    Missing,
    /// Its value.
    Value(&'s [u8]),
}

/// Deepest nesting of variables.
const MAX_DEPTH: u8 = 100;

/// Values of variables that a request has set or evaluated.
#[derive(Debug, Default)]
pub struct VarStore {
    /// By number, as far as a variable has been stored.
    slots: Vec<Slot>,
    /// Bytes of the values.
    arena: Vec<u8>,
    /// Depth of the evaluation in progress, to find cycles.
    depth: u8,
}

impl Clone for VarStore {
    fn clone(&self) -> VarStore {
        let VarStore { slots, arena, depth } = self;
        VarStore { slots: slots.clone(), arena: arena.clone(), depth: *depth }
    }

    /// Copies into the memory that is there.
    fn clone_from(&mut self, other: &VarStore) {
        let VarStore { slots, arena, depth } = other;
        self.slots.clone_from(slots);
        self.arena.clone_from(arena);
        self.depth = *depth;
    }
}

impl VarStore {
    /// Gives spare memory back.
    pub fn shrink(&mut self) {
        self.slots.shrink_to_fit();
        self.arena.shrink_to_fit();
    }

    /// Appends a stored value. Returns `false` if there is none.
    pub fn push(&self, id: VarId, out: &mut Vec<u8>) -> bool {
        let Stored::Value(value) = self.get(id) else { return false };
        out.extend_from_slice(value);
        true
    }

    /// Forgets all values, for another request.
    #[inline]
    pub fn clear(&mut self) {
        self.slots.clear();
        self.arena.clear();
        self.depth = 0;
    }

    /// Begins the evaluation of a variable that depends on others. Returns `false` if they are nested too deeply, which a
    /// cycle is.
    pub fn descend(&mut self) -> bool {
        let deeper = self.depth < MAX_DEPTH;
        self.depth += u8::from(deeper);
        deeper
    }

    /// Ends such an evaluation.
    pub fn ascend(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Stores a value for the rest of the request; `None`: the variable has no value.
    pub fn store(&mut self, id: VarId, value: Option<&[u8]>) {
        let i = id.0 as usize;
        if self.slots.len() <= i {
            self.slots.resize(i + 1, Slot::Empty);
        }
        self.slots[i] = match value {
            None => Slot::Missing,
            Some(v) => Slot::Value(push(&mut self.arena, v)),
        };
    }

    /// Returns the value of a variable.
    #[inline]
    pub fn get(&self, id: VarId) -> Stored<'_> {
        match self.slots.get(id.0 as usize) {
            Some(Slot::Value(s)) => Stored::Value(s.of(&self.arena)),
            Some(Slot::Missing) => Stored::Missing,
            Some(Slot::Empty) | None => Stored::Empty,
        }
    }

    /// Forgets all values, so that they are evaluated again.
    pub fn forget(&mut self) {
        self.slots.fill(Slot::Empty);
    }

    /// Stores the values in `new` that differ from those in `old`, of which `new` was a copy.
    pub fn take_changes(&mut self, old: &VarStore, new: &VarStore) {
        for i in 0..new.slots.len() {
            let id = VarId(i as u16);
            match (new.slots.get(i), old.slots.get(i)) {
                (Some(Slot::Value(s)), Some(Slot::Value(before))) if s == before => {}
                (Some(Slot::Value(s)), _) => self.store(id, Some(s.of(&new.arena))),
                (Some(Slot::Missing), Some(Slot::Missing)) => {}
                (Some(Slot::Missing), _) => self.store(id, None),
                (Some(Slot::Empty) | None, _) => {}
            }
        }
    }

    /// Frees the bytes of replaced values if all of them take more than `limit`.
    pub fn compact(&mut self, limit: usize) {
        if self.arena.len() <= limit {
            return;
        }
        let old = std::mem::take(&mut self.arena);
        for slot in &mut self.slots {
            if let Slot::Value(s) = slot {
                *s = push(&mut self.arena, s.of(&old));
            }
        }
    }
}

fn push(arena: &mut Vec<u8>, value: &[u8]) -> Range {
    let start = arena.len() as u32;
    arena.extend_from_slice(value);
    Range { start, end: arena.len() as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_without_a_place_has_not_been_stored() {
        let mut store = VarStore::default();
        store.store(VarId(3), Some(b"value"));
        store.store(VarId(1), None);
        let stored = [0, 1, 3, 4].map(|n| store.get(VarId(n)));
        assert_eq!(stored, [Stored::Empty, Stored::Missing, Stored::Value(b"value"), Stored::Empty]);
        store.clear();
        store.store(VarId(2), Some(b"next"));
        let stored = [1, 2, 3].map(|n| store.get(VarId(n)));
        assert_eq!(stored, [Stored::Empty, Stored::Value(b"next"), Stored::Empty]);
    }
}
