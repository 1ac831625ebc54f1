//! File name patterns as glob(3) expands them: `*`, `?`, `[a-z]`, `[!a-z]`, backslash.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns `true` if nginx would expand the name rather than open it.
pub(crate) fn is_pattern(name: &[u8]) -> bool {
    name.iter().any(|b| matches!(b, b'*' | b'?' | b'['))
}

/// Returns the paths that match, sorted by bytes. Directories that cannot be read have no matches.
pub(crate) fn expand(pattern: &Path) -> Vec<PathBuf> {
    let bytes = pattern.as_os_str().as_bytes();
    let root = if bytes.starts_with(b"/") { b"/".to_vec() } else { vec![] };
    let parts: Vec<&[u8]> = bytes.split(|&b| b == b'/').filter(|p| !p.is_empty()).collect();
    let mut found = vec![root];
    for (i, part) in parts.iter().enumerate() {
        let last = i + 1 == parts.len();
        found = found.iter().flat_map(|dir| step(dir, part, last)).collect();
    }
    found.sort();
    found.into_iter().map(|path| PathBuf::from(OsStr::from_bytes(&path))).collect()
}

/// Returns those of `paths` that match, sorted by bytes.
pub(crate) fn among<'p>(pattern: &Path, paths: impl Iterator<Item = &'p OsStr>) -> Vec<PathBuf> {
    let pattern = pattern.as_os_str().as_bytes();
    // Of a large configuration most paths are elsewhere, which the bytes of the folder tell.
    let special = pattern.iter().position(|b| matches!(b, b'*' | b'?' | b'[' | b'\\'));
    let folder = pattern.get(..special.unwrap_or(pattern.len())).unwrap_or_default();
    let folder = folder.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    let (folder, rest) = pattern.split_at(folder);
    let below =
        |path: &&'p OsStr| path.as_bytes().strip_prefix(folder).is_some_and(|name| matches_path(rest, name));
    let mut found: Vec<&OsStr> = paths.filter(below).collect();
    // The order of `OsStr` is that of its bytes; that of paths is another, and slow.
    found.sort_unstable();
    found.into_iter().map(PathBuf::from).collect()
}

/// Returns `true` if a path matches, component by component.
fn matches_path(pattern: &[u8], path: &[u8]) -> bool {
    let mut parts = pattern.split(|&b| b == b'/').zip(path.split(|&b| b == b'/'));
    let slashes = |bytes: &[u8]| bytes.iter().filter(|b| **b == b'/').count();
    slashes(pattern) == slashes(path) && parts.all(|(pattern, name)| matches(pattern, name))
}

fn step(dir: &[u8], part: &[u8], last: bool) -> Vec<Vec<u8>> {
    if !is_pattern(part) {
        let path = join(dir, &unescape(part));
        let there = Path::new(OsStr::from_bytes(&path)).symlink_metadata().is_ok();
        return if there { vec![path] } else { vec![] };
    }
    let at = if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) };
    let Ok(entries) = std::fs::read_dir(at) else {
        return vec![];
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().as_bytes().to_vec())
        .filter(|name| matches(part, name))
        .map(|name| join(dir, &name))
        .filter(|path| last || Path::new(OsStr::from_bytes(path)).is_dir())
        .collect()
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend(name);
    path
}

fn unescape(part: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.iter();
    while let Some(&byte) = bytes.next() {
        out.push(if byte == b'\\' { *bytes.next().unwrap_or(&b'\\') } else { byte });
    }
    out
}

/// Returns `true` if one path component matches. A leading dot must be written.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    // After a `*` one place to come back to is enough: a later `*` makes earlier ones settled.
    let (mut p, mut n) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            back = Some((p + 1, n));
            p += 1;
            continue;
        }
        let Some(&byte) = name.get(n) else { return p == pattern.len() };
        if let Some(used) = one(pattern.get(p..).unwrap_or_default(), byte) {
            p += used;
            n += 1;
            continue;
        }
        let Some((from, start)) = back else { return false };
        back = Some((from, start + 1));
        (p, n) = (from, start + 1);
    }
}

/// Returns the pattern bytes used up when the first element of `pattern` matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => {
            set(rest, byte).map_or((byte == b'[').then_some(1), |(inside, used)| inside.then_some(used + 1))
        }
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [first, ..] => (*first == byte).then_some(1),
        [] => None,
    }
}

/// Reads a set behind its `[`. Returns whether `byte` is in it, and its length; `None` if it has no end.
fn set(pattern: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let mut at = usize::from(negated);
    let mut inside = false;
    let mut first = true;
    loop {
        if !first && pattern.get(at) == Some(&b']') {
            return Some((inside != negated, at + 1));
        }
        first = false;
        let (low, used) = pattern.get(at..).and_then(set_byte)?;
        at += used;
        let high = pattern.get(at..).and_then(range_end);
        inside |= (low..=high.unwrap_or(low)).contains(&byte);
        at += if high.is_some() { 2 } else { 0 };
    }
}

/// Returns the last byte of a range whose first one is before `rest`.
fn range_end(rest: &[u8]) -> Option<u8> {
    match rest {
        [b'-', high, ..] if *high != b']' => Some(*high),
        _ => None,
    }
}

/// Returns the byte at the front of a set, and the number of pattern bytes that it takes.
fn set_byte(rest: &[u8]) -> Option<(u8, usize)> {
    match rest {
        [b'\\', escaped, ..] => Some((*escaped, 2)),
        [byte, ..] => Some((*byte, 1)),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components() {
        for (pattern, name) in [
            ("*", "a"),
            ("*.conf", "a.conf"),
            ("a*b*c", "aXbYbc"),
            ("?", "x"),
            ("[a-c]1", "b1"),
            ("[!a]", "b"),
            ("[]]", "]"),
            ("[^]]", "x"),
            ("[a-]", "-"),
            ("a[", "a["),
            ("\\*", "*"),
            (".*", ".a"),
            ("**", ""),
            ("[\\]]", "]"),
            ("[a", "[a"),
        ] {
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*", ".a"),
            ("?", ""),
            ("*.conf", "a.conf~"),
            ("[a-c]", "d"),
            ("[!a]", "a"),
            ("\\*", "a"),
            ("", "a"),
            ("a*", "ba"),
            ("?a", ".a"),
        ] {
            assert!(!matches(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn expands_in_order_of_bytes() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in ["b.conf", "a.conf", "A.conf", ".h.conf", "c.txt"] {
            std::fs::write(dir.path().join(name), "").expect("write");
        }
        std::fs::create_dir(dir.path().join("d1")).expect("mkdir");
        std::fs::write(dir.path().join("d1/x"), "").expect("write");
        std::os::unix::fs::symlink("/nonexistent", dir.path().join("z.conf")).expect("link");
        let names = |p: &str| -> Vec<String> {
            let found = expand(&dir.path().join(p));
            found.iter().map(|f| f.strip_prefix(dir.path()).expect("inside").display().to_string()).collect()
        };
        assert_eq!(names("*.conf"), ["A.conf", "a.conf", "b.conf", "z.conf"]);
        assert_eq!(names("d?/x"), ["d1/x"]);
        assert_eq!(names("*/x"), ["d1/x"]);
        assert_eq!(names("*.none"), Vec::<String>::new());
        assert_eq!(names("no/*"), Vec::<String>::new());
    }
}
