//! Watches of frequently served files: the kernel reports their changes, so that they need no check in each turn.
//!
//! A path is watched at every directory that it passes through, links followed, and at the file itself (inotify(7)).
//! The kernel queues an event before the call that made the change returns, and the queue is in the epoll set of the
//! connections. So the turn that receives a request also receives every change made before the request was sent, and
//! handles the changes first.
//!
//! Only paths on local file systems are watched. A change of the mount table ends all watches. Changes that make no
//! event (writing through a mapping, native AIO) are noticed at the next check of the file.

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

/// Maximum number of paths that a thread watches.
const PATHS: usize = 512;

/// Events about other names within a second from which on watching costs more than it saves (`NOISE`), and the pause
/// that follows (`REST`).
const NOISE: u32 = 2000;
const REST: Duration = Duration::from_secs(60);

/// Maximum number of links on a way, as in path_resolution(7).
const LINKS: usize = 40;

/// File systems that report every change, by their numbers in statfs(2): ext4, XFS, Btrfs, tmpfs, F2FS, ZFS, overlayfs,
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

/// Step of a path: a watch and the name looked up there. The name is empty for the file itself.
type WatchedName = (i32, Box<[u8]>);

#[derive(Debug)]
struct Way {
    owner: usize,
    places: Vec<WatchedName>,
}

/// Number of a watched path.
pub type WayId = u32;

/// Reason for which a path is not watched.
#[derive(Debug, PartialEq, Eq)]
pub enum Unwatched {
    /// The file is in another state: it has just been changed.
    Changed,
    /// The path cannot be watched, or there are too many.
    Impossible,
}

/// Result of handling events.
#[derive(Debug, PartialEq, Eq)]
pub enum Changes {
    /// The paths of these owners may have changed. Their watches have ended.
    Some(Vec<usize>),
    /// All watches have ended.
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
    /// Creates an empty set whose events go to `epoll`. `threads` sets share the user's limit of watches.
    pub fn new(epoll: Arc<OwnedFd>, threads: usize) -> Watches {
        let limit = |name: &str| -> usize {
            let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}"));
            text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
        };
        // Leave most of the limit to other programs of the same user.
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

    /// Watches an absolute path that leads to a regular file in state `is`, for `owner`.
    ///
    /// # Errors
    /// [`Unwatched`].
    pub fn add(&mut self, path: &[u8], owner: usize, is: Identity, now: Instant) -> Result<WayId, Unwatched> {
        if self.rests_until.is_some_and(|t| now < t) || self.ways.len() - self.free.len() >= self.budget {
            return Err(Unwatched::Impossible);
        }
        if self.open().is_err() {
            // The system has no inotify for this process, so no later path is tried.
            self.close();
            self.budget = 0;
        }
        let Some(queue) = &self.queue else { return Err(Unwatched::Impossible) };
        let mut places = Vec::new();
        // Each place is watched before it is looked at, so that no change between the two is missed.
        let found = walk(queue, path, &mut places);
        let id = self.keep(Way { owner, places });
        let failed = match found {
            // The file has not changed between its opening and the first watch.
            Ok(state) if state == is => return Ok(id),
            Ok(_) => Unwatched::Changed,
            Err(e) => {
                // The user's limit of watches is reached.
                if matches!(e, Errno::NOSPC | Errno::NOMEM) {
                    self.rests_until = Some(now + REST);
                }
                Unwatched::Impossible
            }
        };
        self.remove(id);
        Err(failed)
    }

    /// Ends the watch of a path.
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
                    // The kernel has removed the watch already if the file is gone.
                    let _ = inotify::remove_watch(q, watch);
                }
            }
        }
    }

    /// Handles queued events.
    pub fn handle_events(&mut self, now: Instant) -> Changes {
        let Some(queue) = self.queue.take() else { return Changes::Some(Vec::new()) };
        let hit = self.read(&queue);
        self.queue = Some(queue);
        if now.saturating_duration_since(self.noise_since) > Duration::from_secs(1) {
            (self.noise, self.noise_since) = (0, now);
        }
        // In a busy directory, watching costs more than the checks that it saves.
        let noisy = self.noise > NOISE;
        if noisy {
            self.rests_until = Some(now + REST);
        }
        match hit {
            Some(hit) if !noisy => Changes::Some(self.end(hit)),
            _ => self.forget(),
        }
    }

    /// Reads the queue. Returns the paths that events are about, or `None` if events have been lost.
    fn read(&mut self, queue: &OwnedFd) -> Option<Vec<WayId>> {
        let mut hit: Vec<WayId> = Vec::new();
        let mut buf = [MaybeUninit::uninit(); 8192];
        let mut reader = inotify::Reader::new(queue, &mut buf);
        loop {
            match reader.next() {
                // The kernel has dropped events, so any of the paths may have changed.
                Ok(e) if e.events().contains(ReadFlags::QUEUE_OVERFLOW) => return None,
                Ok(e) => self.find(e.wd(), e.file_name().map(|name| name.to_bytes()), &mut hit),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Some(hit),
                Err(_) => return None,
            }
        }
    }

    /// Appends the paths that an event is about. Without a name it is about the directory or the file itself.
    fn find(&mut self, watch: i32, name: Option<&[u8]>, hit: &mut Vec<WayId>) {
        let Some(names) = self.places.get(&watch) else { return };
        match name.map(|name| names.get(name)) {
            None => hit.extend(names.values().flatten()),
            Some(Some(ids)) => hit.extend(ids),
            // Events about other files of the directory cost time and have no use, so they are counted.
            Some(None) => self.noise += 1,
        }
    }

    /// Ends the watches of paths. Returns their owners.
    fn end(&mut self, hit: Vec<WayId>) -> Vec<usize> {
        let mut owners = Vec::new();
        for id in hit {
            if let Some(way) = self.ways.get(id as usize).and_then(Option::as_ref) {
                owners.push(way.owner);
                self.remove(id);
            }
        }
        owners
    }

    /// Ends all watches, since any path may lead elsewhere now.
    pub fn forget(&mut self) -> Changes {
        self.close();
        self.places.clear();
        self.ways.clear();
        self.free.clear();
        Changes::All
    }

    /// Returns `true` if nothing is watched.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.ways.len() == self.free.len()
    }

    fn close(&mut self) {
        // Closing the descriptors takes them out of the epoll set.
        self.queue = None;
        self.mounts = None;
    }

    fn open(&mut self) -> rustix::io::Result<()> {
        if self.queue.is_some() {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mounts = rustix::fs::open("/proc/self/mountinfo", flags, Mode::empty())?;
        // A change of the mount table makes the file ready with priority data (proc_pid_mounts(5)).
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
fn walk(queue: &OwnedFd, path: &[u8], places: &mut Vec<WatchedName>) -> rustix::io::Result<Identity> {
    if path.first() != Some(&b'/') {
        return Err(Errno::INVAL);
    }
    let mut walk = Walk { queue, places, dir: root()?, rest: Vec::new(), links: 0 };
    walk.prepend(path);
    while let Some(name) = walk.rest.pop() {
        if let Some(found) = walk.step(name)? {
            return Ok(found);
        }
    }
    Err(Errno::ISDIR)
}

fn root() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Refuses a file system that reports no changes made by other machines.
fn check_local(fd: &OwnedFd) -> rustix::io::Result<()> {
    let local = LOCAL.contains(&(rustix::fs::fstatfs(fd)?.f_type as u32));
    if local { Ok(()) } else { Err(Errno::XDEV) }
}

/// A walk along a path.
struct Walk<'w> {
    queue: &'w OwnedFd,
    places: &'w mut Vec<WatchedName>,
    dir: OwnedFd,
    /// Names to follow, the next one last.
    rest: Vec<Box<[u8]>>,
    /// Number of links followed.
    links: usize,
}

impl Walk<'_> {
    /// Puts the names of a path before the rest.
    fn prepend(&mut self, path: &[u8]) {
        let names = path.rsplit(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".");
        self.rest.extend(names.map(Box::from));
    }

    /// Follows a name. Returns the state of a file at the end of the path.
    fn step(&mut self, name: Box<[u8]>) -> rustix::io::Result<Option<Identity>> {
        // Each directory of the way may be on another file system.
        check_local(&self.dir)?;
        self.places.push((watch(self.queue, &self.dir, IN_DIR)?, name.clone()));
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = rustix::fs::openat(&self.dir, &*name, flags, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
            FileType::Directory => self.dir = next,
            FileType::Symlink => self.follow(&next)?,
            FileType::RegularFile if self.rest.is_empty() => return self.end(&next).map(Some),
            _ => return Err(Errno::NOTDIR),
        }
        Ok(None)
    }

    fn follow(&mut self, link: &OwnedFd) -> rustix::io::Result<()> {
        // The kernel gives up at the same number of links, so that a circle of links ends.
        if self.links >= LINKS {
            return Err(Errno::LOOP);
        }
        self.links += 1;
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        if target.as_bytes().first() == Some(&b'/') {
            self.dir = root()?;
        }
        self.prepend(target.as_bytes());
        Ok(())
    }

    fn end(&mut self, file: &OwnedFd) -> rustix::io::Result<Identity> {
        check_local(file)?;
        self.places.push((watch(self.queue, file, IN_FILE)?, Box::default()));
        Ok(Identity::of(&rustix::fs::fstat(file)?))
    }
}

/// Events in a directory that may lead a path elsewhere.
const IN_DIR: WatchFlags = WatchFlags::DELETE
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Events that may mean another state of a file.
const IN_FILE: WatchFlags =
    WatchFlags::MODIFY.union(WatchFlags::ATTRIB).union(WatchFlags::DELETE_SELF).union(WatchFlags::MOVE_SELF);

fn watch(queue: &OwnedFd, what: impl AsFd, flags: WatchFlags) -> rustix::io::Result<i32> {
    // This watches the inode that was opened, because its name may lead elsewhere by now.
    let mut path = String::with_capacity(24);
    let _ = write!(path, "/proc/self/fd/{}", what.as_fd().as_raw_fd());
    inotify::add_watch(queue, path, flags)
}
