//! Entries of a directory, as listings show them.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

/// Size of the buffer into which the kernel puts names, bytes.
const AT_ONCE: usize = 32 * 1024;

/// Type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Directory,
    File,
    Other,
}

/// An entry of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed<'n> {
    pub name: &'n [u8],
    pub kind: Type,
    /// Bytes.
    pub size: u64,
    /// Time of the last change, seconds since 1970.
    pub mtime: i64,
}

/// The visible entries of a directory: directories first, then by name.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// All names, one after the other.
    names: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Position among the names, bytes.
    start: usize,
    len: usize,
    kind: Type,
    size: u64,
    mtime: i64,
}

impl Entry {
    fn name<'n>(&self, names: &'n [u8]) -> &'n [u8] {
        names.get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl Listing {
    /// Reads the entries of a directory, except hidden ones, and sorts them. Blocks.
    ///
    /// # Errors
    /// The directory, or an entry, cannot be read.
    pub(super) fn read(path: &[u8]) -> Result<Listing, Errno> {
        let mut listing = Listing::default();
        visit(path, |dir, name, _| listing.add(dir, name))?;
        listing.sort();
        Ok(listing)
    }

    /// Sorts the entries. Numbers made of the first bytes in which the names differ decide nearly always, and are compared and moved
    /// faster than names and entries.
    fn sort(&mut self) {
        let Listing { names, entries } = self;
        let name = |e: &Entry| e.name(names);
        let Some(first) = entries.first().map(name) else { return };
        // In many directories all names begin alike (IMG_0001.jpg), and such bytes would decide nothing.
        let shared = |name: &[u8]| name.iter().zip(first).take_while(|(a, b)| a == b).count();
        let shared = entries.iter().map(|e| shared(name(e))).min().unwrap_or_default();
        let key = |e: &Entry| {
            let mut bytes = [0; 8];
            // No name has a zero byte, so the shorter of two names has the lower number.
            bytes.iter_mut().zip(name(e).iter().skip(shared)).for_each(|(to, from)| *to = *from);
            u64::from_be_bytes(bytes) >> 1 | u64::from(e.kind != Type::Directory) << 63
        };
        let mut order: Vec<(u64, usize)> = entries.iter().enumerate().map(|(n, e)| (key(e), n)).collect();
        order.sort_unstable_by(|&(a, x), &(b, y)| {
            a.cmp(&b).then_with(|| name(&entries[x]).cmp(name(&entries[y])))
        });
        *entries = order.into_iter().map(|(_, n)| entries[n]).collect();
    }

    /// Adds an entry, unless it was deleted since the directory was read, or is not accessible.
    fn add(&mut self, dir: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let stat = match rustix::fs::statat(dir, name, AtFlags::empty()) {
            // A broken link is listed as the link itself.
            Err(Errno::NOENT | Errno::LOOP) => rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW),
            other => other,
        };
        match stat {
            Ok(stat) => self.push(name.to_bytes(), &stat),
            Err(Errno::NOENT | Errno::ACCESS) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn push(&mut self, name: &[u8], stat: &Stat) {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Type::Directory,
            FileType::RegularFile => Type::File,
            _ => Type::Other,
        };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.entries.push(Entry {
            // The names share one buffer, as an allocation for each would take longer than reading a large
            // directory.
            start: self.names.len(),
            len: name.len(),
            kind,
            size,
            mtime: stat.st_mtime,
        });
        self.names.extend_from_slice(name);
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entries in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Listed<'_>> {
        self.entries.iter().map(|e| Listed {
            name: e.name(&self.names),
            kind: e.kind,
            size: e.size,
            mtime: e.mtime,
        })
    }
}

/// Calls `take` with each entry of a directory, except hidden ones: the open directory, the name, and the type that the file system
/// gives with the name. Blocks.
///
/// # Errors
/// The directory cannot be read, or `take` fails.
pub(crate) fn visit(
    path: &[u8],
    mut take: impl FnMut(&OwnedFd, &CStr, FileType) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let mut room = Vec::with_capacity(AT_ONCE);
    let mut all = RawDir::new(fd.as_fd(), room.spare_capacity_mut());
    while let Some(entry) = all.next() {
        let entry = entry?;
        if entry.file_name().to_bytes().first() != Some(&b'.') {
            take(&fd, entry.file_name(), entry.file_type())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_first() {
        let dir = std::env::temp_dir().join(format!("forebay-autoindex-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("z")).unwrap();
        for f in ["b", "a", ".hidden"] {
            std::fs::write(dir.join(f), f).unwrap();
        }
        std::os::unix::fs::symlink("nowhere", dir.join("broken")).unwrap();
        let path = dir.as_os_str().as_encoded_bytes();
        let listing = Listing::read(path).unwrap();
        let found: Vec<_> = listing.iter().map(|e| (e.name, e.kind)).collect();
        let file = |name: &'static [u8]| (name, Type::File);
        let want = [(b"z".as_slice(), Type::Directory), file(b"a"), file(b"b"), (b"broken", Type::Other)];
        assert_eq!(found, want);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(Listing::read(path).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn entries_are_in_the_order_of_their_names() {
        // With a long beginning in common or none, and names that differ in the seventh, eighth and ninth byte after it.
        for beginning in ["", "p", "page-of-the-year-"] {
            let ends = [
                "",
                "b",
                "a",
                "aa",
                "abcdefgh",
                "abcdefgi",
                "abcdefghz",
                "abcdefghb",
                "abcdefg",
                "\u{ff}",
                "~",
                "A",
            ];
            for kinds in [[Type::File; 3], [Type::Directory, Type::File, Type::Other]] {
                let mut listing = Listing::default();
                for (n, end) in
                    ends.iter().enumerate().filter(|(_, end)| !(beginning.is_empty() && end.is_empty()))
                {
                    let name = [beginning, end].concat();
                    let start = listing.names.len();
                    listing.names.extend_from_slice(name.as_bytes());
                    listing.entries.push(Entry {
                        start,
                        len: name.len(),
                        kind: kinds[n % 3],
                        size: n as u64,
                        mtime: 0,
                    });
                }
                listing.sort();
                let found: Vec<_> =
                    listing.iter().map(|e| (e.kind != Type::Directory, e.name, e.size)).collect();
                let mut sorted = found.clone();
                sorted.sort();
                assert_eq!(found, sorted);
            }
        }
        let mut none = Listing::default();
        none.sort();
        assert_eq!(none.len(), 0);
    }

    #[test]
    fn a_directory_of_many_names_is_read_whole() {
        let dir = std::env::temp_dir().join(format!("forebay-autoindex-many-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        // More than the room for names at once.
        let names: Vec<_> = (0..500).map(|i| format!("{i:03}{}", "n".repeat(200))).collect();
        for name in &names {
            std::fs::write(dir.join(name), "").unwrap();
        }
        let listing = Listing::read(dir.as_os_str().as_encoded_bytes()).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(listing.iter().map(|e| e.name).eq(names.iter().map(|n| n.as_bytes())));
        assert_eq!(listing.len(), 500);
    }
}
