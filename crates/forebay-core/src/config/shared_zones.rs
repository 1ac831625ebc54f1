//! Names of shared memory zones. A name has one use in a configuration, also across front ends.

use super::scope::Build;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::collections::HashMap;

/// Use of a zone: its front end's block, and the module there.
pub(super) type ZoneUse = (&'static str, &'static str);

/// Use of a zone and its size in bytes; `None` as long as no directive gives it.
type Declared = (ZoneUse, Option<u64>);

/// Zones that directives have named so far, by name: controllers of Kubernetes give each group one.
#[derive(Debug, Default)]
pub(super) struct SharedZones(HashMap<Vec<u8>, Declared, foldhash::fast::RandomState>);

impl SharedZones {
    pub(super) fn declare(
        &mut self,
        name: &[u8],
        zone_use: ZoneUse,
        size: Option<u64>,
    ) -> Result<(), String> {
        let Some((known_use, known_size)) = self.0.get_mut(name) else {
            self.0.insert(name.to_vec(), (zone_use, size));
            return Ok(());
        };
        let text = String::from_utf8_lossy(name);
        if *known_use != zone_use {
            return Err(format!("the shared memory zone \"{text}\" is already declared for a different use"));
        }
        match (*known_size, size) {
            (Some(old), Some(new)) if old != new => Err(format!(
                "the size {new} of shared memory zone \"{text}\" conflicts with already declared size {old}"
            )),
            _ => {
                *known_size = known_size.or(size);
                Ok(())
            }
        }
    }
}

impl Build<'_> {
    /// Notes that a directive names a shared memory zone. `size` is in bytes; `None` if the directive gives none.
    ///
    /// # Errors
    /// If the zone has another use or another size.
    pub fn share_zone(
        &mut self,
        d: &Directive,
        name: &[u8],
        zone_use: ZoneUse,
        size: Option<u64>,
    ) -> Result<(), Error> {
        self.note_zone((name.to_vec(), zone_use, size));
        self.shared_zones.declare(name, zone_use, size).map_err(|text| self.error(d, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_has_one_use_and_one_size() {
        let mut zones = SharedZones::default();
        let of_http = ("http", "limit_conn");
        assert_eq!(zones.declare(b"a", of_http, None), Ok(()));
        assert_eq!(zones.declare(b"a", of_http, Some(1 << 20)), Ok(()));
        assert_eq!(zones.declare(b"a", of_http, None), Ok(()));
        assert_eq!(zones.declare(b"a", of_http, Some(1 << 20)), Ok(()));
        let text =
            "the size 2097152 of shared memory zone \"a\" conflicts with already declared size 1048576";
        assert_eq!(zones.declare(b"a", of_http, Some(2 << 20)), Err(text.to_owned()));
        let other = "the shared memory zone \"a\" is already declared for a different use".to_owned();
        assert_eq!(zones.declare(b"a", ("stream", "limit_conn"), Some(1 << 20)), Err(other.clone()));
        assert_eq!(zones.declare(b"a", ("http", "limit_req"), None), Err(other));
        assert_eq!(zones.declare(b"b", ("http", "limit_req"), None), Ok(()));
    }
}
