//! Zones of keys, for `limit_req` and `limit_conn`. Within a configuration, a limit may name a zone before the directive
//! that defines it. The tables belong to the process, so that a reload keeps their counts.

use super::outcomes::{Limited, Outcomes};
use crate::config::Build;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_net::tls::sessions::Usage;
use forebay_sys::sync::lock;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Bytes charged for a key in addition to its text. With this value about as many keys fit into a zone as in nginx.
pub const KEY_COST: usize = 64;

/// A zone, which a limit may name before it is defined.
#[derive(Debug)]
pub struct Zone<D> {
    /// Name of the zone.
    pub name: Vec<u8>,
    /// Definition with key and table, once it has been read.
    pub defined: OnceLock<D>,
    /// Outcomes of the zone's limits.
    pub outcomes: Arc<Outcomes>,
}

/// Zones of a configuration under construction.
#[derive(Debug)]
pub struct Zones<D>(Vec<Arc<Zone<D>>>);

impl<D> Default for Zones<D> {
    fn default() -> Self {
        Zones(Vec::new())
    }
}

impl<D> Zones<D> {
    /// Returns the zone with this name. Creates it without a definition if necessary. `block`: see
    /// [`crate::config::Context::BLOCK`].
    pub fn find_or_promise(&mut self, name: &[u8], block: &'static str, limited: Limited) -> Arc<Zone<D>> {
        if let Some(z) = self.0.iter().find(|z| z.name == name) {
            return z.clone();
        }
        let outcomes = Outcomes::named(block, limited, name);
        let z = Arc::new(Zone { name: name.to_vec(), defined: OnceLock::new(), outcomes });
        self.0.push(z.clone());
        z
    }

    /// Returns nginx's error text for the first zone without a definition.
    pub fn undefined(&self) -> Option<String> {
        let z = self.0.iter().find(|z| z.defined.get().is_none())?;
        Some(format!("zero size shared memory zone \"{}\"", String::from_utf8_lossy(&z.name)))
    }
}

/// Reads `zone=NAME:SIZE` and returns name and size in bytes. Returns `None` if the word is another parameter.
///
/// # Errors
/// In nginx's words.
pub fn name_and_size(d: &Directive, w: &Word, cx: &Build<'_>) -> Result<Option<(Vec<u8>, usize)>, Error> {
    let Some(z) = w.text.strip_prefix(b"zone=") else { return Ok(None) };
    let invalid = || cx.error_at(d, w, format!("invalid zone size \"{}\"", w.as_str()));
    let at = memchr::memchr(b':', z).ok_or_else(invalid)?;
    let (name, size) = (&z[..at], units::size(&z[at + 1..]).ok_or_else(invalid)?);
    if size < 8 * 4096 {
        return Err(cx.error_at(d, w, format!("zone \"{}\" is too small", w.as_str())));
    }
    Ok(Some((name.to_vec(), usize::try_from(size).unwrap_or(usize::MAX))))
}

/// Tables of this process, by name, key and size of their zones.
#[derive(Debug)]
pub struct Tables<T>(Mutex<Vec<Known<T>>>);

#[derive(Debug)]
struct Known<T> {
    name: Vec<u8>,
    key: Vec<u8>,
    size: usize,
    table: Weak<Mutex<T>>,
}

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Tables::new()
    }
}

impl<T> Tables<T> {
    /// Creates an empty list.
    pub const fn new() -> Tables<T> {
        Tables(Mutex::new(Vec::new()))
    }

    /// Returns the memory use of each zone; `used` returns the bytes of a table.
    pub fn usage(&self, used: impl Fn(&T) -> usize) -> Vec<Usage> {
        let all = lock(&self.0);
        let each = all.iter().filter_map(|k| {
            let table = k.table.upgrade()?;
            let used = used(&lock(&table));
            Some(Usage { name: k.name.clone(), used, size: k.size })
        });
        each.collect()
    }

    /// Returns the table of a zone: the existing one, or a new one if name, key or size differ.
    pub fn get(&self, name: &[u8], key: &[u8], size: usize, make: impl FnOnce() -> T) -> Arc<Mutex<T>> {
        let mut all = lock(&self.0);
        // Drops tables that no configuration uses any more. A request that is counted in one still holds it.
        all.retain(|k| k.table.strong_count() > 0);
        let known = all.iter().find(|k| k.name == name && k.key == key && k.size == size);
        if let Some(table) = known.and_then(|k| k.table.upgrade()) {
            return table;
        }
        let table = Arc::new(Mutex::new(make()));
        all.push(Known { name: name.to_vec(), key: key.to_vec(), size, table: Arc::downgrade(&table) });
        table
    }
}
