use super::*;

fn run<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("runtime").block_on(f)
}

fn push(s: &mut Spool, bytes: &[u8]) {
    let mut mem = s.buffer();
    mem.extend_from_slice(bytes);
    s.appended(mem);
}

#[test]
fn bytes_come_out_in_order() {
    let dir = tempfile::tempdir().expect("directory");
    let limits = AheadLimits { memory: 8, file: 1000 };
    let mut s = Spool::new(limits, None, dir.path().join("deep").into());
    let (mut all, mut got) = (Vec::new(), Vec::new());
    run(async {
        for round in 0..50u8 {
            let piece: Vec<u8> = (0..round % 13).map(|n| n ^ round).collect();
            all.extend_from_slice(&piece);
            push(&mut s, &piece);
            if s.wants_save() {
                s.save(&Disk::default()).await.expect("saved");
            }
            if round % 5 == 0 {
                match s.next() {
                    NextBytes::Memory => s.take(&mut got),
                    NextBytes::File => assert!(s.load(&mut got).await),
                    NextBytes::Nothing => {}
                }
            }
        }
        loop {
            match s.next() {
                NextBytes::Memory => s.take(&mut got),
                NextBytes::File => assert!(s.load(&mut got).await),
                NextBytes::Nothing => break,
            }
        }
    });
    assert_eq!(got, all);
    assert_eq!(std::fs::read_dir(dir.path().join("deep")).expect("made").count(), 0);
}

#[test]
fn a_full_disk_leaves_the_bytes_in_memory() {
    let mut s =
        Spool::new(AheadLimits { memory: 4, file: 1000 }, None, PathBuf::from("/proc/no/such").into());
    push(&mut s, b"12345");
    assert!(s.wants_save());
    assert!(run(s.save(&Disk::default())).is_err());
    assert!(!s.wants_save() && !s.has_room());
    let mut got = Vec::new();
    s.take(&mut got);
    assert_eq!(got, b"12345");
    assert!(s.has_room());
}

/// Bytes that the client has not taken when the response is complete must not go to the file again, which belongs to
/// others by then.
#[test]
fn a_finished_file_is_not_written() {
    let dir = tempfile::tempdir().expect("directory");
    for saves in 0..3 {
        let path = dir.path().join(format!("file{saves}"));
        let keep = Keep::Store { path: path.clone(), mode: 0o600, modified: None };
        let limits = AheadLimits { memory: 4, file: 1000 };
        let mut s = Spool::new(limits, Some(keep), TempDir::default());
        let mut got = Vec::new();
        for n in 0..saves {
            push(&mut s, format!("saved{n}").as_bytes());
            run(s.save(&Disk::default())).expect("saved");
        }
        if saves == 1 {
            assert!(run(s.load(&mut got)), "the client keeps up at first");
        }
        push(&mut s, b"the rest, which fills memory");
        run(s.complete(&Disk::default())).expect("complete");
        assert!(!s.wants_save(), "{saves}");
        let whole = std::fs::read(&path).expect("stored");
        while s.next() != NextBytes::Nothing {
            match s.next() {
                NextBytes::Memory => s.take(&mut got),
                _ => assert!(run(s.load(&mut got)), "{saves}"),
            }
            assert!(!s.wants_save(), "{saves}");
        }
        assert_eq!(got, whole, "{saves}");
        assert_eq!(std::fs::read(&path).expect("stored"), whole, "{saves}");
    }
}

/// Where the file finds no place, the client still gets what was saved.
#[test]
fn a_response_without_a_place_still_goes_to_its_client() {
    let dir = tempfile::tempdir().expect("directory");
    // A directory in the place of the file: rename(2) fails.
    let path = dir.path().join("taken");
    std::fs::create_dir(&path).expect("made");
    let keep = Keep::Store { path, mode: 0o600, modified: None };
    let mut s = Spool::new(AheadLimits { memory: 4, file: 1000 }, Some(keep), TempDir::default());
    push(&mut s, b"saved");
    run(s.save(&Disk::default())).expect("saved");
    push(&mut s, b" rest");
    assert!(run(s.complete(&Disk::default())).is_err());
    let mut got = Vec::new();
    assert!(run(s.load(&mut got)));
    s.take(&mut got);
    assert_eq!(got, b"saved rest");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1, "no file is left");
}

/// A short response is written at its end alone, a long one before; both make the same directories (proxy_store_access).
#[test]
fn a_stored_response_makes_directories_of_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("directory");
    for (name, is_long) in [("short", false), ("long", true)] {
        let path = dir.path().join(name).join("file");
        let keep = Keep::Store { path: path.clone(), mode: 0o640, modified: None };
        let mut s = Spool::new(AheadLimits { memory: 4, file: 0 }, Some(keep), TempDir::default());
        push(&mut s, b"12345");
        if is_long {
            run(s.save(&Disk::default())).expect("saved");
        }
        run(s.complete(&Disk::default())).expect("complete");
        assert_eq!(std::fs::read(&path).expect("stored"), b"12345");
        let made = std::fs::metadata(dir.path().join(name)).expect("made").permissions().mode();
        assert_eq!(made & 0o777, 0o750, "{name}");
    }
}
