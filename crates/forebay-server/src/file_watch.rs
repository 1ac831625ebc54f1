//! Has the kernel tell of changes to files that are served again and again, so that nobody has to ask for each turn.
//!
//! A path is watched at every directory it passes through, links followed, and at the file itself (inotify(7)). The
//! kernel queues an event before the call that made the change returns, and the queue is in the epoll set of the connections: the
//! turn that hears of a request hears of every change made before the request was sent, and looks at those first.
//!
//! Watched are paths on file systems of this machine only; a change of the mount table ends all watches. What makes no
//! event (writing through a mapping, native AIO) is seen when the file is looked at the next time.

use crate::file_cache::Identity;
use forebay_net::reactor::{self, NOTICE_FILES, NOTICE_MOUNTS};
use rustix::event::epoll;
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most paths that are watched, a thread.
const PATHS: usize = 512;

/// Events about other names within a second after which watching costs more than it spares, and how long it rests then.
const NOISE: u32 = 2000;
const REST: Duration = Duration::from_secs(60);

/// Links on a way, as in path_resolution(7).
const LINKS: usize = 40;

/// File systems that tell of every change, by their numbers in statfs(2): ext4, XFS, Btrfs, tmpfs, F2FS, ZFS, overlayfs,
/// bcachefs, SquashFS, EROFS, ramfs. Others may be changed from another machine.
const LOCAL: [u32; 11] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0x0102_1994,
    0xF2F5_2010,
    0x2FC1_2FC1,
    0x794C_7630,
    0xCA45_1A4E,
    0x7371_7368,
    0xE0F5_E1E2,
    0x8584_58F6,
];

/// A place on a way: a watch, and the name that is looked up there; no name: the file itself.
type Place = (i32, Box<[u8]>);

#[derive(Debug)]
struct Way {
    owner: usize,
    places: Vec<Place>,
}

/// Number of a watched path.
pub type WayId = u32;

/// What has been heard.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The paths of these owners may have changed and are watched no more.
    Some(Vec<usize>),
    /// No path is watched any more.
    All,
}

/// The watched paths of one thread.
#[derive(Debug)]
pub struct Watches {
    epoll: Arc<OwnedFd>,
    queue: Option<OwnedFd>,
    mounts: Option<OwnedFd>,
    places: HashMap<i32, HashMap<Box<[u8]>, Vec<WayId>>>,
    ways: Vec<Option<Way>>,
    free: Vec<WayId>,
    budget: usize,
    rests_until: Option<Instant>,
    noise: u32,
    noise_since: Instant,
}

impl Watches {
    /// None yet; events will come to `epoll`. `threads` share what the system gives one user.
    pub fn new(epoll: Arc<OwnedFd>, threads: usize) -> Watches {
        let limit = |name: &str| -> usize {
            let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}"));
            text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
        };
        // Others of the same user need some, too.
        let room = if threads * 2 <= limit("max_user_instances") {
            limit("max_user_watches") / 8 / threads.max(1)
        } else {
            0
        };
        Watches {
            epoll,
            queue: None,
            mounts: None,
            places: HashMap::new(),
            ways: Vec::new(),
            free: Vec::new(),
            budget: PATHS.min(room),
            rests_until: None,
            noise: 0,
            noise_since: Instant::now(),
        }
    }

    /// Watches an absolute path that leads to a regular file in state `is`, for `owner`. `None`: it cannot be watched, or
    /// the file is in another state.
    pub fn add(&mut self, path: &[u8], owner: usize, is: Identity, now: Instant) -> Option<WayId> {
        if self.rests_until.is_some_and(|t| now < t) || self.ways.len() - self.free.len() >= self.budget {
            return None;
        }
        if self.open().is_err() {
            self.close();
            self.budget = 0;
            return None;
        }
        let mut places = Vec::new();
        let found = self.queue.as_ref().map(|q| walk(q, path, &mut places));
        let id = self.keep(Way { owner, places });
        match found {
            Some(Ok(state)) if state == is => return Some(id),
            // The user has no more watches.
            Some(Err(Errno::NOSPC | Errno::NOMEM)) => self.rests_until = Some(now + REST),
            _ => {}
        }
        self.remove(id);
        None
    }

    /// Watches a path no more.
    pub fn remove(&mut self, id: WayId) {
        let Some(way) = self.ways.get_mut(id as usize).and_then(Option::take) else { return };
        self.free.push(id);
        for (watch, name) in way.places {
            let Some(names) = self.places.get_mut(&watch) else { continue };
            if let Some(ids) = names.get_mut(&name) {
                ids.retain(|i| *i != id);
                if ids.is_empty() {
                    names.remove(&name);
                }
            }
            if names.is_empty() {
                self.places.remove(&watch);
                if let Some(q) = &self.queue {
                    // It may be gone with its file.
                    let _ = inotify::remove_watch(q, watch);
                }
            }
        }
    }

    /// Takes in what the kernel has told.
    pub fn heed(&mut self, now: Instant) -> Heard {
        let Some(queue) = self.queue.take() else { return Heard::Some(Vec::new()) };
        let mut hit: Vec<WayId> = Vec::new();
        let mut buf = [MaybeUninit::uninit(); 8192];
        let mut reader = inotify::Reader::new(&queue, &mut buf);
        let whole = loop {
            match reader.next() {
                Ok(e) if e.events().contains(ReadFlags::QUEUE_OVERFLOW) => break false,
                Ok(e) => {
                    let Some(names) = self.places.get(&e.wd()) else { continue };
                    match e.file_name() {
                        Some(name) => match names.get(name.to_bytes()) {
                            Some(ids) => hit.extend(ids),
                            None => self.noise += 1,
                        },
                        // The directory or the file itself.
                        None => hit.extend(names.values().flatten()),
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break true,
                Err(_) => break false,
            }
        };
        self.queue = Some(queue);
        if now.saturating_duration_since(self.noise_since) > Duration::from_secs(1) {
            (self.noise, self.noise_since) = (0, now);
        }
        if !whole || self.noise > NOISE {
            if self.noise > NOISE {
                self.rests_until = Some(now + REST);
            }
            return self.forget();
        }
        let mut owners = Vec::new();
        for id in hit {
            if let Some(way) = self.ways.get(id as usize).and_then(Option::as_ref) {
                owners.push(way.owner);
                self.remove(id);
            }
        }
        Heard::Some(owners)
    }

    /// Ends all watches: the way to any file may be another now.
    pub fn forget(&mut self) -> Heard {
        self.close();
        self.places.clear();
        self.ways.clear();
        self.free.clear();
        Heard::All
    }

    /// Whether nothing is watched.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.ways.len() == self.free.len()
    }

    fn close(&mut self) {
        // Closing takes them out of the epoll set.
        self.queue = None;
        self.mounts = None;
    }

    fn open(&mut self) -> rustix::io::Result<()> {
        if self.queue.is_some() {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mounts = rustix::fs::open("/proc/self/mountinfo", flags, Mode::empty())?;
        let edge = epoll::EventFlags::PRI | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &mounts, reactor::notice(NOTICE_MOUNTS), edge)?;
        let queue = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        epoll::add(&self.epoll, &queue, reactor::notice(NOTICE_FILES), epoll::EventFlags::IN)?;
        (self.queue, self.mounts) = (Some(queue), Some(mounts));
        Ok(())
    }

    fn keep(&mut self, way: Way) -> WayId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.ways.push(None);
            self.ways.len() as WayId - 1
        });
        for (watch, name) in &way.places {
            let ids = self.places.entry(*watch).or_default().entry(name.clone()).or_default();
            if ids.last() != Some(&id) {
                ids.push(id);
            }
        }
        if let Some(slot) = self.ways.get_mut(id as usize) {
            *slot = Some(way);
        }
        id
    }
}

/// Follows a path as the kernel does, watching each place before looking at it.
fn walk(queue: &OwnedFd, path: &[u8], places: &mut Vec<Place>) -> rustix::io::Result<Identity> {
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    if path.first() != Some(&b'/') {
        return Err(Errno::INVAL);
    }
    let mut dir = root()?;
    let mut rest: Vec<Box<[u8]>> = Vec::new();
    let ahead = |rest: &mut Vec<Box<[u8]>>, path: &[u8]| {
        rest.extend(path.rsplit(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".").map(Box::from));
    };
    ahead(&mut rest, path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if !LOCAL.contains(&(rustix::fs::fstatfs(&dir)?.f_type as u32)) {
            return Err(Errno::XDEV);
        }
        places.push((watch(queue, &dir, IN_DIR)?, name.clone()));
        let next = rustix::fs::openat(&dir, &*name, step, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
            FileType::Directory => dir = next,
            FileType::Symlink if links < LINKS => {
                links += 1;
                let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
                if target.as_bytes().first() == Some(&b'/') {
                    dir = root()?;
                }
                ahead(&mut rest, target.as_bytes());
            }
            FileType::Symlink => return Err(Errno::LOOP),
            FileType::RegularFile if rest.is_empty() => {
                if !LOCAL.contains(&(rustix::fs::fstatfs(&next)?.f_type as u32)) {
                    return Err(Errno::XDEV);
                }
                places.push((watch(queue, &next, IN_FILE)?, Box::default()));
                return Ok(Identity::of(&rustix::fs::fstat(&next)?));
            }
            _ => return Err(Errno::NOTDIR),
        }
    }
    Err(Errno::ISDIR)
}

/// What may lead a path elsewhere: names that go or are replaced, and the directory itself.
const IN_DIR: WatchFlags = WatchFlags::DELETE
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// What may change a file's state.
const IN_FILE: WatchFlags =
    WatchFlags::MODIFY.union(WatchFlags::ATTRIB).union(WatchFlags::DELETE_SELF).union(WatchFlags::MOVE_SELF);

fn watch(queue: &OwnedFd, what: impl AsFd, flags: WatchFlags) -> rustix::io::Result<i32> {
    // The very inode that was opened, wherever its name leads by now.
    let mut path = String::with_capacity(24);
    let _ = write!(path, "/proc/self/fd/{}", what.as_fd().as_raw_fd());
    inotify::add_watch(queue, path, flags)
}
