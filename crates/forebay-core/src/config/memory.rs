//! Configurations that are read after another: what has not changed is taken over.
//!
//! The unit is a file that an `include` in the http block names. A front end keeps what it made of a unit, with the effects that reading it
//! had besides ([`super::scope::Effects`]), and makes it again of nothing if the files that it was read from hold the same bytes. All else,
//! the *frame*, is read each time. What a unit means depends on the frame, so units are taken over only if no file of the frame has
//! changed. If anything is in doubt, everything is read: the result is that of [`super::load`] in every case.
//!
//! Master and worker each have a [`Memory`] of their last configuration. The master keeps names, addresses and facts, and no servers.
//! The worker gets only the files that differ from its last configuration, once it has applied that one (`Files::to_bytes_after`).

use super::names::NameTable;
use super::{Config, Environment, Loaded, build_parsed};
use crate::front::FrontEnd;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::{Files, Reads};
use forebay_conf::parse::{Parsed, parse_after};
use forebay_conf::tree::Directive;
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory of the HTTP front end, of a type that only it knows.
pub type Kept = Arc<dyn Any + Send + Sync>;

/// Files that each unit was made of, by the path of the unit.
pub type UnitReads = HashMap<Arc<[u8]>, Arc<Reads>, foldhash::fast::RandomState>;

/// State for reading a configuration in which something may be taken over.
pub struct Again {
    /// Memory of the configuration before. `None`: nothing can be taken over.
    pub former: Option<Kept>,
    /// Files that each new unit was read from. `None`: it is no unit.
    pub units: HashMap<Vec<u8>, Option<Reads>>,
    /// Paths of units about which there are messages.
    pub unclean: HashSet<Vec<u8>>,
    /// Memory for the next configuration.
    pub next: Option<Kept>,
    /// Files that each unit in it was made of.
    pub kept: UnitReads,
    /// Something was taken over that does not fit: all must be read.
    pub misfit: bool,
    /// The configuration is to serve requests, and not only checked.
    pub serves: bool,
}

/// Parts of the last configuration that the next one can take over.
#[derive(Default)]
pub struct Memory {
    former: Option<Former>,
    /// Of a configuration that has been read and not yet accepted.
    read: Option<Former>,
    serves: bool,
    /// Configurations since memory was given back to the system.
    since_trim: u32,
}

/// Number of configurations after which memory is given back to the system, and of units for which that is worth the time.
const TRIM_AFTER: u32 = 2;
const MANY: usize = 1000;

struct Former {
    environment: Environment,
    files: Option<Arc<Files>>,
    /// Files of the frame.
    frame: Reads,
    units: UnitReads,
    kept: Option<Kept>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = self.former.as_ref().map(|former| former.units.len());
        f.debug_struct("Memory").field("units", &units).finish_non_exhaustive()
    }
}

impl Memory {
    /// Creates an empty memory of configurations that serve requests.
    pub fn serving() -> Memory {
        Memory { serves: true, ..Memory::default() }
    }

    /// Creates an empty memory of configurations that another process serves: they are checked, and [`Config::fronts`] are left out.
    pub fn checking() -> Memory {
        Memory::default()
    }

    /// Returns the files of the last accepted configuration.
    pub fn known(&self) -> Option<Arc<Files>> {
        self.former.as_ref().and_then(|former| former.files.clone())
    }

    /// Returns files that know those of the last accepted configuration (see [`Files::after`]).
    pub fn files(&self, files: Files) -> Files {
        files.after(self.known())
    }

    /// Returns the number of units that the last accepted configuration has left.
    pub fn units(&self) -> usize {
        self.former.as_ref().map_or(0, |former| former.units.len())
    }

    /// Reads, checks and builds a configuration. The result is that of [`super::load`]. `files` are from [`Memory::files`].
    ///
    /// # Errors
    /// The error that nginx would have reported first.
    pub fn load(
        &mut self,
        environment: &Environment,
        files: &mut Files,
        fronts: &[&dyn FrontEnd],
    ) -> Result<(Config, Vec<Error>), Error> {
        let usable = self.former.as_ref().is_some_and(|former| former.is_current(environment, files));
        if usable && let Some((config, errors)) = self.attempt(true, environment, files, fronts) {
            return Ok((config?, errors));
        }
        let read = self.attempt(false, environment, files, fronts);
        match read {
            Some((config, errors)) => Ok((config?, errors)),
            None => Err(super::plain("the configuration could not be built")),
        }
    }

    /// Gives memory back after some configurations. Reading everything has left pages that are mostly free: what each configuration needs
    /// comes to lie in all of them, one after the other. Where requests are served, threads may have to wait meanwhile.
    fn trim_sometimes(&mut self) {
        self.since_trim += 1;
        let often = if self.serves { TRIM_AFTER } else { 1 };
        if self.since_trim >= often && self.units() > MANY {
            forebay_sys::heap::trim();
            self.since_trim = 0;
        }
    }

    /// Takes the configuration that was read last as the one before the next. `files`: those that it was read from, which are
    /// returned.
    pub fn accept(&mut self, mut files: Files) -> Arc<Files> {
        files.forget_former();
        let files = Arc::new(files);
        if let Some(read) = self.read.take() {
            self.former = Some(Former { files: Some(files.clone()), ..read });
            self.trim_sometimes();
        }
        files
    }

    /// Reads a configuration. `after`: units are taken over. `None`: all must be read.
    fn attempt(
        &mut self,
        after: bool,
        environment: &Environment,
        files: &mut Files,
        fronts: &[&dyn FrontEnd],
    ) -> Option<(Result<Config, Error>, Vec<Error>)> {
        let former = self.former.as_ref().filter(|_| after);
        files.exchange_reads(Reads::default());
        let directory =
            environment.conf_path.parent().map_or_else(|| environment.prefix.clone(), PathBuf::from);
        let mut is_known = |path: &Path, files: &mut Files| {
            former
                .and_then(|f| f.units.get(path.as_os_str().as_bytes()))
                .is_some_and(|reads| reads.are_current(files))
        };
        let mut parsed =
            parse_after(&environment.conf_path, &environment.globals, &directory, files, &mut is_known);
        let serves = self.serves || is_alone(&parsed);
        let again = Again {
            former: former.and_then(|f| f.kept.clone()),
            units: std::mem::take(&mut parsed.units),
            unclean: HashSet::new(),
            next: None,
            kept: UnitReads::default(),
            misfit: false,
            serves,
        };
        let Loaded { config, errors, again } = build_parsed(environment, files, fronts, parsed, Some(again));
        let refused = config.is_none() || errors.iter().any(|e| e.level == Level::Emerg);
        let misfit = again.as_ref().is_none_or(|again| again.misfit);
        if after && (refused || misfit) {
            // The text and the place of the error are found by reading all.
            return None;
        }
        if refused {
            return Some((Err(super::first_error(errors)), Vec::new()));
        }
        let frame = files.exchange_reads(Reads::default()).sorted();
        if former.is_some_and(|former| !frame.read_the_same(&former.frame)) {
            return None;
        }
        let mut config = config;
        if let Some(config) = config.as_mut().filter(|_| !serves) {
            leave_out_servers(config);
        }
        let (next, kept) = again.map(|again| (again.next, again.kept)).unwrap_or_default();
        self.read =
            Some(Former { environment: environment.clone(), files: None, frame, units: kept, kept: next });
        Some((config.ok_or_else(|| super::plain("")), errors))
    }
}

/// Returns `true` if the process that reads the configuration serves requests itself (nginx: master_process off).
fn is_alone(parsed: &Parsed) -> bool {
    let off = |d: &Directive| d.args.first().is_some_and(|w| w.text.eq_ignore_ascii_case(b"off"));
    parsed.tree.root.iter().any(|d| d.name.text == b"master_process" && off(d))
}

/// Leaves out what only a process that serves requests needs.
fn leave_out_servers(config: &mut Config) {
    config.fronts.clear();
    config.groups.clear();
    for listener in &mut config.listeners {
        listener.default.names = NameTable::default();
        listener.exact.iter_mut().for_each(|(_, address)| address.names = NameTable::default());
    }
}

impl Former {
    fn is_current(&self, environment: &Environment, files: &mut Files) -> bool {
        self.environment == *environment && self.frame.hold_the_same(files)
    }
}
