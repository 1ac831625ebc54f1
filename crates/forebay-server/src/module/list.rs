//! The list of all modules.

use super::{Hook, HttpDirective, LocationDirective, Module, Phase};
use crate::config::Scope;
use crate::config::http::LocationBuild;
use crate::variables::Row;
use foldhash::fast::RandomState;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::collections::HashMap;
use std::sync::OnceLock;

/// A list of modules. The order is the order of their hooks in a phase and of their header filters.
pub type List = &'static [&'static Module];

/// The modules that are in use.
static ALL: OnceLock<Vec<&'static Module>> = OnceLock::new();
/// Modules that come after the modules of the front end.
static FURTHER: OnceLock<List> = OnceLock::new();

/// Returns all modules.
///
/// # Panics
/// Before the front end has read a configuration.
#[inline]
pub fn all() -> List {
    ALL.get().expect("a front end names its modules before it reads a configuration")
}

/// Has the process use these modules, and the modules that [`install`] has added. Later calls are ignored, since a process has one list.
pub fn begin(modules: List) {
    ALL.get_or_init(|| modules.iter().chain(FURTHER.get().copied().unwrap_or_default()).copied().collect());
}

/// Adds modules after the modules of the front end, before the first configuration is read. Their directives need rows in the grammar
/// ([`forebay_conf::grammar::extend`]).
///
/// # Errors
/// The modules are in use, or have been installed.
pub fn install(further: List) -> Result<(), &'static str> {
    match ALL.get() {
        None => FURTHER.set(further).map_err(|_| "further modules have been installed"),
        Some(_) => Err("the modules are in use"),
    }
}

/// Reads a directive of the http level that defines something by name. Returns `Ok(false)` if no module has it.
///
/// # Errors
/// In nginx's words.
pub fn http_directive(d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
    static READERS: OnceLock<HashMap<&'static [u8], HttpDirective, RandomState>> = OnceLock::new();
    let named = || all().iter().flat_map(|m| m.http_directives).map(|(name, read)| (name.as_bytes(), *read));
    // Large configurations have very many directives, so the modules are not searched for each.
    match READERS.get_or_init(|| named().collect()).get(d.name.text.as_slice()) {
        Some(read) => read(d, cx).map(|()| true),
        None => Ok(false),
    }
}

/// Reads a directive of a level that is not inherited. Returns `Ok(false)` if no module has it.
///
/// # Errors
/// In nginx's words.
pub fn location_directive(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<bool, Error> {
    static READERS: OnceLock<HashMap<&'static [u8], LocationDirective, RandomState>> = OnceLock::new();
    let named =
        || all().iter().flat_map(|m| m.location_directives).map(|(name, read)| (name.as_bytes(), *read));
    match READERS.get_or_init(|| named().collect()).get(d.name.text.as_slice()) {
        Some(read) => read(d, l, cx).map(|()| true),
        None => Ok(false),
    }
}

/// Returns the directives of the module that has a hook.
pub fn directives_of(phase: Phase, hook: Hook) -> Vec<&'static str> {
    let has = |m: &&&Module| m.hooks.iter().any(|h| h.phase == phase && std::ptr::fn_addr_eq(h.hook, hook));
    let Some(module) = all().iter().find(has) else { return Vec::new() };
    let inherited = module.settings.iter().flat_map(|s| s.directives());
    inherited.chain(module.location_directives.iter().map(|(name, _)| *name)).collect()
}

/// Rows of all built-in variables.
pub fn variables() -> impl Iterator<Item = &'static Row> {
    all().iter().flat_map(|module| module.variables).copied().flatten()
}
