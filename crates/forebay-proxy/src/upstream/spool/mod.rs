//! Bytes of a response that have come from the upstream and not gone to the client yet: first in memory, beyond that in a
//! temporary file (nginx: proxy_buffers, proxy_max_temp_file_size). A response that is cached or stored goes to the file as a
//! whole, and a client that falls behind is served from there.

use crate::cache::entry::Meta;
use crate::cache::index::Ticket;
use crate::cache::{Cache, local};
use forebay_server::disk::Disk;
use forebay_server::draft::{Draft, Readable};
use forebay_server::modules::core::TempDir;
use forebay_sys::files;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Largest number of bytes that are read from the file at once. Bytes that a slow client does not take stay in memory.
const LOADED: u64 = 32 * 1024;

/// Limits of what is read ahead of the client.
#[derive(Clone, Copy, Debug)]
pub struct AheadLimits {
    /// In memory, bytes.
    pub memory: usize,
    /// In a file, bytes; 0 = no file.
    pub file: u64,
}

/// Place of a response that is kept.
#[derive(Debug)]
pub enum Keep {
    /// An entry of a cache.
    Cache {
        /// The cache.
        cache: Arc<Cache>,
        /// Metadata of the entry.
        meta: Box<Meta>,
        /// Place of the entry in the index.
        ticket: Ticket,
    },
    /// A file of its own (nginx: proxy_store).
    Store {
        /// Name.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
        /// `Last-Modified`, Unix seconds.
        modified: Option<i64>,
    },
}

impl Keep {
    /// Returns the number of bytes before the body in the file.
    fn start(&self) -> u64 {
        match self {
            Keep::Cache { meta, .. } => meta.body_start() as u64,
            Keep::Store { .. } => 0,
        }
    }

    /// Returns the mode of the directories that lead to the file.
    fn directories(&self) -> u32 {
        match self {
            Keep::Cache { .. } => files::PRIVATE_DIRECTORY,
            Keep::Store { mode, .. } => files::directory_mode(*mode),
        }
    }

    /// Returns a name for the file while it is written: in `dir`, or next to its target if there is no such directory.
    fn temporary(&self, dir: &TempDir) -> PathBuf {
        let named = !dir.is_none();
        match self {
            Keep::Cache { cache, .. } if named && cache.use_temp_path => dir.next_file(),
            Keep::Cache { cache, ticket, .. } => local::beside(&cache.file(&ticket.node.hash)),
            Keep::Store { .. } if named => dir.next_file(),
            Keep::Store { path, .. } => local::beside(path),
        }
    }
}

/// The bytes between upstream and client.
#[derive(Debug)]
pub struct Spool {
    /// Bytes `mem_start..total` of the body.
    mem: Vec<u8>,
    mem_start: u64,
    total: u64,
    /// Number of bytes that the client was given.
    sent: u64,
    /// Number of bytes that are in the file.
    saved: u64,
    file: SpoolFile,
    /// Offset in the file at which the body begins, with its byte number `base`.
    start: u64,
    base: u64,
    keep: Option<Keep>,
    limits: AheadLimits,
    dir: TempDir,
}

/// File of a spool.
#[derive(Debug)]
enum SpoolFile {
    /// There is none yet.
    None,
    /// The spool writes it.
    Draft(Draft),
    /// The file has the whole body, and others may read it as well.
    Finished(Readable),
}

/// Place of the next bytes for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextBytes {
    /// Memory.
    Memory,
    /// The file.
    File,
    /// There are none for now.
    Nothing,
}

impl Spool {
    /// Returns the mode of directories that are missing on the way to the temporary file.
    fn directories(&self) -> u32 {
        let beside = self.dir.is_none();
        self.keep.as_ref().filter(|_| beside).map_or(files::PRIVATE_DIRECTORY, Keep::directories)
    }

    /// Creates an empty spool, which makes its file in `dir`.
    pub fn new(limits: AheadLimits, keep: Option<Keep>, dir: TempDir) -> Spool {
        Spool {
            mem: Vec::new(),
            mem_start: 0,
            total: 0,
            sent: 0,
            saved: 0,
            file: SpoolFile::None,
            start: keep.as_ref().map_or(0, Keep::start),
            base: 0,
            keep,
            limits,
            dir,
        }
    }

    /// Returns `true` if the response is to be kept.
    pub fn keeps(&self) -> bool {
        self.keep.is_some()
    }

    /// Returns `true` if there is nothing in it, and nothing has to stay.
    pub fn is_idle(&self) -> bool {
        self.next() == NextBytes::Nothing && self.keep.is_none()
    }

    /// Returns the limits, as failures have left them.
    pub fn limits(&self) -> AheadLimits {
        self.limits
    }

    /// Takes out the buffer to append bytes to. Give it back to [`Spool::appended`].
    pub fn buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.mem)
    }

    /// Puts the buffer back.
    pub fn appended(&mut self, mem: Vec<u8>) {
        self.mem = mem;
        self.total = self.mem_start + self.mem.len() as u64;
    }

    /// Returns the place of the next bytes for the client.
    pub fn next(&self) -> NextBytes {
        if self.sent >= self.total {
            NextBytes::Nothing
        } else if self.sent >= self.mem_start {
            NextBytes::Memory
        } else {
            NextBytes::File
        }
    }

    /// Appends the bytes in memory that the client has not got.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        let from = (self.sent.saturating_sub(self.mem_start)) as usize;
        let piece = self.mem.get(from..).unwrap_or_default();
        out.extend_from_slice(piece);
        self.sent = self.total;
        self.trim();
    }

    /// Marks everything as sent, for a client that does not read.
    pub fn skip(&mut self) {
        self.sent = self.total;
        self.trim();
    }

    /// Frees memory that is not needed any more.
    fn trim(&mut self) {
        // A response that is kept needs its bytes until they are in the file, even after the client has got them.
        let done = if self.keep.is_some() { self.sent.min(self.saved) } else { self.sent };
        if self.keep.is_none() && self.sent >= self.saved && self.may_write() {
            // Everything in the file has been sent: it can be written from its beginning again.
            self.saved = self.sent;
            self.base = self.sent;
        }
        if done >= self.total {
            self.mem = Vec::new();
            self.mem_start = self.total;
        }
    }

    /// Returns `true` if memory is full.
    pub fn over(&self) -> bool {
        // With a limit of 0, an empty buffer would count as full, and nothing would be read at all.
        self.mem.len() >= self.limits.memory.max(1)
    }

    /// Returns `true` if more may be read from the upstream.
    pub fn has_room(&self) -> bool {
        !self.over()
    }

    /// Returns `true` if the file, or a new one, may be written.
    fn may_write(&self) -> bool {
        !matches!(self.file, SpoolFile::Finished(_))
    }

    fn may_save(&self) -> bool {
        // As in nginx, `proxy_max_temp_file_size` does not limit the file of a response that is cached or stored.
        let has_room = self.limits.file > 0 && self.saved - self.base < self.limits.file;
        self.may_write() && (self.keep.is_some() || has_room)
    }

    /// Returns `true` if memory is full and its bytes may go to a file.
    pub fn wants_save(&self) -> bool {
        self.over() && self.may_save()
    }

    /// Takes out the file to write to.
    fn output(&mut self) -> Output {
        match std::mem::replace(&mut self.file, SpoolFile::None) {
            SpoolFile::Draft(draft) => Output::Draft(draft),
            other => {
                self.file = other;
                let path = match &self.keep {
                    Some(k) => k.temporary(&self.dir),
                    None => self.dir.next_file(),
                };
                Output::New { path, named: self.keep.is_some(), directories: self.directories() }
            }
        }
    }

    /// Returns the offset of the first byte of the body that is not in the file, and its place in memory.
    fn unsaved(&self) -> (u64, usize) {
        let from = self.saved.max(self.mem_start);
        (from, (from - self.mem_start) as usize)
    }

    /// Runs `work` with the bytes in memory.
    async fn on_disk<T: Send + 'static>(
        &mut self,
        disk: &Disk,
        work: impl FnOnce(&[u8]) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let mem = std::mem::take(&mut self.mem);
        // The buffer travels to the pool and back, because work for another thread cannot borrow from this one.
        let work = move || {
            let done = work(&mem);
            (mem, done)
        };
        match disk.run(work).await {
            Some((mem, done)) => {
                self.mem = mem;
                done
            }
            None => {
                // The bytes are lost. The place after them makes the next read fail.
                self.mem_start = self.total;
                Err(io::Error::other("the pool has ended"))
            }
        }
    }

    /// Moves the bytes in memory to the file. After a failure they stay in memory, no file is used any more, and the
    /// response is not kept.
    ///
    /// # Errors
    /// Of opening or writing the file, with its name.
    pub async fn save(&mut self, disk: &Disk) -> Result<(), (PathBuf, io::Error)> {
        let (from, skip) = self.unsaved();
        let offset = self.start + (from - self.base);
        let output = self.output();
        let path = output.path();
        let write = move |mem: &[u8]| {
            let mut draft = output.open()?;
            let written = draft.write_at(mem.get(skip..).unwrap_or_default(), offset);
            // The file comes back even if the write fails, since it may have bytes of earlier calls that the client still
            // needs.
            Ok((draft, written))
        };
        let done = self.on_disk(disk, write).await.and_then(|(draft, written)| {
            self.file = SpoolFile::Draft(draft);
            written
        });
        match done {
            Ok(()) => {
                self.saved = self.total;
                // A client that is slow enough for a file stays slow, so the memory is given back instead of being kept
                // for the next bytes.
                self.mem = Vec::new();
                self.mem_start = self.total;
                Ok(())
            }
            Err(e) => {
                self.discard();
                // A disk that is full is likely to stay full, and the response must not wait for it once more.
                self.limits.file = 0;
                Err((path, e))
            }
        }
    }

    /// Appends the next bytes for the client from the file. Returns `false` if it cannot be read.
    pub async fn load(&mut self, out: &mut Vec<u8>) -> bool {
        let file = match &self.file {
            SpoolFile::None => return false,
            SpoolFile::Draft(draft) => draft.reader(),
            SpoolFile::Finished(file) => file.clone(),
        };
        let end = self.saved.min(self.mem_start);
        // Bytes that are both in the file and in memory are read from memory later, so the file is read up to them.
        let n = end.saturating_sub(self.sent).min(LOADED) as usize;
        let offset = self.start + (self.sent - self.base);
        let at = out.len();
        out.resize(at + n, 0);
        // The kernel usually still has the bytes in memory, as they were written a moment ago. Only otherwise a thread of
        // the pool waits for the disk.
        let mut read = n > 0 && file.read_now(&mut out[at..], offset);
        if !read && n > 0 {
            let from_disk = tokio::task::spawn_blocking(move || {
                let mut buf = vec![0; n];
                file.read_exact_at(&mut buf, offset).map(|()| buf)
            });
            if let Ok(Ok(buf)) = from_disk.await {
                out[at..].copy_from_slice(&buf);
                read = true;
            }
        }
        self.sent += n as u64;
        self.trim();
        read
    }

    /// Stops keeping the response. Bytes in the file stay readable for the client.
    pub fn discard(&mut self) {
        self.keep = None;
        if let SpoolFile::Draft(draft) = &mut self.file {
            // A name that cannot be removed belongs to a directory that is gone.
            let _ = draft.remove_name();
        }
        self.trim();
    }

    /// Writes the rest of a complete response that is kept, and gives the file its place. The file is not written after that.
    ///
    /// # Errors
    /// Of writing or renaming the file, with its name.
    pub async fn complete(&mut self, disk: &Disk) -> Result<(), (PathBuf, io::Error)> {
        if self.keep.is_none() {
            return Ok(());
        }
        // This comes first, because the name of a new file follows from `keep`, which is taken out below.
        let output = self.output();
        let Some(keep) = self.keep.take() else { return Ok(()) };
        let path = output.path();
        let (from, skip) = self.unsaved();
        let (start, total) = (self.start, self.total);
        let write = move |mem: &[u8]| {
            let rest = mem.get(skip..).unwrap_or_default();
            let mut draft = output.open()?;
            if let Err(e) = write_rest(&mut draft, &keep, &Unsaved { rest, from, start, total }) {
                return Ok((SpoolFile::Draft(draft), Err(e)));
            }
            // The client may still need the bytes if the file cannot be moved to its place, so the reader is made before.
            let file = draft.reader();
            let placed = draft.finish(|name| place(&keep, name, start + total));
            Ok((SpoolFile::Finished(file), placed.map(drop)))
        };
        let done = match self.on_disk(disk, write).await {
            Ok((file, done)) => {
                self.file = file;
                done
            }
            Err(e) => Err(e),
        };
        if self.may_write() {
            self.discard();
            self.limits.file = 0;
        } else {
            self.saved = total;
        }
        self.trim();
        done.map_err(|e| (path, e))
    }
}

/// File that is written to.
enum Output {
    /// It exists.
    Draft(Draft),
    /// It is to be made.
    New {
        path: PathBuf,
        /// `true` if the file keeps its name while it is open.
        named: bool,
        /// Mode of directories that are missing.
        directories: u32,
    },
}

impl Output {
    /// Returns the name of the file for messages.
    fn path(&self) -> PathBuf {
        match self {
            Output::Draft(draft) => draft.name().map_or_else(PathBuf::new, Path::to_owned),
            Output::New { path, .. } => path.clone(),
        }
    }

    fn open(self) -> io::Result<Draft> {
        match self {
            Output::Draft(draft) => Ok(draft),
            Output::New { path, named, directories } => {
                let mut draft = Draft::create_below(&path, directories)?;
                // A file without a name vanishes with its descriptor, even if the process is killed. nginx does the same.
                if !named {
                    draft.remove_name()?;
                }
                Ok(draft)
            }
        }
    }
}

/// Rest of a body that is not in its file.
struct Unsaved<'b> {
    rest: &'b [u8],
    /// Offset in the body at which the rest begins.
    from: u64,
    /// Offset in the file at which the body begins.
    start: u64,
    /// Length of the body.
    total: u64,
}

/// Writes the rest of a body, and what stands before the body.
fn write_rest(draft: &mut Draft, keep: &Keep, unsaved: &Unsaved<'_>) -> io::Result<()> {
    let Unsaved { rest, from, start, total } = *unsaved;
    match keep {
        // The file is still empty, so one write stores all.
        Keep::Cache { meta, .. } if from == 0 => draft.write_at(&[&meta.encode(total), rest].concat(), 0),
        Keep::Cache { meta, .. } => {
            // The start of the file is written last, since it names the length of the body, which was unknown until now.
            draft.write_at(rest, start + from)?;
            draft.write_at(&meta.encode(total), 0)
        }
        Keep::Store { mode, modified, .. } => {
            draft.write_at(rest, from)?;
            // As in nginx, a stored file has the time of the `Last-Modified` field.
            let seconds = modified.and_then(|t| u64::try_from(t).ok()).map(Duration::from_secs);
            draft.set(*mode, seconds.map(|s| UNIX_EPOCH + s))
        }
    }
}

/// Moves a complete file of `len` bytes to its place.
fn place(keep: &Keep, from: &Path, len: u64) -> io::Result<()> {
    match keep {
        Keep::Cache { cache, ticket, .. } => cache.index.publish(cache, &ticket.node, from, len),
        Keep::Store { path, mode, .. } => {
            crate::cache::index::rename(from, path, files::directory_mode(*mode))
        }
    }
}

#[cfg(test)]
mod tests;
