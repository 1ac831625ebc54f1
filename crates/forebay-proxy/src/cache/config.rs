//! `proxy_cache_path`, and indexes that survive a reload.

use super::index::Index;
use super::{Cache, Steps, counts, zone};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_server::config::Scope;
use forebay_sys::sync::lock;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Number of bytes of a zone that an entry takes, chosen so that about as many entries fit as in nginx.
pub(super) const NODE: u64 = 128;

/// Smallest zone, bytes.
const SMALLEST: u64 = 2 * 4096;

/// Largest number of digits of a file's name that may go into the names of its directories.
const MOST_LEVELS: usize = 6;

/// Reads `proxy_cache_path`.
///
/// # Errors
/// In nginx's words.
pub fn path(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let Some((dir, words)) = d.args.split_first() else { return Err(cx.error(d, "no path")) };
    let path = cx.full_path(without_slashes(&dir.text));
    let options = Options::read(d, words, cx)?;
    if options.purge_sync {
        let missing = cx.error(d, "\"purge_sync\" needs a \"shared_store\" in the http block");
        cx.tables.shared_store.need(missing);
    }
    cx.directory(d, &path, None)?;
    // Unlike nginx: the caches of all modules share their zones.
    cx.share_zone(d, &options.name, ("http", "cache"), Some(options.size))?;
    let zone = zone(&options.name, cx.error(d, ""), cx);
    let text = String::from_utf8_lossy(&options.name).into_owned();
    if zone.cache.set(Arc::new(options.cache(path))).is_err() {
        return Err(cx.error(d, format!("duplicate zone \"{text}\"")));
    }
    Ok(())
}

fn without_slashes(mut dir: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = dir
        && !rest.is_empty()
    {
        dir = rest;
    }
    dir
}

fn no_zone(d: &Directive, cx: &Scope<'_>) -> Error {
    cx.error(d, format!("\"{}\" must have \"keys_zone\" parameter", d.name.as_str()))
}

/// A parameter `NAME=VALUE` of the directive.
struct Parameter<'a, 'c> {
    d: &'a Directive,
    word: &'a Word,
    name: &'a [u8],
    value: &'a [u8],
    cx: &'a Scope<'c>,
}

impl<'a, 'c> Parameter<'a, 'c> {
    fn new(d: &'a Directive, word: &'a Word, cx: &'a Scope<'c>) -> Result<Parameter<'a, 'c>, Error> {
        let parameter = Parameter { d, word, name: b"", value: b"", cx };
        let at = memchr::memchr(b'=', &word.text).ok_or_else(|| parameter.invalid("parameter"))?;
        Ok(Parameter { name: &word.text[..at], value: &word.text[at + 1..], ..parameter })
    }

    fn error(&self, text: String) -> Error {
        self.cx.error_at(self.d, self.word, text)
    }

    fn invalid(&self, what: &str) -> Error {
        self.error(format!("invalid {what} \"{}\"", self.word.as_str()))
    }

    /// Makes the error for a value that `read` did not understand.
    fn read<T>(&self, read: impl Fn(&[u8]) -> Option<T>) -> Result<T, Error> {
        read(self.value).ok_or_else(|| self.invalid(&format!("{} value", String::from_utf8_lossy(self.name))))
    }

    /// Reads the path of a file.
    fn file(&self, path: &[u8]) -> Result<PathBuf, Error> {
        match path {
            b"" => Err(self.invalid("parameter")),
            path => Ok(self.cx.full_path(path)),
        }
    }

    fn levels(&self) -> Result<Vec<usize>, Error> {
        if self.value.is_empty() {
            return Ok(Vec::new());
        }
        // As in nginx, there are at most three levels, with one or two digits each.
        let level = |l: &[u8]| match l {
            b"1" => Some(1),
            b"2" => Some(2),
            _ => None,
        };
        let levels = self.value.split(|b| *b == b':').map(level).collect::<Option<Vec<_>>>();
        levels.filter(|l| l.len() <= 3).ok_or_else(|| self.invalid("\"levels\""))
    }

    fn flag(&self) -> Result<bool, Error> {
        match self.value {
            b"on" => Ok(true),
            b"off" => Ok(false),
            _ => {
                let (name, word) = (String::from_utf8_lossy(self.name), self.word.as_str());
                let text = "it must be \"on\" or \"off\"";
                Err(self.error(format!("invalid {name} value \"{word}\", {text}")))
            }
        }
    }

    /// Reads name and size of the zone.
    fn zone(&self, value: &[u8]) -> Result<(Vec<u8>, u64), Error> {
        let invalid = || self.invalid("keys zone size");
        let at = memchr::memchr(b':', value).ok_or_else(invalid)?;
        let (name, size) = value.split_at(at);
        let size = units::size(&size[1..]).ok_or_else(invalid)?;
        if name.is_empty() {
            return Err(no_zone(self.d, self.cx));
        }
        if size < SMALLEST {
            return Err(self.error(format!("keys zone \"{}\" is too small", self.word.as_str())));
        }
        Ok((name.to_vec(), size))
    }
}

/// Parameters of the directive.
struct Options {
    name: Vec<u8>,
    size: u64,
    levels: Vec<usize>,
    use_temp_path: bool,
    purge_sync: bool,
    file: Option<PathBuf>,
    inactive: Duration,
    max_size: Option<u64>,
    min_free: u64,
    loader: Steps,
    manager: Steps,
}

impl Default for Options {
    fn default() -> Options {
        let steps =
            Steps { files: 100, sleep: Duration::from_millis(50), threshold: Duration::from_millis(200) };
        Options {
            name: Vec::new(),
            size: 0,
            levels: Vec::new(),
            use_temp_path: true,
            purge_sync: false,
            file: None,
            inactive: Duration::from_secs(600),
            max_size: None,
            min_free: 0,
            loader: steps,
            manager: steps,
        }
    }
}

impl Options {
    fn read(d: &Directive, words: &[Word], cx: &Scope<'_>) -> Result<Options, Error> {
        let mut options = Options::default();
        for w in words {
            options.take(&Parameter::new(d, w, cx)?)?;
        }
        if options.name.is_empty() || options.size == 0 {
            return Err(no_zone(d, cx));
        }
        if options.levels.iter().sum::<usize>() > MOST_LEVELS {
            return Err(cx.error(d, "invalid \"levels\""));
        }
        Ok(options)
    }

    fn take(&mut self, p: &Parameter<'_, '_>) -> Result<(), Error> {
        match p.name {
            b"levels" => self.levels = p.levels()?,
            b"use_temp_path" => self.use_temp_path = p.flag()?,
            b"purge_sync" => self.purge_sync = p.flag()?,
            b"keys_zone" => self.take_zone(p)?,
            b"file" => self.file = Some(p.file(p.value)?),
            b"inactive" => self.inactive = p.read(units::duration_secs)?,
            b"max_size" => self.max_size = Some(p.read(units::offset)?),
            b"min_free" => self.min_free = p.read(units::offset)?,
            // In NGINX Plus a purger process removes what a purge with "*" matched. Here the purge request itself does.
            b"purger" | b"purger_files" | b"purger_sleep" | b"purger_threshold" => {}
            name => {
                let steps = match name.split(|b| *b == b'_').next() {
                    Some(b"loader") => &mut self.loader,
                    Some(b"manager") => &mut self.manager,
                    _ => return Err(p.invalid("parameter")),
                };
                take_step(steps, p)?;
            }
        }
        Ok(())
    }

    /// Takes `NAME:SIZE`, behind which Angie has `:file=PATH`.
    fn take_zone(&mut self, p: &Parameter<'_, '_>) -> Result<(), Error> {
        let at = memchr::memmem::find(p.value, b":file=");
        let (zone, file) = at.map_or((p.value, None), |at| (&p.value[..at], Some(&p.value[at + 6..])));
        (self.name, self.size) = p.zone(zone)?;
        if let Some(file) = file {
            self.file = Some(p.file(file)?);
        }
        Ok(())
    }

    fn cache(self, path: PathBuf) -> Cache {
        Cache {
            index: shared_index(&self.name, &path, &self.levels, self.size),
            counts: forebay_core::status_zone::zone(counts::CACHE, &self.name),
            name: self.name,
            path,
            levels: self.levels,
            use_temp_path: self.use_temp_path,
            purge_sync: self.purge_sync,
            file_of_index: self.file,
            inactive: self.inactive,
            max_size: self.max_size,
            min_free: self.min_free,
            loader: self.loader,
            manager: self.manager,
        }
    }
}

/// Reads a `loader_` or `manager_` parameter.
fn take_step(steps: &mut Steps, p: &Parameter<'_, '_>) -> Result<(), Error> {
    let at = memchr::memchr(b'_', p.name).ok_or_else(|| p.invalid("parameter"))?;
    match &p.name[at..] {
        // Zero files per step would make no progress.
        b"_files" => steps.files = p.read(|v| units::number(v).map(|n| n.max(1)))?,
        b"_sleep" => steps.sleep = p.read(units::duration_ms)?,
        b"_threshold" => steps.threshold = p.read(units::duration_ms)?,
        _ => return Err(p.invalid("parameter")),
    }
    Ok(())
}

/// An index, and the directive that it was made for.
struct SharedIndex {
    name: Vec<u8>,
    path: PathBuf,
    levels: Vec<usize>,
    size: u64,
    index: Weak<Index>,
}

/// Indexes of this process, so that they survive a reload.
static INDEXES: Mutex<Vec<SharedIndex>> = Mutex::new(Vec::new());

fn shared_index(name: &[u8], path: &Path, levels: &[usize], size: u64) -> Arc<Index> {
    let mut known = lock(&INDEXES);
    // Caches that no configuration has any more leave dead references here.
    known.retain(|k| k.index.strong_count() > 0);
    // A zone with another size, directory or depth is another cache, and its index starts empty.
    let same = |k: &&SharedIndex| k.name == name && k.path == path && k.levels == levels && k.size == size;
    if let Some(i) = known.iter().find(same).and_then(|k| k.index.upgrade()) {
        return i;
    }
    let index = Arc::new(Index::new(usize::try_from(size / NODE).unwrap_or(usize::MAX)));
    let (name, path, levels) = (name.to_vec(), path.to_owned(), levels.to_vec());
    known.push(SharedIndex { name, path, levels, size, index: Arc::downgrade(&index) });
    index
}
