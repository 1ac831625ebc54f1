use super::batch::PIECES;
use super::runners::IDLE_RUNNERS;
use super::*;
use rustix::io::IoSlice;
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::task::{Context, Waker};

impl Poller {
    /// Waits for events and notes them, for tests without a reactor.
    pub(crate) fn take_events(&self, timeout: Duration) {
        let mut events = Vec::with_capacity(16);
        self.wait(&mut events, Some(timeout)).expect("events");
        for e in events {
            self.on_event(Token::unpack(e.data.u64()), e.flags);
        }
    }
}

/// Work of a test's runner on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Waits for a byte, ten seconds at most.
    Wait,
    /// Ends at once.
    Nothing,
    /// Panics.
    Panic,
}

struct Test {
    io: Rc<Io>,
    reactor: Rc<Reactor>,
    runners: Runners<Work, Work>,
    panics: Rc<Cell<u32>>,
    expired: Cell<u32>,
    served: Cell<u32>,
    ended: RefCell<Vec<(Token, u32)>>,
    /// Steps of work without a task.
    steps: RefCell<Vec<Direct>>,
    /// Number of connections served before the last step.
    before_step: Cell<u32>,
}

impl Test {
    fn new() -> Rc<Test> {
        let io = Rc::new(Io::new().expect("epoll"));
        let reactor = Reactor::new(io.clone());
        let panics = Rc::new(Cell::new(0));
        reactor.on_panic({
            let panics = panics.clone();
            move || panics.set(panics.get() + 1)
        });
        Rc::new(Test {
            runners: Runners::new(reactor.clone(), 0),
            reactor,
            io,
            panics,
            expired: Cell::new(0),
            served: Cell::new(0),
            ended: RefCell::default(),
            steps: RefCell::default(),
            before_step: Cell::new(0),
        })
    }

    /// A connection, and its other end.
    fn connect(&self) -> (Token, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("nonblocking");
        theirs.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout");
        (self.io.poller.insert(ours.into()), theirs)
    }

    /// Lets time pass and fires what is due.
    fn pass(self: &Rc<Self>, d: Duration) {
        self.io.poller.begin_turn(self.io.poller.now() + d);
        self.reactor.fire_timers(&Calls(self));
    }

    /// The descriptor became readable.
    fn readable(self: &Rc<Self>, token: Token) {
        self.reactor.on_event(&Calls(self), token, epoll::EventFlags::IN);
        self.reactor.poll_woken(&Calls(self), &mut Vec::new());
    }
}

struct Closes<'t>(&'t Test, Token);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.io.poller.remove(self.1);
    }
}

/// Handler of the reactor of a test.
struct Calls<'t>(&'t Rc<Test>);

impl Test {
    fn runner(self: &Rc<Self>) -> Body {
        let test = self.clone();
        Box::pin(async move {
            loop {
                let job = test.runners.next_job().await;
                let _close = Closes(&test, job.token);
                assert!(job.work != Work::Panic, "asked for");
                if job.work == Work::Wait {
                    let end = test.io.poller.now() + Duration::from_secs(10);
                    test.io.poller.drained(job.token);
                    let readable = std::future::poll_fn(|cx| test.io.poller.poll_readable(job.token, cx));
                    test.io.poller.deadline(end, readable).await;
                }
                test.served.set(test.served.get() + 1);
            }
        })
    }

    fn start(self: &Rc<Self>, token: Token, work: Work) {
        self.runners.start(Job { token, work }, || self.runner());
    }
}

impl Handler for Calls<'_> {
    fn accept(&self, _listener: u32) {}
    fn resume(&self, _front: u8, token: Token) {
        if let Some(work) = self.0.runners.take_parked(token) {
            self.0.start(token, work);
        }
    }
    fn expired(&self, _front: u8, token: Token) {
        self.0.expired.set(self.0.expired.get() + 1);
        assert!(self.0.runners.take_parked(token).is_some(), "it was idle");
        self.0.io.poller.remove(token);
    }
    fn start_queued(&self, _front: u8) {
        self.0.runners.start_queued(|| self.0.runner());
    }
    fn set_aside_ended(&self, token: Token, holder: u32) {
        self.0.ended.borrow_mut().push((token, holder));
    }
    fn step(&self, direct: Direct) {
        self.0.steps.borrow_mut().push(direct);
        self.0.before_step.set(self.0.served.get());
        assert!(direct.kind != 1, "asked for");
    }
    fn tick(&self, _now: Instant) {}
    fn turn(&self) {}
    fn due(&self) -> Option<Instant> {
        None
    }
    fn finished(&self) -> bool {
        true
    }
}

#[test]
fn a_runner_goes_on_with_queued_work() {
    let t = Test::new();
    for work in [Work::Nothing, Work::Nothing, Work::Panic, Work::Nothing, Work::Nothing] {
        t.runners.queue(Job { token: Token::NONE, work });
    }
    assert_eq!(t.served.get(), 0, "nothing runs before its turn");
    t.reactor.start_queued(&Calls(&t));
    assert_eq!((t.served.get(), t.panics.get()), (4, 1), "a panic ends its own work only");
    // The runner after the panic has the place of the one before.
    assert_eq!((t.reactor.tasks.places(), t.runners.idle().as_slice()), (1, &[0][..]));
    // The reactor is told again after the queue was empty.
    t.runners.queue(Job { token: Token::NONE, work: Work::Nothing });
    t.reactor.start_queued(&Calls(&t));
    assert_eq!(t.served.get(), 5);
}

#[test]
fn a_runner_that_has_finished_is_not_polled_behind_the_queue() {
    let t = Test::new();
    let (token, mut peer) = t.connect();
    t.start(token, Work::Wait);
    peer.write_all(b"x").expect("a byte");
    t.readable(token);
    assert_eq!((t.served.get(), t.runners.idle().as_slice()), (1, &[0][..]));
    // It had asked for its turn, but something else has woken it before.
    t.reactor.tasks.resume_after_queue(0);
    t.reactor.start_queued(&Calls(&t));
    assert_eq!(t.runners.idle().as_slice(), [0], "listed once: one connection at a time");
}

#[test]
fn ended_runners_leave_their_places_to_others() {
    let test = Test::new();
    let (busy, mut peer) = test.connect();
    test.start(busy, Work::Wait);
    test.start(Token::NONE, Work::Nothing);
    assert_eq!((test.reactor.tasks.places(), test.runners.idle().as_slice()), (2, &[1][..]));
    test.runners.end_idle();
    assert_eq!(test.runners.idle(), [0u32; 0]);
    test.start(Token::NONE, Work::Nothing);
    assert_eq!((test.reactor.tasks.places(), test.served.get()), (2, 2), "the place was free");
    // The one that was busy goes on.
    peer.write_all(b"x").expect("a byte");
    test.readable(busy);
    assert_eq!(test.served.get(), 3);
    // A late wake-up finds nothing.
    test.runners.end_idle();
    assert!(!test.reactor.tasks.poll_busy(&test.reactor.io.poller, 0));
}

#[test]
fn runners_of_a_burst_end_when_they_are_not_needed() {
    let test = Test::new();
    let mut connections: Vec<_> = (0..4).map(|_| test.connect()).collect();
    connections.iter().for_each(|(token, _)| test.start(*token, Work::Wait));
    for (token, peer) in &mut connections {
        peer.write_all(b"x").expect("a byte");
        test.readable(*token);
    }
    assert_eq!((test.runners.idle().len(), test.runners.end_unneeded()), (4, 0), "all have worked");
    // One has work at a time.
    for _ in 0..3 {
        test.start(Token::NONE, Work::Nothing);
    }
    assert_eq!((test.runners.end_unneeded(), test.runners.idle().len()), (3, 1));
    assert_eq!((test.runners.end_unneeded(), test.runners.has_idle()), (1, false), "none was needed");
}

#[test]
fn a_timer_left_behind_does_not_list_an_idle_runner_twice() {
    let test = Test::new();
    let (first, _peer) = test.connect();
    test.start(first, Work::Wait);
    test.readable(first);
    assert_eq!(test.served.get(), 1);
    // The wait is over, its timer is not.
    test.pass(Duration::from_secs(11));
    assert_eq!(test.runners.idle(), [0]);
    // Two connections at a time have a runner each.
    let (a, _a) = test.connect();
    let (b, _b) = test.connect();
    test.start(a, Work::Wait);
    test.start(b, Work::Wait);
    test.readable(b);
    assert_eq!(test.served.get(), 2);
    test.readable(a);
    assert_eq!(test.served.get(), 3);
    assert_eq!(test.io.poller.in_use(), 0);
}

#[test]
fn a_panic_costs_one_connection() {
    let test = Test::new();
    let (good, mut good_peer) = test.connect();
    let (bad, mut bad_peer) = test.connect();
    test.start(good, Work::Wait);
    test.start(bad, Work::Panic);
    assert_eq!(test.panics.get(), 1);
    assert_eq!(bad_peer.read(&mut [0]).expect("closed"), 0);
    assert_eq!(test.io.poller.in_use(), 1);
    good_peer.write_all(b"x").expect("open");
    test.readable(good);
    assert_eq!(test.served.get(), 1);
    // The place of the runner that is gone is taken by the next.
    let (a, _a) = test.connect();
    let (b, _b) = test.connect();
    test.start(a, Work::Wait);
    test.start(b, Work::Wait);
    assert_eq!(test.reactor.tasks.places(), 2);
    test.readable(a);
    test.readable(b);
    assert_eq!(test.served.get(), 3);
}

#[test]
fn surplus_runners_are_let_go_and_made_again() {
    let test = Test::new();
    for _ in 0..2 {
        let burst: Vec<_> = (0..IDLE_RUNNERS + 10).map(|_| test.connect()).collect();
        for (token, _) in &burst {
            test.start(*token, Work::Wait);
        }
        for (token, _) in &burst {
            test.readable(*token);
        }
        assert_eq!(test.io.poller.in_use(), 0);
        assert_eq!(test.runners.idle().len(), IDLE_RUNNERS);
        assert_eq!(test.reactor.tasks.places(), IDLE_RUNNERS + 10);
    }
    assert_eq!(test.served.get(), 2 * (IDLE_RUNNERS as u32 + 10));
}

#[test]
fn idle_connections_expire() {
    let test = Test::new();
    let (token, mut peer) = test.connect();
    test.io.poller.drained(token);
    let end = test.io.poller.after(Duration::from_secs(5));
    assert!(test.runners.park(token, Work::Wait, end).is_ok());
    test.pass(Duration::from_secs(4));
    assert_eq!(test.expired.get(), 0);
    test.pass(Duration::from_secs(1));
    assert_eq!(test.expired.get(), 1);
    assert_eq!(peer.read(&mut [0]).expect("closed"), 0);
}

#[test]
fn timers_of_closed_connections_do_not_pile_up() {
    let test = Test::new();
    for _ in 0..20_000 {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let token = test.io.poller.insert(ours.into());
        test.io.poller.drained(token);
        let end = test.io.poller.after(Duration::from_secs(60));
        assert!(test.runners.park(token, Work::Wait, end).is_ok());
        drop(test.io.poller.remove(token));
    }
    let timers = test.io.poller.timers.borrow().len();
    assert!(timers < 5000, "{timers} timers for no connection");
}

#[test]
fn connections_set_aside_come_back_or_end() {
    let test = Test::new();
    let minute = test.io.poller.after(Duration::from_secs(60));
    let set_aside = |token| {
        test.io.poller.drained(token);
        test.io.poller.set_aside(token, minute, 7).expect("silent")
    };
    let (token, mut peer) = test.connect();
    // Something may have come.
    assert!(test.io.poller.set_aside(token, minute, 7).is_none());
    let fd = set_aside(token);
    assert!(test.io.poller.with_fd(token, |_| ()).is_none());
    assert!(test.io.poller.reuse(token, fd));
    assert!(test.io.poller.with_fd(token, |_| ()).is_some());
    // Its holder hears of an event and closes it, whether it still has it or not.
    let fd = set_aside(token);
    test.reactor.on_event(&Calls(&test), token, epoll::EventFlags::OUT);
    assert!(test.ended.borrow().is_empty());
    peer.write_all(b"x").expect("open");
    test.readable(token);
    test.readable(token);
    assert_eq!(test.ended.take(), [(token, 7)]);
    assert!(!test.io.poller.reuse(token, fd));
    assert!(!peer.read(&mut [0]).is_ok_and(|n| n > 0));
    // So it does of the deadline.
    let (token, _peer) = test.connect();
    let _fd = set_aside(token);
    test.pass(Duration::from_secs(59));
    assert_eq!(test.io.poller.in_use(), 1);
    test.pass(Duration::from_secs(1));
    assert_eq!(test.ended.take(), [(token, 7)]);
    assert_eq!(test.io.poller.in_use(), 0);
    // A slot whose connection went elsewhere is free for the next.
    let (token, _peer) = test.connect();
    let _elsewhere = set_aside(token);
    test.io.poller.remove(token);
    assert_eq!(test.io.poller.in_use(), 0);
    test.pass(Duration::from_secs(100));
    assert!(test.ended.borrow().is_empty());
}

#[test]
fn room_to_write_is_watched_for_once_somebody_waits() {
    let test = Test::new();
    let (token, mut peer) = test.connect();
    let mut cx = Context::from_waker(Waker::noop());
    let events = |test: &Test| {
        let mut events = Vec::with_capacity(8);
        test.io.poller.wait(&mut events, Some(Duration::ZERO)).expect("waited");
        events.iter().map(|e| e.flags).collect::<Vec<_>>()
    };
    test.io.poller.drained(token);
    assert!(test.io.poller.poll_readable(token, &mut cx).is_pending());
    assert!(events(&test).is_empty(), "room to write is no event for a reader");
    let block = vec![b'x'; 1 << 20];
    let sent = test.io.poller.with_fd(token, |fd| {
        let mut sent = 0;
        while let Ok(n) = rustix::io::write(fd, &block) {
            sent += n;
        }
        sent
    });
    test.io.poller.filled(token);
    assert!(test.io.poller.poll_writable(token, &mut cx).is_pending());
    assert!(events(&test).is_empty());
    let mut all = vec![0; sent.expect("a slot")];
    peer.read_exact(&mut all).expect("bytes");
    let got = events(&test);
    assert!(matches!(got.as_slice(), [f] if f.contains(epoll::EventFlags::OUT)), "{got:?}");
}

impl Test {
    /// A turn in which much is to be done.
    fn busy(&self) {
        self.io.poller.busy.set(true);
    }

    fn everything(&self, theirs: &UnixStream) -> Vec<u8> {
        let mut got = Vec::new();
        let mut theirs = theirs;
        theirs.set_nonblocking(true).expect("nonblocking");
        let _ = theirs.read_to_end(&mut got);
        got
    }
}

#[test]
fn answers_leave_together_and_in_order() {
    let test = Test::new();
    let (token, theirs) = test.connect();
    assert!(!test.io.poller.queue_answer(token, b"quiet"), "there is time to send it at once");
    test.busy();
    assert!(!test.io.poller.queue_answer(token, &[0; ANSWER + 1]));
    assert!(!test.io.poller.queue_answer(Token::NONE, b"nobody"));
    assert!(test.io.poller.queue_answer(token, b"one ") && test.io.poller.queue_answer(token, b"two "));
    assert_eq!(test.everything(&theirs), b"");
    // Whoever writes more writes behind them.
    assert!(test.io.poller.clear_to_send(token));
    assert_eq!(test.everything(&theirs), b"one two ");
    assert!(test.io.poller.queue_answer(token, b"three"));
    test.io.poller.flush_answers();
    assert_eq!(test.everything(&theirs), b"three");
    // Many do not wait for the end of the turn.
    for n in 0..40 {
        assert!(test.io.poller.queue_answer(token, &[n; 1000]));
    }
    assert_eq!(test.everything(&theirs).len(), 32_000);
    test.io.poller.flush_answers();
    assert_eq!(test.everything(&theirs).len(), 8000);
}

#[test]
fn an_answer_in_pieces_waits_as_a_whole() {
    let test = Test::new();
    let (token, theirs) = test.connect();
    let pieces = |len: usize| [b"head ".repeat(2), vec![b'x'; len - 10]];
    let queue = |len: usize| {
        let pieces = pieces(len);
        let slices = [IoSlice::new(&pieces[0]), IoSlice::new(&pieces[1])];
        test.io.poller.queue_slices(token, &slices, len)
    };
    assert!(!queue(100), "there is time to send it at once");
    test.busy();
    assert!(!queue(PIECES + 1) && !test.io.poller.queue_slices(token, &[], 0));
    assert!(queue(100) && test.io.poller.queue_answer(token, b"small") && queue(PIECES));
    assert_eq!(test.everything(&theirs), b"");
    test.io.poller.flush_answers();
    let [small, whole] = [100, PIECES].map(|len| pieces(len).concat());
    assert!(test.everything(&theirs) == [&small[..], b"small", &whole].concat());
    // A long queue leaves before the end of the turn.
    let mut got = 0;
    for n in 1..=20 {
        assert!(queue(PIECES), "{n}");
        got += test.everything(&theirs).len();
    }
    assert!(got > 10 * PIECES);
    test.io.poller.flush_answers();
    assert_eq!(got + test.everything(&theirs).len(), 20 * PIECES);
}

#[test]
fn events_without_room_are_owed() {
    let test = Test::new();
    let (token, theirs) = test.connect();
    let mut sent = 0usize;
    test.busy();
    let answer = |n: usize| [n as u8; 4000];
    while test.io.poller.queue_answer(token, &answer(sent)) {
        sent += 1;
        test.io.poller.flush_answers();
        assert!(sent < 10_000);
    }
    assert!(!test.io.poller.clear_to_send(token) && !test.io.poller.queue_answer(token, b"more"));
    let mut got = test.everything(&theirs);
    assert!(got.len() < sent * 4000);
    // There is room again: the slot pays by itself, whatever it is used for.
    test.reactor.on_event(&Calls(&test), token, epoll::EventFlags::OUT);
    got.extend(test.everything(&theirs));
    assert!(test.io.poller.clear_to_send(token));
    assert!(got == (0..sent).flat_map(answer).collect::<Vec<u8>>(), "{} of {}", got.len(), sent * 4000);
}

#[test]
fn idle_connections_know_of_answers_that_have_not_left() {
    let test = Test::new();
    let (token, _theirs) = test.connect();
    let sending = || {
        let mut all = Vec::new();
        test.runners.each_idle(|_, _, _, sending| all.push(sending));
        all
    };
    test.busy();
    assert!(test.io.poller.queue_answer(token, b"answer"));
    test.io.poller.drained(token);
    let later = test.io.poller.after(Duration::from_secs(60));
    assert!(test.runners.park(token, Work::Wait, later).is_ok());
    assert_eq!(sending(), [true], "it may find no room");
    test.io.poller.flush_answers();
    assert_eq!(sending(), [false]);
}

#[test]
fn a_slot_that_is_taken_away_sends_first() {
    let test = Test::new();
    let (token, theirs) = test.connect();
    let (other, others) = test.connect();
    test.busy();
    assert!(test.io.poller.queue_answer(token, b"last") && test.io.poller.queue_answer(other, b"words"));
    drop(test.io.poller.remove(token));
    assert_eq!(test.everything(&theirs), b"last");
    // A token of the past is nobody's.
    assert!(test.io.poller.clear_to_send(token) && !test.io.poller.queue_answer(token, b"x"));
    drop(others);
    test.io.poller.flush_answers();
    assert!(test.io.poller.queue_answer(other, b"to nobody"));
    test.io.poller.flush_answers();
    assert!(test.io.poller.clear_to_send(other), "a broken connection owes nothing");
}

#[test]
fn arrived_bytes_are_read_before_a_task_asks() {
    let test = Test::new();
    let later = test.io.poller.after(Duration::from_secs(60));
    let mut ends = Vec::new();
    let mut events = Vec::new();
    for n in 0..30 {
        let (token, mut theirs) = test.connect();
        test.io.poller.drained(token);
        assert!(test.runners.park(token, Work::Wait, later).is_ok());
        theirs.write_all(&vec![n; if n == 3 { 5000 } else { 3000 }]).expect("write");
        let flags =
            if n == 5 { epoll::EventFlags::IN | epoll::EventFlags::RDHUP } else { epoll::EventFlags::IN };
        events.push(epoll::Event { flags, data: epoll::EventData::new_u64(token.pack()) });
        ends.push((token, theirs));
    }
    test.io.poller.read_early(&events);
    let mut room = 64 * 1024;
    for (n, (token, _)) in ends.iter().enumerate() {
        let mut buf = Vec::with_capacity(4096);
        let got = test.io.poller.take_early(*token, &mut buf);
        let wanted = match n {
            5 => None,
            // As much as there is memory for.
            _ if room < 4096 => None,
            3 => Some(4096),
            _ => Some(3000),
        };
        room -= wanted.unwrap_or(0);
        assert_eq!(got, wanted, "{n}");
        assert!(buf.len() == wanted.unwrap_or(0) && buf.iter().all(|b| usize::from(*b) == n));
        assert_eq!(test.io.poller.take_early(*token, &mut buf), None, "once");
    }
    // What nobody has taken stays, and goes with its slot.
    let (token, theirs) = &mut ends[7];
    theirs.write_all(b"rest").expect("write");
    test.io.poller.read_early(&events[7..8]);
    test.io.poller.read_early(&events[8..9]);
    test.io.poller.remove(*token);
    let (token, theirs) = &mut ends[8];
    theirs.write_all(b"next").expect("write");
    test.io.poller.read_early(&events[8..9]);
    let mut buf = Vec::new();
    assert_eq!((test.io.poller.take_early(*token, &mut buf), buf.as_slice()), (Some(4), &b"next"[..]));
}

#[test]
fn sockets_without_an_event_are_not_read_early() {
    let test = Test::new();
    let (token, mut theirs) = test.connect();
    test.io.poller.drained(token);
    assert!(test.runners.park(token, Work::Wait, test.io.poller.after(Duration::from_secs(60))).is_ok());
    // It arrives behind the event: if it were taken now, no other event would come for it.
    theirs.write_all(b"request").expect("write");
    let flags = epoll::EventFlags::OUT;
    let event = epoll::Event { flags, data: epoll::EventData::new_u64(token.pack()) };
    test.io.poller.read_early(&[event]);
    test.reactor.on_event(&Calls(&test), token, flags);
    let mut events = Vec::with_capacity(1);
    test.io.poller.wait(&mut events, Some(Duration::ZERO)).expect("epoll");
    assert!(events.len() == 1 && { events[0].flags }.contains(epoll::EventFlags::IN), "it still comes");
}

#[test]
fn elapsed_time_is_constant_within_a_turn() {
    let t = Test::new();
    let begun = t.io.poller.now();
    assert_eq!(t.io.poller.since(begun), Duration::ZERO);
    t.pass(Duration::from_millis(5));
    assert_eq!(t.io.poller.since(begun), Duration::from_millis(5));
    assert_eq!(t.io.poller.since(begun), Duration::from_millis(5));
    assert_eq!(t.io.poller.since(t.io.poller.now() + Duration::from_secs(1)), Duration::ZERO);
    t.pass(Duration::from_millis(5));
    assert_eq!(t.io.poller.since(begun), Duration::from_millis(10));
}

#[test]
fn only_far_timers_are_not_looked_at_while_something_happens() {
    let t = Test::new();
    assert_eq!(t.io.poller.patience(None, false), None);
    let (near, far) = (Duration::from_millis(1500), Duration::from_secs(60));
    let at = |d: Duration| Some(t.io.poller.now() + d);
    assert!(t.io.poller.patience(at(near), false).is_some_and(|d| d <= near));
    // Well before the timer, so that it is looked at in time.
    assert_eq!(t.io.poller.patience(at(far), false), Some(Duration::from_secs(1)));
    let exact = t.io.poller.patience(at(far), true).expect("a timer");
    assert!(exact <= far && exact > far - Duration::from_secs(30), "{exact:?}");
}

/// Another descriptor of its socket stays open, as that of the master does.
#[test]
fn a_listener_that_was_removed_wakes_nothing() {
    let test = Test::new();
    let poller = &test.io.poller;
    let is_woken = || {
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
        !epoll::wait(&**poller.epoll(), &mut events, Some(&at_once)).expect("waited").0.is_empty()
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = listener.local_addr().expect("an address");
    let copy = || listener.try_clone().expect("a copy").into();
    let token = poller.listen(copy(), 0, false).expect("listens");
    let _waiting = std::net::TcpStream::connect(addr).expect("queued");
    assert!(is_woken());
    drop(poller.remove(token));
    assert!(!is_woken());
    // One that was paused before.
    let token = poller.listen(copy(), 0, false).expect("listens");
    assert!(is_woken());
    poller.pause_listener(token);
    drop(poller.remove(token));
    assert!(!is_woken());
}

#[test]
fn work_without_a_task_takes_its_steps() {
    let test = Test::new();
    let (token, mut peer) = test.connect();
    let direct = Direct { front: 3, kind: 0, number: 7 };
    test.io.poller.serve_directly(token, direct);
    test.readable(token);
    assert_eq!(test.steps.take(), [direct], "an event");
    // A deadline that moves away costs no timer of its own, and counts.
    test.io.poller.step_at(token, test.io.poller.after(Duration::from_secs(5)));
    test.io.poller.step_at(token, test.io.poller.after(Duration::from_secs(9)));
    test.pass(Duration::from_secs(8));
    assert_eq!((test.steps.take().len(), test.io.poller.timers.borrow().len()), (0, 1));
    test.pass(Duration::from_secs(1));
    assert_eq!(test.steps.take(), [direct], "the deadline");
    // The rest of a step comes in the next turn.
    let mut work = Vec::new();
    test.io.poller.step_again(direct);
    test.reactor.step_unfinished(&Calls(&test), &mut work);
    assert_eq!(test.steps.take(), [direct]);
    test.reactor.step_unfinished(&Calls(&test), &mut work);
    assert!(test.steps.take().is_empty());
    // A panic is reported and ends nothing else.
    test.io.poller.serve_directly(token, Direct { kind: 1, ..direct });
    test.readable(token);
    assert_eq!((test.panics.get(), test.steps.take().len()), (1, 1));
    // A task can have the connection back.
    test.io.poller.serve_by_task(token);
    test.start(token, Work::Wait);
    peer.write_all(b"x").expect("a byte");
    test.readable(token);
    assert_eq!((test.served.get(), test.steps.take().len()), (1, 0));
}

impl Test {
    /// Has as many connections be busy in turns of the loop until it is clear whether they are few.
    fn keep_busy(self: &Rc<Self>, connections: usize) {
        let mut peers = Vec::new();
        let events: Vec<epoll::Event> = std::iter::repeat_with(|| self.connect())
            .take(connections)
            .map(|(token, peer)| {
                peers.push(peer);
                event(token)
            })
            .collect();
        for _ in 0..100 {
            self.reactor.begin_turn(&Calls(self), &events);
        }
    }
}

fn event(token: Token) -> epoll::Event {
    epoll::Event { flags: epoll::EventFlags::IN, data: epoll::EventData::new_u64(token.pack()) }
}

#[test]
fn few_clients_do_not_wait_for_each_other() {
    for (connections, served) in [(2, 1), (8, 1), (9, 0), (50, 0)] {
        let test = Test::new();
        test.keep_busy(connections);
        let ((first, mut peer), (second, _peer)) = (test.connect(), test.connect());
        test.start(first, Work::Wait);
        test.io.poller.drained(first);
        test.io.poller.serve_directly(second, Direct { front: 0, kind: 0, number: 0 });
        peer.write_all(b"x").expect("a byte");
        let mut events = vec![event(first), event(second)];
        test.reactor.on_events(&Calls(&test), &mut events, &mut Vec::new());
        assert_eq!(
            (test.steps.take().len(), test.before_step.get()),
            (1, served),
            "{connections} connections"
        );
    }
}

#[test]
fn answers_to_few_clients_are_not_queued() {
    for (connections, queued) in [(8, false), (9, true)] {
        let test = Test::new();
        test.keep_busy(connections);
        let (token, _peer) = test.connect();
        assert!(test.io.poller.is_busy());
        assert_eq!(test.io.poller.queue_answer(token, b"answer"), queued, "{connections} connections");
    }
}

/// A task whose waits are all ready although nothing happens takes turns with the others.
#[test]
fn a_loop_without_progress_does_not_starve_others() {
    type Wait = fn(&Io, Token, &mut Context<'_>) -> Poll<()>;
    let waits: [(&str, Wait); 5] = [
        ("a slot that is gone", |io, _, cx| io.poller.poll_readable(Token::NONE, cx)),
        ("room to write", |io, token, cx| io.poller.poll_writable(token, cx)),
        ("a deadline that has passed", |io, _, _| io.poller.poll_deadline(io.poller.now())),
        ("a closed wire", |io, _, cx| crate::wire::Wire::Closed.poll_readable(io, cx)),
        ("a closed wire to write to", |io, _, cx| crate::wire::Wire::Closed.poll_writable(io, cx)),
    ];
    const ROUNDS: u32 = 100_000;
    for (what, wait) in waits {
        let t = Test::new();
        let (token, _peer) = t.connect();
        let rounds = Rc::new(Cell::new(0));
        let body: Body = Box::pin({
            let (io, rounds) = (t.io.clone(), rounds.clone());
            async move {
                while rounds.get() < ROUNDS {
                    std::future::poll_fn(|cx| wait(&io, token, cx)).await;
                    rounds.set(rounds.get() + 1);
                }
                std::future::pending().await
            }
        });
        let id = t.reactor.tasks.add(&t.io.poller, body);
        t.reactor.tasks.begin(&t.io.poller, id);
        assert_eq!(rounds.get(), budget::WAITS, "{what}: it has to yield");
        // Another connection is served in between, and the loop goes on afterwards.
        t.start(t.connect().0, Work::Nothing);
        assert_eq!(t.served.get(), 1, "{what}");
        while t.reactor.poll_woken(&Calls(&t), &mut Vec::new()) {}
        assert_eq!(rounds.get(), ROUNDS, "{what}");
    }
}

/// Outside of a task nobody would be polled again, so nothing is counted.
#[test]
fn waits_outside_of_a_task_are_not_limited() {
    let t = Test::new();
    let (token, _peer) = t.connect();
    let cx = &mut Context::from_waker(Waker::noop());
    assert!((0..10_000).all(|_| t.io.poller.poll_writable(token, cx).is_ready()));
}

#[test]
fn other_threads_see_what_a_thread_works_on() {
    let t = Test::new();
    let poller = &t.io.poller;
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noting = |number: u64, inner: Option<u32>| -> Body {
        let (t, seen) = (t.clone(), seen.clone());
        Box::pin(async move {
            t.io.poller.note_place(number);
            loop {
                if let Some(inner) = inner {
                    t.reactor.tasks.begin(&t.io.poller, inner);
                }
                seen.borrow_mut().push(t.io.poller.progress().place());
                t.io.poller.yield_now().await;
            }
        })
    };
    let inner = t.reactor.tasks.add(poller, noting(7, None));
    let outer = t.reactor.tasks.add(poller, noting(8, Some(inner)));
    t.reactor.tasks.begin(poller, outer);
    t.reactor.tasks.begin(poller, inner);
    let (seven, eight) = (Place::Connection(7), Place::Connection(8));
    assert_eq!(seen.take(), [seven, eight, seven], "a poll inside of another one");
    assert_eq!(poller.progress().place(), Place::Other, "between polls");
}

/// A request that arrives between the wait for events and the timers of a turn is served, not closed.
#[test]
fn a_request_that_crosses_the_end_of_its_idle_connection_is_served() {
    let t = Test::new();
    let connect = || {
        let (token, theirs) = t.connect();
        t.io.poller.drained(token);
        let until = t.io.poller.after(Duration::from_secs(1));
        t.runners.park(token, Work::Nothing, until).expect("nothing has come");
        theirs
    };
    let (mut asks, _silent, leaves) = (connect(), connect(), connect());
    asks.write_all(b"x").expect("open");
    drop(leaves);
    t.pass(Duration::from_secs(2));
    assert_eq!((t.served.get(), t.expired.get()), (1, 2));
}
