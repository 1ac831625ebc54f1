//! Rules for the file systems that a configuration uses.

use super::checks;
use crate::facts::disk::{self, Disks, Use};
use crate::scene::Scene;
use forebay_conf::tree::Span;

/// Looks for one problem, and reports each place with its text.
pub(crate) type Check = fn(&Scene<'_>, &Disks, &mut dyn FnMut(Span, String));

/// Paths to which the server writes.
const WRITTEN: &[Use] = &[Use::Cache, Use::Temp, Use::Log];

checks! { Check;
    "disk-full" |s, d, found| for (n, m) in d.of(WRITTEN) {
        let (free, all) = m.bytes;
        if free < all / 20 && free < 1 << 30 {
            found(s.arg_span(n, 0), format!("{}: {} of {} left", m.point.display(), disk::size(free), disk::size(all)));
        } else if m.inodes.0 < m.inodes.1 / 50 {
            found(s.arg_span(n, 0), format!("{}: {} of {} inodes left", m.point.display(), m.inodes.0, m.inodes.1));
        }
    },
    "disk-read-only" |s, d, found| for (n, m) in d.of(WRITTEN).filter(|(_, m)| m.has("ro")) {
        found(s.arg_span(n, 0), format!("{} is mounted read-only", m.point.display()));
    },
    "cache-above-disk" |s, d, found| for (n, m) in d.of(&[Use::Cache]) {
        match (disk::parameter(s, n, "max_size"), disk::parameter(s, n, "min_free")) {
            (Some(max), _) if max > m.bytes.1 => {
                found(s.span(n), format!("max_size is {}, {} has {}", disk::size(max), m.point.display(), disk::size(m.bytes.1)));
            }
            (None, None) if !super::passing::is_used(s, n, s.nodes[n].d.name.as_str().trim_end_matches("_cache_path")) => {}
            (None, None) => found(s.span(n), format!("no max_size: it may fill all {} that are free on {}", disk::size(m.bytes.0), m.point.display())),
            _ => {}
        }
    },
    "cache-in-memory" |s, d, found| for (n, m) in d.of(&[Use::Cache, Use::Temp]).filter(|(_, m)| m.kind == "tmpfs") {
        found(s.arg_span(n, 0), format!("{} is a tmpfs of {}", m.point.display(), disk::size(m.bytes.1)));
    },
    "cache-temp-apart" |s, d, found| for (n, m) in d.of(&[Use::Cache]).filter(|(n, _)| !s.has(*n, "use_temp_path=off")) {
        let temp = s.nodes[n].d.name.as_str().replace("_cache_path", "_temp_path");
        for (t, other) in d.of(&[Use::Temp]).filter(|(t, o)| s.is(*t, &temp) && o.point != m.point) {
            found(s.arg_span(t, 0), format!("{} and {} are two file systems", other.point.display(), m.point.display()));
        }
    },
    "files-remote" |s, d, found| for (n, m) in d.of(&[Use::Files]).filter(|(_, m)| m.remote()) {
        found(s.arg_span(n, 0), format!("{} is {}", m.point.display(), m.kind));
    },
    "disk-turns" |s, d, found| for (n, m) in d.of(&[Use::Files]).filter(|(_, m)| m.rotational) {
        let aio = s.effective(s.parent(n), "aio").map(|a| s.arg(a, 0));
        if !aio.is_some_and(|a| a.starts_with("threads") || a == "on") {
            found(s.arg_span(n, 0), format!("{} is on a disk that turns", m.point.display()));
        }
    },
    "atime" |s, d, found| for (n, m) in d.of(&[Use::Files, Use::Cache]).filter(|(_, m)| m.notes_reads()) {
        found(s.arg_span(n, 0), format!("{} is mounted without relatime", m.point.display()));
    },
}
