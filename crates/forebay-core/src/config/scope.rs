//! State of a configuration that is being built, for the setters of directives.

use super::Environment;
use super::memory::Again;
use super::shared_zones::SharedZones;
use crate::pattern::Pattern;
use crate::tls::issued::{ClientNames, IssuedToClients};
use crate::upstream::balance::Timed;
use crate::vars::{Builtin, Registry, Source, Template};
use forebay_conf::error::{Error, Level};
use forebay_conf::files::{Files, Reads};
use forebay_conf::tree::{Directive, Span, Word};
use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Top-level context of a configuration (main, http, stream), with variables and named tables of its own.
pub trait Context {
    /// Name of its block; empty for the main level.
    const BLOCK: &'static str;
    /// Times by which `least_time` can choose a server of its upstream groups.
    const TIMES: &'static [(&'static str, Timed)];
    /// Type for which variables are evaluated: a request or a session.
    type Eval;
    /// Tables that some directives fill and others refer to by name.
    type Tables;
}

/// Main level, which has neither variables nor tables.
#[derive(Debug)]
pub struct Main;

impl Context for Main {
    const BLOCK: &'static str = "";
    const TIMES: &'static [(&'static str, Timed)] = &[];
    type Eval = ();
    type Tables = ();
}

/// Paths, files and messages of a build; all contexts share them.
pub struct Build<'a> {
    /// Paths that the build uses.
    pub env: &'a Environment,
    /// Files read, recorded for the worker.
    pub files: &'a mut Files,
    /// End of the block that is being read.
    pub end: Option<Span>,
    /// Warnings, and errors that did not end the reading.
    pub warnings: &'a mut Vec<Error>,
    /// Log files whose names have no variables. The master opens them.
    pub log_files: Vec<PathBuf>,
    /// Numbers of these files. Each server may have one of its own.
    log_numbers: HashMap<PathBuf, usize>,
    /// Names of access logs with the parameters of their buffers, to find contradictions.
    pub buffered_logs: HashMap<OsString, LogBuffer>,
    /// Connections to upstreams may come from foreign addresses, see [`super::Config::transparent`].
    pub transparent: bool,
    /// Directories of caches and of temporary files, to find those that are used twice.
    pub directories: Vec<Directory>,
    /// Certificates of `acme_client`s, once the http block has been read.
    pub issued_to_clients: IssuedToClients,
    /// Servers of other blocks that use them.
    pub client_names: Vec<ClientNames>,
    /// Shared memory zones, to find names with two uses.
    pub(super) shared_zones: SharedZones,
    /// State for reading only what has changed; `None`: everything is read.
    pub again: Option<Again>,
    /// The part that is being read, see [`Build::begin_part`].
    part: Option<Part>,
}

/// State that the setters of one context share.
pub struct Scope<'a, C: Context> {
    /// State that all contexts share.
    pub build: Build<'a>,
    /// Variables known so far.
    pub vars: Registry<C::Eval>,
    /// Tables of the context.
    pub tables: C::Tables,
}

impl<'a, C: Context> Deref for Scope<'a, C> {
    type Target = Build<'a>;
    fn deref(&self) -> &Build<'a> {
        &self.build
    }
}

impl<C: Context> DerefMut for Scope<'_, C> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.build
    }
}

impl<'a> Scope<'a, Main> {
    /// Enters the main level.
    pub fn main(build: Build<'a>) -> Self {
        // No variable is built in, and any may be defined.
        Scope { build, vars: Registry::new(|_| (Source::Unknown, true)), tables: () }
    }
}

impl<'a, C: Context> Scope<'a, C> {
    /// Enters a context in which nothing has been read.
    pub fn new(build: Build<'a>, builtin: Builtin<C::Eval>) -> Self
    where
        C::Tables: Default,
    {
        Scope { build, vars: Registry::new(builtin), tables: C::Tables::default() }
    }

    /// Compiles a value with variables.
    ///
    /// # Errors
    /// `invalid variable name`.
    pub fn template(&mut self, d: &Directive, w: &Word) -> Result<Template, Error> {
        Template::compile(&w.text, &mut self.vars).map_err(|m| self.error_at(d, w, m))
    }

    /// Compiles a regular expression and registers its named captures.
    ///
    /// # Errors
    /// `pcre2_compile() failed: ...` in nginx's form.
    pub fn pattern(&mut self, d: &Directive, text: &[u8], caseless: bool) -> Result<Pattern, Error> {
        let pattern = Pattern::compile(text, caseless, &mut self.vars).map_err(|m| self.build.error(d, m))?;
        if pattern.backtracks() {
            let written = String::from_utf8_lossy(text);
            let error = self.error(d, format!("the pattern \"{written}\" needs backtracking"));
            let hint =
                "look-around and back references can take long on some texts, and are given up with 500 then";
            self.warnings.push(Error { level: Level::Info, hint: Some(hint.to_owned()), ..error });
        }
        Ok(pattern)
    }
}

/// Name, use and size of a shared memory zone.
pub(super) type DeclaredZone = (Vec<u8>, super::shared_zones::ZoneUse, Option<u64>);

/// Effects of reading a part of a configuration, besides its result.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Log files and their numbers.
    logs: Vec<(PathBuf, usize)>,
    /// Shared memory zones.
    zones: Vec<DeclaredZone>,
    /// Files that were read.
    pub reads: Reads,
}

impl Effects {
    /// Adds those of another part.
    pub fn append(&mut self, mut other: Effects) {
        self.logs.append(&mut other.logs);
        self.zones.append(&mut other.zones);
        self.reads.append(other.reads);
    }

    /// Leaves out what occurs twice.
    pub fn compacted(mut self) -> Effects {
        self.logs.dedup();
        self.logs.shrink_to_fit();
        self.zones.dedup();
        self.zones.shrink_to_fit();
        self.reads = self.reads.sorted();
        self
    }
}

/// A part of a configuration that is being read.
struct Part {
    effects: Effects,
    /// Files that the rest has read.
    outer: Reads,
    before: [usize; 6],
}

/// `buffer=` in bytes, `flush=` and `gzip=` of a log file. All `access_log`s of a file must agree in them.
pub type LogBuffer = (usize, Option<std::time::Duration>, Option<u32>);

/// Directory that the server makes and writes into.
#[derive(Debug)]
pub struct Directory {
    /// Its path.
    pub path: PathBuf,
    /// Levels of subdirectories; `None`: a cache's (see [`Build::directory`]).
    levels: Option<Vec<u64>>,
    /// Error without a text at the directive that named it first, for its place.
    first_use: Error,
}

impl<'a> Build<'a> {
    /// Creates the state of a build in which nothing has been read.
    pub fn new(env: &'a Environment, files: &'a mut Files, warnings: &'a mut Vec<Error>) -> Build<'a> {
        Build {
            env,
            files,
            end: None,
            warnings,
            log_files: Vec::new(),
            log_numbers: HashMap::new(),
            buffered_logs: HashMap::new(),
            transparent: false,
            directories: Vec::new(),
            issued_to_clients: IssuedToClients::default(),
            client_names: Vec::new(),
            shared_zones: SharedZones::default(),
            again: None,
            part: None,
        }
    }

    /// Begins to read a part of the configuration that a later one may take over, if nothing in it has changed.
    pub fn begin_part(&mut self) {
        let outer = self.files.exchange_reads(Reads::default());
        self.part = Some(Part { effects: Effects::default(), outer, before: self.marks() });
    }

    /// Ends the part. `None`: it has effects that cannot be repeated, so that it must be read each time.
    pub fn end_part(&mut self) -> Option<Effects> {
        let Part { mut effects, outer, before } = self.part.take()?;
        effects.reads = self.files.exchange_reads(outer);
        (before == self.marks()).then_some(effects)
    }

    /// Repeats the effects of a part of the former configuration. Returns `false` if they are others now.
    pub fn repeat(&mut self, effects: &Effects) -> bool {
        let logs = effects.logs.iter().all(|(path, number)| self.log_file(path.clone()) == *number);
        let declare =
            |(name, zone_use, size): &DeclaredZone| self.shared_zones.declare(name, *zone_use, *size).is_ok();
        logs && effects.zones.iter().all(declare)
    }

    /// Returns marks that differ before and after a directive with effects that [`Effects`] does not have.
    fn marks(&self) -> [usize; 6] {
        [
            self.warnings.len(),
            self.directories.len(),
            self.buffered_logs.len(),
            self.client_names.len(),
            usize::from(self.transparent),
            forebay_net::addr::lookups() as usize,
        ]
    }

    /// Notes that a part names a shared memory zone.
    pub(super) fn note_zone(&mut self, zone: DeclaredZone) {
        if let Some(part) = &mut self.part {
            part.effects.zones.push(zone);
        }
    }

    /// Notes a directory. `levels` are those of its subdirectories. `None` is for the directory of a cache, which nothing else
    /// may use.
    ///
    /// # Errors
    /// If another directive uses the directory for a cache, or with other levels.
    pub fn directory(&mut self, d: &Directive, path: &Path, levels: Option<Vec<u64>>) -> Result<(), Error> {
        let text = format!("the same path name \"{}\"", path.display());
        match self.directories.iter().find(|known| known.path == path) {
            None => {
                let first_use = self.error(d, "");
                self.directories.push(Directory { path: path.to_owned(), levels, first_use });
                Ok(())
            }
            Some(known) if known.levels.is_some() && known.levels == levels => Ok(()),
            Some(known) => {
                let shared = known.levels.is_some() && levels.is_some();
                let (used, than) =
                    if shared { ("", " has the different levels than") } else { (" used", " and") };
                // nginx names both places in one line: `the same path name "/c" used in FILE:1 and in FILE:2`. Rendering
                // appends the place of the first directive, and that of the second when this error is rendered.
                let before = Error { message: text + used, ..known.first_use.clone() };
                Err(self.error(d, self.files.render(&before) + than))
            }
        }
    }

    /// Creates an error at a directive.
    pub fn error(&self, d: &Directive, message: impl Into<String>) -> Error {
        Error {
            level: Level::Emerg,
            message: message.into(),
            span: Some(d.name.span),
            at: Some(d.end),
            hint: None,
            ordinal: d.ordinal,
        }
    }

    /// Creates an error that is found at the end of a block, with its place there.
    pub fn error_at_end(&self, message: impl Into<String>) -> Error {
        Error { at: self.end, ..super::plain(&message.into()) }
    }

    /// Creates an error that nginx begins with the directive: `"x" directive invalid value`.
    pub fn directive_error(&self, d: &Directive, what: &str) -> Error {
        self.error(d, format!("\"{}\" directive {what}", d.name.as_str()))
    }

    /// Creates an error with its caret under one word.
    pub fn error_at(&self, d: &Directive, w: &Word, message: impl Into<String>) -> Error {
        Error { span: Some(w.span), ..self.error(d, message) }
    }

    /// Adds a warning, which does not stop the start.
    pub fn warn(&mut self, d: &Directive, message: impl Into<String>) {
        let e = Error { level: Level::Warn, ..self.error(d, message) };
        self.warnings.push(e);
    }

    /// Keeps the error of a directive, if there is one, so that reading goes on after it.
    pub fn keep(&mut self, read: Result<(), Error>) {
        self.warnings.extend(read.err());
    }

    /// Keeps an error that nginx finds only after it has read the whole file. It is reported after those of single directives.
    pub fn keep_late(&mut self, error: Error) {
        self.warnings.push(Error { ordinal: u32::MAX, ..error });
    }

    /// Returns a path, below the prefix unless it is absolute.
    pub fn full_path(&self, p: &[u8]) -> PathBuf {
        let p = Path::new(std::ffi::OsStr::from_bytes(p));
        if p.is_absolute() { p.to_owned() } else { self.env.prefix.join(p) }
    }

    /// Returns a path, below the directory of the configuration file unless it is absolute.
    pub fn conf_path(&self, p: &[u8]) -> PathBuf {
        let p = Path::new(std::ffi::OsStr::from_bytes(p));
        match self.env.conf_path.parent() {
            Some(dir) if !p.is_absolute() => dir.join(p),
            _ => p.to_owned(),
        }
    }

    /// Adds a log file that the master opens, and returns its number.
    pub fn log_file(&mut self, path: PathBuf) -> usize {
        let number = self.log_numbers.get(&path).copied().unwrap_or(self.log_files.len());
        if let Some(part) = &mut self.part {
            part.effects.logs.push((path.clone(), number));
        }
        if number == self.log_files.len() {
            self.log_numbers.insert(path.clone(), number);
            self.log_files.push(path);
        }
        number
    }
}
