//! State of a configuration that is being built, for the setters of directives.

use super::Environment;
use crate::pattern::Pattern;
use crate::vars::{Builtin, Registry, Source, Template};
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::tree::{Directive, Span, Word};
use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Top-level context of a configuration: main, http, stream. It has variables and named tables of its own.
pub trait Context {
    /// Requests or sessions for which variables are evaluated.
    type Eval;
    /// Tables that directives fill and others refer to by name.
    type Tables;
}

/// Main level, which has neither variables nor tables.
#[derive(Debug)]
pub struct Main;

impl Context for Main {
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
    /// Warnings, and the errors after which reading went on.
    pub warnings: &'a mut Vec<Error>,
    /// Log files with constant names.
    pub log_files: Vec<PathBuf>,
    /// Names of those that are written in pieces, with the parameters of that.
    pub buffered_logs: Vec<(OsString, LogBuffer)>,
    /// Directories of caches and of temporary files.
    pub directories: Vec<Directory>,
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

/// `buffer=` in bytes, `flush=` and `gzip=` of a log file, which all its `access_log`s have in common.
pub type LogBuffer = (usize, Option<std::time::Duration>, Option<u32>);

/// A directory that the server makes and writes into.
#[derive(Debug)]
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// See [`Build::directory`].
    levels: Option<Vec<u64>>,
    /// For messages: ends with the place of the directive.
    said: Error,
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
            buffered_logs: Vec::new(),
            directories: Vec::new(),
        }
    }

    /// Notes a directory. `levels`: how its subdirectories are laid; `None`: it is a cache's, which shares it with nobody.
    ///
    /// # Errors
    /// Another use of it is at odds with this one.
    pub fn directory(&mut self, d: &Directive, path: &Path, levels: Option<Vec<u64>>) -> Result<(), Error> {
        let text = format!("the same path name \"{}\"", path.display());
        match self.directories.iter().find(|known| known.path == path) {
            None => {
                let said = self.error(d, "");
                self.directories.push(Directory { path: path.to_owned(), levels, said });
                Ok(())
            }
            Some(known) if known.levels.is_some() && known.levels == levels => Ok(()),
            Some(known) => {
                let shared = known.levels.is_some() && levels.is_some();
                let (used, than) =
                    if shared { ("", " has the different levels than") } else { (" used", " and") };
                let before = Error { message: text + used, ..known.said.clone() };
                Err(self.error(d, self.files.render(&before) + than))
            }
        }
    }

    /// An error at this directive.
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

    /// An error of what is known when the block has been read.
    pub fn error_at_end(&self, message: impl Into<String>) -> Error {
        Error { at: self.end, ..super::plain(&message.into()) }
    }

    /// An error that nginx begins with the directive: `"x" directive invalid value`.
    pub fn directive_error(&self, d: &Directive, what: &str) -> Error {
        self.error(d, format!("\"{}\" directive {what}", d.name.as_str()))
    }

    /// An error with its caret under one word.
    pub fn error_at(&self, d: &Directive, w: &Word, message: impl Into<String>) -> Error {
        Error { span: Some(w.span), ..self.error(d, message) }
    }

    /// Notes something that does not stop the start.
    pub fn warn(&mut self, d: &Directive, message: impl Into<String>) {
        let e = Error { level: Level::Warn, ..self.error(d, message) };
        self.warnings.push(e);
    }

    /// Keeps the error of a directive, so that reading goes on behind it.
    pub fn keep(&mut self, taken: Result<(), Error>) {
        self.warnings.extend(taken.err());
    }

    /// Keeps an error that nginx finds only after it has read the whole file: it comes behind those of single directives.
    pub fn keep_late(&mut self, error: Error) {
        self.warnings.push(Error { ordinal: u32::MAX, ..error });
    }

    /// A path below the prefix unless absolute.
    pub fn full_path(&self, p: &[u8]) -> PathBuf {
        let p = Path::new(std::ffi::OsStr::from_bytes(p));
        if p.is_absolute() { p.to_owned() } else { self.env.prefix.join(p) }
    }

    /// A path below the directory of the configuration file unless absolute.
    pub fn conf_path(&self, p: &[u8]) -> PathBuf {
        let p = Path::new(std::ffi::OsStr::from_bytes(p));
        match self.env.conf_path.parent() {
            Some(dir) if !p.is_absolute() => dir.join(p),
            _ => p.to_owned(),
        }
    }

    /// Number of a log file that the master opens.
    pub fn log_file(&mut self, path: PathBuf) -> usize {
        match self.log_files.iter().position(|p| *p == path) {
            Some(i) => i,
            None => {
                self.log_files.push(path);
                self.log_files.len() - 1
            }
        }
    }
}
