//! Databases of keys and values (nginx: `keyval_zone`), without any knowledge of HTTP or stream. All threads of the process share
//! them, and they are kept over reloads by name.
//!
//! A configuration has a [`Zone`] for each directive. The records are in a [`Store`], which a zone of the next configuration takes
//! over. Hot path: [`Zone::lookup`].

pub mod directives;
pub mod json;
mod key;
mod lengths;
mod shard;
mod state;
mod store;
#[cfg(test)]
mod tests;

pub use key::{BadKey, Kind, MAX_KEY};
pub use store::{Change, Lifetime, Pair, RECORD_COST, Refused, Store};

use crate::tasks::{Log, Tasks};
use crate::vars::{Evaluate, Template, VarError};
use forebay_conf::error::Level;
use forebay_net::tls::sessions::Usage;
use forebay_sys::sync::lock;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Definition of a zone by `keyval_zone`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Name.
    pub name: Vec<u8>,
    /// Bytes that its records may take.
    pub size: usize,
    /// Type of its keys.
    pub kind: Kind,
    /// Time after which a record expires; `None`: none does.
    pub timeout: Option<Duration>,
    /// File that keeps the records.
    pub state: Option<PathBuf>,
}

/// A zone of a configuration.
#[derive(Debug)]
pub struct Zone {
    /// Block that it belongs to, see [`crate::config::Context::BLOCK`]. Each block has its own zones.
    pub block: &'static str,
    /// Name.
    pub name: Vec<u8>,
    definition: OnceLock<Definition>,
    /// Records, once the process serves requests with the configuration.
    store: OnceLock<Arc<Store>>,
    saved: Saved,
    /// Line for the error log that is yet to be written.
    notice: Mutex<Option<(Level, String)>>,
}

/// State of a zone's file.
#[derive(Debug, Default)]
struct Saved {
    /// Number of the last change that the file has.
    changes: AtomicU64,
    /// The last attempt failed. It is reported once.
    failed: AtomicBool,
    /// The file could not be read, so it is not written either.
    broken: AtomicBool,
    /// Orders writing.
    writing: Mutex<()>,
}

/// Number of changes that a file without the records of the store has.
const UNSAVED: u64 = u64::MAX;

impl Zone {
    /// Makes a zone that has no definition yet.
    fn promised(block: &'static str, name: &[u8]) -> Zone {
        Zone {
            block,
            name: name.to_vec(),
            definition: OnceLock::new(),
            store: OnceLock::new(),
            saved: Saved::default(),
            notice: Mutex::default(),
        }
    }

    /// Returns its definition. Every zone of a finished configuration has one.
    pub fn definition(&self) -> Option<&Definition> {
        self.definition.get()
    }

    /// Returns the records; `None` before the process serves requests with the configuration.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// Appends the value for a key. Returns `false` if there is none.
    #[inline]
    pub fn lookup(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.store.get().is_some_and(|store| store.lookup(key, out))
    }

    /// Gets its records: those of a zone before it, or those in its file.
    fn begin(&self, former: Option<&Zone>) {
        let Some(d) = self.definition() else { return };
        let former = former.and_then(Zone::store);
        if let Some(store) = former.filter(|store| store.kind() == d.kind) {
            store.set_limit(d.size);
            let _ = self.store.set(store.clone());
            // The file may be another one.
            self.saved.changes.store(UNSAVED, Ordering::Relaxed);
            return;
        }
        if former.is_some() {
            let name = String::from_utf8_lossy(&self.name);
            let text = format!("keyval zone \"{name}\" begins anew, because its type has changed");
            self.note(Level::Notice, text);
        }
        let store = Store::new(d.kind, d.size);
        let loaded = match &d.state {
            // The file is that of the zone before, with keys of another type.
            Some(_) if former.is_some() => Ok(()),
            Some(path) => state::load(path, d.timeout)
                .and_then(|pairs| store.fill(&pairs).map_err(|refused| state::misfit(refused).to_owned())),
            None => Ok(()),
        };
        if let (Err(reason), Some(path)) = (loaded, &d.state) {
            // It has changed since the configuration was read. Writing it now would destroy what it has.
            self.saved.broken.store(true, Ordering::Relaxed);
            self.note(Level::Alert, format!("cannot load state file \"{}\" ({reason})", path.display()));
        }
        let saved = if former.is_some() { UNSAVED } else { store.changes() };
        self.saved.changes.store(saved, Ordering::Relaxed);
        let _ = self.store.set(Arc::new(store));
    }

    fn note(&self, level: Level, text: String) {
        *lock(&self.notice) = Some((level, text));
    }

    /// Removes what has expired, and writes what has changed to the file.
    fn tend(&self, log: &dyn Fn(Level, &str)) {
        if let Some((level, text)) = lock(&self.notice).take() {
            log(level, &text);
        }
        let Some(store) = self.store() else { return };
        store.sweep();
        let Some(path) = self.definition().and_then(|d| d.state.as_ref()) else { return };
        let _writing = lock(&self.saved.writing);
        // Read before the records, so that a change meanwhile is written the next time.
        let changes = store.changes();
        let broken = self.saved.broken.load(Ordering::Relaxed);
        if broken || changes == self.saved.changes.load(Ordering::Relaxed) {
            return;
        }
        match state::save(path, &store.pairs()) {
            Ok(()) => {
                self.saved.changes.store(changes, Ordering::Relaxed);
                self.saved.failed.store(false, Ordering::Relaxed);
            }
            Err(reason) => {
                if !self.saved.failed.swap(true, Ordering::Relaxed) {
                    log(Level::Error, &format!("cannot write state file {reason}"));
                }
            }
        }
    }
}

/// Zones of a block under construction.
#[derive(Clone, Debug, Default)]
pub struct Zones(Vec<Arc<Zone>>);

impl Zones {
    /// Returns the zone with this name. Makes it without a definition if necessary.
    pub fn find_or_promise(&mut self, name: &[u8], block: &'static str) -> Arc<Zone> {
        if let Some(zone) = self.0.iter().find(|z| z.name == name) {
            return zone.clone();
        }
        let zone = Arc::new(Zone::promised(block, name));
        self.0.push(zone.clone());
        zone
    }

    /// Returns the error text for the first zone without a definition.
    pub fn undefined(&self) -> Option<String> {
        let zone = self.0.iter().find(|z| z.definition().is_none())?;
        Some(format!("zero size shared memory zone \"{}\"", String::from_utf8_lossy(&zone.name)))
    }

    /// Gives the zones their records, before the first thread uses them. They are the zones of the process from now on.
    pub fn prepare(&self, block: &'static str) {
        let mut all = lock(&CURRENT);
        let (former, mut next): (Vec<_>, Vec<_>) = all.drain(..).partition(|z| z.block == block);
        for zone in &self.0 {
            zone.begin(former.iter().find(|f| f.name == zone.name).map(Arc::as_ref));
        }
        next.extend(self.0.iter().cloned());
        *all = next;
    }

    /// Begins to tend the zones, once a second.
    #[allow(clippy::disallowed_methods, reason = "this is on the tokio thread")]
    pub fn start(&self, tasks: &mut Tasks, tokio: &tokio::runtime::Handle, log: &Log) {
        if self.0.is_empty() {
            return;
        }
        let (zones, log) = (self.clone(), log.clone());
        tasks.spawn(tokio, "tending keyval zones", async move {
            loop {
                let (zones, log) = (zones.clone(), log.clone());
                // Files are written on the blocking pool. A panic there has been reported.
                let _ = tokio::task::spawn_blocking(move || zones.tend(&*log)).await;
                tokio::time::sleep(TEND).await;
            }
        });
    }

    /// Removes what has expired, and writes what has changed to the files.
    pub fn tend(&self, log: &dyn Fn(Level, &str)) {
        self.0.iter().for_each(|zone| zone.tend(log));
    }
}

/// Time between two looks at the zones.
const TEND: Duration = Duration::from_secs(1);

/// Zones of the configuration with which the process serves.
static CURRENT: Mutex<Vec<Arc<Zone>>> = Mutex::new(Vec::new());

/// Returns the zones of a block, in the order of their definitions.
pub fn zones(block: &str) -> Vec<Arc<Zone>> {
    lock(&CURRENT).iter().filter(|z| z.block == block).cloned().collect()
}

/// Returns the memory use of all zones.
pub fn usage() -> Vec<Usage> {
    let all = lock(&CURRENT);
    let each = all.iter().filter_map(|z| {
        Some(Usage { name: z.name.clone(), used: z.store()?.used(), size: z.definition()?.size })
    });
    each.collect()
}

/// A `keyval`: a variable that is looked up in a zone.
#[derive(Debug)]
pub struct Lookup {
    key: Template,
    zone: Arc<Zone>,
}

impl Lookup {
    /// Returns the variables in its key.
    pub fn variables(&self) -> impl Iterator<Item = crate::vars::VarId> + '_ {
        self.key.variables()
    }

    /// Appends the value. Returns `false` if there is none.
    ///
    /// # Errors
    /// If the key cannot be evaluated.
    pub fn compute<E: Evaluate>(&self, e: &mut E, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let mut key = e.take_buf();
        let evaluated = self.key.eval(e, &mut key);
        let found = evaluated.is_ok() && self.zone.lookup(&key, out);
        e.give_buf(key);
        evaluated.map(|()| found)
    }
}
