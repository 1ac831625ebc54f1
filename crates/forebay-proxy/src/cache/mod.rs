//! Cache of upstream responses, on disk and in memory (nginx: proxy_cache_path and related directives).
//!
//! `config` reads the directive, [`index`] lists the entries for all threads, [`entry`] defines the file format, [`local`] keeps small entries in the
//! memory of each thread, [`manager`] loads and trims caches in a separate thread, [`purges`] shares purges with other replicas, [`saved`] keeps
//! indexes over a restart.
//! `modules/proxy/cached.rs` decides when a response is stored or served.
//!
//! `bells.rs` wakes the threads that have a removed or replaced file open.

mod bells;
mod config;
pub mod counts;
pub mod entry;
pub mod index;
pub mod local;
pub mod manager;
pub mod purges;
pub mod saved;

use forebay_conf::error::Error;
use forebay_server::config::Scope;
use forebay_server::config::http::Http;
use forebay_server::modules::core::path_in_levels;
use index::Index;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use config::path;

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
    /// `true` if files are written below `proxy_temp_path` first.
    pub use_temp_path: bool,
    /// Time after which an unused entry is removed.
    pub inactive: Duration,
    /// Limit for the bytes on disk.
    pub max_size: Option<u64>,
    /// Bytes of the file system to keep free.
    pub min_free: u64,
    /// `loader_*`.
    pub loader: Steps,
    /// `manager_*`.
    pub manager: Steps,
    /// `file=`: place of the index while no process runs.
    pub file_of_index: Option<PathBuf>,
    /// `purge_sync`: purges are shared with other replicas.
    pub purge_sync: bool,
    /// Index of the entries.
    pub index: Arc<Index>,
    /// Counters of responses, for the status API.
    pub counts: Arc<forebay_core::status_zone::StatusZone>,
}

impl Cache {
    /// Returns the file of an entry. Names are nginx's: the last digits of the hash are the directories.
    pub fn file(&self, hash: &Hash) -> PathBuf {
        path_in_levels(&self.path, &self.levels, &hex(hash))
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
        // Names are written in lower case, and `from_str_radix` would accept both.
        if pair.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// Zone with a name. `proxy_cache` may refer to it before `proxy_cache_path` defines it.
#[derive(Debug)]
pub struct KeysZone {
    /// Name.
    pub name: Vec<u8>,
    cache: OnceLock<Arc<Cache>>,
}

impl KeysZone {
    /// Returns the cache, if the zone is defined.
    pub fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.get()
    }
}

/// Caches of a configuration under construction.
#[derive(Debug, Default)]
pub struct KeysZones {
    zones: Vec<(Arc<KeysZone>, Error)>,
}

/// Returns all caches of a configuration.
pub fn all(http: &Http) -> &[Arc<Cache>] {
    http.parts.get::<Vec<Arc<Cache>>>().map_or(&[], Vec::as_slice)
}

/// Finds or creates the zone of a name. `unknown` is the error to report if no directive defines it.
pub fn zone(name: &[u8], unknown: Error, cx: &mut Scope<'_>) -> Arc<KeysZone> {
    cx.tables.unrepeatable += 1;
    cx.tables.parts.get_mut::<KeysZones>().find_or_promise(name, unknown)
}

impl KeysZones {
    fn find_or_promise(&mut self, name: &[u8], unknown: Error) -> Arc<KeysZone> {
        if let Some((z, _)) = self.zones.iter().find(|(z, _)| z.name == name) {
            return z.clone();
        }
        let z = Arc::new(KeysZone { name: name.to_vec(), cache: OnceLock::new() });
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

#[cfg(test)]
impl Cache {
    /// Makes an empty cache with `levels=1:2` for ten entries.
    fn for_tests(path: &std::path::Path) -> Cache {
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
            file_of_index: None,
            purge_sync: false,
            index: Arc::new(Index::new(10)),
            counts: forebay_core::status_zone::zone(counts::CACHE, b""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

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
