//! Every file the configuration is made of, read once and recorded.
//!
//! The master reads from disk with its privilege; the record goes to the worker, which builds the same
//! configuration from it without touching the disk.
//!
//! So the worker needs no right to read the configuration.

use crate::error::Error;
use crate::glob;
use crate::tree::{FileId, Span};
use foldhash::fast::RandomState;
use forebay_sys::files::{MAX_WHOLE, NotRegular, is_not_regular, read_input};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Configuration of nginx.
pub const NGINX_CONF: &str = "/etc/nginx/nginx.conf";
/// Configuration of Forebay's package.
pub const PACKAGE_CONF: &str = "/etc/forebay/nginx.conf";

/// Returns the configuration that is meant when none is named: nginx's, or the package's where there is no nginx.
pub fn default_configuration() -> PathBuf {
    let paths = [NGINX_CONF, PACKAGE_CONF].map(Path::new);
    paths.into_iter().find(|path| path.exists()).unwrap_or(Path::new(NGINX_CONF)).to_owned()
}

/// Reads and remembers files and glob results.
#[derive(Debug, Default)]
pub struct Files {
    recorded_only: bool,
    order: Vec<Name>,
    contents: HashMap<Name, (FileId, Content), RandomState>,
    globs: BTreeMap<PathBuf, Arc<[PathBuf]>>,
    globals: Arc<[u8]>,
    configuration: Vec<FileId>,
    /// The same as a set: a configuration may have a file for each of its servers.
    is_configuration: HashSet<FileId>,
    /// Files of the former configuration: see [`Files::after`].
    former: Option<Arc<Files>>,
    /// Memory for what is read from the disk.
    buffer: Vec<u8>,
    /// Files and patterns asked for since [`Files::exchange_reads`].
    reads: Reads,
}

/// Path of a file. Equal names have the same bytes; paths are compared by their components, which takes long.
type Name = Arc<OsStr>;

/// A file's bytes, or the errno of the attempt to get them.
type Content = Result<Arc<[u8]>, i32>;

/// Files and patterns that a part of a configuration was made from, with what they held.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    files: Vec<(Name, Content)>,
    globs: Vec<(PathBuf, Arc<[PathBuf]>)>,
}

impl Reads {
    /// Adds those of another part.
    pub fn append(&mut self, mut other: Reads) {
        self.files.append(&mut other.files);
        self.globs.append(&mut other.globs);
    }

    /// Sorts them, so that each occurs once. Two parts that read the same, in whatever order, are then equal.
    pub fn sorted(mut self) -> Reads {
        self.files.sort_by(|a, b| a.0.cmp(&b.0));
        self.files.dedup_by(|a, b| a.0 == b.0);
        self.globs.sort();
        self.globs.dedup();
        self.files.shrink_to_fit();
        self
    }

    /// Returns `true` if all files hold what they held, and all patterns match the same files. Does not count as use of them.
    pub fn are_current(&self, files: &mut Files) -> bool {
        self.globs.iter().all(|(pattern, found)| files.matches(pattern) == *found)
            && self.hold_the_same(files)
    }

    /// Returns `true` if all files hold what they held. Does not count as use of them.
    pub fn hold_the_same(&self, files: &mut Files) -> bool {
        self.files.iter().all(|(path, content)| files.content(path).is_some_and(|now| same(now, content)))
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| Path::new(&**path))
    }

    /// Returns `true` if the same files were read, with the same contents. Both must be sorted. Patterns do not count.
    pub fn read_the_same(&self, other: &Reads) -> bool {
        let equal = |(a, b): (&(Name, Content), &(Name, Content))| a.0 == b.0 && same(&a.1, &b.1);
        self.files.len() == other.files.len() && self.files.iter().zip(&other.files).all(equal)
    }
}

fn same(a: &Content, b: &Content) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => Arc::ptr_eq(a, b) || a == b,
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

/// ENOENT, the result for files that are not in the record.
const MISSING: i32 = 2;
/// EIO, for failures that carry no errno.
const FAILED: i32 = 5;

impl Files {
    /// Reads from the disk, each file once.
    pub fn disk() -> Files {
        Files::default()
    }

    /// Makes a record of files with these contents, without a disk. Patterns match among them. For tests and generated
    /// configurations.
    pub fn recorded<P: Into<PathBuf>, B: Into<Vec<u8>>>(files: impl IntoIterator<Item = (P, B)>) -> Files {
        let mut record = Files { recorded_only: true, ..Files::default() };
        for (path, bytes) in files {
            record.insert(path.into().into_os_string().into(), Ok(bytes.into().into()));
        }
        record
    }

    /// Returns a file of a record; `None` if it is not there, or files are read from the disk.
    pub fn of_record(&mut self, path: &Path) -> Option<Arc<[u8]>> {
        if !self.recorded_only {
            return None;
        }
        self.read_shared(path).ok().map(|(_, bytes)| bytes)
    }

    /// Makes a record of files as [`Files::recorded`] does, of bytes that are shared with their owner.
    pub fn shared(files: impl IntoIterator<Item = (PathBuf, Arc<[u8]>)>) -> Files {
        let mut record = Files { recorded_only: true, ..Files::default() };
        for (path, bytes) in files {
            record.insert(path.into_os_string().into(), Ok(bytes));
        }
        record
    }

    /// Reads for the configuration after that of `former`: files that hold the same bytes share them.
    pub fn after(mut self, former: Option<Arc<Files>>) -> Files {
        self.former = former;
        let read = std::mem::take(&mut self.contents);
        for path in std::mem::take(&mut self.order) {
            if let Some((_, content)) = read.get(&path) {
                let content = content.clone();
                self.insert(path, content);
            }
        }
        self
    }

    /// Returns a record of the same files. It never reads the disk, but for [`Files::refresh`].
    pub fn as_record(&self) -> Files {
        Files {
            recorded_only: true,
            order: self.order.clone(),
            contents: self.contents.clone(),
            globs: self.globs.clone(),
            globals: self.globals.clone(),
            ..Files::default()
        }
    }

    /// Ends the connection with the configuration before.
    pub fn forget_former(&mut self) {
        self.former = None;
        self.buffer = Vec::new();
    }

    /// Counts files as asked for.
    pub fn note_reads(&mut self, reads: Reads) {
        self.reads.append(reads);
    }

    /// Begins a list of the files that are asked for, and returns the one so far.
    pub fn exchange_reads(&mut self, reads: Reads) -> Reads {
        std::mem::replace(&mut self.reads, reads)
    }

    /// Reads a file unless that has been done, and keeps the result.
    fn look_up(&mut self, path: &OsStr) {
        if !self.contents.contains_key(path) {
            let got = if self.recorded_only { Err(MISSING) } else { self.read_again(path) };
            let name =
                self.former.as_ref().and_then(|f| f.contents.get_key_value(path)).map(|(n, _)| n.clone());
            self.insert(name.unwrap_or_else(|| path.into()), got);
        }
    }

    /// Reads a file from the disk. If it holds what it held before, the bytes are shared, and nothing is copied.
    fn read_again(&mut self, path: &OsStr) -> Content {
        let before = self.former.as_ref().and_then(|former| former.contents.get(path));
        let Some((_, Ok(before))) = before else { return read_disk(Path::new(path)) };
        self.buffer.clear();
        match read_input(Path::new(path), MAX_WHOLE, &mut self.buffer) {
            Ok(_) if **before == *self.buffer => Ok(before.clone()),
            Ok(_) => Ok(self.buffer.as_slice().into()),
            Err(e) => Err(errno_of(&e)),
        }
    }

    fn content(&mut self, path: &OsStr) -> Option<&Content> {
        self.look_up(path);
        self.contents.get(path).map(|(_, content)| content)
    }

    /// Reads a file. Returns its bytes. Keeps errors, too, with their errno.
    pub fn read(&mut self, path: &Path) -> io::Result<(FileId, &[u8])> {
        let path = path.as_os_str();
        self.look_up(path);
        if let Some((name, (_, content))) = self.contents.get_key_value(path) {
            self.reads.files.push((name.clone(), content.clone()));
        }
        match self.contents.get(path) {
            Some((id, Ok(bytes))) => Ok((*id, bytes)),
            Some((_, Err(errno))) => Err(error_of(*errno)),
            None => Err(io::Error::from_raw_os_error(MISSING)),
        }
    }

    /// Reads a file like [`Files::read`], but shares the bytes rather than lending them.
    pub fn read_shared(&mut self, path: &Path) -> io::Result<(FileId, Arc<[u8]>)> {
        let id = self.read(path)?.0;
        match self.contents.get(path.as_os_str()) {
            Some((_, Ok(bytes))) => Ok((id, bytes.clone())),
            _ => Err(io::Error::from_raw_os_error(MISSING)),
        }
    }

    /// Reads a file again, also into a record that otherwise does not touch the disk: keys and certificates are
    /// renewed while a configuration is in use.
    pub fn refresh(&mut self, path: &Path) {
        if let Some((_, content)) = self.contents.get_mut(path.as_os_str()) {
            *content = read_disk(path);
        }
    }

    /// Returns the patterns' matches as [`Files::glob`] does, without counting as a use.
    fn matches(&mut self, pattern: &Path) -> Arc<[PathBuf]> {
        if let Some(found) = self.globs.get(pattern) {
            return found.clone();
        }
        let found = if self.recorded_only { self.recorded_matches(pattern) } else { glob::expand(pattern) };
        let found: Arc<[PathBuf]> = found.into();
        self.globs.insert(pattern.to_owned(), found.clone());
        found
    }

    /// Returns the files of a record that match a pattern, in the order of their names.
    fn recorded_matches(&self, pattern: &Path) -> Vec<PathBuf> {
        let there = self.contents.iter().filter(|(_, (_, content))| content.is_ok());
        glob::among(pattern, there.map(|(path, _)| &**path))
    }

    /// Returns the paths that match a pattern with `*`, `?` or `[...]`, sorted by bytes as glob(3) sorts in the C locale.
    pub(crate) fn glob(&mut self, pattern: &Path) -> Arc<[PathBuf]> {
        let found = self.matches(pattern);
        self.reads.globs.push((pattern.to_owned(), found.clone()));
        found
    }

    /// Returns the path of a file. It is `command line` for the text of the `-g` option.
    pub fn path(&self, id: FileId) -> &Path {
        let unknown = if id == FileId::COMMAND_LINE { "command line" } else { "(unknown)" };
        self.order.get(id.0 as usize).map_or(Path::new(unknown), |p| Path::new(&**p))
    }

    /// Returns the bytes of a file, or of the `-g` option; empty if it could not be read.
    pub fn bytes(&self, id: FileId) -> &[u8] {
        if id == FileId::COMMAND_LINE {
            return &self.globals;
        }
        match self.order.get(id.0 as usize).and_then(|path| self.contents.get(path)) {
            Some((_, Ok(bytes))) => bytes,
            _ => &[],
        }
    }

    /// Returns the configuration files (not keys and the like), each once, in the order of first use, as `-T` prints them.
    /// Units that were taken over ([`crate::parse::parse_after`]) are not among them.
    pub fn iter(&self) -> impl Iterator<Item = (FileId, &Path, &[u8])> {
        self.configuration.iter().map(|&id| (id, self.path(id), self.bytes(id)))
    }

    /// Formats an error as `message in /path:LINE`, as nginx ends its lines.
    pub fn render(&self, error: &Error) -> String {
        match error.at {
            None => error.message.clone(),
            Some(Span { file: FileId::COMMAND_LINE, .. }) => format!("{} in command line", error.message),
            Some(at) => format!("{} in {}:{}", error.message, self.path(at.file).display(), at.line),
        }
    }

    /// Keeps the `-g` text, for spans that point into it.
    pub(crate) fn set_globals(&mut self, text: &[u8]) {
        self.globals = text.into();
    }

    /// Counts a file among those of [`Files::iter`].
    pub(crate) fn mark_configuration(&mut self, id: FileId) {
        if self.is_configuration.insert(id) {
            self.configuration.push(id);
        }
    }

    /// Takes these bytes for a file in place of those on the disk: a text that is not written yet. To be called before the file is read.
    pub fn put(&mut self, path: &Path, bytes: Arc<[u8]>) {
        match self.contents.get_mut(path.as_os_str()) {
            Some((_, content)) => *content = Ok(bytes),
            None => self.insert(path.as_os_str().into(), Ok(bytes)),
        }
    }

    fn insert(&mut self, path: Name, content: Content) {
        let id = FileId(u32::try_from(self.order.len()).unwrap_or(u32::MAX));
        let before = self.former.as_ref().and_then(|former| former.contents.get(&path));
        let content = match before {
            Some((_, before)) if same(before, &content) => before.clone(),
            _ => content,
        };
        self.order.push(path.clone());
        self.contents.insert(path, (id, content));
    }
}

fn read_disk(path: &Path) -> Content {
    // A NUL ends a name for the kernel; Rust refuses it before asking.
    let mut bytes = Vec::new();
    read_input(path, MAX_WHOLE, &mut bytes).map(|()| Arc::from(bytes)).map_err(|e| errno_of(&e))
}

fn errno_of(error: &io::Error) -> i32 {
    match error.kind() {
        _ if is_not_regular(error) => NOT_REGULAR,
        io::ErrorKind::InvalidInput => MISSING,
        _ => error.raw_os_error().unwrap_or(FAILED),
    }
}

/// Makes the error of a number in a record.
fn error_of(errno: i32) -> io::Error {
    if errno == NOT_REGULAR { NotRegular.into() } else { io::Error::from_raw_os_error(errno) }
}

/// Begins every record; the last byte is the version.
const MAGIC: &[u8; 8] = b"fbfiles\x01";
/// In the place of an errno: the reader has the file.
const KNOWN: i32 = -2;
/// In the place of an errno: [`NotRegular`].
const NOT_REGULAR: i32 = -3;

impl Files {
    /// Returns the paths of all files that were asked for, keys and the like included, and missing ones too.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.contents.keys().map(|path| Path::new(&**path))
    }

    /// Returns the folders in which `include` has looked for files.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.globs.keys().filter_map(|pattern| pattern.parent())
    }

    /// Returns the number of bytes in all files, keys and the like included.
    pub fn size(&self) -> usize {
        self.contents.values().filter_map(|(_, content)| content.as_ref().ok()).map(|bytes| bytes.len()).sum()
    }

    /// Encodes the record, for [`Files::from_bytes`].
    ///
    /// Little-endian: magic and version, the `-g` text, files in order (path, errno or -1, bytes), globs
    /// (pattern, paths). Every string and list is preceded by its length in 4 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_after(None)
    }

    /// Encodes the record for a reader that has the files `known`, for [`Files::from_bytes_after`]: of those that hold the same bytes
    /// only the paths are in it, with errno -2.
    pub fn to_bytes_after(&self, known: Option<&Files>) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put(&mut out, &self.globals);
        put_len(&mut out, self.order.len());
        for (path, content) in self.order.iter().filter_map(|path| Some((path, &self.contents.get(path)?.1)))
        {
            put(&mut out, path.as_bytes());
            let before = known.and_then(|known| known.contents.get(path));
            let (errno, bytes): (i32, &[u8]) = match content {
                content if before.is_some_and(|(_, before)| same(before, content)) => (KNOWN, &[]),
                Ok(bytes) => (-1, bytes),
                Err(errno) => (*errno, &[]),
            };
            out.extend(errno.to_le_bytes());
            put(&mut out, bytes);
        }
        put_len(&mut out, self.globs.len());
        for (pattern, found) in &self.globs {
            put_path(&mut out, pattern);
            put_len(&mut out, found.len());
            found.iter().for_each(|path| put_path(&mut out, path));
        }
        out
    }

    /// Decodes a record. The result never reads the disk: other files do not exist for it.
    ///
    /// # Errors
    /// `InvalidData` when the bytes are no record of this version, are cut short or go on.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Files> {
        Files::from_bytes_after(bytes, None)
    }

    /// Decodes a record of [`Files::to_bytes_after`]; `known` are the files that the writer knows the reader to have.
    ///
    /// # Errors
    /// As [`Files::from_bytes`].
    pub fn from_bytes_after(bytes: &[u8], known: Option<&Files>) -> io::Result<Files> {
        decode(bytes, known)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "broken record of files"))
    }
}

fn decode(bytes: &[u8], known: Option<&Files>) -> Option<Files> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut files = Files { recorded_only: true, globals: take(&mut rest)?.into(), ..Files::default() };
    take_files(&mut rest, &mut files, known)?;
    take_globs(&mut rest, &mut files)?;
    rest.is_empty().then_some(files)
}

fn take_files(rest: &mut &[u8], files: &mut Files, known: Option<&Files>) -> Option<()> {
    for _ in 0..take_len(rest)? {
        let path = OsStr::from_bytes(take(rest)?);
        let errno = i32::from_le_bytes(take_array(rest)?);
        let bytes = take(rest)?;
        if files.contents.contains_key(path) {
            return None;
        }
        let (path, content) = match (known, errno) {
            (Some(known), KNOWN) => {
                known.contents.get_key_value(path).map(|(p, (_, c))| (p.clone(), c.clone()))?
            }
            (None, KNOWN) => return None,
            (_, errno) => (path.into(), if errno == -1 { Ok(bytes.into()) } else { Err(errno) }),
        };
        files.insert(path, content);
    }
    Some(())
}

fn take_globs(rest: &mut &[u8], files: &mut Files) -> Option<()> {
    for _ in 0..take_len(rest)? {
        let (pattern, found) = take_glob(rest)?;
        files.globs.insert(pattern, found.into());
    }
    Some(())
}

fn take_glob(rest: &mut &[u8]) -> Option<(PathBuf, Vec<PathBuf>)> {
    let pattern = take_path(rest)?;
    let count = take_len(rest)?;
    let found = (0..count).map(|_| take_path(rest)).collect::<Option<_>>()?;
    Some((pattern, found))
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend(bytes);
}

fn put_path(out: &mut Vec<u8>, path: &Path) {
    put(out, path.as_os_str().as_bytes());
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).expect("a configuration file is shorter than 4 GiB");
    out.extend(len.to_le_bytes());
}

fn take_array(rest: &mut &[u8]) -> Option<[u8; 4]> {
    let (head, tail) = rest.split_first_chunk::<4>()?;
    *rest = tail;
    Some(*head)
}

fn take_len(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(take_array(rest)?)).ok()
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_len(rest)?;
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}

fn take_path(rest: &mut &[u8]) -> Option<PathBuf> {
    take(rest).map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Level;

    impl Files {
        fn bytes_of(&self, path: &Path) -> Arc<[u8]> {
            match &self.contents.get(path.as_os_str()).expect("read").1 {
                Ok(bytes) => bytes.clone(),
                Err(_) => Arc::default(),
            }
        }
    }

    #[test]
    fn a_record_comes_back() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let conf = dir.path().join("a.conf");
        std::fs::write(&conf, b"x \xff\0;").expect("write");
        let mut files = Files::disk();
        files.set_globals(b"daemon off;");
        assert_eq!(files.read(&conf).expect("there").1, b"x \xff\0;");
        assert!(files.read(Path::new("/nonexistent/x")).is_err());
        let found = files.glob(&dir.path().join("*.conf"));
        assert_eq!(*found, *std::slice::from_ref(&conf));

        let bytes = files.to_bytes();
        std::fs::remove_file(&conf).expect("remove");
        let mut back = Files::from_bytes(&bytes).expect("own record");
        assert_eq!(back.read(&conf).expect("recorded").1, b"x \xff\0;");
        assert_eq!(back.read(Path::new("/nonexistent/x")).map_err(|e| e.raw_os_error()).err(), Some(Some(2)));
        assert_eq!(back.glob(&dir.path().join("*.conf")), found);
        assert_eq!(back.bytes(FileId::COMMAND_LINE), b"daemon off;");
        assert!(back.read(Path::new("/etc/passwd")).is_err(), "the disk is out of reach");
        for len in 0..bytes.len() {
            assert!(Files::from_bytes(&bytes[..len]).is_err(), "cut to {len}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Files::from_bytes(&longer).is_err());
        for i in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[i] ^= 0xff;
            let _ = Files::from_bytes(&broken);
        }
    }

    #[test]
    fn a_reader_that_knows_files_is_sent_the_others() {
        let before =
            Files::recorded([("/a", "1".repeat(1000)), ("/b", "2".repeat(1000)), ("/gone", "3".into())]);
        let now = Files::recorded([("/a", "1".repeat(1000)), ("/b", "changed".into()), ("/c", "new".into())]);
        let short = now.to_bytes_after(Some(&before));
        assert!(short.len() < 200 && now.to_bytes().len() > 1000, "{}", short.len());
        let mut back = Files::from_bytes_after(&short, Some(&before)).expect("a record");
        for (path, want) in [("/a", "1".repeat(1000)), ("/b", "changed".into()), ("/c", "new".into())] {
            assert_eq!(back.read(Path::new(path)).expect("there").1, want.as_bytes());
        }
        assert_eq!(back.to_bytes(), now.to_bytes());
        assert!(back.read(Path::new("/gone")).is_err());
        assert!(Files::from_bytes(&short).is_err(), "another reader");
        assert!(Files::from_bytes_after(&short, Some(&Files::default())).is_err(), "a file is not there");
    }

    #[test]
    fn patterns_match_among_recorded_files() {
        let mut files =
            Files::recorded([("/c/b.conf", ""), ("/c/a.conf", ""), ("/c/x/a.conf", ""), ("/c/.a.conf", "")]);
        let found = files.glob(Path::new("/c/*.conf"));
        assert_eq!(*found, [Path::new("/c/a.conf"), Path::new("/c/b.conf")]);
        assert!(files.glob(Path::new("/d/*")).is_empty());
    }

    #[test]
    fn files_are_compared_by_their_bytes() {
        let at = Path::new("/a");
        let mut first = Files::recorded([("/a", "1"), ("/b", "2")]);
        let _ = first.read(at).is_ok() && first.read(Path::new("/none")).is_ok();
        first.glob(Path::new("/*"));
        let reads = first.exchange_reads(Reads::default()).sorted();
        let first = Arc::new(first);
        let after = |files: Vec<(&str, &str)>| Files::recorded(files).after(Some(first.clone()));
        let mut same = after(vec![("/b", "other"), ("/a", "1")]);
        assert!(reads.are_current(&mut same));
        let _ = same.read(at).is_ok() && same.read(Path::new("/none")).is_ok();
        let again = same.exchange_reads(Reads::default()).sorted();
        assert!(again.read_the_same(&reads));
        assert!(
            Arc::ptr_eq(&same.read_shared(at).expect("there").1, &first.bytes_of(at)),
            "the bytes are shared"
        );
        assert!(!reads.are_current(&mut after(vec![("/a", "2"), ("/b", "2")])), "a file has changed");
        assert!(!reads.are_current(&mut after(vec![("/b", "2")])), "a file is gone");
        let mut one_more = after(vec![("/a", "1"), ("/b", "2"), ("/c", "")]);
        assert!(
            !reads.are_current(&mut one_more) && reads.hold_the_same(&mut one_more),
            "the pattern matches more"
        );
        let mut appeared = after(vec![("/a", "1"), ("/b", "2"), ("/none", "")]);
        assert!(!reads.hold_the_same(&mut appeared), "a file was missing");
    }

    #[test]
    fn places() {
        let mut files = Files::recorded([("/etc/x.conf", "a;")]);
        let (id, _) = files.read(Path::new("/etc/x.conf")).expect("recorded");
        let mut error = Error {
            level: Level::Emerg,
            message: "boom".into(),
            span: None,
            at: Some(Span { file: id, line: 3, ..Span::default() }),
            hint: None,
            ordinal: 0,
        };
        assert_eq!(files.render(&error), "boom in /etc/x.conf:3");
        error.at = Some(Span { file: FileId::COMMAND_LINE, line: 1, ..Span::default() });
        assert_eq!(files.render(&error), "boom in command line");
        error.at = None;
        assert_eq!(files.render(&error), "boom");
    }
}
