//! Names of variables and the sources of their values.

use super::compute::{Geo, Map, Split};
use super::extract::{self, Extract};
use super::{Evaluate, NumMap, TimeFormat, VarError, VarId};
use crate::keyval;
use std::collections::HashMap;
use std::sync::Arc;

/// Function that appends a value. It returns `Ok(false)` if the variable has no value for this request.
pub type Getter<E> = fn(&mut E, &mut Vec<u8>) -> Result<bool, VarError>;
/// As [`Getter`], for families such as `$arg_NAME`; takes the part after the prefix.
pub type PrefixGetter<E> = fn(&mut E, &[u8], &mut Vec<u8>) -> Result<bool, VarError>;

/// A built-in variable: a row in its module's file.
#[derive(Clone, Copy)]
pub struct Row<E> {
    /// Name; ends in `*` for a family.
    pub name: &'static str,
    /// Getter.
    pub get: RowSource<E>,
    /// `set`, `map` and the like may give it another value.
    pub settable: bool,
}

/// Source of a variable's value.
pub enum Source<E> {
    /// Referred to, not (yet) defined.
    Unknown,
    /// Only what `set` or a named capture stored.
    Stored,
    /// A built-in function.
    Get(Getter<E>),
    /// A built-in family; the text after the prefix.
    Prefix(PrefixGetter<E>, Arc<[u8]>),
    /// A table (`map`, `geo`, `split_clients`) or the like; its result is kept for the request.
    Computed(Computed),
    /// Known from nginx, belonging to a feature that is not there: never has a value.
    Absent,
}

impl<E> Clone for Source<E> {
    fn clone(&self) -> Self {
        match self {
            Source::Unknown => Source::Unknown,
            Source::Stored => Source::Stored,
            Source::Get(f) => Source::Get(*f),
            Source::Prefix(f, rest) => Source::Prefix(*f, rest.clone()),
            Source::Computed(c) => Source::Computed(c.clone()),
            Source::Absent => Source::Absent,
        }
    }
}

impl<E> std::fmt::Debug for Source<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Unknown => "Unknown",
            Source::Stored => "Stored",
            Source::Get(_) => "Get",
            Source::Prefix(..) => "Prefix",
            Source::Computed(_) => "Computed",
            Source::Absent => "Absent",
        })
    }
}

/// As [`Source`], for tables of constants.
#[derive(Clone, Copy)]
pub enum RowSource<E> {
    /// A built-in function.
    Get(Getter<E>),
    /// A family.
    Prefix(PrefixGetter<E>),
}

/// Table that computes a variable from others.
#[derive(Clone, Debug)]
pub enum Computed {
    /// `map`.
    Map(Arc<Map>),
    /// `geo`.
    Geo(Arc<Geo>),
    /// `split_clients`.
    Split(Arc<Split>),
    /// `num_map`.
    Number(Arc<NumMap>),
    /// `time_format`.
    Time(Arc<TimeFormat>),
    /// `keyval`.
    Keyval(Arc<keyval::Lookup>),
    /// One of a group that is read from one text.
    Extract(Arc<dyn Extract>),
}

impl Computed {
    /// Appends the value. Stores the values of a group instead.
    ///
    /// # Errors
    /// If a source variable cannot be evaluated.
    pub fn compute<E: Evaluate>(&self, req: &mut E, out: &mut Vec<u8>) -> Result<bool, VarError> {
        match self {
            Computed::Map(m) => m.compute(req, out),
            Computed::Geo(g) => g.compute(req, out),
            Computed::Split(s) => s.compute(req, out),
            Computed::Number(n) => n.compute(req, out),
            Computed::Time(t) => t.compute(req, out),
            Computed::Keyval(k) => k.compute(req, out),
            Computed::Extract(group) => extract::store(&**group, req).map(|()| false),
        }
    }

    /// Returns the variables from which the value is computed.
    pub fn variables(&self) -> Box<dyn Iterator<Item = VarId> + '_> {
        match self {
            Computed::Map(m) => Box::new(m.variables()),
            Computed::Geo(g) => Box::new(g.source.variable().into_iter()),
            Computed::Split(s) => Box::new(s.source.variables()),
            Computed::Number(n) => Box::new(n.variables()),
            Computed::Time(_) => Box::new(std::iter::empty()),
            Computed::Keyval(k) => Box::new(k.variables()),
            Computed::Extract(group) => Box::new(std::iter::once(group.source())),
        }
    }

    /// Returns `true` if the value may change within a request (nginx: volatile).
    pub fn volatile(&self) -> bool {
        match self {
            Computed::Map(m) => m.volatile,
            Computed::Geo(g) => g.volatile,
            Computed::Number(n) => n.volatile,
            // As all variables of the time.
            Computed::Time(_) => true,
            Computed::Split(_) | Computed::Keyval(_) | Computed::Extract(_) => false,
        }
    }
}

/// One variable of a configuration.
#[derive(Debug)]
pub struct Var<E> {
    /// Name, lower case, without `$`.
    pub name: Box<[u8]>,
    /// Source.
    pub source: Source<E>,
    /// It may be defined again.
    pub settable: bool,
    /// `set` defines it: using it before that is worth a warning.
    pub by_set: bool,
}

impl<E> Var<E> {
    /// Makes a variable that keeps its number and is not in use.
    fn unused(name: Box<[u8]>) -> Var<E> {
        Var { name, source: Source::Absent, settable: false, by_set: false }
    }
}

impl<E: Evaluate> Var<E> {
    /// Appends the value of the variable, whose number is `id` and which has no stored value. Returns `Ok(false)` if it has none.
    ///
    /// # Errors
    /// If the evaluation runs in a circle.
    #[inline]
    pub fn evaluate(&self, e: &mut E, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let start = out.len();
        let found = match &self.source {
            Source::Get(f) => f(e, out)?,
            Source::Prefix(f, rest) => f(e, rest, out)?,
            Source::Stored if self.by_set => {
                e.uninitialized(&self.name);
                e.store(id, Some(b""));
                true
            }
            Source::Stored | Source::Absent | Source::Unknown => false,
            Source::Computed(c) => return self.compute(c, e, id, out),
        };
        if !found {
            // A getter may have begun before it knew.
            out.truncate(start);
        }
        Ok(found)
    }

    fn compute(&self, c: &Computed, e: &mut E, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        if !e.values().descend() {
            let name = String::from_utf8_lossy(&self.name);
            return Err(VarError(format!("cycle while evaluating variable \"{name}\"")));
        }
        let start = out.len();
        let found = c.compute(e, out);
        e.values().ascend();
        let found = found?;
        if matches!(c, Computed::Extract(_)) {
            // All of the group are stored by now.
            return Ok(e.values().push(id, out));
        }
        if !c.volatile() {
            let value = if found { out.get(start..) } else { None };
            e.store(id, value);
        }
        Ok(found)
    }
}

/// Finds a built-in variable by its name: its source, and whether it may be defined again.
pub type Builtin<E> = fn(&[u8]) -> (Source<E>, bool);

/// Names of variables, for values that are compiled.
pub trait Names {
    /// Returns the number of a variable, which is in use from now on.
    fn reference(&mut self, name: &[u8]) -> VarId;

    /// Defines a variable that is set (`set`, named captures, `auth_request_set`).
    ///
    /// # Errors
    /// `the duplicate "x" variable` for a built-in one that may not change.
    fn define_stored(&mut self, name: &[u8]) -> Result<VarId, String>;
}

/// Variables of a configuration under construction. Numbers may have been given for the configuration before: see
/// [`Registry::after`].
#[derive(Debug)]
pub struct Registry<E> {
    builtin: Builtin<E>,
    vars: Vec<Var<E>>,
    /// Variables that this configuration uses, by number.
    used: Vec<bool>,
    index: HashMap<Box<[u8]>, VarId>,
    /// Uses since [`Registry::begin_uses`].
    uses: Option<Uses>,
}

/// Variables that a part of a configuration uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses(Vec<(VarId, Use)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Referenced,
    Defined,
    Set,
}

impl Uses {
    /// Adds those of another part.
    pub fn append(&mut self, mut other: Uses) {
        self.0.append(&mut other.0);
    }

    /// Leaves out what occurs twice.
    pub fn sorted(mut self) -> Uses {
        self.0.sort_by_key(|(id, how)| (id.0, *how));
        self.0.dedup();
        self.0.shrink_to_fit();
        self
    }
}

impl<E> Names for Registry<E> {
    fn reference(&mut self, name: &[u8]) -> VarId {
        let name: Box<[u8]> = name.to_ascii_lowercase().into();
        let id = self.number(name);
        self.note(id, Use::Referenced);
        id
    }

    fn define_stored(&mut self, name: &[u8]) -> Result<VarId, String> {
        let id = self.reference(name);
        self.define(id)
            .map_err(|_| format!("the duplicate \"{}\" variable", String::from_utf8_lossy(name)))?;
        Ok(id)
    }
}

impl<E> Registry<E> {
    /// Creates a registry without variables.
    pub fn new(builtin: Builtin<E>) -> Registry<E> {
        Registry { builtin, vars: Vec::new(), used: Vec::new(), index: HashMap::new(), uses: None }
    }

    /// Creates a registry in which the variables of a former configuration have their numbers, and are not in use yet.
    /// `names` are theirs, in the order of the numbers.
    pub fn after(builtin: Builtin<E>, names: &[Box<[u8]>]) -> Registry<E> {
        let mut registry = Registry::new(builtin);
        for (id, name) in (0..).map(VarId).zip(names) {
            registry.index.insert(name.clone(), id);
            registry.vars.push(Var::unused(name.clone()));
            registry.used.push(false);
        }
        registry
    }

    /// Returns the names of all variables that have a number, in the order of the numbers, and how many of them are in use.
    pub fn names(&self) -> (Vec<Box<[u8]>>, usize) {
        let used = self.used.iter().filter(|used| **used).count();
        (self.vars.iter().map(|v| v.name.clone()).collect(), used)
    }

    /// Returns the number of a name, which is in use from now on.
    fn number(&mut self, name: Box<[u8]>) -> VarId {
        if let Some(id) = self.index.get(&name).copied() {
            self.use_number(id);
            return id;
        }
        let (source, settable) = (self.builtin)(&name);
        let id = VarId(self.vars.len().min(usize::from(u16::MAX)) as u16);
        self.index.insert(name.clone(), id);
        self.vars.push(Var { name, source, settable, by_set: false });
        self.used.push(true);
        id
    }

    /// Begins to use a variable that has a number.
    fn use_number(&mut self, id: VarId) {
        let at = usize::from(id.0);
        if let (Some(used), Some(var)) = (self.used.get_mut(at), self.vars.get_mut(at))
            && !std::mem::replace(used, true)
        {
            (var.source, var.settable) = (self.builtin)(&var.name);
        }
    }

    /// Defines a variable that is in use.
    fn define(&mut self, id: VarId) -> Result<(), String> {
        let Some(v) = self.vars.get_mut(usize::from(id.0)) else { return Ok(()) };
        if !v.settable {
            return Err(format!("the duplicate \"{}\" variable", String::from_utf8_lossy(&v.name)));
        }
        if matches!(v.source, Source::Unknown | Source::Absent) {
            v.source = Source::Stored;
        }
        self.note(id, Use::Defined);
        Ok(())
    }

    /// Begins to note uses.
    pub fn begin_uses(&mut self) {
        self.uses = Some(Uses::default());
    }

    /// Returns the uses that were noted, and notes no more.
    pub fn end_uses(&mut self) -> Uses {
        self.uses.take().unwrap_or_default()
    }

    /// Uses variables again as a part of a former configuration did: see [`Registry::after`].
    ///
    /// # Errors
    /// If one of them may not be defined any more.
    pub fn use_again(&mut self, uses: &Uses) -> Result<(), String> {
        for (id, how) in &uses.0 {
            self.use_number(*id);
            match how {
                Use::Referenced => {}
                Use::Defined => self.define(*id)?,
                Use::Set => self.note_set(*id),
            }
        }
        Ok(())
    }

    fn note(&mut self, id: VarId, how: Use) {
        if let Some(uses) = &mut self.uses {
            uses.0.push((id, how));
        }
    }

    /// Returns the name of a variable, if it is a built-in one that cannot be redefined.
    pub fn name(&self, id: VarId) -> Option<&[u8]> {
        self.vars.get(id.0 as usize).filter(|v| !v.settable).map(|v| &*v.name)
    }

    /// Returns the name of a variable, if it belongs to a built-in family, though `set` may give it a value.
    pub fn member(&self, id: VarId) -> Option<&[u8]> {
        self.vars.get(usize::from(id.0)).filter(|v| matches!(v.source, Source::Prefix(..))).map(|v| &*v.name)
    }

    /// Notes that `set` defines a variable.
    pub fn note_set(&mut self, id: VarId) {
        if let Some(v) = self.vars.get_mut(usize::from(id.0)) {
            v.by_set = true;
        }
        self.note(id, Use::Set);
    }

    /// Defines a computed variable (`map`, `geo`, ...). A later definition replaces an earlier one.
    ///
    /// # Errors
    /// As [`Names::define_stored`].
    pub fn define_computed(&mut self, name: &[u8], c: Computed) -> Result<VarId, String> {
        let id = self.define_stored(name)?;
        self.vars[id.0 as usize].source = Source::Computed(c);
        Ok(id)
    }

    /// Returns `true` if a variable is in use whose name begins with `prefix`.
    pub fn uses_prefix(&self, prefix: &[u8]) -> bool {
        self.vars.iter().zip(&self.used).any(|(v, used)| *used && v.name.starts_with(prefix))
    }

    /// Ends the construction. The second part is an error, `unknown "x" variable`, for each variable that nothing defines.
    pub fn finish(self) -> (Vec<Var<E>>, Vec<String>) {
        // Those that are not in use are absent.
        let unknown = self.vars.iter().filter(|v| matches!(v.source, Source::Unknown));
        let errors =
            unknown.map(|v| format!("unknown \"{}\" variable", String::from_utf8_lossy(&v.name))).collect();
        (self.vars, errors)
    }
}
