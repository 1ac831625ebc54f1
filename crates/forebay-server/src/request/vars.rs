//! Values of variables and captures of a request. Hot path.

use super::Request;
use crate::variables::{Source, VarId};
use forebay_conf::error::Level;
use forebay_http::field::Slice;

/// Error of an evaluation; the request is answered with 500. The text is for the error log, and empty if the error has been
/// logged already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VarError(pub String);

impl VarError {
    /// Error that has been logged already.
    pub const LOGGED: VarError = VarError(String::new());
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
    Value(Slice),
}

/// Groups of the last regular expression that matched, for `$1` to `$9`.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    /// Text that was matched.
    pub text: Vec<u8>,
    /// Groups as offsets into `text`; (1, 0) = not part of the match.
    pub groups: Vec<(u32, u32)>,
}

impl Captures {
    /// Appends the text of a group; nothing if it took no part in the match.
    pub fn push(&self, n: u8, out: &mut Vec<u8>) {
        if let Some((a, b)) = self.groups.get(n as usize)
            && a <= b
        {
            out.extend_from_slice(self.text.get(*a as usize..*b as usize).unwrap_or_default());
        }
    }
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
#[derive(Clone, Debug, Default)]
pub struct VarStore {
    slots: Vec<Slot>,
    /// Bytes of the values.
    arena: Vec<u8>,
    /// Depth of the evaluation in progress, to find cycles.
    depth: u8,
}

impl VarStore {
    /// Forgets all values and makes room for `count` variables.
    #[inline]
    pub fn reset(&mut self, count: usize) {
        if self.slots.len() != count {
            self.slots.clear();
            self.slots.resize(count, Slot::Empty);
        } else {
            self.slots.fill(Slot::Empty);
        }
        self.arena.clear();
        self.depth = 0;
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.arena.clear();
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

    /// The value of a variable.
    #[inline]
    pub fn get(&self, id: VarId) -> Stored<'_> {
        match self.slots.get(id.0 as usize) {
            Some(Slot::Value(s)) => Stored::Value(s.of(&self.arena)),
            Some(Slot::Missing) => Stored::Missing,
            Some(Slot::Empty) | None => Stored::Empty,
        }
    }

    /// Forgets all values, so that they are evaluated again.
    #[cfg(test)]
    pub fn forget(&mut self) {
        self.slots.fill(Slot::Empty);
    }

    /// Stores the values in `new` that differ from those in `old`, of which `new` was a copy.
    pub fn take_changes(&mut self, old: &VarStore, new: &VarStore) {
        for i in 0..new.slots.len() {
            let id = VarId(i as u16);
            match (new.slots.get(i), old.slots.get(i)) {
                (Some(Slot::Value(s)), Some(Slot::Value(before)))
                    if (s.start, s.end) == (before.start, before.end) => {}
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

fn push(arena: &mut Vec<u8>, value: &[u8]) -> Slice {
    let start = arena.len() as u32;
    arena.extend_from_slice(value);
    Slice { start, end: arena.len() as u32 }
}

impl Request {
    /// Appends the value of a variable. `Ok(false)`: it has none.
    ///
    /// # Errors
    /// When the evaluation runs in a circle.
    pub fn var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        match self.vars.get(id) {
            Stored::Value(v) => {
                out.extend_from_slice(v);
                return Ok(true);
            }
            Stored::Missing => return Ok(false),
            Stored::Empty => {}
        }
        let http = self.http();
        let Some(var) = http.vars.get(id.0 as usize) else { return Ok(false) };
        match &var.source {
            Source::Get(f) => f(self, out),
            Source::Prefix(f, rest) => f(self, rest, out),
            Source::Stored if var.by_set => {
                if http.location(self).settings.rewrite.uninitialized_variable_warn {
                    let name = String::from_utf8_lossy(&var.name);
                    self.log(Level::Warn, &format!("using uninitialized \"{name}\" variable"));
                }
                self.store(id, Some(b""));
                Ok(true)
            }
            Source::Stored | Source::Absent | Source::Unknown => Ok(false),
            Source::Computed(c) => {
                if self.vars.depth >= MAX_DEPTH {
                    return Err(VarError(format!(
                        "cycle while evaluating variable \"{}\"",
                        String::from_utf8_lossy(&var.name)
                    )));
                }
                self.vars.depth += 1;
                let start = out.len();
                let found = c.compute(self, out);
                self.vars.depth -= 1;
                let found = found?;
                if !c.volatile() {
                    let value = if found { Some(&out[start..]) } else { None };
                    self.vars.store(id, value);
                }
                Ok(found)
            }
        }
    }

    /// Value of a variable as a vector of its own; `None` if it has none. For paths that are not hot.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn var_value(&mut self, id: VarId) -> Result<Option<Vec<u8>>, VarError> {
        let mut out = Vec::new();
        Ok(self.var(id, &mut out)?.then_some(out))
    }

    /// Stores a variable's value for the rest of the request; `None` = it has no value.
    pub fn store(&mut self, id: VarId, value: Option<&[u8]>) {
        self.vars.store(id, value);
    }

    /// Value of a variable by its name in lower case, whether or not the configuration mentions it. `None`: it is not
    /// known or has no value.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn var_named(&mut self, name: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
        let http = self.http();
        if let Some(at) = http.vars.iter().position(|v| *v.name == *name) {
            return self.var_value(VarId(at as u16));
        }
        let mut out = Vec::new();
        let found = match crate::variables::builtin(name).0 {
            Source::Get(f) => f(self, &mut out)?,
            Source::Prefix(f, rest) => f(self, &rest, &mut out)?,
            _ => false,
        };
        Ok(found.then_some(out))
    }
}
