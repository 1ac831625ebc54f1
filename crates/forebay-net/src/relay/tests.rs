use super::way::{Mode, READ, STEP};
use super::*;
use crate::mux::Mux;
use crate::wire::{Sent, Then};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// The server takes nothing more.
const FULL: Step = Step::Wait { up: Wait::Writable, down: Wait::Readable };

/// One side, and the bytes received from it before.
#[derive(Debug)]
struct End<'w> {
    /// Its connection.
    wire: &'w mut Wire,
    /// Bytes that it has sent and that have not been passed on.
    early: Vec<u8>,
    /// Its times.
    timeouts: Timeouts,
}

/// Result of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Relayed {
    /// Cause of the end.
    ended: Ended,
    /// Bytes of the client that the server's connection has taken.
    from_client: u64,
    /// Bytes of the server that the client's connection has taken.
    from_server: u64,
}

/// Passes bytes until one side ends or has done nothing for too long.
async fn relay(io: &Io, client: End<'_>, server: End<'_>) -> Relayed {
    let rules = Rules { client: client.timeouts, server: server.timeouts, ..Rules::default() };
    let mut pair = Pair::new(io, client.early, server.early);
    let ended = pair.run(io, (client.wire, server.wire), &rules, || false).await;
    let (from_client, from_server) = (pair.passed_from(Side::Client), pair.passed_from(Side::Server));
    Relayed { ended, from_client, from_server }
}

fn plain(io: &Io, fd: OwnedFd) -> Wire {
    rustix::io::ioctl_fionbio(&fd, true).unwrap();
    Wire::Plain(io.poller.insert(fd))
}

/// A connection and its other end.
fn pair(io: &Io) -> (Wire, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (plain(io, ours.into()), theirs)
}

/// A TCP connection and its other end.
fn tcp(io: &Io) -> (Wire, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // A small window, so that a receiver is slower than its sender.
    rustix::net::sockopt::set_socket_recv_buffer_size(&theirs, 64 * 1024).unwrap();
    (plain(io, listener.accept().unwrap().0.into()), theirs)
}

fn end<'w>(wire: &'w mut Wire, early: &[u8]) -> End<'w> {
    let timeouts = Timeouts { read: 60 * SECOND, send: 60 * SECOND };
    End { wire, early: early.to_vec(), timeouts }
}

/// Waker that notes that the future can go on.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A relay with its connections, driven without a reactor.
struct Bench {
    io: Io,
    client: Wire,
    server: Wire,
    pair: Pair,
    rules: Rules,
    began: Instant,
}

impl Bench {
    fn new(io: Io, client: Wire, server: Wire, rules: Rules) -> Bench {
        let began = Instant::now();
        io.poller.begin_turn(began);
        let pair = Pair::new(&io, Vec::new(), Vec::new());
        Bench { io, client, server, pair, rules, began }
    }

    /// Creates a relay between TCP connections. Returns the other ends of the client's and of the server's connection, too.
    fn tcp(rules: Rules) -> (Bench, TcpStream, TcpStream) {
        let io = Io::new().unwrap();
        let ((client, a), (server, b)) = (tcp(&io), tcp(&io));
        (Bench::new(io, client, server, rules), a, b)
    }

    /// Sets the clock of the relay.
    fn at(&self, time: Duration) {
        self.io.poller.begin_turn(self.began + time);
    }

    fn step(&mut self) -> Step {
        self.pair.step(&self.io, &mut self.client, &mut self.server, &self.rules)
    }

    /// Returns the next step, after the events that have come.
    fn next(&mut self) -> Step {
        let wait = self.step();
        if let Step::Wait { .. } = wait {
            self.watch();
            self.io.poller.take_events(Duration::ZERO);
        }
        self.step()
    }

    /// Steps until a condition holds. Fails when that takes too long.
    fn until(&mut self, mut done: impl FnMut(&Bench, Step) -> bool) {
        let began = Instant::now();
        loop {
            let step = self.next();
            if done(self, step) {
                return;
            }
            assert!(began.elapsed() < 60 * SECOND, "{step:?}, {:?}", self.pair);
        }
    }

    /// Sends a message from one end to the other through the relay.
    fn exchange(&mut self, (mut from, mut to): (&TcpStream, &TcpStream), message: &[u8]) {
        from.write_all(message).unwrap();
        let sum = |b: &Bench| b.passed().0 + b.passed().1;
        let after = sum(self) + message.len() as u64;
        self.until(|b, _| sum(b) >= after);
        let mut got = vec![0; message.len()];
        to.read_exact(&mut got).unwrap();
        assert_eq!(got, message);
    }

    /// Has the poller watch both connections.
    fn watch(&self) {
        watch(&self.io, [&self.client, &self.server]);
    }

    /// Runs the relay until it ends, or `done` returns `true`. Fails when that takes too long.
    fn run(&mut self, mut done: impl FnMut() -> bool) -> Option<Ended> {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let Bench { io, client, server, pair, rules, .. } = self;
        let mut run = std::pin::pin!(pair.run(io, (client, server), rules, || false));
        let began = Instant::now();
        while began.elapsed() < 60 * SECOND {
            if let Poll::Ready(ended) = run.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(ended);
            }
            if done() {
                return None;
            }
            let ready = woken.0.swap(false, Ordering::Relaxed);
            let timeout = if ready { Duration::ZERO } else { Duration::from_millis(10) };
            io.poller.take_events(timeout);
        }
        panic!("neither end nor condition");
    }

    fn passed(&self) -> (u64, u64) {
        (self.pair.passed_from(Side::Client), self.pair.passed_from(Side::Server))
    }

    /// Asserts that neither direction holds a buffer or a pipe.
    fn assert_empty(&self) {
        assert!(!self.pair.up.is_holding() && !self.pair.down.is_holding(), "{:?}", self.pair);
        assert_eq!(self.io.pipes.lent(), 0);
    }
}

fn watch(io: &Io, wires: [&Wire; 2]) {
    let mut cx = Context::from_waker(Waker::noop());
    for wire in wires {
        let _ = wire.poll_readable(io, &mut cx);
        let _ = wire.poll_writable(io, &mut cx);
    }
}

/// Length after which the bytes of a stream repeat. It has no factor in common with the lengths of buffers.
const PERIOD: usize = 100_003;

/// Returns a piece of a stream, at most as long as [`PERIOD`], from a position on.
fn piece(at: usize, len: usize) -> &'static [u8] {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..2 * PERIOD).map(|i| ((i % PERIOD).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    });
    &BYTES[at % PERIOD..][..len]
}

/// Sends bytes of a stream from another thread, then shuts the direction down.
fn sender(mut to: TcpStream, len: usize) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut at = 0;
        while at < len {
            let piece = piece(at, (len - at).min(PERIOD));
            to.write_all(piece).unwrap();
            at += piece.len();
        }
        to.shutdown(Shutdown::Write).unwrap();
    })
}

/// Receives a stream in another thread until it ends, in small pieces. Returns its length.
fn receiver(mut from: TcpStream) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        let mut buf = vec![0; 50_000];
        let mut at = 0;
        loop {
            let n = from.read(&mut buf).unwrap();
            if n == 0 {
                return at;
            }
            assert!(&buf[..n] == piece(at, n), "wrong bytes after {at}");
            at += n;
            std::thread::yield_now();
        }
    })
}

/// Bytes received before are passed both ways before the end of one side ends the relay.
#[test]
fn bytes_pass_until_a_side_ends() {
    let io = Io::new().unwrap();
    let ((mut a, mut client), (mut b, mut server)) = (pair(&io), pair(&io));
    client.shutdown(Shutdown::Write).unwrap();
    let relay = relay(&io, end(&mut a, b"early"), end(&mut b, b"answer"));
    let done = std::pin::pin!(relay).poll(&mut Context::from_waker(Waker::noop()));
    let closed = Ended::Closed(Side::Client);
    assert_eq!(done, Poll::Ready(Relayed { ended: closed, from_client: 5, from_server: 6 }));
    let mut got = [[0; 6]; 2];
    server.read_exact(&mut got[0][..5]).unwrap();
    client.read_exact(&mut got[1]).unwrap();
    assert_eq!(got, [*b"early\0", *b"answer"]);
}

#[test]
fn a_broken_connection_is_that_of_the_receiver() {
    let io = Io::new().unwrap();
    let ((mut a, _client), (mut b, server)) = (pair(&io), pair(&io));
    drop(server);
    let relay = relay(&io, end(&mut a, b"early"), end(&mut b, b""));
    let done = std::pin::pin!(relay).poll(&mut Context::from_waker(Waker::noop()));
    let broken = Ended::Failed(Side::Server, Call::Send, Errno::PIPE);
    assert_eq!(done.map(|r| (r.ended, r.from_client)), Poll::Ready((broken, 0)));
}

/// The times count for the side that holds things up.
#[test]
fn the_slower_side_is_waited_for() {
    let client = Timeouts { read: Duration::MAX, send: 5 * SECOND };
    let server = Timeouts { read: 3 * SECOND, send: 2 * SECOND };
    let mut rules = Rules { client, server, ..Rules::default() };
    let io = Io::new().unwrap();
    let pair = Pair::new(&io, Vec::new(), Vec::new());
    let of = |rules: &Rules, up, down| {
        let (deadline, cause) = pair.deadline(rules, up, down);
        (deadline.since(pair.moved), cause)
    };
    let (read, write) = (Wait::Readable, Wait::Writable);
    let ended = |side| Some(Ended::TimedOut(side));
    assert_eq!(of(&rules, read, read), (3 * SECOND, ended(Side::Server)), "the client may be silent");
    assert_eq!(of(&rules, write, read), (2 * SECOND, ended(Side::Server)));
    assert_eq!(of(&rules, read, write), (5 * SECOND, ended(Side::Client)), "the server cannot speak");
    assert_eq!(of(&rules, write, write), (2 * SECOND, ended(Side::Server)));
    // Half closed: only the other direction counts.
    assert_eq!(of(&rules, Wait::Nothing, write), (5 * SECOND, ended(Side::Client)));
    // A pause is no end, and no side is to blame for it.
    let pause = Wait::Until(pair.moved.plus(4 * SECOND));
    assert_eq!(of(&rules, pause, write), (4 * SECOND, None));
    rules.idle = SECOND;
    assert_eq!(of(&rules, write, read), (SECOND, Some(Ended::Idle)));
}

/// Many relays are idle at a time.
#[test]
fn an_idle_pair_is_small_and_holds_nothing() {
    assert!(size_of::<Pair>() <= 128, "{}", size_of::<Pair>());
    let (mut bench, client, server) = Bench::tcp(Rules::default());
    for _ in 0..100 {
        bench.exchange((&client, &server), b"a request of some bytes");
        bench.exchange((&server, &client), b"and the answer, as long");
        bench.assert_empty();
    }
    assert_eq!(bench.passed(), (2300, 2300));
    assert_eq!(bench.pair.received_from(Side::Client), 2300);
    assert_eq!(bench.io.pipes.free(), 0, "no pipe was created");
    assert_eq!(bench.pair.up.mode(), Mode::Unknown);
}

/// Long streams pass unchanged both ways at once through slow receivers, by splicing.
#[test]
fn bulk_passes_both_ways() {
    const LEN: usize = 64 << 20;
    let (mut bench, client, server) = Bench::tcp(Rules { half_close: true, ..Rules::default() });
    let senders = [sender(client.try_clone().unwrap(), LEN), sender(server.try_clone().unwrap(), LEN)];
    let receivers = [receiver(server), receiver(client)];
    let ended = bench.run(|| false);
    assert!(matches!(ended, Some(Ended::Closed(_))), "{ended:?}");
    assert_eq!(bench.passed(), (LEN as u64, LEN as u64));
    bench.assert_empty();
    assert!(bench.io.pipes.free() > 0, "the bytes did not pass through a pipe");
    senders.into_iter().for_each(|t| t.join().unwrap());
    receivers.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), LEN));
}

/// Bytes of a connection that cannot be spliced are copied.
#[test]
fn bulk_between_unix_and_tcp_is_copied() {
    const LEN: usize = 1 << 20;
    let io = Io::new().unwrap();
    let ((client, mut a), (server, b)) = (pair(&io), tcp(&io));
    let mut bench = Bench::new(io, client, server, Rules::default());
    let got = receiver(b);
    let sender = std::thread::spawn(move || {
        for at in (0..LEN).step_by(PERIOD) {
            a.write_all(piece(at, PERIOD.min(LEN - at))).unwrap();
        }
    });
    assert_eq!(bench.run(|| false), Some(Ended::Closed(Side::Client)));
    assert_eq!((bench.pair.up.mode(), bench.io.pipes.free()), (Mode::Copied, 0));
    drop(bench);
    sender.join().unwrap();
    assert_eq!(got.join().unwrap(), LEN);
}

/// A read that fills the buffer turns splicing on, a short one off again.
#[test]
fn a_direction_is_spliced_while_much_comes() {
    let (mut bench, client, server) = Bench::tcp(Rules::default());
    for _ in 0..3 {
        bench.exchange((&client, &server), &[1; 4 * READ]);
        assert_eq!((bench.pair.up.mode(), bench.pair.down.mode()), (Mode::Bulk, Mode::Unknown));
        bench.exchange((&client, &server), b"x");
        assert_eq!(bench.pair.up.mode(), Mode::Small);
        bench.assert_empty();
        assert_eq!(bench.io.pipes.free(), 1);
    }
}

/// A direction gives others their turn, and does not keep them from the other direction's.
#[test]
fn a_step_moves_a_bounded_number_of_bytes() {
    let (mut bench, client, server) = Bench::tcp(Rules::default());
    let senders =
        [sender(client.try_clone().unwrap(), 8 << 20), sender(server.try_clone().unwrap(), 8 << 20)];
    let receivers = [receiver(server), receiver(client)];
    let (mut before, mut cut) = ((0, 0), 0);
    bench.until(|b, step| {
        let after = b.passed();
        // Two steps a round.
        assert!(after.0 - before.0 <= 2 * STEP as u64 && after.1 - before.1 <= 2 * STEP as u64);
        before = after;
        cut += u32::from(step == Step::Again);
        matches!(step, Step::Over(_))
    });
    assert!(cut > 0, "no step moved as much");
    // The relay has ended with its first sender: the other one is cut off, whose thread may fail.
    drop(bench);
    let _ = senders.map(JoinHandle::join);
    let _ = receivers.map(JoinHandle::join);
}

/// Neither side reads: nothing more is read than a pipe or a buffer holds, and all of it arrives later.
#[test]
fn no_room_on_both_sides_at_once() {
    let (mut bench, client, server) = Bench::tcp(Rules { half_close: true, ..Rules::default() });
    const LEN: usize = 32 << 20;
    let senders = [sender(client.try_clone().unwrap(), LEN), sender(server.try_clone().unwrap(), LEN)];
    let full = Step::Wait { up: Wait::Writable, down: Wait::Writable };
    bench.until(|_, step| step == full);
    assert!(bench.pair.up.is_holding() && bench.pair.down.is_holding());
    assert!(bench.io.pipes.lent() <= 2);
    for (from, passed) in [(Side::Client, bench.passed().0), (Side::Server, bench.passed().1)] {
        assert!(
            passed < bench.pair.received_from(from) && bench.pair.received_from(from) - passed <= STEP as u64
        );
    }
    let receivers = [receiver(server), receiver(client)];
    assert!(bench.run(|| false).is_some());
    receivers.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), LEN));
    senders.into_iter().for_each(|t| t.join().unwrap());
    bench.assert_empty();
}

/// A relay that ends with bytes in a pipe closes the pipe.
#[test]
fn a_pipe_with_bytes_is_not_used_again() {
    let (mut bench, client, _server) = Bench::tcp(Rules::default());
    let sender = sender(client.try_clone().unwrap(), 32 << 20);
    bench.until(|b, step| step == FULL && b.io.pipes.lent() > 0);
    assert_eq!((bench.io.pipes.lent(), bench.io.pipes.free()), (1, 0));
    bench.pair = Pair::new(&bench.io, Vec::new(), Vec::new());
    assert_eq!((bench.io.pipes.lent(), bench.io.pipes.free()), (0, 0));
    // Closing resets the connection, which ends the sender.
    drop((bench, client));
    let _ = sender.join();
}

/// Without free pipes a long stream is copied.
#[test]
fn bulk_is_copied_when_too_many_pipes_are_lent() {
    const LEN: usize = 4 << 20;
    let (mut bench, client, server) = Bench::tcp(Rules::default());
    let lent: Vec<_> = std::iter::from_fn(|| bench.io.pipes.lend()).collect();
    let all = lent.len();
    let sender = sender(client.try_clone().unwrap(), LEN);
    let receiver = receiver(server);
    assert_eq!(bench.run(|| false), Some(Ended::Closed(Side::Client)));
    assert_eq!((bench.passed().0, bench.io.pipes.lent()), (LEN as u64, all));
    drop(lent);
    assert!(bench.io.pipes.free() > 0 && bench.io.pipes.free() < all, "a few are kept");
    drop(bench);
    sender.join().unwrap();
    assert_eq!(receiver.join().unwrap(), LEN);
}

/// Without half close the first end ends both directions; what came before it has been passed on.
#[test]
fn the_first_end_is_the_last() {
    let (mut bench, mut client, mut server) = Bench::tcp(Rules::default());
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(bench.run(|| false), Some(Ended::Closed(Side::Client)));
    assert_eq!(bench.passed(), (7, 0));
    drop(bench);
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"request");
}

/// nginx: proxy_half_close
#[test]
fn with_half_close_each_direction_ends_by_itself() {
    let (mut bench, mut client, mut server) = Bench::tcp(Rules { half_close: true, ..Rules::default() });
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let half = Step::Wait { up: Wait::Nothing, down: Wait::Readable };
    bench.until(|_, step| step == half);
    let mut got = Vec::new();
    server.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"request");
    // The other direction goes on, with more than one message.
    for _ in 0..2 {
        bench.exchange((&server, &client), b"answer");
    }
    drop(server);
    assert_eq!(bench.run(|| false), Some(Ended::Closed(Side::Server)));
    assert_eq!(bench.passed(), (7, 12));
    got.clear();
    // The client knows the end before its connection is closed.
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"");
}

/// nginx: proxy_timeout
#[test]
fn a_relay_without_bytes_times_out() {
    let (mut bench, client, server) = Bench::tcp(Rules { idle: 10 * SECOND, ..Rules::default() });
    let idle = Step::Wait { up: Wait::Readable, down: Wait::Readable };
    assert_eq!(bench.next(), idle);
    // A byte in either direction renews it for both.
    for (seconds, ends) in [(9, (&client, &server)), (18, (&server, &client))] {
        bench.at(seconds * SECOND);
        bench.exchange(ends, b"x");
        assert_eq!(bench.run(|| true), None);
    }
    let (deadline, cause) = bench.pair.deadline(&bench.rules, Wait::Readable, Wait::Readable);
    assert_eq!(cause, Some(Ended::Idle));
    assert_eq!(bench.io.poller.instant(deadline), bench.began + 28 * SECOND);
    bench.at(28 * SECOND - Duration::from_millis(1));
    assert_eq!(bench.run(|| true), None);
    bench.at(28 * SECOND);
    assert_eq!(bench.run(|| false), Some(Ended::Idle));
}

/// The times of a side are those of before: they end the relay with the side's name.
#[test]
fn a_side_times_out() {
    let server = Timeouts { read: 5 * SECOND, send: SECOND };
    let (mut bench, _client, _server) = Bench::tcp(Rules { server, ..Rules::default() });
    assert_eq!(bench.run(|| true), None);
    bench.at(5 * SECOND);
    assert_eq!(bench.run(|| false), Some(Ended::TimedOut(Side::Server)));
}

/// nginx: proxy_upload_rate, proxy_download_rate
#[test]
fn a_rate_limits_one_direction() {
    let (mut bench, mut client, mut server) = Bench::tcp(Rules { upload_rate: 1000, ..Rules::default() });
    client.write_all(&[1; 10_000]).unwrap();
    server.write_all(&[2; 5000]).unwrap();
    // The bytes of a second pass at once, and the next when the rate has made up for them.
    let half = Duration::from_millis(500);
    let cases = [(0, 1000, 1000), (1, 1000, 500), (2, 2000, 1000), (3, 2000, 500), (10, 6000, 1000)];
    for (n, passed, wait) in cases {
        bench.at(half * n);
        let mut up = Wait::Nothing;
        bench.until(|_, step| {
            if let Step::Wait { up: wait, .. } = step {
                up = wait;
            }
            matches!(up, Wait::Until(_))
        });
        assert_eq!(bench.passed().0, passed, "after {n} half seconds");
        let (deadline, cause) = bench.pair.deadline(&bench.rules, up, Wait::Readable);
        let pause = bench.io.poller.instant(deadline).duration_since(bench.began + half * n);
        assert_eq!((pause, cause), (Duration::from_millis(wait), None), "after {n} half seconds");
    }
    // The other direction has no limit.
    client.read_exact(&mut [0; 5000]).unwrap();
    server.read_exact(&mut [0; 6000]).unwrap();
}

/// The wait for the rate limit ends by itself.
#[test]
fn a_limited_relay_goes_on_after_a_pause() {
    let (mut bench, mut client, mut server) =
        Bench::tcp(Rules { download_rate: 1 << 20, ..Rules::default() });
    let sender = std::thread::spawn(move || server.write_all(&[1; 3 << 20]).map(|()| server));
    let receiver = std::thread::spawn(move || client.read_exact(&mut vec![0; 3 << 20]).map(|()| client));
    let mut time = Duration::ZERO;
    while bench.passed().1 < 3 << 20 {
        bench.at(time);
        assert_eq!(bench.run(|| true), None);
        bench.io.poller.take_events(Duration::from_millis(1));
        let most = ((time + SECOND).as_secs_f64() * f64::from(1 << 20)) as u64;
        assert!(bench.passed().1 <= most, "{} after {time:?}", bench.passed().1);
        time += Duration::from_millis(50);
    }
    assert!(time >= 2 * SECOND, "{time:?}");
    assert!(sender.join().unwrap().is_ok() && receiver.join().unwrap().is_ok());
}

/// Pauses are computed without overflow.
#[test]
fn quotas() {
    let of = |rate, millis, received| Quota { rate, elapsed: Duration::from_millis(millis) }.allow(received);
    assert_eq!(of(0, 0, u64::MAX), Ok(usize::MAX));
    assert_eq!(of(1, 0, 0), Ok(1));
    assert_eq!(of(1, 0, 1), Err(SECOND));
    assert_eq!(of(1000, 1000, 500), Ok(1500));
    assert_eq!(of(1000, 0, 950), Err(Duration::from_millis(950)));
    // A read over TLS gives more than was asked for.
    assert_eq!(of(1000, 0, 3000), Err(3 * SECOND));
    assert!(of(u64::MAX, u64::MAX, 0).is_ok());
    assert!(of(1, 0, u64::MAX).is_err());
}

/// A reset ends the relay, also while bytes wait for the other side.
#[test]
fn a_reset_ends_the_relay() {
    let (mut bench, client, server) = Bench::tcp(Rules { half_close: true, ..Rules::default() });
    let sender = std::thread::spawn(move || {
        let mut client = client;
        while client.write_all(&[0; 100_000]).is_ok() {}
    });
    bench.until(|_, step| step == FULL);
    // Closed with bytes unread: the kernel sends a reset.
    drop(server);
    let ended = bench.run(|| false);
    assert!(matches!(ended, Some(Ended::Failed(Side::Server, Call::Send, _))), "{ended:?}");
    drop(bench);
    sender.join().unwrap();
}

/// Long streams pass both ways through two relays with TLS in between, each with its own end.
#[test]
fn bulk_passes_over_tls() {
    const LEN: usize = 4 << 20;
    let Some((accepted, opened)) = crate::tls::stream::tests::established() else { return };
    let io = Io::new().unwrap();
    let ((front, client), (back, server)) = (tcp(&io), tcp(&io));
    let (mut y, x) = tcp(&io);
    let mut x = plain(&io, x.into());
    x.encrypt(opened);
    y.encrypt(accepted);
    let rules = Rules { half_close: true, ..Rules::default() };
    let mut near = Bench::new(io, front, x, rules);
    let mut far = Pair::new(&near.io, Vec::new(), Vec::new());
    let (mut client_far, mut server_far) = (y, back);
    let senders = [sender(client.try_clone().unwrap(), LEN), sender(server.try_clone().unwrap(), LEN)];
    let receivers = [receiver(server), receiver(client)];
    let mut over = None;
    near.until(|b, step| {
        let ended = far.step(&b.io, &mut client_far, &mut server_far, &rules);
        b.watch();
        watch(&b.io, [&client_far, &server_far]);
        b.io.poller.take_events(Duration::ZERO);
        if let Step::Over(_) = ended {
            over = Some(ended);
        }
        // The relay whose last end comes from the other one is over after it.
        over.is_some() && matches!(step, Step::Over(_))
    });
    assert!(matches!(over, Some(Step::Over(Ended::Closed(_)))), "{over:?}");
    assert_eq!(near.passed(), (LEN as u64, LEN as u64));
    assert_eq!(near.pair.up.mode(), Mode::Copied);
    near.assert_empty();
    assert_eq!(near.io.pipes.free(), 0);
    senders.into_iter().for_each(|t| t.join().unwrap());
    receivers.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), LEN));
}

/// Stream with little room.
#[derive(Debug, Default)]
struct Narrow {
    room: Cell<usize>,
    taken: RefCell<Vec<u8>>,
    ended: Cell<bool>,
}

impl Mux for Narrow {
    fn read(&self, _: &mut Vec<u8>) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }

    fn send(&self, bytes: &[u8]) -> Result<Sent, Errno> {
        let n = bytes.len().min(self.room.get());
        self.taken.borrow_mut().extend_from_slice(&bytes[..n]);
        self.room.set(self.room.get() - n);
        Ok(Sent { bytes: n, full: self.room.get() == 0 })
    }

    fn room(&self) -> usize {
        self.room.get()
    }

    fn send_head(&self, _: &[u8], _: Then) {}

    fn send_interim(&self, _: &[u8]) {}

    fn end(&self) {
        self.ended.set(true);
    }

    fn whole(&self) -> Option<usize> {
        None
    }

    fn is_broken(&self) -> bool {
        false
    }

    fn poll_readable(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_writable(self: Rc<Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn poll_gone(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn wait_for_client(&self, _: bool, _: Instant) {}

    fn is_given_up(&self) -> bool {
        false
    }
}

/// The room of a multiplexed stream is known only to itself.
#[test]
fn a_stream_without_room_is_waited_for() {
    let io = Io::new().unwrap();
    let (wire, mut server) = tcp(&io);
    let stream = Rc::new(Narrow::default());
    let mut bench =
        Bench::new(io, Wire::Mux(stream.clone()), wire, Rules { half_close: true, ..Rules::default() });
    server.write_all(&[1; 100]).unwrap();
    for (room, taken) in [(0, 0), (40, 40), (60, 100)] {
        stream.room.set(room);
        let wait = if taken < 100 { Wait::Writable } else { Wait::Readable };
        let full = Step::Wait { up: Wait::Readable, down: wait };
        bench.until(|b, step| step == full && b.pair.received_from(Side::Server) == 100);
        assert_eq!(stream.taken.borrow().len(), taken);
    }
    bench.assert_empty();
    server.shutdown(Shutdown::Write).unwrap();
    bench.until(|_, step| step == Step::Wait { up: Wait::Readable, down: Wait::Nothing });
    assert!(stream.ended.get(), "the end has not been passed on");
}

/// Owner of a relay that notes its end.
struct Ends(Wire, Wire, Rc<Cell<Option<(Ended, u64, u64)>>>);

impl Owner for Ends {
    fn wires(&mut self) -> (&mut Wire, &mut Wire) {
        (&mut self.0, &mut self.1)
    }
    fn over(self, pair: Pair, ended: Ended) {
        self.2.set(Some((ended, pair.passed_from(Side::Client), pair.passed_from(Side::Server))));
    }
}

/// Thread whose only work are relays. It ends when all of them are over.
struct OnlyPairs(Pairs<Ends>);

impl crate::reactor::Handler for OnlyPairs {
    fn accept(&self, _: u32) {}
    fn resume(&self, _: u8, _: crate::reactor::Token) {}
    fn expired(&self, _: u8, _: crate::reactor::Token) {}
    fn start_queued(&self, _: u8) {}
    fn set_aside_ended(&self, _: crate::reactor::Token, _: u32) {}
    fn tick(&self, _: Instant) {}
    fn step(&self, direct: crate::reactor::Direct) {
        self.0.step(direct);
    }
    fn turn(&self) {}
    fn due(&self) -> Option<Instant> {
        None
    }
    fn finished(&self) -> bool {
        self.0.is_empty()
    }
}

/// Relays without tasks pass small messages, much more than a step moves, and the bytes from before; they end when a side does
/// and when nothing passes, and free their numbers.
#[test]
fn pairs_are_stepped_by_events() {
    let io = Rc::new(Io::new().unwrap());
    let reactor = crate::reactor::Reactor::new(io.clone());
    let pairs = OnlyPairs(Pairs::new(io.clone(), 0, 0));
    let rules = Rules { half_close: true, ..Rules::default() };
    let many = 3 * STEP;
    let begin = |rules, early: &[u8]| {
        let ((client, a), (server, b)) = (tcp(&io), tcp(&io));
        let end = Rc::new(Cell::new(None));
        let pair = Pair::new(&io, early.to_vec(), Vec::new());
        pairs.0.add(pair, rules, Ends(client, server, end.clone()));
        (a, b, end)
    };
    let (mut client, mut server, end) = begin(rules, b"early ");
    let (_quiet_client, _quiet_server, idle) = begin(Rules { idle: Duration::from_millis(50), ..rules }, b"");
    let client = std::thread::spawn(move || {
        client.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).unwrap();
        client.write_all(&vec![b'x'; many]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((answer, client.read_to_end(&mut Vec::new()).unwrap()), (*b"pong", many));
    });
    let server = std::thread::spawn(move || {
        let mut first = [0; 10];
        server.read_exact(&mut first).unwrap();
        server.write_all(b"pong").unwrap();
        assert_eq!((first, server.read_to_end(&mut Vec::new()).unwrap()), (*b"early ping", many));
        server.write_all(&vec![b'y'; many]).unwrap();
    });
    reactor.run(&pairs).unwrap();
    client.join().unwrap();
    server.join().unwrap();
    assert_eq!(idle.take(), Some((Ended::Idle, 0, 0)));
    let (ended, up, down) = end.take().unwrap();
    assert_eq!((ended, up, down), (Ended::Closed(Side::Server), 10 + many as u64, 4 + many as u64));
    assert_eq!((pairs.0.len(), io.poller.in_use()), (0, 4), "the wires are not closed by this owner");
}
