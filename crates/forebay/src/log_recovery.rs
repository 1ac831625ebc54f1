//! Lines of logs that a worker process left when it ended: the master writes them.
//!
//! The worker names a file by generation and number; the master has its own record of the files. So the master writes for a
//! compromised worker only to files that the worker could write to itself.

use crate::master_log::{Log, errno};
use forebay_core::log::write::{encode, first_piece, is_regular, resume, write_lines};
use forebay_sys::log_area::{Area, Left};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Generations that are remembered: threads that have not taken over one of the last are stuck.
const REMEMBERED: usize = 8;
/// Longest time for which a pipe may take nothing before its lines are dropped: the master must not wait for its reader.
const PATIENCE: Duration = Duration::from_millis(200);

/// Log files of a generation by their number.
type Numbered = Vec<Option<(PathBuf, Arc<OwnedFd>)>>;

/// The master's record of a worker's logs.
#[derive(Debug, Default)]
pub(crate) struct WorkerLogs {
    area: Option<Area>,
    generations: Vec<(u64, Numbered)>,
}

impl WorkerLogs {
    /// Logs of a new worker. Without an area its threads buffer in their own memory, which the error log reports.
    pub(crate) fn new(log: &Log) -> WorkerLogs {
        let area = Area::create().map_err(|e| {
            let text =
                "no shared memory for log buffers, lines in them are lost if the worker process is killed";
            log.warn(&format!("{text} ({})", errno(&e)));
        });
        WorkerLogs { area: area.ok(), generations: Vec::new() }
    }

    /// Returns the area, for the worker.
    pub(crate) fn area(&self) -> Option<BorrowedFd<'_>> {
        self.area.as_ref().map(Area::fd)
    }

    /// Records that the worker is given a configuration.
    pub(crate) fn given(&mut self, generation: u64, files: &[PathBuf], open: &[(PathBuf, Arc<OwnedFd>)]) {
        // A file that has been rotated away must not be held open.
        self.reopened(open);
        let by_path: HashMap<&Path, &(PathBuf, Arc<OwnedFd>)> =
            open.iter().map(|file| (file.0.as_path(), file)).collect();
        let numbered = files.iter().map(|path| by_path.get(path.as_path()).copied().cloned());
        self.generations.push((generation, numbered.collect()));
        if self.generations.len() > REMEMBERED {
            self.generations.remove(0);
        }
    }

    /// Records that files were opened again.
    pub(crate) fn reopened(&mut self, open: &[(PathBuf, Arc<OwnedFd>)]) {
        let by_path: HashMap<&Path, &Arc<OwnedFd>> = open.iter().map(|(p, fd)| (p.as_path(), fd)).collect();
        for (path, fd) in self.generations.iter_mut().flat_map(|(_, files)| files).flatten() {
            if let Some(new) = by_path.get(path.as_path()) {
                *fd = (*new).clone();
            }
        }
    }

    /// Writes the lines that the ended worker left. `who` names it in lines of the error log.
    pub(crate) fn recover(self, who: &str, log: &Log) {
        let Some(area) = &self.area else { return };
        let mut all = Vec::new();
        let broken = match area.left(|left| all.push(left)) {
            Ok(broken) => broken,
            Err(e) => {
                log.alert(&format!("cannot read the log buffers of {who} ({})", errno(&e)));
                return;
            }
        };
        let found = all.len();
        let mut lines: Vec<_> = all.into_iter().filter_map(|left| self.lines(left)).collect();
        let broken = broken + found - lines.len();
        if broken > 0 {
            log.alert(&format!("{who} left {broken} broken log buffers, which are dropped"));
        }
        // A slot whose write was cut off inside a line is continued before the lines of others follow. Threads wait for each other to
        // write to a file, so that there is one at most.
        lines.sort_by_key(|lines| !lines.was_cut_off());
        // A worker may leave thousands of slots: this does not wait again for a pipe that took nothing.
        let mut stuck: Vec<&Path> = Vec::new();
        for lines in lines {
            let path = lines.path;
            if !lines.write(who, log, !stuck.contains(&path)) {
                stuck.push(path);
            }
        }
    }

    /// Finds the log of some lines. `None`: it is not one of the worker's.
    fn lines(&self, left: Left) -> Option<Lines<'_>> {
        let (_, files) = self.generations.iter().find(|(number, _)| *number == left.generation)?;
        let (path, fd) = files.get(usize::try_from(left.log).ok()?)?.as_ref()?;
        // Whoever keeps to the rules leaves whole lines.
        let mut text = left.bytes;
        text.truncate(text.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1));
        let count = text.iter().filter(|b| **b == b'\n').count();
        // Of nothing there would be an empty member.
        let bytes = if count == 0 { Vec::new() } else { encode(&text, left.gzip).into_owned() };
        Some(Lines { path, fd: fd.as_fd(), count, bytes, gzip: left.gzip.is_some(), writing: left.writing })
    }
}

/// Lines to be written to a log.
struct Lines<'a> {
    path: &'a Path,
    fd: BorrowedFd<'a>,
    count: usize,
    /// The lines as in the file.
    bytes: Vec<u8>,
    gzip: bool,
    /// Some may be there.
    writing: bool,
}

impl Lines<'_> {
    /// Returns the offset at which to continue: see [`resume`].
    fn start(&self) -> Option<usize> {
        if self.writing && is_regular(self.fd) { begun(self.fd, &self.bytes, self.gzip) } else { Some(0) }
    }

    fn was_cut_off(&self) -> bool {
        self.start().is_some_and(|start| start > 0)
    }

    /// Writes them, if `wait` is set to a pipe or the like; `false`: it takes nothing.
    fn write(self, who: &str, log: &Log, wait: bool) -> bool {
        if self.bytes.is_empty() {
            return true;
        }
        let written = match self.start() {
            _ if !is_regular(self.fd) && !wait => Err(self.count as u64),
            _ if !is_regular(self.fd) => write_patiently(self.fd, &self.bytes),
            Some(start) => write_lines(self.fd, self.bytes.get(start..).unwrap_or_default(), true, |_| {}),
            None => write_lines(self.fd, &[b"\n", &*self.bytes].concat(), true, |_| {}),
        };
        let (count, path) = (self.count, self.path.display());
        match written {
            Ok(()) => log.notice(&format!("{count} lines that {who} left were written to \"{path}\"")),
            Err(_) => log.alert(&format!("{count} lines that {who} left could not be written to \"{path}\"")),
        }
        written.is_ok()
    }
}

/// Returns how many of `bytes` an interrupted write has put at the end of the file: see [`resume`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::master_log::open_log;
    use forebay_sys::log_area::Mapped;

    /// The logs of a worker with generation 3, whose log number 1 is the file `log`; and its end of the area.
    fn worker(log: &Path) -> (WorkerLogs, Arc<Mapped>) {
        let mut logs = WorkerLogs::new(&Log::default());
        let fd = Arc::new(OwnedFd::from(open_log(log).expect("open")));
        logs.given(3, &["/other".into(), log.to_owned()], &[(log.to_owned(), fd)]);
        let fd = logs.area().expect("an area").try_clone_to_owned().expect("descriptor");
        (logs, Mapped::new(fd).expect("mapped"))
    }

    fn setup() -> (tempfile::TempDir, PathBuf, Log, PathBuf) {
        use forebay_conf::error::Level;
        use forebay_core::config::main_settings::{ErrorLog, ErrorLogTarget};
        let dir = tempfile::tempdir().expect("directory");
        let errors = dir.path().join("errors");
        let fd = Arc::new(OwnedFd::from(open_log(&errors).expect("open")));
        let target = ErrorLog {
            target: ErrorLogTarget::File(errors.clone()),
            level: Level::Notice,
            form: Default::default(),
        };
        let log = Log::configured(&[target], &[(errors.clone(), fd)]);
        let path = dir.path().join("log");
        (dir, path, log, errors)
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).expect("read")
    }

    #[test]
    fn only_logs_that_the_worker_was_given_are_written() {
        let (_dir, path, log, errors) = setup();
        let (logs, mapped) = worker(&path);
        let mut slots = Vec::new();
        for (generation, number, text) in [
            (3, 1, "good\n"),
            (3, 0, "not open\n"),
            (3, 2, "no such number\n"),
            (3, u64::MAX, "no such number\n"),
            (4, 1, "no such generation\n"),
            (3, 1, "half a line goes\nwith"),
            (3, 1, "no line"),
        ] {
            let mut slot = mapped.claim(generation, number, None, 100).expect("room");
            assert!(slot.append(text.as_bytes()));
            slots.push(slot);
        }
        logs.recover("worker process 7", &log);
        assert_eq!(read(&path), "good\nhalf a line goes\n");
        assert!(read(&errors).contains("worker process 7 left 4 broken log buffers, which are dropped"));
    }

    #[test]
    fn threads_cut_off_in_a_write_go_on_first() {
        let (_dir, path, log, errors) = setup();
        let (logs, mapped) = worker(&path);
        let slots = ["/b1\n/b2\n", "/a1\n/a2\n/a3\n", "/c1\n"].map(|text| {
            let mut slot = mapped.claim(3, 1, None, 100).expect("room");
            assert!(slot.append(text.as_bytes()));
            slot
        });
        // Two threads were writing, and one of them had the file.
        slots[0].begin();
        slots[1].begin();
        std::fs::write(&path, "/x\n/a1\n/a2").expect("write");
        logs.recover("w", &log);
        assert_eq!(read(&path), "/x\n/a1\n/a2\n/a3\n/b1\n/b2\n/c1\n");
        assert!(read(&errors).contains("[notice]") && !read(&errors).contains("[alert]"));
    }

    #[test]
    fn a_line_that_nobody_completes_is_ended() {
        let (_dir, path, log, _) = setup();
        let (logs, mapped) = worker(&path);
        let mut slot = mapped.claim(3, 1, None, 100).expect("room");
        assert!(slot.append(b"/a\n"));
        slot.begin();
        std::fs::write(&path, "/x\n/some").expect("write");
        logs.recover("w", &log);
        assert_eq!(read(&path), "/x\n/some\n/a\n");
    }

    #[test]
    fn a_pipe_that_nobody_reads_does_not_stop_the_master() {
        let (_dir, path, log, errors) = setup();
        let (mut logs, mapped) = worker(&path);
        let (reader, writer) = std::io::pipe().expect("pipe");
        let pipe = Arc::new(OwnedFd::from(writer));
        rustix::pipe::fcntl_setpipe_size(&pipe, 4096).expect("size");
        logs.reopened(&[(path, pipe)]);
        let slots: Vec<_> = (0..50)
            .map(|_| {
                let mut slot = mapped.claim(3, 1, None, 64 << 10).expect("room");
                while slot.len() < 20_000 {
                    assert!(slot.append(b"a line that nobody reads\n"));
                }
                slot
            })
            .collect();
        let begun = std::time::Instant::now();
        logs.recover("w", &log);
        // Once, not for each slot.
        assert!(begun.elapsed() < PATIENCE * 25, "{:?}", begun.elapsed());
        drop((reader, slots));
        assert_eq!(read(&errors).matches("left could not be written to").count(), 50, "{}", read(&errors));
    }

    #[test]
    fn rotated_files_are_not_held_open() {
        let (_dir, path, _, _) = setup();
        let (mut logs, _mapped) = worker(&path);
        let new = Arc::new(OwnedFd::from(open_log(&path).expect("open")));
        let open = [(path.clone(), new.clone())];
        for generation in 4..30 {
            logs.given(generation, std::slice::from_ref(&path), &open);
        }
        assert_eq!(logs.generations.len(), REMEMBERED);
        let all = logs.generations.iter().flat_map(|(_, files)| files).flatten();
        assert!(all.clone().count() >= REMEMBERED && all.clone().all(|(_, fd)| Arc::ptr_eq(fd, &new)));
    }
}
