//! Settings of modules, by levels of the configuration. A module with settings owns a [`SettingsOf`], and needs to name it nowhere else.
//!
//! A level shares all settings that it does not set itself with the level around it, so servers and locations with few directives take
//! little memory. Hot path.

use crate::config::Scope;
use crate::module::levels::{LocationSettings, LocationWritten};
use crate::module::sharing::{Shared, Text};
use foldhash::fast::RandomState;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_sys::any::SharedAny;
use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Directives of one module as a level has them. `settings!` makes such a type of a table.
pub trait Directives: Clone + Debug + Default + Send + Sync + 'static {
    /// Values in effect.
    type Settings: Debug + Send + Sync + 'static;
    /// Names of the directives.
    const DIRECTIVES: &'static [&'static str];
    /// Levels inside inherit the directives that they do not set themselves.
    const INHERITED: bool = true;

    /// Returns the names of the directives.
    fn names() -> Vec<&'static str> {
        Self::DIRECTIVES.to_vec()
    }

    /// Reads one of the directives.
    ///
    /// # Errors
    /// In nginx's words.
    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error>;

    /// Takes what this level does not set from the level around it.
    fn inherit(&mut self, outer: &Self);

    /// Returns the values in effect, with defaults for what no level sets.
    fn resolve(&self) -> Self::Settings;
}

/// Binds directives to fields as [`settings!`](forebay_core::settings) does, for the settings of a module, which are named `SETTINGS`.
#[macro_export]
macro_rules! module_settings {
    ($($table:tt)*) => {
        forebay_core::settings! { $($table)* }

        /// Settings of this module.
        pub static SETTINGS: $crate::module::SettingsOf<Written> = $crate::module::SettingsOf::new();

        $crate::directives!(Written, Settings);
    };
}

/// Implements [`Directives`] for a type that has functions of the same names.
#[macro_export]
macro_rules! directives {
    ($written:ty, $settings:ty) => {
        impl $crate::module::Directives for $written {
            type Settings = $settings;
            const DIRECTIVES: &'static [&'static str] = <$written>::DIRECTIVES;

            fn set(
                &mut self,
                d: &forebay_conf::tree::Directive,
                cx: &mut $crate::config::Scope<'_>,
            ) -> Result<bool, forebay_conf::error::Error> {
                <$written>::set(self, d, cx)
            }

            fn inherit(&mut self, outer: &$written) {
                <$written>::inherit(self, outer);
            }

            fn resolve(&self) -> $settings {
                <$written>::resolve(self)
            }
        }
    };
}

// Types of other crates cannot implement the trait there, because those crates do not know it.
directives!(forebay_core::limit::access::Written, forebay_core::limit::access::Settings);
directives!(forebay_core::upstream::bind::Written, forebay_core::upstream::bind::Settings);
directives!(forebay_core::tls::proxy_ssl::Written, forebay_core::tls::proxy_ssl::Settings);

/// Name of a module's settings in all levels. For a `static`.
pub struct SettingsOf<L> {
    /// Index in the table of a level, plus one; 0 until the modules have been counted.
    index: AtomicUsize,
    kind: PhantomData<fn() -> L>,
}

impl<L: Directives> Default for SettingsOf<L> {
    fn default() -> SettingsOf<L> {
        SettingsOf::new()
    }
}

impl<L: Directives> SettingsOf<L> {
    /// Makes a name.
    pub const fn new() -> SettingsOf<L> {
        SettingsOf { index: AtomicUsize::new(0), kind: PhantomData }
    }

    /// Returns the settings in effect at a level.
    #[inline]
    pub fn of<'s>(&self, level: &'s LocationSettings) -> &'s L::Settings {
        let settings = level.modules.at(self.place_of());
        settings.get().expect("an index belongs to one module, and so to one type")
    }

    /// Returns the directives of a level that is being read.
    pub fn written<'w>(&self, level: &'w LocationWritten) -> &'w L {
        let written: &dyn Any = &*level.modules.0[self.place_of()];
        written.downcast_ref().expect("an index belongs to one module, and so to one type")
    }

    /// Returns a value for settings that are to be in effect in place of others ([`InEffect::with`]).
    pub fn value(&self, settings: L::Settings) -> Value {
        (self.place_of(), SharedAny::new(settings))
    }

    #[inline]
    fn place_of(&self) -> usize {
        // Before the modules have been counted, this is no valid place, and the first use of it fails.
        self.index.load(Relaxed).wrapping_sub(1)
    }
}

/// [`SettingsOf`] any module.
pub trait AnySettings: Sync {
    /// Gives the settings their place in the tables of levels.
    fn place(&self, index: usize);
    /// Names of the directives.
    fn directives(&self) -> Vec<&'static str>;
    /// Levels inside inherit them.
    fn is_inherited(&self) -> bool;
    /// A level without directives.
    fn empty(&self) -> Arc<dyn AnyLevel>;
}

impl<L: Directives> AnySettings for SettingsOf<L> {
    fn place(&self, index: usize) {
        self.index.store(index + 1, Relaxed);
    }

    fn directives(&self) -> Vec<&'static str> {
        L::names()
    }

    fn is_inherited(&self) -> bool {
        L::INHERITED
    }

    fn empty(&self) -> Arc<dyn AnyLevel> {
        Arc::new(L::default())
    }
}

/// Directives of any module at a level.
pub trait AnyLevel: Any + Debug + Send + Sync {
    /// Reads a directive. Returns the level with it, if this one is shared.
    ///
    /// # Errors
    /// In nginx's words.
    fn set_shared(&self, d: &Directive, cx: &mut Scope<'_>) -> Result<Arc<dyn AnyLevel>, Error>;
    /// Reads a directive.
    ///
    /// # Errors
    /// In nginx's words.
    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error>;
    /// Returns these directives together with the directives of the level around it.
    fn with_outer(&self, outer: &dyn AnyLevel) -> Arc<dyn AnyLevel>;
    /// Returns the values in effect.
    fn values(&self) -> SharedAny;
}

impl<L: Directives> AnyLevel for L {
    fn set_shared(&self, d: &Directive, cx: &mut Scope<'_>) -> Result<Arc<dyn AnyLevel>, Error> {
        let mut own = self.clone();
        Directives::set(&mut own, d, cx)?;
        Ok(Arc::new(own))
    }

    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        Directives::set(self, d, cx).map(drop)
    }

    fn with_outer(&self, outer: &dyn AnyLevel) -> Arc<dyn AnyLevel> {
        let (mut own, outer): (L, &dyn Any) = (self.clone(), outer);
        if let Some(outer) = outer.downcast_ref() {
            own.inherit(outer);
        }
        Arc::new(own)
    }

    fn values(&self) -> SharedAny {
        SharedAny::new(self.resolve())
    }
}

/// Values in effect of one module, with the place of its settings.
pub type Value = (usize, SharedAny);

/// The settings of all modules, in the order of their places.
fn all() -> &'static [&'static dyn AnySettings] {
    static ALL: OnceLock<Vec<&'static dyn AnySettings>> = OnceLock::new();
    ALL.get_or_init(|| {
        let all: Vec<_> =
            crate::module::list::all().iter().flat_map(|module| module.settings).copied().collect();
        assert!(all.len() <= PLACES, "at most {PLACES} modules have settings");
        // A name without its place finds nothing, so the places are given before the first level is read.
        all.iter().enumerate().for_each(|(index, settings)| settings.place(index));
        all
    })
}

/// Returns the places of the settings that directives belong to.
fn places() -> &'static HashMap<&'static [u8], usize, RandomState> {
    static PLACES: OnceLock<HashMap<&'static [u8], usize, RandomState>> = OnceLock::new();
    PLACES.get_or_init(|| {
        let names = |(place, settings): (usize, &&'static dyn AnySettings)| {
            settings.directives().into_iter().map(move |name| (name.as_bytes(), place))
        };
        all().iter().enumerate().flat_map(names).collect()
    })
}

/// Names of all directives of modules with settings.
#[cfg(any(test, feature = "testing"))]
pub fn names() -> Vec<&'static str> {
    all().iter().flat_map(|settings| settings.directives()).collect()
}

/// Directives of all modules at one level, by their places.
#[derive(Clone, Debug)]
pub struct Written(Arc<Vec<Arc<dyn AnyLevel>>>);

impl Default for Written {
    fn default() -> Written {
        // Levels without directives share one table, so that each costs a pointer.
        static NOTHING: OnceLock<Written> = OnceLock::new();
        NOTHING.get_or_init(|| Written(Arc::new(all().iter().map(|s| s.empty()).collect()))).clone()
    }
}

impl Written {
    /// Reads a directive. Returns the place of its settings, or `None` if no module has it.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<Option<usize>, Error> {
        let Some(&place) = places().get(d.name.text.as_slice()) else { return Ok(None) };
        let own = &mut Arc::make_mut(&mut self.0)[place];
        match Arc::get_mut(own) {
            Some(own) => own.set(d, cx)?,
            // Other levels share these directives, and must not see the change.
            None => *own = own.set_shared(d, cx)?,
        }
        Ok(Some(place))
    }

    /// Replaces the directives at a place, whose words are `text`, by the equal directives of another level.
    pub fn share(&mut self, place: usize, text: Text, sharing: &mut Sharing) {
        sharing.of(place).share(&mut Arc::make_mut(&mut self.0)[place], text);
    }

    /// Takes what this level does not set from the level around it.
    pub fn inherit(&mut self, outer: &Written, sharing: &mut Sharing) {
        let nothing = Written::default();
        let mut inherited = Vec::with_capacity(self.0.len());
        for (place, (own, outer)) in self.0.iter().zip(outer.0.iter()).enumerate() {
            let is_empty = Arc::ptr_eq(own, &nothing.0[place]);
            // What is not inherited stays as it is, and the directives of the outer level itself need no copy.
            let is_own = !all()[place].is_inherited() || Arc::ptr_eq(own, outer);
            inherited.push(match (is_own, is_empty) {
                (true, _) => own.clone(),
                (false, true) => outer.clone(),
                (false, false) => {
                    let mut own = own.clone();
                    sharing.of(place).inherit(&mut own, outer, |own, outer| own.with_outer(&**outer));
                    own
                }
            });
        }
        // A level without directives of its own shares the whole table of the level around it.
        let is_same = inherited.iter().zip(outer.0.iter()).all(|(own, outer)| Arc::ptr_eq(own, outer));
        self.0 = if is_same { outer.0.clone() } else { Arc::new(inherited) };
    }

    /// Returns the values in effect. `outer` has the level around this one, and the values in effect there.
    pub fn resolve(&self, outer: Option<(&Written, &InEffect)>, sharing: &mut Sharing) -> InEffect {
        // The same directives have the same values.
        if let Some((written, values)) = outer
            && Arc::ptr_eq(&self.0, &written.0)
        {
            return values.clone();
        }
        // What no level sets has its default, and needs no place in the table.
        let nothing = Written::default();
        let set = self.0.iter().enumerate().filter(|(place, own)| !Arc::ptr_eq(own, &nothing.0[*place]));
        let values = set.map(|(place, own)| (place, sharing.of(place).resolve(own, |own| own.values())));
        let values = values.collect();
        sharing.tables.share(values)
    }
}

/// Number of modules with settings that a process can have.
const PLACES: usize = 128;

/// Values in effect of all modules at one level.
#[derive(Clone, Debug)]
pub struct InEffect(Arc<Table>);

/// Values that differ from the defaults.
#[derive(Debug)]
struct Table {
    /// Index of the value of each place, plus one; 0: the default.
    index: [u8; PLACES],
    values: Box<[Value]>,
}

impl InEffect {
    fn new(values: Vec<Value>) -> InEffect {
        let mut index = [0; PLACES];
        for (at, (place, _)) in values.iter().enumerate() {
            // At most 128, since there are no more places.
            index[*place] = (at + 1) as u8;
        }
        InEffect(Arc::new(Table { index, values: values.into() }))
    }

    #[inline]
    fn at(&self, place: usize) -> &SharedAny {
        // A configuration sets few of the modules, so a table has a byte for each place instead of a value.
        match self.0.index[place].checked_sub(1) {
            Some(at) => &self.0.values[usize::from(at)].1,
            None => &defaults()[place],
        }
    }

    /// Returns these values with others in their places.
    pub fn with(&self, changes: &[Value], sharing: &mut Sharing) -> InEffect {
        let is_kept = |(place, _): &&(usize, _)| !changes.iter().any(|(changed, _)| changed == place);
        let mut values: Vec<_> = self.0.values.iter().filter(is_kept).chain(changes).cloned().collect();
        // Tables with equal values have to be in one order, since they are compared by the sequence of their addresses.
        values.sort_by_key(|(place, _)| *place);
        sharing.tables.share(values)
    }
}

/// Returns the values of levels without directives, by their places.
#[inline]
fn defaults() -> &'static [SharedAny] {
    static DEFAULTS: OnceLock<Vec<SharedAny>> = OnceLock::new();
    DEFAULTS.get_or_init(|| all().iter().map(|settings| settings.empty().values()).collect())
}

/// Settings that the levels of a configuration share.
#[derive(Debug, Default)]
pub struct Sharing {
    modules: Vec<Shared<dyn AnyLevel, SharedAny>>,
    tables: Tables,
}

impl Sharing {
    fn of(&mut self, place: usize) -> &mut Shared<dyn AnyLevel, SharedAny> {
        // The default is made before the modules are counted.
        if place >= self.modules.len() {
            self.modules.resize_with(all().len(), Shared::default);
        }
        &mut self.modules[place]
    }
}

/// Tables of values, by the addresses of the values. The tables hold the values, so that no other value can get one of these addresses.
#[derive(Debug, Default)]
struct Tables(HashMap<Vec<usize>, InEffect>);

impl Tables {
    fn share(&mut self, values: Vec<Value>) -> InEffect {
        // Levels share equal values, so the addresses of the values are compared instead of the values.
        let key = values.iter().map(|(_, value)| value.addr()).collect();
        self.0.entry(key).or_insert_with(|| InEffect::new(values)).clone()
    }
}
