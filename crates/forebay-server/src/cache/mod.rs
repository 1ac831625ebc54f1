//! Cache of upstream responses, on disk and in memory (nginx: proxy_cache_path and related directives).
//!
//! [`index`] lists the entries for all threads, [`entry`] defines the file format, [`local`] keeps small entries in the
//! memory of each thread, [`manager`] loads and trims caches in a separate thread. `modules/proxy/cached.rs` decides
//! when a response is stored or served.

pub mod entry;
pub mod index;
pub mod local;
pub mod manager;

use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_sys::sync::lock;
use index::Index;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// MD5 of a key. In hexadecimal it is the file's name.
pub type Hash = [u8; 16];

/// Pace of background work (nginx: loader_files and related parameters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Files in one step.
    pub files: u64,
    /// Pause between steps.
    pub sleep: Duration,
    /// Longest step.
    pub threshold: Duration,
}

/// One `proxy_cache_path`.
#[derive(Debug)]
pub struct Cache {
    /// Name of the zone.
    pub name: Vec<u8>,
    /// Directory.
    pub path: PathBuf,
    /// Length of the directory names at each level.
    pub levels: Vec<usize>,
    /// Whether files are written below `proxy_temp_path` first.
    pub use_temp_path: bool,
    /// Time after which an unused entry is removed.
    pub inactive: Duration,
    /// Most bytes on disk.
    pub max_size: Option<u64>,
    /// Bytes of the file system to keep free.
    pub min_free: u64,
    /// `loader_*`.
    pub loader: Steps,
    /// `manager_*`.
    pub manager: Steps,
    /// Index of the entries.
    pub index: Arc<Index>,
    /// Counters of responses, for the status API.
    pub counts: Arc<crate::metrics::Zone>,
}

impl Cache {
    /// Returns the file of an entry. Names are nginx's: the last digits of the hash are the directories.
    pub fn file(&self, hash: &Hash) -> PathBuf {
        let name = hex(hash);
        let mut path = self.path.clone();
        let mut end = name.len();
        for n in &self.levels {
            let start = end.saturating_sub(*n);
            path.push(name.get(start..end).unwrap_or_default());
            end = start;
        }
        path.push(&name);
        path
    }
}

/// Returns lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        for digit in [b >> 4, b & 15] {
            out.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    out
}

/// Parses a file name as a hash.
pub fn unhex(name: &[u8]) -> Option<Hash> {
    let mut hash = [0; 16];
    if name.len() != 32 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(name.chunks(2)) {
        if pair.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// Zone with a name. `proxy_cache` may refer to it before `proxy_cache_path` defines it.
#[derive(Debug)]
pub struct Zone {
    /// Name.
    pub name: Vec<u8>,
    cache: OnceLock<Arc<Cache>>,
}

impl Zone {
    /// Returns the cache, if the zone is defined.
    pub fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.get()
    }
}

/// Caches of a configuration under construction.
#[derive(Debug, Default)]
pub struct Zones {
    zones: Vec<(Arc<Zone>, Error)>,
}

impl Zones {
    /// Finds or creates the zone of this name. `unknown` is the error to report if no directive defines it.
    pub fn find_or_promise(&mut self, name: &[u8], unknown: Error) -> Arc<Zone> {
        if let Some((z, _)) = self.zones.iter().find(|(z, _)| z.name == name) {
            return z.clone();
        }
        let z = Arc::new(Zone { name: name.to_vec(), cache: OnceLock::new() });
        self.zones.push((z.clone(), unknown));
        z
    }

    /// Returns the error for the first zone that no directive defines.
    pub fn undefined(&self) -> Option<Error> {
        self.zones.iter().find(|(z, _)| z.cache.get().is_none()).map(|(_, unknown)| unknown.clone())
    }

    /// Returns all caches.
    pub fn finish(self) -> Vec<Arc<Cache>> {
        self.zones.iter().filter_map(|(z, _)| z.cache.get().cloned()).collect()
    }
}

/// Bytes of a zone that one entry counts for, chosen so that about as many fit as in nginx.
const NODE: u64 = 128;

type Known = (Vec<u8>, PathBuf, Vec<usize>, u64, Weak<Index>);

/// Indexes of this process, so that they survive a reload.
static INDEXES: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn shared_index(name: &[u8], path: &Path, levels: &[usize], size: u64) -> Arc<Index> {
    let mut known = lock(&INDEXES);
    known.retain(|k| k.4.strong_count() > 0);
    let same = known.iter().find(|k| k.0 == name && k.1 == path && k.2 == levels && k.3 == size);
    if let Some(i) = same.and_then(|k| k.4.upgrade()) {
        return i;
    }
    let index = Arc::new(Index::new(usize::try_from(size / NODE).unwrap_or(usize::MAX)));
    known.push((name.to_vec(), path.to_owned(), levels.to_vec(), size, Arc::downgrade(&index)));
    index
}

/// Reads `proxy_cache_path`.
///
/// # Errors
/// In nginx's words.
pub fn path(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let Some((dir, options)) = d.args.split_first() else { return Err(cx.error(d, "no path")) };
    let mut dir = dir.text.clone();
    while dir.len() > 1 && dir.last() == Some(&b'/') {
        dir.pop();
    }
    let path = cx.full_path(&dir);
    let steps =
        |files| Steps { files, sleep: Duration::from_millis(50), threshold: Duration::from_millis(200) };
    let (mut loader, mut manager) = (steps(100), steps(100));
    let (mut levels, mut name, mut size) = (Vec::new(), Vec::new(), 0);
    let (mut use_temp_path, mut inactive) = (true, Duration::from_secs(600));
    let (mut max_size, mut min_free) = (None, 0);
    for w in options {
        let t = w.text.as_slice();
        let invalid = |what: &str| cx.error_at(d, w, format!("invalid {what} \"{}\"", w.as_str()));
        let Some(at) = memchr::memchr(b'=', t) else { return Err(invalid("parameter")) };
        let (option, value) = (&t[..at], &t[at + 1..]);
        let wrong = |what: &str| cx.error_at(d, w, format!("invalid {what} value \"{}\"", w.as_str()));
        let millis = |what: &str| units::duration_ms(value).ok_or_else(|| wrong(what));
        // Zero files per step would make no progress.
        let number = |what: &str| units::number(value).map(|n| n.max(1)).ok_or_else(|| wrong(what));
        match option {
            b"levels" if value.is_empty() => levels.clear(),
            b"levels" => {
                levels = value
                    .split(|b| *b == b':')
                    .map(|l| match l {
                        b"1" => Some(1),
                        b"2" => Some(2),
                        _ => None,
                    })
                    .collect::<Option<Vec<_>>>()
                    .filter(|l| (1..=3).contains(&l.len()))
                    .ok_or_else(|| invalid("\"levels\""))?;
            }
            b"use_temp_path" => {
                use_temp_path = match value {
                    b"on" => true,
                    b"off" => false,
                    _ => {
                        return Err(cx.error_at(
                            d,
                            w,
                            format!(
                                "invalid use_temp_path value \"{}\", it must be \"on\" or \"off\"",
                                w.as_str()
                            ),
                        ));
                    }
                }
            }
            b"keys_zone" => {
                let at = memchr::memchr(b':', value).ok_or_else(|| invalid("keys zone size"))?;
                name = value[..at].to_vec();
                size = units::size(&value[at + 1..]).ok_or_else(|| invalid("keys zone size"))?;
                if name.is_empty() {
                    return Err(
                        cx.error(d, format!("\"{}\" must have \"keys_zone\" parameter", d.name.as_str()))
                    );
                }
                if size < 2 * 4096 {
                    return Err(cx.error_at(d, w, format!("keys zone \"{}\" is too small", w.as_str())));
                }
            }
            b"inactive" => inactive = units::duration_secs(value).ok_or_else(|| wrong("inactive"))?,
            b"max_size" => max_size = Some(units::offset(value).ok_or_else(|| wrong("max_size"))?),
            b"min_free" => min_free = units::offset(value).ok_or_else(|| wrong("min_free"))?,
            b"loader_files" => loader.files = number("loader_files")?,
            b"loader_sleep" => loader.sleep = millis("loader_sleep")?,
            b"loader_threshold" => loader.threshold = millis("loader_threshold")?,
            b"manager_files" => manager.files = number("manager_files")?,
            b"manager_sleep" => manager.sleep = millis("manager_sleep")?,
            b"manager_threshold" => manager.threshold = millis("manager_threshold")?,
            // In NGINX Plus a purger process removes what a purge with "*" matched. Here the purge request itself does.
            b"purger" | b"purger_files" | b"purger_sleep" | b"purger_threshold" => {}
            _ => return Err(invalid("parameter")),
        }
    }
    if name.is_empty() || size == 0 {
        return Err(cx.error(d, format!("\"{}\" must have \"keys_zone\" parameter", d.name.as_str())));
    }
    if levels.iter().sum::<usize>() > 6 {
        return Err(cx.error(d, "invalid \"levels\""));
    }
    cx.directory(d, &path, None)?;
    let index = shared_index(&name, &path, &levels, size);
    let cache = Cache {
        name: name.clone(),
        path,
        levels,
        use_temp_path,
        inactive,
        max_size,
        min_free,
        loader,
        manager,
        index,
        counts: crate::metrics::zone(crate::metrics::Kind::Cache, &name),
    };
    let zone = cx.tables.caches.find_or_promise(&name, cx.error(d, ""));
    if zone.cache.set(Arc::new(cache)).is_err() {
        let text = String::from_utf8_lossy(&name).into_owned();
        return Err(cx.error(d, format!("duplicate zone \"{text}\"")));
    }
    Ok(())
}

#[cfg(test)]
impl Cache {
    /// An empty cache with `levels=1:2` for ten entries.
    fn for_tests(path: &Path) -> Cache {
        Cache {
            name: b"one".to_vec(),
            path: path.to_owned(),
            levels: vec![1, 2],
            use_temp_path: true,
            inactive: Duration::from_secs(1),
            max_size: None,
            min_free: 0,
            loader: Steps { files: 1, sleep: Duration::ZERO, threshold: Duration::ZERO },
            manager: Steps { files: 1, sleep: Duration::ZERO, threshold: Duration::ZERO },
            index: Arc::new(Index::new(10)),
            counts: crate::metrics::zone(crate::metrics::Kind::Cache, b""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_nginx() {
        let hash = unhex(b"b7f54b2df7773722d382f4809d65029c").expect("a hash");
        assert_eq!(hex(&hash), "b7f54b2df7773722d382f4809d65029c");
        let cache = Cache::for_tests(Path::new("/data/nginx/cache"));
        // The example of nginx's documentation.
        let want = "/data/nginx/cache/c/29/b7f54b2df7773722d382f4809d65029c";
        assert_eq!(cache.file(&hash), Path::new(want));
        assert_eq!(unhex(b"b7f54b2df7773722d382f4809d65029c.0000000001"), None);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |conf: &str| crate::testing::error(conf).unwrap_or_default();
        assert_eq!(
            error("proxy_cache_path /c inactive=1m;"),
            "\"proxy_cache_path\" must have \"keys_zone\" parameter"
        );
        assert_eq!(error("proxy_cache_path /c keys_zone=a:1m levels=3;"), "invalid \"levels\" \"levels=3\"");
        assert_eq!(error("proxy_cache_path /c keys_zone=a:1k;"), "keys zone \"keys_zone=a:1k\" is too small");
        assert_eq!(error("proxy_cache nowhere;"), "\"proxy_cache\" zone \"nowhere\" is unknown");
    }
}
