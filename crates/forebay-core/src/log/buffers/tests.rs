use super::*;
use crate::config::Config;
use crate::log::access::Target;
use crate::thread::Parts;
use forebay_net::io::Io;
use forebay_sys::log_area::Area;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;

struct Bench {
    thread: Rc<Thread>,
    area: Area,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

/// A thread with one log file, number 0, and an area of so many bytes.
fn bench(size: usize) -> Bench {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("log");
    let parts = Parts {
        number: 0,
        active: ActiveConfig::new(Arc::new(Config::default())),
        log_buffers: LogBuffers::default(),
        all_counters: Arc::default(),
        max_connections: 1,
    };
    let thread = Thread::new(Rc::new(Io::new().expect("epoll")), parts);
    thread.active().logs.borrow_mut().push(Arc::new(open(&path).into()));
    let area = Area::with_size(size).expect("memfd");
    let mapped = Mapped::new(area.fd().try_clone_to_owned().expect("descriptor")).expect("mapped");
    *thread.log_buffers.borrow_mut() = LogBuffers::new(Some(mapped));
    thread.log_buffers.borrow_mut().forget(5);
    Bench { thread, area, path, _dir: dir }
}

fn open(path: &std::path::Path) -> File {
    File::options().create(true).append(true).open(path).expect("file")
}

fn log(buffer: usize, gzip: Option<u32>) -> AccessLog {
    AccessLog { buffer, gzip, ..AccessLog::new(Target::File(0)) }
}

impl Bench {
    fn text(&self) -> String {
        std::fs::read_to_string(&self.path).expect("file")
    }

    fn left(&self) -> Vec<String> {
        let mut all = Vec::new();
        let broken = self.area.left(|left| {
            assert_eq!((left.generation, left.log), (5, 0));
            all.push(String::from_utf8(left.bytes).expect("text"));
        });
        assert_eq!(broken.expect("read"), 0);
        all
    }

    fn append(&self, l: &AccessLog, line: &str) {
        append(&self.thread, 0, l, line.as_bytes());
    }
}

#[test]
fn lines_without_a_buffer_leave_at_the_end_of_the_turn() {
    let b = bench(1 << 20);
    let l = log(0, None);
    b.append(&l, "one\n");
    b.append(&l, "two\n");
    assert_eq!((b.text(), b.left()), (String::new(), vec!["one\ntwo\n".to_owned()]));
    assert!(b.thread.log_buffers.borrow().gathered_at().is_some());
    flush_gathered(&b.thread);
    assert!(b.thread.log_buffers.borrow().gathered_at().is_none());
    assert_eq!((b.text(), b.left()), ("one\ntwo\n".to_owned(), vec![]));
    // And the next turn.
    b.append(&l, "three\n");
    flush_gathered(&b.thread);
    assert_eq!(b.text(), "one\ntwo\nthree\n");
}

#[test]
fn a_long_turn_does_not_hold_lines_back() {
    let b = bench(1 << 20);
    let line = format!("{}\n", "x".repeat(99));
    for n in 1..=400 {
        b.append(&log(0, None), &line);
        let waiting = n * 100 - b.text().len();
        assert!(waiting <= GATHERED, "{waiting} bytes");
    }
    assert!(!b.text().is_empty());
    flush_gathered(&b.thread);
    assert_eq!(b.text(), line.repeat(400));
}

#[test]
fn buffers_keep_their_size_and_order() {
    let b = bench(1 << 20);
    let l = log(10, None);
    b.append(&l, "12345\n");
    b.append(&l, "123\n");
    assert_eq!(b.text(), "");
    b.append(&l, "6\n");
    assert_eq!((b.text(), b.left()), ("12345\n123\n".to_owned(), vec!["6\n".to_owned()]));
    // Longer than the buffer, and longer than any slot.
    b.append(&l, "much longer\n");
    assert_eq!((b.text(), b.left()), ("12345\n123\n6\nmuch longer\n".to_owned(), vec![]));
    let huge = format!("{}\n", "y".repeat(ROOM));
    b.append(&l, "7\n");
    b.append(&l, &huge);
    assert!(b.text().ends_with(&format!("longer\n7\n{huge}")));
    flush_gathered(&b.thread);
    flush(&b.thread, true);
    assert!(b.text().ends_with(&huge));
}

#[test]
fn one_file_with_and_without_a_buffer() {
    let b = bench(1 << 20);
    b.append(&log(1000, None), "waits\n");
    b.append(&log(0, None), "leaves\n");
    flush_gathered(&b.thread);
    assert_eq!((b.text(), b.left()), ("leaves\n".to_owned(), vec!["waits\n".to_owned()]));
    // Other parameters for the same file.
    b.append(&log(2000, None), "waits too\n");
    assert_eq!((b.text(), b.left()), ("leaves\nwaits\n".to_owned(), vec!["waits too\n".to_owned()]));
    b.append(&log(2000, Some(3)), "zipped\n");
    flush(&b.thread, true);
    let bytes = std::fs::read(&b.path).expect("file");
    assert!(bytes.starts_with(b"leaves\nwaits\nwaits too\n\x1f\x8b"));
}

#[test]
fn a_full_area_is_made_up_for() {
    let b = bench(64 << 10);
    b.append(&log(100, None), "shared\n");
    b.append(&log(0, None), "own\n");
    assert_eq!(b.left(), ["shared\n"]);
    flush_gathered(&b.thread);
    flush(&b.thread, true);
    assert_eq!((b.text(), b.left()), ("own\nshared\n".to_owned(), vec![]));
}

#[test]
fn lines_that_a_full_disk_takes_are_counted() {
    let b = bench(1 << 20);
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    b.thread.active().logs.borrow_mut()[0] = Arc::new(full.into());
    b.append(&log(0, None), "one\n");
    b.append(&log(0, None), "two\n");
    flush_gathered(&b.thread);
    assert_eq!((b.thread.counters.log_lines_lost.get(), b.left()), (2, vec![]));
}

#[test]
fn a_new_generation_and_new_files_begin_with_new_slots() {
    let b = bench(1 << 20);
    b.append(&log(0, None), "old\n");
    flush(&b.thread, true);
    b.thread.log_buffers.borrow_mut().renew();
    let (reader, writer) = std::io::pipe().expect("pipe");
    b.thread.active().logs.borrow_mut()[0] = Arc::new(writer.into());
    b.append(&log(0, None), "new\n");
    let all = b.thread.log_buffers.borrow();
    assert_eq!(all.buffers.iter().flatten().map(|b| b.regular).collect::<Vec<_>>(), [false]);
    drop(all);
    flush_gathered(&b.thread);
    let mut got = [0; 4];
    std::io::Read::read_exact(&mut &reader, &mut got).expect("a line");
    assert_eq!((&got, b.text().as_str()), (b"new\n", "old\n"));
}
