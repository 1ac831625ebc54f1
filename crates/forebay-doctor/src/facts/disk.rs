//! The file systems that a configuration uses: where its files, caches, temporary files and logs lie.

use crate::scene::Scene;
use forebay_conf::units;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Clone, Debug, Default)]
pub struct Mount {
    /// Mount point.
    pub point: PathBuf,
    /// Its kind, as in /proc/self/mountinfo.
    pub kind: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
    /// Bytes that may still be written, and all.
    pub bytes: (u64, u64),
    /// Free inodes, and all; 0 where the file system does not count them.
    pub inodes: (u64, u64),
    /// On a disk that turns.
    pub rotational: bool,
}

impl Mount {
    /// Returns `true` if it has an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }

    /// Returns `true` if the time of each read is recorded; unknown for file systems in memory or over the network.
    pub fn notes_reads(&self) -> bool {
        let disk = ["ext", "xfs", "btrfs", "f2fs"].iter().any(|k| self.kind.starts_with(k));
        disk && !["noatime", "relatime", "ro"].iter().any(|o| self.has(o))
    }

    /// Returns `true` if another machine, or a process, has to be asked for its files.
    pub fn remote(&self) -> bool {
        ["nfs", "cifs", "smb", "9p", "ceph", "afs", "fuse", "glusterfs", "virtiofs"]
            .iter()
            .any(|k| self.kind.starts_with(k))
    }
}

/// Use of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// `root`, `alias`.
    Files,
    /// `proxy_cache_path` and its like.
    Cache,
    /// `proxy_temp_path` and its like.
    Temp,
    /// `access_log`, `error_log`.
    Log,
}

/// A directory that a directive names.
#[derive(Clone, Debug)]
pub struct Place {
    /// The directive.
    pub node: usize,
    /// Its use.
    pub used: Use,
    /// Number of its file system.
    pub mount: usize,
}

/// The file systems, and the paths on them.
#[derive(Clone, Debug, Default)]
pub struct Disks {
    /// File systems in use.
    pub mounts: Vec<Mount>,
    /// Directories in reading order.
    pub places: Vec<Place>,
}

impl Disks {
    /// Looks at the paths of a configuration. A path that does not exist yet belongs to its first existing parent.
    pub fn find(scene: &Scene<'_>, prefix: &Path) -> Disks {
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let all = parse_mounts(&text);
        let mut disks = Disks::default();
        for (node, used, path) in named(scene) {
            let path = prefix.join(path);
            let Some(real) = path.ancestors().find_map(|p| p.canonicalize().ok()) else { continue };
            // Of file systems mounted on the same place the last hides the others.
            let best = all.iter().filter(|m| real.starts_with(&m.point));
            let Some(found) = best.max_by_key(|m| m.point.as_os_str().len()) else { continue };
            let mount = disks.mounts.iter().position(|m| m.point == found.point).unwrap_or_else(|| {
                disks.mounts.push(measured(found.clone(), &real));
                disks.mounts.len() - 1
            });
            disks.places.push(Place { node, used, mount });
        }
        disks
    }

    /// Directories for one of some uses, with their file systems.
    pub fn of<'d>(&'d self, uses: &'d [Use]) -> impl Iterator<Item = (usize, &'d Mount)> {
        let fits = self.places.iter().filter(move |p| uses.contains(&p.used));
        fits.filter_map(|p| Some((p.node, self.mounts.get(p.mount)?)))
    }

    /// Formats a line for people.
    pub fn text(&self) -> String {
        if self.mounts.is_empty() {
            return String::new();
        }
        let one = |m: &Mount| {
            let turns = if m.rotational { ", turning" } else { "" };
            format!(
                "{} ({}, {} of {} free{turns})",
                m.point.display(),
                m.kind,
                size(m.bytes.0),
                size(m.bytes.1)
            )
        };
        format!("file systems in use: {}\n", self.mounts.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// Formats a number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    if bytes >= 10 << 30 { format!("{} GB", bytes >> 30) } else { format!("{} MB", bytes >> 20) }
}

/// Returns the size that a parameter `NAME=SIZE` of a directive gives.
pub(crate) fn parameter(scene: &Scene<'_>, node: usize, name: &str) -> Option<u64> {
    let args = scene.args(node);
    let value = args.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='))?;
    units::offset(value.as_bytes())
}

/// Directories that directives name. Paths with variables are known only with a request.
fn named(scene: &Scene<'_>) -> Vec<(usize, Use, String)> {
    let mut out = Vec::new();
    for n in scene.with_name(|name| Use::of(name).is_some()) {
        let Some(used) = scene.nodes.get(n).and_then(|n| Use::of(&n.d.name.as_str())) else { continue };
        let path = scene.arg(n, 0);
        let known = !path.is_empty() && !path.contains('$');
        if known && !(used == Use::Log && is_no_file(path)) {
            out.push((n, used, path.to_owned()));
        }
    }
    out
}

impl Use {
    /// Returns the use of the path that a directive names.
    fn of(directive: &str) -> Option<Use> {
        match directive {
            "root" | "alias" => Some(Use::Files),
            "access_log" | "error_log" => Some(Use::Log),
            _ if directive.ends_with("_cache_path") => Some(Use::Cache),
            _ if directive.ends_with("_temp_path") => Some(Use::Temp),
            _ => None,
        }
    }
}

/// Returns `true` if a log is not written to a file.
fn is_no_file(log: &str) -> bool {
    matches!(log, "off" | "stderr") || ["syslog:", "memory:", "/dev/"].iter().any(|p| log.starts_with(p))
}

/// Parses the lines of /proc/self/mountinfo (proc(5)): "36 35 98:0 /root /point options shared:1 - kind source options".
fn parse_mounts(text: &str) -> Vec<Mount> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(4);
        let point = unescape(left.next()?).into();
        let mut options: Vec<String> = left.next()?.split(',').map(str::to_owned).collect();
        let mut right = right.split(' ');
        let kind = right.next()?.to_owned();
        options.extend(right.nth(1).unwrap_or_default().split(',').map(str::to_owned));
        Some(Mount { point, kind, options, ..Mount::default() })
    };
    text.lines().filter_map(parse).collect()
}

/// Blanks and the like stand as `\040` in mountinfo.
fn unescape(text: &str) -> String {
    let special = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    special.iter().fold(text.to_owned(), |t, (code, c)| t.replace(code, c))
}

/// Adds facts about the file system and its disk.
fn measured(mut m: Mount, at: &Path) -> Mount {
    if let Ok(s) = rustix::fs::statvfs(at) {
        m.bytes = (s.f_bavail * s.f_frsize, s.f_blocks * s.f_frsize);
        m.inodes = (s.f_favail, s.f_files);
    }
    if let Ok(meta) = std::fs::metadata(at) {
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        // A partition has no queue of its own, its disk has.
        let disk = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let files = ["queue/rotational", "../queue/rotational"].map(|f| disk.join(f));
        let turns =
            files.iter().find_map(|f| std::fs::read_to_string(f).ok()).is_some_and(|t| t.trim() == "1");
        // The disks of virtual machines are reported as rotating, whatever hardware they are on.
        let device = disk.canonicalize().unwrap_or_default();
        m.rotational = turns && !device.to_string_lossy().contains("/virtio");
    }
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let text = "22 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda rw,discard\n\
                    30 22 0:40 / /srv/a\\040b ro,relatime - nfs4 host:/x rw,vers=4.2\nbroken\n";
        let mounts = parse_mounts(text);
        let points: Vec<_> = mounts.iter().map(|m| m.point.to_string_lossy().into_owned()).collect();
        assert_eq!(points, ["/", "/srv/a b"]);
        assert!(mounts[0].has("noatime") && mounts[0].has("discard") && !mounts[0].remote());
        assert!(mounts[1].has("ro") && mounts[1].remote());
    }

    #[test]
    fn a_directory_of_this_machine() {
        let conf = "http { root /nowhere/at/all; access_log off; error_log syslog:server=x; \
                    proxy_cache_path /tmp/$x keys_zone=a:1m; proxy_temp_path temp; }";
        let mut files = forebay_conf::files::Files::recorded([("/n", conf)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n"), "", Path::new("/"), &mut files);
        let disks = Disks::find(&Scene::new(&parsed.tree), Path::new("/"));
        assert_eq!(disks.places.iter().map(|p| p.used).collect::<Vec<_>>(), [Use::Files, Use::Temp]);
        let (_, mount) = disks.of(&[Use::Temp]).next().expect("found");
        assert!(mount.bytes.1 >= mount.bytes.0 && mount.bytes.1 > 0, "{mount:?}");
        assert!(disks.text().contains(&mount.kind));
    }
}
