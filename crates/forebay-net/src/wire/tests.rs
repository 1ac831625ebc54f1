use super::*;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A socket of the poller and its peer.
struct Ends {
    io: Io,
    wire: Wire,
    peer: TcpStream,
}

impl Ends {
    fn new() -> Ends {
        let io = Io::new().expect("epoll");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (peer, _) = listener.accept().expect("accepted");
        ours.set_nonblocking(true).expect("nonblocking");
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let wire = Wire::Plain(io.poller.insert(ours.into()));
        Ends { io, wire, peer }
    }

    fn poll_writable(&self) -> Poll<()> {
        self.wire.poll_writable(&self.io, &mut Context::from_waker(std::task::Waker::noop()))
    }

    fn poll_readable(&self) -> Poll<()> {
        self.wire.poll_readable(&self.io, &mut Context::from_waker(std::task::Waker::noop()))
    }

    /// Handles events until `done`.
    fn until(&self, done: impl Fn(&Ends) -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while !done(self) {
            assert!(std::time::Instant::now() < end, "no event");
            self.io.poller.take_events(Duration::from_millis(100));
        }
    }
}

const PIECE: usize = 64 * 1024;

fn piece() -> Vec<u8> {
    vec![b'x'; PIECE]
}

fn file() -> File {
    let path = std::env::temp_dir().join(format!("forebay-wire-{}", std::process::id()));
    let mut file =
        File::options().create(true).truncate(true).read(true).write(true).open(&path).expect("a file");
    file.write_all(&piece()).expect("written");
    std::fs::remove_file(&path).expect("removed");
    file
}

/// Reads or writes once in one of the ways. Returns the number of bytes.
type Once = fn(&mut Ends) -> Result<usize, Errno>;

fn filled_pipe() -> Pipe {
    let (feed, fed) = std::os::unix::net::UnixStream::pair().expect("a pair");
    (&feed).write_all(&[b'x'; 4096]).expect("written");
    let mut pipe = Pipe::default();
    pipe.fill(fed, 4096).expect("filled");
    pipe
}

const WRITES: [(&str, Once); 6] = [
    ("send", |e| e.wire.send(&e.io, &piece(), Then::Nothing).map(|s| s.bytes)),
    ("send_pieces", |e| {
        let (a, b) = (piece(), piece());
        e.wire.send_pieces(&e.io, &[IoSlice::new(&a), IoSlice::new(&b)], Then::Nothing).map(|s| s.bytes)
    }),
    ("send_file", |e| e.wire.send_file(&e.io, &file(), &mut 0, PIECE).map(|s| s.bytes)),
    ("send_pipe", |e| Ok(e.wire.send_pipe(&e.io, &mut filled_pipe()))),
    ("pour_pipe", |e| e.wire.pour_pipe(&e.io, &mut filled_pipe()).map(|s| s.bytes)),
    ("transmit", |e| transmit(&e.io.poller, e.wire.token(), &piece(), SendFlags::NOSIGNAL)),
];

/// Whatever a task waits for between a write that finds no room and its wait for some, the room that comes is not overlooked.
#[test]
fn a_write_that_finds_no_room_is_noted_by_itself() {
    for (how, write) in WRITES {
        let mut e = Ends::new();
        assert!(e.poll_writable().is_ready(), "{how}");
        let mut sent = 0;
        loop {
            match write(&mut e) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(n) => sent += n,
                Err(error) => panic!("{how}: {error}"),
            }
        }
        assert!(sent > 0, "{how}");
        assert!(e.poll_writable().is_pending(), "{how}: a full socket");
        e.peer.read_exact(&mut vec![0; sent]).expect("all bytes");
        e.until(|e| e.wire.is_writable(&e.io));
        assert!(e.poll_writable().is_ready(), "{how}: room has come before the wait");
        assert!(write(&mut e).is_ok_and(|n| n > 0), "{how}");
    }
}

/// The same for reads.
#[test]
fn a_read_that_finds_nothing_is_noted_by_itself() {
    let reads: [(&str, Once); 4] = [
        ("read", |e| e.wire.read(&e.io, &mut Vec::with_capacity(16))),
        ("discard", |e| e.wire.discard(&e.io, &mut Vec::with_capacity(16))),
        ("peek", |e| peek(&e.io.poller, e.wire.token())),
        ("fill_pipe", |e| e.wire.fill_pipe(&e.io, &mut Pipe::default(), 16)),
    ];
    for (how, read) in reads {
        let mut e = Ends::new();
        assert!(e.poll_readable().is_ready(), "{how}");
        assert_eq!(read(&mut e), Err(Errno::AGAIN), "{how}");
        assert!(e.poll_readable().is_pending(), "{how}: nothing has come");
        e.peer.write_all(b"x").expect("written");
        e.until(|e| e.wire.is_readable(&e.io));
        assert!(e.poll_readable().is_ready(), "{how}: a byte has come before the wait");
        assert_eq!(read(&mut e), Ok(1), "{how}");
    }
}
