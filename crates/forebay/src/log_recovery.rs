//! Lines of logs that a worker process left when it ended: the master writes them.
//!
//! What the worker says is a generation and a number; which file that is, the master knows by itself. So a worker gone
//! bad can have written by the master what it could have written before, and nothing else.

use crate::master_log::{Log, errno};
use forebay_server::log_write::{encode, first_piece, is_regular, resume, write_lines};
use forebay_sys::log_area::{Area, Left};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Generations that are remembered: threads that have not taken over one of the last are stuck.
const REMEMBERED: usize = 8;
/// How long a pipe may take nothing before its lines are given up: the master must not wait for its reader.
const PATIENCE: Duration = Duration::from_millis(200);

/// Log files of a generation by their number.
type Numbered = Vec<Option<(PathBuf, Arc<OwnedFd>)>>;

/// What the master knows of a worker's logs.
#[derive(Debug, Default)]
pub struct WorkerLogs {
    area: Option<Area>,
    generations: Vec<(u64, Numbered)>,
}

impl WorkerLogs {
    /// Of a new worker. Without an area its threads buffer in their own memory, and the log says so.
    pub fn new(log: &Log) -> WorkerLogs {
        let area = Area::create().map_err(|e| {
            let text =
                "no shared memory for log buffers, lines in them are lost if the worker process is killed";
            log.warn(&format!("{text} ({})", errno(&e)));
        });
        WorkerLogs { area: area.ok(), generations: Vec::new() }
    }

    /// The area, for the worker.
    pub fn area(&self) -> Option<BorrowedFd<'_>> {
        self.area.as_ref().map(Area::fd)
    }

    /// The worker is given a configuration.
    pub fn given(&mut self, generation: u64, files: &[PathBuf], open: &[(PathBuf, Arc<OwnedFd>)]) {
        // A file that has been rotated away must not be held open.
        self.reopened(open);
        let numbered = files.iter().map(|path| open.iter().find(|(p, _)| p == path).cloned());
        self.generations.push((generation, numbered.collect()));
        if self.generations.len() > REMEMBERED {
            self.generations.remove(0);
        }
    }

    /// Files were opened anew.
    pub fn reopened(&mut self, open: &[(PathBuf, Arc<OwnedFd>)]) {
        for (path, fd) in self.generations.iter_mut().flat_map(|(_, files)| files).flatten() {
            if let Some((_, new)) = open.iter().find(|(p, _)| p == path) {
                *fd = new.clone();
            }
        }
    }

    /// Writes what the worker left, which has ended. `who` names it in lines of the error log.
    pub fn recover(self, who: &str, log: &Log) {
        let Some(area) = &self.area else { return };
        let mut unknown = 0;
        let result = area.left(|left| match self.file(&left) {
            Some((path, fd)) => write(path, fd, left, who, log),
            None => unknown += 1,
        });
        match result {
            Ok(broken) if broken + unknown > 0 => {
                log.alert(&format!("{who} left {} broken log buffers, which are dropped", broken + unknown));
            }
            Ok(_) => {}
            Err(e) => log.alert(&format!("cannot read the log buffers of {who} ({})", errno(&e))),
        }
    }

    fn file(&self, left: &Left) -> Option<(&Path, BorrowedFd<'_>)> {
        let (_, files) = self.generations.iter().find(|(number, _)| *number == left.generation)?;
        let (path, fd) = files.get(usize::try_from(left.log).ok()?)?.as_ref()?;
        Some((path, fd.as_fd()))
    }
}

fn write(path: &Path, fd: BorrowedFd<'_>, left: Left, who: &str, log: &Log) {
    // Whoever keeps to the rules leaves whole lines.
    let whole = left.bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    let lines = left.bytes.get(..whole).unwrap_or_default();
    if lines.is_empty() {
        return;
    }
    let count = lines.iter().filter(|b| **b == b'\n').count();
    let bytes = encode(lines, left.gzip);
    let regular = is_regular(fd);
    let written = if regular {
        let start = if left.writing { begun(fd, &bytes, left.gzip.is_some()) } else { Some(0) };
        let rest = match start {
            Some(start) => bytes.get(start..).unwrap_or_default().to_vec(),
            None => [b"\n", &*bytes].concat(),
        };
        write_lines(fd, &rest, true, |_| {})
    } else {
        write_patiently(fd, &bytes)
    };
    match written {
        Ok(()) => {
            log.notice(&format!("{count} lines that {who} left were written to \"{}\"", path.display()))
        }
        Err(lost) => {
            log.alert(&format!(
                "{lost} lines that {who} left could not be written to \"{}\"",
                path.display()
            ));
        }
    }
}

/// How much of `bytes` a write that was cut off has put at the end of the file: see [`resume`].
fn begun(fd: BorrowedFd<'_>, bytes: &[u8], gzip: bool) -> Option<usize> {
    // The descriptor is for writing only.
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tail = rustix::fs::open(name, flags, Mode::empty()).map_err(Into::into).and_then(|fd| {
        let file = std::fs::File::from(fd);
        let length = file.metadata()?.len();
        let mut tail = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len())];
        let start = length - tail.len() as u64;
        file.read_exact_at(&mut tail, start)?;
        Ok::<_, std::io::Error>(tail)
    });
    // Who cannot look writes everything.
    tail.map_or(Some(0), |tail| resume(&tail, bytes, gzip))
}

/// Writes to a pipe or the like as long as it takes anything.
fn write_patiently(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), u64> {
    let patience = rustix::time::Timespec::try_from(PATIENCE).ok();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, next) = rest.split_at(first_piece(rest).len());
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        let ready = poll(&mut fds, patience.as_ref()).is_ok_and(|n| n > 0);
        let lost = |bytes: &[u8]| bytes.iter().filter(|b| **b == b'\n').count() as u64;
        if !ready || write_lines(fd, piece, false, |_| {}).is_err() {
            return Err(lost(rest));
        }
        rest = next;
    }
    Ok(())
}
