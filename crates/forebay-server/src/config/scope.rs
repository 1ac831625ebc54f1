//! What a directive's setter may use while the configuration is built.

use super::Environment;
use crate::variables::Registry;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::tree::{Directive, Span, Word};
use forebay_core::vars::Template;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// State shared by all setters of one build.
pub struct Scope<'a> {
    /// Paths that the build uses.
    pub env: &'a Environment,
    /// Files read, recorded for the worker.
    pub files: &'a mut Files,
    /// Variables known so far.
    pub vars: Registry,
    /// End of the http block.
    pub end: Option<Span>,
    /// Warnings, and the errors after which reading went on.
    pub warnings: &'a mut Vec<Error>,
    /// Log files with constant names.
    pub log_files: Vec<PathBuf>,
    /// Names of those that are written in pieces, with the parameters of that.
    pub buffered_logs: Vec<(OsString, LogBuffer)>,
    /// Directories of caches and of temporary files.
    pub directories: Vec<Directory>,
    /// Tables of the http block.
    pub http: HttpTables,
}

/// Tables that directives of the http level fill and others refer to by name.
#[derive(Default)]
pub struct HttpTables {
    /// Log formats by name, in order of definition; index 0 is `combined`.
    pub log_formats: Vec<crate::access_log::Format>,
    /// `charset_map`s.
    pub charset_maps: crate::modules::charset::Maps,
    /// Upstream groups, named and implied.
    pub upstreams: crate::upstream::config::Groups,
    /// Zones of `limit_req`.
    pub zones: crate::modules::limit_req::Zones,
    /// Zones of `limit_conn`.
    pub conn_zones: crate::modules::limit_conn::Zones,
    /// Caches of responses.
    pub caches: crate::cache::Zones,
}

impl HttpTables {
    /// Errors for names that something refers to and nothing defines. Those of caches are placed at `end`, the end of the
    /// block, as nginx does.
    pub fn undefined(&mut self, end: Option<Span>) -> Vec<Error> {
        let zones = [self.zones.undefined(), self.conn_zones.undefined()];
        let caches = self.caches.undefined().map(|error| Error { at: end, ..error });
        zones.into_iter().flatten().map(|m| super::plain(&m)).chain(caches).collect()
    }
}

/// `buffer=` in bytes, `flush=` and `gzip=` of a log file, which all its `access_log`s have in common.
pub type LogBuffer = (usize, Option<std::time::Duration>, Option<u32>);

/// A directory that the server makes and writes into.
#[derive(Debug)]
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// See [`Scope::directory`].
    levels: Option<Vec<u64>>,
    /// For messages: ends with the place of the directive.
    said: Error,
}

impl<'a> Scope<'a> {
    /// Creates the state of a build in which nothing has been read.
    pub fn new(env: &'a Environment, files: &'a mut Files, warnings: &'a mut Vec<Error>) -> Scope<'a> {
        let mut vars = Registry::new(crate::variables::builtin);
        let log_formats = vec![crate::modules::log::combined(&mut vars)];
        Scope {
            env,
            files,
            vars,
            end: None,
            warnings,
            log_files: Vec::new(),
            buffered_logs: Vec::new(),
            directories: Vec::new(),
            http: HttpTables { log_formats, ..HttpTables::default() },
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

    /// An error of what is known when the http block has been read.
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
    pub fn pattern(
        &mut self,
        d: &Directive,
        text: &[u8],
        caseless: bool,
    ) -> Result<forebay_core::pattern::Pattern, Error> {
        let pattern = forebay_core::pattern::Pattern::compile(text, caseless, &mut self.vars)
            .map_err(|m| self.error(d, m))?;
        if pattern.backtracks() {
            let written = String::from_utf8_lossy(text);
            let error = self.error(d, format!("the pattern \"{written}\" needs backtracking"));
            let hint =
                "look-around and back references can take long on some texts, and are given up with 500 then";
            self.warnings.push(Error { level: Level::Info, hint: Some(hint.to_owned()), ..error });
        }
        Ok(pattern)
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
