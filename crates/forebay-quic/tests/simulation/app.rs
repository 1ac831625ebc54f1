//! Application on one side of a connection. It goes by events alone: a wakeup that is missing leaves it stuck.

use crate::plan::{Ending, Plan, datagram};
use crate::random::Random;
use crate::transport::{End, News, Read, Transport, Write};
use forebay_quic::id::{Dir, Side, StreamId};
use forebay_quic::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a side does.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Streams that it opens, bidirectional and unidirectional.
    pub streams: [u64; 2],
    /// Longest time between two of them.
    pub gap: Duration,
    /// DATAGRAM frames that it sends.
    pub datagrams: u64,
}

/// What both sides know of each other.
#[derive(Clone, Debug)]
pub struct Work {
    pub seed: u64,
    /// Of the client and of the server.
    pub loads: [Load; 2],
    /// Bytes of a long stream.
    pub most: u64,
}

struct Sending {
    plan: Plan,
    written: u64,
    can_write: bool,
    is_ended: bool,
    is_done: bool,
}

struct Receiving {
    plan: Plan,
    read: u64,
    can_read: bool,
    paused_until: Time,
    is_done: bool,
}

#[derive(Default)]
struct Stream {
    sending: Option<Sending>,
    receiving: Option<Receiving>,
}

/// Application.
pub struct App {
    side: Side,
    work: Work,
    random: Random,
    /// Streams that are still to be opened and accepted.
    to_open: [u64; 2],
    to_accept: [u64; 2],
    may_open: [bool; 2],
    next_open: Time,
    streams: BTreeMap<StreamId, Stream>,
    datagrams_sent: u64,
    datagrams_got: BTreeSet<u64>,
    pub is_connected: bool,
    pub end: Option<End>,
    /// It has closed the connection.
    pub has_closed: bool,
    /// Token for the next connection.
    pub token: Option<Vec<u8>>,
    /// It does nothing before the handshake is complete.
    pub waits: bool,
}

const DIRS: [Dir; 2] = [Dir::Bi, Dir::Uni];

fn of(side: Side) -> usize {
    usize::from(side.is_server())
}

impl App {
    pub fn new(side: Side, work: &Work) -> App {
        App {
            side,
            random: Random::new(work.seed ^ (0xa44 + of(side) as u64)),
            to_open: work.loads[of(side)].streams,
            to_accept: work.loads[of(side.other())].streams,
            may_open: [true; 2],
            next_open: Time::default(),
            streams: BTreeMap::new(),
            datagrams_sent: 0,
            datagrams_got: BTreeSet::new(),
            is_connected: false,
            end: None,
            has_closed: false,
            token: None,
            waits: false,
            work: work.clone(),
        }
    }

    /// Returns `true` if everything is done that is planned.
    pub fn is_done(&self) -> bool {
        self.is_connected
            && self.to_open == [0, 0]
            && self.to_accept == [0, 0]
            && self.datagrams_sent >= self.work.loads[of(self.side)].datagrams
            && self.streams.values().all(|stream| {
                stream.sending.as_ref().is_none_or(|s| s.is_done)
                    && stream.receiving.as_ref().is_none_or(|r| r.is_done)
            })
    }

    /// Returns a time at which something is to be done.
    pub fn wake(&self, now: Time) -> Option<Time> {
        if self.end.is_some() || self.has_closed {
            return None;
        }
        let pauses = self.streams.values().filter_map(|s| s.receiving.as_ref());
        let pauses = pauses.filter(|r| !r.is_done && r.can_read).map(|r| r.paused_until);
        let open = (0..2).any(|d| self.to_open[d] > 0 && self.may_open[d]).then_some(self.next_open);
        pauses.chain(open).filter(|at| *at > now).min()
    }

    pub fn turn(&mut self, now: Time, transport: &mut dyn Transport) {
        while let Some(news) = transport.news() {
            self.note(news, transport);
        }
        if self.end.is_some() || self.has_closed || self.waits && !self.is_connected {
            return;
        }
        self.open(now, transport);
        for dir in DIRS {
            while let Some(id) = transport.accept(dir) {
                assert!(self.to_accept[dir as usize] > 0, "one stream too many: {id:?}");
                self.to_accept[dir as usize] -= 1;
                self.begin(id, transport);
            }
        }
        let (work, random) = (&self.work, &mut self.random);
        for (id, stream) in &mut self.streams {
            if let Some(sending) = &mut stream.sending {
                sending.pump(*id, transport);
            }
            if let Some(receiving) = &mut stream.receiving {
                receiving.pump(*id, now, random, transport);
            }
        }
        let load = &work.loads[of(self.side)];
        while self.is_connected && self.datagrams_sent < load.datagrams {
            transport.send_datagram(datagram(work.seed, self.side, self.datagrams_sent).into());
            self.datagrams_sent += 1;
        }
    }

    fn open(&mut self, now: Time, transport: &mut dyn Transport) {
        for dir in DIRS {
            let d = dir as usize;
            while self.to_open[d] > 0 && self.may_open[d] && self.next_open <= now {
                let Some(id) = transport.open(dir) else {
                    self.may_open[d] = false;
                    break;
                };
                self.to_open[d] -= 1;
                self.begin(id, transport);
                let gap = self.work.loads[of(self.side)].gap.as_nanos() as u64;
                self.next_open = now + Duration::from_nanos(self.random.below(gap + 1));
            }
        }
    }

    fn begin(&mut self, id: StreamId, transport: &mut dyn Transport) {
        let plan = |from: Side| Plan::new(self.work.seed, id, from, self.work.most);
        let mut stream = Stream::default();
        if id.dir() == Dir::Bi || id.opener() == self.side {
            let plan = plan(self.side);
            transport.prioritize(id, plan.priority);
            stream.sending =
                Some(Sending { plan, written: 0, can_write: true, is_ended: false, is_done: false });
        }
        if id.dir() == Dir::Bi || id.opener() != self.side {
            let plan = plan(self.side.other());
            stream.receiving = Some(Receiving {
                plan,
                read: 0,
                can_read: true,
                paused_until: Time::default(),
                is_done: false,
            });
        }
        assert!(self.streams.insert(id, stream).is_none(), "{id:?} came twice");
    }

    fn note(&mut self, news: News, transport: &mut dyn Transport) {
        match news {
            News::Connected => self.is_connected = true,
            News::Opened => {}
            News::Available(dir) => self.may_open[dir as usize] = true,
            News::Readable(id) => {
                if let Some(receiving) = self.streams.get_mut(&id).and_then(|s| s.receiving.as_mut()) {
                    receiving.can_read = true;
                }
            }
            News::Writable(id) => self.sending(id).can_write = true,
            News::Finished(id) => {
                let sending = self.sending(id);
                assert!(sending.is_ended && sending.plan.ending == Ending::Fin, "{id:?} finished too early");
                sending.is_done = true;
            }
            News::Stopped(id, code) => {
                if self.streams.contains_key(&id) {
                    self.sending(id).stopped(id, code, transport);
                }
            }
            News::Datagram => {
                while let Some(got) = transport.receive_datagram() {
                    let n = u64::from_ne_bytes(got[..8].try_into().expect("eight bytes"));
                    assert_eq!(&got[..], &datagram(self.work.seed, self.side.other(), n)[..]);
                    assert!(self.datagrams_got.insert(n), "DATAGRAM {n} came twice");
                }
            }
            News::Token(token) => self.token = Some(token),
            News::Lost(end) => self.end = Some(end),
        }
    }

    fn sending(&mut self, id: StreamId) -> &mut Sending {
        self.streams.get_mut(&id).and_then(|s| s.sending.as_mut()).expect("a stream that sends")
    }

    /// Describes what is not done.
    pub fn describe(&self) -> String {
        let mut out = format!(
            "{:?}: connected {}, end {:?}, to open {:?} ({:?}), to accept {:?}",
            self.side, self.is_connected, self.end, self.to_open, self.may_open, self.to_accept
        );
        for (id, stream) in &self.streams {
            if let Some(s) = stream.sending.as_ref().filter(|s| !s.is_done) {
                let (of, can) = (s.plan.target(), s.can_write);
                out += &format!("; {id:?} wrote {} of {of}, can {can}, ended {}", s.written, s.is_ended);
            }
            if let Some(r) = stream.receiving.as_ref().filter(|r| !r.is_done) {
                out += &format!("; {id:?} read {} of {}, can {}", r.read, r.plan.len, r.can_read);
            }
        }
        out
    }
}

impl Sending {
    fn pump(&mut self, id: StreamId, transport: &mut dyn Transport) {
        let target = self.plan.target();
        while self.can_write && !self.is_ended && self.written < target {
            let len = self.plan.write.min((target - self.written) as usize);
            let content = self.plan.content(self.written, len);
            match transport.write(id, content) {
                Write::Taken(n) => {
                    self.written += n as u64;
                    self.can_write = n == len;
                }
                Write::Blocked => self.can_write = false,
                Write::Stopped(code) => return self.stopped(id, code, transport),
                Write::Closed => panic!("{id:?} takes nothing"),
            }
        }
        if self.written == target && !self.is_ended {
            self.is_ended = true;
            match self.plan.ending {
                Ending::Fin => {
                    if !transport.finish(id) {
                        // The peer has stopped it, maybe before the application knew it.
                        let (_, code) = self.plan.stop.expect("a stream that can end");
                        self.stopped(id, code, transport);
                    }
                }
                Ending::Reset { code, .. } => {
                    transport.reset(id, code);
                    self.is_done = true;
                }
            }
        }
    }

    fn stopped(&mut self, id: StreamId, code: u64, transport: &mut dyn Transport) {
        assert_eq!(self.plan.stop.map(|(_, code)| code), Some(code), "{id:?}");
        if !std::mem::replace(&mut self.is_done, true) {
            transport.after_stop(id, code);
        }
        self.is_ended = true;
    }
}

impl Receiving {
    fn pump(&mut self, id: StreamId, now: Time, random: &mut Random, transport: &mut dyn Transport) {
        while self.can_read && !self.is_done && self.paused_until <= now {
            if let Some((_, code)) = self.plan.stop.filter(|(at, _)| self.read >= *at) {
                transport.stop(id, code);
                self.is_done = true;
                return;
            }
            match transport.read(id, self.plan.read) {
                Read::Some(content, is_end, is_more) => {
                    let expected = self.plan.content(self.read, content.len());
                    assert!(content[..] == expected[..], "{id:?}: wrong content from {} on", self.read);
                    self.read += content.len() as u64;
                    assert!(self.read <= self.plan.target(), "{id:?}: too much");
                    self.can_read = is_more;
                    if is_end {
                        self.ended(id);
                    }
                }
                Read::Blocked => self.can_read = false,
                Read::End => self.ended(id),
                Read::Reset(code) => {
                    assert!(matches!(self.plan.ending, Ending::Reset { code: c, .. } if c == code), "{id:?}");
                    self.is_done = true;
                }
                Read::Closed => panic!("{id:?} has nothing to read"),
            }
            if random.happens(self.plan.pauses) {
                self.paused_until = now + Duration::from_micros(random.below(300_000));
            }
        }
    }

    fn ended(&mut self, id: StreamId) {
        assert_eq!((self.plan.ending, self.read), (Ending::Fin, self.plan.len), "{id:?} ended");
        self.is_done = true;
    }
}
