use super::*;

#[test]
fn a_turn_asks_once_for_requests_that_began_before_it() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("f");
    let path = file.as_os_str().as_encoded_bytes();
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    write("one");
    let policy = Policy { cache: None, valid: Duration::from_secs(60), min_uses: 1, errors: false };
    let turn = Instant::now();
    let later = |n: u64| turn + Duration::from_nanos(n);
    let mut cache = FileCache::default();
    let opened = |cache: &mut FileCache, now: Instant| {
        cache.put(path, &open(path).into(), &policy, now);
    };
    let hit = |cache: &mut FileCache, now: Instant, early: bool| {
        matches!(cache.get(path, &policy, now, early), Cached::Hit(_))
    };
    opened(&mut cache, turn);
    assert!(hit(&mut cache, later(1), false));
    write("another");
    // The turn knows it as it was; whoever came since sees the change, as does the next turn.
    assert!(hit(&mut cache, later(1), true));
    assert!(!hit(&mut cache, later(1), false));
    opened(&mut cache, later(1));
    write("a third");
    assert!(hit(&mut cache, later(1), true));
    assert!(!hit(&mut cache, later(2), true));
}

/// A thread that nobody asks keeps no deleted file open, which takes room on the disk, and nothing that was not used for long.
#[test]
fn deleted_and_unused_files_are_closed_without_a_request() {
    let dir = tempfile::tempdir().expect("dir");
    let policy = Policy { cache: None, valid: Duration::from_secs(60), min_uses: 1, errors: false };
    let mut cache = FileCache::default();
    let begun = Instant::now();
    for name in ["stays", "deleted", "replaced"] {
        let path = dir.path().join(name);
        std::fs::write(&path, name).expect("written");
        let path = path.as_os_str().as_encoded_bytes();
        cache.put(path, &open(path).into(), &policy, begun);
    }
    assert!(!cache.end_unneeded(begun));
    std::fs::remove_file(dir.path().join("deleted")).expect("deleted");
    std::fs::write(dir.path().join("new"), "new").expect("written");
    std::fs::rename(dir.path().join("new"), dir.path().join("replaced")).expect("replaced");
    assert!(cache.end_unneeded(begun));
    assert_eq!(cache.index.len(), 1);
    assert!(!cache.end_unneeded(begun + IDLE / 2) && cache.end_unneeded(begun + IDLE));
    assert!(cache.is_empty());
    // Where a location keeps unused files for longer, that holds.
    let long = Policy { cache: Some((10, 2 * IDLE)), ..policy };
    let path = dir.path().join("stays");
    let path = path.as_os_str().as_encoded_bytes();
    cache.put(path, &open(path).into(), &long, begun);
    assert!(!cache.end_unneeded(begun + IDLE) && cache.end_unneeded(begun + 2 * IDLE));
}

#[test]
fn short_parts_of_a_file_in_memory_are_copied() {
    let dir = tempfile::tempdir().expect("dir");
    for (len, range, by_sendfile) in [
        (COPIED, 0..COPIED, false),
        (COPIED + 1, 0..COPIED + 1, true),
        (SMALL, 1..COPIED + 1, false),
        (SMALL, 0..SMALL, true),
        (SMALL + 1, 0..1, true),
    ] {
        let path = dir.path().join("file");
        std::fs::write(&path, vec![b'x'; len as usize]).expect("written");
        let Found::File(file) = open(path.as_os_str().as_encoded_bytes()).into() else { panic!("{len}") };
        assert_eq!(file.leaves_by_sendfile(range.start, range.end), by_sendfile, "{range:?} of {len}");
    }
}

#[test]
fn a_file_of_middle_size_is_kept_when_it_is_read_again() {
    let dir = tempfile::tempdir().expect("dir");
    let policy = Policy { cache: None, valid: Duration::from_secs(60), min_uses: 1, errors: false };
    let mut cache = FileCache::default();
    for (name, len, kept) in [
        ("small", SMALL, true),
        ("middle", SMALL + 1, true),
        ("limit", MEDIUM, true),
        ("large", MEDIUM + 1, false),
    ] {
        let path = dir.path().join(name);
        let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).expect("written");
        let path = path.as_os_str().as_encoded_bytes();
        let now = Instant::now();
        let Found::File(file) = open(path).into() else { panic!("{name}") };
        cache.read_again(&file, now);
        cache.read_again(&file, now);
        assert_eq!(
            file.bytes().is_some(),
            len <= SMALL,
            "{name}: nothing for a file that the cache does not keep"
        );
        cache.put(path, &Found::File(file.clone()), &policy, now);
        let before = cache.medium_bytes.load(Ordering::Relaxed);
        cache.read_again(&file, now);
        assert_eq!(file.bytes().is_some(), len <= SMALL, "{name}: once is not again");
        cache.read_again(&file, now);
        cache.read_again(&file, now);
        assert_eq!(file.bytes().map(|b| b.as_ref() == bytes), kept.then_some(true), "{name}");
        let grown = cache.medium_bytes.load(Ordering::Relaxed) - before;
        assert_eq!(grown, if kept && len > SMALL { len } else { 0 }, "{name}");
    }
    // A request that still sends holds memory; then all is given back.
    let path = dir.path().join("limit");
    let Cached::Hit(held) = cache.get(path.as_os_str().as_encoded_bytes(), &policy, Instant::now(), false)
    else {
        panic!("it is there")
    };
    cache.shed(10);
    assert_eq!((cache.content_bytes, cache.medium_bytes.load(Ordering::Relaxed)), (0, MEDIUM));
    drop(held);
    assert_eq!(cache.medium_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn contents_of_middle_size_have_a_budget() {
    let dir = tempfile::tempdir().expect("dir");
    let policy = Policy { cache: None, valid: Duration::from_secs(60), min_uses: 1, errors: false };
    let mut cache = FileCache::default();
    let begin = Instant::now();
    let mut ask = |n: u64, now: Instant| {
        let path = dir.path().join(n.to_string());
        std::fs::write(&path, vec![b'x'; MEDIUM as usize]).expect("written");
        let path = path.as_os_str().as_encoded_bytes();
        let Found::File(file) = open(path).into() else { panic!("{n}") };
        cache.put(path, &Found::File(file.clone()), &policy, now);
        cache.read_again(&file, now);
        cache.read_again(&file, now);
        assert!(cache.medium_bytes.load(Ordering::Relaxed) <= MEDIUM_BUDGET);
        (file.bytes().is_some(), file)
    };
    let fit = MEDIUM_BUDGET / MEDIUM;
    let held: Vec<_> = (0..fit).map(|n| ask(n, begin)).collect();
    assert!(held.iter().all(|h| h.0));
    assert!(!ask(fit, begin + IDLE / 2).0, "no room, and nothing is old");
    assert!(!ask(fit + 1, begin + IDLE).0, "what is old is still being sent");
    drop(held);
    assert!(ask(fit + 2, begin + IDLE).0);
}

/// A cache with watches, and the queue of their events.
struct Watched {
    epoll: Arc<OwnedFd>,
    cache: FileCache,
    turn: Instant,
}

const EVERY_USE: Policy = Policy { cache: None, valid: Duration::from_secs(60), min_uses: 1, errors: false };

impl Watched {
    fn new() -> Watched {
        let epoll = Arc::new(
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("epoll"),
        );
        let cache = FileCache::watching(Watches::new(epoll.clone(), 1));
        Watched { epoll, cache, turn: Instant::now() }
    }

    /// Asks the cache in a turn of its own.
    fn asked(&mut self, path: &[u8]) -> Option<Found> {
        self.turn += Duration::from_nanos(1);
        match self.cache.get(path, &EVERY_USE, self.turn, true) {
            Cached::Hit(found) => Some(found),
            Cached::Miss => None,
        }
    }

    fn is_watched(&self, path: &[u8]) -> bool {
        self.cache.index.get(path).is_some_and(|i| self.cache.entries[*i].watch.is_some())
    }

    fn watch(&mut self, path: &[u8]) {
        self.cache.put(path, &open(path).into(), &EVERY_USE, self.turn);
        for _ in 0..WATCH_AFTER {
            assert!(self.asked(path).is_some());
        }
        assert!(self.is_watched(path), "{}", String::from_utf8_lossy(path));
    }

    /// Handles the events of the kernel. Returns `true` if there were any.
    fn handle_events(&mut self) -> bool {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let (events, _) =
            rustix::event::epoll::wait(&self.epoll, &mut events, Some(&at_once)).expect("waited");
        let any = !events.is_empty();
        if any {
            self.cache.handle_events(false, self.turn);
        }
        any
    }
}

fn one_watched() -> (tempfile::TempDir, std::path::PathBuf, Watched) {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("f");
    std::fs::write(&file, "text").expect("write");
    let mut w = Watched::new();
    w.watch(file.as_os_str().as_encoded_bytes());
    (dir, file, w)
}

#[test]
fn every_change_of_a_watched_file_or_its_way_is_told_at_once() {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    type Change = fn(&Path);
    // Below the root: a/b/f and v1/f, v2/f, `now` leads to v1, a/b/link to ../../now/f.
    let changes: [(&str, Change); 16] = [
        ("written", |d| fs::write(d.join("a/b/f"), "other").expect("write")),
        ("appended", |d| {
            use std::io::Write;
            let mut f = fs::File::options().append(true).open(d.join("a/b/f")).expect("open");
            f.write_all(b"x").expect("append");
        }),
        ("cut", |d| {
            fs::File::options().write(true).open(d.join("a/b/f")).expect("open").set_len(1).expect("cut")
        }),
        ("touched", |d| {
            let f = fs::File::options().write(true).open(d.join("a/b/f")).expect("open");
            f.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("touch");
        }),
        ("mode", |d| fs::set_permissions(d.join("a/b/f"), fs::Permissions::from_mode(0o600)).expect("chmod")),
        ("replaced", |d| {
            fs::write(d.join("a/b/new"), "other").expect("write");
            fs::rename(d.join("a/b/new"), d.join("a/b/f")).expect("rename");
        }),
        ("removed", |d| fs::remove_file(d.join("a/b/f")).expect("unlink")),
        ("moved", |d| fs::rename(d.join("a/b/f"), d.join("a/b/g")).expect("rename")),
        ("through another name", |d| {
            fs::hard_link(d.join("a/b/f"), d.join("v2/hard")).expect("link");
            fs::write(d.join("v2/hard"), "other").expect("write");
        }),
        ("directory moved", |d| fs::rename(d.join("a/b"), d.join("a/c")).expect("rename")),
        ("directory above moved", |d| fs::rename(d.join("a"), d.join("z")).expect("rename")),
        ("another directory in its place", |d| {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            fs::create_dir_all(d.join("x/b")).expect("mkdir");
            fs::write(d.join("x/b/f"), "other").expect("write");
            renameat_with(CWD, d.join("x"), CWD, d.join("a"), RenameFlags::EXCHANGE).expect("exchange");
        }),
        ("link turned", |d| {
            symlink("v2", d.join("next")).expect("symlink");
            fs::rename(d.join("next"), d.join("now")).expect("rename");
        }),
        ("link made anew", |d| {
            fs::remove_file(d.join("now")).expect("unlink");
            symlink("v2", d.join("now")).expect("symlink");
        }),
        ("written behind the link", |d| fs::write(d.join("v1/f"), "other").expect("write")),
        ("link to the file replaced", |d| {
            fs::write(d.join("a/b/new"), "other").expect("write");
            fs::rename(d.join("a/b/new"), d.join("a/b/link")).expect("rename");
        }),
    ];
    let mut seen = 0;
    for (what, change) in changes {
        let dir = tempfile::tempdir().expect("dir");
        let root = dir.path().canonicalize().expect("path");
        for d in ["a/b", "v1", "v2"] {
            fs::create_dir_all(root.join(d)).expect("mkdir");
        }
        for f in ["a/b/f", "v1/f", "v2/f"] {
            fs::write(root.join(f), f).expect("write");
        }
        symlink(root.join("v1"), root.join("now")).expect("symlink");
        symlink("../../now/f", root.join("a/b/link")).expect("symlink");
        let mut w = Watched::new();
        let paths = ["a/b/f", "now/f", "a/./b//f", "a/b/link", "now/../a/b/f"]
            .map(|p| root.join("x").with_file_name(p).into_os_string().into_encoded_bytes());
        paths.iter().for_each(|p| w.watch(p));
        // Other tests may work next to the directory.
        w.handle_events();
        assert!(paths.iter().all(|p| w.is_watched(p)), "{what}: nothing has happened");
        change(&root);
        assert!(w.handle_events(), "{what}");
        for p in &paths {
            let text = String::from_utf8_lossy(p).into_owned();
            let Some(&i) = w.cache.index.get(p.as_slice()) else { panic!("{what}: {text}") };
            let right = unchanged(p, &w.cache.entries[i].found);
            seen += usize::from(!right);
            assert!(right || !w.is_watched(p), "{what}: {text} is believed and not the same");
            assert_eq!(w.asked(p).is_some(), right, "{what}: {text}");
        }
    }
    assert!(seen >= 16 + 10, "each change is one for somebody");
}

#[test]
fn changes_elsewhere_end_no_watch_and_a_flood_ends_all() {
    let (dir, file, mut w) = one_watched();
    let path = file.as_os_str().as_encoded_bytes();
    let other = |n: u32| {
        for i in 0..n {
            let name = dir.path().join(format!("o{i}"));
            std::fs::write(&name, "x").expect("write");
            std::fs::remove_file(&name).expect("unlink");
        }
    };
    other(10);
    w.handle_events();
    assert!(w.is_watched(path));
    // Trusted for a while, then looked at, still watched.
    w.turn += TRUST;
    assert!(w.asked(path).is_some() && w.is_watched(path));
    for _ in 0..40 {
        other(200);
        w.handle_events();
    }
    assert!(!w.is_watched(path));
    for _ in 0..WATCH_AFTER * 2 {
        assert!(w.asked(path).is_some());
    }
    assert!(!w.is_watched(path), "it rests");
    std::fs::write(&file, "longer").expect("write");
    assert!(w.asked(path).is_none(), "and is as strict as without");
}

#[test]
fn another_mount_table_ends_all_watches() {
    let (_dir, file, mut w) = one_watched();
    let path = file.as_os_str().as_encoded_bytes();
    w.cache.handle_events(true, w.turn);
    assert!(!w.is_watched(path));
    for _ in 0..WATCH_AFTER {
        assert!(w.asked(path).is_some());
    }
    assert!(w.is_watched(path), "and it is watched anew");
    w.cache.shed(1);
    let idle = w.cache.watches.as_ref().map(Watches::is_empty);
    assert_eq!(idle, Some(true), "what leaves the cache is watched no more");
}

#[test]
fn a_thread_watches_so_many_paths_and_no_more() {
    let dir = tempfile::tempdir().expect("dir");
    let mut w = Watched::new();
    let paths: Vec<_> =
        (0..600).map(|n| dir.path().join(n.to_string()).into_os_string().into_encoded_bytes()).collect();
    for p in &paths {
        std::fs::write(std::ffi::OsStr::new(std::str::from_utf8(p).expect("text")), "x").expect("write");
        w.cache.put(p, &open(p).into(), &EVERY_USE, w.turn);
        for _ in 0..WATCH_AFTER {
            assert!(w.asked(p).is_some());
        }
    }
    let watched = paths.iter().filter(|p| w.is_watched(p)).count();
    assert!((1..=512).contains(&watched), "{watched}");
    w.cache.shed(600);
    assert_eq!(w.cache.watches.as_ref().map(Watches::is_empty), Some(true));
}

/// A change while the watch was being set up is no reason to do without one for thousands of requests.
#[test]
fn a_file_that_has_just_changed_is_watched_soon() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("f");
    let path = file.as_os_str().as_encoded_bytes();
    std::fs::write(&file, "one").expect("write");
    let mut w = Watched::new();
    w.cache.put(path, &open(path).into(), &EVERY_USE, w.turn);
    std::fs::write(&file, "another").expect("write");
    let looks_after_watching = |w: &mut Watched, path: &[u8]| {
        let i = w.cache.index[path];
        w.cache.watch(i, &EVERY_USE, w.turn);
        assert!(!w.is_watched(path));
        w.cache.entries[i].looks
    };
    assert_eq!(looks_after_watching(&mut w, path), 0);
    // What is not on a local file system is not tried again as soon.
    let path = b"/proc/version";
    w.cache.put(path, &open(path).into(), &EVERY_USE, w.turn);
    assert_eq!(looks_after_watching(&mut w, path), -WATCH_AGAIN);
}

/// Many files that are asked for once leave those alone that are asked for again.
#[test]
fn a_full_cache_takes_in_what_is_opened_again() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("f");
    std::fs::write(&file, "text").expect("written");
    let found: Found = open(file.as_os_str().as_encoded_bytes()).into();
    let policy = Policy { cache: None, valid: Duration::from_secs(60), min_uses: 1, errors: false };
    let now = Instant::now();
    let mut cache = FileCache::default();
    let name = |n: usize| format!("/{n}").into_bytes();
    let has = |cache: &FileCache, n: usize| cache.index.contains_key(name(n).as_slice());
    (0..DEFAULT_ENTRIES).for_each(|n| cache.put(&name(n), &found, &policy, now));
    assert!((0..DEFAULT_ENTRIES).all(|n| has(&cache, n)));
    (DEFAULT_ENTRIES..50 * DEFAULT_ENTRIES).for_each(|n| cache.put(&name(n), &found, &policy, now));
    assert!((0..DEFAULT_ENTRIES).all(|n| has(&cache, n)));
    let new = 60 * DEFAULT_ENTRIES;
    cache.put(&name(new), &found, &policy, now);
    assert!(!has(&cache, new));
    cache.put(&name(new), &found, &policy, now);
    assert!(has(&cache, new) && !has(&cache, 0));
    assert_eq!(cache.index.len(), DEFAULT_ENTRIES);
    // As nginx does it, and where entries have not been used for long.
    let configured = Policy { cache: Some((8, IDLE)), ..policy };
    cache.put(&name(new + 1), &found, &configured, now);
    assert!(has(&cache, new + 1));
    assert_eq!(cache.index.len(), 8);
    cache.put(&name(new + 2), &found, &policy, now + IDLE);
    assert!(has(&cache, new + 2));
    assert_eq!(cache.index.len(), 1);
}
