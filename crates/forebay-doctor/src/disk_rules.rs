//! Rules for the file systems that a configuration uses.

use super::disk::{self, Disks, Use};
use super::rule_table;
use super::scene::Scene;
use forebay_conf::tree::Span;

/// Looks for one problem, and reports each place with its text.
pub(super) type Check = fn(&Scene<'_>, &Disks, &mut dyn FnMut(Span, String));

/// Paths to which the server writes.
const WRITTEN: &[Use] = &[Use::Cache, Use::Temp, Use::Log];

rule_table! { Check;
    "disk-full" Harm "a file system that is written to is nearly full"
    "When a temporary file cannot be written nginx ends the response in the middle, under a 200; a cache stores nothing more, and log lines are lost."
    "Make room; max_size and min_free of the cache, rotation of the logs."
    |s, d, found| for (n, m) in d.of(WRITTEN) {
        let (free, all) = m.bytes;
        if free < all / 20 && free < 1 << 30 {
            found(s.arg_span(n, 0), format!("{}: {} of {} left", m.point.display(), disk::size(free), disk::size(all)));
        } else if m.inodes.0 < m.inodes.1 / 50 {
            found(s.arg_span(n, 0), format!("{}: {} of {} inodes left", m.point.display(), m.inodes.0, m.inodes.1));
        }
    },
    "disk-read-only" Harm "a file system that is written to is read-only"
    "Responses larger than the buffers, caches and logs need it."
    "Another path, or mount it to be written to."
    |s, d, found| for (n, m) in d.of(WRITTEN).filter(|(_, m)| m.has("ro")) {
        found(s.arg_span(n, 0), format!("{} is mounted read-only", m.point.display()));
    },
    "cache-above-disk" Harm "a cache that may grow beyond its disk"
    "max_size is what the cache manager keeps to; above the size of the file system it means nothing, and without it the cache grows until the disk is full."
    "max_size= below the room there is, and min_free=."
    |s, d, found| for (n, m) in d.of(&[Use::Cache]) {
        match (disk::parameter(s, n, "max_size"), disk::parameter(s, n, "min_free")) {
            (Some(max), _) if max > m.bytes.1 => {
                found(s.span(n), format!("max_size is {}, {} has {}", disk::size(max), m.point.display(), disk::size(m.bytes.1)));
            }
            (None, None) => found(s.span(n), format!("no max_size: it may fill all {} that are free on {}", disk::size(m.bytes.0), m.point.display())),
            _ => {}
        }
    },
    "cache-in-memory" Warning "a cache or temporary files in memory"
    "tmpfs takes the memory that the page cache would use for the same files, and counts against the limit of the service's cgroup."
    "A directory on a disk: what is read often stays in the page cache."
    |s, d, found| for (n, m) in d.of(&[Use::Cache, Use::Temp]).filter(|(_, m)| m.kind == "tmpfs") {
        found(s.arg_span(n, 0), format!("{} is a tmpfs of {}", m.point.display(), disk::size(m.bytes.1)));
    },
    "cache-temp-apart" Warning "the cache and its temporary files on two file systems"
    "Each entry is written twice: a file cannot be renamed across file systems, so it is copied."
    "use_temp_path=off on proxy_cache_path."
    |s, d, found| for (n, m) in d.of(&[Use::Cache]).filter(|(n, _)| !s.args(*n).iter().any(|a| a == "use_temp_path=off")) {
        let temp = s.nodes[n].d.name.as_str().replace("_cache_path", "_temp_path");
        for (t, other) in d.of(&[Use::Temp]).filter(|(t, o)| s.is(*t, &temp) && o.point != m.point) {
            found(s.arg_span(t, 0), format!("{} and {} are two file systems", other.point.display(), m.point.display()));
        }
    },
    "files-remote" Warning "files on another machine"
    "nginx opens files on the thread that serves all connections of a worker: while the other machine is slow, all of them wait. Forebay reads cold files on threads apart."
    "A copy on a local disk; else aio threads and open_file_cache, with an open_file_cache_valid of a few seconds."
    |s, d, found| for (n, m) in d.of(&[Use::Files]).filter(|(_, m)| m.remote()) {
        found(s.arg_span(n, 0), format!("{} is {}", m.point.display(), m.kind));
    },
    "disk-turns" Advice "files on a disk that turns, and reading blocks the worker"
    "Reading what is not in memory takes some 10 ms, in which an nginx worker does nothing else."
    "aio threads, with sendfile on. On Forebay it is always so."
    |s, d, found| for (n, m) in d.of(&[Use::Files]).filter(|(_, m)| m.rotational) {
        let aio = s.effective(s.parent(n), "aio").map(|a| s.arg(a, 0));
        if !aio.is_some_and(|a| a.starts_with("threads") || a == "on") {
            found(s.arg_span(n, 0), format!("{} is on a disk that turns", m.point.display()));
        }
    },
    "atime" Advice "each reading of a file is written down"
    "Without noatime or relatime the time of the last access is updated at each read, which makes writes of reads."
    "Mount it with noatime, or relatime, which is the default."
    |s, d, found| for (n, m) in d.of(&[Use::Files, Use::Cache]).filter(|(_, m)| m.notes_reads()) {
        found(s.arg_span(n, 0), format!("{} is mounted without relatime", m.point.display()));
    },
}
